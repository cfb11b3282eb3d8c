"""How CPU time and memory of a simulation grow with the number of jobs that ever were.

    python benchmarks/bench_history.py [--jobs 10000,100000] [--policy drf] [--quick]

Apps of one job of 1, 2, 4 or 8 GPUs come to 32 x 8 GPUs at four fifths of what these can do, whatever the number of jobs, so that
as many are there at a time. The log is written to disk and the metrics are folded. Simulated; CPU seconds and peak memory of a
process of its own for each row. Linear: the seconds of a thousand jobs stay what they are.
"""

from __future__ import annotations

import argparse
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from bench_philly import logged
from themis.model.workload import App, Job, Regime, Workload

CLUSTER, GPUS, LOAD = "32x8", 256, 0.8
GANGS, PART = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)
MEDIAN_S, SPREAD = 1800.0, 1.0
MODEL = "ideal"
"""A step a second on each GPU."""


def history(jobs: int, seed: int = 0) -> Workload:
    """Poisson arrivals, log-normal work."""
    rng = np.random.default_rng(seed)
    gangs = rng.choice(GANGS, jobs, p=PART)
    seconds = MEDIAN_S * np.exp(SPREAD * rng.standard_normal(jobs))
    arrivals = np.cumsum(rng.exponential((gangs * seconds).sum() / jobs / (LOAD * GPUS), jobs))
    apps = (
        App(
            name=f"a{n}",
            user=f"u{n % 5}",
            arrival=float(arrivals[n]),
            jobs=(
                Job(
                    name="j",
                    model=MODEL,
                    gpus_min=int(gangs[n]),
                    gpus_max=int(gangs[n]),
                    regimes=(Regime(steps=float(gangs[n] * seconds[n])),),
                ),
            ),
        )
        for n in range(jobs)
    )
    return Workload(name="history", apps=tuple(apps))


def one(jobs: int, policy: str) -> str:
    """Run, and say what it cost as a line of the table."""
    fold, spent, size = logged(history(jobs), CLUSTER, policy)
    m = fold.result()
    if len(m.completed) != jobs:
        raise AssertionError(f"{len(m.completed)} of {jobs} apps completed.")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return f"| {jobs:,} | {policy} | {spent:.0f} | {1000 * spent / jobs:.2f} | {peak:.2f} | {size:.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="10000,100000")
    parser.add_argument("--policy", default="drf")
    parser.add_argument("--quick", action="store_true", help="300 and 600 jobs")
    given = parser.parse_args()
    sizes = [300, 600] if given.quick else [int(text) for text in given.jobs.split(",")]
    print("| jobs | policy | CPU s | CPU ms a job | peak GB | log, MB |\n|---|---|---|---|---|---|")
    for jobs in sizes:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            print(pool.submit(one, jobs, given.policy).result(), flush=True)


if __name__ == "__main__":
    main()
