"""Housekeeping in each transaction besides scheduling: failures and backoff, walltimes, dependencies, quotas, drains.

All of it ends in events for the core, so a restart folds it from the journal. Called in the arbiter's thread, within its
transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from themis.core.fairness_unit import groups_of
from themis.core.state import State
from themis.errors import InputError
from themis.jobs import After, When, decide
from themis.machines.engines.program import ABSENT, BROKEN, AttemptEnded, DiskWarning, GangIdle, GangIntrudes
from themis.model.events import (
    AppCancelled,
    AppHeld,
    AppResumed,
    Event,
    GpusIdle,
    GpusIntruded,
    JobDelayed,
    JobGivenUp,
    JobReached,
    JobStarted,
    JobStopped,
    MachineDraining,
    MachineFailed,
    MachineReturned,
    QuotaSet,
)
from themis.model.units import Seconds
from themis.service.engine.budgets import PREFIX, Budgets
from themis.service.engine.config import Config
from themis.service.engine.engine import Engine
from themis.service.engine.journal import Entry, Journal, Options

log = logging.getLogger("themis.service")


class Housekeeping:
    """The standing tasks of an arbiter.

    Parameters
    ----------
    engine : its journal was folded. ``now`` : in seconds since the journal began.
    """

    def __init__(self, engine: Engine, config: Config, now: Seconds) -> None:
        self.engine, self.journal, self.config = engine, engine.journal, config
        self.budgets = Budgets(engine, config)
        self.chores: list[Callable[[Seconds], object]] = []
        """Called with the time in each transaction, for tasks that do not concern the core."""
        self.waiting: dict[int, Options] = {}
        """Apps that wait for others, by number."""
        self.walltime: dict[int, Seconds] = {}
        """Most seconds of each job that has such a limit."""
        self.until: dict[int, Seconds] = {}
        """Time at which a running job's walltime is used up."""
        self.idle: dict[int, tuple[GangIdle, Seconds]] = {}
        """Jobs that were warned of idle GPUs: the last report and when it came."""
        self.intrusions: dict[tuple[int, int], GangIntrudes] = {}
        """Gangs on GPUs that they do not hold, by job and machine."""
        self.over_quota: dict[int, str] = {}
        """Jobs whose users exceed their disk quota, in words."""
        self.lost: set[int] = set()
        """Machines with lapsed leases, drained or not."""
        self.check_dependencies = True
        """An app ended, or the arbiter starts: apps that wait for others may continue."""
        for entry in self.journal.apps("ended IS NULL"):
            self.entered(entry)
        # A job without an arbiter ends with its machine's lease: longer than that nothing ran meanwhile.
        idle = max(now - self.journal.last()[1] - config.node_lease_s, 0.0)
        for job in sorted(engine.started & self.walltime.keys() & self.state.occupied.keys()):
            # Its lease began just before its gang's start; the journal may not reach that far back.
            self._began(job, float(self.state.jobs.since[job]) + idle)

    def go_back(self, config: Config) -> None:
        """A transaction was taken back, and the engine rebuilt; ``config`` : in force now."""
        self.config, self.waiting, self.check_dependencies = config, {}, True
        for entry in self.journal.apps("ended IS NULL", programs=False):
            self.entered(entry)
        self.budgets.change(config)

    @property
    def state(self) -> State:
        """Settings of the core."""
        return self.engine.core.state

    # ---- what happened -----------------------------------------------------------------------------------------------

    def entered(self, entry: Entry) -> None:
        """An app was submitted."""
        if entry.options.waiting:
            self.waiting[entry.app] = entry.options
            self.check_dependencies = True
        if entry.options.walltime_s is not None:
            self.walltime |= dict.fromkeys(self.state.app_jobs(entry.app).tolist(), entry.options.walltime_s)

    def ended(self, app: int) -> None:
        """An app is finished."""
        self.check_dependencies = True
        self.waiting.pop(app, None)
        for job in self.state.app_jobs(app).tolist():
            self.walltime.pop(job, None)
            self.until.pop(job, None)

    def observe(self, event: Event, now: Seconds) -> None:
        """The core took an event in."""
        match event:
            case JobStarted() if event.job in self.walltime:
                self._began(event.job, now)
            case JobStopped() | JobReached():
                self.until.pop(event.job, None)
                self.idle.pop(event.job, None)
                self.intrusions = {key: found for key, found in self.intrusions.items() if key[0] != event.job}
                self.over_quota.pop(event.job, None)
            case _:
                pass

    def idle_gpus(self, idle: GangIdle, now: Seconds) -> None:
        """Charge a gang for idle GPUs, warn, and cancel the app if the settings require it."""
        accounts, s = self.engine.books.accounts, self.state
        lease = accounts.leases.held.get(idle.job) if accounts is not None else None
        if lease is None or lease.attempt != idle.attempt or not s.apps.active[idle.app]:
            return
        cancel = 0 < self.config.idle_cancel_s <= idle.idle_s
        warn = 0 < self.config.idle_warn_s <= idle.longest_s and idle.job not in self.idle
        action = "cancelled" if cancel else "warned" if warn else ""
        if idle.gpu_seconds > 0 or action:
            seconds = lease.idle + idle.gpu_seconds
            self.engine.feed(
                GpusIdle(job=idle.job, attempt=idle.attempt, gpu_seconds=seconds, by=idle.by, action=action), now
            )
        if warn or idle.job in self.idle:
            self.idle[idle.job] = (idle, now)
        if idle.longest_s < self.config.idle_warn_s:
            self.idle.pop(idle.job, None)
        if cancel:
            limit = _words(self.config.idle_cancel_s)
            self.journal.give_reason(idle.app, f"{self._idle_words(idle, now, now)}, and idle_cancel is {limit}")
            self.engine.feed(AppCancelled(app=idle.app), now)

    def intrudes(self, found: GangIntrudes, now: Seconds) -> None:
        """A gang's processes are on GPUs that it does not hold: recorded, and reported to its user and to administrators."""
        key = found.job, found.machine
        known = self.intrusions.get(key)
        if not self.state.apps.active[found.app] or found.gpus == (known.gpus if known is not None else ()):
            return
        self.intrusions.pop(key, None)
        if found.gpus:
            self.intrusions[key] = found
            log.warning("%s", "; ".join(intrusion_words(self.state, found)))
        self.engine.feed(
            GpusIntruded(job=found.job, attempt=found.attempt, machine=found.machine, gpus=found.gpus, pids=found.pids),
            now,
        )

    def disk_quota(self, item: DiskWarning) -> None:
        """A job's user has more on a disk than the quota, or no more."""
        if item.sentence:
            self.over_quota[item.job] = item.sentence
        else:
            self.over_quota.pop(item.job, None)

    def filled_disk(self, end: AttemptEnded, now: Seconds) -> None:
        """A job was stopped because it fills a disk: its app is held until its user, or an administrator, has made room."""
        spec = self.state.app_specs[end.app]
        log.warning("app %d, %s, of user %s is held: %s", end.app, spec.name, spec.user, end.message)
        self.journal.set_options(end.app, held=True, why=end.message)
        self.engine.feed(AppHeld(app=end.app), now)

    def warnings(self, now: Seconds) -> dict[int, list[str]]:
        """By app, in words: GPUs idle for longer than ``idle_warn_s``, use of GPUs of others, disk quotas that are exceeded."""
        s, app_of = self.state, self.state.jobs.one.app
        found = [(app_of[j], self._idle_words(*self.idle[j], now)) for j in sorted(self.idle) if j in s.job_gpus]
        for _, intruding in sorted(self.intrusions.items()):
            found += [(intruding.app, sentence) for sentence in intrusion_words(s, intruding)]
        found += sorted({(app_of[j], sentence) for j, sentence in self.over_quota.items()})
        out: dict[int, list[str]] = {}
        for app, sentence in found:
            out.setdefault(app, []).append(sentence)
        return out

    def _idle_words(self, idle: GangIdle, at: Seconds, now: Seconds) -> str:
        how = "by NVML" if idle.by == "nvml" else "it reports no new steps"
        gpus = len(self.state.job_gpus.get(idle.job, ()))
        name = self.state.job_specs[idle.job].name
        whose = "its GPUs" if name == "job" else f"the GPUs of job {name}"
        cancel, warn = self.config.idle_cancel_s, self.config.idle_warn_s
        unused = [seconds for seconds in idle.each_s if seconds >= warn]
        if len(unused) < len(idle.each_s):
            seconds = round(min(unused) + now - at)
            return f"{len(unused)} of {whose} ({gpus}) did nothing for {_words(float(seconds))} ({how})"
        then = f"; the app is cancelled after {_words(cancel)}" if cancel > idle.idle_s else ""
        seconds = round(idle.idle_s + now - at)
        return f"{whose} ({gpus}) did nothing for {_words(float(seconds))} ({how}){then}"

    def _began(self, job: int, at: Seconds) -> None:
        self.until[job] = at + self.walltime[job] - self.journal.seconds(job)

    def failed(self, end: AttemptEnded, now: Seconds) -> None:
        """An attempt failed by the job's own doing: another one later, or none."""
        entry = self.journal.apps("app = ?", end.app)[0]
        failures = self.journal.failures(end.job)
        if end.cause == BROKEN or (end.cause == ABSENT and self.config.engine == "local"):
            # With the engine local, all machines are this host, so no other one would help. Nodes of an engine differ.
            self._give_up(end.job, "failed", f"cannot {'run' if end.code else 'be started'}: {end.message}", now)
            return
        if failures > entry.retries:
            how = end.message or (f"exit code {end.code}" if end.code is not None else str(end.ending))
            often = "once" if failures == 1 else f"{failures} times, at last"
            self._give_up(end.job, "failed", f"failed {often}: {how}", now)
            return
        self._delay(end.job, failures, now)

    def again(self, end: AttemptEnded, now: Seconds) -> None:
        """An attempt ended without a failure: if it hardly ran, or its machine had no room to start it, the next one waits too.

        Without the wait it would be restarted without end.
        """
        short = self.journal.short_in_a_row(end.job, self.config.backoff_s)
        if short:
            self._delay(end.job, short, now)

    def _delay(self, job: int, times: int, now: Seconds) -> None:
        wait = min(self.config.backoff_s * 2.0 ** min(times - 1, 60), self.config.backoff_most_s)
        if wait > 0:
            self.engine.feed(JobDelayed(job=job, until=now + wait), now)

    def _give_up(self, job: int, cause: str, why: str, now: Seconds) -> None:
        app = int(self.state.jobs.app[job])
        name = self.state.job_specs[job].name
        self.journal.give_reason(app, f"{'its job' if name == 'job' else f'job {name}'} {why}")
        self.engine.feed(JobGivenUp(job=job, cause=cause), now)

    # ---- each transaction ---------------------------------------------------------------------------------------------

    @property
    def due(self) -> Seconds | None:
        """Time at which ``run`` has something to do."""
        budgets = () if self.budgets.due is None else (self.budgets.due,)
        return min((*self.until.values(), *self.state.draining.values(), *budgets), default=None)

    def run(self, now: Seconds) -> None:
        """Do what has become due."""
        for job in sorted(job for job, until in self.until.items() if until <= now):
            self._give_up(job, "walltime", f"ran for {_words(self.walltime[job])}, its walltime", now)
            self.until.pop(job, None)
        state = self.state
        for machine in sorted(n for n, until in state.draining.items() if until <= now or not state.occupants(n)):
            self.drain(machine, True, now)
        self.budgets.run(now)
        for chore in self.chores:
            chore(now)
        while self.check_dependencies:
            # Other apps may wait for one that is cancelled here.
            self.check_dependencies = False
            for app, options in sorted(self.waiting.items()):
                self._decide(app, options, now)

    def _decide(self, app: int, options: Options, now: Seconds) -> None:
        verdict = verdict_of(options.after, self.journal.apps(f"app IN ({_numbers(options)})"))
        if verdict is None:
            return
        del self.waiting[app]
        if verdict:
            self.journal.set_options(app, waiting=False)
            held = self.journal.apps("app = ?", app)[0].options.held
            if not held and app not in self.state.quarantined_apps:
                self.engine.feed(AppResumed(app=app), now)
        else:
            self.journal.give_reason(app, f"{unmet(self.journal, options)}, so its dependency can never be met")
            self.engine.feed(AppCancelled(app=app), now)

    # ---- holds and quotas ------------------------------------------------------------------------------------------------

    def cancel(self, app: int, now: Seconds) -> None:
        """Withdraw an app."""
        self._check_active(app, "cancelled")
        self.engine.feed(AppCancelled(app=app), now)

    def hold(self, app: int, now: Seconds) -> None:
        """Pause an app and release its GPUs until it is resumed."""
        self._check_active(app, "held")
        self.journal.set_options(app, held=True)
        self.engine.feed(AppHeld(app=app), now)

    def resume(self, app: int, now: Seconds) -> None:
        """Let an app take part again; one that waits for other apps still does."""
        self._check_active(app, "resumed")
        self.journal.set_options(app, held=False, why="")
        if app not in self.waiting:
            self.engine.feed(AppResumed(app=app), now)

    def _check_active(self, app: int, what: str) -> None:
        if not self.state.apps.active[app]:
            name = self.state.app_specs[app].name
            raise InputError(
                f"app {name!r} is finished, so it cannot be {what}; `themis show {app}` says how it ended."
            )

    def quotas(self, users: Iterable[str], now: Seconds) -> None:
        """Send the core these users' quotas where the settings differ from the core's."""
        known, config = self.state.quotas, self.config
        wanted = {
            name: (tuple(sorted(members)), gpus)
            for user in users
            for name, (members, gpus) in config.quotas(user).items()
        }
        for name, (members, gpus) in sorted(wanted.items()):
            if known.get(name) != (members, gpus):
                self.engine.feed(QuotaSet(name=name, users=members, gpus=gpus), now)

    def change(self, config: Config, now: Seconds) -> None:
        """Other settings are in force: the unit of fairness, quotas, prices, groups and budgets follow now."""
        self.config = config
        warned = self.idle.items() if config.idle_warn_s else ()
        self.idle = {job: idle for job, idle in warned if idle[0].longest_s >= config.idle_warn_s}
        self.all_quotas(now)
        self.set_tariff(now)
        self.budgets.change(config)

    def all_quotas(self, now: Seconds) -> None:
        """Update the unit of fairness and all quotas at a start, where each may have been added, removed or changed."""
        state, config = self.state, self.config
        fairness = config.fairness()
        if (state.between, state.groups) != (fairness.between, groups_of(fairness)):
            self.engine.feed(fairness, now)
        wanted = {name for user in state.users for name in config.quotas(user)}
        for name in sorted(name for name in state.quotas.keys() - wanted if not name.startswith(PREFIX)):
            self.engine.feed(QuotaSet(name=name, users=state.quotas[name][0], gpus=None), now)
        self.quotas(sorted(state.users), now)

    def set_tariff(self, now: Seconds) -> None:
        """Record the tariff of GPU time from now on, where the settings differ from the record."""
        accounts = self.engine.books.accounts
        if accounts is not None and accounts.tariff != self.config.tariff():
            self.engine.feed(self.config.tariff(), now)

    # ---- machines ------------------------------------------------------------------------------------------------------

    def reachable(self, event: MachineFailed | MachineReturned, now: Seconds) -> None:
        """A machine's lease lapsed, or it is back; of a drained one the core is not informed."""
        (self.lost.add if isinstance(event, MachineFailed) else self.lost.discard)(event.machine)
        if self.state.machines[event.machine].name not in self.journal.drained():
            self.engine.feed(event, now)

    def reject(self, machine: int, reason: str, now: Seconds) -> None:
        """Take a machine out of service that sent again and again what is not accepted; the reason is kept until it is back."""
        self.journal.set_meta(f"rejected {self.state.machines[machine].name}", reason)
        self.drain(machine, True, now)

    def rejected(self, machine: int) -> str:
        """Why a drained machine was rejected; empty where it was not."""
        name = self.state.machines[machine].name
        return (self.journal.meta(f"rejected {name}") or "") if name in self.journal.drained() else ""

    def drain(self, machine: int, drained: bool, now: Seconds, within_s: Seconds = 0.0) -> None:
        """Take a machine out of service, its jobs preempted; or back, if it is reachable.

        ``within_s`` : until then its jobs may end by themselves, and no more are placed there.

        Raises
        ------
        InputError : the machine was removed.
        """
        name = self.state.machines[machine].name
        if machine in self.state.removed:
            raise InputError(f"node {name} was removed; `themis set machines.{name}.gpus=N` puts it back.")
        if drained and within_s > 0 and name not in self.journal.drained():
            self.engine.feed(MachineDraining(machine=machine, until=now + within_s), now)
            return
        if machine in self.state.draining:
            self.engine.feed(MachineDraining(machine=machine), now)
        self.journal.set_drained(name, drained)
        if not drained and self.journal.meta(f"rejected {name}"):
            self.journal.set_meta(f"rejected {name}", "")
        up = bool(self.state.machine_up[machine])
        if drained and up:
            self.engine.feed(MachineFailed(machine=machine, drained=True), now)
        elif not drained and not up and machine not in self.lost:
            self.engine.feed(MachineReturned(machine=machine), now)


