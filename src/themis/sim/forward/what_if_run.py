"""The simulations of a what-if: each case under the same arrivals and the same errors of estimates.

So cases differ by what they change alone, and differences are of pairs.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.pool import Pool
from time import monotonic

import numpy as np

from themis.core.state import State
from themis.errors import ClusterError, ThemisError
from themis.model.events import AppFinished, AppResumed, AppSubmitted, Command, SettingsChanged
from themis.model.units import Float, Seconds
from themis.policies.api import logged_params, make_policy
from themis.sim.forward import question
from themis.sim.forward.arrivals import Arrival, draw
from themis.sim.forward.present_state import Present
from themis.sim.forward.question import CURRENT, Question
from themis.sim.from_state import FromState
from themis.sim.onward import ERROR

CHECK_EVERY = 64
"""Events between two looks at the clock."""
MOST_DRAWN = 20_000
"""Drawn arrivals of one simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Simulated case: a policy, with or without the question's changes."""

    policy: str
    changed: bool

    @property
    def label(self) -> str:
        """Label of the run in tables."""
        return self.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Times at which apps end.

    Attributes
    ----------
    apps : their numbers. ``ends`` : [S, C, A], seconds of the log by simulation, case and app; infinity where not within the
        horizon, NaN of apps that the case leaves out.
    problems : why a case could not be simulated to the end, by case.
    """

    now: Seconds
    cases: Sequence[Case]
    apps: Sequence[int]
    ends: Float
    problems: Mapping[int, str] = field(default_factory=dict)


def cases_of(asked: Question) -> list[Case]:
    """The present as it is first, then each policy under the changes."""
    named = [Case(policy=spec, changed=asked.changes) for spec in dict.fromkeys(asked.policies)]
    today = Case(policy=CURRENT, changed=False)
    return [today, *(case for case in named if case != today)]


def simulate(present: Present, asked: Question, allowed_s: Seconds = 3600.0, processes: int = 1) -> Ends:
    """Simulate every case under every seed, some in parallel; seeds for which there is no time are missing, but the first.

    Raises
    ------
    InputError, UnknownName : the question does not fit the state.
    """
    state = present.core().state
    question.check_policies(state, asked.policies)
    question.changes(state, asked)
    cases, apps = cases_of(asked), apps_of(state, present)
    now, end = max(state.now, present.now or state.now), monotonic() + allowed_s
    if all(is_unknown(present, state, a) for a in apps):
        # One simulation of the assumption: nothing else is known, and no interval would say how wrong it is.
        work = _Work(replace(present, unknown=frozenset()), replace(asked, arrivals=False), cases, apps)
        one = work.one(asked.seeds[0], allowed_s / 4)
        return Ends(now=now, cases=cases, apps=apps, ends=one.rows[None], problems=one.problems)
    work = _Work(present, asked, cases, apps)
    # The first simulation may take twice the time that all may take: without it there is no answer.
    first = work.one(asked.seeds[0], 2 * allowed_s)
    rows = [first.rows]
    sound = [c for c in range(len(cases)) if c not in first.problems]
    rest = _Work(present, asked, [cases[c] for c in sound], apps)
    for done in rest.many(asked.seeds[1:], end, processes) if sound else ():
        row = np.full((len(cases), len(apps)), np.nan)
        row[sound] = done.rows
        rows.append(row)
    return Ends(now=now, cases=cases, apps=apps, ends=np.stack(rows), problems=first.problems)


@dataclass(frozen=True, slots=True)
class _Seed:
    """The ends under one seed, [C, A]; ``problems`` by case."""

    rows: Float
    problems: dict[int, str]


@dataclass(frozen=True, slots=True)
class _Work:
    """Work simulated under each seed."""

    present: Present
    asked: Question
    cases: Sequence[Case]
    apps: Sequence[int]

    def one(self, seed: int, allowed_s: Seconds) -> _Seed:
        """All cases under one seed."""
        rows, problems = np.full((len(self.cases), len(self.apps)), np.nan), dict[int, str]()
        limit = monotonic() + allowed_s
        for c, case in enumerate(self.cases):
            try:
                found = Forward(self.present, self.asked, case, seed).until_ended(self.apps, limit)
            except ThemisError as error:
                problems[c] = str(error)
                continue
            if found is None:
                problems[c] = "one simulation took longer than is allowed; a shorter horizon takes less."
            else:
                rows[c] = found
        return _Seed(rows, problems)

    def many(self, seeds: Sequence[int], end: float, processes: int) -> Iterator[_Seed]:
        """Each seed's ends in order, up to the first for which there is no time or where a policy fails."""
        left = end - monotonic()
        if left <= 0 or not seeds:
            return
        if processes == 1:
            for seed in seeds:
                done = self.one(seed, end - monotonic())
                if done.problems:
                    return
                yield done
            return
        with pool(min(processes, len(seeds)), self, left) as workers:
            for done in workers.imap(_in_process, seeds):
                if done.problems:
                    return
                yield done


