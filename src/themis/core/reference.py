"""The virtual cluster of ``fair_finish``, kept in addition to the real one: what each app would have got on its own share.

Functions over the state's tables, as ``phases``. Apps are in the reference from their arrival until they finish there or are
cancelled, whatever becomes of them on the real cluster; an app that is held stands still in both. Where fairness is between
users or groups, so it is here: between those that have apps in the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from themis.core import fairness_unit
from themis.core.needs import by_bracket
from themis.core.state import State
from themis.fairness import fluid
from themis.model.units import NONE, Float, GpuSeconds, Int


def advance(state: State) -> None:
    """Let the reference run up to the state's ``now``; called before anything that it depends on changes."""
    passed = state.now - state.reference_at
    if not state.keeps_reference or passed <= 0:
        return
    rows = state.in_reference()
    got, finish = fluid.run(*_left(state, rows), fairness_unit.effective(state, rows), state.capacity, passed)
    t = state.apps
    # In reference GPU-seconds: speeds may change with the machines in service, work that was done does not.
    t.shadow[rows] += got * _speed(state, rows)
    done = np.isfinite(finish)
    t.reference[rows[done]] = state.reference_at + finish[done]
    t.in_reference[rows[done]] = 0
    state.reference_at = state.now


def keep(state: State, kept: bool) -> None:
    """Switch the reference on or off from now on; a late start takes over each app with what it received so far."""
    if kept == state.keeps_reference:
        return
    state.keeps_reference, state.reference_at = kept, state.now
    t, size = state.apps, state.apps.size
    rows = np.flatnonzero(t.active[:size] == 1)
    t.in_reference[:size] = 0
    if kept:
        t.reference[rows] = np.nan
        t.shadow[rows] = state.apps_attained()[rows] * _speed(state, rows)
        t.in_reference[rows] = t.held[rows] == 0
        _look_ahead(state)


def enter(state: State, a: int) -> None:
    """Add an app that arrived, or that its user released from hold."""
    if state.keeps_reference and np.isnan(state.apps.reference[a]):
        state.apps.in_reference[a] = 1
        _look_ahead(state)


def _look_ahead(state: State) -> None:
    """Set the horizon: it moves with arrivals only, never because apps wait."""
    left, most = _left(state, state.in_reference())
    if state.capacity > 0:
        state.horizon = state.now + (1.0 + fluid.LEEWAY) * float(left[most > 0].sum()) / state.capacity


def leave(state: State, a: int) -> None:
    """An app was cancelled, or its user holds it."""
    state.apps.in_reference[a] = 0


@dataclass(slots=True)
class Finishes:
    """Last forecast of finishes and the inputs that it was computed from; recomputed only where these change."""

    given: tuple[Float | Int, ...] = ()
    seconds: Float = field(default_factory=lambda: np.zeros(0))


def finishes(state: State, rows: Int, kept: Finishes | None = None) -> Float:
    """Finish time of each of these apps in the reference without further arrivals, [A]: absolute, or infinite.

    ``kept`` : of the last call, renewed here.
    """
    out = state.apps.reference[rows].copy()
    there = state.in_reference()
    unknown = np.isnan(out).nonzero()[0]
    if len(unknown):
        at = np.append(state.reference_at + _seconds(state, there, Finishes() if kept is None else kept), np.inf)
        of = np.searchsorted(there, rows[unknown])
        found = np.append(there, NONE)[of] == rows[unknown]
        out[unknown] = np.where(found, at[of], np.inf)
    return out


def _seconds(state: State, rows: Int, kept: Finishes) -> Float:
    """Seconds from ``reference_at`` on; cached until its inputs change, which time alone does not."""
    given = (rows, *_left(state, rows), fairness_unit.effective(state, rows), np.array([state.capacity]))
    if not kept.given or not all(map(np.array_equal, kept.given, given)):
        kept.given, kept.seconds = given, fluid.run(*given[1:4], state.capacity)[1]
    return kept.seconds


def needs(state: State, a: int, speed: float) -> tuple[tuple[GpuSeconds, float], ...]:
    """Work of an app in the reference, by phase: (GPU-seconds, maximum GPUs), without phases that have no work.

    ``speed`` : reference GPUs that a GPU of the cluster is worth to it, > 0.
    """
    work, most = _phases(state, slice(a, a + 1))
    return tuple((w / speed, m) for w, m in zip(work[0].tolist(), most[0].tolist()) if w > 0)


def _left(state: State, rows: Int) -> tuple[Float, Float]:
    """GPU-seconds left of each phase, and GPUs that it can use now, [A, P] each."""
    work, most = _phases(state, rows)
    before = np.cumsum(work, axis=1) - work if work.shape[1] > 1 else 0.0
    left: Float = np.clip(work - np.maximum(state.apps.shadow[rows][:, None] - before, 0.0), 0.0, None)
    speed = _speed(state, rows)[:, None]
    return left / np.maximum(speed, 1e-9), np.where(speed > 0, most, 0.0)


def _phases(state: State, rows: Int | slice) -> tuple[Float, Float]:
    """Reference GPU-seconds of each phase, and most GPUs that it can use, [A, P] each: see ``core.needs``.

    Hyperband's brackets run concurrently: their work is one phase that takes as long as the longest bracket.
    """
    work, longest = state.need[:, rows]
    brackets = state.phase_bracket[rows]
    if brackets.any():
        sides = by_bracket(longest, brackets).max(axis=1)
        several = brackets.any(axis=1)
        work, longest = work.copy(), longest.copy()
        work[several, 0], longest[several, 0] = work[several].sum(axis=1), sides[several]
        work[several, 1:] = longest[several, 1:] = 0.0
    return work, np.where(
        longest > 0, work / np.maximum(longest, 1e-12), state.apps.gang_max[rows].astype(float)[:, None]
    )


def _speed(state: State, rows: Int) -> Float:
    """[A], reference GPUs that a GPU of the cluster is worth to each app on average; 0 if none in service runs it."""
    out: Float = state.config_speed[state.apps.config[rows]]
    return out
