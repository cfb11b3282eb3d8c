"""A short life of a service, and places in it at which one call of a function fails once.

A place is a function and the ordinal of one of its calls after the service has begun. The tables have, for each function, the
ordinals and the expected ends:

    0 1 2 ...   the app of this number is quarantined, and nothing else    m0 m1 ...   the machine is
    p           the fallback makes the decision                            c           the caller gets the error
    off         decisions are off, leases stay                             -           nothing, not even a message is lost
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from fake import World, request

from themis.machines.engines.program import AttemptEnded, Ending, GangIdle, RunReported
from themis.model.events import GpusWithheld, JobProgress, JobStarted, JobStopped, MachineFailed, MachineReturned
from themis.service.api.submission import submit
from themis.service.engine.pending_calls import Call

MACHINES = (2, 1, 1)

OWNED = {
    "themis.core.app_lifecycle:add_app": (range(1, 6), "c c c c c"),
    "themis.core.app_lifecycle:finish_app": (range(1, 6), "4+c 0 2 1 3"),
    "themis.core.app_lifecycle:set_aside": (range(1, 2), "3+c"),
    "themis.core.app_lifecycle:take_back": (range(1, 2), "3+c"),
    "themis.core.regimes:report": (range(1, 16), "0 1 1 2 1 3 4 0 2 1 0 1 2 1 3"),
    "themis.core.regimes:isolated_s": (range(1, 7), "4+c 0 1 2 1 3"),
    "themis.core.leases:Leases.revoke": (range(1, 12), "m2 p p p p 4+c 0 1 2 1 3"),
    "themis.core.leases:Leases.grant": (range(1, 14), "p p p p p p p p p p p p p"),
    "themis.core.leases:Leases.stopped": (range(1, 9), "1 1 3 3 4 0 2 1"),
    "themis.core.state:State.start": (range(1, 15), "0 1 1 2 1 3 3 4 0 1 2 4 1 3"),
    "themis.core.state:State.release": (range(1, 14), "1 3 m2 p p p p 4+c 0 1 2 1 3"),
    "themis.core.state:State.withhold": (range(1, 3), "m1 m1"),
    "themis.core.state:State.set_machine_up": (range(1, 3), "m2 m2"),
    "themis.core.scheduler:Scheduler._reached": (range(1, 5), "0 1 2 1"),
}
"""100 places whose owner is an app, a machine, the policy or a caller."""

UNOWNED = {
    "themis.core.state:State.advance": (range(1, 70, 2), " ".join(["off"] * 35)),
    "themis.core.decision:Decider.settle": (range(1, 38), " ".join(["off"] * 37)),
    "themis.core.decision:Decider.decide": ((1, 5, 9, 13, 17, 37), "off off off off off off"),
    "themis.service.engine.housekeeping:Housekeeping.run": (range(1, 8), "off off off off off off off"),
    "themis.service.engine.transactions:Transactions._commit": (range(1, 8), "off off off off off off off"),
    "themis.core.leases:Leases.stopped": ((9, 10, 12, 13, 14), "- - - - -"),
    "themis.core.state:State.vacate": ((7, 8, 10), "- - -"),
}
"""100 places without an owner: the clock, the settling of an instant, housekeeping, the commit, gangs of apps that have ended."""


class Injected(LookupError):
    """The error of a place."""


def failing(real: Any, ordinal: int, calls: list[float], now: Callable[[], float]) -> Any:
    """The function, of which one call fails; ``calls`` : the time of each call is appended."""

    def instead(*given: Any, **more: Any) -> Any:
        calls.append(now())
        if len(calls) == ordinal:
            raise Injected("injected")
        return real(*given, **more)

    return instead


def ask(w: World, do: Callable[[Any], Any]) -> BaseException | None:
    """What a caller is answered with, if that is an error."""
    reply: Future[Any] = Future()
    w.arbiter.queue.put(Call(lambda: do(w.arbiter), reply))
    w.turn()
    return reply.exception(0)


def life(w: World) -> Iterator[BaseException | None]:
    """Step by step: errors that callers get."""
    for n, jobs in enumerate((1, 2, 1, 1, 1)):
        yield ask(w, lambda a, n=n, jobs=jobs: submit(a, request("abcde"[n], user=f"u{n % 3}", jobs=jobs)))  # type: ignore[misc]
    s = w.arbiter.state
    running = [(job, int(s.jobs.attempt[job]), int(s.jobs.app[job])) for job in sorted(w.held())]
    for job, attempt, app in running:
        w.say(JobProgress(job=job, attempt=attempt, steps=10.0))
        w.say(RunReported(app=app, job=job, attempt=attempt, tracker="mlflow", run=f"r{job}"))
        w.say(GangIdle(app=app, job=job, attempt=attempt, idle_s=5.0, gpu_seconds=5.0, by="nvml"))
    yield ask(w, lambda a: a.hold(3))
    yield ask(w, lambda a: a.resume(3))
    w.turn(2.5)
    for job in (1, 4):
        w.say(*own_end(w, job))
    w.say(GpusWithheld(machine=1, gpus=(2,), reason="x"))
    w.say(MachineFailed(machine=2))
    w.turn(2.5)
    w.say(MachineReturned(machine=2), GpusWithheld(machine=1, gpus=()))
    if w.arbiter.state.apps.size == 5:  # where no submission failed
        yield ask(w, lambda a: a.cancel(4))
    w.turn(2.5)
    yield ask(w, lambda a: a.change(lambda config: config, "ann"))
    complete(w)


def own_end(w: World, job: int) -> tuple[Any, ...]:
    """A gang of the job failed."""
    attempt, app = int(w.arbiter.state.jobs.attempt[job]), int(w.arbiter.state.jobs.app[job])
    end = AttemptEnded(
        app=app,
        job=job,
        attempt=attempt,
        ending=Ending.FAILED,
        cause="",
        code=1,
        seconds=1.0,
        steps=0.0,
        saved=False,
        killed=False,
        message="",
    )
    return JobStarted(job=job, attempt=attempt), end, JobStopped(job=job, attempt=attempt, steps=0.0)


def complete(w: World) -> None:
    """Finish every job that runs, until none gets a lease."""
    for _ in range(30):
        w.turn(3.0)
        held = sorted(w.held())
        for job in held:
            w.finish(job)
        if not held and not w.arbiter.state.delayed:
            return
