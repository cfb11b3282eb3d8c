"""Base of policies that choose a gang size for each job by its value: ``elastic_finish``, ``pollux``, ``sia``.

Every round all gangs whose leases end are decided together. A policy says only what each gang size of each job is worth; the sum
of values is solved with a proven bound (``optimize.gang_sizes``) over all sizes that pack: powers of two within a machine, three of
a machine of four, whole machines, and each job's own smallest and largest gang. Gangs are then placed with few moves
(``placement.whole_machines``).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import numpy as np

from themis.model.answers import GpuGrant, Proof, Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float, Int, Locality, Seconds
from themis.optimize.gang_sizes import Chosen, choose
from themis.policies.api import Cadence, Granularity, Workbench
from themis.policies.placement.packing import Counts
from themis.policies.placement.whole_machines import Wanted, counts_of, pack

HALVES = np.array([0, 0, 1, 2, 2])
"""Half machines of four that free GPUs are, by their number on a machine."""
LEAST = 1e-12
"""Least goodput that others are divided by."""


class Options(NamedTuple):
    """Gangs to choose from, [C]: GPUs, type, whether they are on two machines though one would hold them; the first is no gang."""

    gpus: Int
    kind: Int
    split: Bool | bool = False


class Rows(NamedTuple):
    """Jobs that can get GPUs now.

    Attributes
    ----------
    job : [J], rows of the snapshot. ``seconds`` : [J, C], time left with each option, infinite where it cannot run.
    now : [J], the option that each has until now; 0: none. ``held`` : [J], GPUs that it has until now. ``stands`` : where, by row
        of the snapshot, of those that have some.
    """

    job: Int
    seconds: Float
    now: Int
    held: Int
    stands: dict[int, Counts]

    @property
    def runs(self) -> Bool:
        """[J], jobs that run until now."""
        out: Bool = self.held > 0
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSizes:
    """Decide on all gangs each round.

    Attributes
    ----------
    round_s : seconds of a round.
    backfill : False: GPUs that fall free within a round wait for its end, as in Pollux' and Sia's simulators.
    """

    round_s: Seconds = 60.0
    backfill: bool = True

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"job_seconds"})
    level: ClassVar[Granularity] = Granularity.JOB
    splits: ClassVar[bool] = False
    """Gangs of three may also be on two machines of four, at their speed there."""

    @property
    def pace(self) -> Cadence:
        """Each round, and whenever GPUs are free if ``backfill``."""
        return Cadence(round_s=self.round_s, backfill=self.backfill, clock=True)

    @abstractmethod
    def value(self, s: Snapshot, options: Options, rows: Rows) -> Float:
        """[J, C], value of each option of each job; -inf where it may not have it. Column 0: no GPUs."""

    def solve(self, s: Snapshot, options: Options, rows: Rows, capacity: Int) -> Chosen:
        """The options that are worth most together."""
        value = self.value(s, options, rows)
        value[:, 1:][~np.isfinite(rows.seconds[:, 1:])] = -np.inf
        return choose(value, options.gpus, options.kind, capacity, halves_of(s), options.split)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Choose sizes, then places."""
        s = snapshot
        options, capacity = (
            options_of(s, self.splits),
            np.bincount(s.machine_type, weights=s.free, minlength=len(s.gpu_types)),
        )
        rows = rows_of(s, options)
        chosen = self.solve(s, options, rows, capacity.astype(np.int64))
        split = np.broadcast_to(options.split, options.gpus.shape)
        wanted = [
            Wanted(j, int(options.gpus[c]), int(options.kind[c]), bool(split[c]))
            for j, c in zip(rows.job.tolist(), chosen.option.tolist())
            if c
        ]
        placed = pack(wanted, rows.stands, s.free, s.machine_type, s.machine_rack, s.machine_gpus)
        proof = Proof(objective=chosen.objective, bound=chosen.bound, method=chosen.method, offered=int(capacity.sum()))
        return Solved(answer=self._granted(s, placed), proof=proof)

    def _granted(self, s: Snapshot, placed: dict[int, tuple[tuple[int, int], ...]]) -> GpuGrant:
        flat = [(j, gang, n, c) for gang, (j, counts) in enumerate(placed.items()) for n, c in counts]
        job, gang, machine, gpus = (np.array([row[i] for row in flat], dtype=np.int64) for i in range(4))
        return GpuGrant(
            app=s.app_id[s.job_app[job]],
            gang=gang,
            machine=machine,
            gpus=gpus,
            until=np.full(len(job), s.now + self.round_s),
            extend=np.full(len(job), -1),
            job=s.job_id[job],
        )


