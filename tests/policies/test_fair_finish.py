"""Fair finish: dues from the reference, urgent apps first, all others by work left."""

from __future__ import annotations

import numpy as np
import pytest

from themis.core import reference
from themis.core.checkpoint import load, save
from themis.core.scheduler import Scheduler
from themis.core.take_snapshot import take
from themis.fairness import fluid
from themis.model.events import AppCancelled, AppSubmitted, MachineJoined
from themis.model.settings import Settings
from themis.model.workload import App, User, Workload
from themis.policies.api import make_policy
from themis.policies.fair_finish import FairFinish, long_path, own_share, with_leeway
from themis.sim.runner import Simulation
from themis.testing.builders import BOOK, app, job, machines

GPUS = 4
NO_COSTS = Settings(lease_s=60.0, tick_s=1.0, step_s=15.0, container_s=0.0)


def _run(
    apps: list[App], policy: str, settings: Settings = NO_COSTS, weights: dict[str, float] | None = None
) -> Scheduler:
    return Simulation(
        workload=Workload(
            name="made", apps=tuple(apps), users=tuple(User(name=n, weight=w) for n, w in (weights or {}).items())
        ),
        cluster=machines(GPUS),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=settings,
    ).run()


def test_the_reference_divides_by_weight_and_keeps_who_finished_elsewhere() -> None:
    core = _run([app("a", [job(400.0, (1, 4))]), app("b", [job(400.0, (1, 4))])], "fair_finish")
    s = core.state
    # Each has two GPUs for 200 s in the reference; on the cluster one of them is done after 100 s.
    assert reference.finishes(s, np.arange(2)) == pytest.approx([200.0, 200.0])
    assert sorted(s.apps.ended[:2].tolist()) == pytest.approx([100.0, 200.0], abs=61)


def _stream(seconds: float, every: float, n: int) -> list[App]:
    return [app(f"s{i}", [job(seconds * GPUS, (1, GPUS))], arrival=every * i, user="stream") for i in range(n)]


def test_a_stream_of_short_apps_does_not_delay_one_of_more_weight() -> None:
    """Shortest first lets the long app wait for the stream; its share by weight is most of the cluster."""
    apps = [app("long", [job(4000.0 * GPUS, (1, GPUS))], user="ada"), *_stream(95.0, 100.0, 200)]
    end = {}
    for policy in ("srsf", "fair_finish"):
        core = _run(apps, policy, weights={"ada": 300.0, "stream": 1.0})
        end[policy] = float(core.state.apps.ended[0])
    due = float(reference.finishes(core.state, np.arange(1))[0])
    assert end["srsf"] > 2 * due
    assert end["fair_finish"] < 1.05 * due


@pytest.mark.parametrize("seed", range(6))
def test_without_costs_elastic_apps_keep_their_dues(seed: int) -> None:
    """Random arrivals, work over two orders of magnitude, weights 0.37 to 7: late by leases at most."""
    rng = np.random.default_rng(seed)
    names = [f"u{i}" for i in range(14)]
    apps = [
        app(name, [job(float(work), (1, GPUS))], arrival=float(at), user=name)
        for name, work, at in zip(names, 10 ** rng.uniform(2.5, 4.5, 14), np.sort(rng.uniform(0, 20000, 14)))
    ]
    weights = dict(zip(names, rng.choice([0.37, 1 / 3, 1.0, 7.0], 14).tolist()))
    core = _run(apps, "fair_finish", weights=weights)
    s = core.state
    due = reference.finishes(s, np.arange(14))
    assert (s.apps.ended[:14] <= due + 3 * NO_COSTS.lease_s + 0.02 * (due - s.apps.arrival[:14])).all()


def test_an_app_that_can_wait_lets_shorter_ones_go_first() -> None:
    core = _run([app("long", [job(4000.0, (1, 4))]), app("short", [job(400.0, (1, 4))], arrival=60.0)], "fair_finish")
    ended = core.state.apps.ended
    assert ended[1] <= 60.0 + 100.0 + 61.0
    assert ended[0] <= 4400.0 / GPUS + 61.0


