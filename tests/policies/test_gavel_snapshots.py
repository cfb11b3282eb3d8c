"""What Gavel's policies read of a snapshot: arrivals, weights, types that are barred, time so far, where gangs can be placed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from policy_cases import after

from themis.errors import InputError
from themis.model.answers import TimeShare
from themis.model.cluster import Cluster, Machine
from themis.model.snapshot import Snapshot
from themis.model.speed import Profile, ProfileBook, linear
from themis.model.units import Float
from themis.optimize.shares.problem import Problem
from themis.policies.api import Workbench, make_policy
from themis.policies.gavel.agnostic import flattened, spread
from themis.policies.shares import problem_of, progress
from themis.policies.sharing import pair_rates
from themis.testing.builders import app, job, machines, snapshot_of

BOTH = Cluster(name="two", machines=tuple(Machine(name=t, gpus=1, rack="r", gpu_type=t) for t in ("V100", "K80")))
TWICE = ProfileBook.of([linear("m", 1.0, type_speed={"V100": 2.0, "K80": 1.0})])
EVERY = (
    "max_min_fairness",
    "max_min_water_filling",
    "finish_time_fairness",
    "makespan",
    "fifo_hetero",
    "sjf_hetero",
    "max_throughput",
    "min_cost",
    "min_cost_slo",
    "proportional",
    "hierarchical",
    "allox",
    "gandiva_fair",
)


def shares(spec: str, snapshot: Snapshot) -> Float:
    answer = make_policy(spec)(snapshot, Workbench()).answer
    assert isinstance(answer, TimeShare)
    return answer.x


def test_fifo_serves_by_arrival_and_sjf_by_time_left() -> None:
    """One V100 and one K80 of half its speed: the first has the V100, the second the K80."""
    apps = [
        app(f"a{i}", [job(left, model="m")], arrival=at) for i, (left, at) in enumerate(((30, 0), (10, 5), (20, 9)))
    ]
    s = snapshot_of(BOTH, apps, book=TWICE, now=10.0)
    at = s.gpu_types.index("V100")
    for name, order in (("fifo_hetero", (0, 1, 2)), ("sjf_hetero", (1, 2, 0))):
        first, second, third = order
        x = shares(name, s)
        assert (x[first, at], x[second, 1 - at]) == (pytest.approx(1.0), pytest.approx(1.0)), name
        assert x[third].sum() == pytest.approx(0.0, abs=1e-9), name


@pytest.mark.parametrize("name", [*EVERY, *(f"{name}:aware=false" for name in EVERY), "isolated", "gandiva_packing"])
def test_nobody_has_a_share_of_a_type_that_it_may_not_use(name: str) -> None:
    apps = [
        app(f"a{i}", [job(100.0 * (i + 1), model="m", gpu_types=types)])
        for i, types in enumerate((("K80",), (), ("V100",), ("V100", "K80")))
    ]
    s = snapshot_of(BOTH, apps, book=TWICE)
    x, slow, fast = shares(name, s), s.gpu_types.index("K80"), s.gpu_types.index("V100")
    assert x[0, fast] == x[2, slow] == 0.0
    assert (s.job_allowed.sum(axis=1) == (1, 2, 1, 2)).all()


@pytest.mark.parametrize(
    "name", ["proportional", "gandiva_fair", "max_min_fairness", "max_min_water_filling", "hierarchical"]
)
@pytest.mark.parametrize("aware", ["true", "false"])
def test_shares_are_in_proportion_to_weights_where_nobody_has_enough(name: str, aware: str) -> None:
    apps = [app(f"a{i}", [job(1000.0)], weight=weight) for i, weight in enumerate((3.0, 1.0, 1.0))]
    x = shares(f"{name}:aware={aware}", snapshot_of(machines(1), apps))
    assert x[:, 0] == pytest.approx([0.6, 0.2, 0.2])


def test_finish_time_fairness_gives_a_job_of_weight_three_three_shares() -> None:
    """Two fresh jobs on one GPU, alone at half: rho = 1 / (2 x), and weights 3 and 1 make x 3/4 and 1/4."""
    apps = [app(f"a{i}", [job(1000.0)], weight=weight) for i, weight in enumerate((3.0, 1.0))]
    x = shares("finish_time_fairness", snapshot_of(machines(1), apps))
    assert x[:, 0] == pytest.approx([0.75, 0.25])


def test_progress_counts_time_since_arrival_and_work_done_at_the_rate_of_isolation() -> None:
    """One GPU, two apps, on average 4 in the system: 50 s of work took 200 s alone; 100 s were left of 150."""
    s = snapshot_of(machines(1), [app("a", [job(150.0)]), app("b", [job(80.0)], arrival=280.0)], now=300.0)
    s = after(s, app_contention=[4.0, 2.0], job_left=[100.0, 80.0])
    s = after(s, job_done=(50.0 / s.job_serial[0], 0.0))
    so_far = progress(s, problem_of(s))
    assert so_far.elapsed.tolist() == [300.0, 20.0]
    assert so_far.left.tolist() == [100.0, 80.0]
    assert so_far.isolated_elapsed == pytest.approx([200.0, 0.0])
    assert so_far.isolated_rate == pytest.approx([0.5, 0.5])


def test_gangs_larger_than_every_machine_of_a_type_run_there_at_their_rate_across_machines() -> None:
    spread_out = Cluster(
        name="c",
        machines=(
            *(Machine(name=f"s{i}", gpus=2, rack="r", gpu_type="small") for i in range(4)),
            Machine(name="l", gpus=4, rack="r", gpu_type="large"),
        ),
    )
    book = ProfileBook.of([linear("m", 1.0, slowdown=(1.0, 1.0, 2.0, 4.0))])
    s = snapshot_of(spread_out, [app("a", [job(100.0, 4, model="m")]), app("b", [job(100.0, 2, model="m")])], book=book)
    rate = problem_of(s).rate[:, [s.gpu_types.index("small"), s.gpu_types.index("large")]]
    assert rate == pytest.approx(np.array([[2.0, 4.0], [2.0, 2.0]]))


def test_without_awareness_a_job_runs_everywhere_at_the_mean_rate_of_the_workers() -> None:
    problem = Problem.of(np.array([[4.0, 1.0], [6.0, 0.0]]), np.ones(2, np.int64), np.array([1.0, 3.0]))
    flat = flattened(problem)
    assert flat.rate == pytest.approx(np.array([[1.75, 1.75], [1.5, 0.0]]))
    free = Problem.of(np.array([[4.0, 1.0], [6.0, 2.0]]), np.ones(2, np.int64), np.array([1.0, 3.0]))
    assert spread(free, np.array([[0.5, 0.0], [0.0, 1.0]])) == pytest.approx(np.array([[0.125, 0.375], [0.25, 0.75]]))
    # The restricted one has all of its time on its own type.
    assert spread(problem, np.array([[0.0, 0.5], [0.8, 0.0]])) == pytest.approx(np.array([[0.0, 0.5], [0.8, 0.0]]))


def test_rates_of_pairs_are_each_jobs_own_and_a_gang_has_none_with_single_gpus() -> None:
    """``a`` keeps nine tenths beside ``b``, which keeps three tenths beside ``a``."""

    def beside(name: str, other: str, share: float) -> Profile:
        return replace(linear(name, 1.0), beside={("*", 0, other, 0): share})

    book = ProfileBook.of([beside("a", "b", 0.9), beside("b", "a", 0.3)])
    apps = [app("x", [job(10.0, model="a")]), app("y", [job(10.0, model="b")]), app("z", [job(10.0, 2, model="a")])]
    s = snapshot_of(machines(2), apps, book=book)
    pairs = pair_rates(s, problem_of(s))
    one, other, gang = pairs.model.tolist()
    assert not pairs.rate[gang].any()
    assert (pairs.rate[one, other, 0], pairs.rate[other, one, 0]) == (pytest.approx(0.9), pytest.approx(0.3))


def allox_order(alpha: float, had: tuple[float, ...]) -> list[bool]:
    """Which of three jobs of 5, 1 and 10 s has the one GPU, after these GPU-seconds in their 100 s so far."""
    s = snapshot_of(machines(1), [app(f"a{i}", [job(left)]) for i, left in enumerate((5.0, 1.0, 10.0))], now=100.0)
    s = replace(s, job_attained=np.array(had))
    answer = make_policy(f"allox:alpha={alpha}")(s, Workbench()).answer
    assert isinstance(answer, TimeShare)
    return [bool(x) for x in answer.x[:, 0]]


def test_shockwave_2_1_alloxs_filter_takes_those_that_had_least_and_of_these_the_shortest() -> None:
    """A third is job 2 alone, two thirds are jobs 0 and 2, all three have the shortest first."""
    had = (20.0, 60.0, 10.0)
    assert allox_order(0.3, had) == [False, False, True]
    assert allox_order(0.6, had) == [True, False, False]
    assert allox_order(1.0, had) == [False, True, False]
    with pytest.raises(InputError, match=r"alpha is 0\.0, expected above 0"):
        make_policy("allox:alpha=0")


@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_no_job_outside_alloxs_filter_takes_a_gpu_from_one_inside(seed: int, alpha: float) -> None:
    """Filtered jobs have what they have where they are alone."""
    rng = np.random.default_rng(seed)
    apps = [app(f"a{i}", [job(float(rng.uniform(10, 900)), int(rng.integers(1, 4)))]) for i in range(12)]
    s = replace(snapshot_of(machines(4, 2), apps, now=500.0), job_attained=rng.uniform(0.0, 900.0, 12))
    gpus = s.job_gpus_max
    first = np.argsort(s.job_attained / gpus)[: int(np.ceil(alpha * 12))]
    alone = replace(s, job_allowed=np.isin(np.arange(12), first)[:, None] & s.job_allowed)
    found = make_policy(f"allox:alpha={alpha}")(s, Workbench())
    filtered = make_policy("allox")(alone, Workbench())
    assert isinstance(found.answer, TimeShare)
    assert isinstance(filtered.answer, TimeShare)
    assert found.answer.x[first].tolist() == filtered.answer.x[first].tolist()
    assert set(np.unique(found.answer.x)) <= {0.0, 1.0}
    assert (found.answer.x.sum(axis=1) @ gpus) <= 6
