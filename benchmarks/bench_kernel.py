"""The simulator against a heap kernel in plain Python that takes the same decisions (``heap_kernel``), in the same run.

    python benchmarks/bench_kernel.py [--data FOLDER] [--jobs 1500] [--times 3]

Philly's first single jobs on 256 GPUs; our runs write their log. The trace is looked for in ``THEMIS_DATA`` or ``../shared/data``.
CPU seconds of one thread, medians; the last rows have no heap kernel.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench_philly import given_with_trace
from heap_kernel import HeapKernel, tasks_of
from themis.model.cluster import Cluster
from themis.model.events import Allocated, AppFinished
from themis.model.log import LogWriter
from themis.model.settings import Settings
from themis.model.units import Seconds
from themis.model.workload import User, Workload
from themis.policies.api import make_policy
from themis.sim.runner import Outage, Record, Simulation, outages
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

POLICIES = ("drf", "fair_finish", "themis")


def ours(
    workload: Workload, cluster: Cluster, policy: str, failures: tuple[Outage, ...] = ()
) -> tuple[float, int, dict[int, Seconds]]:
    """CPU seconds, decisions, and when each app finished; the log is written."""
    run = Simulation(
        workload=workload,
        cluster=cluster,
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        outages=failures,
    )
    ended, decisions = dict[int, Seconds](), 0
    with tempfile.TemporaryDirectory() as folder, LogWriter(Path(folder) / "log.jsonl") as writer:

        def sink(at: Seconds, record: Record) -> None:
            nonlocal decisions
            writer(at, record)
            if isinstance(record, AppFinished):
                ended[record.app] = at
            elif isinstance(record, Allocated):
                decisions += 1

        started = time.process_time()
        run.run(sink)
        return time.process_time() - started, decisions, ended


def theirs(workload: Workload, cluster: Cluster) -> tuple[float, int, dict[int, Seconds]]:
    """The same of the heap kernel, which writes nothing."""
    ended: dict[int, Seconds] = {}
    kernel = HeapKernel(
        tasks_of(workload, cluster, DEFAULT_BOOK), cluster, Settings(), ended=lambda at, job: ended.update({job: at})
    )
    started = time.process_time()
    kernel.run()
    return time.process_time() - started, kernel.decisions, ended


def medians(runs: list[Callable[[], tuple[float, int, dict[int, Seconds]]]], times: int) -> list[float]:
    """Median CPU seconds of each; they take turns."""
    spent = [[run()[0] for run in runs] for _ in range(times)]
    return [median(column) for column in zip(*spent)]


def rows(workload: Workload, cluster: Cluster, times: int) -> list[str]:
    """The table."""
    _, made, ends = theirs(workload, cluster)
    _, decisions, ended = ours(workload, cluster, "drf")
    assert ended == ends, "both take the same decisions"
    kernel, *seconds = medians(
        [lambda: theirs(workload, cluster), *(lambda p=p: ours(workload, cluster, p) for p in POLICIES)], times
    )
    out = ["| jobs | policy | decisions | CPU s | over the heap kernel |", "|---|---|---|---|---|"]
    jobs = f"{len(workload.apps):,}"
    out.append(f"| {jobs} | the heap kernel: drf | {made} | {kernel:.3f} | 1 |")
    out += [
        f"| {jobs} | {policy} | {decisions if policy == 'drf' else ''} | {spent:.2f} | {spent / kernel:.0f} |"
        for policy, spent in zip(POLICIES, seconds)
    ]
    users = tuple(dict.fromkeys(app.user for app in workload.apps))
    weighted = replace(workload, users=tuple(User(name=u, weight=float(1 + i % 5)) for i, u in enumerate(users)))
    kinds = ("V100", "P100")
    two = Cluster(name="two", machines=tuple(replace(m, gpu_type=kinds[n % 2]) for n, m in enumerate(cluster.machines)))
    last = workload.apps[-1].arrival
    broken = outages(cluster, mtbf_s=30_000.0, lasts_s=1800.0, until=last, seed=0)
    for name, run in {
        "drf, five weights of users": lambda: ours(weighted, cluster, "drf"),
        "drf, two types": lambda: ours(workload, two, "drf"),
        "drf, mtbf 30,000 s": lambda: ours(workload, cluster, "drf", broken),
    }.items():
        spent, decisions, _ = run()
        out.append(f"| {jobs} | {name} | {decisions} | {spent:.2f} | |")
    return out


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--times", type=int, default=3)
    given, path = given_with_trace(parser)
    if path is None:
        return
    workload = load_workload(str(path), seed=0, single_jobs=True)
    workload = replace(workload, apps=workload.apps[: given.jobs])
    print("\n".join(rows(workload, load_cluster("sim-256"), given.times)))


if __name__ == "__main__":
    main()
