"""A fast form against the general one next to it, in one process, by turns; asserts no seconds.

    python benchmarks/bench_optimize.py [--repeats 3]

- Highest levels of Gavel's objectives, whose prices are matrix games of few rows: the simplex method for these (``MatrixGame``)
  against HiGHS kept warm from one column to the next (``GameProgram``).
- The auctions of Philly's first 400 jobs, each an app of its own: uncontested ones in plain numbers, and over the problem.
  Needs the recorded traces (``THEMIS_DATA`` or ``../shared/data``); left out without them.

CPU seconds are medians of ``--repeats`` runs of each form.
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

from bench_gavel import instance, new_jobs, work_left
from themis.optimize.matrix_game import GameProgram
from themis.optimize.shares import level
from themis.policies import themis as themis_policy
from themis.policies.api import make_policy
from themis.policies.auction import clear, clearing
from themis.policies.gavel.finish_time_shares import finish_time_fairness
from themis.policies.gavel.makespan_shares import min_makespan
from themis.policies.gavel.max_min import max_min, max_min_water_filling
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

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


def recorded() -> Run | None:
    """All auctions of a simulation, cleared again."""
    if not PHILLY.exists():
        return None
    read = load_workload(str(PHILLY), seed=0, single_jobs=True)
    made = Simulation(
        workload=replace(read, apps=read.apps[:400]),
        cluster=load_cluster("sim-256"),
        book=DEFAULT_BOOK,
        policy_name="themis",
        policy=make_policy("themis"),
    )
    asked: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def kept(*args: object, **options: object) -> object:
        asked.append((args, options))
        return clear(*args, **options)

    with patch.object(themis_policy, "clear", kept):
        made.run(lambda _at, _record: None)
    return lambda: [clear(*args, **options) for args, options in asked]


@contextmanager
def only_problems() -> Iterator[None]:
    """Every auction is brought to a problem first."""
    with patch.object(clearing, "plainly_uncontested", lambda offer, bids: None):
        yield


@contextmanager
def highs_games() -> Iterator[None]:
    """HiGHS solves the games."""
    with patch.object(level, "MatrixGame", GameProgram):
        yield


def main() -> None:
    """Print a table for each question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    print("| game | MatrixGame, CPU s | GameProgram, CPU s | ratio |\n|---|---|---|---|")
    for row, run in levels([128, 512, 2048, 10_000]):
        by_turns(row, run, nullcontext, highs_games, given.repeats)
    if auctions := recorded():
        print("\n| auctions | plain numbers, CPU s | over the problem, CPU s | ratio |\n|---|---|---|---|")
        by_turns("Philly, 400 single jobs", auctions, nullcontext, only_problems, given.repeats)


if __name__ == "__main__":
    main()
