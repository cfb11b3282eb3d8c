"""Conversion of bids to winner determination: rows of five kinds, worth as exact integers, without redundant rows.

Rows are first brought to the simplest kind that means the same in this offer, then pruned by exchange: if a row's bidder can be
replaced by a bidder who asks for exactly the same, gains at least as much and wins nothing, the row is not needed.
"""

from __future__ import annotations

import math

import numpy as np

from themis.errors import InputError
from themis.model.bids import ANYWHERE, MACHINE, Bids
from themis.optimize.programs import Bools, Ints
from themis.optimize.winners.auction_problem import (
    IN_RACK,
    LOCAL,
    ON_MACHINE,
    RACKED,
    WIDE,
    Supply,
    WinnerProblem,
    same_asks,
)


def build(offer: Supply, bids: Bids) -> WinnerProblem:
    """Bring `bids` for `offer` to the form that winner determination takes.

    Raises
    ------
    InputError
        When an anchor or a holder names a machine or a rack that the offer lacks.
    """
    _check(offer, bids)
    types = 1 + max(_top(offer.machine_type), _top(bids.row_type))
    racks = 1 + _top(offer.machine_rack)
    room = np.bincount(offer.machine_rack * types + offer.machine_type, offer.free, racks * types)
    rack_room = room.astype(np.int64).reshape(racks, types)
    kind, place = _kinds(offer, bids, rack_room)
    sizes, gangs = _gangs(bids, kind)
    need, have = _capacities(offer, bids, kind, place, sizes, gangs, rack_room)
    held = holdings(offer, bids) if bids.expiring_gpus.size else None
    score, unit, quantum = _scores(offer, bids, kind, place, types, held)
    keep = ((need <= have).all(1) & (score >= unit) & _seated(offer, bids, kind, place, rack_room)).nonzero()[0]
    if keep.size > 1:
        keep = _prune(bids, keep, score, kind, place, gangs, int(offer.free.sum()))
    kinds = kind[keep]
    return WinnerProblem(
        offer=offer,
        bidders=bids.bidders,
        held=held,
        row=keep,
        who=bids.row_bidder[keep],
        score=score[keep],
        gpus=bids.gpus[keep],
        kind=kinds,
        place=place[keep],
        type=bids.row_type[keep],
        sizes=sizes,
        gangs=gangs[keep],
        need=need[keep],
        have=have,
        rack_room=rack_room,
        unit=unit,
        quantum=quantum,
        trivial=not kinds.any(),
        certain=_certain(kinds, place[keep], bids.row_bidder[keep], sizes),
    )


def _top(array: Ints) -> int:
    return int(array.max()) if array.size else 0


def _check(offer: Supply, bids: Bids) -> None:
    machines, racks = offer.free.size, 1 + _top(offer.machine_rack)
    for what, anchors, limit in (
        ("machine", bids.row_anchor[bids.row_span == MACHINE], machines),
        ("rack", bids.row_anchor[bids.row_span != MACHINE], racks),
        ("machine", bids.expiring_machine, machines),
    ):
        if anchors.size and anchors.max() >= limit:
            raise InputError(f"Bids name {what} {anchors.max()}; the offer has 0..{limit - 1}.")


def _kinds(offer: Supply, bids: Bids, rack_room: Ints) -> tuple[Ints, Ints]:
    """Simplest kind that means the same in this offer, and the place of anchored rows."""
    whole = np.maximum.reduceat(bids.gang_size, bids.gang_ptr[:-1]) == 1 if bids.rows else np.zeros(0, np.bool_)
    anchored, local = bids.row_anchor >= 0, bids.row_span == MACHINE
    if not anchored.any() and (whole | (bids.row_span == ANYWHERE)).all():
        return np.zeros(bids.rows, np.int64), bids.row_anchor
    kind = np.where(anchored, np.where(local, ON_MACHINE, IN_RACK), np.where(local, LOCAL, RACKED))
    kind[~anchored & (whole | (bids.row_span == ANYWHERE))] = WIDE
    # One machine (one rack) with free GPUs of a type: "within a machine" ("within a rack") asks for nothing more.
    used = offer.free > 0
    machines = np.bincount(offer.machine_type[used], minlength=rack_room.shape[1])
    kind[((kind == LOCAL) | (kind == RACKED)) & (machines[bids.row_type] == 1)] = WIDE
    kind[(kind == RACKED) & ((rack_room > 0).sum(0)[bids.row_type] == 1)] = WIDE
    return kind, bids.row_anchor


