"""What users and the operator do, and what was acknowledged to them. A call that was not answered is made again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulation.plan import Action, Submission
from simulation.settings import configured
from themis.errors import InputError
from themis.schema import messages as schema
from themis.service.api.submission import DiskLow, submit
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.pending_calls import Call, Closed

if TYPE_CHECKING:
    from simulation.world import World

OF_APPS = ("cancel", "hold", "resume")
CHANGES = ("set", "reload")


@dataclass
class Users:
    """All callers of the service."""

    world: World
    acknowledged: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Number and name of each app by the key of its submission."""
    cancelled: set[str] = field(default_factory=set)
    waiting: list[tuple[Submission | Action, Future[Any] | None]] = field(default_factory=list)

    def does(self, event: Submission | Action) -> None:
        """Somebody wants something."""
        if isinstance(event, Action) and event.what == "configure":
            self.world.service.config = configured(self.world.service.config, event.target)
            return
        if isinstance(event, Action) and event.what == "edit":
            self.world.settings.edit(event.target)
            return
        self.waiting.append((event, None))

    def step(self) -> None:
        """Read answers; make calls that nobody answered, as soon as the service is there."""
        waiting, self.waiting = self.waiting, []
        for event, reply in waiting:
            if reply is not None and reply.done():
                if self._answered(event, reply):
                    continue
                reply = None
            self.waiting.append((event, reply or self._ask(event)))

    def reconnect(self) -> None:
        """The service is another process: what was asked of the last one is asked again."""
        for event, reply in self.waiting:
            if reply is not None and reply.done():
                self._noted(event, reply)
        self.waiting = [(event, reply if reply is not None and reply.done() else None) for event, reply in self.waiting]

    def all_ended(self) -> bool:
        """Whether every app that was acknowledged is over, and nobody waits for an answer."""
        arbiter = self.world.service.arbiter
        if self.waiting or arbiter is None:
            return False
        return not self.open()

    def open(self) -> list[str]:
        """Keys of apps that are not over."""
        arbiter = self.world.service.arbiter
        if arbiter is None:
            return ["the service is not there"]
        ended = {app for app, _, outcome, *_ in arbiter.journal.outcomes() if outcome}
        return [key for key, (app, _) in self.acknowledged.items() if app not in ended] + [
            str(e) for e, _ in self.waiting
        ]

    def _ask(self, event: Submission | Action) -> Future[Any] | None:
        service = self.world.service
        arbiter = service.arbiter
        if arbiter is None or arbiter._closing or self.world.now < service.paused_until or arbiter.journal.stuck:
            return None
        if isinstance(event, Action) and event.what in OF_APPS and event.target not in self.acknowledged:
            return None
        if isinstance(event, Action) and event.what == "cancel":
            self.cancelled.add(event.target)  # it may be carried out without an answer
        reply: Future[Any] = Future()
        arbiter.queue.put(Call(self._call(arbiter, event), reply))
        return reply

    def _call(self, arbiter: Arbiter, event: Submission | Action) -> Callable[[], Any]:
        if isinstance(event, Submission):
            return lambda: submit(arbiter, request(event))
        what, target = event.what, event.target
        if what == "set":
            return lambda: self.world.settings.change(arbiter, target)
        if what == "reload":
            return lambda: self.world.settings.reload(arbiter)
        if what in ("drain", "undrain"):
            return lambda: arbiter.drain(int(target), what == "drain")
        app = self.acknowledged[target][0]

        def do() -> None:
            if not arbiter.state.apps.active[app]:
                raise InputError("the app is over.")
            getattr(arbiter, what)(app)

        return do

    def _answered(self, event: Submission | Action, reply: Future[Any]) -> bool:
        error = reply.exception()
        if isinstance(error, Closed) or (error is not None and not isinstance(error, InputError)):
            return False  # the service ended, or broke, before it answered
        if isinstance(error, DiskLow):
            return False  # submitted again
        self._noted(event, reply)
        if isinstance(event, Submission):
            if error is not None:
                if self.world.settings.changed:
                    return False  # too large for the machines that are left, or the budget is used up: submitted again
                raise error
            found = reply.result()
            self.acknowledged[event.key] = found.app, found.name
            self.world.tell(f"{event.key} is app {found.app}")
        return True

    def _noted(self, event: Submission | Action, reply: Future[Any]) -> None:
        if isinstance(event, Action) and event.what in CHANGES and reply.exception() is not None:
            self.world.tell(f"{event} is refused: {reply.exception()}")
        elif isinstance(event, Action) and event.what in CHANGES:
            self.world.settings.acknowledge(reply.result())
            self.world.tell(f"{event} is acknowledged as change {reply.result()}")


def request(event: Submission) -> schema.SubmitRequest:
    """As it goes over the wire."""
    argv = event.behaviour.argv()
    program = schema.Program(argv=argv, cwd="/tmp", grace_s=event.grace_s, work_is_time=True, launch="gpu")
    return schema.SubmitRequest(
        name=event.key,
        user=f"u{int(event.key[1:]) % 3}",
        key=event.key,
        weight=event.weight,
        retries=50,
        jobs=[
            schema.Job(
                name=f"j{i}",
                regimes=[schema.Regime(steps=event.behaviour.work_s)],
                gpus_min=event.gpus[0],
                gpus_max=event.gpus[1],
                program=program,
            )
            for i in range(event.jobs)
        ],
    )