def pool(processes: int, work: _Work | None = None, allowed_s: Seconds = 0.0) -> Pool:
    """Processes that inherit nothing from this one; they end with the block."""
    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    return context.Pool(processes, initializer=_begin, initargs=(work, allowed_s))


_own: tuple[_Work, float] | None = None
"""In a process of a pool: its work, and its deadline."""


def _begin(work: _Work | None, allowed_s: Seconds) -> None:
    global _own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _own = None if work is None else (work, monotonic() + allowed_s)


def _in_process(seed: int) -> _Seed:
    assert _own is not None
    work, end = _own
    return work.one(seed, end - monotonic())


def is_unknown(present: Present, state: State, a: int) -> bool:
    """True for an app whose end nobody can know: nothing was said of its work. Others are simulated beside an assumption of it."""
    spec = state.app_specs[a] if a < state.apps.size else present.coming[a - state.apps.size].app
    return spec.name in present.unknown


def apps_of(state: State, present: Present) -> list[int]:
    """The apps of the question: those in the system, then those certain to arrive."""
    there = np.flatnonzero(state.apps.active[: state.apps.size]).tolist()
    return [*there, *range(state.apps.size, state.apps.size + len(present.coming))]


class Forward(FromState):
    """One simulation of one case."""

    def __init__(self, present: Present, asked: Question, case: Case, seed: int) -> None:
        own = make_policy(present.dump.policy)
        self.seed = seed
        super().__init__(present.dump.core(own), own, self._error, present.now)
        s, now = self.core.state, self.kernel.now
        self.present, self.asked, self.ended = present, asked, dict[int, Seconds]()
        self.waits = {a: set(on) for a, on in present.waits.items() if s.apps.active[a] and s.apps.held[a]}
        self.gone = set[int]()
        self.unknown = {a for a in np.flatnonzero(s.apps.active[: s.apps.size]).tolist() if is_unknown(present, s, a)}
        if case.changed:
            for event in question.changes(s, asked):
                self.feed(event, now)
            self.gone = {question.find_app(present.core().state, ref) for ref in asked.without}
        if case.policy != CURRENT:
            params = logged_params(make_policy(case.policy))
            self.feed(SettingsChanged(user="", policy=case.policy, params=params), now)
        for one in present.coming:
            self._submit(one)
        rng = np.random.default_rng([seed, 0xA221])
        self.further = draw(present.history, present.began, now, rng, MOST_DRAWN) if asked.arrivals else iter(())
        self.next_at: Seconds = now
        self._draw()

    def until_ended(self, apps: Sequence[int], limit: float) -> list[Seconds] | None:
        """End of each app; infinity if not within the horizon, NaN if left out. None if time ran out."""
        horizon, steps = self.began + self.asked.horizon_s, 0
        while not self._over(apps) and self.kernel.now <= horizon:
            steps += 1
            if steps % CHECK_EVERY == 0 and monotonic() > limit:
                return None
            if not self.step():
                break
            if self.next_at <= self.kernel.now:
                self._draw()
        ends = [self.ended.get(a, np.inf) for a in apps]
        return [np.nan if a in self.gone else end if end <= horizon else np.inf for a, end in zip(apps, ends)]

    def carry_out(self, command: Command, now: Seconds) -> None:
        """Simulate gangs; when an app ends, apps that waited for it continue."""
        if isinstance(command, AppFinished):
            self.ended[command.app] = now
            for a, on in list(self.waits.items()):
                on.discard(command.app)
                if not on:
                    del self.waits[a]
                    self.kernel.schedule(now, AppResumed(app=a))
        super().carry_out(command, now)

    def _over(self, apps: Sequence[int]) -> bool:
        """True if all apps of the question have ended, except held ones."""
        s = self.core.state
        if apps and apps[-1] >= s.apps.size:
            return False
        left = [a for a in apps if a not in self.ended and a not in self.unknown]
        return all(s.apps.held[a] and a not in self.waits for a in left)

    def _draw(self) -> None:
        """Schedule the next arrival that is drawn; what can never run here does not arrive."""
        for one in self.further:
            self.next_at = one.time
            if one.time > self.began + self.asked.horizon_s:
                break
            with suppress(ClusterError):
                self.core.state.check_fits(one.app)
                self._submit(one)
                return
        self.next_at = np.inf

    def _submit(self, one: Arrival) -> None:
        self.kernel.schedule(one.time, AppSubmitted(app=one.app, weight=one.weight))

    def _error(self, app: int) -> float:
        """Random error of an app's estimated speed: none under the first seed."""
        return float(np.random.default_rng([self.seed, app]).uniform(1 - ERROR, 1 + ERROR)) if self.seed else 1.0
