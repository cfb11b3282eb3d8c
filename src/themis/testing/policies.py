"""The conformance kit for policies: ``check_policy`` puts one through everything that the core relies on.

Plug-in authors call it from a test of their own::

    from themis.testing.policies import check_policy

    def test_my_policy_conforms() -> None:
        check_policy(lambda: MyPolicy())

Optima are compared by objective, never by solution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from themis.fairness.finish_time import FinishTime
from themis.model.answers import Answer, Ask, GpuGrant, Renewal, RoundPlan, Solved, TimeShare
from themis.model.events import AppFinished, JobEnded
from themis.model.snapshot import Snapshot
from themis.model.snapshot_columns import APP_ROW, JOB_ID, JOB_ROW, columns_of, in_other_seconds
from themis.model.units import NONE, Float, Int, Locality, Seconds, round_end
from themis.policies.api import Cadence, Granularity, Policy, Workbench
from themis.policies.placement.grants import Allocator, demand_of
from themis.policies.placement.packing import narrowest
from themis.policies.tuning.app_agent import Agents, answer_ask
from themis.policies.tuning.bid_rows import ExclusiveRow
from themis.report.idle import IdleFold
from themis.sim.runner import Record, Simulation
from themis.testing.builders import leased_twice, random_simulation, uneven_simulation

MakePolicy = Callable[[], Policy]


def check_policy(make: MakePolicy, seeds: Sequence[int] = (0, 1, 2), *, beside: float = 0.0) -> None:
    """All checks, on the states that random runs go through.

    Parameters
    ----------
    beside : share of its speed that a job keeps beside another on one GPU, for policies that place two on one; 0: none can.

    Raises
    ------
    AssertionError : with what was expected and what the policy did.
    """
    for seed in seeds:
        log = check_run(make, seed, beside=beside)
        dropped = check_run(make, seed, drop=True, beside=beside)
        assert log == dropped, "dropping the workbench and the core's caches changed the log; keep no state in them"
        check_run(make, seed, mixed=True, beside=beside)
    check_delivery(make, seeds[0])
    for snapshot in sample_snapshots(make, seeds[0], beside=beside):
        check_pure(make(), snapshot)
        check_relabelling(make(), snapshot)
        if make().pace.round_s is None:
            check_time_scale(make(), snapshot)
        if "work_conserving" in make().claims:
            check_work_conserving(make(), snapshot)


def check_run(
    make: MakePolicy, seed: int, *, drop: bool = False, mixed: bool = False, beside: float = 0.0
) -> list[tuple[Seconds, str]]:
    """A run with failures ends, every answer is valid, no app is lost, no GPU leased twice; returns its log as text.

    ``mixed`` : on GPUs of two types.
    """
    rng = np.random.default_rng(seed)
    simulation = random_simulation(_Checked(make()), seed, mixed=mixed, beside=beside)
    log: list[tuple[Seconds, Record]] = []
    simulation.run(
        lambda time, record: log.append((time, record)), drop_bench=lambda: drop and bool(rng.random() < 0.3)
    )
    finished = [r.app for _, r in log if isinstance(r, AppFinished)]
    assert sorted(finished) == list(range(len(simulation.workload.apps))), f"finished apps are {sorted(finished)}"
    ended = [r.job for _, r in log if isinstance(r, JobEnded)]
    assert sorted(ended) == list(range(simulation.workload.jobs)), "each job must end exactly once"
    assert not leased_twice(log), f"GPUs {leased_twice(log)} were leased twice"
    return [(time, repr(record)) for time, record in log if type(record).__name__ not in ("Header", "Allocated")]


def check_delivery(make: MakePolicy, seed: int) -> None:
    """No gang is stopped for GPUs that then idle, and no GPU idles while a waiting job fits it by count.

    On random instances of three GPU types, odd weights and gangs of up to eight GPUs. Policies that leave GPUs idle on purpose
    (``Cadence.spare`` false) are not held to it; nor is anybody in a round's last seconds, in which nothing could start, or in
    mid-round without ``Cadence.backfill``.
    """
    policy = make()
    if policy.pace.spare:
        check_delivered(uneven_simulation(policy, seed))


def check_delivered(simulation: Simulation) -> None:
    """``check_delivery`` of one simulation, whatever its policy says of itself."""
    fold, pace = IdleFold(), simulation.policy.pace

    def sink(time: Seconds, record: Record) -> None:
        if time > fold.now and fold.fitting_types() and not _between_rounds(pace, simulation, fold.now):
            waits = ", ".join(f"{n} of {want.gpus} GPUs" for want, n in fold.waits.items())
            raise AssertionError(
                f"at {fold.now:g} s {dict(fold.free)} GPUs idle although jobs wait that fit by count: {waits}"
            )
        fold.add(time, record)

    simulation.run(sink)
    assert not fold.result().stopped_idle, (
        f"{fold.result().stopped_idle} gangs were stopped although their GPUs then idled"
    )


def _between_rounds(pace: Cadence, simulation: Simulation, now: Seconds) -> bool:
    if pace.round_s is None:
        return False
    left = round_end(now, pace.round_s, 0.0 if pace.clock else min(a.arrival for a in simulation.workload.apps)) - now
    return left <= simulation.settings.container_s + 1e-6 or (not pace.backfill and left < pace.round_s - 1e-6)


def sample_snapshots(make: MakePolicy, seed: int, every: int = 7, *, beside: float = 0.0) -> Iterator[Snapshot]:
    """Snapshots on which the policy decided in a random run."""
    checked = _Checked(make())
    random_simulation(checked, seed, beside=beside).run()
    yield from checked.seen[::every]


def check_pure(policy: Policy, snapshot: Snapshot) -> None:
    """The same snapshot gives the same answer, with a warm or a cold workbench, and stays untouched."""
    bench = Workbench()
    first, again, cold = (decide(policy, snapshot, b) for b in (bench, bench, Workbench()))
    assert _text(first.answer) == _text(again.answer) == _text(cold.answer), "the same snapshot got different answers"


def check_relabelling(policy: Policy, snapshot: Snapshot) -> None:
    """Renumbering apps of equal standing changes neither the objective nor, by more than a gang, the GPUs in use."""
    before, after = (decide(policy, s, Workbench()) for s in (snapshot, relabelled(snapshot)))
    assert np.isclose(before.proof.objective, after.proof.objective, atol=1e-6), (
        f"the objective went from {before.proof.objective} to {after.proof.objective} when apps were renumbered"
    )
    slack = float(snapshot.job_gpus_max.max(initial=0))
    assert abs(used(before.answer) - used(after.answer)) <= slack, "renumbering apps changed how many GPUs are used"


def check_time_scale(policy: Policy, snapshot: Snapshot, factor: float = 3.0) -> None:
    """Measuring time in another unit changes nothing."""
    before, after = (decide(policy, s, Workbench()) for s in (snapshot, rescaled(snapshot, factor)))
    assert np.isclose(before.proof.objective, after.proof.objective, atol=1e-6), (
        "the objective depends on the unit of time"
    )
    assert used(before.answer) == used(after.answer), "the GPUs in use depend on the unit of time"


def check_work_conserving(policy: Policy, snapshot: Snapshot) -> None:
    """Check that after the decision no app has a gang that fits the idle GPUs and would strictly lower its rho.

    Policies that claim ``grows_elastic_jobs`` are held to it for apps without waiting jobs too, and for those that were
    served, as far as more of their jobs wait.
    """
    answer = decide(policy, snapshot, Workbench()).answer
    assert isinstance(answer, GpuGrant)
    idle = snapshot.free - np.bincount(answer.machine, weights=answer.gpus, minlength=len(snapshot.free)).astype(
        np.int64
    )
    served = np.unique(answer.app)
    agents = Agents(snapshot, FinishTime(snapshot))
    for a in np.flatnonzero(~np.isin(snapshot.app_id, served)).tolist():
        waiting = (snapshot.job_held[snapshot.job_ptr[a] : snapshot.job_ptr[a + 1]] == 0).any()
        if waiting or "grows_elastic_jobs" in policy.claims:
            row = agents.best(a, idle)
            assert row is None or not _fits(snapshot, idle, row), (
                f"{idle.sum()} GPUs idle although app {snapshot.app_id[a]} could use gangs of {row.sizes}"
            )
    if "grows_elastic_jobs" in policy.claims:
        _check_served(snapshot, answer, agents, idle)


def _check_served(s: Snapshot, answer: GpuGrant, agents: Agents, idle: Int) -> None:
    """Nor has one that was served, for more of its waiting jobs."""
    allocator = Allocator(s)
    for gang in np.unique(answer.gang).tolist():
        at = np.flatnonzero(answer.gang == gang)
        counts = tuple(zip(answer.machine[at].tolist(), answer.gpus[at].tolist()))
        allocator.give(
            int(np.searchsorted(s.app_id, answer.app[at[0]])),
            counts,
            float(answer.until[at[0]]),
            int(answer.extend[at[0]]),
        )
    assert (allocator.free == idle).all()
    for a, given in allocator.given().items():
        for size in set(demand_of(s, a).low[len(given) :]):
            found = allocator.best_place(a, size)
            assert found is None or not agents.gains(
                a, given, (size, int(s.machine_type[found[0][0][0]]), int(found[1]))
            ), f"{idle.sum()} GPUs idle although app {s.app_id[a]}, served, could use another gang of {size}"


def _fits(s: Snapshot, idle: Int, row: ExclusiveRow) -> bool:
    """True if a row can be had of the idle GPUs; one gang is enough to call them wasted."""
    near = np.ones(len(idle), dtype=bool)
    if row.anchor != NONE:
        near = np.arange(len(idle)) == row.anchor if row.span == Locality.MACHINE else s.machine_rack == row.anchor
    found = narrowest(idle, s.machine_rack, row.sizes[0], near & (s.machine_type == row.gpu_type))
    return found is not None and found[1] <= row.span


def check_answer(snapshot: Snapshot, answer: Answer) -> None:
    """The answer can be carried out as it stands."""
    if isinstance(answer, GpuGrant):
        _check_grant(snapshot, answer)
    elif isinstance(answer, TimeShare):
        _check_share(snapshot, answer)
    elif isinstance(answer, RoundPlan):
        total = int(snapshot.machine_gpus.sum())
        assert (answer.gpus @ answer.run <= total).all(), f"a round uses more than {total} GPUs"
        first = int(answer.gpus @ answer.run[:, 0])
        assert first <= snapshot.free.sum(), f"the first round uses {first} GPUs, {snapshot.free.sum()} are on offer"


def _check_grant(s: Snapshot, grant: GpuGrant) -> None:
    given = np.bincount(grant.machine, weights=grant.gpus, minlength=len(s.free))
    assert (given <= s.free).all(), f"machine {int(np.argmax(given - s.free))} gave more GPUs than it had free"
    assert (grant.gpus > 0).all(), "a row of the grant has no GPUs"
    assert (grant.until > s.now).all(), "a lease ends before it begins"
    assert (grant.until <= s.now + s.lease_s + 1e-6).all(), "a lease is longer than allowed"
    assert np.isin(grant.app, s.app_id).all(), "a grant goes to an app that is not active"
    for gang in np.unique(grant.gang).tolist():
        rows = np.flatnonzero(grant.gang == gang)
        size, a = int(grant.gpus[rows].sum()), int(np.searchsorted(s.app_id, grant.app[rows[0]]))
        at = slice(s.job_ptr[a], s.job_ptr[a + 1])
        types = s.machine_type[grant.machine[rows]]
        assert (types == types[0]).all(), f"gang {gang} mixes GPU types"
        if grant.extend[rows[0]] == NONE:
            fits = (s.job_held[at] == 0) & (s.job_gpus_min[at] <= size) & (size <= s.job_gpus_max[at])
            assert fits.any(), f"no job of app {s.app_id[a]} can use a gang of {size}"


def _check_share(s: Snapshot, share: TimeShare) -> None:
    assert ((share.x >= 0) & (share.x <= 1)).all(), "a time share is outside [0, 1]"
    for j in s.job_id.tolist():
        total = float(share.x[(share.combos == j).any(axis=1)].sum())
        assert total <= 1 + 1e-9, f"job {j} gets {total} of the time"
    capacity = np.bincount(s.machine_type, weights=s.machine_gpus, minlength=len(s.gpu_types))
    demand: Float = share.gpus @ share.x
    assert (demand <= capacity + 1e-6).all(), f"shares use {demand} GPUs of {capacity}"


def used(answer: Answer) -> float:
    """GPUs that an answer uses, over its rounds."""
    if isinstance(answer, GpuGrant):
        return float(answer.gpus.sum())
    if isinstance(answer, TimeShare):
        return float((answer.gpus[:, None] * answer.x).sum())
    return float((answer.gpus[:, None] * answer.run).sum()) if isinstance(answer, RoundPlan) else 0.0


def decide(policy: Policy, snapshot: Snapshot, bench: Workbench) -> Solved:
    """Ask until there is an answer, filling the columns that the policy asks for."""
    solved = policy(snapshot, bench)
    while isinstance(solved.answer, Ask):
        snapshot = replace(snapshot, bids=answer_ask(snapshot, solved.answer))
        solved = policy(snapshot, bench)
    if isinstance(solved.answer, Renewal):
        return replace(solved, answer=_each_granted(snapshot, solved.answer))
    return solved


def _each_granted(s: Snapshot, renewal: Renewal) -> GpuGrant:
    """The grant that a renewal amounts to."""
    allocator = Allocator(s)
    for a, counts in [(a, counts) for a, gangs in allocator.standing.items() for _, counts in gangs]:
        allocator.give(a, counts, renewal.until)
    return allocator.grant()


def relabelled(s: Snapshot) -> Snapshot:
    """The same state with apps, and each app's jobs, numbered the other way round."""
    apps = np.arange(s.apps)[::-1]
    jobs = np.concatenate([np.arange(s.job_ptr[a], s.job_ptr[a + 1])[::-1] for a in apps])
    counts = np.diff(s.job_ptr)[apps]
    new_id = dict(zip(s.job_id[jobs].tolist(), s.job_id.tolist()))
    changed: dict[str, Any] = {"ahead": s.ahead.of(jobs) if s.ahead else None, "bids": None}
    for name, column in columns_of(Snapshot).items():
        value = getattr(s, name)
        if column.unit == JOB_ID and name != "job_id":
            changed[name] = np.vectorize(lambda j: new_id.get(int(j), NONE), otypes=[np.int64])(value)
        elif column.unit == APP_ROW:
            changed[name] = np.repeat(np.arange(s.apps), counts)
        elif column.unit == JOB_ROW:
            changed[name] = np.concatenate([[0], np.cumsum(counts)])
        elif column.axes[:1] in ("A", "J") and name not in ("app_id", "job_id") and value is not None:
            changed[name] = value[apps if column.axes[0] == "A" else jobs]
    return replace(s, **changed)


