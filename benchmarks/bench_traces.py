"""Replay whole clusters' histories: how fast, how much memory, nothing lost.

    python benchmarks/bench_traces.py [--data FOLDER] [--policies tiresias,themis] [--traces philly,itp] [--jobs 1]

- philly: every job submitted in the densest fortnight (whole days) of the Philly trace, an app each, on 256 x 8 GPUs.
- itp: the ten ITP clusters as tenants of one cluster of 192 x 8 GPUs, each job an app, two months.

The traces are looked for in ``THEMIS_DATA`` or ``../shared/data``. Simulated; CPU seconds and peak memory of a process of
its own for each run, the metrics included.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from themis.model.workload import Workload
from themis.policies.api import make_policy
from themis.report.metrics import Fold
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

DAY = 86400.0
TRACES = {"philly": ("philly/philly_jobs.csv.gz", "256x8"), "itp": ("itp/raw-traces.tar.gz", "192x8")}


def densest_fortnight(workload: Workload) -> Workload:
    """The apps that arrive in the fourteen whole days with most arrivals, the first of them at 0."""
    arrivals = np.array([app.arrival for app in workload.apps])
    starts = np.arange(0.0, arrivals[-1], DAY)
    counts = np.searchsorted(arrivals, starts + 14 * DAY) - np.searchsorted(arrivals, starts)
    start = float(starts[counts.argmax()])
    apps = (app for app in workload.apps if start <= app.arrival < start + 14 * DAY)
    return replace(workload, apps=tuple(replace(app, arrival=app.arrival - start) for app in apps))


def one(folder: str, trace: str, policy: str) -> str:
    """Run, and say what came out as a line of a table."""
    file, shape = TRACES[trace]
    start = time.process_time()
    workload = load_workload(str(Path(folder) / file), seed=0)
    if trace == "philly":
        workload = densest_fortnight(workload)
    read = time.process_time() - start
    simulation = Simulation(
        workload=workload,
        cluster=load_cluster(shape),
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
    )
    fold = Fold()
    start = time.process_time()
    simulation.run(fold.add)
    spent = time.process_time() - start
    m = fold.result()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    users = {app.user for app in workload.apps}
    return (
        f"| {trace} on {shape} | {len(workload.apps):,} | {len(users)} | {policy} | {len(workload.apps) - len(m.completed)} "
        f"| {read:.0f} | {spent:.0f} | {peak:.2f} | {m.decisions:,} | {m.contention:.2f} / {m.contention_max:.1f} "
        f"| {100 * m.utilisation:.0f} | {m.jct_mean / 3600:.1f} | {m.wait_p99 / 60:.0f} | {m.rho_exact.max:.2f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("THEMIS_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--policies", default="tiresias,themis")
    parser.add_argument("--traces", default="philly,itp")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if not all((given.data / TRACES[trace][0]).exists() for trace in given.traces.split(",")):
        print(f"No traces in {given.data}; set THEMIS_DATA to the folder that holds philly/ and itp/.")
        return
    print(
        "| trace | jobs | users | policy | lost | reading CPU s | CPU s | GB | decisions | demand / capacity mean, peak "
        "| utilisation % | mean JCT h | p99 queueing min | max ρ exact |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        tasks = [(t, p) for t in given.traces.split(",") for p in given.policies.split(",")]
        for line in pool.map(one, *zip(*((str(given.data), t, p) for t, p in tasks))):
            print(line, flush=True)


if __name__ == "__main__":
    main()
