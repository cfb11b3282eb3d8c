"""Answers that come late, as those of the live service do: what still fits is placed, the rest is solved again."""

from __future__ import annotations

import numpy as np
import pytest

from themis.core.driver import Decision
from themis.core.scheduler import Scheduler
from themis.model.events import (
    Allocated,
    AppCancelled,
    AppSubmitted,
    Event,
    Grant,
    MachineJoined,
    Renew,
    Solve,
    Wake,
)
from themis.model.settings import Settings
from themis.policies.api import Workbench, make_policy
from themis.sim.replay import replay_records
from themis.sim.runner import Record, Simulation, _Run, outages
from themis.testing.builders import BOOK, NO_OVERHEAD, app, job, machines, random_workload


class Late(_Run):
    """The simulator, but every answer takes its time while other things happen."""

    def __init__(self, simulation: Simulation, log: list[tuple[float, Record]], seed: int, longest: float) -> None:
        super().__init__(
            simulation, lambda time, record: log.append((time, record)), lambda *_: None, Workbench(), lambda: False
        )
        self.rng, self.longest, self.stale = np.random.default_rng(seed), longest, 0

    def solve(self, decision: Decision, now: float) -> None:
        solved = self.sim.policy(decision.snapshot, self.bench)
        delay = float(self.rng.choice([0.0, self.rng.uniform(0, self.longest)]))
        self.kernel.schedule(now + delay, Allocated(version=decision.version, solved=solved))

    def feed(self, event: Event, now: float) -> None:
        if isinstance(event, Allocated) and self.awaits(event.version):
            self.stale += self.core.state.version != event.version
            self.solved(event.version, event.solved, now)
        else:
            super().feed(event, now)


def simulation(policy: str, seed: int, settings: Settings = NO_OVERHEAD) -> Simulation:
    cluster = machines(4, 4, 2)
    return Simulation(
        workload=random_workload(seed, apps=6),
        cluster=cluster,
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=settings,
        outages=outages(cluster, mtbf_s=4000.0, lasts_s=300.0, until=8000.0, seed=seed),
    )


@pytest.mark.parametrize("longest", [5.0, 90.0, 2000.0])
@pytest.mark.parametrize("policy", ["themis", "drf", "max_min_fairness", "tiresias", "gandiva", "shockwave:round_s=60"])
def test_no_job_is_lost_and_the_log_replays_however_late_answers_are(policy: str, longest: float) -> None:
    stale = 0
    for seed in range(2):
        log: list[tuple[float, Record]] = []
        run = Late(simulation(policy, seed), log, seed, longest)
        run.run()  # checks every invariant after every step, and that all apps end
        stale += run.stale
        done = replay_records([(t, r) for t, r in log if type(r).__name__ != "Wake"], book=BOOK)
        assert done.difference is None
    assert stale > 0 or longest < 60


def test_leases_that_run_out_while_the_policy_thinks_are_not_lost_for_it() -> None:
    """They were not on offer then; the next decision has them, at once, and nobody restarts."""
    log: list[tuple[float, Record]] = []
    run = Late(simulation("themis", 1, Settings(container_s=0.0, validate=True, lease_s=60.0)), log, 3, 150.0)
    run.run()
    assert any(isinstance(r, Renew) for _, r in log)
    for t, record in log:
        if isinstance(record, Grant | Renew):
            assert record.until > t


def test_an_answer_at_once_gives_the_log_of_the_simulator() -> None:
    log: list[tuple[float, Record]] = []
    expected: list[tuple[float, Record]] = []
    Late(simulation("themis", 2), log, 0, 0.0).run()
    simulation("themis", 2).run(lambda time, record: expected.append((time, record)))
    assert [r for _, r in log if isinstance(r, Grant)] == [r for _, r in expected if isinstance(r, Grant)]


def test_an_app_that_ended_before_the_answer_came_gets_nothing() -> None:
    core = Scheduler(BOOK, NO_OVERHEAD, make_policy("drf").pace)
    core.step(MachineJoined(machine=machines(2).machines[0]), 0.0)
    for name in "ab":
        core.step(AppSubmitted(app=app(name, [job(100.0)])), 0.0)
    (solve,) = (c for c in core.step(Wake(), 0.0) if isinstance(c, Solve))
    core.step(AppCancelled(app=1), 1.0)
    solved = make_policy("drf")(solve.snapshot, Workbench())
    found = core.step(Allocated(version=solve.version, solved=solved), 1.0)
    assert [c.app for c in found if isinstance(c, Grant)] == [0]


def test_an_app_that_comes_while_a_plan_is_made_is_in_the_next_plan_at_once() -> None:
    policy = make_policy("shockwave", {"round_s": 20.0})
    core = Scheduler(BOOK, NO_OVERHEAD, policy.pace, policy.needs)
    core.step(MachineJoined(machine=machines(1).machines[0]), 0.0)
    core.step(AppSubmitted(app=app("a", [job(1000.0)])), 0.0)
    (solve,) = (c for c in core.step(Wake(), 0.0) if isinstance(c, Solve))
    core.step(AppSubmitted(app=app("b", [job(1000.0)])), 0.5)
    solved = policy(solve.snapshot, Workbench())
    found = core.step(Allocated(version=solve.version, solved=solved), 1.0)
    assert [c.app for c in found if isinstance(c, Grant)] == [0]
    (solve,) = (c for at in (1.0, 20.0) for c in core.step(Wake(), at) if isinstance(c, Solve))
    assert sorted(solve.snapshot.job_id.tolist()) == [0, 1]
