"""The conformance kit for executors: ``check_executor`` puts one through everything that the core relies on.

Plug-in authors call it from a test of their own, with a ``Rig`` that makes their executor train the jobs it is given::

    def test_my_executor_conforms() -> None:
        check_executor(my_rig)

The kit's jobs are elastic, of one step a second at most, and their app has id 0. A rig's programs must save what they
did when they are stopped, and continue from there. Nothing here measures time: a check waits for events, and fails when
the rig says that none will come.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from themis.core.executor import Executor
from themis.model.events import (
    AppFinished,
    Command,
    Event,
    Grant,
    JobEnded,
    JobProgress,
    JobReached,
    JobStarted,
    JobStopped,
    LossReported,
    Renew,
    Revoke,
)
from themis.model.workload import App
from themis.testing.builders import app, job

T = TypeVar("T")
STEPS = 12.0
"""Work of each of the kit's jobs; a rig that trains for real makes a step short."""


class Rig(Protocol):
    """An executor over one machine of four GPUs, ids 0 to 3, and the way to its events."""

    executor: Executor

    def next(self) -> Event | None:
        """The next event, waiting for it as long as one may reasonably take; None when none comes."""
        ...


MakeRig = Callable[[App], AbstractContextManager[Rig]]
"""Builds a rig whose executor is to run this app's jobs; the kit admits the app itself."""


def check_executor(make: MakeRig) -> None:
    """All checks.

    Raises
    ------
    AssertionError : with what was expected and what the executor did.
    """
    for check in checks():
        check(make)


def checks() -> tuple[Callable[[MakeRig], None], ...]:
    """All checks, to be parametrized over."""
    return (
        check_finishes,
        check_stops_once,
        check_goes_on,
        check_resizes,
        check_early_stop,
        check_renewal,
        check_rungs,
        check_side_by_side,
        check_other_commands,
    )


def check_finishes(make: MakeRig) -> None:
    """A granted gang starts, reaches its target, and releases its GPUs at its lease's end: one event each, in order."""
    spec = _app(1)
    with make(spec) as rig:
        seen = _Seen(rig, spec)
        seen.submit(_grant(0, 1, (0, 1)))
        reached = seen.until(JobReached)
        assert reached.steps == STEPS, f"the job reached {reached.steps} steps, its target was {STEPS}"
        seen.submit(_revoke(0, 1, "finished"))
        stopped = seen.until(JobStopped)
        assert stopped.steps == STEPS, f"a finished job's checkpoint holds {stopped.steps} of {STEPS} steps"
        seen.check_order()


def check_stops_once(make: MakeRig) -> None:
    """A preempted gang reports its stop once, after all other events, and never claims more steps than its target."""
    spec = _app(1)
    with make(spec) as rig:
        seen = _Seen(rig, spec)
        seen.submit(_grant(0, 1, (0, 1)))
        seen.until(JobStarted)
        seen.submit(_revoke(0, 1, "expired"))
        stopped = seen.until(JobStopped)
        assert 0 <= stopped.steps <= STEPS, f"a checkpoint of {stopped.steps} steps, of {STEPS}"
        seen.check_order()


def check_goes_on(make: MakeRig) -> None:
    """The next attempt resumes from the checkpoint; the last one sends nothing after its end."""
    spec = _app(1)
    with make(spec) as rig:
        seen = _Seen(rig, spec)
        seen.submit(_grant(0, 1, (0,)))
        seen.until(JobStarted)
        seen.submit(_revoke(0, 1, "moved"))
        held = seen.until(JobStopped).steps
        seen.submit(_grant(0, 2, (3,)))
        assert seen.until(JobReached).attempt == 2, "a report of an attempt that was over"
        later = [e.steps for e in seen.events if isinstance(e, JobProgress | JobReached) and e.attempt == 2]
        assert min(later) >= held - 1e-6, f"attempt 2 began at {min(later)} steps, the checkpoint held {held}"
        seen.check_order()


def check_resizes(make: MakeRig) -> None:
    """An elastic job continues with another number of GPUs, fewer or more."""
    spec = _app(1)
    with make(spec) as rig:
        seen = _Seen(rig, spec)
        for attempt, gpus in enumerate([(0, 1, 2, 3), (1, 2), (0, 1, 3)], start=1):
            seen.submit(_grant(0, attempt, gpus))
            if attempt < 3:
                seen.until(JobStarted)
                seen.submit(_revoke(0, attempt, "expired"))
                seen.until(JobStopped)
        assert seen.until(JobReached).steps == STEPS
        seen.check_order()


