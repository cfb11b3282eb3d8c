"""The papers' workloads as real jobs on four virtual GPUs, next to their simulations. Writes docs/reproduction/testbed.md.

Thirty jobs of each paper's generator, at a scale of time at which their work keeps four GPUs busy for a few minutes; stand-ins
take the time that the profiles say, each run is simulated with its own arrivals (``themis report``).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from themis.cli.live_demo.demo_run import service
from themis.model.workload import App, Workload
from themis.report.beside_simulation import Beside, beside
from themis.report.metrics import metrics_of
from themis.service.operations import live_runs
from themis.traces.csv_generic import write_csv
from themis.traces.formats import load_workload
from themis.traces.profiles.library import load_book
from themis.traces.scale import Scale, scale
from themis.traces.trace_summary import app_work

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproduction" / "testbed.md"
GPUS, JOBS = 4, 30
ARRIVE_WITHIN = 0.5
"""Share of the time that the work needs at least in which the apps arrive."""
SETTINGS = {
    "lease": 10,
    "tick": 2,
    "gather": 0.5,
    "container": 0.4,
    "progress": 1,
    "single_trust": "true",
    "retries": 0,
    "least_steps": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper's generator with its options, its table of speeds, and policies to run."""

    name: str
    generator: str
    options: dict[str, int]
    profiles: str
    policies: tuple[str, str]


PAPERS = (
    Paper(
        name="themis",
        generator="themis1",
        options={"apps": 60, "gpus": 32},
        profiles="themis",
        policies=("themis", "fair_finish"),
    ),
    Paper(
        name="gavel",
        generator="gavel_multi",
        options={"jobs": 60},
        profiles="gavel",
        policies=("max_min_fairness", "finish_time_fairness"),
    ),
    Paper(
        name="shockwave",
        generator="shockwave_jobs",
        options={"jobs": 60, "gpus": 8},
        profiles="gavel",
        policies=("shockwave", "max_min_fairness"),
    ),
)


def workload(paper: Paper) -> Workload:
    """The generator's first apps that fit the GPUs, thirty jobs in all, arriving in half of the time that their work needs."""
    book = load_book(paper.profiles)
    drawn = load_workload(paper.generator, book=book, **paper.options)
    chosen: list[App] = []
    for app in drawn.apps:
        fits = all(job.gpus_min <= GPUS for job in app.jobs)
        if fits and len(app.jobs) <= JOBS // 3 and sum(len(a.jobs) for a in chosen) + len(app.jobs) <= JOBS:
            chosen.append(app)
    first, last = chosen[0].arrival, chosen[-1].arrival
    moved = tuple(replace(app, arrival=app.arrival - first) for app in chosen)
    needed = sum(app_work(app, book) for app in moved) / GPUS
    return scale(replace(drawn, apps=moved), Scale(load=(last - first) / (ARRIVE_WITHIN * needed)))


def needed_s(paper: Paper, work: Workload) -> float:
    """Seconds of the work on all GPUs at the reference speed."""
    book = load_book(paper.profiles)
    return sum(app_work(app, book) for app in work.apps) / GPUS


def play(paper: Paper, policy: str, folder: Path, minutes: float) -> tuple[Beside, float]:
    """One live run and its simulation; also CPU seconds a second of all its processes."""
    home = folder / f"{paper.name}-{policy}"
    work = workload(paper)
    factor = needed_s(paper, work) / (60 * minutes)
    trace = folder / f"{home.name}.csv"
    write_csv(work, trace)
    before, began = os.times(), time.monotonic()
    settings = {**SETTINGS, "profiles": paper.profiles}
    with service(home, machines=f"1x{GPUS}@V100", policy=policy, settings=settings):
        words = ["submit", str(trace), "--scale", f"{factor!r}", "--profiles", paper.profiles, "--home", str(home)]
        subprocess.run([sys.executable, "-m", "themis.cli", *words, "--wait"], check=True, stdout=subprocess.DEVNULL)
    after, passed = os.times(), time.monotonic() - began
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    logs = [folder / f"{home.name}.jsonl", folder / f"{home.name}-simulated.jsonl"]
    live_runs.write_log(home, logs[0])
    live_runs.simulate(home, logs[1])
    return beside(policy, metrics_of(logs[0]), metrics_of(logs[1])), cpu / passed


def _row(paper: Paper, one: Beside, cpu: float) -> str:
    low, middle, high = np.quantile(one.ratios, [0.05, 0.5, 0.95]).tolist()
    live, simulated = one.live, one.simulated
    return (
        f"| {paper.name} | {one.label} | {len(live.apps)}, {len(live.jobs.app)} | {len(one.ratios)} | {middle:.2f} | "
        f"{low:.2f} to {high:.2f} | {live.jct_mean:.1f} / {simulated.jct_mean:.1f} | "
        f"{live.makespan:.0f} / {simulated.makespan:.0f} | {cpu:.0%} |"
    )


def _run_all(pairs: Sequence[tuple[Paper, str]], folder: Path, minutes: float, at_once: int) -> list[str]:
    """Rows of the table; so many runs at once, each in a process of its own."""
    left, active, rows = list(enumerate(pairs)), {}, {}
    while left or active:
        while left and len(active) < at_once:
            n, (paper, policy) = left.pop(0)
            words = [
                sys.executable,
                __file__,
                "--one",
                paper.name,
                policy,
                "--minutes",
                str(minutes),
                "--keep",
                str(folder),
            ]
            active[n] = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        for n, process in list(active.items()):
            if process.poll() is not None:
                assert process.stdout is not None
                rows[n] = process.stdout.read().strip().splitlines()[-1] if not process.returncode else ""
                del active[n]
        time.sleep(0.5)
    if missing := [pairs[n] for n, row in rows.items() if not row]:
        raise SystemExit(f"{missing[0][1]} on {missing[0][0].name} failed; see above.")
    return [rows[n] for n in sorted(rows)]


def main() -> None:
    """Run all pairs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="time that the work needs at least")
    parser.add_argument("--at-once", type=int, default=2, help="live runs at once")
    parser.add_argument("--papers", default=",".join(p.name for p in PAPERS))
    parser.add_argument("--keep", type=Path, help="folder that keeps data directories and logs")
    parser.add_argument("--one", nargs=2, metavar=("PAPER", "POLICY"), help="one run; prints its row")
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="themis-testbed-") as place:
        folder = (given.keep or Path(place)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if given.one:
            paper = next(p for p in PAPERS if p.name == given.one[0])
            print(_row(paper, *play(paper, given.one[1], folder, given.minutes)))
            return
        pairs = [
            (paper, policy) for paper in PAPERS if paper.name in given.papers.split(",") for policy in paper.policies
        ]
        rows = _run_all(pairs, folder, given.minutes, given.at_once)
    notes = (ROOT / "reproduction" / "notes" / "testbed.md").read_text()
    given.out.write_text(
        notes.format(
            table="\n".join(rows),
            minutes=given.minutes,
            at_once=given.at_once,
            date=time.strftime("%Y-%m-%d"),
            **SETTINGS,
        )
    )


if __name__ == "__main__":
    main()