def _gangs(bids: Bids, kind: Ints) -> tuple[Ints, Ints]:
    if not (kind >= LOCAL).any():
        return np.zeros(0, np.int64), np.zeros((bids.rows, 0), np.int64)
    owner = np.repeat(np.arange(bids.rows), np.diff(bids.gang_ptr))
    big = (bids.gang_size > 1) & (kind[owner] >= LOCAL)
    sizes = np.unique(bids.gang_size[big])
    cell = owner[big] * sizes.size + np.searchsorted(sizes, bids.gang_size[big])
    counts = np.bincount(cell, bids.gang_count[big], bids.rows * sizes.size)
    return sizes, counts.astype(np.int64).reshape(bids.rows, sizes.size)


def _capacities(
    offer: Supply, bids: Bids, kind: Ints, place: Ints, sizes: Ints, gangs: Ints, rack_room: Ints
) -> tuple[Ints, Ints]:
    """GPUs per type; then, per type and gang size s, machine slots sum floor(f / s), and rack slots likewise.

    A gang of size s' takes at least floor(s' / s) slots of size s wherever it goes, so these are valid for every
    packing; for machine gangs of sizes that divide one another they are also enough.
    """
    types, gpus = rack_room.shape[1], bids.gpus
    need, have = [], []
    for t in range(types):
        need.append(np.where(bids.row_type == t, gpus, 0))
        have.append(int(rack_room[:, t].sum()))
    fixed = kind == ON_MACHINE
    seat = np.where(fixed, place, 0)
    at = offer.free[seat] if fixed.any() else np.zeros(bids.rows, np.int64)
    alone = _alone(fixed, place, bids.row_bidder, offer.free.size)
    for z, s in enumerate(sizes.tolist()):
        reach = (gangs * (sizes // s)).sum(1)
        lost = np.where(alone, at // s - np.maximum(at - gpus, 0) // s, gpus // s)
        for t in range(types):
            mine, here = bids.row_type == t, offer.machine_type == t
            users = mine & (gangs[:, z] > 0)
            if (users & (kind == LOCAL)).any():
                need.append(np.where(mine, np.where(fixed, lost, np.where(kind == LOCAL, reach, 0)), 0))
                have.append(int((offer.free[here] // s).sum()))
            if (users & (kind == RACKED)).any():
                need.append(np.where(mine, np.where(kind >= LOCAL, reach, np.where(kind > WIDE, gpus // s, 0)), 0))
                have.append(int((rack_room[:, t] // s).sum()))
    return np.stack(need, 1), np.array(have, np.int64)


def _alone(fixed: Bools, place: Ints, who: Ints, machines: int) -> Bools:
    """Rows fixed to a machine to which no other bidder is fixed: their loss of slots is exact."""
    if not fixed.any():
        return fixed
    first, last = np.full(machines, -1), np.full(machines, -1)
    last[place[fixed]] = who[fixed]
    first[place[fixed][::-1]] = who[fixed][::-1]
    alone: Bools = fixed & (first == last)[np.where(fixed, place, 0)]
    return alone


def _seated(offer: Supply, bids: Bids, kind: Ints, place: Ints, rack_room: Ints) -> Bools:
    """Anchored rows that their machine or rack can hold."""
    ok = np.ones(bids.rows, np.bool_)
    fixed, racked = kind == ON_MACHINE, kind == IN_RACK
    if fixed.any():
        at = place[fixed]
        ok[fixed] = (bids.gpus[fixed] <= offer.free[at]) & (bids.row_type[fixed] == offer.machine_type[at])
    if racked.any():
        ok[racked] = bids.gpus[racked] <= rack_room[place[racked], bids.row_type[racked]]
    return ok


def gains(bids: Bids, gpus: int) -> tuple[Ints, int, float]:
    """Gain of each row over its base, shape [R], in steps; the bits that count ``gpus``; and a step's nats."""
    gain, who = bids.row_value - bids.base[bids.row_bidder], bids.row_bidder
    bits = gpus.bit_length()
    top = 0.0
    if gain.size:
        first = np.append(0, 1 + (who[1:] != who[:-1]).nonzero()[0])
        top = float(np.maximum.reduceat(gain, first).sum())
    # 61 bits hold every sum and leave room for adding the table's minus infinity.
    quantum = 2.0 ** -min(40, 60 - bits - math.ceil(math.log2(top + 1.0)))
    return np.rint(gain / quantum).astype(np.int64), bits, quantum


def _scores(
    offer: Supply, bids: Bids, kind: Ints, place: Ints, types: int, held: Ints | None
) -> tuple[Ints, int, float]:
    steps, bits, quantum = gains(bids, int(offer.free.sum()))
    score = steps << bits
    if held is not None and bids.rows:
        score += np.where(score > 0, _renewable(offer, bids, kind, place, types, held), 0)
    return score, 1 << bits, quantum


def _renewable(offer: Supply, bids: Bids, kind: Ints, place: Ints, types: int, held: Ints) -> Ints:
    """Upper bound of the GPUs that each row could renew without other winners (gangs may have unequal sizes)."""
    who, n = bids.row_bidder, offer.machine_type
    by_type = np.stack([held[:, n == t].sum(1) for t in range(types)], 1)
    most = np.stack([held[:, n == t].max(1, initial=0) for t in range(types)], 1)[who, bids.row_type]
    best = by_type[who, bids.row_type]
    fixed, racked = (kind == ON_MACHINE).nonzero()[0], (kind == IN_RACK).nonzero()[0]
    best[fixed] = held[who[fixed], place[fixed]]
    for r in racked.tolist():
        best[r] = held[who[r], (offer.machine_rack == place[r]) & (n == bids.row_type[r])].sum()
    reach = np.minimum(bids.gang_size, np.repeat(most, np.diff(bids.gang_ptr))) * bids.gang_count
    local = np.where(kind == LOCAL, np.add.reduceat(reach, bids.gang_ptr[:-1]), bids.gpus)
    most_again: Ints = np.minimum(np.minimum(bids.gpus, best), local)
    return most_again


def holdings(offer: Supply, bids: Bids) -> Ints:
    """Shape [B, N]: expiring GPUs of each bidder on each machine, within the offer."""
    cells = bids.expiring_bidder * offer.free.size + bids.expiring_machine
    held = np.bincount(cells, bids.expiring_gpus, bids.bidders * offer.free.size).astype(np.int64)
    return np.minimum(held.reshape(bids.bidders, -1), offer.free)


def _prune(bids: Bids, keep: Ints, score: Ints, kind: Ints, place: Ints, gangs: Ints, total: int) -> Ints:
    """Keep, of the rows that ask for exactly the same, one per bidder and as many bidders as could matter.

    With a winner of g GPUs at most ``(total - g) // least`` others win, and one bidder may be taken out to price it.
    """
    who, gpus = bids.row_bidder[keep], bids.gpus[keep]
    same = same_asks(bids.row_type[keep], gpus, kind[keep], place[keep], gangs[keep])
    best = score[keep]
    order = np.lexsort((-best, who, same))
    first = np.ones(keep.size, np.bool_)
    first[1:] = (same[order][1:] != same[order][:-1]) | (who[order][1:] != who[order][:-1])
    order = order[first]
    order = order[np.lexsort((who[order], -best[order], same[order]))]
    group = same[order]
    start = np.searchsorted(group, group)
    enough = (total - gpus[order]) // int(gpus.min()) + 2
    kept: Ints = np.sort(keep[order[np.arange(order.size) - start < enough]])
    return kept


def _certain(kind: Ints, place: Ints, who: Ints, sizes: Ints) -> bool:
    if ((kind == IN_RACK) | (kind == RACKED)).any():
        return False
    fixed = kind == ON_MACHINE
    chain = not (sizes[1:] % sizes[:-1]).any()
    return chain and bool(_alone(fixed, place, who, _top(place) + 1)[fixed].all())