def check_early_stop(make: MakeRig) -> None:
    """A gang may be preempted before it has started."""
    spec = _app(1)
    with make(spec) as rig:
        seen = _Seen(rig, spec)
        seen.submit(_grant(0, 1, (0, 1)))
        seen.submit(_revoke(0, 1, "cancelled"))
        assert seen.until(JobStopped).steps <= STEPS
        seen.check_order()


def check_renewal(make: MakeRig) -> None:
    """A renewed lease restarts nothing."""
    spec = _app(1)
    with make(spec) as rig:
        seen = _Seen(rig, spec)
        seen.submit(_grant(0, 1, (2, 3)))
        seen.until(JobStarted)
        seen.submit(Renew(jobs=(0,), until=2e9))
        seen.until(JobReached)
        starts = [e for e in seen.events if isinstance(e, JobStarted)]
        assert len(starts) == 1, f"{len(starts)} starts of one gang"
        seen.check_order()


def check_rungs(make: MakeRig) -> None:
    """A target short of all the work is reached and reported, with its loss; the next grant continues from it."""
    spec = _app(1)
    with make(spec) as rig:
        seen = _Seen(rig, spec)
        for attempt, target in enumerate((STEPS / 3, STEPS), start=1):
            seen.submit(_grant(0, attempt, (0,), target=target))
            reached = seen.until(JobReached)
            assert (reached.steps, reached.attempt) == (target, attempt), f"reached {reached}, the target was {target}"
            seen.submit(_revoke(0, attempt, "rung"))
            assert seen.until(JobStopped).steps == target
        seen.check_order()


def check_side_by_side(make: MakeRig) -> None:
    """Gangs on different GPUs do not disturb each other."""
    spec = _app(2)
    with make(spec) as rig:
        seen = _Seen(rig, spec)
        seen.submit(_grant(0, 1, (0, 1)))
        seen.submit(_grant(1, 1, (2, 3)))
        assert {seen.until(JobReached).job, seen.until(JobReached).job} == {0, 1}
        seen.check_order()


def check_other_commands(make: MakeRig) -> None:
    """Announcements of the core are not the executor's business."""
    spec = _app(1)
    with make(spec) as rig:
        seen = _Seen(rig, spec)
        seen.submit(JobEnded(app=0, job=0, outcome="cancelled", steps=0.0))
        seen.submit(
            AppFinished(
                app=0,
                outcome="cancelled",
                jct=1.0,
                rho_paper=1.0,
                rho_exact=1.0,
                t_id_paper=1.0,
                t_id_exact=1.0,
                contention=1.0,
                capacity=4.0,
                gpu_seconds=0.0,
            )
        )
        seen.submit(_grant(0, 1, (0,)))
        seen.until(JobStarted)
        seen.check_order()


@dataclass(slots=True)
class _Seen:
    """A rig and all its events."""

    rig: Rig
    spec: App
    events: list[Event] = field(default_factory=list)
    submitted: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rig.executor.admit(0, self.spec)

    def submit(self, command: Command) -> None:
        self.submitted.append(command)
        self.rig.executor.submit(command)

    def until(self, kind: type[T]) -> T:
        while (event := self.rig.next()) is not None:
            self.events.append(event)
            if isinstance(event, kind):
                return event
        raise AssertionError(f"no {kind.__name__} came after {self.submitted}; heard only {self.events}")

    def check_order(self) -> None:
        """Check each attempt: started at most once and first, steps that never fall, stopped at most once and last."""
        by_attempt: dict[tuple[int, int], list[Event]] = {}
        for event in self.events:
            if isinstance(event, JobStarted | JobProgress | LossReported | JobReached | JobStopped):
                by_attempt.setdefault((event.job, event.attempt), []).append(event)
        for (j, attempt), events in by_attempt.items():
            kinds = [type(event) for event in events]
            story = f"attempt {attempt} of job {j}: {[kind.__name__ for kind in kinds]}"
            assert JobStarted not in kinds[1:], f"{story}; a start comes once, and first"
            assert JobStopped not in kinds[:-1], f"{story}; a stop comes once, and last"
            assert JobReached not in kinds or kinds[0] is JobStarted, f"{story}; it reached its target unstarted"
            steps = [e.steps for e in events if isinstance(e, JobProgress | LossReported | JobReached)]
            assert steps == sorted(steps), f"{story}; its steps went back: {steps}"


def _app(jobs: int) -> App:
    return app("kit", [job(STEPS, (1, 4), name=f"j{i}") for i in range(jobs)])


def _grant(j: int, attempt: int, gpus: tuple[int, ...], target: float = STEPS) -> Grant:
    return Grant(app=0, job=j, attempt=attempt, gpus=gpus, seat=0, until=1e9, locality=1, target=target, score=1.0)


def _revoke(j: int, attempt: int, cause: str) -> Revoke:
    return Revoke(app=0, job=j, attempt=attempt, cause=cause)
