"""``plan=market``: the paper's problem, tried by all schedules; each of its parameters acts, and a gap is of a solved problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from themis.core import take_snapshot as snapshots
from themis.errors import InputError, UnknownName
from themis.model.answers import CUT, UNCONTESTED, Proof, RoundPlan
from themis.model.forecast import Ahead
from themis.model.snapshot import Snapshot
from themis.policies.api import Policy, Workbench, logged_params, make_policy
from themis.policies.shockwave import WINDOW, PlanKind, Shockwave
from themis.report.plans import Plans
from themis.testing.builders import app, job, machines, state_at
from themis.testing.policies import check_pure, check_run, sample_snapshots

ROUND = 120.0
Stretch = tuple[float, float]
"""Share of the job's epochs, and seconds alone."""


def state(
    jobs: Sequence[Sequence[Stretch]],
    *,
    gpus: int | Sequence[int] = 2,
    waited: Sequence[float] = (),
    contention: float = 2.0,
    gangs: Sequence[int] = (),
    weights: Sequence[float] = (),
) -> Snapshot:
    """Jobs that have not run yet, with these regimes ahead, on machines of ``gpus``; ``waited`` seconds since each one's arrival.

    ``gangs``, ``weights`` : of the jobs; 1 by default.
    """
    since = list(waited) or [0.0] * len(jobs)
    now = max(since)
    each = zip(jobs, since, gangs or [1] * len(jobs), weights or [1.0] * len(jobs))
    apps = [
        app(f"a{i}", [job(sum(s for _, s in regimes) * gang, gang)], now - w, weight=weight)
        for i, (regimes, w, gang, weight) in enumerate(each)
    ]
    cluster = machines(gpus) if isinstance(gpus, int) else machines(*gpus)
    taken = snapshots.take(state_at(cluster, apps, now=now), needs=frozenset({"ahead"}))
    # Apps are numbered by arrival.
    order = sorted(range(len(jobs)), key=lambda i: now - since[i])
    flat = [stretch for i in order for stretch in jobs[i]]
    ahead = Ahead(
        ptr=np.cumsum([0, *(len(jobs[i]) for i in order)]),
        share=np.array([share for share, _ in flat]),
        seconds=np.array([seconds for _, seconds in flat]),
        progress=np.zeros(len(jobs)),
        isolated_s=np.array([sum(s for _, s in jobs[i]) for i in order]),
        contention=np.full(len(jobs), contention),
    )
    return replace(taken, ahead=ahead, origin=now)


def epochs(ahead: Ahead, j: int, seconds: float) -> float:
    """Share of its epochs that a job does in so many seconds, regime after regime (eq. 7)."""
    done = 0.0
    for s in range(int(ahead.ptr[j]), int(ahead.ptr[j + 1])):
        spent = min(seconds, float(ahead.seconds[s]))
        done += float(ahead.share[s]) * spent / float(ahead.seconds[s])
        seconds -= spent
    return done


def equation_11(s: Snapshot, x: np.ndarray, power: float, price: float) -> float:
    """The objective of a schedule, N x T of 0 and 1, from the paper's text."""
    a, gpus = s.ahead, int(s.machine_gpus.sum())
    assert a is not None
    alone, n = a.isolated_s, len(a.progress)
    elapsed = s.now - s.app_arrival
    rho = (elapsed + alone * a.contention) / (alone * a.contention)
    budget = s.app_weight[s.job_app] * np.clip(rho, 0.2, 5.0) ** power
    budget = budget / budget.mean()
    trained = np.minimum(x.sum(axis=1) * ROUND, alone)
    util = [epochs(a, j, float(trained[j])) + min(ROUND / float(alone[j]), 1.0) for j in range(n)]
    left = alone - trained
    longest = max(float(s.job_gpus_min @ left) / gpus, float(left.max()))
    return float(budget @ np.log(util)) / (n * gpus) - price / float(alone.sum()) * longest


def best_by_trying(s: Snapshot, rounds: int, power: float, price: float) -> float:
    """The optimum over all schedules that no round overfills."""
    jobs, gpus = s.jobs, int(s.machine_gpus.sum())
    columns = [c for c in product((0, 1), repeat=jobs) if s.job_gpus_min @ c <= gpus]
    # The order of rounds changes nothing.
    every = combinations_with_replacement(columns, rounds)
    return max(equation_11(s, np.array(x).T, power, price) for x in every)