def verdict_of(after: tuple[tuple[int, str], ...], entries: Iterable[Entry]) -> bool | None:
    """Whether an app may start: True, not yet (None), or never (False). ``entries`` : of the apps waited for."""
    ended = {str(entry.app): entry.outcome == "completed" for entry in entries if entry.outcome}
    return decide([After(name=str(app), when=When(when)) for app, when in after], ended)


def unmet(journal: Journal, options: Options) -> str:
    """The dependency that can never be met, in words: ``app 'prepare' failed``."""
    for app, when in options.after:
        (entry,) = journal.apps("app = ?", app)
        if entry.outcome and verdict_of(((app, when),), [entry]) is False:
            return f"app {entry.name!r} {'is' if entry.outcome == 'cancelled' else 'has'} {entry.outcome}"
    return "an app"


def _numbers(options: Options) -> str:
    return ", ".join(str(app) for app, _ in options.after)


def _words(seconds: Seconds) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    parts = [f"{hours:.0f}h" if hours else "", f"{minutes:.0f}m" if minutes else "", f"{left:g}s" if left else ""]
    return "".join(parts) or "0s"


def intrusion_words(state: State, found: GangIntrudes | GpusIntruded) -> list[str]:
    """Sentences, without full stops, on the use of GPUs that a gang does not hold, one for each GPU."""
    here, app = state.gpus_of[found.machine], int(state.jobs.app[found.job])
    by = f"process {found.pids[0]}" if len(found.pids) == 1 else f"processes {', '.join(map(str, found.pids))}"
    whose = f"app {app} ({state.app_specs[app].name}), which does not hold it"
    name = state.machines[found.machine].name
    return [f"GPU {here.index(gpu)} of {name} is used by {by} of {whose}" for gpu in found.gpus if gpu in here]
