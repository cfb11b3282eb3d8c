"""Finish of each app of a run on its own share of the cluster, from the log alone: for ``rho_reference``.

The reference is ``fairness.fluid``: at each instant the GPUs in service are divided by weight among the apps in it, as far as
each can use them. No policy influences it: an app's time in it follows from arrivals, weights, what apps needed and
the machines in service. An app needs what it needed in the end (``AppFinished.needed``), one that is not over what was believed
when it came. One elastic job trains there at its measured speed with as many GPUs, on a straight line between gangs. It leaves when
it finishes there, is cancelled or fails; while its user holds it, it stands still.

It may be asked at any time and goes on where it stopped. Where an app that ended needed something else than was believed,
it goes back to a mark from before that app's arrival, and runs from there again.

Source: Friedman and Henderson, Fairness and efficiency in web server protocols (SIGMETRICS 2003); decision 33.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.core.fairness_unit import groups_of, weights
from themis.fairness import fluid
from themis.model.events import AppFinished, AppSubmitted, FairnessSet
from themis.model.units import Bool, Float, GpuSeconds, Int, Seconds

ENDLESS = 1e15
"""GPU-seconds of an app of which nothing is known but that it is not over."""
Needed = tuple[tuple[GpuSeconds, float], ...]
Step = tuple[Seconds, str, int, float]
"""(time, what, app, value): an app ``enters``, ``leaves``, is ``gone`` or has another ``weight``; or ``gpus`` come into service."""
BETWEEN_MARKS = 64
"""Steps from one mark to the next."""
OPEN = np.iinfo(np.int64).max
ALIKE = 1e-9
"""Relative difference of work or GPUs below which nothing runs again."""


@dataclass(slots=True)
class _Entry:
    """One app: its estimated need, from its arrival on."""

    arrival: Seconds
    given: float
    own: float
    user: int
    needed: Needed
    held: Seconds = 0.0
    held_since: Seconds = math.nan
    scaling: fluid.Scaling = ()
    """``AppFinished.scaling``; its work is then in GPU-seconds at full speed."""
    known: bool = False
    """True if its end showed its need."""
    unknown: bool = False
    """True if nothing was said about its work."""
    over: bool = False
    step: int = 0
    """Number of the step of its arrival."""


@dataclass(frozen=True, slots=True)
class Isolated:
    """Seconds that each app takes on its own share, [A] each; NaN where the log does not say.

    ``reference`` : in the reference, without what its user held it. ``alone`` : on an idle cluster, with its starts.
    ``held`` : what its user held it in fact.
    """

    reference: Float
    alone: Float
    held: Float


@dataclass(slots=True)
class Reference:
    """Fold of the events that the reference depends on; ``isolated`` runs the reference."""

    apps: list[_Entry] = field(default_factory=list)
    users: dict[str, int] = field(default_factory=dict)
    between: str = "apps"
    groups: dict[str, tuple[str, float]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    revised: list[int] = field(default_factory=list)
    """Apps that needed something else than was believed, and that the run does not know of yet."""
    run: _Run | None = None

    def service(self, time: Seconds, gpus: int) -> None:
        """Add this many GPUs to those in service; negative: remove."""
        self.steps.append((time, "gpus", -1, gpus))

    def fairness(self, event: FairnessSet) -> None:
        """Set the unit of fairness; the last one applies to the whole run."""
        self.between, self.groups = event.between, groups_of(event)

    def reweigh(self, time: Seconds, app: int, weight: float) -> None:
        """The weight of an app's user is another one: ``weight`` is that of the app with its user's and group's."""
        self.steps.append((time, "weight", app, weight))

    def submit(self, time: Seconds, event: AppSubmitted) -> None:
        """An app arrived."""
        app = event.app
        gpus = float(sum(job.gpus_max for job in app.jobs[: app.at_once or None]))
        work, longest = event.alone or (ENDLESS, ENDLESS / gpus)
        user = self.users.setdefault(app.user, len(self.users))
        needed = ((work, work / longest if longest > 0 else gpus),)
        entry = _Entry(time, event.weight, app.weight, user, needed, step=len(self.steps), unknown=event.unknown)
        self.apps.append(entry)
        self.steps.append((time, "enters", len(self.apps) - 1, 0.0))

    def hold(self, time: Seconds, app: int, held: bool) -> None:
        """The user holds an app, or releases it."""
        entry = self.apps[app]
        if held:
            entry.held_since = time
        elif not math.isnan(entry.held_since):
            entry.held += time - entry.held_since
            entry.held_since = math.nan
        self.steps.append((time, "leaves" if held else "enters", app, 0.0))

    def finish(self, time: Seconds, event: AppFinished, *, live: bool = False) -> None:
        """An app finished: its total need is known. In the reference a completed app continues.

        ``live`` : of real jobs. If nothing was said about its work, ``needed`` is an assumption: for the others it needed what
        it was leased, and its own time in the reference is unknown. A simulation knows all work.
        """
        entry = self.apps[event.app]
        if not math.isnan(entry.held_since):
            self.hold(time, event.app, False)
            self.steps.pop()
        entry.over = True
        if event.needed and live and entry.unknown:
            entry.needed = ((event.gpu_seconds, max(most for _, most in event.needed)),)
            self.revised.append(event.app)
        elif event.needed:
            if event.scaling or not _alike(entry.needed, event.needed):
                self.revised.append(event.app)
            entry.needed, entry.scaling, entry.known = event.needed, event.scaling, True
        if event.outcome != "completed":
            self.steps.append((time, "gone", event.app, 0.0))

    def lasted(self) -> Float:
        """[A], seconds that each app spends in the reference without further arrivals; NaN if unfinished."""
        return self._up_to_date().to_end() if self.apps else np.zeros(0)

    def received(self, now: Seconds) -> Float:
        """[A], GPU-seconds that each app got in the reference by ``now``, at or after the last step."""
        return self._up_to_date().up_to(now) if self.apps else np.zeros(0)

    def _up_to_date(self) -> _Run:
        if self.run is None or self.run.unit != (self.between, self.groups):
            self.run, self.revised = _Run(self), []
        self.run.catch_up()
        return self.run

    def alone(self, app: int, gpus: float, start_s: Seconds) -> Seconds:
        """Seconds that an app takes on an idle cluster of ``gpus`` GPUs, with one start."""
        return start_s + sum(work / min(most, max(gpus, 1.0)) for work, most in self.apps[app].needed)

    def isolated(self, ends: Sequence[AppFinished | None], start_s: Seconds) -> Isolated:
        """Run the reference to its end, without arrivals after the last record.

        Parameters
        ----------
        ends : [A], how each app ended. ``start_s`` : seconds that a start takes.
        """
        lasted = self.lasted()
        lasted[[not entry.known for entry in self.apps]] = math.nan
        alone = np.full(len(self.apps), math.nan)
        for a, (entry, end) in enumerate(zip(self.apps, ends, strict=True)):
            if end is not None and entry.known:
                alone[a] = end.alone or self.alone(a, end.capacity, start_s)
        return Isolated(lasted, alone, np.array([entry.held for entry in self.apps]))


