"""Reports, loans and accounts count the same leases, whatever a run does with them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import pytest

from themis.model.cluster import Machine
from themis.model.events import (
    AppSubmitted,
    Grant,
    JobStarted,
    MachineDraining,
    MachineFailed,
    MachineJoined,
    MachineResized,
    MachineReturned,
    Quarantined,
    Revoke,
)
from themis.model.units import Seconds
from themis.policies.api import make_policy
from themis.report.accounts.fold import Accounts, Tally
from themis.report.accounts.held_leases import HeldLease, LeaseFold, MachineGpus
from themis.report.lending import KINDS, Lending
from themis.report.metrics import Fold
from themis.sim.runner import Record, Simulation
from themis.testing.builders import random_simulation, uneven_simulation

RUNS = {
    "odd weights, three types, gangs wider than a machine": lambda seed: uneven_simulation(
        make_policy("themis"), seed, name="themis"
    ),
    "time shares": lambda seed: uneven_simulation(make_policy("max_min_fairness"), seed, name="max_min_fairness"),
    "pairs": lambda seed: random_simulation(make_policy("gandiva_packing"), seed, name="gandiva_packing", beside=0.8),
    "failures, two types": lambda seed: random_simulation(make_policy("tiresias"), seed, name="tiresias", mixed=True),
}


GRANT = Grant(app=0, job=0, attempt=2, gpus=(2, 3), seat=1, until=1e9, locality=0, target=1.0, score=1.0)


def near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)


def log_of(sim: Simulation) -> list[tuple[Seconds, Record]]:
    """With a machine that drains for a while, and another one in quarantine."""
    changes = (
        (300.0, MachineDraining(machine=0, until=500.0)),
        (900.0, MachineDraining(machine=0, until=None)),
        (1000.0, Quarantined(machine=2)),
        (1700.0, MachineReturned(machine=2)),
    )
    log: list[tuple[Seconds, Record]] = []
    replace(sim, changes=changes).run(lambda time, record: log.append((time, record)))
    return log


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RUNS)
def test_the_sum_over_leases_is_that_of_accounts_ledger_deliveries_and_loans(name: str, seed: int) -> None:
    """The leases are paired here from ``Grant`` and ``Revoke`` alone; the log is cut where leases are held."""
    log = log_of(RUNS[name](seed))
    for records in (log, log[: len(log) * 2 // 3]):
        check(records)


def check(log: list[tuple[Seconds, Record]]) -> None:
    now = log[-1][0]
    held: dict[int, tuple[Seconds, Grant]] = {}
    by_app, by_user, by_type = (
        defaultdict[int, float](float),
        defaultdict[str, float](float),
        defaultdict[str, float](float),
    )
    users, types = list[str](), list[str]()
    fold, tally, lending = Fold(), Tally(), Lending()
    accounts = Accounts(tally)

    def over(since: Seconds, end: Seconds, grant: Grant) -> None:
        by_app[grant.app] += len(grant.gpus) * (end - since)
        by_user[users[grant.app]] += len(grant.gpus) * (end - since)
        for g in grant.gpus:
            by_type[types[g]] += end - since

    for time, record in log:
        fold.add(time, record)
        accounts.add(time, record)
        if type(record).__name__ in KINDS:
            lending.add(time, record)
        match record:
            case Grant():
                held[record.job] = time, record
            case Revoke():
                since, grant = held.pop(record.job)
                over(since, time, grant)
            case MachineJoined():
                types += [record.machine.gpu_type] * record.machine.gpus
            case AppSubmitted():
                users.append(record.app.user)
    for since, grant in held.values():
        over(since, now, grant)

    charged, charged_by_type = defaultdict[int, float](float), defaultdict[str, float](float)
    for lease in tally.leases.values():
        charged[lease.app] += lease.amounts(now).leased
        charged_by_type[lease.account.gpu_type] += lease.amounts(now).leased
    assert fold.leases.held.keys() == accounts.leases.held.keys() == held.keys()
    run = fold.result()
    assert any(row.gpu_seconds for row in run.apps)
    for row in run.apps:
        assert near(row.gpu_seconds, by_app[row.app])
        assert near(charged[row.app], by_app[row.app])
        missing = row.missing
        assert near(missing.restarts + missing.faults, row.lost_seconds)
    for job, row_seconds in enumerate(run.jobs.gpu_seconds.tolist()):
        assert near(row_seconds, sum(a.amounts(now).leased for (j, _), a in tally.leases.items() if j == job))
    assert charged_by_type.keys() == by_type.keys()
    assert all(near(charged_by_type[gpu_type], seconds) for gpu_type, seconds in by_type.items())
    course = lending.course(now)
    assert all(near(float(course.leased[:, u].sum()), by_user[name]) for u, name in enumerate(course.users))


def test_a_lease_is_counted_until_now_while_it_is_held_and_to_its_end_after_it() -> None:
    fold = LeaseFold(HeldLease)
    fold.settings({"checkpoint_every_s": 30.0})
    fold.machine(MachineJoined(machine=Machine(name="m", gpus=4, gpu_type="a", rack="r")))
    lease = fold.grant(10.0, GRANT)
    assert (lease.gpu_type, lease.gpu_ids, lease.seat) == ("a", (2, 3), 1)
    assert (lease.held_s(25.0), lease.restart_s(25.0)) == (15.0, 15.0)
    assert fold.start(20.0, JobStarted(job=0, attempt=1)) is None, "the report is of an earlier attempt"
    assert fold.start(30.0, JobStarted(job=0, attempt=2)) is lease
    assert fold.start(40.0, JobStarted(job=0, attempt=2)) is None
    assert fold.revoke(100.0, Revoke(app=0, job=0, attempt=2, cause="failed")) is lease
    assert (lease.held_s(500.0), lease.restart_s(500.0), lease.lost_s, lease.failed) == (90.0, 20.0, 10.0, True)
    assert fold.revoke(100.0, Revoke(app=0, job=0, attempt=2, cause="failed")) is None


def test_gpus_that_come_back_to_a_machine_have_their_ids_and_a_machine_counts_once_out_of_service() -> None:
    machines = MachineGpus()
    join = [MachineJoined(machine=Machine(name=n, gpus=4, gpu_type=t, rack="r")) for n, t in (("m", "a"), ("n", "b"))]
    assert [machines.add(event) for event in join] == [4, 4]
    assert machines.add(MachineResized(machine=0, gpus=2)) == -2
    assert machines.add(MachineResized(machine=0, gpus=5)) == 3
    assert [machines.gpu_type(g) for g in range(9)] == [*"aaaabbbb", "a"]
    assert machines.add(Quarantined(machine=1)) == -4
    assert machines.add(Quarantined(machine=1)) == machines.add(Quarantined(app=1)) == 0
    assert machines.add(MachineResized(machine=1, gpus=6)) == 0
    assert machines.add(MachineReturned(machine=1)) == 6
    assert machines.add(MachineFailed(machine=0)) == -5
    assert machines.add(MachineResized(machine=0, gpus=0)) == 0
    assert machines.add(MachineResized(machine=0, gpus=1)) == 1
