"""Time shares in force: rounds entitled and rounds received so far by each combination (Gavel §3.2, §5).

The entitlement is the integral of the share over time. Rounds received count from the moment that a gang gets its GPUs to
the end of its lease, which is that of its round or later. Both are carried over to the next shares for every combination that
is in both.
Differs from the published code, which forgets both whenever shares change. How far the two can be apart: decision 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from themis.model.answers import TimeShare
from themis.model.units import NONE, Bool, Float, Int, Seconds

MIN_DEFICIT = 1e-6
"""Rounds below which nothing is owed."""


def late_after(types: int) -> float:
    """Rounds behind a share from which relative deficits count, where gangs may not pack: decision 22.

    What the order of absolute deficits leaves a job behind where shares do pack is less on one to four types.
    """
    return 1.0 + types / 2


Speeds: TypeAlias = Callable[[Int], Float]
"""Combinations [R] -> [R, K], work per second of each on each type; 0 where it cannot run."""


@dataclass(slots=True)
class Rounds:
    """Time shares in force.

    Attributes
    ----------
    answer : the shares, or None before the first. ``solved`` : when they were solved for; ``version`` : of which state.
    entitled : Float[C, K], seconds by ``since``. ``due`` : the part of them that the objective needs.
    received : Float[C, K], seconds, the rounds that run now included.
    near : Float[C, K], seconds by ``since`` that a gang is owed on one machine; below 0: it had more.
    """

    answer: TimeShare | None = None
    solved: Seconds = 0.0
    version: int = -1
    entitled: Float = field(default_factory=lambda: np.zeros((0, 0)))
    received: Float = field(default_factory=lambda: np.zeros((0, 0)))
    due: Float = field(default_factory=lambda: np.zeros((0, 0)))
    near: Float = field(default_factory=lambda: np.zeros((0, 0)))
    since: Seconds = 0.0
    size: int = 0
    """GPUs of every gang, 0 where they differ."""
    packs: bool = True
    """True if the shares in force may still be an average of sets of gangs that fit together (``core.steady``)."""
    replaced: int = 0
    """Rounds of the shares in force that served another set than the order's, so that no deficit grows without bound."""

    def adopt(self, answer: TimeShare, now: Seconds, version: int) -> None:
        """New shares are in force; combinations that were there before keep their account."""
        shape = answer.x.shape
        entitled, due, received, near = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
        if self.answer is not None:
            self._accrue(now)
            here, before = _matching(answer.combos, self.answer.combos)
            types = self.entitled.shape[1]  # a machine of a new type may have joined; types are never removed
            entitled[here, :types], received[here, :types] = self.entitled[before], self.received[before]
            due[here, :types] = self.due[before]
            if answer.apart is not None:
                near[here, :types] = self.near[before]
        self.answer, self.entitled, self.due, self.received, self.near = answer, entitled, due, received, near
        self.solved, self.since, self.version, self.packs, self.replaced = now, now, version, True, 0
        size = int(answer.gpus[0]) if len(answer.gpus) else 0
        self.size = size if (answer.gpus == size).all() else 0

    def priority(
        self, now: Seconds, until: Seconds, able: Bool, speeds: Speeds | None = None, packs: bool = False
    ) -> Float:
        """[C, K], which combination has precedence on a type until ``until``; 0 where it is not to run.

        Within ``late_after`` rounds of the share, the largest deficit comes first, so no combination falls back by more than
        others; one that is ahead waits. Of those further behind, the one comes first that lacks the largest part of the work
        that it was promised on all types, as in the paper (§5: share over fraction received): by absolute deficits a gang
        with a small share would lose as many rounds as a job with a large one. Where an answer says what its objective
        needs, those behind with that come first, and of these the one that would need the longest to catch up.

        Parameters
        ----------
        speeds : of combinations on each type, in one unit of work; None: all types are equally fast.
        packs : gangs are all of one size that divides every type's GPUs, so any shares pack and no job stays late for long.
        """
        assert self.answer is not None
        self._accrue(now)
        x, round_s = self.answer.x, self.answer.round_s
        deficit = (self.entitled + x * (until - now) - self.received) / round_s
        runs = (x > 0) & able[:, None] & (deficit > MIN_DEFICIT)
        out: Float = np.where(runs, deficit, 0.0)
        if not packs:
            self._relative(out, runs, deficit, self.entitled, x, until, speeds)
        if self.answer.due is not None:
            due = x * self.answer.due[:, None]
            behind = (self.due + due * (until - now) - self.received) / round_s
            idle = np.maximum(1.0 - due.sum(axis=1, keepdims=True), 1e-6)
            first = runs & (behind > MIN_DEFICIT)
            needed = np.where(first, behind / idle, 0.0)
            if not packs:
                self._relative(needed, first, behind, self.due, due, until, speeds)
            out = np.where(first, float(out.max(initial=0.0)) + 1.0 + needed, out)
        return out

    def add_received(self, combo: int, gpu_type: int, seconds: Seconds, *, near: bool = False) -> None:
        """A combination gets GPUs of a type for this time; ``near`` : all of one machine."""
        self.received[combo, gpu_type] += seconds
        if near:
            # What room there was by chance is not held against it for more than a round.
            assert self.answer is not None
            self.near[combo, gpu_type] = max(self.near[combo, gpu_type] - seconds, -self.answer.round_s)

    def deficit_near(self, combo: int, gpu_type: int, until: Seconds) -> Seconds:
        """Seconds that a combination is owed on one machine by ``until``; 0 or less: it may be spread."""
        assert self.answer is not None
        assert self.answer.apart is not None
        share = self.answer.x[combo, gpu_type] - self.answer.apart[combo, gpu_type]
        return float(self.near[combo, gpu_type] + share * (until - self.since))

    def _relative(
        self, out: Float, runs: Bool, behind: Float, entitled: Float, x: Float, until: Seconds, speeds: Speeds | None
    ) -> None:
        """Put those far ``behind`` first in ``out`` [C, K], by the part of their work that is missing."""
        limit = late_after(x.shape[1])
        if behind.max(initial=0.0) <= limit:
            return
        rows, kinds = np.nonzero(runs & (behind > limit))
        if len(rows):
            # Parts are at most 1 and the others' order stays, so one step up puts those rows first.
            top = max(limit, float(out.max()))
            out[rows, kinds] = top + self._lacking(rows, until, entitled, x, speeds)[0]

    def any_overdue(self, now: Seconds, until: Seconds) -> bool:
        """False if ``overdue`` is 0 for every combination."""
        assert self.answer is not None
        self._accrue(now)
        return bool((self.entitled - self.received).max(initial=0.0) > self.answer.round_s - (until - now))

    def overdue(self, now: Seconds, until: Seconds, rows: Int, speeds: Speeds | None = None) -> Float:
        """[R], part of its work that each of these combinations lacks by ``until``; 0 where it is within a round of its share."""
        assert self.answer is not None
        none = np.zeros(len(rows))
        if not self.any_overdue(now, until):
            return none
        x = self.answer.x[rows]
        part, lacks, rate = self._lacking(rows, until, self.entitled, self.answer.x, speeds)
        # A round of a combination is its mean speed over its types for as long as a round is.
        mean = np.divide((rate * x).sum(axis=1), x.sum(axis=1), out=none.copy(), where=x.any(axis=1))
        return np.where((mean > 0) & (lacks > mean * self.answer.round_s), part, none)

    def _lacking(
        self, rows: Int, until: Seconds, before: Float, shares: Float, speeds: Speeds | None
    ) -> tuple[Float, Float, Float]:
        """([R], part in [0, 1] of the work promised by ``until`` that was not received; [R], that work; [R, K], speeds)."""
        entitled = before[rows] + shares[rows] * (until - self.since)
        rate = np.ones(entitled.shape) if speeds is None else speeds(rows)
        lacks = (rate * (entitled - self.received[rows])).sum(axis=1)
        work = np.maximum((rate * entitled).sum(axis=1), 1e-12)
        return np.minimum(np.maximum(lacks / work, 0.0), 1.0), lacks, rate

    def make_up(self, combo: int, seconds: Seconds, worth: Sequence[float]) -> None:
        """A round on a type that has no share left pays off deficits on the others, in proportion to the work they are.

        Parameters
        ----------
        worth : [K], seconds on each type in which the combination does as much work as in one second of this round;
            0 where it cannot run.
        """
        ratio = np.array(worth)
        lacks = np.where(ratio > 0, np.maximum(self.entitled[combo] - self.received[combo], 0.0), 0.0)
        work = np.divide(lacks, ratio, out=np.zeros(len(ratio)), where=ratio > 0)
        if (total := float(work.sum())) > 0:
            self.received[combo] += seconds * ratio * work / total

    def _accrue(self, now: Seconds) -> None:
        if self.answer is not None and now > self.since:
            self.entitled += self.answer.x * (now - self.since)
            if self.answer.due is not None:
                self.due += self.answer.x * (self.answer.due[:, None] * (now - self.since))
            if self.answer.apart is not None:
                self.near += (self.answer.x - self.answer.apart) * (now - self.since)
            self.since = now


