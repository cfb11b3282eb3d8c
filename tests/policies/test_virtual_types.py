"""Consolidated and spread placement as two virtual types of a pool (Gavel §3.1), and rounds that keep to what was planned."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from themis.model.answers import TimeShare
from themis.model.events import Allocated, Grant
from themis.model.log_decisions import _read_answer, _write_answer
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.speed import ProfileBook, linear
from themis.model.workload import App, Workload
from themis.policies.api import Workbench, make_policy
from themis.policies.gavel.max_min import max_min, normalised_unit
from themis.policies.shares import problem_of
from themis.policies.virtual import consolidated, virtual
from themis.sim.runner import Simulation
from themis.testing.builders import app, job, machines, snapshot_of

sys.path.append(str(Path(__file__).parents[2] / "reproduction"))
import delivered_placement as delivered

BOOK = ProfileBook.of(
    [linear(f"net{s}", 1.0, slowdown=(1.0, 1.0, float(s), float(s))) for s in (2, 3, 5)]
    + [linear("compute", 1.0, slowdown=(1.0, 1.0, 1.0, 1.0))]
)


def world(on: tuple[int, ...], *gangs: tuple[str, int]) -> tuple[Snapshot, list[App]]:
    """Endless jobs of these models and sizes, an app each."""
    apps = [app(f"a{i}", [job(1e7, size, model=model)], user=f"u{i}") for i, (model, size) in enumerate(gangs)]
    return snapshot_of(machines(*on), apps, book=BOOK), apps


def test_five_gangs_of_three_on_four_machines_of_four_by_hand() -> None:
    """C = 4 x 3 GPUs, 4 are left: a gang has a machine four fifths of the time and is spread for the last fifth."""
    s, _ = world((4, 4, 4, 4), *[("net3", 3)] * 5)
    found = virtual(s, problem_of(s))
    assert found is not None
    assert found.problem.workers.tolist() == pytest.approx([12.0, 4.0])
    assert found.problem.rate[0].tolist() == pytest.approx([3.0, 1.0])
    solved = make_policy("max_min_fairness:placement=true")(s, Workbench())
    assert isinstance(solved.answer, TimeShare)
    assert solved.answer.apart is not None
    assert solved.answer.x[:, 0] == pytest.approx(np.ones(5))
    assert solved.answer.apart[:, 0] == pytest.approx(np.full(5, 0.2))
    # Rate 0.8 x 3 + 0.2 x 1, over a third of what equal time on all GPUs gives: (12 x 3 + 4 x 1) / 16.
    assert solved.proof.objective == pytest.approx(2.6 * 3 / 2.5)


def test_gangs_that_do_not_mind_leave_the_machines_to_those_that_do() -> None:
    s, _ = world((4, 4, 4, 4), ("compute", 3), *[("net3", 3)] * 4)
    found = virtual(s, problem_of(s))
    assert found is not None
    assert not found.spread.any()
    x, apart = found.folded(np.ones((5, 1)))
    assert x[:, 0].tolist() == [1.0] * 5
    assert apart[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "gangs",
    [
        [("net3", 2), ("net3", 4), ("compute", 4)],  # sizes divide each other and the machines
        [("compute", 3)] * 5,
        [("net3", 1)] * 20,
        [("net3", 3)] * 4,  # all fit
    ],
)
def test_one_type_where_there_is_room_for_all(gangs: list[tuple[str, int]]) -> None:
    s, _ = world((4, 4, 4, 4), *gangs)
    assert virtual(s, problem_of(s)) is None


def brute_force(s: Snapshot, unit: np.ndarray) -> float:
    """The highest level of ``rate >= level unit`` over all averages of sets of gangs on one machine, or spread, that fit."""
    problem, count = problem_of(s), s.jobs
    slow = s.speeds.slowdown[s.job_config][:, 2]
    columns = set()
    for choice in itertools.product((0, 1, 2), repeat=count):
        near = [int(problem.gpus[j]) for j in range(count) if choice[j] == 1]
        total = sum(int(problem.gpus[j]) for j in range(count) if choice[j])
        if total <= s.machine_gpus.sum() and _packs(near, s.machine_gpus.tolist()):
            columns.add(choice)
    rates = np.array(
        [[(0.0, problem.gpus[j], problem.gpus[j] / slow[j])[c] for j, c in enumerate(choice)] for choice in columns]
    )
    n = len(rates)
    found = linprog(
        np.append(np.zeros(n), -1.0),
        A_ub=np.column_stack([-rates.T, unit]),
        b_ub=np.zeros(count),
        A_eq=np.append(np.ones(n), 0.0)[None],
        b_eq=[1.0],
    )
    return float(-found.fun)


def _packs(near: list[int], room: list[int]) -> bool:
    if not near:
        return True
    first, rest = max(near), sorted(near)[:-1]
    return any(
        left >= first and _packs(rest, [*room[:m], left - first, *room[m + 1 :]])
        for m, left in enumerate(room)
        if left not in room[:m]
    )


@pytest.mark.parametrize(
    "gangs",
    [
        [("net3", 3)] * 4,
        [("net2", 3), ("net5", 3), ("net3", 3), ("compute", 3)],
        [("net2", 3), ("net5", 3), ("net3", 3), ("net3", 3), ("net5", 3)],
        [("net5", 3), ("net5", 3), ("net2", 3), ("net2", 3), ("compute", 1), ("compute", 1)],
    ],
)
def test_shares_are_as_good_as_the_best_average_of_sets_that_fit(gangs: list[tuple[str, int]]) -> None:
    """On machines of 4, where all gangs have one size."""
    s, _ = world((4, 4, 4), *gangs)
    found = virtual(s, problem_of(s))
    problem = problem_of(s) if found is None else found.problem
    unit = normalised_unit(problem)
    level = max_min(problem, np.ones(problem.jobs), fill=False).objective
    assert level == pytest.approx(brute_force(s, unit), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=5),
    st.lists(st.sampled_from([2, 3, 4, 5]), min_size=1, max_size=8),
)
def test_consolidated_gpus_are_those_of_the_best_mixture_of_machines(on: list[int], gangs: list[int]) -> None:
    gangs = [g for g in gangs if g <= max(on)]
    if not gangs:
        return
    sizes = sorted(set(gangs))

    def counts(values: list[int]) -> tuple[tuple[int, int], ...]:
        return tuple((v, values.count(v)) for v in sorted(set(values)))

    # Every machine on its own, all ways to fill it, none left out.
    columns = [
        (m, p)
        for m, room in enumerate(on)
        for p in itertools.product(*(range(room // s + 1) for s in sizes))
        if sum(a * b for a, b in zip(p, sizes)) <= room
    ]
    many = np.array([gangs.count(s) for s in sizes], dtype=np.float64)
    fill = np.column_stack([*[np.array(p, dtype=np.float64) for _, p in columns], -many])
    each = np.array([[*(float(m == n) for n, _ in columns), 0.0] for m in range(len(on))])
    best = linprog(
        np.append(np.zeros(len(columns)), -1.0),
        A_ub=np.vstack([-fill, each]),
        b_ub=np.concatenate([np.zeros(len(sizes)), np.ones(len(on))]),
        bounds=[(0, None)] * len(columns) + [(0, 1)],
    )
    level = -best.fun
    wanted = float(sum(on)) if level >= 1 - 1e-7 else level * sum(gangs)
    assert consolidated(counts(on), counts(gangs)) == pytest.approx(wanted, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=6),
    st.lists(
        st.tuples(st.sampled_from(["net2", "net5", "compute"]), st.sampled_from([1, 2, 3, 4, 6])),
        min_size=1,
        max_size=9,
    ),
    st.sampled_from(
        ["max_min_fairness", "finish_time_fairness", "makespan", "max_throughput", "hierarchical", "sjf_hetero"]
    ),
)
def test_shares_with_placement_are_valid(on: list[int], gangs: list[tuple[str, int]], policy: str) -> None:
    gangs = [(model, size) for model, size in gangs if size <= sum(on)]
    if not gangs:
        return
    s, _ = world(tuple(on), *gangs)
    answer = make_policy(f"{policy}:placement=true")(s, Workbench()).answer
    assert isinstance(answer, TimeShare)
    assert (answer.x.sum(axis=1) <= 1 + 1e-9).all()
    assert float((answer.gpus @ answer.x).sum()) <= sum(on) + 1e-6
    able = problem_of(s).active
    if policy in ("max_min_fairness", "finish_time_fairness"):
        assert (answer.x.sum(axis=1)[able] > 0).all()  # nobody is barred for want of a part that is large enough
    if answer.apart is not None:
        assert (answer.apart >= 0).all()
        assert (answer.apart <= answer.x).all()
        copy = _read_answer(
            {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in _write_answer(answer).items()}
        )
        assert isinstance(copy, TimeShare)
        assert copy.apart == pytest.approx(answer.apart)


def spread_time(policy: str, apps: list[App], rounds: int) -> tuple[dict[int, float], bool]:
    """({job: part of its rounds across machines} after the first, whether placement was planned)."""
    spread, total, planned = defaultdict(float), defaultdict(float), False

    def sink(now: float, record: object) -> None:
        nonlocal planned
        if now >= rounds * 360.0:
            raise delivered._Over
        if isinstance(record, Allocated) and isinstance(record.solved.answer, TimeShare):
            planned |= record.solved.answer.apart is not None
        if isinstance(record, Grant):
            total[record.job] += 1.0
            spread[record.job] += len({g // 4 for g in record.gpus}) > 1

    with pytest.raises(delivered._Over):
        Simulation(
            workload=Workload(name="w", apps=tuple(apps), source="generated"),
            cluster=machines(4, 4, 4, 4),
            book=BOOK,
            policy_name=policy,
            policy=make_policy(policy),
            settings=Settings(container_s=0.0),
        ).run(sink)
    return {j: spread[j] / total[j] for j in total}, planned


def test_rounds_put_the_gang_that_does_not_mind_across_machines() -> None:
    """Four fit on a machine each. Without the plan the first one, which does not mind, has a machine for ever."""
    _, apps = world((4, 4, 4, 4), ("compute", 3), *[("net3", 3)] * 4)
    found, planned = spread_time("max_min_fairness:placement=true", apps, 20)
    assert planned
    assert [found[j] for j in range(1, 5)] == [0.0] * 4
    before, planned = spread_time("max_min_fairness:placement=false", apps, 20)
    assert not planned
    assert max(before[j] for j in range(1, 5)) == 1.0


def test_gangs_take_turns_across_machines() -> None:
    """Each is to be spread for a fifth of the time. Without the plan the last one is spread for ever, at a third of its speed."""
    before, after = (
        delivered.run(f"max_min_fairness:placement={on}", apps_of_five(), 4, 60) for on in ("false", "true")
    )
    assert before.worst < 0.4
    assert after.worst > 0.7


def apps_of_five() -> list[App]:
    """Five network-bound gangs of 3 for the book of the reproduction."""
    return [app(f"network-{i}", [job(1e8, 3, model="network")], user=f"u{i}") for i in range(5)]


def test_what_gangs_receive_where_machines_are_short() -> None:
    """One draw of docs/reproduction/delivered.md: the least served gang receives more of its share, and all do more work."""
    before, after = (
        delivered.run(f"max_min_fairness:placement={on}", delivered.jobs_of(0), rounds=40) for on in ("false", "true")
    )
    assert after.worst > before.worst
    assert after.useful > 1.02 * before.useful