@dataclass(frozen=True, slots=True)
class _Mark:
    """State of the run before a step, from which it can continue. ``rows`` : apps neither finished nor gone."""

    step: int
    now: Seconds
    capacity: float
    apps: int
    rows: Int
    present: Bool
    shadow: Float
    lasted: Float
    weight: Float


class _Run:
    """The run of a reference, as far as its steps go."""

    def __init__(self, given: Reference) -> None:
        self.given, self.unit = given, (given.between, given.groups)
        self.step, self.now, self.capacity = 0, -math.inf, 0.0
        self.work, self.most, self.before = (np.zeros((0, 1)) for _ in range(3))
        self.own, self.weight, self.shadow, self.lasted = (np.zeros(0) for _ in range(4))
        self.user: Int = np.zeros(0, dtype=np.int64)
        self.present, self.over = np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.bool_)
        self.closed: Int = np.zeros(0, dtype=np.int64)
        """[A], number of the step before which an app was over or gone; ``OPEN`` while it is neither."""
        self.marks: list[_Mark] = []

    def catch_up(self) -> None:
        """Run up to the last step, again from where an app was first revised."""
        given, size = self.given, len(self.own)
        again = [a for a in given.revised if a < size]
        self._take_in(again, size)
        given.revised = []
        if again and (first := min(given.apps[a].step for a in again)) < self.step:
            self._go_back(first)
        open_from = next((entry.step for entry in given.apps if not entry.over), len(given.steps))
        while self.step < len(given.steps):
            if not self.marks or self.step - self.marks[-1].step >= BETWEEN_MARKS:
                if self.step <= open_from:
                    self.marks.clear()
                self.marks.append(self._mark())
            time = given.steps[self.step][0]
            if self.now < time:
                self._advance(time - self.now)
                self.now = time
            # Steps of one instant belong together.
            while self.step < len(given.steps) and given.steps[self.step][0] <= time:
                self._take(*given.steps[self.step][1:])
                self.step += 1
        # Nothing from before the first app that is not over changes any more.
        needless = sum(mark.step <= open_from for mark in self.marks) - 1
        self.marks = self.marks[max(needless, 0) :]

    def to_end(self) -> Float:
        """[A], seconds that each app spent in it; NaN where it left before it finished, or would never."""
        rows, _, finish = self._run(math.inf)
        out: Float = np.where(self.over, self.lasted, math.nan)
        out[rows] = np.where(np.isfinite(finish), self.lasted[rows] + finish, math.nan)
        return out

    def up_to(self, now: Seconds) -> Float:
        """[A], GPU-seconds that each app got by ``now``."""
        rows, got, _ = self._run(max(now - self.now, 0.0))
        out = self.shadow.copy()
        out[rows] += got
        return out

    def _take_in(self, revised: Sequence[int], size: int) -> None:
        """New apps, and what others needed in the end."""
        apps = self.given.apps
        new = apps[size:]
        more = len(new)
        phases = max((len(apps[a].needed) for a in (*revised, *range(size, len(apps)))), default=1)
        wider = max(phases - self.work.shape[1], 0)
        self.work, self.most, self.before = (
            np.pad(x, ((0, more), (0, wider))) for x in (self.work, self.most, self.before)
        )
        for a in (*revised, *range(size, len(apps))):
            needed = apps[a].needed
            self.work[a], self.most[a] = 0.0, 0.0
            if needed:
                self.work[a, : len(needed)], self.most[a, : len(needed)] = zip(*needed)
            self.before[a] = np.cumsum(self.work[a]) - self.work[a]
        self.own = np.concatenate([self.own, [e.own for e in new]])
        self.weight = np.concatenate([self.weight, [e.given for e in new]])
        self.user = np.concatenate([self.user, np.array([e.user for e in new], dtype=np.int64)])
        self.shadow, self.lasted = (np.pad(x, (0, more)) for x in (self.shadow, self.lasted))
        self.present, self.over = (np.pad(x, (0, more)) for x in (self.present, self.over))
        self.closed = np.pad(self.closed, (0, more), constant_values=OPEN)

    def _mark(self) -> _Mark:
        rows = np.flatnonzero(self.closed == OPEN)
        kept = (self.present[rows], self.shadow[rows], self.lasted[rows], self.weight[rows])
        return _Mark(self.step, self.now, self.capacity, len(self.own), rows, *kept)

    def _go_back(self, step: int) -> None:
        """Return to the last mark that is not after this step."""
        at = max(sum(mark.step <= step for mark in self.marks) - 1, 0)
        mark, self.marks = self.marks[at], self.marks[: at + 1]
        again = np.flatnonzero(self.closed >= mark.step)
        self.closed[again], self.over[again], self.present[again] = OPEN, False, False
        self.shadow[again] = self.lasted[again] = 0.0
        self.weight[again] = [self.given.apps[a].given for a in again.tolist()]
        self.present[mark.rows], self.shadow[mark.rows] = mark.present, mark.shadow
        self.lasted[mark.rows], self.weight[mark.rows] = mark.lasted, mark.weight
        self.step, self.now, self.capacity = mark.step, mark.now, mark.capacity

    def _take(self, what: str, app: int, value: float) -> None:
        if what == "gpus":
            self.capacity += value
        elif what == "weight":
            self.weight[app] = value
        elif self.closed[app] == OPEN:
            self.present[app] = what == "enters"
            if what == "gone":
                self.closed[app] = self.step

    def _run(self, seconds: Seconds) -> tuple[Int, Float, Float]:
        """Rows of the apps in it, what each gets in the next ``seconds`` and when it finishes."""
        rows = self.present.nonzero()[0]
        given = self.given
        if not len(rows):
            return rows, np.zeros(0), np.zeros(0)
        left = np.clip(self.work[rows] - np.maximum(self.shadow[rows][:, None] - self.before[rows], 0.0), 0.0, None)
        names = tuple(given.users)
        weight = weights(given.between, self.weight[rows], self.own[rows], self.user[rows], names, given.groups)
        curves = [given.apps[a].scaling for a in rows.tolist()]
        if any(curves):
            return rows, *fluid.run_scaled(left, self.most[rows], weight, self.capacity, curves, seconds)
        return rows, *fluid.run(left, self.most[rows], weight, self.capacity, seconds)

    def _advance(self, seconds: Seconds) -> None:
        rows, got, finish = self._run(seconds)
        self.shadow[rows] += got
        self.lasted[rows] += np.where(np.isfinite(finish), finish, seconds)
        done = rows[np.isfinite(finish)]
        self.over[done], self.present[done], self.closed[done] = True, False, self.step


def _alike(one: Needed, other: Needed) -> bool:
    pairs = ((a, b) for x, y in zip(one, other) for a, b in zip(x, y))
    return len(one) == len(other) and all(abs(a - b) <= ALIKE * abs(b) or a == b for a, b in pairs)