def test_a_narrow_app_without_time_of_its_own_goes_before_wide_ones_with_more_work() -> None:
    """On 8 GPUs the narrow app has its one GPU in the reference from the start; by due alone it waits for both wide ones.

    It uses an eighth of them: it may be late by seven eighths of the leeway, and by two leases.
    """
    narrow = app("narrow", [job(4000.0, 1)])
    core = Simulation(
        workload=Workload(name="made", apps=(narrow, *(app(name, [job(5000.0, (1, 8))]) for name in "ab"))),
        cluster=machines(4, 4),
        book=BOOK,
        policy_name="fair_finish",
        policy=FairFinish(),
        settings=NO_COSTS,
    ).run()
    due = reference.finishes(core.state, np.arange(3))
    assert due == pytest.approx([4000.0, 10000.0 / 7.0, 10000.0 / 7.0])
    leeway = fluid.LEEWAY * np.array([7.0 / 8.0, 0.0, 0.0]) * due
    assert (core.state.apps.ended[:3] <= due + leeway + 2.0 * NO_COSTS.lease_s).all()


def test_an_app_that_can_use_fewer_gpus_has_more_leeway_and_one_that_can_use_all_has_none() -> None:
    core = Scheduler(BOOK, NO_COSTS, FairFinish().pace, FairFinish.needs)
    for machine in machines(4, 4).machines:
        core.step(MachineJoined(machine=machine), 0.0)
    gangs = (1, 3, (1, 8))
    for name, gpus in zip("abc", gangs):
        core.step(AppSubmitted(app=app(name, [job(4000.0, gpus)]), weight=1.0), 0.0)
    seen = take(core.state, needs=FairFinish.needs)
    finish = reference.finishes(core.state, np.arange(3))
    assert with_leeway(seen) == pytest.approx(finish * (1.0 + 0.05 * np.array([7.0 / 8.0, 5.0 / 8.0, 0.0])))
    never = seen.having(reference=np.full(3, np.inf))
    assert (with_leeway(never) == np.inf).all(), "no GPU that it runs on is in service"


def test_a_sweep_that_would_use_many_gpus_now_is_not_served_first_as_narrow() -> None:
    """Of a sweep's work most is one long job: it uses 2.2 GPUs in the mean, but 13 of the 16 now, and its share is 7.5."""
    core = Scheduler(BOOK, NO_COSTS, FairFinish().pace, FairFinish.needs)
    for machine in machines(16).machines:
        core.step(MachineJoined(machine=machine), 0.0)
    jobs = [job(10000.0, 1, name="long"), *(job(1000.0, 1, name=f"short-{n}") for n in range(12))]
    for name, of in {"a": jobs, "b": jobs, "job": jobs[:1]}.items():
        core.step(AppSubmitted(app=app(name, of), weight=1.0), 0.0)
    seen = take(core.state, needs=FairFinish.needs)
    late, alone = np.zeros(3), np.full(3, 10000.0)
    assert own_share(seen, np.array([2.2, 2.2, 1.0]), late, alone).tolist() == [False, False, True]


def test_a_long_job_goes_before_others_and_a_bag_with_as_long_a_path_does_not() -> None:
    """All have no slack to the horizon; of the bag's three jobs one is critical."""
    core = Scheduler(BOOK, NO_COSTS, FairFinish().pace, FairFinish.needs)
    for machine in machines(16).machines:
        core.step(MachineJoined(machine=machine), 0.0)
    core.step(AppSubmitted(app=app("bag", [job(4000.0, name=n) for n in "xyz"]), weight=1.0), 0.0)
    core.step(AppSubmitted(app=app("job", [job(4000.0, 1)]), weight=1.0), 0.0)
    assert long_path(take(core.state), np.array([3.0, 1.0]), np.zeros(2)).tolist() == [False, True]


def test_a_core_that_is_saved_and_loaded_has_the_same_reference() -> None:
    core = _run([app("a", [job(400.0)]), app("b", [job(4000.0, (1, 4))], arrival=33.3)], "fair_finish")
    fresh = Scheduler(BOOK, NO_COSTS, FairFinish().pace, FairFinish.needs)
    load(save(core), fresh)
    assert fresh.state.reference_at == core.state.reference_at
    assert (reference.finishes(fresh.state, np.arange(2)) == reference.finishes(core.state, np.arange(2))).all()


def test_a_cancelled_app_leaves_the_reference() -> None:
    core = Scheduler(BOOK, NO_COSTS, FairFinish().pace, FairFinish.needs)
    for machine in machines(GPUS).machines:
        core.step(MachineJoined(machine=machine), 0.0)
    for name in "ab":
        core.step(AppSubmitted(app=app(name, [job(400.0, (1, 4))]), weight=1.0), 0.0)
    assert reference.finishes(core.state, np.arange(2)).tolist() == [200.0, 200.0]
    core.step(AppCancelled(app=0), 100.0)
    assert reference.finishes(core.state, np.array([1])).tolist() == [150.0]