def pick(
    priority: Float, combos: Int, gpus: Int, free: Sequence[int], may: Callable[[int, int], bool] = lambda c, k: True
) -> list[tuple[int, int]]:
    """Gavel algorithm 1: (combination, type) in falling priority while their GPUs fit; no job in two combinations.

    Parameters
    ----------
    priority : [C, K], 0 where it is not to run. ``combos`` : [C, 2]. ``gpus`` : [C]. ``free`` : [K], GPUs of each type.
    may : asked last, whether the pair c may run on type k.
    """
    left, busy, out = list(free), set[int](), list[tuple[int, int]]()
    whole = sum(left)
    for c, k, size, job, partner in _in_order(priority, combos, gpus, whole):
        if size > left[k] or job in busy:
            continue
        if partner != NONE:
            if partner in busy or not may(c, k):
                continue
            busy.add(partner)
        busy.add(job)
        left[k] -= size
        whole -= size
        out.append((c, k))
        if not whole:
            break
    return out


_LIKELY = 4
"""Number of top candidates for each free GPU that are examined before all others are sorted, too."""


def _in_order(priority: Float, combos: Int, gpus: Int, free: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(combination, type, GPUs, job, partner) in falling priority, the first of equals first."""
    flat = np.flatnonzero(priority)
    value = priority.ravel()[flat]
    likely = _LIKELY * free + 1
    if len(flat) > 2 * likely:
        early = value >= np.partition(value, len(value) - likely)[len(value) - likely]
        parts = [(flat[early], value[early]), (flat[~early], value[~early])]
    else:
        parts = [(flat, value)]
    for some, worth in parts:
        combo, kind = np.divmod(some[np.argsort(-worth, kind="stable")], priority.shape[1])
        jobs = combos[combo]
        yield from zip(combo.tolist(), kind.tolist(), gpus[combo].tolist(), jobs[:, 0].tolist(), jobs[:, 1].tolist())


def _matching(combos: Int, others: Int) -> tuple[Int, Int]:
    """Rows of equal combinations in both."""
    if np.array_equal(combos, others):
        return np.arange(len(combos)), np.arange(len(combos))
    base = int(max(combos.max(initial=0), others.max(initial=0))) + 2
    _, here, there = np.intersect1d(_key(combos, base), _key(others, base), assume_unique=True, return_indices=True)
    return here, there


def _key(combos: Int, base: int) -> Int:
    low, high = combos.min(axis=1), combos.max(axis=1)
    key: Int = (low + 1) * base + high
    return key
