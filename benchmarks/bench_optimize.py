"""Ways that answer one question: each fast form against the general one next to it, in one process, by turns; asserts no seconds.

    python benchmarks/bench_optimize.py [--repeats 3] [uncontested] [program] [game]

``uncontested``  auctions with room for all: in plain numbers before any problem is built, against the rule over the problem
``program``      levels of few jobs: one program over all of them, against prices of pools
``game``         prices of pools: the simplex method for games of few rows, against HiGHS kept warm from one column to the next

Rows are simulations (``sim``) or solves; CPU seconds are medians of ``--repeats`` runs of each form. Philly's rows need the
recorded traces (``THEMIS_DATA`` or ``../shared/data``); without them they are left out.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np

from bench_auction import make_bids, part_of, sim_256
from bench_gavel import instance, new_jobs, work_left
from themis.auction import clear, clearing
from themis.gavel.finish_time import finish_time_fairness
from themis.gavel.makespan import min_makespan
from themis.gavel.max_min import max_min, max_min_water_filling
from themis.model.units import Float
from themis.optimize.columns import ColumnProgram
from themis.optimize.shares import level
from themis.policies.api import make_policy
from themis.profiles.measured import gavel_book
from themis.profiles.models import DEFAULT_BOOK
from themis.profiles.presets import load_cluster
from themis.sim.runner import Simulation
from themis.traces.api import load_workload

DATA = Path(os.environ.get("THEMIS_DATA", Path(__file__).parents[2] / "shared" / "data"))
PHILLY = DATA / "philly" / "philly_themis_like_apps.csv.gz"
Run = Callable[[], object]
Way = Callable[[], AbstractContextManager[object]]


def by_turns(name: str, run: Run, fast: Way, general: Way, repeats: int) -> None:
    """Print a row: medians of both forms' CPU seconds, and general over fast."""
    spent: dict[str, list[float]] = {"fast": [], "general": []}
    for _ in range(repeats):
        for form, way in (("fast", fast), ("general", general)):
            with way():
                began = time.process_time()
                run()
                spent[form].append(time.process_time() - began)
    here, there = median(spent["fast"]), median(spent["general"])
    print(f"| {name} | {here:.4f} | {there:.4f} | {there / here:.2f} |", flush=True)


def simulated(
    workload: str, cluster: str, policy: str, *, apps: int = 0, gavel: bool = False, **options: object
) -> Run:
    """A simulation that keeps no log."""
    book = gavel_book() if gavel else DEFAULT_BOOK
    read = load_workload(workload, seed=0, book=book, **options)
    if apps:
        read = replace(read, apps=read.apps[:apps])
    made = Simulation(
        workload=read, cluster=load_cluster(cluster), book=book, policy_name=policy, policy=make_policy(policy)
    )
    return lambda: made.run(lambda _at, _record: None)


def stream(singles: float, anchors: float, count: int) -> Run:
    """Small auctions, as ``bench_auction`` (c) holds them."""
    cases = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        offer = part_of(sim_256(), int(rng.integers(1, 31)), rng)
        cases.append((offer, make_bids(offer, int(rng.integers(1, 41)), seed, singles=singles, anchors=anchors)))
    return lambda: [clear(offer, bids) for offer, bids in cases]


def auctions() -> Iterator[tuple[str, Run]]:
    """Streams of auctions, and simulations that hold them."""
    for mix, singles, anchors in (("singles", 1.0, 0.0), ("mixed", 0.5, 0.2), ("gangs", 0.0, 0.3)):
        yield f"300 small auctions, {mix}", stream(singles, anchors, 300)
    yield "sim: `themis1`, 10 apps", simulated("themis1", "sim-256", "themis", apps=10, load="2", gpus="256")
    if PHILLY.exists():
        yield "sim: Philly, 20 apps", simulated(str(PHILLY), "sim-256", "themis", apps=20)
        yield "sim: Philly, 400 single jobs", simulated(str(PHILLY), "sim-256", "themis", apps=400, single_jobs=True)


