"""How fast the auction clears, as tables and ratios; asserts no seconds.

    python benchmarks/bench_auction.py [--quick]

(a) 256 GPUs, 20 bidders, against one program with a binary per (app, count vector over classes of alike machines).
(b) 4,096 GPUs, 400 bidders: the allocation, and all payments as intervals.
(c) A stream of small auctions, as a simulation holds them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median

import numpy as np

from themis.optimize import MixedIntegerProgram, solve
from themis.policies.auction import ANYWHERE, MACHINE, RACK, Bids, Limits, Supply, clear

CAP = 100_000
"""Most rows of the reference's bid table for one app."""

SLOWDOWNS = [(1.0, 1.0), (1.02, 1.05), (1.1, 1.25), (1.15, 1.3), (1.29, 1.4), (1.2, 1.4)]
"""Slowdown across the machines of a rack, and across racks, by model."""


def sim_256() -> Supply:
    """27 machines of 8 GPUs, 6 of 4 and 16 of 1, in racks of 8."""
    return Supply(
        free=np.array([8] * 27 + [4] * 6 + [1] * 16),
        machine_rack=np.arange(49) // 8,
        machine_type=np.zeros(49, np.int64),
    )


def part_of(offer: Supply, gpus: int, rng: np.random.Generator) -> Supply:
    """`gpus` GPUs of the offer, freed as leases end: a machine's GPUs in lumps of 1, 2, 4 or all."""
    free = np.zeros_like(offer.free)
    while free.sum() < gpus:
        n = int(rng.integers(offer.free.size))
        lump = int(min(rng.choice([1, 2, 4, 8]), offer.free[n] - free[n], gpus - free.sum()))
        free[n] += lump
    return Supply(free=free, machine_rack=offer.machine_rack, machine_type=offer.machine_type)


