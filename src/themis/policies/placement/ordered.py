"""Allocation of an offer to apps in a given order, each its whole demand: the skeleton of every priority policy."""

from __future__ import annotations

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Int, Seconds
from themis.policies.placement.blind import Placing
from themis.policies.placement.grants import Allocator, demand_of, lease_end, least_waiting


def in_order(snapshot: Snapshot, order: Int, placement: Placing = Placing.PACKED) -> Solved:
    """Grants for app rows in ``order``; what does not fit is passed over.

    Where an elastic gang declines GPUs that are too far away, the apps that had no turn are allocated what is left.

    Parameters
    ----------
    order : rows of the snapshot's apps, most deserving first; apps without waiting jobs are ignored.
    """
    allocator = Allocator(snapshot, placement)
    fill(allocator, order)
    return Solved(answer=allocator.grant())


def fill(allocator: Allocator, order: Int) -> Seconds:
    """``in_order`` on what an allocator has left; returns the end of the leases."""
    snapshot, least = allocator.s, least_waiting(allocator.s)[order]
    queue = order[(least > 0) & (least <= allocator.left)].tolist()
    wants, until = _wants(snapshot, queue, allocator.left), lease_end(snapshot)
    while wants:
        allocator.allocate(wants, until)
        if not allocator.left:
            break
        had_turn = {a for a, _ in wants}
        queue = [a for a in queue if a not in had_turn]
        wants = _wants(snapshot, queue, allocator.left)
    return until


def _wants(s: Snapshot, queue: list[int], left: int) -> list[tuple[int, list[int]]]:
    """Gangs for each app in turn while they fit ``left`` GPUs."""
    wants: list[tuple[int, list[int]]] = []
    for a in queue:
        if not left:
            break
        demand = demand_of(s, a)
        while (step := demand.next_step()) and step <= left:
            demand.take()
            left -= step
        if demand.gangs:
            wants.append((a, demand.gangs))
    return wants
