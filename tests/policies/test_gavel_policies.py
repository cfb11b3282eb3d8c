"""Gavel's policies on snapshots: golden examples, weights, awareness, deadlines, bad parameters."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from themis.errors import InputError
from themis.model.answers import CUT, Solved, TimeShare
from themis.model.cluster import Cluster, Machine
from themis.model.speed import ProfileBook, linear
from themis.model.units import Float
from themis.model.workload import App
from themis.policies.api import Workbench, check_types, make_policy
from themis.policies.gavel.pair_deadlines import keep_deadlines_paired
from themis.testing.builders import app, job, machines, snapshot_of
from themis.testing.policies import check_policy, check_run

PAPER_BOOK = ProfileBook.of(
    [
        linear("zero", 1 / 10, type_speed={"V100": 40.0, "K80": 10.0}),
        linear("one", 1 / 4, type_speed={"V100": 12.0, "K80": 4.0}),
        linear("two", 1 / 50, type_speed={"V100": 100.0, "K80": 50.0}),
    ]
)
"""The jobs of Gavel §4.1; ``type_speed`` over the serial time of a step is steps/s up to a factor of the job's own."""

V100_AND_K80 = Cluster(
    name="two", machines=tuple(Machine(name=t, gpus=1, rack="r", gpu_type=t) for t in ("V100", "K80"))
)


def paper_apps(**more: object) -> list[App]:
    return [app(f"a{i}", [job(1000.0, model=m)], **more) for i, m in enumerate(("zero", "one", "two"))]


def shares(solved: Solved) -> Float:
    assert isinstance(solved.answer, TimeShare)
    return solved.answer.x


def decide(spec: str, cluster: Cluster, apps: list[App], **more: object) -> Solved:
    return make_policy(spec)(snapshot_of(cluster, apps, **more), Workbench())


@pytest.mark.parametrize("name", ["max_min_fairness", "max_min_water_filling", "hierarchical"])
def test_section_4_1_example_through_a_snapshot(name: str) -> None:
    solved = decide(name, V100_AND_K80, paper_apps(), book=PAPER_BOOK)
    assert shares(solved) == pytest.approx(np.array([[5 / 11, 0], [5 / 11, 1 / 11], [1 / 11, 10 / 11]]), abs=1e-7)
    if name != "hierarchical":
        assert solved.proof.objective == pytest.approx(8 / 11)
        assert solved.proof.bound == pytest.approx(8 / 11)


def test_without_awareness_the_three_jobs_get_a_third_of_each_type() -> None:
    solved = decide("max_min_fairness:aware=false", V100_AND_K80, paper_apps(), book=PAPER_BOOK)
    assert shares(solved) == pytest.approx(np.full((3, 2), 1 / 3), abs=1e-7)


@pytest.mark.parametrize(
    "name", ["max_min_fairness", "max_min_water_filling", "finish_time_fairness", "makespan", "max_throughput"]
)
def test_with_one_type_awareness_changes_no_objective(name: str) -> None:
    apps = [app(f"a{i}", [job(100.0 * (i + 1), 1 + i % 2)], weight=1.0 + i) for i in range(5)]
    aware, blind = decide(name, machines(4), apps), decide(f"{name}:aware=false", machines(4), apps)
    assert aware.proof.objective == pytest.approx(blind.proof.objective, rel=1e-8)


def test_weights_divide_and_what_is_left_over_is_used() -> None:
    """Weights 3, 1, 1, 1 on four GPUs (§4.3): plain max-min's objective is 1/3, and nothing stays idle."""
    apps = [app(f"a{i}", [job(100.0)], weight=3.0 if i == 0 else 1.0) for i in range(4)]
    for name in ("max_min_fairness", "max_min_water_filling"):
        solved = decide(name, machines(4), apps)
        assert solved.proof.objective == pytest.approx(1 / 3)
        assert shares(solved) == pytest.approx(np.ones((4, 1)))