def make_bids(
    offer: Supply,
    bidders: int,
    seed: int,
    *,
    rows: int = 64,
    singles: float = 0.4,
    anchors: float = 0.2,
    full: bool = False,
) -> Bids:
    """Elastic apps of gangs of 1, 2, 4 or 8: rho = (elapsed + left * S / g) / T_id for every count and span.

    `full` : no gangs of 1, sixteen gangs wanted, so that every bid is as large as the protocol allows.
    """
    rng = np.random.default_rng(seed)
    base, table, held = [], [], []
    total = int(offer.free.sum())
    some = offer.free.nonzero()[0]
    for b in range(bidders):
        gang = 1 if rng.random() < singles else int(rng.choice([1, 2, 4, 8], p=[0.1, 0.4, 0.3, 0.2]))
        most = int(min(rng.choice([1, 2, 4, 8, 16]), max(1, rows // 3)))
        if full:
            gang, most = max(gang, 2), 16
        elapsed, left = float(rng.exponential(2e4)), float(rng.exponential(8e4) + 2e3)
        ideal = float(elapsed * rng.uniform(0.3, 1.2) + left / rng.uniform(2, 16))
        across, beyond = SLOWDOWNS[int(rng.integers(len(SLOWDOWNS)))]
        base.append(-math.log((elapsed + 600 + left) / ideal))
        spans = [(MACHINE, 1.0, -1)] if gang == 1 else [(MACHINE, 1.0, -1), (RACK, across, -1), (ANYWHERE, beyond, -1)]
        if rng.random() < anchors:
            n = int(rng.choice(some))
            spans.append((MACHINE, 0.97, n))
            held.append((b, n, int(rng.integers(1, offer.free[n] + 1))))
        for k in range(1, most + 1):
            if k * gang > total:
                break
            for span, slow, anchor in spans:
                value = -math.log((elapsed + left * slow / (k * gang)) / ideal)
                if value > base[-1]:
                    table.append((b, span, anchor, value, gang, k))
    if not table:
        # An offer too small for every gang drawn: one single GPU keeps the auction an auction.
        table.append((0, MACHINE, -1, base[0] + 0.1, 1, 1))
    b, span, anchor, value, gang, count = zip(*table)
    e = np.array(held, np.int64).reshape(-1, 3)
    return Bids(
        base=np.array(base),
        expiring_bidder=e[:, 0],
        expiring_machine=e[:, 1],
        expiring_gpus=e[:, 2],
        row_bidder=np.array(b),
        row_span=np.array(span),
        row_type=np.zeros(len(b), np.int64),
        row_anchor=np.array(anchor),
        row_value=np.array(value),
        gang_ptr=np.arange(len(b) + 1),
        gang_size=np.array(gang),
        gang_count=np.array(count),
    )


def stream(quick: bool) -> None:
    """(c) Small auctions: 1-30 GPUs, 1-40 bidders."""
    whole, count = sim_256(), 200 if quick else 2000
    print("\n(c) small auctions: 1-30 GPUs, 1-40 bidders, payments included")
    print(
        f"{'mix':<10} {'method':<8} {'auctions':>8} {'mean ms':>8} {'median':>8} {'p99':>8} "
        f"{'programs':>8} {'nodes':>7}"
    )
    for mix, singles, anchors in (("singles", 1.0, 0.0), ("mixed", 0.5, 0.2), ("gangs", 0.0, 0.3)):
        spent: dict[str, list[float]] = defaultdict(list)
        work: Counter[str] = Counter()
        for seed in range(count):
            rng = np.random.default_rng(seed)
            offer = part_of(whole, int(rng.integers(1, 31)), rng)
            bids = make_bids(offer, int(rng.integers(1, 41)), seed, singles=singles, anchors=anchors)
            start = time.process_time()
            out = clear(offer, bids)
            took = (time.process_time() - start) * 1e3
            for name in (out.method, "any"):
                spent[name].append(took)
                work[name + "p"] += out.programs
                work[name + "n"] += out.nodes
        for name, times in sorted(spent.items(), key=lambda kv: len(kv[1])):
            print(
                f"{mix:<10} {name:<8} {len(times):>8} {np.mean(times):>8.2f} {median(times):>8.2f} "
                f"{np.quantile(times, 0.99):>8.2f} {work[name + 'p']:>8} {work[name + 'n']:>7}"
            )


def tables_of(offer: Supply, bids: Bids) -> tuple[list[tuple[int, float, tuple[int, ...]]], np.ndarray, bool]:
    """The reference's bids: (app, gain, GPUs per machine size), the sizes' GPUs, and whether tables were cut at CAP.

    A class is a machine size. Gangs within a machine, or within a rack, take multiples of their size from each class;
    sizes divide the machines, so keeping each class's GPUs in sum is enough to pack them.
    """
    sizes = sorted(set(offer.free[offer.free > 0].tolist()), reverse=True)
    gpus = np.array([int(offer.free[offer.free == s].sum()) for s in sizes])
    best: dict[tuple[int, tuple[int, ...]], float] = {}
    for r in range(bids.rows):
        b, (gang,) = int(bids.row_bidder[r]), bids.gangs(r)
        step, span = (1 if bids.row_span[r] == ANYWHERE else gang), bids.row_span[r]
        tops = []
        for size, cap in zip(sizes, gpus.tolist()):
            room = np.bincount(offer.machine_rack[offer.free == size], offer.free[offer.free == size]).astype(int)
            per_rack = int((room // gang).sum()) * gang
            tops.append(cap if step == 1 else per_rack if span == RACK else cap if gang <= size else 0)
        gain = float(bids.row_value[r] - bids.base[b])
        for vector in splits(int(bids.gpus[r]), step, tops):
            best[b, vector] = max(best.get((b, vector), 0.0), gain)
    table = sorted(((b, gain, v) for (b, v), gain in best.items()), key=lambda t: -t[1])
    return table[:CAP], gpus, len(table) > CAP


def splits(gpus: int, step: int, tops: list[int]) -> Iterator[tuple[int, ...]]:
    """Every way to take `gpus` in multiples of `step` from classes of at most `tops`."""
    if len(tops) == 1:
        if gpus <= tops[0]:
            yield (gpus,)
        return
    for first in range(0, min(gpus, tops[0]) + 1, step):
        for rest in splits(gpus - first, step, tops[1:]):
            yield (first, *rest)


def reference(table: list[tuple[int, float, tuple[int, ...]]], gpus: np.ndarray, bidders: int, gap: float) -> list[int]:
    """Chosen entries of the table: one binary each, one line per app and per class."""
    who = np.array([b for b, _, _ in table])
    takes = np.array([v for _, _, v in table])
    lines = [(who == b).nonzero()[0] for b in range(bidders)] + [takes[:, c].nonzero()[0] for c in range(gpus.size)]
    value = [np.ones(line.size) for line in lines[:bidders]]
    value += [takes[line, c].astype(float) for c, line in enumerate(lines[bidders:])]
    n = who.size
    found = solve(
        MixedIntegerProgram(
            gain=np.array([g for _, g, _ in table]),
            low=np.zeros(n),
            high=np.ones(n),
            whole=np.ones(n, np.bool_),
            row_low=np.full(len(lines), -np.inf),
            row_high=np.concatenate([np.ones(bidders), gpus.astype(float)]),
            start=np.cumsum([0] + [line.size for line in lines]),
            column=np.concatenate(lines),
            value=np.concatenate(value),
        ),
        gap=gap,
        nodes=1_000_000,
        accept=np.inf,
    )
    return (found.x > 0.5).nonzero()[0].tolist()


def against_reference(quick: bool) -> None:
    """(a) 256 GPUs, 20 bidders, with all payments; both sides to the same gap, on one thread of the same HiGHS."""
    offer, limits = sim_256(), Limits()
    print("(a) 256 GPUs, 20 bidders, payments included; seconds of CPU")
    print(
        f"{'seed':>4} {'rows':>5} {'table':>7} {'method':<8} {'themis':>8} {'program':>8} {'ratio':>7} "
        f"{'objective -':>12} {'c diff':>9}"
    )
    pairs = []
    for seed in range(1 if quick else 5):
        bids = make_bids(offer, 20, seed, rows=24, singles=0.0, anchors=0.0)
        start = time.process_time()
        out = clear(offer, bids, limits)
        ours = time.process_time() - start
        start = time.process_time()
        table, gpus, capped = tables_of(offer, bids)
        built = time.process_time() - start
        start = time.process_time()
        chosen = reference(table, gpus, bids.bidders, limits.gap)
        gain = sum(table[i][1] for i in chosen)
        difference = []
        for i in chosen:
            a, own, _ = table[i]
            others = [t for t in table if t[0] != a]
            without = sum(others[j][1] for j in reference(others, gpus, bids.bidders, limits.gap))
            difference.append(abs(math.exp(min(0.0, gain - own - without)) - out.kept[a]))
        theirs = time.process_time() - start
        pairs.append((ours, theirs))
        print(
            f"{seed:>4} {bids.rows:>5} {len(table):>6}{'*' if capped else ' '} {out.method:<8} {ours:>8.4f} "
            f"{theirs:>8.2f} {theirs / ours:>6.0f}x {out.objective - bids.base.sum() - gain:>12.1e} "
            f"{max(difference):>9.1e}"
            f"   (tables built in {built:.2f} s, not counted)",
            flush=True,
        )
    times = [median(side) for side in zip(*pairs)]
    print(f"median {times[0]:.4f} s against {times[1]:.2f} s; * tables cut at {CAP} rows")
    print("Where winners tie, c may differ: each side then prices its own optimum.")


def huge(quick: bool) -> None:
    """(b) 512 machines of 8 GPUs, 400 bidders: wholly free, then with 0-8 GPUs free on each."""
    racks, kinds = np.arange(512) // 8, np.zeros(512, np.int64)
    part = np.random.default_rng(0).integers(0, 9, 512)
    print("\n(b) 512 machines, 400 bidders; seconds of CPU, gaps in nats")
    print(
        f"{'offer':<14} {'gpus':>5} {'rows':>6} {'method':<8} {'alloc':>7} {'gap':>8} {'+ payments':>10} "
        f"{'width max':>10} {'mean':>8}"
    )
    whole = np.full(512, 8)
    cases = [("free", whole, 0.4, 0.0, False), ("free, anchors", whole, 0.4, 0.2, False)]
    cases += [("part", part, 0.4, 0.2, False), ("part, gangs", part, 0.0, 0.2, False)]
    cases += [("free, 64 rows", whole, 0.0, 1.0, True), ("part, 64 rows", part, 0.0, 1.0, True)]
    for name, free, singles, anchors, full in cases[:: 2 if quick else 1]:
        offer = Supply(free=free, machine_rack=racks, machine_type=kinds)
        bids = make_bids(offer, 400, 1, singles=singles, anchors=anchors, full=full)
        start = time.process_time()
        clear(offer, bids, payments=False)
        middle = time.process_time()
        out = clear(offer, bids)
        width = (out.kept_high - out.kept_low)[out.row >= 0]
        print(
            f"{name:<14} {free.sum():>5} {bids.rows:>6} {out.method:<8} {middle - start:>7.2f} {out.gap:>8.1e} "
            f"{time.process_time() - middle:>10.2f} {width.max():>10.1e} {width.mean():>8.1e}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    against_reference(quick)
    huge(quick)
    stream(quick)


if __name__ == "__main__":
    main()
