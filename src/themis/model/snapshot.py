"""The one immutable picture of the system that every policy decides on.

Rows of the app columns are active apps in order of submission; rows of the job columns are those apps' jobs that can
run now (running, waiting or about to lose their lease), grouped by app: app row ``a`` owns job rows
``job_ptr[a]:job_ptr[a + 1]``. ``app_id`` and ``job_id`` are the ids used by events and commands.

A GPU whose lease ends at this instant counts as free (it is in ``free``), and its job counts as waiting; the columns
``job_expiring`` and ``gpu_job`` still say who has it, so that it can be renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import numpy as np

from themis.errors import MissingColumn
from themis.model.bids import Bids
from themis.model.forecast import Ahead
from themis.model.snapshot_columns import (
    APP_ID,
    APP_ROW,
    COUNT,
    FLAG,
    GPU_S,
    GPUS,
    JOB_ID,
    JOB_ROW,
    NAME,
    ONE,
    PER_STEP,
    ROW,
    S_STEP,
    STEPS,
    TABLE,
    Column,
    S,
    columns_of,
)
from themis.model.speed import Speeds
from themis.model.units import Bool, Float, Int, Seconds

Derived = TypeVar("Derived")


class Deferred:
    """A column that follows from a snapshot's others; copies of the snapshot share what was computed for one of them."""

    __slots__ = ("make", "value")

    def __init__(self, make: Callable[[Snapshot], object]) -> None:
        self.make = make
        self.value: object = None

    def of(self, columns: Snapshot) -> object:
        """The column; computed on first access."""
        if self.value is None:
            self.value = self.make(columns)
        return self.value


