"""What the time shares in force promised and what was dealt out so far, combination by combination: Gavel §3.2, §5.

A promise is the integral of the share over time. What is dealt counts from the moment that a gang gets its GPUs to the end
of its round. Both are carried over to the next shares for every combination that is in both.
Differs from the published code: that forgets both whenever shares change. How far the two can be apart: decision 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.model.answers import TimeShare
from themis.model.units import NONE, Bool, Float, Int, Seconds

OWED = 1e-6
"""Rounds below which nothing is owed."""


@dataclass(slots=True)
class Rounds:
    """Time shares in force.

    Attributes
    ----------
    answer : the shares, or None before the first. ``solved`` : when they were solved for; ``version`` : of which state.
    promised : Float[C, K], seconds by ``since``. ``due`` : the part of them that the objective needs.
    dealt : Float[C, K], seconds, the rounds that run now included.
    """

    answer: TimeShare | None = None
    solved: Seconds = 0.0
    version: int = -1
    promised: Float = field(default_factory=lambda: np.zeros((0, 0)))
    dealt: Float = field(default_factory=lambda: np.zeros((0, 0)))
    due: Float = field(default_factory=lambda: np.zeros((0, 0)))
    since: Seconds = 0.0

    def adopt(self, answer: TimeShare, now: Seconds, version: int) -> None:
        """New shares are in force; combinations that were there before keep their account."""
        shape = answer.x.shape
        promised, due, dealt = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        if self.answer is not None:
            self._accrue(now)
            here, before = _matching(answer.combos, self.answer.combos)
            types = self.promised.shape[1]  # a machine of a new type may have joined; types never go
            promised[here, :types], dealt[here, :types] = self.promised[before], self.dealt[before]
            due[here, :types] = self.due[before]
        self.answer, self.promised, self.due, self.dealt = answer, promised, due, dealt
        self.solved, self.since, self.version = now, now, version

    def priority(self, now: Seconds, until: Seconds, able: Bool) -> Float:
        """[C, K], what a combination is owed on a type by ``until``, in rounds; 0 where it is not to run.

        Differs from the paper (§5: share over fraction received): what counts is how far behind a combination will be, so
        that nobody falls back by more than others, and who is ahead waits. Where an answer says what its objective needs,
        those who are behind with that come first, and of these whoever would need the longest to catch up.
        """
        assert self.answer is not None
        self._accrue(now)
        x, round_s = self.answer.x, self.answer.round_s
        owed = (self.promised + x * (until - now) - self.dealt) / round_s
        runs = (x > 0) & able[:, None] & (owed > OWED)
        out: Float = np.where(runs, owed, 0.0)
        if self.answer.due is not None:
            due = x * self.answer.due[:, None]
            behind = (self.due + due * (until - now) - self.dealt) / round_s
            idle = np.maximum(1.0 - due.sum(axis=1, keepdims=True), 1e-6)
            first = runs & (behind > OWED)
            top = float(out.max(initial=0.0)) + 1.0
            out = np.where(first, top + behind / idle, out)
        return out

    def deal(self, combo: int, gpu_type: int, seconds: Seconds) -> None:
        """A combination gets GPUs of a type for so long."""
        self.dealt[combo, gpu_type] += seconds

    def _accrue(self, now: Seconds) -> None:
        if self.answer is not None and now > self.since:
            self.promised += self.answer.x * (now - self.since)
            if self.answer.due is not None:
                self.due += self.answer.x * (self.answer.due[:, None] * (now - self.since))
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
    flat = np.flatnonzero(priority)
    combo, kind = np.divmod(flat[np.argsort(-priority.ravel()[flat], kind="stable")], priority.shape[1])
    left, busy, out = list(free), set[int](), list[tuple[int, int]]()
    whole, jobs = sum(left), combos[combo]
    for c, k, size, job, partner in zip(
        combo.tolist(), kind.tolist(), gpus[combo].tolist(), jobs[:, 0].tolist(), jobs[:, 1].tolist()
    ):
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


def _matching(combos: Int, others: Int) -> tuple[Int, Int]:
    """Rows of equal combinations in both."""
    base = int(max(combos.max(initial=0), others.max(initial=0))) + 2
    _, here, there = np.intersect1d(_key(combos, base), _key(others, base), assume_unique=True, return_indices=True)
    return here, there


def _key(combos: Int, base: int) -> Int:
    low, high = combos.min(axis=1), combos.max(axis=1)
    key: Int = (low + 1) * base + high
    return key
