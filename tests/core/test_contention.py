"""Leases under contention: when they end, and that a running one is never cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from themis.model.events import Grant, Renew, Revoke
from themis.model.settings import Settings
from themis.model.workload import App, Workload
from themis.policies.api import make_policy
from themis.report.idle import IdleFold, IdleTime
from themis.sim.replay import replay_records
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, app, job, machines, random_simulation

Log = list[tuple[float, Record]]


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
    """Two residents hold all eight GPUs from the start; two users with short jobs come later."""
    residents = [app(f"r{i}", [job(6000.0, name=f"j{k}") for k in range(4)], user=f"r{i}") for i in range(2)]
    return [*residents, *(app(f"n{i}", [job(120.0)], 670.0, user=f"n{i}") for i in range(2))]


@pytest.mark.parametrize(("policy", "waits"), [("srsf", 50.0), ("drf", 530.0), ("tiresias", 530.0), ("themis", 530.0)])
def test_a_newcomer_waits_for_the_next_tick_and_where_leases_are_turns_for_the_end_of_the_lease(
    policy: str, waits: float
) -> None:
    _, found = run(full_house(), 4, 4, policy=policy)
    assert min(found.first_gpu[2:]) == waits


@pytest.mark.parametrize("policy", ["drf", "themis", "tiresias", "fair_finish"])
@pytest.mark.parametrize("seed", [1, 4])
def test_no_running_lease_is_cut_short_and_the_log_replays(policy: str, seed: int) -> None:
    simulation = random_simulation(make_policy(policy), seed, name=policy, failures=False)
    simulation = replace(simulation, settings=replace(simulation.settings, step_s=60.0))
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


def _leases(policy: str, **settings: float) -> tuple[list[tuple[float, Grant | Renew]], list[float]]:
    """Four long apps on four GPUs from different times on, then a short one: leases given before it starts, and when it does."""
    apps = (
        *(app(f"long{i}", [job(20000.0)], arrival=50.0 * i) for i in range(4)),
        app("short", [job(30.0)], arrival=701.0),
    )
    log, _ = run(list(apps), 2, 2, policy=policy, **settings)
    starts = [time for time, record in log if isinstance(record, Grant) and record.job == 4]
    return [(time, r) for time, r in log if isinstance(r, (Grant, Renew)) and time < starts[0]], starts


@pytest.mark.parametrize("policy", ["fair_finish", "srsf", "srtf", "fifo"])
def test_leases_end_together_at_each_tick_and_a_newcomer_may_have_gpus_then(policy: str) -> None:
    leases, starts = _leases(policy)
    assert all(lease.until - now <= 60.0 and lease.until % 60.0 == 0.0 for now, lease in leases)
    assert starts == [720.0] or policy == "fifo", "who came first keeps its GPUs"


@pytest.mark.parametrize(
    "policy",
    [
        "drf",
        "gandiva",
        "optimus",
        "slaq",
        "tiresias",
        "tiresias_2q",
        "tiresias_gittins",
        "random",
        "greedy_finish_time",
    ],
)
def test_leases_that_are_turns_end_together_at_multiples_of_their_length(policy: str) -> None:
    leases, _ = _leases(policy)
    assert {lease.until % 600.0 for _, lease in leases} == {0.0}


def test_leases_of_the_auction_are_full_ones_of_which_winners_pay_a_part() -> None:
    leases, _ = _leases("themis", step_s=180.0)
    assert all(lease.until - now <= 660.0 for now, lease in leases), "up to the next tick"
    assert {lease.until % 180.0 for _, lease in leases} != {0.0}


@pytest.mark.parametrize("policy", ["srsf", "gandiva", "drf", "tiresias"])
def test_the_settings_say_when_leases_end_under_the_others(policy: str) -> None:
    leases, _ = _leases(policy, step_s=180.0)
    assert {lease.until % 180.0 for _, lease in leases} == {0.0}
