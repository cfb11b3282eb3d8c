"""Best choices of many problems on the same tables, walked together: walks that reach the same state merge.

An auction without one of its winners differs from the auction with it in a few free GPUs, so thousands of walks are soon in a
handful of states. What is asked of their choices, sums over the chosen rows, is added up once for each state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.optimize.programs import Ints

Choose = Callable[[int, Ints], tuple[Ints, Ints]]
"""(bidder, states) -> (rows that the bidder wins in each, or -1; states after it)."""


@dataclass(slots=True)
class Step:
    """One bidder: the row that it wins in each state, where each state leads in the next step, the walks that begin here."""

    bidder: int
    rows: Ints
    following: Ints
    lanes: list[int] = field(default_factory=list)
    at: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Paths:
    """W walks over the same bidders, each with its own start state and first bidder."""

    steps: Sequence[Step]
    walks: int

    @classmethod
    def of(cls, order: range, begins: Sequence[int], states: Ints, limit: int, choose: Choose) -> Paths:
        """Walk over the bidders in ``order``; walk w begins at bidder ``begins[w]`` in ``states[w]``, below ``limit``."""
        entering: dict[int, list[int]] = {}
        for lane, i in enumerate(begins):
            entering.setdefault(i, []).append(lane)
        number, seen = np.zeros(limit, dtype=np.int64), np.zeros(limit, dtype=bool)
        steps: list[Step] = []
        before = np.zeros(0, dtype=np.int64)
        for i in order:
            lanes = entering.get(i, [])
            if not lanes and not before.size:
                continue
            fresh = states[lanes]
            seen[before] = seen[fresh] = True
            here = seen.nonzero()[0]
            seen[here] = False
            number[here] = np.arange(here.size)
            if steps:
                steps[-1].following = number[before]
            rows, after = choose(i, here)
            steps.append(Step(i, rows, np.zeros(here.size, dtype=np.int64), lanes, number[fresh]))
            before = after
        return cls(steps, len(begins))

    def sums(self, columns: Ints) -> Ints:
        """Sums of ``columns`` [M, F] over the rows that each walk chooses, [W, F]."""
        with_none = np.concatenate([columns, np.zeros((1, columns.shape[1]), dtype=columns.dtype)])
        out = np.zeros((self.walks, columns.shape[1]), dtype=columns.dtype)
        later: Ints | None = None
        for step in reversed(self.steps):
            own: Ints = with_none[step.rows]
            later = own if later is None else own + later[step.following]
            if step.lanes:
                out[step.lanes] = later[step.at]
        return out

    def picks(self) -> Iterator[tuple[int, list[int], Ints]]:
        """Walks that have begun, and the rows that the bidder wins in them, for each bidder."""
        lanes: list[int] = []
        at = np.zeros(0, dtype=np.int64)
        for step in self.steps:
            lanes = lanes + step.lanes
            at = np.concatenate([at, step.at])
            yield step.bidder, lanes, step.rows[at]
            at = step.following[at]
