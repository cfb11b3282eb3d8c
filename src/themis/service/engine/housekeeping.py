"""What the arbiter sees to beside scheduling, each turn: failures and waits after them, walltimes, order among apps, quotas.

Old logs and checkpoints are dropped beside it (``service.retention``).

All of it ends in events for the core, so the journal tells it again after a restart. Called in the arbiter's thread,
within its turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from themis.core.unit import groups_of
from themis.executors.program import ABSENT, AttemptEnded
from themis.jobs import After, When, decide
from themis.model.events import (
    AppCancelled,
    AppHeld,
    AppResumed,
    Event,
    JobDelayed,
    JobGivenUp,
    JobReached,
    JobStarted,
    JobStopped,
    QuotaSet,
)  # fmt: skip
from themis.model.units import Seconds
from themis.service.engine.journal import Entry, Options
from themis.service.engine.retention import EVERY_S, Sweeper, due

if TYPE_CHECKING:
    from themis.service.engine.arbiter import Arbiter


class Upkeep:
    """The standing tasks of an arbiter whose journal was folded."""

    def __init__(self, arbiter: Arbiter) -> None:
        self.arbiter = arbiter
        self.waiting: dict[int, Options] = {}
        """Apps that wait for others, by number."""
        self.walltime: dict[int, Seconds] = {}
        """Most seconds of each job that has such a limit."""
        self.until: dict[int, Seconds] = {}
        """When the walltime of a job that runs is used up."""
        self.anew = True
        """An app ended, or the arbiter starts: who waits may go on."""
        self.sweeper = Sweeper(arbiter.journal.path.parent / "run", arbiter.now() + EVERY_S)
        for entry in arbiter.journal.apps("ended IS NULL"):
            self.entered(entry)
        # A job without an arbiter ends with its machine's lease: longer than that nothing ran meanwhile.
        idle = max(arbiter.now() - arbiter.journal.last()[1] - arbiter.config.node_lease_s, 0.0)
        for job in sorted(arbiter.engine.started & self.walltime.keys() & arbiter.state.occupied.keys()):
            # Its lease began when its gang was about to start; the journal may not reach back so far.
            self._began(job, float(arbiter.state.jobs.since[job]) + idle)

    # ---- what the arbiter tells ---------------------------------------------------------------------------------------

    def entered(self, entry: Entry) -> None:
        """An app was submitted."""
        if entry.options.waiting:
            self.waiting[entry.app] = entry.options
            self.anew = True
        if entry.options.walltime_s is not None:
            self.walltime |= dict.fromkeys(self.arbiter.state.app_jobs(entry.app).tolist(), entry.options.walltime_s)

    def ended(self, app: int) -> None:
        """An app is over."""
        self.anew = True
        self.waiting.pop(app, None)
        for job in self.arbiter.state.app_jobs(app).tolist():
            self.walltime.pop(job, None)
            self.until.pop(job, None)

    def heard(self, event: Event, now: Seconds) -> None:
        """The core took an event in."""
        match event:
            case JobStarted() if event.job in self.walltime:
                self._began(event.job, now)
            case JobStopped() | JobReached():
                self.until.pop(event.job, None)
            case _:
                pass

    def _began(self, job: int, at: Seconds) -> None:
        self.until[job] = at + self.walltime[job] - self.arbiter.journal.seconds(job)

    def failed(self, end: AttemptEnded, now: Seconds) -> None:
        """An attempt failed by the job's own doing: another one later, or none."""
        arbiter = self.arbiter
        entry = arbiter.journal.apps("app = ?", end.app)[0]
        failures = arbiter.journal.failures(end.job)
        if end.cause == ABSENT and arbiter.config.engine == "local":
            # All machines are this one, so there is none where another attempt would find it. Nodes of an engine differ.
            self._give_up(end.job, "failed", f"cannot be started: {end.message}", now)
            return
        if failures > entry.retries:
            how = end.message or (f"exit code {end.code}" if end.code is not None else str(end.ending))
            often = "once" if failures == 1 else f"{failures} times, at last"
            self._give_up(end.job, "failed", f"failed {often}: {how}", now)
            return
        self._delay(end.job, failures, now)

    def again(self, end: AttemptEnded, now: Seconds) -> None:
        """An attempt ended without a failure: if it hardly ran, or its machine had no room to start it, the next one waits too.

        Or it would turn round and round.
        """
        short = self.arbiter.journal.short_in_a_row(end.job, self.arbiter.config.backoff_s)
        if short:
            self._delay(end.job, short, now)

    def _delay(self, job: int, times: int, now: Seconds) -> None:
        config = self.arbiter.config
        wait = min(config.backoff_s * 2.0 ** min(times - 1, 60), config.backoff_most_s)
        if wait > 0:
            self.arbiter.engine.feed(JobDelayed(job=job, until=now + wait), now)

    def _give_up(self, job: int, cause: str, why: str, now: Seconds) -> None:
        state = self.arbiter.state
        app = int(state.jobs.app[job])
        name = state.job_specs[job].name
        self.arbiter.journal.give_reason(app, f"{'its job' if name == 'job' else f'job {name}'} {why}")
        self.arbiter.engine.feed(JobGivenUp(job=job, cause=cause), now)

    # ---- each turn -----------------------------------------------------------------------------------------------------

    @property
    def due(self) -> Seconds | None:
        """When ``turn`` has something to do."""
        return min((*self.until.values(), *self.arbiter.state.draining.values()), default=None)

    def turn(self, now: Seconds) -> None:
        """Do what has become due."""
        for job in sorted(job for job, until in self.until.items() if until <= now):
            del self.until[job]
            self._give_up(job, "walltime", f"ran for {_words(self.walltime[job])}, its walltime", now)
        state = self.arbiter.state
        for machine in sorted(n for n, until in state.draining.items() if until <= now or not state.occupants(n)):
            self.arbiter.drain(machine, drained=True)
        self.sweeper.turn(now, lambda: due(self.arbiter, now))
        while self.anew:
            # Who is cancelled here may be waited for in turn.
            self.anew = False
            for app, options in sorted(self.waiting.items()):
                self._decide(app, options, now)

    def _decide(self, app: int, options: Options, now: Seconds) -> None:
        arbiter = self.arbiter
        verdict = verdict_of(options.after, arbiter.journal.apps(f"app IN ({_numbers(options)})"))
        if verdict is None:
            return
        del self.waiting[app]
        if verdict:
            arbiter.journal.set_options(app, waiting=False)
            if not arbiter.journal.apps("app = ?", app)[0].options.held:
                arbiter.engine.feed(AppResumed(app=app), now)
        else:
            arbiter.journal.give_reason(app, f"{unmet(arbiter, options)}, which it waited for to end otherwise")
            arbiter.engine.feed(AppCancelled(app=app), now)

    # ---- holds and quotas ------------------------------------------------------------------------------------------------

    def hold(self, app: int, now: Seconds) -> None:
        """The user wants an app to wait."""
        self.arbiter.journal.set_options(app, held=True)
        self.arbiter.engine.feed(AppHeld(app=app), now)

    def resume(self, app: int, now: Seconds) -> None:
        """The user lets it go on; one that waits for others still does."""
        self.arbiter.journal.set_options(app, held=False)
        if app not in self.waiting:
            self.arbiter.engine.feed(AppResumed(app=app), now)

    def quotas(self, users: Iterable[str], now: Seconds) -> None:
        """See to it that the core knows the quotas of these users as the settings have them."""
        known, config = self.arbiter.state.quotas, self.arbiter.config
        wanted = {
            name: (tuple(sorted(members)), gpus)
            for user in users
            for name, (members, gpus) in config.quotas(user).items()
        }
        for name, (members, gpus) in sorted(wanted.items()):
            if known.get(name) != (members, gpus):
                self.arbiter.engine.feed(QuotaSet(name=name, users=members, gpus=gpus), now)

    def all_quotas(self) -> None:
        """After a start: the unit of fairness may be another one, quotas may have come, gone or changed."""
        state, config, now = self.arbiter.state, self.arbiter.config, self.arbiter.instant
        fairness = config.fairness()
        if (state.between, state.groups) != (fairness.between, groups_of(fairness)):
            self.arbiter.engine.feed(fairness, now)
        wanted = {name for user in state.users for name in config.quotas(user)}
        for name in sorted(state.quotas.keys() - wanted):
            self.arbiter.engine.feed(QuotaSet(name=name, users=state.quotas[name][0], gpus=None), now)
        self.quotas(sorted(state.users), now)


def verdict_of(after: tuple[tuple[int, str], ...], entries: Iterable[Entry]) -> bool | None:
    """Whether an app may start: True, not yet (None), or never (False). ``entries`` : of the apps waited for."""
    ended = {str(entry.app): entry.outcome == "completed" for entry in entries if entry.outcome}
    return decide([After(name=str(app), when=When(when)) for app, when in after], ended)


def unmet(arbiter: Arbiter, options: Options) -> str:
    """The dependency that can never be met, in words: ``app 'prepare' failed``."""
    for app, when in options.after:
        (entry,) = arbiter.journal.apps("app = ?", app)
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
