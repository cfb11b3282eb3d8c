"""Counters of the engine for monitoring; they belong to this process, so a restart resets them to zero."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from themis.model.answers import CUT, Ask, Proof
from themis.model.units import Seconds

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
GAPS = (0.0, 1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
RHOS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)


@dataclass(slots=True)
class Tally:
    """Cumulative counts of values up to each edge; one thread writes.

    Attributes
    ----------
    counts : values above the edge before and at most this one; the last counts those above all edges. ``total`` : their sum.
    """

    edges: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.edges) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value


@dataclass(slots=True)
class Tallies:
    """Counters of decisions, finished apps and attempts.

    Attributes
    ----------
    decision_s : seconds that the policy ran for each decision.
    gap : gap in each decision's proof, in the unit of its objective. ``rho`` : rho of finished apps.
    decisions : number by result: ``policy``, ``cut`` (stopped at its time limit), ``fallback`` or ``forced`` (nothing to decide).
    apps, attempts : number of finished apps by outcome, and of ended attempts by ending.
    """

    decision_s: Tally = field(default_factory=lambda: Tally(SECONDS))
    gap: Tally = field(default_factory=lambda: Tally(GAPS))
    rho: Tally = field(default_factory=lambda: Tally(RHOS))
    decisions: Counter[str] = field(default_factory=Counter)
    apps: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    _asked_s: Seconds = 0.0
    """Seconds that the policy took before the bids, for the pending decision."""

    def replied(self, answer: object, proof: Proof, seconds: Seconds, problem: str) -> None:
        """Count the policy's reply: an answer, or a question to the agents, whose time belongs to the answer."""
        self._asked_s += seconds
        if isinstance(answer, Ask):
            return
        cut = proof.method == "time" or proof.method.startswith(CUT)
        self.decisions["fallback" if problem else "cut" if cut else "policy"] += 1
        self.decision_s.add(self._asked_s)
        self._asked_s = 0.0
        if not problem and proof.bound != 0.0:
            self.gap.add(max(proof.bound - proof.objective, 0.0))

    def app_ended(self, outcome: str, rho: float) -> None:
        """Count an app that ended."""
        self.apps[outcome] += 1
        self.rho.add(rho)