def market_of_gangs(seed: int) -> tuple[Snapshot, dict[str, float]]:
    """Three to five jobs of any size and odd weights on few machines, some of them wider than a machine; and parameters."""
    rng = np.random.default_rng(seed)
    shapes: list[list[int]] = [[4], [2, 2], [1, 3], [3], [2, 3], [1, 1, 1]]
    gpus, jobs = shapes[int(rng.integers(len(shapes)))], int(rng.integers(3, 6))
    regimes = [
        [(float(share), float(rng.uniform(60, 900))) for share in rng.dirichlet(np.ones(rng.integers(1, 3)))]
        for _ in range(jobs)
    ]
    s = state(
        regimes,
        gpus=gpus,
        waited=rng.uniform(0, 2000, jobs).tolist(),
        gangs=rng.integers(1, sum(gpus) + 1, jobs).tolist(),
        weights=rng.choice([0.3, 1.0, 1.7, 5.1], jobs).tolist(),
    )
    chosen = {"power": (0.0, 1.0, 5.0, 12.0), "makespan": (0.0, 0.1, 1.0, 10.0)}
    return s, {"window": int(rng.integers(2, 4)), **{k: float(rng.choice(v)) for k, v in chosen.items()}}


def planned(s: Snapshot, policy: Shockwave) -> tuple[np.ndarray, Proof]:
    """Rounds of each job in the plan, and its proof."""
    solved = policy(s, Workbench())
    assert isinstance(solved.answer, RoundPlan)
    return solved.answer.run.sum(axis=1), solved.proof


def market(**given: float) -> Shockwave:
    """The paper's planner, to a gap of nothing."""
    return Shockwave(plan=PlanKind.MARKET, gap=0.0, **given)  # type: ignore[arg-type]


THREE = ([(1.0, 480.0)], [(1.0, 600.0)], [(0.3, 540.0), (0.7, 260.0)])
"""Two static jobs and one that speeds up after nine minutes."""


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
@pytest.mark.parametrize(("power", "price"), [(5.0, 0.001), (0.0, 0.0), (10.0, 0.1), (5.0, 10.0), (12.0, 100.0)])
def test_the_plan_is_the_best_of_all_schedules(rounds: int, power: float, price: float) -> None:
    s = state(THREE, waited=(0.0, 300.0, 900.0))
    n, proof = planned(s, market(window=rounds, power=power, makespan=price))
    best = best_by_trying(s, rounds, power, price)
    assert proof.objective == pytest.approx(best, rel=1e-9)
    assert proof.bound == pytest.approx(best, rel=1e-6)
    assert proof.gap < 1e-6
    # Work conserving: each round has as many jobs as GPUs, since three jobs wait for two.
    assert n.sum() >= 2 * rounds


def lack_of_gangs(seed: int) -> float:
    """How much less than the best of all schedules a plan is worth, as a part of what rounds gain; at most the proven gap."""
    s, given = market_of_gangs(seed)
    solved = Shockwave(plan=PlanKind.MARKET, **given)(s, Workbench())  # type: ignore[arg-type]
    plan, proof, rounds = solved.answer, solved.proof, int(given["window"])
    assert isinstance(plan, RoundPlan)
    assert (s.job_gpus_min @ plan.run <= s.machine_gpus.sum()).all()
    best = best_by_trying(s, rounds, given["power"], given["makespan"])
    idle = equation_11(s, np.zeros((s.jobs, rounds)), given["power"], given["makespan"])
    told = equation_11(s, plan.run[:, :rounds], given["power"], given["makespan"])
    assert told >= proof.objective - 1e-9
    assert proof.objective - 1e-9 <= best <= proof.bound + 1e-9
    if proof.method.startswith(UNCONTESTED):
        assert proof.objective == pytest.approx(best, abs=1e-9)
    else:
        assert proof.method == "plan"
        assert proof.gap <= 1e-3 * (proof.bound - idle) + 1e-9
    return (best - proof.objective) / (best - idle)


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 300), marks=pytest.mark.slow)])
def test_a_plan_of_gangs_is_within_its_gap_of_the_best_of_all_schedules(seeds: range) -> None:
    lacks = [lack_of_gangs(seed) for seed in seeds]
    assert max(lacks) <= 1e-3


def test_promises_say_what_their_order_costs() -> None:
    """In a short window the order of promises goes before the objective; the bound and the gap are right all the same."""
    short = 0
    for seed in range(20):
        s, given = market_of_gangs(seed)
        proof = Shockwave(**given)(s, Workbench()).proof  # type: ignore[arg-type]
        best = best_by_trying(s, int(given["window"]), given["power"], given["makespan"])
        assert proof.objective - 1e-9 <= best <= proof.bound + 1e-9
        if proof.method.startswith(CUT):
            short += 1
        elif not proof.method.startswith(UNCONTESTED):
            idle = equation_11(s, np.zeros((s.jobs, 1)), given["power"], given["makespan"])
            assert proof.gap <= 1e-3 * (proof.bound - idle) + 1e-9
    assert 0 < short < 20


