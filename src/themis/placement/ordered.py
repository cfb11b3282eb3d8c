"""Deal an offer to apps in a given order, each its whole demand: the skeleton of every priority policy."""

from __future__ import annotations

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Int
from themis.placement.grants import Hand, demand_of, lease_end, waiting_apps


def in_order(snapshot: Snapshot, order: Int) -> Solved:
    """Grants for app rows in ``order``; what does not fit is passed over.

    Parameters
    ----------
    order : rows of the snapshot's apps, most deserving first; apps without waiting jobs are ignored.
    """
    hand = Hand(snapshot)
    left = hand.left
    waiting = set(waiting_apps(snapshot).tolist())
    wants: list[tuple[int, list[int]]] = []
    starving = False
    for a in order.tolist():
        if a not in waiting:
            continue
        demand = demand_of(snapshot, a)
        while (step := demand.next_step()) and step <= left:
            demand.take()
            left -= step
        starving |= not wants and bool(step) and not demand.gangs
        if demand.gangs:
            wants.append((a, demand.gangs))
        if not left:
            break
    hand.deal(wants, lease_end(snapshot, starving))
    return Solved(answer=hand.grant())