def test_a_deadline_comes_before_cost() -> None:
    """K80s are cheap, but only the V100 makes it in time; the aim is a round before the deadline, where that can be met."""
    fast = {"V100": 4.0, "K80": 1.0}
    book = ProfileBook.of([linear("m", 1.0, type_speed=fast)])
    cheap = "cost=V100=9/K80=0.5"
    free = decide(f"min_cost:{cheap}", V100_AND_K80, [app("a", [job(360.0, model="m")], deadline=100.0)], book=book)
    assert shares(free) == pytest.approx(np.array([[0.0, 1.0]]), abs=1e-8)
    for deadline, round_s, rate in ((110.0, 10.0, 3.6), (100.0, 60.0, 4.0), (91.0, 10.0, 4.0)):
        bound = decide(
            f"min_cost_slo:{cheap},round_s={round_s}",
            V100_AND_K80,
            [app("a", [job(360.0, model="m")], deadline=deadline)],
            book=book,
        )
        assert shares(bound) @ np.array([4.0, 1.0]) == pytest.approx([rate], rel=1e-6)


def test_deadlines_that_are_given_up_are_named() -> None:
    """One GPU: a and b cannot both end in time and c not even alone; b has more slack. d has no deadline."""
    deadlines = (100.0, 150.0, 50.0, None)
    apps = [app(f"{name}", [job(80.0)], deadline=end) for name, end in zip("abcd", deadlines)]
    found = decide("min_cost_slo:round_s=1", machines(1), apps)
    assert found.proof.late.tolist() == [0, 2]
    assert decide("min_cost_slo:round_s=1", machines(1), apps[1:2]).proof.late.tolist() == []
    assert decide("min_cost", machines(1), apps).proof.late.tolist() == []


def test_nobody_is_given_up_so_that_others_may_be_early() -> None:
    """One GPU for two jobs: at 80 s each they just fit, at 72 s both can aim a round earlier."""
    apps = [app(name, [job(80.0)], deadline=160.0) for name in "ab"]
    just = decide("min_cost_slo:round_s=10", machines(1), apps)
    assert just.proof.late.tolist() == []
    assert shares(just)[:, 0] == pytest.approx([0.5, 0.5])
    room = decide("min_cost_slo:round_s=10", machines(1), [app(name, [job(72.0)], deadline=160.0) for name in "ab"])
    assert room.proof.late.tolist() == []
    assert (shares(room)[:, 0] >= 72.0 / 150.0 - 1e-6).all(), "a round earlier is possible for both"


def test_two_deadlines_that_one_gpu_alone_cannot_keep_are_kept_beside_each_other() -> None:
    """One GPU, two jobs of 80 s due at 110 s, at 0.8 of their speed beside each other: 100 s. A third, due at 60 s, is late."""
    book = ProfileBook.of([replace(linear("m", 1.0), beside={("*", 0, "m", 0): 0.8})])
    apps = [app(f"a{i}", [job(80.0, model="m")], deadline=end) for i, end in enumerate((110.0, 110.0, 60.0))]
    assert len(decide("min_cost_slo:round_s=1", machines(1), apps, book=book).proof.late) == 2
    for printed in ("false", "true"):
        found = decide(f"min_cost_slo:sharing=true,round_s=1,printed={printed}", machines(1), apps, book=book)
        assert found.proof.late.tolist() == [2]
        answer = found.answer
        assert isinstance(answer, TimeShare)
        assert ((answer.combos[:, 0] == 0) & (answer.combos[:, 1] == 1)).any()
        assert not found.proof.method.startswith(CUT)


def test_the_proof_says_where_more_deadlines_may_be_possible_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "themis.policies.min_cost_slo.keep_deadlines_paired",
        lambda *given: replace(keep_deadlines_paired(*given), most=2),
    )
    apps = [app(name, [job(80.0)], deadline=100.0) for name in "ab"]
    found = decide("min_cost_slo:sharing=true,round_s=1", machines(1), apps)
    assert len(found.proof.late) == 1
    assert found.proof.method == f"{CUT}: 1 deadline kept, 2 not ruled out"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("min_cost:cost=V100", "expected TYPE=number above 0"),
        ("min_cost:cost=V100=-2", "expected TYPE=number above 0"),
        ("min_cost_slo:cost=V100=nan", "expected TYPE=number above 0"),
        ("min_cost:cost=V100=2/K80=1/ V100=3", "cost of GPU type 'V100' is there twice"),
    ],
)
def test_faulty_costs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_policy(spec)