class Kind(IntEnum):
    """Relation between an app's jobs, for finish-time fairness.

    A bag is also what curve stopping leaves of an app at any time: jobs that run to the end, as far as is known.
    Halving is every sweep in rungs, Hyperband's included.
    """

    SINGLE = 0
    BAG = 1
    HALVING = 2


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Columns over apps A, jobs J, GPU types K, machines N, GPUs G and sweep phases P (``model.snapshot_columns.AXES``).

    A column is one line here and its filling in ``core.take_snapshot``. Those with a default are filled where they are asked for.
    Times are absolute, except lengths; infinite where there is none.

    Where fairness is between users or groups, ``app_weight`` is the app's part of its user's (decision 0020) and the columns
    ``unit_received``, ``unit_entitled`` and ``unit_rate`` are there: a user's account begins when the first of its present apps
    came. Phases of one bracket follow one another, brackets run side by side. The longest job of a phase is the one that takes
    most time at its most GPUs; on the app's widest gang its GPU-seconds would take that time.
    """

    version: Annotated[int, Column("", ONE, "number of the state that this is a snapshot of")]
    round: Annotated[int, Column("", ONE, "decisions taken so far; with `seed` it seeds every random draw")]
    seed: Annotated[int, Column("", ONE, "the run's random seed")]
    now: Annotated[Seconds, Column("", S, "the instant of the decision")]
    origin: Annotated[Seconds, Column("", S, "where rounds are counted from: when the first app came")]
    lease_s: Annotated[Seconds, Column("", S, "the setting `lease_s`")]
    step_s: Annotated[Seconds, Column("", S, "leases end together on its multiples; 0: each by itself")]
    tick_s: Annotated[Seconds, Column("", S, "the setting `tick_s`: leases end on its multiples")]
    restart_s: Annotated[Seconds, Column("", S, "the container's share of a restart (`container_s`)")]
    gpu_types: Annotated[tuple[str, ...], Column("K", NAME, "names of the GPU types")]
    users: Annotated[tuple[str, ...], Column("V", NAME, "names of the users, by the number in `app_user`")]
    speeds: Annotated[Speeds, Column("", TABLE, "the speed table (`model.speed`)")]

    machine_gpus: Annotated[Int, Column("N", GPUS, "GPUs in service, 0 while the machine failed or drains")]
    machine_type: Annotated[Int, Column("N", ROW, "row of `gpu_types`")]
    machine_rack: Annotated[Int, Column("N", ROW, "number of its rack")]
    machine_slot: Annotated[Int, Column("N", GPUS, "GPUs that share its fastest interconnect")]
    free: Annotated[Int, Column("N", GPUS, "GPUs in the offer")]
    gpu_machine: Annotated[Int, Column("G", ROW, "the machine that it is in")]
    gpu_slot: Annotated[Int, Column("G", ROW, "number of its slot in the whole cluster")]
    gpu_free: Annotated[Bool, Column("G", FLAG, "it is in the offer")]
    gpu_job: Annotated[Int, Column("GS", JOB_ID, "the job that has the seat, or -1")]

    app_id: Annotated[Int, Column("A", APP_ID, "id in events and commands")]
    app_user: Annotated[Int, Column("A", ROW, "row of `users`")]
    app_kind: Annotated[Int, Column("A", ROW, "a `Kind`")]
    app_weight: Annotated[Float, Column("A", ONE, "the product of its own, its user's and its group's")]
    app_arrival: Annotated[Float, Column("A", S, "when it was submitted")]
    app_contention: Annotated[Float, Column("A", ONE, "N_avg: mean over its life of the sum of all weights / its own")]
    app_capacity: Annotated[Float, Column("A", GPUS, "R_C: GPUs in service, mean over its life")]
    app_speed: Annotated[Float, Column("A", ONE, "of its model on a mean GPU in service; 1: its reference GPU")]
    app_attained: Annotated[Float, Column("A", GPU_S, "leased so far")]
    app_held: Annotated[Int, Column("A", GPUS, "held beyond this instant")]
    app_gang_min: Annotated[Int, Column("A", GPUS, "smallest gang of any of its jobs")]
    app_gang_max: Annotated[Int, Column("A", GPUS, "largest gang of any of its jobs")]
    app_rigid: Annotated[Bool, Column("A", FLAG, "all its jobs want the same one number of GPUs")]
    app_unknown: Annotated[Bool, Column("A", FLAG, "its user gave no estimate of its work")]
    app_budget: Annotated[Float, Column("A", GPU_S, "all its work on reference GPUs, as forecast now")]
    app_demand: Annotated[Int, Column("A", GPUS, "most that it can ever use (app_demand_max)")]
    app_longest: Annotated[
        Float, Column("A", S, "job sets: the longest job on its maximum number of reference GPUs; 0: sweeps")
    ]
    app_left_held: Annotated[Float, Column("A", S, "time left on the GPUs held beyond this instant; inf if none")]
    app_deadline: Annotated[Float, Column("A", S, "absolute; inf without one")]
    app_away: Annotated[Float, Column("A", S, "time that its user held it, which is no part of its life")]
    phase_work: Annotated[Float, Column("AP", GPU_S, "work of each phase on reference GPUs; 0: no such phase")]
    phase_longest: Annotated[Float, Column("AP", GPU_S, "of the longest job, counted on `app_gang_max` GPUs")]
    phase_jobs: Annotated[Int, Column("AP", COUNT, "jobs of the phase")]
    phase_bracket: Annotated[Int, Column("AP", ROW, "its bracket; 0 except for Hyperband")]
    future_work: Annotated[Float, Column("AP", GPU_S, "of phases after the current one, at the median job's speed")]
    future_longest: Annotated[Float, Column("AP", GPU_S, "`phase_longest` of phases after the current one")]
    future_jobs: Annotated[Int, Column("AP", COUNT, "`phase_jobs` of phases after the current one")]

    job_ptr: Annotated[Int, Column("B", JOB_ROW, "app row `a` owns job rows `job_ptr[a]:job_ptr[a + 1]`")]
    job_id: Annotated[Int, Column("J", JOB_ID, "id in events and commands")]
    job_app: Annotated[Int, Column("J", APP_ROW, "its app")]
    job_bracket: Annotated[Int, Column("J", ROW, "its bracket in its app's sweep")]
    job_config: Annotated[Int, Column("J", ROW, "row of `speeds`")]
    job_gpus_min: Annotated[Int, Column("J", GPUS, "smallest gang")]
    job_gpus_max: Annotated[Int, Column("J", GPUS, "largest gang")]
    job_allowed: Annotated[Bool, Column("JK", FLAG, "it may use GPUs of the type")]
    job_left: Annotated[Float, Column("J", GPU_S, "reference GPU-seconds to the end of its rung, or all its work")]
    job_attained: Annotated[Float, Column("J", GPU_S, "leased so far")]
    job_held: Annotated[Int, Column("J", GPUS, "held beyond this instant, 0 if none")]
    job_expiring: Annotated[Int, Column("J", GPUS, "whose lease ends at this instant")]
    job_attempt: Annotated[Int, Column("J", COUNT, "times that its gang was started")]
    job_since: Annotated[Float, Column("J", S, "when it got the GPUs that it has, or lost its last ones (absolute)")]
    job_until: Annotated[Float, Column("J", S, "when its lease ends (absolute)")]
    job_locality: Annotated[Int, Column("J", ROW, "`Locality` of its GPUs")]
    job_gpu_type: Annotated[Int, Column("J", ROW, "type of the GPUs that it has or had last")]
    job_done: Annotated[Float, Column("J", STEPS, "done so far")]
    job_serial: Annotated[Float, Column("J", S_STEP, "on one reference GPU, at its present speed")]
    job_order: Annotated[Int, Column("J", ONE, "below 0 where its app's agent ordered its jobs: lowest first")]
    job_loss_a: Annotated[Float, Column("J", ONE, "a of its loss curve a / (b i + 1) + c")]
    job_loss_b: Annotated[Float, Column("J", PER_STEP, "b of its loss curve")]
    received: Annotated[Float, Column("JK", S, "time that it ran on each type")]
    finished_service: Annotated[Float, Column("F", GPU_S, "of each app that ended, until it ended; rising")]

    bids: Annotated[Bids | None, Column("", TABLE, "the answer to a policy's `Ask`")] = None
    ahead: Annotated[Ahead | None, Column("", TABLE, "forecast of each job's training, if in `needs`")] = None
    reference: Annotated[Float | None, Column("A", S, "when it finishes on its own share, if in `needs`")] = None
    need_left: Annotated[Float | None, Column("A", GPU_S, "work left on the best places, with `reference`")] = None
    need_alone: Annotated[Float | None, Column("A", S, "time left alone on reference GPUs, with `reference`")] = None
    need_whole: Annotated[Float | None, Column("A", S, "the same of all its work, with `reference`")] = None
    horizon: Annotated[
        Seconds | None, Column("", S, "by when the work at hand can be done, if `reference` is in `needs`")
    ] = None
    job_seconds: Annotated[
        Float | None,
        Column("JKZ", S, "time left with a gang of each size, placed best, if in `needs`; inf: it cannot run"),
    ] = None
    rho_said: Annotated[Float | None, Column("A", ONE, "finish-time fairness as its agent reports it, or NaN")] = None
    between: Annotated[str, Column("", NAME, "unit of fairness (`model.settings.BETWEEN`)")] = "apps"
    unit_received: Annotated[Float | None, Column("A", GPU_S, "received by its user since its account began")] = None
    unit_entitled: Annotated[Float | None, Column("A", GPU_S, "what its user was entitled to in that time")] = None
    unit_rate: Annotated[Float | None, Column("A", GPUS, "what its user is entitled to now")] = None

    @property
    def apps(self) -> int:
        """Number of active apps A."""
        return len(self.app_id)

    @property
    def jobs(self) -> int:
        """Number of runnable jobs J."""
        return len(self.job_id)

    @property
    def app_elapsed(self) -> Float:
        """Seconds since each app arrived, without the time on hold by its user."""
        return self.now - self.app_arrival - self.app_away

    @cached_property
    def weighted(self) -> bool:
        """True if the apps' weights differ."""
        return self.apps > 0 and bool((self.app_weight != self.app_weight[0]).any())

    @cached_property
    def gangs(self) -> Mapping[int, tuple[int, ...]]:
        """GPUs of every job that has some now, expiring leases included, by job id (why this class has no slots)."""
        g, seat = np.nonzero(self.gpu_job >= 0)
        job = self.gpu_job[g, seat]
        order = np.argsort(job, kind="stable")
        jobs, first = np.unique(job[order], return_index=True)
        return dict(zip(jobs.tolist(), map(tuple, (x.tolist() for x in np.split(g[order], first[1:])))))

    def once(self, key: Hashable, make: Callable[[Snapshot], Derived]) -> Derived:
        """Result of ``make`` on these columns, computed on the first call with ``key`` and cached.

        ``make`` reads no answers of agents (``bids``, ``rho_said``): snapshots that differ in these alone share the result.
        It gets the columns without what was computed from them, so that no cached value refers to this snapshot.
        """
        kept = self._kept
        if key not in kept:
            columns = self._copy()
            del columns.__dict__["_kept"]
            kept[key] = make(columns)
        return cast(Derived, kept[key])

    @cached_property
    def _kept(self) -> dict[Hashable, Any]:
        return {}

    def with_bids(self, bids: Bids) -> Snapshot:
        """The same picture with the bids that its policy asked for, and with all that was computed from it."""
        _ = self._kept
        out = self._copy()
        out.__dict__["bids"] = bids
        return out

    @classmethod
    def of(cls, **columns: object) -> Snapshot:
        """A picture of these columns, all but the optional ones: ``Snapshot(...)`` in a tenth of its time."""
        out = object.__new__(cls)
        out.__dict__.update(_optional())
        out.__dict__.update(columns)
        return out

    def filled(self, **columns: object) -> Snapshot:
        """This picture itself with the columns that its maker computes from the others, before anybody else sees it.

        What was computed ``once`` so far is kept: none of it may depend on these columns.
        """
        self.__dict__.update(columns)
        return self

    def deferring(self, **columns: Callable[[Snapshot], object]) -> Snapshot:
        """This picture itself with columns that are computed from its others when they are first read; many policies read none."""
        self.__dict__["_deferred"] = {name: Deferred(make) for name, make in columns.items()}
        return self

    if not TYPE_CHECKING:  # columns are attributes; a misspelt one is still found

        def __getattr__(self, name: str) -> Any:
            """A deferred column: Python calls this only if the snapshot has no such attribute yet."""
            there, gathered = self.__dict__, self.__dict__.get("_gathered")
            if gathered is not None and name in gathered:
                value = there[name] = gathered.read(name)
            elif name in there.get("_deferred", {}):
                value = there[name] = there["_deferred"][name].of(self)
            else:
                raise AttributeError(f"a snapshot has no attribute {name!r}")
            return value

    def _complete(self) -> Snapshot:
        """Copy with every deferred column computed from the present columns, before any of them changes."""
        for name in (*self.__dict__.get("_gathered", ()), *self.__dict__.get("_deferred", ())):
            getattr(self, name)
        return self

    def having(self, **columns: object) -> Snapshot:
        """Copy with these columns replaced: ``dataclasses.replace`` in a tenth of its time."""
        out = self._copy()
        for computed in ("_kept", "gangs", "weighted"):
            out.__dict__.pop(computed, None)
        # They follow from the columns as they were.
        deferred = self.__dict__.get("_deferred", {})
        out.__dict__["_deferred"] = {name: Deferred(partial(_read, self, name)) for name in deferred}
        assert columns.keys() <= {*self.__dict__, *deferred, *self.__dict__.get("_gathered", ())}
        out.__dict__.update(columns)
        return out

    def _copy(self) -> Snapshot:
        # Sixty columns go over in one call: this is done several times a decision.
        out = object.__new__(Snapshot)
        out.__dict__.update(self.__dict__)
        return out

    def __getstate__(self) -> dict[str, Any]:
        """Send only the columns to other processes; the rest can be computed there."""
        names = columns_of(Snapshot)
        return {name: value for name, value in self._complete().__dict__.items() if name in names}

    def need(self, column: str) -> object:
        """The optional column, or MissingColumn saying how to turn it on."""
        value = getattr(self, column, None)
        if value is None:
            raise MissingColumn(
                f"the snapshot has no column {column!r}; name it in the policy's needs, or answer Ask(column={column!r})."
            )
        return value

    def nbytes(self) -> int:
        """Memory of all array columns."""
        return sum(
            v.nbytes for v in (getattr(self, name) for name in columns_of(Snapshot)) if isinstance(v, np.ndarray)
        )


def _read(other: Snapshot, name: str, s: Snapshot) -> object:
    return getattr(other, name)


@cache
def _optional() -> Mapping[str, object]:
    """Optional columns, and their substitutes."""
    return {f.name: f.default for f in fields(Snapshot) if f.default is not MISSING}
