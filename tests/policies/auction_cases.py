"""Small auctions by chance, their exhaustive solution, and what every outcome must keep."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from themis.policies.auction import ANYWHERE, MACHINE, RACK, Bids, Outcome, Supply


def offer(free: list[int], rack: list[int] | None = None, kind: list[int] | None = None) -> Supply:
    n = len(free)
    return Supply(
        free=np.array(free, np.int64),
        machine_rack=np.array(rack or [0] * n, np.int64),
        machine_type=np.array(kind or [0] * n, np.int64),
    )


def bids(base: list[float], rows: list[tuple], expiring: list[tuple[int, int, int]] | None = None) -> Bids:
    """Rows are (bidder, {size: count}, value[, span[, type[, anchor]]])."""
    full = [(*r, *(ANYWHERE, 0, -1)[len(r) - 3 :]) for r in rows]
    gangs = [list(r[1].items()) for r in full]
    held = np.array(expiring or [], np.int64).reshape(-1, 3)
    return Bids(
        base=np.array(base, float),
        expiring_bidder=held[:, 0],
        expiring_machine=held[:, 1],
        expiring_gpus=held[:, 2],
        row_bidder=np.array([r[0] for r in full], np.int64),
        row_span=np.array([r[3] for r in full], np.int64),
        row_type=np.array([r[4] for r in full], np.int64),
        row_anchor=np.array([r[5] for r in full], np.int64),
        row_value=np.array([r[2] for r in full], float),
        gang_ptr=np.cumsum([0] + [len(g) for g in gangs]),
        gang_size=np.array([s for g in gangs for s, _ in g], np.int64),
        gang_count=np.array([c for g in gangs for _, c in g], np.int64),
    )


def random_case(
    seed: int, *, bidders: int = 4, machines: int = 6, gpus: int = 12, rows: int = 5
) -> tuple[Supply, Bids]:
    """A mix of spans, types, anchors, gangs and expiring GPUs."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, machines + 1))
    free = rng.choice([0, 1, 2, 3, 4, 6], n)
    while free.sum() > gpus:
        free[rng.integers(n)] //= 2
    types = int(rng.choice([1, 1, 2]))
    racks = int(rng.integers(1, 4))
    sale = offer(free.tolist(), rng.integers(0, racks, n).tolist(), rng.integers(0, types, n).tolist())
    sizes = [[1, 2, 4], [1, 2, 3], [2, 4, 8], [1], [2, 3, 4]][int(rng.integers(5))]
    base, table = [], []
    for b in range(int(rng.integers(1, bidders + 1))):
        base.append(float(-rng.uniform(0, 3)))
        for _ in range(int(rng.integers(0, rows + 1))):
            gangs = {int(s): int(rng.choice([1, 1, 1, 2, 3])) for s in rng.choice(sizes, int(rng.integers(1, 3)))}
            span = int(rng.choice([MACHINE, RACK, ANYWHERE]))
            anchor = -1
            if span != ANYWHERE and rng.random() < 0.4:
                anchor = int(rng.integers(n if span == MACHINE else sale.machine_rack.max() + 1))
            value = base[-1] + round(float(rng.uniform(0.1, 2)), int(rng.integers(1, 6)))
            table.append((b, gangs, value, span, int(rng.integers(types)), anchor))
    held = [(int(rng.integers(len(base))), i, int(rng.integers(1, 3))) for i in range(n) if rng.random() < 0.3]
    return sale, bids(base, table, held)


