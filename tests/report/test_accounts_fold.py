"""The accounts of a log: the same GPU time as a report has, by lease and by day, whatever happened."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from themis.errors import InputError
from themis.model import events as e
from themis.model.cluster import Machine
from themis.model.workload import App, Job, Regime
from themis.policies.api import make_policy
from themis.report.accounts.charges import Amounts, Charge, Payer
from themis.report.accounts.days import by_day, local_zone, zone_of
from themis.report.accounts.fold import Accounts, Tally
from themis.report.metrics import Fold
from themis.sim.runner import Outage, Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

HEADER = e.Header(
    schema=e.SCHEMA,
    version="",
    simulated=False,
    policy="themis",
    params={},
    seed=0,
    workload="w",
    source="",
    cluster="",
    settings={"checkpoint_every_s": 100.0},
)


def app(name: str, arrival: float, jobs: int, user: str) -> e.AppSubmitted:
    given = tuple(Job(name=f"j{i}", model="generic", regimes=(Regime(steps=1.0),)) for i in range(jobs))
    return e.AppSubmitted(app=App(name=name, user=user, arrival=arrival, jobs=given))


def grant(app: int, job: int, attempt: int, gpus: tuple[int, ...]) -> e.Grant:
    return e.Grant(app=app, job=job, attempt=attempt, gpus=gpus, seat=0, until=1e9, locality=0, target=1.0, score=1.0)


def revoke(app: int, job: int, attempt: int, cause: str) -> e.Revoke:
    return e.Revoke(app=app, job=job, attempt=attempt, cause=cause)


def near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


def folded(log: Iterable[tuple[float, object]]) -> Tally:
    tally = Tally()
    accounts = Accounts(tally)
    for time, record in log:
        accounts.add(time, record)
    return tally


def started(job: int, attempt: int) -> e.JobStarted:
    return e.JobStarted(job=job, attempt=attempt)


BEGIN = (
    (0.0, HEADER),
    (0.0, e.MachineJoined(machine=Machine(name="m0", gpus=2, gpu_type="A"))),
    (0.0, e.MachineJoined(machine=Machine(name="m1", gpus=2, gpu_type="B"))),
    (0.0, app("one", 0.0, 1, "ann")),
    (0.0, app("two", 0.0, 1, "bob")),
)


def test_a_lease_is_charged_as_useful_restart_lost_and_idle() -> None:
    tally = folded(
        (
            *BEGIN,
            (10.0, grant(0, 0, 1, (0, 1))),
            (20.0, started(0, 1)),
            (120.0, e.GpusIdle(job=0, attempt=1, gpu_seconds=40.0, by="nvml")),
            (170.0, revoke(0, 0, 1, "failed")),
        )
    )
    assert tally.total() == Amounts(leased=320.0, restart=20.0, lost=100.0, idle=40.0)
    assert tally.total().useful == 160.0
    (lease,) = tally.leases.values()
    assert (lease.cause, lease.idle_by, lease.account) == ("failed", "nvml", Payer("ann", "", "A", ""))
    assert lease.amounts(0.0) == tally.total()


def test_a_change_of_price_counts_from_then_on() -> None:
    tally = folded(
        (
            *BEGIN,
            (0.0, e.AccountingSet(prices=(("A", 36.0), ("*", 3.6)), currency="EUR")),
            (0.0, grant(0, 0, 1, (0, 1))),
            (0.0, grant(1, 1, 1, (2,))),
            (100.0, e.AccountingSet(prices=(("A", 72.0),), currency="EUR", groups=(("ann", "lab"),))),
            (200.0, revoke(0, 0, 1, "expired")),
            (200.0, revoke(1, 1, 1, "expired")),
        )
    )
    assert tally.leases[0, 1].cost == pytest.approx(100 * 2 * 0.01 + 100 * 2 * 0.02)
    assert tally.leases[1, 1].cost == pytest.approx(100 * 0.001)
    by_account = {charge.account: charge.amounts.cost for charge in tally.charges}
    assert by_account[Payer("ann", "", "A", "EUR")] == pytest.approx(2.0)
    assert by_account[Payer("ann", "lab", "A", "EUR")] == pytest.approx(4.0)
    assert near(tally.total().cost, sum(lease.cost for lease in tally.leases.values()))


def test_gpus_of_machines_that_grow_come_back_and_join_are_charged_by_their_type() -> None:
    tally = folded(
        (
            *BEGIN,
            (0.0, e.AccountingSet(prices=(("A", 36.0), ("C", 72.0), ("*", 3.6)), currency="EUR")),
            (0.0, e.MachineResized(machine=0, gpus=0)),
            (0.0, e.MachineResized(machine=0, gpus=3)),
            (0.0, e.MachineJoined(machine=Machine(name="m2", gpus=1, gpu_type="C"))),
            (0.0, grant(0, 0, 1, (4,))),
            (0.0, grant(1, 1, 1, (5,))),
            (100.0, revoke(0, 0, 1, "expired")),
            (100.0, revoke(1, 1, 1, "expired")),
        )
    )
    assert [tally.leases[job, 1].account.gpu_type for job in (0, 1)] == ["A", "C"]
    assert [tally.leases[job, 1].cost for job in (0, 1)] == pytest.approx([1.0, 2.0])


def test_idle_time_is_never_more_than_the_training() -> None:
    tally = folded(
        (
            *BEGIN,
            (0.0, grant(0, 0, 1, (0, 1))),
            (5.0, e.GpusIdle(job=0, attempt=1, gpu_seconds=9.0, by="nvml")),
            (10.0, started(0, 1)),
            (20.0, e.GpusIdle(job=0, attempt=1, gpu_seconds=900.0, by="nvml")),
            (30.0, e.GpusIdle(job=0, attempt=2, gpu_seconds=900.0, by="nvml")),
            (30.0, revoke(0, 0, 1, "failed")),
        )
    )
    assert tally.total() == Amounts(leased=60.0, restart=20.0, lost=20.0, idle=20.0)


@pytest.mark.parametrize("policy", ["themis", "tiresias", "gandiva_packing"])
def test_accounts_have_the_gpu_time_of_the_report(policy: str) -> None:
    """By app and in all, with failures, sharing and restarts as a simulation has them."""
    tally, fold = Tally(), Fold()
    accounts = Accounts(tally)

    def sink(time: float, record: object) -> None:
        accounts.add(time, record)
        fold.add(time, record)  # type: ignore[arg-type]

    Simulation(
        workload=load_workload("demo"),
        cluster=load_cluster("4x4"),
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        outages=(Outage(machine=0, time=400.0, lasts=900.0), Outage(machine=2, time=6000.0, lasts=1200.0)),
    ).run(sink)
    found = fold.result()
    total = tally.total()
    assert total.leased > 0
    assert near(total.leased, sum(row.gpu_seconds for row in found.apps))
    assert near(total.restart + total.lost, sum(row.lost_seconds for row in found.apps))
    for row in found.apps:
        own = [lease.amounts(0.0) for lease in tally.leases.values() if lease.app == row.app]
        assert near(sum(a.leased for a in own), row.gpu_seconds)
        assert near(sum(a.restart + a.lost for a in own), row.lost_seconds)


def test_an_attempt_that_saved_before_its_machine_was_drained_lost_nothing_and_one_that_crashed_did() -> None:
    """A drain takes one gang off its machine; in the same instant the other ends by itself."""
    for drained, lost in ((True, 20.0), (False, 60.0)):
        log = (
            *BEGIN,
            (0.0, grant(0, 0, 1, (0, 1))),
            (0.0, grant(1, 1, 1, (2,))),
            (0.0, started(0, 1)),
            (0.0, started(1, 1)),
            (20.0, e.MachineFailed(machine=0, drained=drained)),
            (20.0, revoke(0, 0, 1, "failed")),
            (20.0, e.JobStopped(job=1, attempt=1, steps=0.0)),
            (20.0, revoke(1, 1, 1, "failed")),
        )
        fold = Fold()
        for time, record in log:
            fold.add(time, record)
        assert folded(log).total().lost == lost
        assert sum(entry.lost for entry in fold.ledger.jobs) == lost
        assert fold.ledger.failures == (1 if drained else 2)


ZONES = ("UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York", "Pacific/Apia")


@given(
    st.floats(0, 2e9),
    st.floats(0, 40 * 86400.0),
    st.sampled_from(ZONES),
    st.floats(0, 1e6),
)
def test_the_parts_of_days_add_up_to_the_charge(since: float, seconds: float, zone: str, amount: float) -> None:
    charge = Charge(since, since + seconds, Payer("u", "", "A", ""), Amounts(amount, amount / 3, 0.0, 1.0, 2.0))
    parts = list(by_day(charge, 0.0, zone_of(zone)))
    days = [day for day, _ in parts]
    assert days == sorted(set(days))
    total = Amounts()
    for _, part in parts:
        total = total.plus(part)
    assert all(near(a, b) for a, b in zip(total, charge.amounts, strict=True))


def test_a_day_of_a_time_zone_is_as_long_as_its_clock_says() -> None:
    """Berlin had 23 hours on 29 March 2026 and 25 on 25 October."""
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25)):
        noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo("Europe/Berlin"))
        since = noon.timestamp() - 86400 * 2
        charge = Charge(since, since + 4 * 86400, Payer("u", "", "A", ""), Amounts(leased=4 * 86400.0))
        parts = dict(by_day(charge, 0.0, ZoneInfo("Europe/Berlin")))
        assert near(parts[day].leased, hours * 3600)


def test_a_zone_that_no_machine_knows_is_an_error_in_one_sentence() -> None:
    with pytest.raises(InputError, match=r"time_zone is 'Mars/Olympus', expected a name of the IANA database"):
        zone_of("Mars/Olympus")
    assert zone_of("UTC") is UTC
    assert zone_of(local_zone())
