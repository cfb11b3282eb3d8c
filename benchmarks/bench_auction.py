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

from themis.auction import ANYWHERE, MACHINE, RACK, Bids, Limits, Offer, clear
from themis.errors import NotSolved
from themis.solvers import Program, solve

CAP = 100_000
"""Most rows of the reference's bid table for one app."""

SLOWDOWNS = [(1.0, 1.0), (1.02, 1.05), (1.1, 1.25), (1.15, 1.3), (1.29, 1.4), (1.2, 1.4)]
"""Slowdown across the machines of a rack, and across racks, by model."""


def sim_256() -> Offer:
    """27 machines of 8 GPUs, 6 of 4 and 16 of 1, in racks of 8."""
    return Offer(
        free=np.array([8] * 27 + [4] * 6 + [1] * 16),
        machine_rack=np.arange(49) // 8,
        machine_type=np.zeros(49, np.int64),
    )


def part_of(offer: Offer, gpus: int, rng: np.random.Generator) -> Offer:
    """`gpus` GPUs of the offer, freed as leases end: a machine's GPUs in lumps of 1, 2, 4 or all."""
    free = np.zeros_like(offer.free)
    while free.sum() < gpus:
        n = int(rng.integers(offer.free.size))
        lump = int(min(rng.choice([1, 2, 4, 8]), offer.free[n] - free[n], gpus - free.sum()))
        free[n] += lump
    return Offer(free=free, machine_rack=offer.machine_rack, machine_type=offer.machine_type)


def make_bids(offer: Offer, bidders: int, seed: int, *, rows: int = 64, singles: float = 0.4, anchors: float = 0.2) -> Bids:
    """Elastic apps of gangs of 1, 2, 4 or 8: rho = (elapsed + left * S / g) / T_id for every count and span."""
    rng = np.random.default_rng(seed)
    base, table, held = [], [], []
    total = int(offer.free.sum())
    some = offer.free.nonzero()[0]
    for b in range(bidders):
        gang = 1 if rng.random() < singles else int(rng.choice([1, 2, 4, 8], p=[0.1, 0.4, 0.3, 0.2]))
        most = int(min(rng.choice([1, 2, 4, 8, 16]), max(1, rows // 3)))
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
    b, span, anchor, value, gang, count = zip(*table)
    e = np.array(held, np.int64).reshape(-1, 3)
    return Bids(
        base=np.array(base), expiring_bidder=e[:, 0], expiring_machine=e[:, 1], expiring_gpus=e[:, 2],
        row_bidder=np.array(b), row_span=np.array(span), row_type=np.zeros(len(b), np.int64),
        row_anchor=np.array(anchor), row_value=np.array(value), gang_ptr=np.arange(len(b) + 1),
        gang_size=np.array(gang), gang_count=np.array(count),
    )  # fmt: skip


def stream(quick: bool) -> None:
    """(c) Small auctions: 1-30 GPUs, 1-40 bidders."""
    whole, count = sim_256(), 200 if quick else 2000
    print("\n(c) small auctions: 1-30 GPUs, 1-40 bidders, payments included")
    print(f"{'mix':<10} {'method':<8} {'auctions':>8} {'mean ms':>8} {'median':>8} {'p99':>8} {'programs':>8} {'nodes':>7}")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    stream(quick)


if __name__ == "__main__":
    main()
