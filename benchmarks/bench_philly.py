"""Replay the real Philly workload under the paper's policies: nothing lost, how fast, how much memory, how fair.

    python benchmarks/bench_philly.py [--data FOLDER] [--policies themis,drf] [--single-jobs] [--jobs 2]

732 apps / 14,521 jobs of the densest fortnight on sim-256, each virtual cluster a user; with ``--single-jobs`` every job
is an app of its own. The traces are looked for in ``THEMIS_DATA`` or ``../shared/data``. Simulated; CPU seconds and
peak memory of one process per run, the log written to disk included.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from themis.model.log import LogWriter
from themis.model.workload import Workload
from themis.policies.api import make_policy
from themis.report.metrics import Fold
from themis.sim.runner import Record, Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

TRACE = "philly/philly_themis_like_apps.csv.gz"
TAIL = 10
"""The ten largest apps hold 64 % of the work: figures are given with and without them."""


def given_with_trace(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Path | None]:
    """The options, with the folder of traces among them, and the trace; without it, say so."""
    default = os.environ.get("THEMIS_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--data", type=Path, default=Path(default))
    given = parser.parse_args()
    path = given.data / TRACE
    if path.is_file():
        return given, path
    print(f"skipped: no {path}; set THEMIS_DATA to the folder of the real traces")
    return given, None


def logged(workload: Workload, cluster: str, policy: str) -> tuple[Fold, float, float]:
    """A run with its log written to disk and its metrics folded: the fold, CPU seconds, megabytes of the log."""
    simulation = Simulation(
        workload=workload,
        cluster=load_cluster(cluster),
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
    )
    fold = Fold()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl.gz"
        start = time.process_time()
        with LogWriter(log) as writer:

            def sink(at: float, record: Record) -> None:
                writer(at, record)
                fold.add(at, record)

            simulation.run(sink)
        return fold, time.process_time() - start, log.stat().st_size / 1e6


def one(path: str, policy: str, single_jobs: bool) -> tuple[str, str]:
    """Run, and say what came out as two lines of tables."""
    options = {"single_jobs": True} if single_jobs else {}
    workload = load_workload(path, seed=0, **options)
    fold, spent, size = logged(workload, "sim-256", policy)
    m = fold.result()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    lost = len(workload.apps) - len(m.apps)
    cost = f"| {policy} | {len(m.apps)} | {lost} | {spent:.0f} | {peak:.2f} | {size:.0f} | {m.decisions} |"
    work = np.array([a.gpu_seconds for a in m.apps])
    usual = np.argsort(work)[:-TAIL]
    paper, exact = np.array([a.rho_paper for a in m.apps]), np.array([a.rho_exact for a in m.apps])
    jct = np.array([a.jct for a in m.apps]) / 3600
    fair = (
        f"| {policy} | {paper.max():.2f} | {paper[usual].max():.2f} | {np.median(paper):.3f} | {exact.max():.2f} "
        f"| {exact[usual].max():.2f} | {np.median(exact):.2f} | {100 * (exact > 1).mean():.0f} | {jct.mean():.1f} "
        f"| {np.median(jct):.2f} | {m.makespan / 86400:.1f} | {m.gpu_seconds / 3600:.0f} | {m.restarts} |"
    )
    return cost, fair


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="themis,gandiva,tiresias,drf,fifo")
    parser.add_argument("--single-jobs", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    given, path = given_with_trace(parser)
    if path is None:
        return
    policies = given.policies.split(",")
    print(
        "| policy | apps finished | lost | CPU s | peak GB | log MB | decisions |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    rows = []
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for row in pool.map(one, [str(path)] * len(policies), policies, [given.single_jobs] * len(policies)):
            print(row[0], flush=True)
            rows.append(row)
    print(f"\n(max rho also without the {TAIL} largest apps)\n")
    print(
        "| policy | max rho paper | without | median | max rho exact | without | median | exact > 1 % "
        "| mean JCT h | median JCT h | makespan d | GPU h | restarts |" + "\n" + "|---" * 13 + "|"
    )
    print("\n".join(fair for _, fair in rows))


if __name__ == "__main__":
    main()
