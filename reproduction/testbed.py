"""The papers' workloads as real jobs on four virtual GPUs, next to their simulations. Writes docs/reproduction/testbed.md.

Thirty jobs of each paper's generator, at a scale of time at which their work keeps four GPUs busy for a few minutes; stand-ins
take the time that the profiles say. Each run is simulated with its own arrivals (``themis report``), and 20 times more with every
arrival and the cost of a start slightly off: sweeps that stop their own jobs do other work when another job goes first.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
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
from themis.model.log import LogWriter
from themis.model.workload import App, Workload
from themis.report.beside_simulation import Beside, beside
from themis.report.metrics import metrics_of
from themis.report.result import RunMetrics
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
SHAKEN, SHAKEN_S = 20, 0.05
"""Simulations with everything slightly off, and by how much at most."""
SET_CHILD_SUBREAPER = 36
"""Option of ``prctl``: processes whose parents ended become this one's children."""
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


def play(paper: Paper, policy: str, folder: Path, minutes: float) -> float:
    """One live run, its log and data directory in ``folder``; CPU seconds a second of all its processes."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    after, passed = os.times(), time.monotonic() - began
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    live_runs.write_log(home, folder / f"{home.name}.jsonl")
    return cpu / passed


def simulated(home: Path, log: Path) -> list[RunMetrics]:
    """Simulations of a live run, the first with its own arrivals, the others with everything slightly off."""
    runs, rng = [], np.random.default_rng(0)
    whole = live_runs.simulation_of(home)
    for n in range(1 + SHAKEN):
        off = (
            rng.uniform(-SHAKEN_S, SHAKEN_S, len(whole.workload.apps) + 1)
            if n
            else np.zeros(len(whole.workload.apps) + 1)
        )
        apps = tuple(
            replace(app, arrival=max(app.arrival + x, 0.0)) for app, x in zip(whole.workload.apps, off.tolist())
        )
        settings = replace(whole.settings, container_s=max(whole.settings.container_s + float(off[-1]), 0.0))
        one = replace(whole, workload=replace(whole.workload, apps=apps), settings=settings)
        with LogWriter(log) as writer:
            one.run(writer)
        runs.append(metrics_of(log))
    return runs


def _row(paper: Paper, policy: str, folder: Path, cpu: str) -> str:
    """The row of a run that was played."""
    name = f"{paper.name}-{policy}"
    live = metrics_of(folder / f"{name}.jsonl")
    found = [beside(policy, live, run) for run in simulated(folder / name, folder / f"{name}-simulated.jsonl")]
    each = np.median([one.ratios for one in found if len(one.ratios) == len(found[0].ratios)], axis=0)
    low, middle, high = np.quantile(each, [0.05, 0.5, 0.95]).tolist()
    return (
        f"| {paper.name} | {policy} | {len(live.apps)}, {len(live.jobs.app)} | {len(each)} | {middle:.2f} | "
        f"{low:.2f} to {high:.2f} | {live.jct_mean:.1f} | {_range(found, 'jct_mean', 1)} | "
        f"{live.makespan:.0f} | {_range(found, 'makespan', 0)} | {cpu} |"
    )


def _range(found: Sequence[Beside], name: str, digits: int) -> str:
    """Median and range of the simulations."""
    values = [getattr(one.simulated, name) for one in found]
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


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
    parser.add_argument(
        "--one", nargs=2, metavar=("PAPER", "POLICY"), help="one run; prints its row, again if it was kept"
    )
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="themis-testbed-") as place:
        folder = (given.keep or Path(place)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if given.one:
            paper = next(p for p in PAPERS if p.name == given.one[0])
            played = (folder / f"{given.one[0]}-{given.one[1]}.jsonl").exists()
            cpu = "" if played else f"{play(paper, given.one[1], folder, given.minutes):.0%}"
            print(_row(paper, given.one[1], folder, cpu))
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
