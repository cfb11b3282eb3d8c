"""Gang sizes by value: the optimum, its bound, the places, and what elastic_finish makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from themis.errors import InputError
from themis.model.cluster import in_racks
from themis.model.settings import Settings
from themis.model.speed import ANY_TYPE, Curve, Profile, ProfileBook
from themis.model.units import Float, Int
from themis.model.workload import App, Job, Regime, User, Workload
from themis.optimize import gang_sizes
from themis.optimize.gang_sizes import choose
from themis.policies.api import make_policy
from themis.policies.placement.whole_machines import Wanted, pack
from themis.sim.runner import Simulation


def problem(rng: np.random.Generator, types: int) -> tuple[Float, Int, Int, Int]:
    sizes = [1, 2, 4]
    gpus = np.array([0, *sizes * types])
    kind = np.array([0, *np.repeat(np.arange(types), len(sizes))])
    value = rng.normal(size=(4, len(gpus)))
    value[:, 1:][rng.random((4, len(gpus) - 1)) < 0.2] = -np.inf
    return value, gpus, kind, rng.integers(1, 5, size=types)


def best(value: Float, gpus: Int, kind: Int, capacity: Int) -> float:
    """By all assignments."""
    out = -np.inf
    for options in itertools.product(range(len(gpus)), repeat=len(value)):
        used = np.bincount(kind[list(options)], weights=gpus[list(options)], minlength=len(capacity))
        if (used <= capacity).all():
            out = max(out, float(value[np.arange(len(value)), list(options)].sum()))
    return out


@pytest.mark.parametrize("types", [1, 2])
def test_the_choice_is_the_best_of_all_assignments(types: int) -> None:
    rng = np.random.default_rng(types)
    for _ in range(15 if types == 1 else 6):
        value, gpus, kind, capacity = problem(rng, types)
        found = choose(value, gpus, kind, capacity)
        assert found.objective == pytest.approx(best(value, gpus, kind, capacity), abs=1e-3)
        assert found.objective <= found.bound + 1e-9
        assert value[np.arange(len(value)), found.option].sum() == pytest.approx(found.objective)


def fits_machines_of_four(sizes: list[int], machines: int) -> bool:
    """By trying every machine for every gang, the largest first."""
    whole, small = sum(g // 4 for g in sizes if g >= 4), sorted((g for g in sizes if 0 < g < 4), reverse=True)

    def put(i: int, free: tuple[int, ...]) -> bool:
        return i == len(small) or any(
            put(i + 1, tuple(sorted((*free[:n], room - small[i], *free[n + 1 :]))))
            for n, room in enumerate(free)
            if room >= small[i] and room not in free[:n]
        )

    return whole <= machines and put(0, (4,) * (machines - whole))


def test_the_choice_with_gangs_of_three_is_the_best_that_packs_on_machines_of_four_and_is_placed_so() -> None:
    rng = np.random.default_rng(11)
    gpus = np.array([0, 1, 2, 3, 4, 8])
    kind = np.zeros(6, dtype=int)
    threes = 0
    for _ in range(25):
        value = rng.normal(size=(5, 6)) + 0.5 * np.minimum(gpus, 3)
        value[:, 1:][rng.random((5, 5)) < 0.2] = -np.inf
        machines = int(rng.integers(1, 4))
        found = choose(value, gpus, kind, np.array([4 * machines]), 2 * machines)
        sizes = gpus[found.option].tolist()
        best = max(
            float(value[np.arange(5), list(options)].sum())
            for options in itertools.product(range(6), repeat=5)
            if gpus[list(options)].sum() <= 4 * machines
            and fits_machines_of_four(gpus[list(options)].tolist(), machines)
        )
        assert found.objective == pytest.approx(best)
        assert found.bound == found.objective
        threes += sizes.count(3)
        full = np.full(machines, 4)
        stands = {0: ((0, 1),), 1: ((machines - 1, 2),)}
        wanted = [Wanted(j, size, 0) for j, size in enumerate(sizes) if size]
        placed = pack(wanted, stands, full, np.zeros(machines, dtype=int), np.zeros(machines, dtype=int), full)
        assert {j: sum(c for _, c in counts) for j, counts in placed.items()} == {j: g for j, g, *_ in wanted}
        assert all(len(placed[j]) == max(g // 4, 1) for j, g, *_ in wanted)
    assert threes > 10


def test_the_choice_with_gangs_of_three_over_two_machines_is_the_best_that_packs_and_is_placed_so() -> None:
    rng = np.random.default_rng(12)
    gpus, split = np.array([0, 1, 2, 3, 4, 3]), np.arange(6) == 5
    divided = 0
    for _ in range(25):
        value = rng.normal(size=(5, 6)) + 0.5 * np.minimum(gpus, 3)
        value[:, 1:][rng.random((5, 5)) < 0.2] = -np.inf
        machines = int(rng.integers(2, 4))
        found = choose(value, gpus, np.zeros(6, dtype=int), np.array([4 * machines]), 2 * machines, split)
        best = max(
            float(value[np.arange(5), list(options)].sum())
            for options in itertools.product(range(6), repeat=5)
            if gpus[list(options)].sum() <= 4 * machines
            and fits_machines_of_four([g for c in options for g in ((2, 1) if split[c] else (int(gpus[c]),))], machines)
        )
        assert found.objective == pytest.approx(best)
        wanted = [Wanted(j, int(gpus[c]), 0, bool(split[c])) for j, c in enumerate(found.option.tolist()) if c]
        divided += sum(w.split for w in wanted)
        full, zero = np.full(machines, 4), np.zeros(machines, dtype=int)
        placed = pack(wanted, {0: ((0, 1),), 1: ((machines - 1, 2),)}, full, zero, zero, full)
        used = np.zeros(machines)
        for w in wanted:
            assert sum(c for _, c in placed[w.job]) == w.gpus
            assert len(placed[w.job]) <= 1 + w.split
            for n, c in placed[w.job]:
                used[n] += c
        assert (used <= 4).all()
        assert pack(wanted, placed, full, zero, zero, full) == placed
    assert divided > 10


def test_prices_stay_within_their_bound_where_the_exact_program_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    gpus = np.array([0, 1, 2, 4, 8, 16])
    value = np.log(np.maximum(gpus, 0.01))[None, :] * rng.uniform(0.3, 1.0, size=(40, 1))
    room = np.array([64])
    exact = choose(value, gpus, np.zeros(6, dtype=int), room)
    monkeypatch.setattr(gang_sizes, "LARGEST", 0)
    priced = choose(value, gpus, np.zeros(6, dtype=int), room)
    assert gpus[priced.option].sum() <= 64
    assert priced.objective <= exact.objective + 1e-9 <= priced.bound + 2e-9
    assert priced.objective > exact.objective - 0.5


def test_gangs_of_powers_of_two_and_whole_machines_always_pack_and_those_that_can_stay_do() -> None:
    rng = np.random.default_rng(3)
    kind, rack, whole = np.zeros(6, dtype=int), np.zeros(6, dtype=int), np.full(6, 4)
    stands: dict[int, tuple[tuple[int, int], ...]] = {}
    for _ in range(200):
        sizes, left = {}, 24
        for job in rng.permutation(14).tolist():
            size = int(rng.choice([0, 1, 2, 4, 8]))
            if 0 < size <= left:
                sizes[job], left = size, left - size
        wanted = [Wanted(job, size, 0) for job, size in sizes.items()]
        placed = pack(wanted, stands, np.full(6, 4), kind, rack, whole)
        used = np.zeros(6)
        for job, size in sizes.items():
            assert sum(c for _, c in placed[job]) == size
            assert size > 4 or len(placed[job]) == 1
            assert size < 4 or all(c == 4 for _, c in placed[job])
            for n, c in placed[job]:
                used[n] += c
        assert (used <= 4).all()
        assert pack(wanted, placed, np.full(6, 4), kind, rack, whole) == placed
        stands = placed


def elastic(name: str, rates: tuple[float, ...], steps: float, arrival: float = 0.0) -> tuple[App, Profile]:
    """A job of 1 to 4 GPUs."""
    profile = Profile(
        name=name, curves={(ANY_TYPE, 0): Curve(gpus=(1, 2, 4), rate=rates)}, slowdown=(1.0,) * 4, checkpoint_s=0.0
    )
    job = Job(name=f"{name}/0", model=name, regimes=(Regime(steps=steps),), gpus_min=1, gpus_max=4)
    return App(name=name, user=name, arrival=arrival, jobs=(job,)), profile


def run(*jobs: tuple[App, Profile], policy: str) -> dict[str, list[int]]:
    """Sizes that each job had, in order, and the end of each job under its name with an ``@``."""
    out: dict[str, list[int]] = {app.name: [] for app, _ in jobs}

    def sink(time: float, record: object) -> None:
        kind = type(record).__name__
        if kind == "Grant":
            out[jobs[record.app][0].name].append(len(record.gpus))  # type: ignore[attr-defined]

    simulate(jobs, policy, sink)
    return out


def simulate(jobs: Sequence[tuple[App, Profile]], policy: str, sink: Callable[[float, object], None]) -> None:
    apps, profiles = zip(*jobs)
    Simulation(
        workload=Workload(name="elastic", apps=apps),
        cluster=in_racks("one", [(1, 4, 4)]),
        book=ProfileBook.of(profiles),
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(container_s=10.0, lease_s=60.0, validate=True),
    ).run(sink)


def test_a_job_that_scales_gets_the_gpus_that_one_that_does_not_leaves() -> None:
    flat, steep = elastic("flat", (1.0, 0.9, 0.8), 600.0), elastic("steep", (1.0, 2.0, 4.0), 2400.0)
    sizes = run(flat, steep, policy="elastic_finish")
    assert sizes["flat"][0] == 1
    assert sizes["steep"][0] == 3
    # Alone it takes all that make it faster.
    assert sizes["steep"][-1] == 4


def test_the_shorter_of_two_equal_curves_gets_more_and_beta_0_shares_equally() -> None:
    curve = (1.0, 1.8, 3.0)
    jobs = elastic("short", curve, 300.0), elastic("long", curve, 3000.0)
    assert run(*jobs, policy="elastic_finish:beta=8")["short"][0] == 4
    equal = run(*jobs, policy="elastic_finish:beta=0")
    assert (equal["short"][0], equal["long"][0]) == (2, 2)


def test_a_job_gets_the_gang_that_is_best_now_and_a_wider_one_once_its_noise_has_grown() -> None:
    """Over its whole work four GPUs are best; while it is calm they are slower than one."""
    curves = {
        (ANY_TYPE, level): Curve(gpus=(1, 2, 4), rate=rate)
        for level, rate in ((1, (1.0, 0.8, 0.3)), (2, (1.0, 2.0, 4.0)))
    }
    profile = Profile(name="grows", curves=curves, slowdown=(1.0,) * 4, checkpoint_s=0.0)
    regimes = Regime(steps=300.0, batch=1), Regime(steps=9000.0, batch=2)
    job = Job(name="grows/0", model="grows", regimes=regimes, gpus_min=1, gpus_max=4)
    app = App(name="grows", user="u", arrival=0.0, jobs=(job,))
    assert run((app, profile), policy="elastic_finish")["grows"] == [1, 4]


def test_pollux_evens_out_speedups_and_a_young_job_that_restarted_keeps_its_gpus() -> None:
    steep, flat = elastic("steep", (1.0, 2.0, 4.0), 2400.0), elastic("flat", (1.0, 1.3, 1.6), 600.0)
    # Of four GPUs the fair share is two. One, two or three of the flat job's cost 1.3, 1 or 0.9, of the other 0.67, 1 or 2.
    sizes = run(steep, flat, policy="pollux")
    assert (sizes["steep"][0], sizes["flat"][0]) == (3, 1)
    assert run(steep, policy="pollux")["steep"] == [4]


def first_sizes(
    users: dict[str, str], between: str, weights: dict[str, float], policy: str = "elastic_finish:beta=0"
) -> dict[str, int]:
    """First gang of each app, of this user, on 16 GPUs, where each is twice as fast on twice as many."""
    sizes = (1, 2, 4, 8, 16)
    profile = Profile(
        name="m",
        curves={(ANY_TYPE, 0): Curve(gpus=sizes, rate=tuple(map(float, sizes)))},
        slowdown=(1.0,) * 4,
        checkpoint_s=0.0,
    )
    job = Job(name="j", model="m", regimes=(Regime(steps=1e4),), gpus_min=1, gpus_max=16)
    apps = tuple(App(name=name, user=user, arrival=0.0, jobs=(job,)) for name, user in users.items())
    out: dict[str, int] = {}

    def sink(time: float, record: object) -> None:
        if type(record).__name__ == "Grant":
            out.setdefault(apps[record.app].name, len(record.gpus))  # type: ignore[attr-defined]

    members = tuple(User(name=name, weight=weights.get(name, 1.0)) for name in dict.fromkeys(users.values()))
    Simulation(
        workload=Workload(name="elastic", apps=apps, users=members),
        cluster=in_racks("four", [(4, 4, 4)]),
        book=ProfileBook.of([profile]),
        policy_name=policy.partition(":")[0],
        policy=make_policy(policy),
        settings=Settings(container_s=10.0, lease_s=60.0, between=between, validate=True),
    ).run(sink)
    return out


def test_between_users_four_apps_of_one_get_as_much_as_the_one_of_another_and_three_times_as_much_by_weight() -> None:
    users = {"a": "ann", "b1": "bob", "b2": "bob", "b3": "bob", "b4": "bob"}
    assert sorted(first_sizes(users, "apps", {}).values()) == [2, 2, 4, 4, 4]
    assert first_sizes(users, "users", {}) == {"a": 8, "b1": 2, "b2": 2, "b3": 2, "b4": 2}
    assert first_sizes(users, "users", {"ann": 3.0}) == {"a": 12, "b1": 1, "b2": 1, "b3": 1, "b4": 1}


def test_pollux_gives_three_gpus_to_more_jobs_than_there_are_machines() -> None:
    """Five jobs on four machines of four: of two and four GPUs, two jobs would be half as fast as the others."""
    users = {name: name for name in "abcde"}
    assert sorted(first_sizes(users, "apps", {}, "pollux").values()) == [3, 3, 3, 3, 4]


@pytest.mark.parametrize("policy", ["elastic_finish", "pollux", "sia"])
def test_a_job_of_one_process_keeps_a_gang_on_one_machine(policy: str) -> None:
    """It would train faster on both machines, if it could."""
    profile = Profile(
        name="m", curves={(ANY_TYPE, 0): Curve(gpus=(1, 8), rate=(1.0, 8.0))}, slowdown=(1.0,) * 4, checkpoint_s=0.0
    )
    job = Job(name="j", model="m", regimes=(Regime(steps=3000.0),), gpus_min=1, gpus_max=8, one_machine=True)
    held: list[int] = []

    def sink(time: float, record: object) -> None:
        if type(record).__name__ == "Grant":
            held.append(len(record.gpus))  # type: ignore[attr-defined]

    Simulation(
        workload=Workload(name="one", apps=(App(name="a", user="u", arrival=0.0, jobs=(job,)),)),
        cluster=in_racks("two", [(2, 4, 4)]),
        book=ProfileBook.of([profile]),
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(container_s=10.0, lease_s=60.0, validate=True),
    ).run(sink)
    assert held == [4]


def test_the_power_of_pollux_is_at_most_1() -> None:
    with pytest.raises(InputError, match=r"p is 2\.0, expected a power from -20 to 1"):
        make_policy("pollux:p=2")


@pytest.mark.parametrize("beta", ["-1", "nan", "inf", "1e300"])
def test_beta_of_elastic_finish_is_from_0_to_100(beta: str) -> None:
    with pytest.raises(InputError, match=r"elastic_finish: beta is \S+, expected a number from 0 to 100\."):
        make_policy(f"elastic_finish:beta={beta}")


def test_rounds_without_backfilling_are_on_the_clock_whenever_the_first_job_came() -> None:
    first, second = (
        elastic("first", (1.0, 1.5, 2.0), 600.0, arrival=53.0),
        elastic("second", (1.0, 1.5, 2.0), 600.0, 70.0),
    )
    grants: list[float] = []

    def sink(time: float, record: object) -> None:
        if type(record).__name__ == "Grant":
            grants.append(time)

    simulate([first, second], "elastic_finish:backfill=false", sink)
    assert grants
    assert all(time % 60 == 0 for time in grants)
