"""Shockwave as a policy: what must not matter does not, and what it is for happens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from themis.core import take_snapshot as snapshots
from themis.errors import InputError
from themis.model.events import AppFinished, Grant
from themis.model.snapshot import Snapshot
from themis.model.workload import Workload
from themis.optimize.rounds import knapsack as counts
from themis.policies.api import Workbench, make_policy
from themis.policies.planned import View
from themis.policies.shockwave import Shockwave
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, NO_OVERHEAD, app, job, machines, state_at
from themis.testing.policies import relabelled, sample_snapshots


def work(*jobs: tuple[float, float, int]) -> Workload:
    """Apps of one job each: (arrival, seconds alone, GPUs)."""
    apps = (app(f"a{i}", [job(seconds * gpus, gpus)], arrival) for i, (arrival, seconds, gpus) in enumerate(jobs))
    return Workload(name="test", apps=tuple(apps))


def run(workload: Workload, gpus: int, policy: str = "shockwave") -> tuple[dict[int, float], list[tuple[float, Grant]]]:
    """When each app ended, and all grants."""
    ends: dict[int, float] = {}
    grants: list[tuple[float, Grant]] = []

    def watch(time: float, record: Record) -> None:
        if isinstance(record, AppFinished):
            ends[record.app] = time
        if isinstance(record, Grant):
            grants.append((time, record))

    Simulation(
        workload=workload,
        cluster=machines(gpus),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=NO_OVERHEAD,
    ).run(watch)
    return ends, grants


MIX = tuple((37.0 * i, 300.0 + 170.0 * ((7 * i) % 11), 1 + (i % 3 == 0)) for i in range(24))


@pytest.mark.parametrize("later", [7200 * 120.0, 37.5, 1e6 + 13.0])
def test_when_the_trace_begins_does_not_matter(later: float) -> None:
    """Rho is measured from a job's own arrival, rounds from the first one: any later trace is scheduled alike."""
    (here, first), (there, then) = run(work(*MIX), 4), run(work(*((a + later, s, g) for a, s, g in MIX)), 4)
    assert {a: end + later for a, end in here.items()} == pytest.approx(there, rel=1e-12)
    assert [(t + later, g.job, g.gpus) for t, g in first] == [
        (pytest.approx(t, rel=1e-12), g.job, g.gpus) for t, g in then
    ]


@pytest.mark.parametrize("seed", range(3))
def test_in_which_order_jobs_are_written_down_leaves_the_runs_quality_within_one_percent(seed: int) -> None:
    """Ten of the jobs come at one instant, so that their arrivals put them in no order."""
    mix = tuple(
        (370.0 if i % 24 >= 14 else 37.0 * i, 300.0 + 170.0 * ((7 * i) % 11), 1 + (i % 3 == 0)) for i in range(24)
    )
    order = np.random.default_rng(seed).permutation(len(mix)).tolist()
    shuffled = sorted((mix[i] for i in order), key=lambda job: job[0])
    assert shuffled != sorted(mix, key=lambda job: job[0])
    (here, _), (there, _) = run(work(*mix), 4), run(work(*shuffled), 4)
    assert max(there.values()) == pytest.approx(max(here.values()), rel=0.01)
    assert np.mean(list(there.values())) == pytest.approx(np.mean(list(here.values())), rel=0.01)


