"""Measure what the Themis paper leaves open, and print a table (decision 3).

    python benchmarks/open_points.py --apps 60 --seeds 0-2 --loads 0.9,1.4,2.0 --jobs 2

Every variant runs on the same generated workloads (Themis §6.1); figures are means over seeds. Simulated.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from themis.model.settings import Settings
from themis.policies.api import make_policy
from themis.report.metrics import Fold
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

VARIANTS = {
    "default": "themis",
    "payment=floor": "themis:payment=floor",
    "payment=randomised": "themis:payment=randomised",
    "payment=lottery": "themis:payment=lottery",
    "waiting=share": "themis:waiting=share",
    "decline=false": "themis:decline=false",
    "rho=exact": "themis:rho=exact",
    "drf": "drf",
    "tiresias": "tiresias",
    "gandiva": "gandiva",
}
COLUMNS = (
    "max paper",
    "median paper",
    "max exact",
    "median exact",
    "mean JCT h",
    "makespan h",
    "GPU h",
    "restarts",
    "lost %",
)


def measure(task: tuple[str, str, float, int, int, str]) -> tuple[Any, ...]:
    """One run."""
    variant, workload, load, seed, apps, cluster = task
    policy = VARIANTS[variant]
    simulation = Simulation(
        workload=load_workload(workload, seed=seed, apps=apps, load=load, gpus=load_cluster(cluster).gpus),
        cluster=load_cluster(cluster),
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(seed=seed),
    )
    fold = Fold()
    simulation.run(fold.add)
    m = fold.result()
    paper = np.array([a.rho_paper for a in m.apps])
    exact = np.array([a.rho_exact for a in m.apps])
    jct = np.array([a.jct for a in m.apps])
    figures = (
        paper.max(),
        np.median(paper),
        exact.max(),
        np.median(exact),
        jct.mean() / 3600,
        m.makespan / 3600,
        m.gpu_seconds / 3600,
        m.restarts,
        100 * m.restart_seconds / m.gpu_seconds,
    )
    return (variant, workload, load, seed, *map(float, figures))


def main() -> None:
    """Run the grid and print one Markdown table a workload and load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apps", type=int, default=60)
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--loads", default="0.9,1.4,2.0")
    parser.add_argument("--workloads", default="themis1,themis2")
    parser.add_argument("--cluster", default="sim-64")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    low, _, high = given.seeds.partition("-")
    seeds = range(int(low), int(high or low) + 1)
    loads = [float(x) for x in given.loads.split(",")]
    tasks = [
        (variant, workload, load, seed, given.apps, given.cluster)
        for workload in given.workloads.split(",")
        for load in loads
        for seed in seeds
        for variant in VARIANTS
    ]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(measure, tasks))
    for workload in given.workloads.split(","):
        for load in loads:
            print(
                f"\n{workload}, offered load {load}, {given.apps} apps on {given.cluster}, {len(seeds)} seeds (simulated)\n"
            )
            print("| variant | " + " | ".join(COLUMNS) + " |\n|---" * 1 + "|---" * len(COLUMNS) + "|")
            for variant in VARIANTS:
                mine = np.array([r[4:] for r in rows if r[:3] == (variant, workload, load)])
                print(
                    f"| {variant} | "
                    + " | ".join(f"{x:.3g}" if x < 1000 else f"{x:.0f}" for x in mine.mean(axis=0))
                    + " |"
                )


if __name__ == "__main__":
    main()
