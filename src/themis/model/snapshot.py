"""The one immutable picture of the system that every policy decides on.

Rows of the app columns are active apps in order of submission; rows of the job columns are those apps' jobs that can
run now (running, waiting or about to lose their lease), grouped by app: app row ``a`` owns job rows
``job_ptr[a]:job_ptr[a + 1]``. ``app_id`` and ``job_id`` are the ids used by events and commands.

A GPU whose lease ends at this instant counts as free (it is in ``free``), and its job counts as waiting; the columns
``job_expiring`` and ``gpu_job`` still say who has it, so that it can be renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from themis.errors import MissingColumn
from themis.model.ahead import Ahead
from themis.model.units import Bool, Float, Int, Seconds
from themis.profiles.speed import Speeds

if TYPE_CHECKING:
    from themis.auction.bids import Bids


Derived = TypeVar("Derived")


_OPTIONAL: Mapping[str, object] = MappingProxyType(
    {
        "bids": None, "ahead": None, "reference": None, "rho_said": None, "between": "apps",
        "unit_received": None, "unit_entitled": None, "unit_rate": None,
    }
)  # fmt: skip


class Kind(IntEnum):
    """How an app's jobs hang together, for finish-time fairness.

    A bag is also what curve stopping leaves of an app at any time: jobs that run to the end, as far as is known.
    Halving is every sweep in rungs, Hyperband's included.
    """

    SINGLE = 0
    BAG = 1
    HALVING = 2


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Columns over apps A, jobs J, GPU types K, machines N, GPUs G and sweep phases P.

    Attributes
    ----------
    version : number of the state that this is a picture of.
    round : decisions taken so far; with ``seed`` it seeds every random draw of a decision.
    origin : where rounds are counted from: when the first app came.
    lease_s : seconds that a lease given now lasts, less than the setting where apps wait (``core.contention``); ``full_lease_s`` :
        the setting. ``tick_s``, ``restart_s`` : settings (seconds); the latter is the container's share, models add their
        checkpoint's.
    users : names, by the number in ``app_user``.
    between : the unit of fairness, ``apps``, ``users`` or ``groups`` (``model.settings.BETWEEN``).
    unit_received, unit_entitled, unit_rate : [A], not between apps: GPU-seconds that the app's user received while it has had
        apps, those that it was entitled to, and GPUs that it is entitled to now.
    app_weight : between apps the product of the app's, its user's and its group's weights; otherwise the app's part of its
        user's (decision 0020).
    app_away : seconds that its user held the app, which are no part of its life.
    app_contention : N_avg, mean over the app's life of (sum of weights of apps in the system / its own).
    app_capacity : R_C, in-service GPUs averaged over the app's life.
    app_speed : mean over in-service GPUs of the speed of the app's model, 1 = its reference GPU.
    app_attained : GPU-seconds leased so far. ``app_held`` : GPUs held beyond this instant.
    app_gang_min, app_gang_max : over all the app's jobs. ``app_rigid`` : all its jobs want the same one number of GPUs.
    app_budget : reference GPU-seconds of all its work, as forecast now where curve stopping ends jobs early.
    app_demand : most GPUs it can ever use (app_demand_max).
    app_longest : bags: seconds of the longest job on gpus_max reference GPUs; 0 for sweeps.
    app_left_held : seconds left if it kept exactly the GPUs held beyond this instant for ever; inf if it holds none.
    phase_work, phase_longest, phase_jobs : [A, P], every phase of the app: reference GPU-seconds in all, of the longest
        job, number of jobs; zero where there is no such phase. The longest is the one that takes most time at its most GPUs,
        and it counts for ``app_gang_max`` over these: on the app's widest gang it would take that time.
    future_work, future_longest, future_jobs : [A, P], the same for the phases after the current one, at the median job's speed.
    phase_bracket : [A, P], the bracket that a phase belongs to: phases of one bracket follow one another, brackets run
        beside each other. ``job_bracket`` : [J], the job's bracket. All 0 but for Hyperband.
    job_left : reference GPU-seconds to the end of the job's current target (rung, or all its work).
    job_config : row of ``speeds``. ``job_allowed`` : [J, K].
    job_held, job_until, job_locality : GPUs held beyond this instant (0 if none), until when, at which locality.
    job_gpu_type : type of the GPUs that it has or had last.
    job_expiring : GPUs whose lease ends at this instant.
    job_done : steps done so far; ``job_serial`` : seconds per step on one reference GPU, now.
    job_order : below 0 where the app's own agent said in which order its jobs get gangs, the lowest first.
    job_loss_a, job_loss_b : of the job's loss curve ``a / (b i + 1) + c``; its floor c matters to nobody.
    gpu_machine, gpu_slot : [G]. ``gpu_free`` : [G], in the offer. ``gpu_job`` : [G, seats], job id that has the seat or -1.
    free : [N] GPUs in the offer. ``machine_gpus`` : [N] in service, 0 while failed or draining.
    finished_service : GPU-seconds that each app of the past got until it ended, rising; any length.
    received : [J, K] seconds that the job ran on each type.
    ahead : forecast of each job's training; for policies that have it in their ``needs``.
    reference : [A], when each app finishes on its own share of the cluster, nobody else coming (absolute; ``core.reference``);
        for policies that have it in their ``needs``.
    bids : optional, the answer to a policy's ``Ask``. ``rho_said`` : optional, [A], what apps' own agents say that their
        finish-time fairness is now, NaN where none says anything.
    """

    version: int
    round: int
    seed: int
    now: Seconds
    origin: Seconds
    lease_s: Seconds
    full_lease_s: Seconds
    tick_s: Seconds
    restart_s: Seconds
    gpu_types: tuple[str, ...]
    users: tuple[str, ...]
    speeds: Speeds

    machine_gpus: Int
    machine_type: Int
    machine_rack: Int
    machine_slot: Int
    free: Int
    gpu_machine: Int
    gpu_slot: Int
    gpu_free: Bool
    gpu_job: Int

    app_id: Int
    app_user: Int
    app_kind: Int
    app_weight: Float
    app_arrival: Float
    app_contention: Float
    app_capacity: Float
    app_speed: Float
    app_attained: Float
    app_held: Int
    app_gang_min: Int
    app_gang_max: Int
    app_rigid: Bool
    app_budget: Float
    app_demand: Int
    app_longest: Float
    app_left_held: Float
    app_deadline: Float
    app_away: Float
    phase_work: Float
    phase_longest: Float
    phase_jobs: Int
    phase_bracket: Int
    future_work: Float
    future_longest: Float
    future_jobs: Int

    job_ptr: Int
    job_id: Int
    job_app: Int
    job_bracket: Int
    job_config: Int
    job_gpus_min: Int
    job_gpus_max: Int
    job_allowed: Bool
    job_left: Float
    job_attained: Float
    job_held: Int
    job_expiring: Int
    job_until: Float
    job_locality: Int
    job_gpu_type: Int
    job_done: Float
    job_serial: Float
    job_order: Int
    job_loss_a: Float
    job_loss_b: Float
    received: Float
    finished_service: Float

    bids: Bids | None = field(default=None)
    ahead: Ahead | None = field(default=None)
    reference: Float | None = field(default=None)
    rho_said: Float | None = field(default=None)
    between: str = "apps"
    unit_received: Float | None = field(default=None)
    unit_entitled: Float | None = field(default=None)
    unit_rate: Float | None = field(default=None)

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
        """Seconds since each app arrived, but for those that its user held it."""
        return self.now - self.app_arrival - self.app_away

    @cached_property
    def weighted(self) -> bool:
        """Whether the apps' weights differ."""
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
        """What ``make`` computes from these columns, computed for whoever asks first under ``key``.

        ``make`` reads no answer of agents (``bids``, ``rho_said``): pictures that differ in these alone share what it gave.
        It gets the columns without what was computed from them, so that nothing kept here refers to its keeper.
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
        out.__dict__.update(_OPTIONAL)
        out.__dict__.update(columns)
        return out

    def filled(self, **columns: object) -> Snapshot:
        """This picture itself with the columns that its maker computes from the others, before anybody else sees it.

        What was computed ``once`` so far is kept: none of it may depend on these columns.
        """
        self.__dict__.update(columns)
        return self

    def having(self, **columns: object) -> Snapshot:
        """The same picture but for these columns: ``dataclasses.replace`` in a tenth of its time."""
        assert columns.keys() <= self.__dict__.keys()
        out = self._copy()
        for computed in ("_kept", "gangs", "weighted"):
            out.__dict__.pop(computed, None)
        out.__dict__.update(columns)
        return out

    def _copy(self) -> Snapshot:
        # Sixty columns go over in one call: this is done several times a decision.
        out = object.__new__(Snapshot)
        out.__dict__.update(self.__dict__)
        return out

    def __getstate__(self) -> dict[str, Any]:
        """Columns alone go to other processes; the rest can be computed there."""
        names = {f.name for f in fields(self)}
        return {name: value for name, value in self.__dict__.items() if name in names}

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
        return sum(v.nbytes for v in (getattr(self, f.name) for f in fields(self)) if isinstance(v, np.ndarray))
