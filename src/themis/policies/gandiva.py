"""Gandiva (OSDI'18) as the Themis paper ran it (§6.1): greedy by highest placement preference.

Whenever GPUs are free, every app reports how well its next gang could be placed; the best-placed one is dealt first,
which maximises the average placement score greedily. A gang whose lease ends and that can now be packed better moves
there (migration). Time slicing and packing of several jobs on a GPU are left out, as in the paper's comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Locality
from themis.placement.grants import Demand, Hand, demand_of, lease_end, waiting_apps
from themis.placement.packing import Counts, narrowest_of_types
from themis.policies.api import ON_FREE_GPUS, Level, Pace, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Gandiva:
    """Highest placement score first."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Level] = Level.APP

    @property
    def pace(self) -> Pace:
        """On free GPUs."""
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal gang after gang to the app that can be placed best now.

        Among equal scores the larger gang goes first (it has fewer good places), then the least share held, then
        arrival and id.
        """
        return _Greedy(snapshot).solve()


class _Greedy:
    def __init__(self, snapshot: Snapshot) -> None:
        self.s = snapshot
        self.hand = Hand(snapshot)
        self.demand: dict[int, Demand] = {int(a): demand_of(snapshot, int(a)) for a in waiting_apps(snapshot)}
        self.held = snapshot.app_held.astype(float)

    def solve(self) -> Solved:
        s, hand = self.s, self.hand
        starving = any(d.next_step() > hand.left for d in self.demand.values())
        until = lease_end(s, starving)
        while hand.left:
            best = None
            places: dict[tuple[int, tuple[int, ...]], tuple[Counts, Locality] | None] = {}
            for a, demand in self.demand.items():
                gang = self._gang(demand, hand.left)
                if not gang:
                    continue
                found = self._place(a, gang, places)
                if found is None:
                    continue
                key = (-self._score(a, found[1]), -gang, self.held[a] / s.app_weight[a], s.app_arrival[a], a)
                if best is None or key < best[0]:
                    best = (key, a, gang, found[0])
            if best is None:
                break
            _, a, gang, counts = best
            hand.give(a, counts, until)
            self.held[a] += gang
            demand = self.demand[a]
            demand.low.pop(0)
            demand.high.pop(0)
        return Solved(answer=hand.grant())

    def _gang(self, demand: Demand, left: int) -> int:
        """An elastic job asks for all it can use of what is left, once the app's other jobs have their smallest gang."""
        if not demand.low or demand.low[0] > left:
            return 0
        others = sum(demand.low[1:])
        return max(demand.low[0], min(demand.high[0], left - others))

    def _place(
        self, a: int, gang: int, places: dict[tuple[int, tuple[int, ...]], tuple[Counts, Locality] | None]
    ) -> tuple[Counts, Locality] | None:
        s = self.s
        types = tuple(np.flatnonzero(s.job_allowed[s.job_ptr[a] : s.job_ptr[a + 1]].any(axis=0)).tolist())
        if (gang, types) not in places:
            places[gang, types] = narrowest_of_types(self.hand.free, s.machine_rack, s.machine_type, gang, types)
        return places[gang, types]

    def _score(self, a: int, locality: Locality) -> float:
        return 1.0 / float(self.s.speeds.slowdown[self.s.job_config[self.s.job_ptr[a]], locality])