def test_gangs_that_fit_in_sum_and_not_side_by_side_are_something_to_solve() -> None:
    """A gang of 2 for a round and a job of two rounds fill 2 GPUs for two rounds, in sum."""
    s = state(([(1.0, 240.0)], [(1.0, 120.0)]), gangs=(1, 2), weights=(1.0, 3.0))
    n, proof = planned(s, market(window=2))
    assert n.tolist() == [1, 1]
    assert proof.method == "plan"
    assert proof.gap == pytest.approx(0.0, abs=1e-9)


def test_the_window_acts() -> None:
    """One round cannot be shared by two jobs; of two each gets one, and of four the longer one gets more in no case."""
    s = state(([(1.0, 600.0)], [(1.0, 6000.0)]), gpus=1)
    counts = {t: planned(s, market(window=t, power=0.0, makespan=0.0))[0].tolist() for t in (1, 2, 4)}
    assert [sum(counts[t]) for t in (1, 2, 4)] == [1, 2, 4]
    assert counts[2] == [1, 1]
    run = market()(state([[(1.0, 9000.0)]] * 3, gpus=1), Workbench()).answer
    assert isinstance(run, RoundPlan)
    assert run.run.shape[1] == WINDOW == 20


def test_lambda_acts() -> None:
    """Without a price of the makespan both get half of the window; at a high one the long job runs throughout."""
    s = state(([(1.0, 900.0)], [(1.0, 9000.0)], [(1.0, 900.0)]), gpus=2)
    free, dear = (planned(s, market(window=6, makespan=price))[0].tolist() for price in (0.0, 100.0))
    assert free == [4, 4, 4]
    assert dear[1] == 6


def test_k_acts() -> None:
    """Of two alike jobs the one that waited longer has the larger budget, and the more so the larger k is."""
    s = state(([(1.0, 2400.0)], [(1.0, 2400.0)]), gpus=1, waited=(0.0, 2400.0))
    waited_first = [planned(s, market(window=8, power=k, makespan=0.0))[0].tolist() for k in (0.0, 2.0, 10.0)]
    assert waited_first[0] == [4, 4]
    assert 4 < waited_first[1][0] < waited_first[2][0]


def test_regimes_act() -> None:
    """Of two jobs that take as long, the one that is about to speed up makes more of rounds that reach its fast regime."""
    slow_first = [(0.2, 360.0), (0.8, 240.0)]
    steady = [(1.0, 600.0)]
    forecast = planned(state((slow_first, steady), gpus=1), market(window=5, makespan=0.0, power=0.0))[0]
    believed_steady = planned(state((steady, steady), gpus=1), market(window=5, makespan=0.0, power=0.0))[0]
    assert believed_steady.tolist() in ([2, 3], [3, 2])
    assert forecast.tolist() not in ([2, 3], [3, 2])


def test_a_gap_is_told_of_a_solved_problem_alone() -> None:
    crowd, few = state([[(1.0, 3000.0)]] * 4, gpus=2), state([[(1.0, 300.0)]] * 2, gpus=2)
    solved, nothing, promises = (
        policy(s, Workbench()).proof for policy, s in ((market(), crowd), (market(), few), (Shockwave(), crowd))
    )
    assert solved.method == "plan"
    assert solved.gap >= 0.0
    for proof in (nothing, promises):
        assert proof.method.startswith(UNCONTESTED)
        assert np.isnan(proof.gap)
    plans = Plans()
    for proof in (solved, nothing, promises):
        plans.add(0.0, proof)
    table = plans.table([f"a{i}" for i in range(4)])
    assert (table.made, table.uncontested, table.cut) == (3, 2, 0)


def test_promises_stay_the_default_and_leave_no_trace_in_a_log() -> None:
    assert Shockwave().plan is PlanKind.PROMISES
    assert "plan" not in logged_params(Shockwave())
    assert logged_params(make_policy("shockwave:plan=market"))["plan"] == "market"


def test_what_a_plan_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"plan of policy shockwave.*market, promises"):
        make_policy("shockwave:plan=auction")
    with pytest.raises(InputError, match="power is 21"):
        make_policy("shockwave:plan=market,power=21")


def test_the_market_conforms() -> None:
    """But for renumbered apps: gangs that do not pack into few rounds lose more or less by their order."""

    def make() -> Policy:
        return make_policy("shockwave:plan=market,window=6")

    log = check_run(make, 1)
    assert log == check_run(make, 1, drop=True)
    for s in sample_snapshots(make, 1, every=20):
        check_pure(make(), s)


def test_the_bound_holds_on_the_states_of_a_run() -> None:
    for s in sample_snapshots(lambda: make_policy("shockwave:plan=market,window=5"), 4):
        proof = Shockwave(plan=PlanKind.MARKET, window=5)(s, Workbench()).proof
        assert proof.bound >= proof.objective - 1e-12
