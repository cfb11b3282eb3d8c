"""Policies with space sharing: pairs from the profiles to the rounds, and never a worse objective."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from themis.core import take_snapshot as snapshots
from themis.errors import InputError
from themis.model.answers import TimeShare
from themis.model.events import Allocated, AppFinished, Grant
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.speed import ANY_TYPE, ProfileBook, linear
from themis.model.units import Float
from themis.model.workload import Workload
from themis.optimize.shares.problem import Problem
from themis.policies.api import Workbench, make_policy
from themis.policies.shares import problem_of, progress
from themis.policies.sharing import pair_rates
from themis.sim.runner import Record, Simulation
from themis.testing.builders import app, job, leased_twice, machines, state_at

BOOK = ProfileBook.of(
    replace(
        linear(name, 1.0, slowdown=(1.0, 1.0, 1.0, 1.0)),
        beside={(ANY_TYPE, 0, other, 0): 0.8 for other in ("one", "two")},
    )
    for name in ("one", "two")
)


def run(policy: str, size: int = 1) -> tuple[list[tuple[float, Record]], float, float]:
    """The log, the first objective, and the mean JCT of six jobs in gangs of one size on GPUs for two."""
    apps = [app(f"a{j}", [job((4000.0 + 300 * j) * size, size, model=("one", "two")[j % 2])]) for j in range(6)]
    simulation = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=machines(2 * size),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(container_s=0.0, validate=True),
    )
    log: list[tuple[float, Record]] = []
    simulation.run(lambda time, record: log.append((time, record)))
    assert not leased_twice(log)
    first = next(r.solved.proof.objective for _, r in log if isinstance(r, Allocated))
    return log, first, float(np.mean([r.jct for _, r in log if isinstance(r, AppFinished)]))


def test_sharing_raises_the_objective_and_lowers_the_mean_jct() -> None:
    _, alone, slow = run("max_min_fairness")
    log, paired, fast = run("max_min_fairness:sharing=true")
    assert alone == pytest.approx(2 / 6)
    assert paired == pytest.approx(1.6 * 2 / 6), "four of six jobs run at a time, each at 0.8 of its speed"
    assert fast < slow
    assert {r.seat for _, r in log if isinstance(r, Grant)} == {0, 1}


SHARING = {
    "max_min_fairness": 2,
    "max_min_water_filling": 2,
    "makespan": 1,
    "finish_time_fairness": 1,
    "max_throughput": 1,
}
"""How many times as much an objective counts gangs of two."""


@pytest.mark.parametrize("policy", SHARING)
def test_gangs_of_one_size_share_as_single_gpus_do(policy: str) -> None:
    _, single, one = run(f"{policy}:sharing=true")
    log, gangs, two = run(f"{policy}:sharing=true", size=2)
    assert two == pytest.approx(one, rel=1e-6)
    assert gangs == pytest.approx(single * SHARING[policy], rel=1e-6)
    grants = [r for _, r in log if isinstance(r, Grant)]
    assert {r.seat for r in grants} == {0, 1}
    assert {len(r.gpus) for r in grants} == {2}


def test_gangs_of_unequal_size_never_share() -> None:
    """A job of one GPU and a gang of two on two GPUs: each runs alone."""
    apps = [app(f"a{j}", [job(900.0, 1 + j % 2, model="one")]) for j in range(2)]
    s = snapshots.take(state_at(machines(2), apps, book=BOOK))
    answer = make_policy("max_min_fairness:sharing=true")(s, Workbench()).answer
    assert isinstance(answer, TimeShare)
    assert (answer.combos[:, 1] == -1).all()


@pytest.mark.parametrize("policy", ["makespan", "finish_time_fairness"])
def test_sharing_shortens_the_makespan_and_lowers_the_worst_rho(policy: str) -> None:
    """Objectives of what is minimised are logged negated. Six jobs, two GPUs, pairs at 0.8 of their speed."""
    _, alone, slow = run(policy)
    log, paired, fast = run(f"{policy}:sharing=true")
    assert alone < paired < 0
    assert fast < slow
    assert {r.seat for _, r in log if isinstance(r, Grant)} == {0, 1}
    if policy == "makespan":
        work = sum(4000.0 + 300 * j for j in range(6))
        assert paired == pytest.approx(-work / (4 * 0.8)), "four run at a time, or the longest all of the time"


@pytest.mark.parametrize("policy", ["fifo_hetero", "sjf_hetero", "max_throughput", "min_cost", "min_cost:printed=true"])
def test_sharing_raises_sums_of_throughputs_and_lowers_the_mean_jct(policy: str) -> None:
    """Four of six jobs run at a time, each at 0.8 of its speed; alone two do."""
    _, alone, slow = run(policy)
    log, paired, fast = run(policy + ("," if ":" in policy else ":") + "sharing=true")
    assert paired > alone * 1.2
    if policy == "max_throughput":
        assert (alone, paired) == (pytest.approx(2.0), pytest.approx(3.2))
    if policy == "fifo_hetero":
        assert (alone, paired) == (pytest.approx(6 + 5), pytest.approx(0.8 * (6 + 5 + 4 + 3)))
    assert fast < slow
    assert {r.seat for _, r in log if isinstance(r, Grant)} == {0, 1}


@pytest.mark.parametrize("rule", ["fairness", "finish_time_fairness"])
def test_sharing_raises_what_entities_get_and_lowers_the_mean_jct(rule: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"{{name: all, policy: {rule}, users: ['*']}}")
    _, alone, slow = run(f"hierarchical:file={plan}")
    log, paired, fast = run(f"hierarchical:sharing=true,file={plan}")
    assert (alone, paired) == (pytest.approx(2.0), pytest.approx(3.2)), "four of six jobs run at a time, each at 0.8"
    assert fast < slow
    assert {r.seat for _, r in log if isinstance(r, Grant)} == {0, 1}


def textbook(s: Snapshot, problem: Problem, need: Float) -> float:
    """The program with a column for every job and every pair: the largest multiple of ``need``."""
    pairs, jobs, columns = pair_rates(s, problem), problem.jobs, []
    for k in range(problem.types):
        columns += [(k, ((j, problem.rate[j, k]),), problem.gpus[j]) for j in range(jobs)]
        for i, j in combinations(range(jobs), 2):
            a, b = pairs.model[i], pairs.model[j]
            if a >= 0 and b >= 0 and pairs.rate[a, b, k] > 0:
                columns.append((k, ((i, pairs.rate[a, b, k]), (j, pairs.rate[b, a, k])), problem.gpus[i]))
    matrix = np.zeros((2 * jobs + problem.types, len(columns) + 1))
    for c, (k, members, gpus) in enumerate(columns):
        matrix[2 * jobs + k, c] = gpus
        for j, rate in members:
            matrix[j, c], matrix[jobs + j, c] = 1.0, -rate
    matrix[jobs : 2 * jobs, -1] = need
    found = linprog(
        np.append(np.zeros(len(columns)), -1.0), matrix, [*np.ones(jobs), *np.zeros(jobs), *problem.workers]
    )
    assert found.status == 0
    return float(-found.fun)


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_policies_with_pairs_reach_the_optimum_over_all_pairs(gpus: int) -> None:
    apps = [app(f"a{j}", [job(900.0 + 700 * j, model=("one", "two")[j % 2])], arrival=40.0 * j) for j in range(5)]
    s = snapshots.take(state_at(machines(gpus), apps, now=300.0, book=BOOK))
    problem, left = problem_of(s), np.maximum(s.job_left, 1e-6)
    makespan = -make_policy("makespan:sharing=true")(s, Workbench()).proof.objective
    assert makespan == pytest.approx(1.0 / textbook(s, problem, left), rel=1e-7)
    rho = -make_policy("finish_time_fairness:sharing=true")(s, Workbench()).proof.objective
    so_far = progress(s, problem)

    def reached(worst: float) -> float:
        return textbook(s, problem, left / (worst * so_far.alone() - so_far.elapsed))

    assert reached(rho * (1 + 1e-6)) >= 1.0 >= reached(rho * (1 - 1e-6))


@pytest.mark.parametrize("policy", ["makespan", "finish_time_fairness"])
@pytest.mark.parametrize("sharing", ["true", "false"])
def test_who_is_as_good_as_done_gets_the_little_that_it_needs(policy: str, sharing: str) -> None:
    """Beside jobs of months a microsecond is less than any program's tolerance: its share was 0, and it waited for them."""
    left = [1e-6, 1e-3, 4e6, 5e6, 6e6]
    apps = [app(f"a{j}", [job(work, model=("one", "two")[j % 2])]) for j, work in enumerate(left)]
    s = snapshots.take(state_at(machines(2), apps, now=0.0, book=BOOK))
    found = make_policy(f"{policy}:sharing={sharing}")(s, Workbench())
    assert isinstance(found.answer, TimeShare)
    given = [found.answer.x[(found.answer.combos == j).any(axis=1)].sum() for j in range(5)]
    assert min(given) > 0
    assert found.proof.objective == pytest.approx(found.proof.bound, rel=1e-6)


def test_models_that_nobody_measured_beside_another_take_no_room() -> None:
    """Forty models of forty jobs, two of which may share: the table of pairs is of two."""
    book = BOOK.with_profiles(linear(f"m{i}", 1.0) for i in range(38))
    names = ["one", "two", *(f"m{i}" for i in range(38))]
    s = snapshots.take(state_at(machines(4), [app(n, [job(900.0, model=n)]) for n in names], now=0.0, book=book))
    pairs = pair_rates(s, problem_of(s))
    assert pairs.rate.shape == (2, 2, 1)
    assert sorted(pairs.model.tolist()) == [-1] * 38 + [0, 1]
    assert pairs.rate == pytest.approx(0.8)


@pytest.mark.parametrize(
    "policy",
    ["max_min_fairness", "makespan", "finish_time_fairness", "fifo_hetero", "min_cost", "min_cost_slo", "hierarchical"],
)
def test_sharing_needs_to_know_types(policy: str) -> None:
    with pytest.raises(InputError, match="aware=true"):
        make_policy(f"{policy}:sharing=true,aware=false")