def options_of(s: Snapshot, splits: bool = False) -> Options:
    """Gangs that pack on the machines in service, and each job's smallest and largest; the last is of three GPUs that are split."""
    gpus, kind, threes = [0], [0], halves_of(s) is not None
    splits = splits and threes
    for k in range(len(s.gpu_types)):
        there = s.machine_gpus[s.machine_type == k]
        total, machine = int(there.sum()), int(there.max(initial=0))
        sizes = {1 << i for i in range(machine.bit_length()) if 1 << i <= machine}
        sizes |= set(range(machine, total + 1, machine)) if machine else set()
        sizes |= {3} if threes else set()
        sizes |= {int(g) for g in np.concatenate([s.job_gpus_min, s.job_gpus_max]) if g <= total}
        gpus += [*sorted(sizes), 3] if splits else sorted(sizes)
        kind += [k] * (len(gpus) - len(kind))
    split = np.arange(len(gpus)) == len(gpus) - 1 if splits else False
    return Options(np.array(gpus, dtype=np.int64), np.array(kind, dtype=np.int64), split)


def halves_of(s: Snapshot) -> int | None:
    """Half machines on offer, where all machines in service are of four GPUs of one type: gangs of three pack there."""
    if len(s.gpu_types) > 1 or not np.isin(s.machine_gpus, (0, 4)).all():
        return None
    return int(HALVES[s.free].sum())


def rows_of(s: Snapshot, options: Options) -> Rows:
    """The jobs without a lease beyond this instant."""
    job = np.flatnonzero(s.job_held == 0)
    gpus, kind, split = options
    every = cast(Float, s.need("job_seconds"))[job]
    seconds = every[:, kind, np.minimum(gpus, s.speeds.scale.shape[2] - 1)]
    may = (gpus >= s.job_gpus_min[job][:, None]) & (gpus <= s.job_gpus_max[job][:, None])
    may &= s.job_allowed[job][:, kind]
    # Jobs of one process are on one machine; they run on no more GPUs than it has.
    wide = np.isfinite(every[:, :, len(HALVES) :].min(axis=(1, 2), initial=np.inf))
    may &= wide[:, None] | ~np.asarray(split)
    held = s.job_expiring[job]
    gangs, ids = s.gangs, s.job_id[job].tolist()
    stands = {j: counts_of(gangs[i], s.gpu_machine) for j, i in zip(job.tolist(), ids) if i in gangs}
    several = np.array([len(stands.get(j, ())) > 1 for j in job.tolist()], dtype=bool)[:, None]
    same = (gpus == held[:, None]) & (kind == s.job_gpu_type[job][:, None]) & (held > 0)[:, None]
    now = (same * (1 + (split == several))).argmax(axis=1)
    return Rows(job, np.where(may, seconds, np.inf), now, held, stands)


def alone_s(s: Snapshot, rows: Rows) -> Float:
    """[J], time left on one GPU of the type that runs the job best; of a job that needs more, as if it scaled linearly below."""
    low = s.job_gpus_min[rows.job]
    each = cast(Float, s.need("job_seconds"))[rows.job, :, low]
    out: Float = np.where(s.job_allowed[rows.job], each, np.inf).min(axis=1) * low
    return out


def goodput(s: Snapshot, rows: Rows, gpus: Int, kind: Int, split: Bool | bool = False) -> Float:
    """[J, C], reference GPUs that each gang is worth to each job now; 0 on types it may not use.

    ``gpus`` : [C], or [J, C]. ``kind`` : [C]. ``split`` : [C], gangs on two machines though one would hold them; others are
    on as few as hold them.
    """
    largest = np.array([s.machine_gpus[s.machine_type == k].max(initial=0) for k in range(len(s.gpu_types))])
    place = np.where((gpus <= largest[kind]) & ~np.asarray(split), Locality.MACHINE, Locality.RACK)
    size = np.minimum(gpus, s.speeds.scale.shape[2] - 1)
    config = s.job_config[rows.job][:, None]
    out: Float = s.speeds.scale[config, kind, size] / s.speeds.slowdown[config, place]
    return out * s.job_allowed[rows.job][:, kind]


def goodput_of_one(s: Snapshot, rows: Rows) -> Float:
    """[J], goodput now on one GPU of the type that is best for the job; of a job that needs more, a part of its smallest gang's."""
    low, kinds = s.job_gpus_min[rows.job], np.arange(len(s.gpu_types))
    each = goodput(s, rows, np.repeat(low[:, None], len(kinds), axis=1), kinds).max(axis=1)
    out: Float = np.maximum(each / low, LEAST)
    return out


def restart_factor(s: Snapshot, rows: Rows) -> Float:
    """[J, C], max(age - starts d, 0) / (age + d) for a start of d seconds where a running job changes its gang; else 1."""
    start = s.restart_s + s.speeds.checkpoint_s[s.job_config[rows.job]]
    age = s.now - s.app_arrival[s.job_app[rows.job]]
    factor = np.maximum(age - np.maximum(s.job_attempt[rows.job] - 1, 0) * start, 0.0) / np.maximum(age + start, 1e-9)
    out: Float = np.where(rows.runs, factor, 1.0)[:, None] * np.ones(rows.seconds.shape)
    out[np.arange(len(rows.job)), rows.now] = 1.0
    return out


def weights(s: Snapshot, rows: Rows) -> Float:
    """[J], each job's part of its app's weight."""
    app = s.job_app[rows.job]
    out: Float = s.app_weight[app] / np.bincount(s.job_app, minlength=s.apps)[app]
    return out
