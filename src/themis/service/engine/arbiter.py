"""The arbiter: one thread that owns core and journal, between callers and the executor.

    callers --ask--> queue --> transaction: [events in, instants settled, journal committed] --> commands to the executor
    executor --------> queue

What a transaction decides is on disk before anything is carried out or answered. How the arbiter begins, and goes on after a
crash: ``recovery``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar, cast

from themis.client import themis_pb2 as pb
from themis.core.retire import prune
from themis.core.state import EPS, State
from themis.core.tables import ENDED
from themis.machines.bundles.copies import Copies
from themis.machines.bundles.store import Store
from themis.machines.engines.hosts import Host
from themis.machines.engines.program import (
    UNABLE,
    AttemptEnded,
    Ending,
    GangIdle,
    MachineRejected,
    Measurement,
    Program,
    RunReported,
)
from themis.model.events import (
    AppFinished,
    AppHeld,
    Command,
    Event,
    GpusWithheld,
    Grant,
    JobStopped,
    MachineFailed,
    MachineJoined,
    MachineResized,
    MachineReturned,
    Renew,
    Revoke,
)
from themis.model.settings import Settings
from themis.model.speed import Profile, ProfileBook
from themis.model.units import Seconds
from themis.model.workload import App
from themis.service.engine import recovery, state_snapshots
from themis.service.engine.agents import AgentRegistry
from themis.service.engine.arbiter_queue import MakeExecutor, Message, WakeUp
from themis.service.engine.config import Config
from themis.service.engine.housekeeping import Housekeeping
from themis.service.engine.journal import Entry, Journal
from themis.service.engine.live_settings import LiveSettings
from themis.service.engine.notifications import notify
from themis.service.engine.pending_calls import ENDING, Call, Closed
from themis.service.engine.solving import Reply, WorkerSolver
from themis.service.engine.speed_estimator import SpeedEstimator
from themis.service.engine.transactions import LOOK_S, NoRoom
from themis.service.engine.wire_bids import names_of
from themis.traces.profiles.models import DEFAULT_BOOK

IDLE_S = 0.5
"""Longest wait of the thread in seconds, so that it notices that it should end."""

INSTANT_S = 2 * EPS
"""Least seconds between two transactions."""

SILENT_S = 60.0
"""Seconds after which a thread that finished no transaction counts as stuck; a decision may take tens of them."""

T = TypeVar("T")


class Arbiter:
    """A live scheduler.

    Parameters
    ----------
    journal : a fresh one, or one to go on from. What differs from the settings that the start before was given is a change of
        settings by ``owner``, as if it were made while the service runs.
    make_executor : builds the executor from (programs, where it should report to, estimated speeds).
    apart : run the policy in a process of its own, so that it does not delay callers.
    wall : seconds since 1970, read once: from then on ``steady``, a clock that never jumps, is used.

    Raises
    ------
    InputError : a setting cannot be changed to what it is now, the journal was begun with other profiles, or another version of
        Themis wrote it.
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
        owner: str = "",
        bundles: Store | None = None,
        copies: Copies | None = None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hosts, self.journal = tuple(hosts), journal
        journal.verify()
        self.queue: SimpleQueue[Message | Call] = SimpleQueue()
        self.programs: dict[str, tuple[Program, ...]] = {}
        self.bundles = bundles or Store(journal.path.parent / "bundles", config.bundles_quota_bytes)
        self.bundles.needed = self._bundles_needed
        self.copies = copies
        if copies is not None:
            copies.live = self._live_apps
        self.broken: BaseException | None = None
        self.instant: Seconds = 0.0
        """The time that everything in the open transaction happens at."""
        self._closing = self._ended = False
        self.turned = time.monotonic()
        """When a transaction was last on disk, on ``time.monotonic``."""
        self.agents = AgentRegistry(
            lambda: names_of(self.state),
            lambda: self.queue.put(WakeUp()),
            answer_s=config.agent_s,
            misses=config.agent_misses,
        )
        machines = [host.machine for host in hosts]
        start = recovery.Start(
            config=config, settings=config.core_settings, machines=machines, fingerprint=book.fingerprint
        )
        fresh = journal.last()[0] == 0
        self.engine = recovery.fresh_engine(journal, book, config) if fresh else recovery.engine_over(journal, book)
        self.engine.announce, self.engine.desk = self._announce, self.agents
        if fresh:
            recovery.begin(self.engine, start, wall())
        self.recovered = 0 if fresh else recovery.recall(self.engine, start)
        self.live = LiveSettings(self.engine, self.hosts, config, book)
        wanted = config if fresh else self.live.resume(start)
        self.epoch = float(journal.meta("epoch") or 0.0)
        self._steady = steady
        self._origin = max(wall() - self.epoch, journal.last()[1]) - steady()
        self.started = self.epoch + self.now()
        self.engine.not_before = self.now()
        self.speeds = SpeedEstimator(book)
        self.housekeeping = Housekeeping(self.engine, self.config, self.now())
        self.executor = make_executor(self._program, self.queue.put, lambda: self.book)
        self.live.serve(self.executor, self.housekeeping)
        self.programs |= recovery.programs_of(self.engine)
        self.housekeeping.lost |= recovery.hand_over(self.engine, self.executor, self.live.hosts)
        if apart:
            self.engine.solver = WorkerSolver(self.engine.policy, config.solve_s, self.queue.put)
        # Before anything else that comes in.
        self.queue.put(Call(lambda: self.live.begin(wanted, owner, self.instant)))
        self._thread = Thread(target=self._run, name="themis-arbiter", daemon=True)

    @property
    def state(self) -> State:
        """The core's; to be read in the arbiter's thread only (``ask``)."""
        return self.engine.core.state

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.live.config

    @property
    def settings(self) -> Settings:
        """The core's."""
        return self.engine.core.settings

    @property
    def book(self) -> ProfileBook:
        """Estimated speeds, with those of submissions and measurements; for any thread."""
        return self.state.book

    def now(self) -> Seconds:
        """Seconds since the journal began."""
        return self._steady() + self._origin

    def start(self) -> Arbiter:
        """Start the executor and the thread."""
        if self.engine.solver is not None:
            self.engine.solver.ready()
        self.executor.start()
        # While it ends, a full disk is not waited for: the next arbiter goes on from the transaction before.
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
            raise Closed(ENDING)
        if stuck := self.journal.stuck or self.journal.vanished():
            raise Closed(stuck)
        call = Call(do, changes=changes)
        self.queue.put(call)
        until, was_stuck = time.monotonic() + timeout_s, ""
        while (left := until - time.monotonic()) > 0.0:
            try:
                return cast(T, call.reply.result(min(left, LOOK_S)))
            except TimeoutError:
                # It waits for room, and is carried out when there is.
                if was_stuck and self.journal.stuck:
                    break
                was_stuck = self.journal.stuck
        raise Closed(self.journal.stuck or f"the arbiter did not answer within {timeout_s:g} s; try again.")

    def unwell(self) -> str:
        """Why the arbiter does not work at this moment, empty where it does; for any thread."""
        if self.broken is not None:
            return "the arbiter broke; its log says how."
        if stuck := self.journal.stuck or self.journal.vanished():
            return stuck
        silent = time.monotonic() - self.turned
        if self._thread.is_alive() and silent > SILENT_S:
            return f"the arbiter's thread has not finished a transaction for {silent:.0f} s."
        return ""

    def unready(self) -> str:
        """Why a submission would be refused at this moment whoever sends it, empty where it would not; for any thread."""
        return self.unwell() or (ENDING if self._closing else self.journal.low())

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
                # The next arbiter, maybe of a later version, begins here; where it cannot be written, at the snapshot before.
                with suppress(NoRoom, sqlite3.OperationalError), self.journal.transaction():
                    state_snapshots.maybe_take(self.engine, self.state.now, self.config.journal_keep_s, every=1)
            self.agents.close()
            if self.engine.solver is not None:
                self.engine.solver.close()
            self.journal.close()

    def _bundles_needed(self) -> set[str]:
        """Of apps that have not ended; called from any thread."""
        return {program.bundle for programs in list(self.programs.values()) for program in programs if program.bundle}

    def _live_apps(self) -> set[int]:
        """Numbers of the apps that have not ended; called from any thread."""
        return {int(app) for app in self.state.apps.active.nonzero()[0]}

    def _program(self, app: App, index: int) -> Program:
        return self.programs[app.name][index]

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._ended and self.queue.empty()):
                self._transaction()
        except BaseException as error:
            self.broken = error
        finally:
            self._ended = True
            self._refuse_rest()

    def _transaction(self, most_s: Seconds = IDLE_S) -> None:
        """Take what came in, waiting at most so long for it."""
        items = self._wait(most_s)
        try:
            self._take_in(items)
        except BaseException:
            # The thread ends; callers must not wait for it.
            for item in items:
                if isinstance(item, Call):
                    item.refuse("the arbiter broke; its log says how.")
            raise

    def _take_in(self, items: list[Message | Call]) -> None:
        # An instant that is settled takes in no more events: what comes now comes later than it.
        self.instant = now = max(self.now(), self.state.now + INSTANT_S)
        answers: list[Callable[[], object]] = []
        with self.journal.transaction():
            if not self._closing:
                self.engine.advance(now)
            for item in items:
                if not isinstance(item, Call):
                    self._handle(item, now)
                elif self._closing:
                    item.refuse(ENDING)
                else:
                    answers.append(item.run(lambda: self.journal.changes))
            if not self._closing:
                self.housekeeping.run(now)
                self.engine.check_decision(now)
                self.engine.advance(now)
                # A snapshot is large, and the reserve is for what callers ask.
                if not self.journal.low() and state_snapshots.maybe_take(self.engine, now, self.config.journal_keep_s):
                    self._prune(now)
        decided, self.engine.decided = self.engine.decided, []
        commands = self.engine.commands()
        for command in commands:
            # While it ends, gangs may stop but none may start; the next arbiter finds that those never ran.
            if isinstance(command, Revoke) or (isinstance(command, Grant | Renew) and not self._closing):
                self.executor.submit(command)
        for item in items:
            if isinstance(item, JobStopped):
                self.executor.recorded(item.job, item.attempt)
        notify(self.agents, self.state, self.epoch, decided, commands)
        for answer in answers:
            answer()
        self.turned = time.monotonic()
        self.journal.keep_reserve()

    def _wait(self, most_s: Seconds) -> list[Message | Call]:
        """The items that came in, immediately if there are some, at latest when the core wants to be woken."""
        due = min((at for at in (self.engine.next_wake, self.housekeeping.due) if at is not None), default=None)
        wait = most_s if due is None or self._closing else min(max(due - self.now(), 0.0), most_s)
        items: list[Message | Call] = []
        try:
            items.append(self.queue.get(timeout=wait) if wait > 0 else self.queue.get_nowait())
            while len(items) < 1000:
                items.append(self.queue.get_nowait())
        except Empty:
            pass
        return items

    def _handle(self, item: Message, now: Seconds) -> None:
        match item:
            case AttemptEnded():
                self.journal.add_attempt(now, item)
                self.engine.tallies.attempts[item.ending] += 1
                if not self.state.apps.active[item.app] or self.state.jobs.status[item.job] == ENDED:
                    return
                if item.ending.is_failure:
                    self.housekeeping.failed(item, now)
                elif item.ending.is_own or (item.ending is Ending.NODE_LOST and item.cause == UNABLE):
                    self.housekeeping.again(item, now)
            case Measurement():
                self._learn_speed(item, now)
            case GangIdle():
                self.housekeeping.idle_gpus(item, now)
            case RunReported():
                self.journal.add_run_id(item.app, item.job, item.attempt, item.tracker, item.run)
            case WakeUp():
                pass
            case (
                MachineFailed(machine=n)
                | MachineReturned(machine=n)
                | GpusWithheld(machine=n)
                | MachineRejected(machine=n)
            ) if n in self.state.removed:
                pass  # a machine that ends its last jobs
            case MachineRejected(machine=n):
                self.housekeeping.drain(n, True, now)
            case MachineJoined():
                self.live.joined(item.machine, now)
            case MachineResized(machine=n):
                if n not in self.state.removed:
                    self.live.carry_out([item], now)
            case Reply():
                if not self._closing:
                    self.engine.answered(item, now)
            case GpusWithheld(machine=n):
                item = self.live.with_missing(item)
                # A node agent repeats it to an arbiter that was restarted.
                if self.state.withheld.get(n, ((), (), "")) != (item.gpus, item.pids, item.reason):
                    self.engine.feed(item, now)
            case MachineFailed() | MachineReturned():
                self.housekeeping.reachable(item, now)
            case _:
                self.engine.feed(item, now)
                self.housekeeping.observe(item, now)

    def _prune(self, now: Seconds) -> None:
        """Forget the programs of finished apps whose gangs ended, and of apps that finished long ago all but their names."""
        s = self.state
        self.executor.dismiss(prune(s, now - self.config.journal_keep_s))
        ending = {int(s.jobs.app[job]) for job in s.occupied}
        kept = {spec.name for a, spec in enumerate(s.app_specs) if s.apps.active[a] or a in ending}
        self.programs = {name: programs for name, programs in self.programs.items() if name in kept}

    def _announce(self, now: Seconds, command: Command) -> None:
        if isinstance(command, AppFinished):
            self.journal.end_app(command.app, command.outcome, now, command.rho_paper)
            self.engine.tallies.app_ended(command.outcome, command.rho_paper)
            self.agents.finished(command.app)
            self.housekeeping.ended(command.app)

    def _refuse_rest(self) -> None:
        while True:
            try:
                item = self.queue.get_nowait()
            except Empty:
                return
            if isinstance(item, Call):
                item.refuse(ENDING)

    # ---- what callers want; called through ``ask`` ----------------------------------------------------------------------

    def learn(self, profile: Profile, message: pb.Profile) -> None:
        """Add the speeds of a submission to what is known."""
        self.journal.add_profile(profile.name, message.SerializeToString())
        self.state.book = self.state.book.with_profiles([profile])

    def _learn_speed(self, new: Measurement, now: Seconds) -> None:
        """Correct the estimated speed of a model where jobs measured another one."""
        s = self.state
        app = s.app_specs[int(s.jobs.app[new.job])]
        measured = self.speeds.measured(new, s.book, app, s.job_specs[new.job], now)
        if measured is not None:
            self.engine.feed(measured, now)

    def enter(self, app: App, weight: float, entry: Entry, event: Event) -> None:
        """Enter a submission; ``app`` and ``entry`` were checked."""
        self.housekeeping.quotas([app.user], self.instant)
        self.journal.add_app(entry)
        self.programs[app.name] = entry.programs
        self.executor.admit(self.state.jobs.size, app)
        self.engine.feed(event, self.instant)
        self.housekeeping.entered(entry)
        if entry.options.waiting:
            self.engine.feed(AppHeld(app=entry.app), self.instant)

    def cancel(self, app: int) -> None:
        """Withdraw an app."""
        self.housekeeping.cancel(app, self.instant)

    def hold(self, app: int) -> None:
        """Pause an app and release its GPUs until it is resumed."""
        self.housekeeping.hold(app, self.instant)

    def resume(self, app: int) -> None:
        """Let an app take part again."""
        self.housekeeping.resume(app, self.instant)

    def change(self, read: Callable[[Config], Config], user: str) -> list[str]:
        """Change settings, all or none; see ``LiveSettings.change``."""
        return self.live.change(read, user, self.instant)

    def drain(self, machine: int, drained: bool, within_s: Seconds = 0.0) -> None:
        """Take a machine out of service or back; ``within_s`` : until then its jobs may end by themselves."""
        self.housekeeping.drain(machine, drained, self.instant, within_s)
        if not drained:
            self.executor.pardon(machine)
