"""When each app of a run would have finished on its own share of the cluster, from the log alone: for ``rho_reference``.

The reference is ``fairness.fluid``: at each instant the GPUs in service are divided by weight among the apps in it, as far as
each can use them. No policy influences it: an app's time in it follows from arrivals, weights, what apps needed and
the machines in service. An app needs what it needed in the end (``AppFinished.needed``), one that is not over what was believed
when it came. It leaves when it finishes there, is cancelled or fails; while its user holds it, it stands still.

Source: Friedman and Henderson, Fairness and efficiency in web server protocols (SIGMETRICS 2003); decision 33.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.core.unit import groups_of, weights
from themis.fairness import fluid
from themis.model.events import AppFinished, AppSubmitted, FairnessSet
from themis.model.units import Bool, Float, GpuSeconds, Seconds

ENDLESS = 1e15
"""GPU-seconds of an app of which nothing is known but that it is not over."""
Needed = tuple[tuple[GpuSeconds, float], ...]
Step = tuple[Seconds, str, int, float]
"""(time, what, app, value): an app ``enters``, ``leaves`` or has another ``weight``; or ``gpus`` come into service."""


@dataclass(slots=True)
class _Entry:
    """One app: what it is believed to need, from its arrival on."""

    arrival: Seconds
    given: float
    own: float
    user: int
    needed: Needed
    held: Seconds = 0.0
    held_since: Seconds = math.nan
    known: bool = False
    """Whether its end said what it needed."""


@dataclass(frozen=True, slots=True)
class Isolated:
    """Seconds that each app takes on its own share, [A] each; NaN where the log does not say.

    ``reference`` : in the reference, without what its user held it. ``alone`` : on an idle cluster, with one start.
    ``held`` : what its user held it in fact.
    """

    reference: Float
    alone: Float
    held: Float


@dataclass(slots=True)
class Reference:
    """Takes what the reference follows from as it happens; ``isolated`` runs it."""

    apps: list[_Entry] = field(default_factory=list)
    users: dict[str, int] = field(default_factory=dict)
    between: str = "apps"
    groups: dict[str, tuple[str, float]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def service(self, time: Seconds, gpus: int) -> None:
        """So many GPUs more, or fewer, are in service."""
        self.steps.append((time, "gpus", -1, gpus))

    def fairness(self, event: FairnessSet) -> None:
        """The unit of fairness; the last one counts for all of the run."""
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
        self.steps.append((time, "enters", len(self.apps), 0.0))
        self.apps.append(
            _Entry(time, event.weight, app.weight, user, ((work, work / longest if longest > 0 else gpus),))
        )

    def hold(self, time: Seconds, app: int, held: bool) -> None:
        """Its user holds an app, or lets it go on."""
        entry = self.apps[app]
        if held:
            entry.held_since = time
        elif not math.isnan(entry.held_since):
            entry.held += time - entry.held_since
            entry.held_since = math.nan
        self.steps.append((time, "leaves" if held else "enters", app, 0.0))

    def finish(self, time: Seconds, event: AppFinished) -> None:
        """An app is over: what it needed is known. In the reference one that completed goes on."""
        entry = self.apps[event.app]
        if not math.isnan(entry.held_since):
            self.hold(time, event.app, False)
            self.steps.pop()
        if event.needed:
            entry.needed, entry.known = event.needed, True
        if event.outcome != "completed":
            self.steps.append((time, "leaves", event.app, 0.0))

    def lasted(self) -> Float:
        """[A], seconds that each app spends in the reference, nobody else coming; NaN of those that leave it unfinished."""
        return _Run(self).to_end() if self.apps else np.zeros(0)

    def isolated(self, ends: Sequence[AppFinished | None], start_s: Seconds) -> Isolated:
        """Run the reference to its end, nobody else coming after the last record.

        Parameters
        ----------
        ends : [A], how each app ended. ``start_s`` : seconds that a start takes.
        """
        lasted = self.lasted()
        lasted[[not entry.known for entry in self.apps]] = math.nan
        alone = np.full(len(self.apps), math.nan)
        for a, (entry, end) in enumerate(zip(self.apps, ends, strict=True)):
            if end is not None and entry.known:
                gpus = max(end.capacity, 1.0)
                alone[a] = start_s + sum(work / min(most, gpus) for work, most in entry.needed)
        return Isolated(lasted, alone, np.array([entry.held for entry in self.apps]))


class _Run:
    """One run of the reference."""

    def __init__(self, given: Reference) -> None:
        self.given, apps = given, given.apps
        phases = max(len(entry.needed) for entry in apps)
        self.work, self.most = np.zeros((len(apps), phases)), np.zeros((len(apps), phases))
        for a, entry in enumerate(apps):
            if entry.needed:
                self.work[a, : len(entry.needed)], self.most[a, : len(entry.needed)] = zip(*entry.needed)
        self.before = np.cumsum(self.work, axis=1) - self.work
        self.own, self.weight = np.array([e.own for e in apps]), np.array([e.given for e in apps])
        self.user, self.names = np.array([e.user for e in apps]), tuple(given.users)
        self.present: Bool = np.zeros(len(apps), dtype=np.bool_)
        self.shadow, self.lasted = np.zeros(len(apps)), np.zeros(len(apps))
        self.over: Bool = np.zeros(len(apps), dtype=np.bool_)
        self.capacity = 0.0

    def to_end(self) -> Float:
        """[A], seconds that each app spent in it; NaN where it left before it finished, or would never."""
        now = -math.inf
        for time, steps in _by_time(self.given.steps):
            if now < time:
                self._advance(time - now)
                now = time
            for what, app, value in steps:
                if what == "gpus":
                    self.capacity += value
                elif what == "weight":
                    self.weight[app] = value
                elif not self.over[app]:
                    self.present[app] = what == "enters"
        self._advance(math.inf)
        out: Float = np.where(self.over, self.lasted, math.nan)
        return out

    def _advance(self, seconds: Seconds) -> None:
        rows = self.present.nonzero()[0]
        if not len(rows):
            return
        given = self.given
        left = np.clip(self.work[rows] - np.maximum(self.shadow[rows][:, None] - self.before[rows], 0.0), 0.0, None)
        weight = weights(given.between, self.weight[rows], self.own[rows], self.user[rows], self.names, given.groups)
        got, finish = fluid.run(left, self.most[rows], weight, self.capacity, seconds)
        self.shadow[rows] += got
        self.lasted[rows] += np.where(np.isfinite(finish), finish, seconds)
        done = rows[np.isfinite(finish)]
        self.over[done], self.present[done] = True, False


def _by_time(steps: Sequence[Step]) -> Iterator[tuple[Seconds, list[tuple[str, int, float]]]]:
    """Steps of one instant together; they are in the order of time."""
    for time, group in itertools.groupby(steps, key=lambda step: step[0]):
        yield time, [step[1:] for step in group]