def rigid_gangs(seed: int, bidders: int) -> tuple[Supply, Bids]:
    """Apps of 1 to 3 gangs of 2, 4 or 8 GPUs that slow down across machines and racks; GPUs for about a third of them."""
    rng = np.random.default_rng(seed)
    count = max(1, bidders // 3)
    sale = offer(rng.integers(1, 9, count).tolist(), (np.arange(count) // 8).tolist())
    rows = []
    for b in range(bidders):
        sizes = np.sort(rng.choice([2, 4, 4, 8], int(rng.integers(1, 4)))).tolist()
        gain, slow = float(rng.uniform(0.5, 3)), np.cumsum([0.0, *rng.uniform(0.01, 0.3, 2)]).tolist()
        for k in range(1, len(sizes) + 1):
            gangs = {size: sizes[:k].count(size) for size in sizes[:k]}
            for span, less in zip((MACHINE, RACK, ANYWHERE), slow):
                rows.append((b, gangs, 40.0 + gain * k**0.5 - less, span))
    return sale, bids([0.0] * bidders, rows)


def packs(sale: Supply, table: Bids, chosen: list[int]) -> bool:
    """Exhaustive packing: every gang on every machine, or GPU by GPU over machines where it may spread."""
    free = sale.free.tolist()
    anchored = [r for r in chosen if table.row_anchor[r] >= 0]
    tasks: list[tuple[int, list[list[int]]]] = []
    for r in anchored + [r for r in chosen if r not in anchored]:
        mine = [n for n in range(len(free)) if sale.machine_type[n] == table.row_type[r]]
        span, anchor = table.row_span[r], table.row_anchor[r]
        if anchor >= 0:
            here = [n for n in mine if anchor == (n if span == MACHINE else sale.machine_rack[n])]
            tasks.append((int(table.gpus[r]), [here]))
            continue
        for size, count in table.gangs(r).items():
            if span == MACHINE:
                groups = [[n] for n in mine]
            elif span == RACK:
                groups = [[n for n in mine if sale.machine_rack[n] == x] for x in set(sale.machine_rack.tolist())]
            else:
                groups = [mine]
            tasks += [(size, groups)] * count
    tasks.sort(key=lambda t: max(map(len, t[1]), default=0))
    dead: set[tuple] = set()

    def spread(size: int, group: list[int]) -> Iterator[tuple[int, ...]]:
        if len(group) == 1:
            yield (size,)
            return
        for k in range(min(size, free[group[0]]) + 1):
            for rest in spread(size - k, group[1:]):
                yield (k, *rest)

    def go(i: int) -> bool:
        if i == len(tasks):
            return True
        if (i, *free) in dead:
            return False
        size, groups = tasks[i]
        for group in groups:
            for counts in spread(size, group) if group else ():
                if all(k <= free[n] for k, n in zip(counts, group)):
                    for k, n in zip(counts, group):
                        free[n] -= k
                    done = go(i + 1)
                    for k, n in zip(counts, group):
                        free[n] += k
                    if done:
                        return True
        dead.add((i, *free))
        return False

    return go(0)


def brute(sale: Supply, table: Bids, without: int = -1) -> float:
    """Largest sum of log V over all choices of rows, with `without` left out altogether."""
    who = [b for b in range(table.bidders) if b != without]
    options = [[-1, *(table.row_bidder == b).nonzero()[0].tolist()] for b in who]
    worth = {
        choice: sum(table.base[b] if r < 0 else table.row_value[r] for b, r in zip(who, choice))
        for choice in itertools.product(*options)
    }
    cap = sale.free.sum()
    for choice in sorted(worth, key=lambda c: -worth[c]):
        chosen = [r for r in choice if r >= 0]
        if sum(table.gpus[r] for r in chosen) <= cap and packs(sale, table, chosen):
            return float(worth[choice])
    raise AssertionError("winning nothing always packs")


def check_outcome(sale: Supply, table: Bids, out: Outcome) -> None:
    """Capacity, and that each winner's counts hold its gangs within their span, anchor and type; losers pay nothing."""
    used = np.bincount(out.win_machine, out.win_gpus, sale.free.size)
    assert (used <= sale.free).all()
    assert (out.win_gpus > 0).all()
    for b in range(table.bidders):
        mine = out.win_bidder == b
        row = int(out.row[b])
        if row < 0:
            assert not mine.any()
            assert out.kept[b] == out.kept_low[b] == out.kept_high[b] == 1.0
            continue
        assert table.row_bidder[row] == b
        assert out.win_gpus[mine].sum() == table.gpus[row]
        assert (sale.machine_type[out.win_machine[mine]] == table.row_type[row]).all()
        got = np.bincount(out.win_machine[mine], out.win_gpus[mine], sale.free.size).astype(int)
        own = Supply(free=got, machine_rack=sale.machine_rack, machine_type=sale.machine_type)
        assert packs(own, table, [row])
        assert 0 <= out.kept_low[b] <= out.kept[b] <= out.kept_high[b] <= 1
    worth = sum(table.base[b] if r < 0 else table.row_value[r] for b, r in enumerate(out.row.tolist()))
    assert abs(out.objective - worth) < 1e-9
    assert out.gap >= 0
