"""Leases under contention: how long, when they end, and that a running one is never cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.errors import InputError
from themis.model.events import Grant, Renew, Revoke
from themis.model.settings import Settings
from themis.model.workload import App, Workload
from themis.policies.api import make_policy
from themis.policies.placement.lease_lengths import lease_length, spread, unserved
from themis.report.idle import IdleFold, IdleTime
from themis.sim.replay import replay_records
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, app, job, machines, random_simulation

Log = list[tuple[float, Record]]


def test_leases_have_one_length_unless_a_shortest_is_set() -> None:
    assert lease_length(600.0, 0.0, waiting=50, served=1) == 600.0
    assert Settings().shortest_lease_s == 0.0


def test_a_rotation_of_all_takes_one_full_lease() -> None:
    assert lease_length(600.0, 60.0, waiting=0, served=4) == 600.0
    assert lease_length(600.0, 60.0, waiting=4, served=4) == 300.0
    assert lease_length(600.0, 60.0, waiting=400, served=4) == 60.0


@given(st.floats(1.0, 1e5), st.floats(0.01, 1.0), st.integers(0, 1000), st.integers(0, 1000))
def test_lengths_stay_within_their_bounds_and_fall_with_those_that_wait(
    lease_s: float, part: float, waiting: int, served: int
) -> None:
    shortest = lease_s * part
    found = lease_length(lease_s, shortest, waiting, served)
    assert shortest <= found <= lease_s
    assert lease_length(lease_s, shortest, waiting + 1, served) <= found


def test_as_many_apps_count_as_served_as_fit() -> None:
    least, held = np.array([1, 4, 2, 0, 1]), np.array([0, 0, 0, 3, 2])
    assert unserved(least, held, free=3) == (1, 4)
    assert unserved(least, held, free=0) == (3, 2)
    assert unserved(least, held, free=7) == (0, 5)


@settings(max_examples=200)
@given(
    st.lists(st.floats(60.0, 600.0), max_size=20),
    st.lists(st.floats(1.0, 900.0), max_size=20),
    st.sampled_from([60.0, 100.0, 180.0, 599.0]),
)
def test_some_lease_ends_in_every_gap_as_far_as_there_are_enough(
    until: list[float], running: list[float], gap: float
) -> None:
    now = 1000.0
    ends = [now + max(u, gap) for u in until]
    found = spread(ends, [now + r for r in running], now, 600.0, gap)
    assert len(found) == len(ends)
    assert all(now + gap - 1e-6 <= new <= old for new, old in zip(found, ends))
    every = sorted([*found, *(now + r for r in running)])
    late = [new for new, old in zip(found, ends) if new == old and new >= now + 600.0 - 1e-6]
    if late:  # a lease was left that could have ended earlier, so no gap is without an end
        slots = int((600.0 - 1e-6) // gap)
        for i in range(1, slots + 1):
            assert any(now + (i - 1) * gap < e <= now + i * gap + 1e-6 for e in every)


def run(apps: list[App], *gpus: int, policy: str = "drf", **more: float) -> tuple[Log, IdleTime]:
    log: Log = []
    fold = IdleFold()

    def sink(time: float, record: Record) -> None:
        log.append((time, record))
        fold.add(time, record)

    Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=machines(*gpus),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(validate=True, **more),  # type: ignore[arg-type]
    ).run(sink)
    return log, fold.result()


def full_house() -> list[App]:
    """Two residents hold all eight GPUs from the start; two users with short jobs come one minute after a renewal."""
    residents = [app(f"r{i}", [job(6000.0, name=f"j{k}") for k in range(4)], user=f"r{i}") for i in range(2)]
    return [*residents, *(app(f"n{i}", [job(120.0)], 660.0, user=f"n{i}") for i in range(2))]


@pytest.mark.parametrize("policy", ["drf", "optimus", "tiresias", "themis"])
def test_newcomers_get_a_first_gpu_within_the_shortest_lease_where_they_waited_for_ten_minutes(policy: str) -> None:
    _, fixed = run(full_house(), 4, 4, policy=policy)
    _, short = run(full_house(), 4, 4, policy=policy, shortest_lease_s=180.0)
    assert min(fixed.first_gpu[2:]) >= 500.0
    assert min(short.first_gpu[2:]) <= 180.0
    assert max(short.first_gpu[2:]) <= 2 * 180.0 + 60.0


@pytest.mark.parametrize(
    ("policy", "setting"),
    [("drf", "shortest_lease_s"), ("themis", "shortest_lease_s"), ("tiresias", "step_s"), ("fair_finish", "step_s")],
)
@pytest.mark.parametrize("seed", [1, 4])
def test_no_running_lease_is_cut_short_and_the_log_replays(policy: str, setting: str, seed: int) -> None:
    simulation = random_simulation(make_policy(policy), seed, name=policy, failures=False)
    simulation = replace(simulation, settings=replace(simulation.settings, **{setting: 60.0}))  # type: ignore[arg-type]
    until: dict[int, float] = {}
    lengths, early = set(), dict[int, float]()
    log: Log = []

    def sink(time: float, record: Record) -> None:
        log.append((time, record))
        match record:
            case Grant():
                if early.get(record.job) == time:
                    del early[record.job]  # its gang grew: it goes on with more GPUs
                until[record.job] = record.until
                lengths.add(round(record.until - time))
            case Renew():
                assert all(record.until >= until[job] for job in record.jobs)
                until.update(dict.fromkeys(record.jobs, record.until))
                lengths.add(round(record.until - time))
            case Revoke(cause="expired" | "moved") if time < until[record.job] - 1e-6:
                early[record.job] = time

    simulation.run(sink)
    assert not early, "leases that were cut short"
    assert len(lengths) > 3, "leases of several lengths"
    assert replay_records(log, book=BOOK).difference is None


def _leases(policy: str, **settings: float) -> tuple[list[Grant | Renew], list[float]]:
    """Four long apps on four GPUs from different times on, then a short one: leases given before it starts, and when it does."""
    apps = (
        *(app(f"long{i}", [job(20000.0)], arrival=50.0 * i) for i in range(4)),
        app("short", [job(30.0)], arrival=701.0),
    )
    log, _ = run(list(apps), 2, 2, policy=policy, **settings)
    starts = [time for time, record in log if isinstance(record, Grant) and record.job == 4]
    return [r for time, r in log if isinstance(r, (Grant, Renew)) and time < starts[0]], starts


def test_leases_of_fair_finish_end_together_at_each_tick_and_a_newcomer_waits_for_the_next() -> None:
    leases, starts = _leases("fair_finish")
    assert {lease.until % 60.0 for lease in leases} == {0.0}
    assert starts == [720.0]


@pytest.mark.parametrize("policy", ["srsf", "gandiva", "drf", "tiresias", "themis"])
def test_leases_end_together_at_the_steps_of_the_settings_under_every_policy_that_grants_gpus(policy: str) -> None:
    apart, _ = _leases(policy)
    together, _ = _leases(policy, step_s=180.0)
    assert {lease.until % 180.0 for lease in together} == {0.0}
    assert {lease.until % 180.0 for lease in apart} != {0.0}


def test_a_shortest_lease_beyond_the_lease_is_refused_in_a_sentence() -> None:
    for wrong in (700.0, 30.0):
        with pytest.raises(
            InputError, match=f"shortest_lease_s is {wrong}, expected from tick_s 60.0 to lease_s 600.0"
        ):
            Settings(shortest_lease_s=wrong)