def test_the_solvers_seed_leaves_the_plans_quality_within_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of windows that the prices alone do not settle, so that the integer program is solved with both seeds."""
    seeds, gap = [], 1e-5
    inner = counts.best_of_choices

    def counted(*args: object, **more: object):  # type: ignore[no-untyped-def]
        seeds.append(more["seed"])
        return inner(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(counts, "best_of_choices", counted)
    for snapshot in sample_snapshots(Shockwave, 3):
        here, there = (Shockwave(window=7, gap=gap, seed=seed)(snapshot, Workbench()).proof for seed in (0, 7))
        assert max(here.objective, there.objective) <= min(here.bound, there.bound) + 1e-12
        assert there.objective == pytest.approx(here.objective, rel=0.01)
    assert {0, 7} <= set(seeds), "no snapshot reached the solver, so this shows nothing"


def test_the_order_of_jobs_changes_neither_objective_nor_bound_by_more_than_the_gap() -> None:
    policy = Shockwave()
    for snapshot in sample_snapshots(Shockwave, 1):
        here, there = (policy(s, Workbench()).proof for s in (snapshot, relabelled(snapshot)))
        assert there.objective == pytest.approx(here.objective, rel=1e-6, abs=1e-9)
        assert there.bound == pytest.approx(here.bound, rel=1e-6, abs=1e-9)


def test_time_that_its_user_held_a_job_is_neither_waited_nor_due() -> None:
    here = snapshots.take(state_at(machines(4), [app("a", [job(900.0)])], now=600.0), needs=frozenset({"ahead"}))
    held = replace(here, app_away=here.app_away + 400.0)
    before, after = View.of(here, 120.0), View.of(held, 120.0)
    assert (before.elapsed[0], after.elapsed[0]) == (600.0, 200.0)


def test_the_bound_is_above_the_objective() -> None:
    for snapshot in sample_snapshots(Shockwave, 2):
        proof = Shockwave()(snapshot, Workbench()).proof
        assert proof.bound >= proof.objective - 1e-12


def test_forecast_starts_and_ends_are_in_order() -> None:
    for snapshot in sample_snapshots(Shockwave, 0):
        proof = Shockwave()(snapshot, Workbench()).proof
        assert (proof.starts >= snapshot.now).all()
        assert (proof.ends > proof.starts).all()


def test_a_job_alone_ends_when_it_was_forecast_to() -> None:
    policy, seen = Shockwave(), []

    class Watching(Shockwave):
        def __call__(self, snapshot: Snapshot, bench: Workbench):  # type: ignore[no-untyped-def]
            solved = policy(snapshot, bench)
            seen.append(solved.proof.ends)
            return solved

    ends: dict[int, float] = {}
    Simulation(
        workload=work((50.0, 1000.0, 2)),
        cluster=machines(4),
        book=BOOK,
        policy_name="shockwave",
        policy=Watching(),
        settings=NO_OVERHEAD,
    ).run(lambda time, record: ends.update({record.app: time}) if isinstance(record, AppFinished) else None)
    assert seen[0] == pytest.approx([ends[0]])
    assert ends[0] == pytest.approx(1050.0)


def test_the_long_job_begins_early_enough_for_the_makespan() -> None:
    """Two GPUs, one job of 4,800 s and eight of 600 s: the makespan is 4,800 s only if the long one never waits."""
    ends, _ = run(work((0.0, 4800.0, 1), *(((0.0, 600.0, 1),) * 8)), 2)
    assert max(ends.values()) == pytest.approx(4800.0, abs=121.0)


def test_gpus_do_not_idle_while_a_gang_that_fits_waits() -> None:
    ends, _ = run(work(*MIX), 4)
    total = sum(s * g for _, s, g in MIX)
    assert max(ends.values()) <= 1.25 * total / 4


def test_restarts_are_few() -> None:
    """Whoever runs goes on among equals: far fewer grants than rounds that jobs ran."""
    _, grants = run(work(*MIX), 4)
    rounds = sum(s for _, s, _ in MIX) / 120.0
    assert len(grants) < 0.5 * rounds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", -1),
        ("patience", 0.5),
        ("power", 21.0),
        ("makespan", -1.0),
        ("noise", 2.0),
        ("gap", -0.1),
        ("nodes", 0),
        ("round_s", 0.0),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=name):
        make_policy("shockwave", {name: value})


def test_a_reactive_plan_ends_with_a_regime_and_a_lazy_one_does_not() -> None:
    assert Shockwave().pace.replan_on_regime
    assert not replace(Shockwave(), reactive=False).pace.replan_on_regime


def test_no_weight_outgrows_the_solver() -> None:
    """A job that waited for a year weighs at most 25^5 times as much as the least one, and the solve still ends."""
    snapshot = next(iter(sample_snapshots(Shockwave, 0)))
    old = replace(snapshot, app_arrival=np.where(np.arange(snapshot.apps) == 0, -3e7, snapshot.app_arrival))
    proof = Shockwave()(old, Workbench()).proof
    assert np.isfinite(proof.bound)


def test_golden_a_market_of_three_jobs() -> None:
    """Four GPUs, a window of two rounds, no makespan term. Everybody's value is log(u + 120 / P), all have waited alike.

    Job 0 (1,200 s, 4 GPUs) gains log 2 of its first round, for 4 GPU-rounds; jobs 1 and 2 (600 s, 2 GPUs) as much for 2, and
    log 1.5 of their second for 2 more: two rounds of each of them are worth 2 log 3, a round of everybody 3 log 2, less.
    """
    policy = Shockwave(window=2, makespan=0.0, power=0.0)
    grants: list[tuple[float, int]] = []
    Simulation(
        workload=work((0.0, 1200.0, 4), (0.0, 600.0, 2), (0.0, 600.0, 2)),
        cluster=machines(4),
        book=BOOK,
        policy_name="shockwave",
        policy=policy,
        settings=NO_OVERHEAD,
    ).run(lambda time, record: grants.append((time, record.job)) if isinstance(record, Grant) else None)
    assert [job for time, job in grants if time == 0.0] == [1, 2]


def test_a_plan_that_was_cut_short_says_so() -> None:
    """Without time for the integer program a gap of 0 is not proven for every snapshot; with time it is."""
    said = set()
    for snapshot in sample_snapshots(Shockwave, 3):
        for seconds in (0.0, np.inf):
            proof = Shockwave(window=7, gap=0.0)(snapshot, Workbench(seconds=seconds)).proof
            said.add((seconds, proof.method.partition(":")[0]))
    assert (0.0, "cut short") in said
    assert (np.inf, "plan") in said