@pytest.mark.parametrize("name", ["min_cost", "min_cost_slo"])
def test_costs_of_types_that_the_cluster_lacks_are_refused_beforehand_and_harmless_later(name: str) -> None:
    """Where machines come and go, a type may not be there yet."""
    policy = make_policy(f"{name}:cost=V100=3/K80=1/A100=9")
    check_types(policy, ("A100", "K80", "V100"))
    with pytest.raises(InputError, match="unknown GPU type in cost 'A100'"):
        check_types(policy, ("K80", "V100"))
    check_types(make_policy("max_min_fairness"), ())
    more, less = (
        decide(f"{name}:cost=V100=3/K80=1{a100}", V100_AND_K80, paper_apps(), book=PAPER_BOOK).answer
        for a100 in ("/A100=9", "")
    )
    assert isinstance(more, TimeShare)
    assert isinstance(less, TimeShare)
    assert (more.x == less.x).all()


ALL = os.environ.get("THEMIS_CONFORMANCE_SEEDS") == "3"
SHARING = ("max_min_fairness", "makespan", "min_cost_slo", "hierarchical")
"""A policy for each program of pairs: levels, times, deadlines, a hierarchy. ``make soak`` has all policies."""
OTHERS = (
    "max_min_water_filling",
    "finish_time_fairness",
    "fifo_hetero",
    "sjf_hetero",
    "max_throughput",
    "min_cost",
    "min_cost_slo:printed=true",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["max_min_water_filling", "min_cost", *(OTHERS[1:3] if ALL else ())])
def test_agnostic_forms_conform(name: str) -> None:
    check_policy(lambda: make_policy(f"{name}:aware=false"), seeds=(2,))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SHARING, *(OTHERS if ALL else ())])
def test_forms_with_space_sharing_conform(name: str) -> None:
    make = lambda: make_policy(name + ("," if ":" in name else ":") + "sharing=true")  # noqa: E731
    check_policy(make, seeds=(3,), beside=0.9)
    assert any("seat=1" in record for _, record in check_run(make, 3, beside=0.9)), "no two jobs shared a GPU"


@pytest.mark.slow
def test_entities_of_every_rule_conform_with_space_sharing(tmp_path: Path) -> None:
    """Users of the kit's worlds, in entities with each of the rules."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "members:\n"
        "  - {name: a, weight: 2, policy: fifo, users: [u0]}\n"
        "  - {name: b, policy: finish_time_fairness, users: [u1]}\n"
        "  - {name: c, policy: fairness, users: ['*']}\n"
    )
    check_policy(lambda: make_policy(f"hierarchical:sharing=true,file={plan}"), seeds=(4,), beside=0.9)


def test_random_packing_pairs_jobs_only_where_more_is_wanted_than_there_is() -> None:
    """Two GPUs: two jobs stay alone, of four each is in one pair that has its part of the time on every type."""
    beside = {("*", 0, "m", 0): 0.7}
    book = ProfileBook.of([replace(linear("m", 1.0), beside=beside)])
    for count, pairs in ((2, 0), (4, 2)):
        apps = [app(f"a{i}", [job(100.0, model="m")]) for i in range(count)]
        answer = decide("gandiva_packing", V100_AND_K80, apps, book=book).answer
        assert isinstance(answer, TimeShare)
        assert int((answer.combos[:, 1] >= 0).sum()) == pairs
        assert sorted(answer.combos[answer.combos >= 0].tolist()) == list(range(count))
        assert answer.x == pytest.approx(np.full((2, 2), 0.5))
