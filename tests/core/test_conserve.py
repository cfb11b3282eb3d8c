"""Work conservation after the policy's answer: renewals where nobody else gets the GPUs, then waiting jobs that fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from themis.errors import InvariantBroken
from themis.model.answers import GpuGrant, RoundPlan, Solved
from themis.model.cluster import Cluster
from themis.model.events import Allocated, Grant, Renew, Revoke
from themis.model.log import decode, encode
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.workload import App, Workload
from themis.policies.api import Cadence, Granularity, Policy, Workbench, make_policy
from themis.policies.placement.grants import Allocator
from themis.report.idle import IdleFold, IdleTime
from themis.sim.replay import replay_records
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, app, job, machines, random_simulation

Log = list[tuple[float, Record]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """Gives the first app that waits its smallest gang in the first decision, and from then on nobody anything."""

    spare: bool = True
    declined: tuple[int, ...] = ()
    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        return Cadence(spare=self.spare)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        hand = Allocator(snapshot)
        if snapshot.round == 0:
            hand.put(0, int(snapshot.job_gpus_min[0]), snapshot.now + snapshot.lease_s)
        return Solved(answer=replace(hand.grant(), declined=np.array(self.declined, dtype=np.int64)))


def run(policy: Policy, apps: list[App], cluster: Cluster, **settings: object) -> tuple[Log, IdleTime]:
    log: Log = []
    fold = IdleFold()

    def sink(time: float, record: Record) -> None:
        log.append((time, record))
        fold.add(time, record)

    Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=cluster,
        book=BOOK,
        policy_name="once",
        policy=policy,
        settings=Settings(validate=True, **settings),  # type: ignore[arg-type]
    ).run(sink)
    return log, fold.result()


def of_kind(log: Log, kind: type[Record], job: int) -> list[float]:
    return [t for t, r in log if isinstance(r, kind) and job in (r.jobs if isinstance(r, Renew) else [r.job])]  # type: ignore[union-attr]


def test_a_lease_whose_gpus_nobody_else_gets_is_renewed_and_the_gang_starts_once() -> None:
    log, idle = run(Once(), [app("a", [job(3000.0, 2)])], machines(4))
    assert of_kind(log, Grant, 0) == [0.0]
    assert of_kind(log, Renew, 0) == [600.0, 1200.0, 1800.0, 2400.0, 3000.0][: len(of_kind(log, Renew, 0))]
    assert [r.cause for _, r in log if isinstance(r, Revoke)] == ["finished"]
    assert idle.fitting == 0


def test_a_policy_that_idles_on_purpose_has_its_leases_end() -> None:
    with pytest.raises(InvariantBroken, match="nothing will happen any more"):
        run(Once(spare=False), [app("a", [job(3000.0, 2)])], machines(4))
    with pytest.raises(InvariantBroken, match="nothing will happen any more"):
        run(Once(), [app("a", [job(3000.0, 2)])], machines(4), renew_idle=False)


def test_what_nobody_was_given_goes_to_waiting_jobs_that_fit_least_served_first() -> None:
    apps = [app("big", [job(900.0, 3)]), app("b", [job(900.0)]), app("c", [job(900.0)]), app("d", [job(900.0, 2)])]
    log, idle = run(Once(), apps, machines(4))
    at_0 = sorted(r.job for t, r in log if t == 0.0 and isinstance(r, Grant))
    assert at_0 == [0, 1], "one GPU is left beside the gang of three; the first job of one GPU gets it"
    assert idle.fitting == 0
    assert idle.stopped_idle == 0


def test_apps_whose_agents_declined_get_nothing_new_but_keep_what_nobody_else_gets() -> None:
    apps = [app("a", [job(2000.0)]), app("b", [job(2000.0)])]
    log, _ = run(Once(declined=(0,)), apps, machines(1, 1))
    assert of_kind(log, Grant, 0) == [0.0]
    assert of_kind(log, Renew, 0)
    held = [r for t, r in log if t == 0.0 and isinstance(r, Grant)]
    assert [r.job for r in held] == [0, 1], "the other app takes what is left"
    apps = [app("a", [job(500.0), job(500.0)])]
    log, _ = run(Once(declined=(0,)), [*apps, app("b", [job(4000.0)])], machines(1, 1, 1))
    second = of_kind(log, Grant, 1)
    assert not second or second[0] > 0.0, "the app that declined was given a second GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan of rounds that leaves the second job out."""

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.JOB

    @property
    def pace(self) -> Cadence:
        return Cadence(round_s=300.0)

    def __call__(self, s: Snapshot, bench: Workbench) -> Solved:
        run = np.zeros((s.jobs, 2), dtype=bool)
        run[0] = s.job_held[0] == 0
        return Solved(answer=RoundPlan(job=s.job_id, gpus=s.job_gpus_min, run=run, round_s=300.0))


def test_a_plan_that_leaves_a_job_out_gives_it_the_gpus_that_idle_to_the_end_of_the_round() -> None:
    log, idle = run(Planned(), [app("a", [job(1500.0)]), app("b", [job(1500.0)])], machines(2))
    grants = [(t, r.job, r.until) for t, r in log if isinstance(r, Grant)]
    assert grants[:2] == [(0.0, 0, 300.0), (0.0, 1, 300.0)]
    assert len(grants) == 2, "each round's end renews both"
    assert idle.fitting == 0


def test_leases_on_what_is_left_over_end_with_the_first_that_ends_anyway() -> None:
    """So that the policy soon decides on these GPUs again, and no other event is needed for it."""
    log, _ = run(Once(), [app("a", [job(900.0)]), app("b", [job(900.0)], 70.0)], machines(2), lease_s=600.0)
    grant = next(r for _, r in log if isinstance(r, Grant) and r.job == 1)
    assert grant.until == 600.0


def test_a_large_gang_still_gets_its_turn_while_small_jobs_fill_what_is_left_over() -> None:
    small = [app(f"s{i}", [job(4000.0)], 10.0 * i) for i in range(6)]
    simulation = Simulation(
        workload=Workload(name="w", apps=(*small, app("large", [job(400.0, 4)], 100.0))),
        cluster=machines(4),
        book=BOOK,
        policy_name="tiresias",
        policy=make_policy("tiresias"),
        settings=Settings(validate=True),
    )
    log: Log = []
    simulation.run(lambda time, record: log.append((time, record)))
    assert of_kind(log, Grant, 6)[0] <= 100.0 + 2 * 600.0


@pytest.mark.parametrize("policy", ["themis", "round_robin", "isolated", "srsf"])
def test_logs_replay_with_what_is_left_over(policy: str) -> None:
    simulation = random_simulation(make_policy(policy), 3, name=policy)
    log: Log = []
    simulation.run(lambda time, record: log.append((time, record)))
    assert replay_records(log, book=BOOK).difference is None


def test_an_answer_keeps_what_was_declined_in_the_log() -> None:
    empty = np.zeros(0, dtype=np.int64)
    grant = GpuGrant(
        app=empty, gang=empty, machine=empty, gpus=empty, until=np.zeros(0), extend=empty, declined=np.array([3, 5])
    )
    _, back = decode(encode(1.0, Allocated(version=1, solved=Solved(answer=grant))))
    assert isinstance(back, Allocated)
    assert isinstance(back.solved.answer, GpuGrant)
    assert back.solved.answer.declined.tolist() == [3, 5]
    plain = replace(grant, declined=empty)
    assert b"declined" not in encode(1.0, Allocated(version=1, solved=Solved(answer=plain)))