def rescaled(s: Snapshot, factor: float) -> Snapshot:
    """The same state with time measured in a unit that is ``factor`` times smaller."""
    speeds = replace(s.speeds, serial=s.speeds.serial * factor, checkpoint_s=s.speeds.checkpoint_s * factor)
    ahead = None if s.ahead is None else replace(s.ahead, **in_other_seconds(s.ahead, factor))
    return replace(s, **in_other_seconds(s, factor), speeds=speeds, ahead=ahead, bids=None)


@dataclass(frozen=True)
class _Checked:
    """A policy that has each of its answers checked, on columns that cannot be written to."""

    policy: Policy

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", self.policy.needs)
        object.__setattr__(self, "seen", [])

    seen: ClassVar[list[Snapshot]]

    @property
    def pace(self) -> Cadence:
        return self.policy.pace

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        own: dict[str, Any] = {
            name: v.copy() for name in columns_of(Snapshot) if isinstance(v := getattr(snapshot, name), np.ndarray)
        }
        for column in own.values():
            column.setflags(write=False)
        frozen = replace(snapshot, **own)
        solved = self.policy(frozen, bench)
        check_answer(frozen, solved.answer)
        if snapshot.bids is None:
            self.seen.append(frozen)
        return solved


def _text(answer: Answer) -> str:
    return "; ".join(f"{f.name}={np.asarray(getattr(answer, f.name)).tolist()}" for f in fields(answer))
