"""The arbiter's transaction with many apps in the system: CPU ms of what comes in, and of the decisions at the end of leases.

    python benchmarks/bench_transaction.py [--apps 1000] [--policies drf,themis,fair_finish] [--tick 1] [--quick]

Apps of one job of two GPUs, a GPU for each app, so that half of them wait. Real engine and journal without disk syncs, and no
processes; leases end on multiples of the tick. Medians of 20, in turn: the report of a gang, the end of a job, a submission
(without its call); and the mean of 20 minutes that pass, with the decisions in them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean, median

from bench_growth import ME, request, turn
from bench_service import Nothing
from themis.machines.engines.hosts import Host
from themis.model.cluster import Machine
from themis.model.events import JobProgress, JobReached
from themis.service.api.submission import submit
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Config
from themis.service.engine.journal import Journal

TIMES = 20


def measured(a: Arbiter, clock: list[float], come_in: Callable[[], object], passes: float) -> str:
    """Median CPU ms of a turn, ``passes`` seconds after the one before; of minutes the mean: in few of them leases end."""
    spent = []
    for _ in range(TIMES):
        clock[0] += passes
        come_in()
        began = time.process_time()
        turn(a)
        spent.append(1000 * (time.process_time() - began))
    return f"{(fmean if passes >= 60.0 else median)(spent):.2f}"


def row(policy: str, apps: int, folder: Path, tick_s: float = 1.0) -> str:
    """One policy on a journal in this folder."""
    clock = [1e6]
    a = Arbiter(
        Config(policy=policy, tick_s=tick_s, gather_s=0.0, max_submissions=10**9),
        [Host(machine=Machine(name=f"m{n}", gpus=8, rack="r")) for n in range(apps // 8)],
        Journal(folder / "journal.db"),
        lambda programs, heard, book: Nothing(heard),
        wall=lambda: clock[0],
        steady=lambda: clock[0],
    )
    a.journal.db.execute("PRAGMA synchronous = OFF")
    a.start = lambda: a  # turns are taken here
    turn(a)

    def enter(count: int) -> None:
        a.instant = max(a.now(), a.state.now + 1e-3)
        with a.journal.transaction():
            for _ in range(count):
                submit(a, request(a.state.apps.size), ME)

    def first() -> tuple[int, int]:
        job = min(a.state.job_gpus)
        return job, int(a.state.jobs.attempt[job])

    def report() -> None:
        job, attempt = first()
        a.queue.put(JobProgress(job=job, attempt=attempt, steps=1.0))

    def end() -> None:
        job, attempt = first()
        a.queue.put(JobReached(job=job, attempt=attempt, steps=100.0, loss=0.0))

    enter(apps)
    turn(a)
    cells = [
        measured(a, clock, come_in, passes)
        for come_in, passes in ((report, 0.3), (end, 0.3), (partial(enter, 1), 0.3), (lambda: None, 60.0))
    ]
    return f"| {policy} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apps", type=int, default=1000)
    parser.add_argument("--policies", default="drf,themis,fair_finish")
    parser.add_argument("--tick", type=float, default=1.0, help="seconds; services have 60")
    parser.add_argument("--quick", action="store_true", help="40 apps, drf alone")
    given = parser.parse_args()
    if given.quick:
        given.apps, given.policies = 40, "drf"
    print("| policy | a report, CPU ms | the end of a job | a submission | a minute |\n|---|---|---|---|---|")
    for policy in given.policies.split(","):
        with tempfile.TemporaryDirectory() as folder:
            print(row(policy, given.apps, Path(folder), given.tick), flush=True)


if __name__ == "__main__":
    main()
