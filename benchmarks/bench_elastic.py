"""CPU of jobs that scale: one decision on 1,000 of them on 1,024 GPUs, and 1,000 adaptive jobs that report each minute.

    python benchmarks/bench_elastic.py [--jobs 1000]

Decision: all jobs wait, each takes 1 to 64 GPUs of machines of four, by 20 curves; snapshot and policy, the best of 5. Reports:
every job runs on one GPU and reports another noise (by a fifth) and other step times once a minute, so its row of the speed table,
its rate and what follows are renewed; after all of them a snapshot is taken, as a decision does. Median of ten minutes.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

from themis.core import take_snapshot
from themis.core.scheduler import Scheduler
from themis.model.cluster import in_racks
from themis.model.events import AppSubmitted, GoodputReported, JobStarted, MachineJoined
from themis.model.goodput import Adaptive
from themis.model.settings import Settings
from themis.model.speed import ANY_TYPE, Curve, Profile, ProfileBook
from themis.model.workload import App, Job, Regime
from themis.policies.api import Cadence, Workbench, make_policy

SIZES = (1, 2, 4, 8, 16, 32, 64)
MODELS = 20
COLUMNS = frozenset({"job_seconds"})
BATCHES = Adaptive(base=128, most=4096, local=(32, 512))
TIMES = np.array([0.02, 0.001, 0.12, 0.003, 0.03, 0.001, 2.0])
"""Parameters of ``StepTimes``."""


def cluster_of(book: ProfileBook, jobs: list[Job]) -> Scheduler:
    """A core with machines of four GPUs, at least one GPU a job, and an app for each job."""
    core = Scheduler(book, Settings(lease_s=60.0), Cadence(), frozenset())
    for machine in in_racks("big", [(-(-len(jobs) // 64) * 16, 4, 4)]).machines:
        core.step(MachineJoined(machine=machine), 0.0)
    for n, job in enumerate(jobs):
        core.step(AppSubmitted(app=App(name=f"a{n}", user=f"u{n % 50}", arrival=0.0, jobs=(job,))), 0.0)
    return core


def decided(jobs: int, policy: str) -> tuple[float, float]:
    """(CPU seconds of snapshot and policy, what is proven to be missing as a part of the bound)."""
    rng = np.random.default_rng(0)
    book = ProfileBook.of(
        Profile(
            name=f"m{k}",
            curves={(ANY_TYPE, 0): Curve(gpus=SIZES, rate=tuple((np.array(SIZES) ** power).tolist()))},
            slowdown=(1.0, 1.0, 1.1, 1.1),
        )
        for k, power in enumerate(np.linspace(0.4, 0.95, MODELS))
    )
    work = rng.uniform(100, 1e5, jobs).tolist()
    core = cluster_of(
        book,
        [
            Job(name="j", model=f"m{n % MODELS}", regimes=(Regime(steps=steps),), gpus_min=1, gpus_max=64)
            for n, steps in enumerate(work)
        ],
    )
    made, spent = make_policy(policy), []
    for _ in range(5):
        start = time.process_time()
        proof = made(take_snapshot.take(core.state, needs=COLUMNS), Workbench()).proof
        spent.append(time.process_time() - start)
    return min(spent), (proof.bound - proof.objective) / abs(proof.bound)


def renewed(jobs: int, minutes: int = 10) -> float:
    """CPU seconds of a minute in which each of these jobs reports, median."""
    rng = np.random.default_rng(0)
    book = ProfileBook.of(
        Profile(name=f"m/{n}", curves={(ANY_TYPE, 0): Curve(gpus=(1,), rate=(5.0,))}, slowdown=(1.0,) * 4)
        for n in range(jobs)
    )
    core = cluster_of(
        book,
        [
            Job(name="j", model=f"m/{n}", regimes=(Regime(steps=1e7, batch=60),), gpus_max=64, adaptive=BATCHES)
            for n in range(jobs)
        ],
    )
    kind = core.state.gpu_types[0]
    for n in range(jobs):
        core.state.lease(n, (n,), 0, 1e9, 1)
        core.state.occupy(n, (n,), 0)
        core.step(JobStarted(job=n, attempt=1), 0.0)
    spent = []
    for minute in range(1, minutes + 1):
        times = TIMES * rng.uniform(0.95, 1.05, (jobs, 7))
        reports = [
            GoodputReported(
                job=n,
                attempt=1,
                steps=minute * 10.0,
                noise=1000.0 * 1.2**minute,
                gpu_type=kind,
                times=tuple(own),
            )
            for n, own in enumerate(times.tolist())
        ]
        start = time.process_time()
        for n, report in enumerate(reports):
            core.step(report, 60.0 * (minute + n / jobs))
        take_snapshot.take(core.state, needs=COLUMNS)
        spent.append(time.process_time() - start)
    return median(spent)


def main() -> None:
    """Print both rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    jobs = parser.parse_args().jobs
    print("| what | CPU s | proven gap, per cent of the bound | per cent of a core |")
    print("|---|---|---|---|")
    for policy in ("elastic_finish", "pollux"):
        cpu_s, gap = decided(jobs, policy)
        print(f"| a decision of {policy} | {cpu_s:.3f} | {100 * gap:.4f} | |", flush=True)
    cpu_s = renewed(jobs)
    print(f"| {jobs:,} reports in a minute | {cpu_s:.3f} | | {100 * cpu_s / 60:.2f} |")


if __name__ == "__main__":
    main()
