"""Gangs of a live service that did their work by themselves, just before they heard that they should stop."""

from __future__ import annotations

import pytest

from themis.core.scheduler import Scheduler
from themis.core.tables import Status
from themis.model.events import (
    Allocated,
    AppCancelled,
    AppFinished,
    AppHeld,
    AppResumed,
    AppSubmitted,
    Command,
    Event,
    Forced,
    Grant,
    JobEnded,
    JobReached,
    JobStarted,
    JobStopped,
    MachineFailed,
    MachineJoined,
    Revoke,
    Solve,
    Wake,
    WakeAt,
)
from themis.model.workload import Halving, Rung
from themis.policies.api import Workbench, make_policy
from themis.testing.builders import BOOK, NO_OVERHEAD, app, job, machines


class Core:
    """A scheduler under FIFO whose decisions are made at once; what it says beside them is kept."""

    def __init__(self, *gpus: int) -> None:
        self.policy = make_policy("fifo")
        self.core = Scheduler(BOOK, NO_OVERHEAD, self.policy.pace)
        self.said: list[Command] = []
        for machine in machines(*gpus).machines:
            self.feed(MachineJoined(machine=machine), 0.0)

    def feed(self, event: Event, now: float) -> list[Command]:
        """What the core makes of it, with the decision of that instant."""
        before, wakes = len(self.said), False
        todo: list[Event] = [event]
        while todo or wakes:
            if not todo:
                todo, wakes = [Wake()], False
            for command in self.core.step(todo.pop(0), now):
                match command:
                    case WakeAt():
                        wakes |= command.time <= now
                    case Solve():
                        solved = self.policy(command.snapshot, Workbench())
                        todo.append(Allocated(version=command.version, solved=solved))
                    case Forced():
                        todo.append(Allocated(version=command.version, solved=command.solved))
                    case _:
                        self.said.append(command)
        return self.said[before:]

    def runs(self, *jobs: int) -> None:
        for j in jobs:
            self.feed(JobStarted(job=j, attempt=int(self.core.state.jobs.attempt[j])), 1.0)


def reached(j: int = 0, steps: float = 100.0, loss: float = 0.0) -> JobReached:
    return JobReached(job=j, attempt=1, steps=steps, loss=loss)


def kinds(said: list[Command]) -> list[type]:
    return [type(command) for command in said]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_job_that_was_done_before_it_was_told_to_stop_is_done(elsewhere: bool) -> None:
    """Also where it has GPUs elsewhere already, which wait for it to let go."""
    core = Core(2, 2) if elsewhere else Core(2)
    core.feed(AppSubmitted(app=app("a", [job(100.0, 2)])), 0.0)
    core.runs(0)
    held = core.core.state.job_gpus[0][0] // 2
    assert [c.cause for c in core.feed(MachineFailed(machine=held), 50.0) if isinstance(c, Revoke)] == ["failed"]
    assert (0 in core.core.leases.held_back) == elsewhere
    assert kinds(core.feed(reached(), 51.0)) == [JobEnded, AppFinished]
    assert core.feed(JobStopped(job=0, attempt=1, steps=100.0), 51.0) == []
    assert core.core.state.job_gpus == core.core.leases.held_back == {}


def test_less_than_it_had_to_do_is_not_done() -> None:
    core = Core(2)
    core.feed(AppSubmitted(app=app("a", [job(100.0, 2)])), 0.0)
    core.runs(0)
    core.feed(MachineFailed(machine=0), 50.0)
    assert core.feed(reached(steps=99.0), 51.0) == []
    assert core.core.state.jobs.status[0] == Status.WAITING


def test_a_held_app_whose_job_was_done_is_over_and_a_cancelled_one_stays_cancelled() -> None:
    for event, outcome in ((AppHeld(app=0), "completed"), (AppCancelled(app=0), "cancelled")):
        core = Core(2)
        core.feed(AppSubmitted(app=app("a", [job(100.0, 2)])), 0.0)
        core.runs(0)
        core.feed(event, 50.0)
        core.feed(reached(), 51.0)
        core.feed(JobStopped(job=0, attempt=1, steps=100.0), 52.0)
        assert [c.outcome for c in core.said if isinstance(c, AppFinished)] == [outcome]
        assert core.core.state.weight_in_system == 0.0
        assert core.core.state.jobs_in_system == 0


def test_a_rung_that_ends_while_its_app_is_held_goes_on_when_it_is_resumed() -> None:
    rungs = (Rung(jobs=2, steps=10.0), Rung(jobs=1, steps=90.0))
    core = Core(2)
    core.feed(AppSubmitted(app=app("a", [job(100.0, name=n) for n in "xy"], tuner=Halving(rungs=rungs))), 0.0)
    core.runs(0, 1)
    core.feed(AppHeld(app=0), 5.0)
    core.feed(reached(0, 10.0, loss=0.5), 6.0)
    assert core.core.state.jobs.status[0] == Status.PAUSED
    said = core.feed(reached(1, 10.0, loss=0.1), 6.0)
    assert [(c.job, c.outcome) for c in said if isinstance(c, JobEnded)] == [(0, "stopped")]
    assert core.core.state.jobs.status[1] == Status.HELD, "and gets nothing while it is held"
    for j in (0, 1):
        assert core.feed(JobStopped(job=j, attempt=1, steps=10.0), 7.0) == []
    said = core.feed(AppResumed(app=0), 8.0)
    assert [(c.job, c.attempt, c.target) for c in said if isinstance(c, Grant)] == [(1, 2, 100.0)]