def levels(sizes: Sequence[int]) -> Iterator[tuple[str, Run]]:
    """Solves of ``bench_gavel``'s instances."""
    for jobs in sizes:
        i = instance(jobs, 2, gangs=True, types=7 if jobs >= 10_000 else 3)
        ones, day = np.ones(jobs), work_left(i, "makespan, a day each")
        yield f"max-min, {jobs:,} jobs", lambda i=i, one=ones: max_min(i.problem, one, fill=False)
        yield f"makespan, a day each, {jobs:,} jobs", lambda i=i, d=day: min_makespan(i.problem, d, fill=False)
        yield (
            f"finish-time fairness, new jobs, {jobs:,} jobs",
            lambda i=i, one=ones: finish_time_fairness(i.problem, new_jobs(i), one, fill=False),
        )
        yield f"water filling, {jobs:,} jobs", lambda i=i: max_min_water_filling(i.problem, i.weight)


def policies() -> Iterator[tuple[str, Run]]:
    """Simulations of Gavel's policies with some dozens of jobs."""
    for policy in ("max_min_fairness", "max_min_water_filling", "finish_time_fairness", "makespan"):
        yield f"sim: `{policy}`, 40 jobs", simulated("gavel_multi", "gavel-36", policy, gavel=True, jobs="40")


class WarmGame:
    """``MatrixGame`` by HiGHS, one model for all columns of a game."""

    def __init__(self, use: Float, basis: Sequence[int] = ()) -> None:
        rows = use.shape[1]
        self.rows, self.use, self.scale = rows, use[:0], max(float(use.max()), 1e-300)
        self.program = ColumnProgram(np.append(np.full(rows, -np.inf), 1.0), np.append(np.zeros(rows), 1.0))
        self.program.add_dense(np.array([-1.0]), np.append(np.full(rows, -1.0), 0.0)[None])
        self.program.tighten()
        self.add(use)

    @property
    def basis(self) -> list[int]:
        """Columns of the last mixture."""
        return np.flatnonzero(self.weight > 0).tolist()

    def add(self, use: Float) -> None:
        """Append columns [P, M]."""
        self.use = np.vstack([self.use, use])
        self.program.add_dense(np.zeros(len(use)), np.column_stack([use / self.scale, np.ones(len(use))]))

    def solve(self) -> tuple[float, Float, Float]:
        """(value, weight of each column, dual of each row)."""
        found = self.program.solve()
        self.weight, dual = np.maximum(found.x[1:], 0.0), np.maximum(found.duals[: self.rows], 0.0)
        self.weight /= self.weight.sum()
        return float((self.weight @ self.use).max()), self.weight, dual / dual.sum()


@contextmanager
def only_problems() -> Iterator[None]:
    """Every auction is brought to a problem first."""
    with patch.object(clearing, "plainly_uncontested", lambda offer, bids: None):
        yield


@contextmanager
def only_prices() -> Iterator[None]:
    """No program over all jobs, however few."""
    with patch.object(level, "CELLS", 0):
        yield


@contextmanager
def highs_games() -> Iterator[None]:
    """HiGHS solves the games; prices alone find levels."""
    with patch.object(level, "MatrixGame", WarmGame), only_prices():
        yield


def main() -> None:
    """Print a table for each question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", default=[], help="uncontested, program, game; all by default")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    asked = given.questions or ["uncontested", "program", "game"]
    tables: dict[str, tuple[Callable[[], Iterator[tuple[str, Run]]], Way, Way]] = {
        "uncontested": (auctions, nullcontext, only_problems),
        "program": (lambda: (x for part in (policies(), levels([32, 96])) for x in part), nullcontext, only_prices),
        "game": (lambda: levels([128, 512, 2048, 10_000]), only_prices, highs_games),
    }
    for name in asked:
        rows, fast, general = tables[name]
        print(f"\n| {name} | fast, CPU s | general, CPU s | ratio |\n|---|---|---|---|")
        for row, run in rows():
            by_turns(row, run, fast, general, given.repeats)


if __name__ == "__main__":
    main()
