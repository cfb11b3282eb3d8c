"""The arbiter: one thread that owns core and journal, between callers and the executor.

    callers --ask--> queue --> turn: [events in, instants settled, journal committed] --> commands to the executor
    executor --emit, note--> queue

Whatever a turn decides is on disk before anything is carried out or answered. How it
begins, and goes on after a crash: ``service.recovery``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar, cast

from themis.client import themis_pb2 as pb
from themis.core.retire import retire
from themis.core.scheduler import Scheduler
from themis.core.state import EPS, State
from themis.core.tables import ENDED
from themis.errors import InputError, ThemisError
from themis.executors.hosts import Host
from themis.executors.program import UNABLE, AttemptEnded, Ending, Measurement, Program, Programs
from themis.model.cluster import Machine
from themis.model.events import (
    AppCancelled,
    AppFinished,
    AppHeld,
    Command,
    Event,
    GpusWithheld,
    Grant,
    JobStopped,
    MachineDraining,
    MachineFailed,
    MachineJoined,
    MachineReturned,
    Renew,
    Revoke,
)  # fmt: skip
from themis.model.settings import Settings
from themis.model.units import Locality, Seconds
from themis.model.workload import App, Job
from themis.policies.api import forecaster_of, make_policy
from themis.profiles.models import DEFAULT_BOOK
from themis.profiles.speed import Profile, ProfileBook
from themis.service.api.reasons import Reason
from themis.service.engine import recovery
from themis.service.engine import state_snapshots as pictures
from themis.service.engine.agents import Desk, Names
from themis.service.engine.config import Config
from themis.service.engine.engine import Engine
from themis.service.engine.housekeeping import Upkeep
from themis.service.engine.journal import Entry, Journal
from themis.service.engine.machines import per_gpu
from themis.service.engine.notifications import notify
from themis.service.engine.solving import Reply, WorkerSolver
from themis.service.engine.speeds import Lessons, read_profile
from themis.service.engine.transactions import NoRoom

IDLE_S = 0.5
"""Longest wait of the thread, so that it notices that it should end."""

INSTANT_S = 2 * EPS
"""Least time between two turns."""

T = TypeVar("T")


class LiveExecutor(Protocol):
    """What the arbiter needs of an executor: ``executors.api`` and recovery."""

    def admit(self, first_job: int, app: App) -> None: ...
    def submit(self, command: Command) -> None: ...
    def restore(self, grant: Grant, steps: float, *, started: bool = True) -> None: ...
    def recorded(self, job: int, attempt: int) -> None: ...
    def dismiss(self, jobs: Sequence[int]) -> None: ...
    def restore_lost(self, machine: int) -> None: ...
    def restore_withheld(self, machine: int) -> None: ...
    def join(self, machine: Machine) -> None: ...
    def check_user(self, user: str) -> None: ...
    def niceness(self, machine: int) -> int: ...
    def trust(self, machine: int) -> str: ...
    def containment_of(self, machine: int) -> tuple[str, tuple[str, ...]]: ...
    def start(self) -> object: ...
    def close(self, *, stop_jobs: bool = True) -> None: ...


@dataclass(frozen=True, slots=True)
class Nudge:
    """Something may be due earlier than was believed."""


Heard = Event | AttemptEnded | Measurement | Reply | Nudge
MakeExecutor = Callable[[Programs, Callable[[Heard], None], Callable[[], ProfileBook]], LiveExecutor]


@dataclass(frozen=True, slots=True)
class _Call:
    do: Callable[[], Any]
    reply: Future[Any]
    changes: bool = True


_TOLD = object()
"""In place of a result: the caller knows already."""


class Closed(ThemisError):
    """The arbiter is ending; ask again when it is back."""


class Arbiter:
    """A live scheduler.

    Parameters
    ----------
    journal : a fresh one, or one to go on from; it must have been begun with the same machines and settings.
    make_executor : builds the executor from (programs, where it should report to, speeds as believed).
    apart : run the policy in a process of its own, so that it delays nobody.
    wall : seconds since 1970, read once: from then on ``steady``, a clock that never jumps, is used.

    Raises
    ------
    InputError : the journal was begun with other machines or settings, or another version of Themis wrote it.
    """

    def __init__(
        self,
        config: Config,
        hosts: Sequence[Host],
        journal: Journal,
        make_executor: MakeExecutor,
        *,
        book: ProfileBook = DEFAULT_BOOK,
        apart: bool = False,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.hosts, self.journal = config, tuple(hosts), journal
        journal.verify()
        self.fingerprint = book.fingerprint
        """Of the book without what submitters added."""
        self.book = book.with_profiles(read_profile(n, pb.Profile.FromString(m)) for n, m in journal.profiles())
        self.queue: SimpleQueue[Heard | _Call] = SimpleQueue()
        self.gates: list[Callable[[int], Reason | None]] = []
        """What may keep an app waiting beside the policy, for ``themis why``."""
        self.programs: dict[str, tuple[Program, ...]] = {}
        self.lost: set[int] = set()
        """Machines whose lease lapsed, whether or not they are drained."""
        self.broken: BaseException | None = None
        self.instant: Seconds = 0.0
        """The time that everything in the turn under way happens at."""
        self.per_gpu = per_gpu(config, hosts)
        self._closing = self._ended = False
        settings = Settings(
            lease_s=config.lease_s, tick_s=config.tick_s, container_s=config.container_s, seed=config.seed,
            gather_s=config.gather_s, checkpoint_every_s=config.checkpoint_every_s, validate=config.validate,
            shortest_lease_s=config.shortest_lease,
        )  # fmt: skip
        self.settings = recovery.as_begun(journal, settings)
        policy = make_policy(config.policy)
        self.desk = Desk(
            self._names, lambda: self.queue.put(Nudge()), answer_s=config.agent_s, misses=config.agent_misses
        )
        core = Scheduler(self.book, self.settings, policy.pace, policy.needs, forecaster_of(policy))
        self.engine = Engine(journal, core, policy, self._announce, desk=self.desk)
        if apart:
            self.engine.solver = WorkerSolver(policy, config.solve_s, self.queue.put)
        fresh = journal.last()[0] == 0
        if fresh:
            recovery.begin(self, wall())
        self.epoch = float(journal.meta("epoch") or 0.0)
        records = 0 if fresh else recovery.recall(self)
        self.book = self.state.book
        self._steady = steady
        self._origin = max(wall() - self.epoch, journal.last()[1]) - steady()
        self.started, self.recovered = self.epoch + self.now(), records
        self.engine.not_before = self.now()
        self.lessons = Lessons(book)
        self.upkeep = Upkeep(self)
        self.executor = make_executor(self._program, self.queue.put, lambda: self.book)
        recovery.hand_over(self)
        self.queue.put(_Call(self.upkeep.all_quotas, Future()))
        self._thread = Thread(target=self._run, name="themis-arbiter", daemon=True)

    @property
    def state(self) -> State:
        """The core's; to be read in the arbiter's thread only (``ask``)."""
        return self.engine.core.state

    def now(self) -> Seconds:
        """Seconds since the journal began."""
        return self._steady() + self._origin

    def start(self) -> Arbiter:
        """Start the executor and the thread."""
        if self.engine.solver is not None:
            self.engine.solver.ready()
        self.executor.start()
        # What is being ended waits for no room: the next arbiter goes on from the turn before.
        self.journal.patient = lambda: not self._closing
        self._thread.start()
        return self

    def ask(self, do: Callable[[], T], timeout_s: float = 60.0, *, changes: bool = True) -> T:
        """Run something in the arbiter's thread and return its result, once all that it changed is on disk.

        Parameters
        ----------
        changes : False where it only looks: then a bug of ours in it is the caller's alone and the arbiter goes on, as it
            does after one that came before anything was written down.

        Raises
        ------
        Closed : the arbiter is ending. Whatever ``do`` raises; it must have changed nothing then.
        """
        if self._ended:
            raise Closed("the arbiter is ending; try again when it is back.")
        if stuck := self.journal.stuck or self.journal.vanished():
            raise Closed(stuck)
        reply: Future[T] = Future()
        self.queue.put(_Call(do, cast("Future[Any]", reply), changes))
        try:
            return reply.result(timeout_s)
        except TimeoutError:
            raise Closed(
                self.journal.stuck or f"the arbiter did not answer within {timeout_s:g} s; try again."
            ) from None

    def close(self, *, stop_jobs: bool = True) -> None:
        """End: jobs are preempted and wait for the next arbiter, or (``stop_jobs=False``) run on within their machine's lease.

        Nothing is decided any more from here on; how the jobs ended is still written down.
        """
        self._closing = True
        try:
            # How they end could not be written down; the next arbiter finds them running, or they end with their machine's lease.
            self.executor.close(stop_jobs=stop_jobs and not self.journal.stuck)
        finally:
            self._ended = True
            if self._thread.is_alive():
                self._thread.join()
            if self.broken is None:
                # The next arbiter, maybe of a later version, begins here.
                with suppress(NoRoom), self.journal.turn():
                    pictures.maybe_take(self.engine, self.state.now, self.config.journal_keep_s, every=1)
            self.desk.close()
            if self.engine.solver is not None:
                self.engine.solver.close()
            self.journal.close()

    def _names(self) -> Names:
        state = self.state
        return Names(
            machines=[machine.name for machine in state.machines], racks=list(state.racks),
            first_job=lambda app: int(state.apps.first_job[app]),
        )  # fmt: skip

    def _program(self, app: App, index: int) -> Program:
        return self.programs[app.name][index]

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._ended and self.queue.empty()):
                self._turn()
        except BaseException as error:
            self.broken = error
        finally:
            self._ended = True
            self._refuse_rest()

    def _turn(self) -> None:
        heard = self._wait()
        try:
            self._take_in(heard)
        except BaseException:
            # The thread ends; nobody is left waiting for it.
            for item in heard:
                if isinstance(item, _Call) and not item.reply.done():
                    item.reply.set_exception(Closed("the arbiter broke; its log says how."))
            raise

    def _take_in(self, heard: list[Heard | _Call]) -> None:
        # An instant that is settled takes in no more events: what comes now comes later than it.
        self.instant = now = max(self.now(), self.state.now + INSTANT_S)
        replies: list[tuple[Future[Any], Any, ThemisError | None]] = []
        with self.journal.turn():
            if not self._closing:
                self.engine.advance(now)
            for item in heard:
                if isinstance(item, _Call):
                    replies.append(self._answer(item))
                else:
                    self._hear(item, now)
            if not self._closing:
                self.upkeep.turn(now)
                self.engine.attend(now)
                self.engine.advance(now)
                if pictures.maybe_take(self.engine, now, self.config.journal_keep_s):
                    self._forget(now)
        decided, self.engine.decided = self.engine.decided, []
        commands = self.engine.commands()
        for command in commands:
            # While it ends, gangs may stop but none may start; the next arbiter finds that those never ran.
            if isinstance(command, Revoke) or (isinstance(command, Grant | Renew) and not self._closing):
                self.executor.submit(command)
        for item in heard:
            if isinstance(item, JobStopped):
                self.executor.recorded(item.job, item.attempt)
        notify(self, decided, commands)
        for reply, result, error in replies:
            if result is _TOLD:
                continue
            if error is None:
                reply.set_result(result)
            else:
                reply.set_exception(error)

    def _wait(self) -> list[Heard | _Call]:
        """What came in, at once if something did, at latest when the core wants to be woken."""
        due = min((at for at in (self.engine.next_wake, self.upkeep.due) if at is not None), default=None)
        wait = IDLE_S if due is None or self._closing else min(max(due - self.now(), 0.0), IDLE_S)
        heard: list[Heard | _Call] = []
        try:
            heard.append(self.queue.get(timeout=wait) if wait > 0 else self.queue.get_nowait())
            while len(heard) < 1000:
                heard.append(self.queue.get_nowait())
        except Empty:
            pass
        return heard

    def _answer(self, call: _Call) -> tuple[Future[Any], Any, ThemisError | None]:
        if self._closing:
            return call.reply, None, Closed("the arbiter is ending; try again when it is back.")
        before = self.journal.changes
        try:
            return call.reply, call.do(), None
        except (InputError, Closed) as error:
            return call.reply, None, error
        except BaseException as error:
            call.reply.set_exception(error)
            # Whatever changes the core is written down before. So a bug in the checks of a submission is its sender's alone too.
            # A disk that is full at the first statement has changed nothing, and yet ended the transaction.
            lost = isinstance(error, NoRoom) or not isinstance(error, Exception)
            if lost or (call.changes and self.journal.changes != before):
                raise
            return call.reply, _TOLD, None

    def _hear(self, item: Heard, now: Seconds) -> None:
        match item:
            case AttemptEnded():
                self.journal.add_attempt(now, item)
                if not self.state.apps.active[item.app] or self.state.jobs.status[item.job] == ENDED:
                    return
                if item.ending.is_failure:
                    self.upkeep.failed(item, now)
                elif item.ending.is_own or (item.ending is Ending.NODE_LOST and item.cause == UNABLE):
                    self.upkeep.again(item, now)
            case Measurement():
                self._learn_speed(item, now)
            case Nudge():
                pass
            case MachineJoined():
                if item.machine.name not in {machine.name for machine in self.state.machines}:
                    self.executor.join(item.machine)
                    self.engine.feed(item, now)
            case Reply():
                if not self._closing:
                    self.engine.answered(item, now)
            case GpusWithheld(machine=n):
                # An agent says it again to an arbiter that was started again.
                if self.state.withheld.get(n, ((), (), "")) != (item.gpus, item.pids, item.reason):
                    self.engine.feed(item, now)
            case MachineFailed() | MachineReturned():
                away = isinstance(item, MachineFailed)
                (self.lost.add if away else self.lost.discard)(item.machine)
                if self.state.machines[item.machine].name not in self.journal.drained():
                    self.engine.feed(item, now)
            case _:
                self.engine.feed(item, now)
                self.upkeep.heard(item, now)

    def _forget(self, now: Seconds) -> None:
        """Of apps that are over, with all their gangs: nothing of them will start again. Of those that long are, all but names."""
        s = self.state
        self.executor.dismiss(retire(s, now - self.config.journal_keep_s))
        ending = {int(s.jobs.app[job]) for job in s.occupied}
        kept = {spec.name for a, spec in enumerate(s.app_specs) if s.apps.active[a] or a in ending}
        self.programs = {name: programs for name, programs in self.programs.items() if name in kept}

    def _announce(self, now: Seconds, command: Command) -> None:
        if isinstance(command, AppFinished):
            self.journal.end_app(command.app, command.outcome, now, command.rho_paper)
            self.desk.finished(command.app)
            self.upkeep.ended(command.app)

    def _refuse_rest(self) -> None:
        while True:
            try:
                item = self.queue.get_nowait()
            except Empty:
                return
            if isinstance(item, _Call):
                item.reply.set_exception(Closed("the arbiter is ending; try again when it is back."))

    # ---- what callers want; called through ``ask`` ----------------------------------------------------------------------

    def learn(self, profile: Profile, message: pb.Profile) -> None:
        """Add the speeds of a submission to what is known."""
        self.journal.add_profile(profile.name, message.SerializeToString())
        self.book = self.state.book = self.state.book.with_profiles([profile])

    def _learn_speed(self, new: Measurement, now: Seconds) -> None:
        """Correct what is believed of a model where a job measured otherwise."""
        s = self.state
        app = s.app_specs[int(s.jobs.app[new.job])]
        measured = self.lessons.hear(new, s.book, app, s.job_specs[new.job], now)
        if measured is not None:
            self.engine.feed(measured, now)
            self.book = self.state.book

    def enter(self, app: App, weight: float, entry: Entry, event: Event) -> None:
        """Take a submission in; ``app`` and ``entry`` were checked."""
        self.upkeep.quotas([app.user], self.instant)
        self.journal.add_app(entry)
        self.programs[app.name] = entry.programs
        self.executor.admit(self.state.jobs.size, app)
        self.engine.feed(event, self.instant)
        self.upkeep.entered(entry)
        if entry.options.waiting:
            self.engine.feed(AppHeld(app=entry.app), self.instant)

    def cancel(self, app: int) -> None:
        """Withdraw an app."""
        self._active(app, "cancelled")
        self.engine.feed(AppCancelled(app=app), self.instant)

    def hold(self, app: int) -> None:
        """Take everything from an app until it is resumed."""
        self._active(app, "held")
        self.upkeep.hold(app, self.instant)

    def resume(self, app: int) -> None:
        """Let an app take part again."""
        self._active(app, "resumed")
        self.upkeep.resume(app, self.instant)

    def _active(self, app: int, what: str) -> None:
        if not self.state.apps.active[app]:
            name = self.state.app_specs[app].name
            raise InputError(f"app {name!r} is over, it cannot be {what}; `themis show {app}` says how it ended.")

    def drain(self, machine: int, drained: bool, within_s: Seconds = 0.0) -> None:
        """Take a machine out of service, its jobs preempted; or back, if it is there.

        ``within_s`` : until then its jobs may end by themselves, and no more are placed there.
        """
        name = self.state.machines[machine].name
        if drained and within_s > 0 and name not in self.journal.drained():
            self.engine.feed(MachineDraining(machine=machine, until=self.instant + within_s), self.instant)
            return
        if machine in self.state.draining:
            self.engine.feed(MachineDraining(machine=machine), self.instant)
        self.journal.set_drained(name, drained)
        up = bool(self.state.machine_up[machine])
        if drained and up:
            self.engine.feed(MachineFailed(machine=machine, drained=True), self.instant)
        elif not drained and not up and machine not in self.lost:
            self.engine.feed(MachineReturned(machine=machine), self.instant)


def believed_pace(book: Callable[[], ProfileBook]) -> Callable[[Job, Grant, str], float]:
    """Steps per second by the speed model, for jobs that report nothing; ``book`` is asked each time, for it grows."""

    def pace(job: Job, grant: Grant, gpu_type: str) -> float:
        batch = job.regimes[0].batch
        return book().rate(job.model, batch, gpu_type, len(grant.gpus), Locality(grant.locality)) / job.scale(batch)

    return pace
