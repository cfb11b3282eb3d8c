"""How often 95 % intervals over seeds hold the truth, for the numbers that `themis compare` shows.

    python benchmarks/bench_intervals.py [--quick]

A run is 200 apps of log-normal JCT (sigma 1), times a factor of its seed (sigma `between`). The truth is the mean of the
number over 20,000 runs. Compared: Student's t over seeds, and the two-stage bootstrap of `themis.report.intervals`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from themis.report.intervals import Interval, p99_interval, t_interval

APPS = 200
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x.mean(axis=-1),
    "median": lambda x: np.median(x, axis=-1),
    "p99": lambda x: np.percentile(x, 99, axis=-1),
    "max": lambda x: x.max(axis=-1),
}


def main() -> None:
    """Print a table: coverage and mean half width."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    trials = 50 if parser.parse_args().quick else 400
    rng = np.random.default_rng(0)
    print("| seeds | between | number | t covers % | half | bootstrap covers % | half |")
    print("|---|---|---|---|---|---|---|")
    for seeds in (3, 5, 10):
        for between in (0.05, 0.3):
            truth = {name: f(draw(rng, 20_000, between)).mean() for name, f in NUMBERS.items()}
            sets = [draw(rng, seeds, between) for _ in range(trials)]
            for name, number in NUMBERS.items():
                t = said([t_interval(number(x).tolist()) for x in sets], truth[name])
                boot = said([p99_interval(list(x)) for x in sets], truth[name]) if name == "p99" else "– | –"
                print(f"| {seeds} | {between} | {name} | {t} | {boot} |")


def draw(rng: np.random.Generator, runs: int, between: float) -> Any:
    """JCT of runs x apps."""
    return np.exp(rng.normal(0, 1, (runs, APPS)) + rng.normal(0, between, (runs, 1)))


def said(intervals: list[Interval], truth: float) -> str:
    """Coverage in percent, and mean half width."""
    covered = np.mean([i.low <= truth <= i.high for i in intervals])
    return f"{100 * covered:.0f} | {np.mean([i.half for i in intervals]):.2f}"


if __name__ == "__main__":
    main()
