"""What apps that are over cost a service that runs for a year: its picture, a start, a decision, memory, journal.

    python benchmarks/bench_growth.py [--apps 50000] [--every 10000] [--keep 24]

Apps of one job come and complete on 64 GPUs, 20 at a time, a batch a minute, through the real engine, journal and pictures under
FIFO; there is no network and there are no processes. ``--keep`` : hours of ``journal_keep``, after which records are dropped
and apps that are over are retired.
"""

from __future__ import annotations

import argparse
import gc
import resource
import tempfile
import time
from pathlib import Path

from bench_service import Nothing, memory_mb
from themis.core.scheduler import Scheduler
from themis.machines.engines.hosts import Host
from themis.model.cluster import Machine
from themis.model.events import JobReached
from themis.policies.api import make_policy
from themis.schema import messages as schema
from themis.service.api.access import Caller
from themis.service.api.submission import submit
from themis.service.engine import state_snapshots
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Config
from themis.service.engine.engine import Engine
from themis.service.engine.journal import Journal

ME = Caller(user="me", admin=True)
AT_ONCE = 20
GAP_S = 60.0
"""Between two batches."""


def request(n: int) -> schema.SubmitRequest:
    program = schema.Program(argv=["python", "train.py", "--seed", str(n)], cwd="/home/me")
    job = schema.Job(name="j0", gpus_min=2, gpus_max=2, regimes=[schema.Regime(steps=100.0)], program=program)
    return schema.SubmitRequest(name=f"a{n}", user="me", jobs=[job])


def turn(a: Arbiter) -> None:
    while True:
        a._transaction(0.0)
        if a.queue.empty():
            return


def batch(a: Arbiter, clock: list[float], first: int, *, ends: bool = True) -> None:
    """Apps are submitted at once and complete a moment later; those of before, where ``ends`` is false, run on."""
    clock[0] += GAP_S
    a.instant = max(a.now(), a.state.now + 1e-3)
    with a.journal.transaction():
        for n in range(first, first + AT_ONCE):
            submit(a, request(n), ME)
    turn(a)
    clock[0] += 1.0
    if not ends:
        return
    for job in sorted(a.state.job_gpus):
        a.queue.put(JobReached(job=job, attempt=int(a.state.jobs.attempt[job]), steps=100.0, loss=0.0))
    turn(a)


def measure(a: Arbiter, spent: float, apps: int) -> str:
    gc.collect()
    began = time.process_time()
    picture = state_snapshots.take(a.engine)
    took = time.process_time() - began
    old = a.engine
    fresh = Engine(a.journal, Scheduler(a.book, a.settings, old.policy.pace, old.policy.needs), make_policy("fifo"))
    began = time.process_time()
    state_snapshots.restore(fresh, picture)
    restored = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    there = a.state.apps.size
    return (
        f"| {there:,} | {len(picture) / 1024:,.0f} | {len(picture) / there:.0f} | {took:.2f} | {restored:.2f} | "
        f"{1000 * spent / apps:.2f} | {memory_mb():.0f} | {peak:.0f} | {a.journal.path.stat().st_size / 2**20:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apps", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=10_000)
    parser.add_argument("--keep", type=float, default=24.0)
    parser.add_argument("--quick", action="store_true", help="200 apps")
    given = parser.parse_args()
    if given.quick:
        given.apps, given.every = 200, 100
    clock = [1e6]
    config = Config(
        policy="fifo",
        lease_s=3600.0,
        tick_s=1.0,
        gather_s=0.0,
        max_submissions=10**9,
        journal_keep_s=3600 * given.keep,
    )
    hosts = [Host(machine=Machine(name=f"m{n}", gpus=8, rack="r")) for n in range(8)]
    print(
        "| apps over | picture, KiB | bytes an app | s to take | s to restore | CPU ms an app | MB | peak MB | journal, MiB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        a = Arbiter(
            config,
            hosts,
            Journal(Path(folder) / "journal.db"),
            lambda programs, heard, book: Nothing(heard),
            wall=lambda: clock[0],
            steady=lambda: clock[0],
        )
        a.journal.db.execute("PRAGMA synchronous = OFF")  # the disk is measured in bench_service
        a.start = lambda: a  # turns are taken here
        turn(a)
        done = 0
        while done < given.apps:
            began = time.process_time()
            goal = min(done + given.every, given.apps)
            for first in range(done, goal, AT_ONCE):
                batch(a, clock, first)
            spent, count, done = time.process_time() - began, goal - done, goal
            print(measure(a, spent, count), flush=True)


if __name__ == "__main__":
    main()
