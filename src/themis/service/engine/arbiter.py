"""The arbiter: one thread that owns core and journal, between callers and the executor.

    callers --ask--> queue --> transaction: [events in, instants settled, journal committed] --> commands to the executor
    executor --------> queue

What a transaction decides is on disk before anything is carried out or answered. How the arbiter begins, and goes on after a
crash: ``recovery``.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar, cast

from themis.core.retire import prune
from themis.core.state import EPS, State
from themis.core.tables import ENDED
from themis.errors import InputError
from themis.machines.bundles.store import Store
from themis.machines.engines.copies import Copies
from themis.machines.engines.hosts import Host
from themis.machines.engines.program import (
    DISK,
    UNABLE,
    AttemptEnded,
    DiskWarning,
    Ending,
    ExecutorBroke,
    GangIdle,
    GangIntrudes,
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
from themis.schema import messages as schema
from themis.service.engine import recovery, state_snapshots
from themis.service.engine.agents import AgentRegistry
from themis.service.engine.arbiter_queue import MakeExecutor, Message, Outbox, WakeUp
from themis.service.engine.config import Config
from themis.service.engine.disk_usage import DiskWatch
from themis.service.engine.housekeeping import Housekeeping
from themis.service.engine.journal import Entry, Journal, number_of
from themis.service.engine.live_settings import LiveSettings
from themis.service.engine.notifications import notify
from themis.service.engine.pending_calls import ENDING, Call, Closed
from themis.service.engine.quarantine import (
    POLICY,
    SERVICE,
    Fault,
    Owner,
    Quarantine,
    owner_of,
    quarantines,
    words_of,
)
from themis.service.engine.solving import Reply, WorkerSolver
from themis.service.engine.speed_estimator import SpeedEstimator
from themis.service.engine.transactions import LOOK_S, NoRoom, Vanished
from themis.service.engine.wire_bids import names_of
from themis.traces.profiles.models import DEFAULT_BOOK

IDLE_S = 0.5
"""Longest wait of the thread in seconds, so that it notices that it should end."""

MOST_REBUILDS = 20
"""Times that one transaction is taken back; then what is left of its items is dropped."""
REFOLD = 2000
"""Records after the last snapshot of the state from which on a quarantine takes another one, so that the next is quick."""

log = logging.getLogger("themis.service")

INSTANT_S = 2 * EPS
"""Least seconds between two transactions."""

SILENT_S = 60.0
"""Seconds after which a thread that finished no transaction counts as stuck; a decision may take tens of them."""

T = TypeVar("T")


class Arbiter:
    """A live scheduler.

    Parameters
    ----------
    journal : a fresh one, or one to continue from. What differs from the settings that the start before was given is a
        change of settings by ``owner``, as if it were made while the service runs.
    make_executor : builds the executor from (programs, where it should report to, estimated speeds).
    apart : run the policy in a separate process, so that it does not delay callers.
    safe : make no decisions. ``without`` : names or numbers of apps that are quarantined first.
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
        safe: bool = False,
        without: Sequence[str] = (),
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
        self.disk = DiskWatch(journal.path.parent, config.user_disk, lambda: set(self.state.occupied))
        self.turned = time.monotonic()
        """Time at which the last transaction was on disk, on ``time.monotonic``."""
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
        self._given_book = book
        if safe:
            self.quarantine.turn_off("the service was started with --safe")
        out = [Owner("app", self._app_called(ref)) for ref in without]
        self.recovered = 0 if fresh else recovery.recall(self.engine, start, book, out)
        self.quarantine.recall(quarantines(journal))
        self.quarantine.waiting += [
            Fault(owner, "the service was started without it (--without)")
            for owner in out
            if not self.quarantine.out(owner, self.state) and self.state.apps.active[owner.number]
        ]
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
        self.outbox = Outbox(self.executor)
        self.live.serve(self.outbox, self.housekeeping)
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
    def quarantine(self) -> Quarantine:
        """The pending quarantines, and whether decisions are made."""
        return self.engine.quarantine

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.live.config

    @property
    def settings(self) -> Settings:
        """Settings of the core."""
        return self.engine.core.settings

    @property
    def book(self) -> ProfileBook:
        """Estimated speeds, with those of submissions and measurements; for any thread."""
        return self.state.book

    def now(self) -> Seconds:
        """Seconds since the journal began."""
        return self._steady() + self._origin

    def start(self) -> Arbiter:
        """Start the executor, which renews leases of machines from here on, and the thread."""
        self.executor.start()
        if self.engine.solver is not None:
            self.engine.solver.ready()
        # While the arbiter ends, it does not wait for space on a full disk: the next one resumes from the transaction
        # before.
        self.journal.patient = lambda: not self._closing
        self._thread.start()
        return self

    def ask(self, do: Callable[[], T], timeout_s: float = 60.0, *, changes: bool = True) -> T:
        """Run something in the arbiter's thread and return its result, once all that it changed is on disk.

        Parameters
        ----------
        changes : False where it only looks: then a bug of ours in it is the caller's alone and the arbiter continues,
            as it does after one that came before anything was written down.

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
        """Why a submission would be refused at this moment, or would not be decided on; empty where neither. For any thread."""
        if why := self.unwell() or (ENDING if self._closing else self.journal.low()):
            return why
        return f"decisions are off: {self.quarantine.off}." if self.quarantine.off else ""

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
            if self.broken is None and not self.quarantine.off:
                # The next arbiter, maybe of a later version, begins here; where it cannot be written, at the snapshot before.
                with suppress(NoRoom, sqlite3.OperationalError), self.journal.transaction():
                    state_snapshots.maybe_take(self.engine, self.state.now, self.config.journal_keep_s, every=1)
            self.agents.close()
            if self.engine.solver is not None:
                self.engine.solver.close()
            self.journal.close()

    def _app_called(self, ref: str) -> int:
        """Number of the app with this number or name, before the journal is folded."""
        known = ref.isprintable() and self.journal.apps("name = ? OR app = ?", ref, number_of(ref), programs=False)
        if not known:
            raise InputError(
                f"--without {ref[:100]!r}: the journal has no app of this name or number; `themis up --safe` starts and lists them."
            )
        return known[-1].app

    def _bundles_needed(self) -> set[str]:
        """Bundles of apps that have not finished; callable from any thread."""
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
            log.critical("the service ends", exc_info=error)
            self.broken = error
        finally:
            self._ended = True
            self._refuse_rest()

    def _transaction(self, most_s: Seconds = IDLE_S) -> None:
        """Process incoming events, waiting at most this long for the first."""
        items = self._wait(most_s)
        try:
            for item in items:
                if isinstance(item, ExecutorBroke):
                    raise item.error
            self._take_in(items)
        except BaseException:
            # The thread ends; callers must not wait for it.
            for item in items:
                if isinstance(item, Call):
                    item.refuse("the arbiter broke; its log says how.")
            raise

    def _take_in(self, items: list[Message | Call]) -> None:
        # A settled instant takes no more events: new events get a later time.
        self.instant = now = max(self.now(), self.state.now + INSTANT_S)
        left, released, mark = [*items], list[JobStopped](), self.live.mark
        answers: list[Callable[[], object]] = []
        for rebuilt in range(MOST_REBUILDS + 1):
            self._at: Message | Call | Fault | None = None
            was_off = bool(self.quarantine.off)
            try:
                with self.journal.transaction():
                    answers = self._decide(left, released, now)
                break
            except (NoRoom, Vanished, sqlite3.OperationalError):
                raise  # the disk, or the file: ``transactions`` has waited for what can be waited for
            except Exception as error:
                if self.journal.committed:
                    log.exception("an error after a commit")
                    self.quarantine.turn_off(words_of(error))
                    break
                if rebuilt == MOST_REBUILDS or (rebuilt and was_off and self._at is None):
                    raise  # not even an empty transaction succeeds
                self._contain(error, left, released, rebuilt + 1 == MOST_REBUILDS)
                self.live.go_back(mark)
                self.housekeeping.go_back(self.config)
        self.quarantine.waiting.clear()
        decided, self.engine.decided = self.engine.decided, []
        commands = self.engine.commands()
        # Nothing is taken back from here on: what goes wrong ends at one command, or one answer.
        for change in self.outbox.take():
            self._after(change)
        for command in commands:
            # While it ends, gangs may stop but none may start; the next arbiter finds that those never ran.
            if isinstance(command, Revoke) or (isinstance(command, Grant | Renew) and not self._closing):
                self._after(partial(self.executor.submit, command), owner_of(command, self.state))
        for item in (*left, *released):
            if isinstance(item, JobStopped):
                self._after(partial(self.executor.recorded, item.job, item.attempt), owner_of(item, self.state))
        messages: list[tuple[int, Callable[[], object]]] = []
        self._after(lambda: messages.extend(notify(self.agents, self.state, self.epoch, decided, commands)))
        for app, send in messages:
            self._after(send, Owner("app", app))
        for answer in answers:
            self._after(answer)
        self.turned = time.monotonic()
        self.journal.keep_reserve()

    def _decide(
        self, items: list[Message | Call], released: list[JobStopped], now: Seconds
    ) -> list[Callable[[], object]]:
        """The transaction; returns the answers to its calls. ``released`` : ends of gangs of which more failed than their end."""
        answers: list[Callable[[], object]] = []
        if self._decides:
            self.engine.advance(now)
        for item in items:
            self._at = item
            if not isinstance(item, Call):
                self._handle(item, now)
            elif self._closing:
                item.refuse(ENDING)
            else:
                answers.append(item.run(lambda: self.journal.changes))
        for fault in [*self.quarantine.waiting]:
            self._at = fault
            self._shut_out(fault, now)
        for item in released:
            self._at = item
            self._handle(item, now)
        self._at = None
        if self._decides:
            self.housekeeping.run(now)
            self.engine.check_decision(now)
            self.engine.advance(now)
            # A snapshot is large, and the reserve is for what callers ask.
            if not self.journal.low() and self._snapshot(now):
                self._prune(now)
        return answers

    def _snapshot(self, now: Seconds) -> bool:
        """Take a snapshot of the state if one is due, with a quarantine earlier than otherwise."""
        keep_s = self.config.journal_keep_s
        early = {"every": REFOLD} if self.quarantine.waiting else {}
        return state_snapshots.maybe_take(self.engine, now, keep_s, **early)

    @property
    def _decides(self) -> bool:
        return not self._closing and not self.quarantine.off

    def _contain(self, error: Exception, left: list[Message | Call], released: list[JobStopped], last: bool) -> None:
        """Rebuild the core after a rollback, and exclude what failed from the next try.

        ``last`` : it is without any of its items.
        """
        quarantine, item = self.quarantine, self._at
        quarantine.faults += 1
        wrong_input = isinstance(item, Call) and isinstance(error, InputError)
        owner: Owner | None = None if wrong_input else getattr(error, "owner", None)
        if owner is None and not isinstance(item, Call):
            owner = SERVICE if item is None else item.owner if isinstance(item, Fault) else owner_of(item, self.state)
        log.error(
            "an error in a transaction, caused by %s; it is taken back, and what else came in is taken in again",
            owner or ("a call" if isinstance(item, Call) else SERVICE),
            exc_info=error,
        )
        self.outbox.take()
        recovery.rebuild(self.engine, self._given_book, self.config.validate)
        was_off = bool(quarantine.off)
        if isinstance(item, Fault):
            quarantine.waiting.remove(item)
            quarantine.ignored.add(item.owner)
            quarantine.turn_off(f"{item.owner} cannot be quarantined ({words_of(error)})")
        elif owner == POLICY and not self.engine.instead:
            self.engine.instead = words_of(error)
        elif owner == POLICY:
            quarantine.turn_off(words_of(error))
        elif owner is not None:
            quarantine.judge(error, owner, self.state, self.instant)
        elif not isinstance(item, Call):
            quarantine.turn_off(words_of(error))
        its_own = owner == SERVICE or (owner is None and not isinstance(item, Call))
        if last:
            for other in (*left, *released):
                if isinstance(other, Call):
                    other.fail(error)
                elif other is not item:
                    self.queue.put(other)  # the next transaction takes it in
            left.clear()
            released.clear()
        elif item is not None and not isinstance(item, Fault) and not (its_own and not was_off):
            # Errors of the service itself may vanish without decisions; repeated ones are then excluded.
            self._leave_out(item, error, left, released)

    def _leave_out(
        self, item: Message | Call, error: Exception, left: list[Message | Call], released: list[JobStopped]
    ) -> None:
        if any(item is other for other in released):
            released[:] = [other for other in released if other is not item]
            return
        left[:] = [other for other in left if other is not item]
        if isinstance(item, Call):
            item.fail(error)
        elif isinstance(item, JobStopped):
            # Its gang is gone, so its GPUs are free, whatever else its end should have come to.
            released.append(item)

    def _shut_out(self, fault: Fault, now: Seconds) -> None:
        """Record a quarantine."""
        self.engine.feed(fault.record, now)
        for command in self.engine.take_late(fault.owner):
            self.engine.write(command, now)  # the start has carried it out
        if fault.owner.kind == "machine":
            self.journal.set_drained(self.state.machines[fault.owner.number].name, True)

    def _after(self, do: Callable[[], object], owner: Owner | None = None) -> None:
        """Do something after the commit; where it fails, its owner is quarantined with the next transaction."""
        try:
            do()
        except Exception as error:
            self.quarantine.faults += 1
            log.exception("an error after a transaction, caused by %s", owner or "the service itself")
            if owner is not None:
                self.quarantine.judge(error, owner, self.state, self.instant)
                self.queue.put(WakeUp())

    def _wait(self, most_s: Seconds) -> list[Message | Call]:
        """Incoming items, immediately if there are any, else by the core's next wake-up."""
        due = min((at for at in (self.engine.next_wake, self.housekeeping.due) if at is not None), default=None)
        wait = most_s if due is None or not self._decides else min(max(due - self.now(), 0.0), most_s)
        items: list[Message | Call] = []
        try:
            items.append(self.queue.get(timeout=wait) if wait > 0 else self.queue.get_nowait())
            while len(items) < 1000:
                items.append(self.queue.get_nowait())
        except Empty:
            pass
        return items

    def _handle(self, item: Message, now: Seconds) -> None:
        owner = owner_of(item, self.state)
        heard = isinstance(item, JobStopped | MachineFailed | MachineReturned)
        if owner is not None and not heard and self.quarantine.out(owner, self.state):
            return  # of the quarantined it is heard that gangs ended, and whether a machine is there
        match item:
            case AttemptEnded():
                self.journal.add_attempt(now, item)
                self.engine.tallies.attempts[item.ending] += 1
                if not self.state.apps.active[item.app] or self.state.jobs.status[item.job] == ENDED:
                    return
                if item.ending.is_failure:
                    self.housekeeping.failed(item, now)
                elif item.cause == DISK:
                    self.housekeeping.filled_disk(item, now)
                elif item.ending.is_own or (item.ending is Ending.NODE_LOST and item.cause == UNABLE):
                    self.housekeeping.again(item, now)
            case Measurement():
                self._learn_speed(item, now)
            case GangIdle():
                self.housekeeping.idle_gpus(item, now)
            case GangIntrudes():
                self.housekeeping.intrudes(item, now)
            case DiskWarning():
                self.housekeeping.disk_quota(item)
            case RunReported():
                self.journal.add_run_id(item.app, item.job, item.attempt, item.tracker, item.run)
            case WakeUp() | ExecutorBroke():
                pass
            case (
                MachineFailed(machine=n)
                | MachineReturned(machine=n)
                | GpusWithheld(machine=n)
                | MachineRejected(machine=n)
            ) if n in self.state.removed:
                pass  # a machine that ends its last jobs
            case MachineRejected(machine=n, reason=reason):
                self.housekeeping.reject(n, reason, now)
            case MachineJoined():
                self.live.joined(item.machine, now)
            case MachineResized(machine=n):
                if n not in self.state.removed:
                    self.live.carry_out([item], now)
            case Reply():
                if self._decides:
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
        """Forget the programs of finished apps with ended gangs, and all except the names of long finished apps."""
        s = self.state
        self.outbox.dismiss(prune(s, now - self.config.journal_keep_s))
        ending = {int(s.jobs.app[job]) for job in s.occupied}
        kept = {spec.name for a, spec in enumerate(s.app_specs) if s.apps.active[a] or a in ending}
        self.outbox.waiting.append(partial(self._keep_programs, kept))

    def _keep_programs(self, names: set[str]) -> None:
        self.programs = {name: programs for name, programs in self.programs.items() if name in names}

    def _announce(self, now: Seconds, command: Command) -> None:
        if isinstance(command, AppFinished):
            self.journal.end_app(command.app, command.outcome, now, command.rho_paper)
            self.engine.tallies.app_ended(command.outcome, command.rho_paper)
            self.outbox.waiting.append(partial(self.agents.finished, command.app))
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

    def learn(self, profile: Profile, message: schema.Profile) -> None:
        """Add the speeds of a submission to what is known."""
        self.journal.add_profile(profile.name, message.model_dump_json())
        self.state.book = self.state.book.with_profiles([profile])

    def _learn_speed(self, new: Measurement, now: Seconds) -> None:
        """Correct the estimated speed of a model where jobs measured another one."""
        s = self.state
        app = s.app_specs[int(s.jobs.app[new.job])]
        measured = self.speeds.measured(new, s.book, app, s.job_specs[new.job], now)
        if measured is not None:
            self.engine.feed(measured, now)

    def enter(self, app: App, entry: Entry, event: Event) -> None:
        """Enter a submission; ``app`` and ``entry`` were checked."""
        self.housekeeping.quotas([app.user], self.instant)
        self.journal.add_app(entry)
        self.programs[app.name] = entry.programs
        self.outbox.admit(self.state.jobs.size, app)
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
            self.outbox.waiting.append(partial(self.executor.pardon, machine))
