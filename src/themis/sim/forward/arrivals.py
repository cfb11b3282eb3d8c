"""Further arrivals, drawn from a history: a bootstrap of each user's times between arrivals, and of that user's apps.

The history is closed to a circle, so that the mean rate is exactly that of the history, also of a user with one app. The first
arrival is drawn as in a renewal process that has always gone on: a gap by its length, and a part of it. Users are independent of
each other; nights and weekends are not known.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from themis.model.units import Seconds
from themis.model.workload import App

LEAST_S, LEAST_APPS = 60.0, 10
"""A shorter history, or one of fewer apps, says nothing of rates: three apps in a first minute are no three apps a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """An app of the history, and its weight with user and group."""

    time: Seconds
    app: App
    weight: float


@dataclass(frozen=True, slots=True)
class _User:
    apps: Sequence[Arrival]
    gaps: np.ndarray[tuple[int], np.dtype[np.float64]]


def draw(
    history: Sequence[Arrival], began: Seconds, now: Seconds, rng: np.random.Generator, most: int = 100_000
) -> Iterator[Arrival]:
    """Arrivals after ``now``, in order, without end unless ``most`` limits them; none from a history that is too short.

    Parameters
    ----------
    history : apps up to ``now``. ``began`` : where it begins.
    """
    if not says_rates(history, began, now):
        return
    passed, known = now - began, _known(history, began, now)
    users = [_user(apps, passed) for apps in _by_user(known)]
    due = []
    for u, user in enumerate(users):
        first = user.gaps[rng.choice(len(user.gaps), p=user.gaps / passed)] * rng.random()
        due.append((now + float(first), u))
    heapq.heapify(due)
    for number in range(most):
        time, u = heapq.heappop(due)
        user = users[u]
        source = user.apps[int(rng.integers(len(user.apps)))]
        late = source.app.deadline
        deadline = None if late is None else late + time - source.time
        app = replace(source.app, name=f"{source.app.name}~{number}", arrival=time, deadline=deadline)
        yield Arrival(time=time, app=app, weight=source.weight)
        heapq.heappush(due, (time + float(user.gaps[int(rng.integers(len(user.gaps)))]), u))


def says_rates(history: Sequence[Arrival], began: Seconds, now: Seconds) -> bool:
    """True if a history is long enough to draw further arrivals from."""
    return now - began >= LEAST_S and len(_known(history, began, now)) >= LEAST_APPS


def _known(history: Sequence[Arrival], began: Seconds, now: Seconds) -> list[Arrival]:
    return [one for one in history if began <= one.time <= now]


def _by_user(history: Sequence[Arrival]) -> list[list[Arrival]]:
    found: dict[str, list[Arrival]] = {}
    for one in history:
        found.setdefault(one.app.user, []).append(one)
    return [sorted(found[name], key=lambda one: one.time) for name in sorted(found)]


def _user(apps: list[Arrival], passed: Seconds) -> _User:
    times = np.array([one.time for one in apps])
    gaps = np.append(np.diff(times), passed - (times[-1] - times[0]))
    return _User(apps, np.maximum(gaps, 0.0))
