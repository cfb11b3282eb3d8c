"""A measured, an estimated and an assumed model side by side, live. Prints rows of docs/reproduction/testbed.md.

A service has two virtual GPUs of each of two types. Three apps are real processes that take the time of their steps, at speeds
drawn by the seed: `themis profile` has measured the first on both types, the second says its speed on a V100, the third its
steps and a walltime. What the service believes is read from its journal when all were submitted, and once jobs have measured.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from themis.cli.live_demo.demo_run import service
from themis.client.client import Client
from themis.model.speed import GUESSED
from themis.model.units import Locality
from themis.service.engine.kept_copies import journal_of
from themis.service.engine.present import of_journal

TYPES = ("V100", "K80")
STEPS, WALLTIME_S, LIMIT_S = 100_000, 3600, 180.0
SETTINGS = {"lease": 10, "tick": 2, "container": 0.5, "progress": 1, "grace": 5, "single_trust": "true"}
MACHINES = "1x2@V100+1x2@K80"


def job(folder: Path, name: str, true: tuple[float, ...], said: str) -> Path:
    """The job file of an app that trains at these speeds."""
    rates = {kind: {"0": {"1": rate}} for kind, rate in zip(TYPES, true)}
    pace = json.dumps({"regimes": [[STEPS, 0, 1.0, 1.0]], "rates": rates})
    command = json.dumps([sys.executable, "-m", "themis.train.paced", pace])
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\ncommand: {command}\nwork: {STEPS} steps\n{said}\nlaunch: machine\n")
    return path


def believed(home: Path, apps: list[int]) -> dict[tuple[int, str], tuple[float, str]]:
    """Steps/s on one GPU by app and type, and whose they are; empty for the app's own or measured ones."""
    with journal_of(home) as journal:
        state = of_journal(journal).core().state
    found = {}
    for app in apps:
        model = state.app_specs[app].jobs[0].model
        profile = state.book.get(model)
        for kind in TYPES:
            like = profile.like.get((kind, 0), "")
            found[app, kind] = state.book.rate(model, 0, kind, 1, Locality.SLOT), like
    return found


def play(folder: Path, seed: int) -> None:
    """Profile, submit, measure; print what was believed and what show says."""
    rng = np.random.default_rng(seed)
    fast, ratio = rng.uniform(15.0, 60.0, 3), rng.uniform(0.1, 0.6, 3)
    true = {
        name: (round(float(rate), 1), round(float(rate * by), 1))
        for name, rate, by in zip(("measured", "estimated", "assumed"), fast, ratio)
    }
    said = {
        "measured": "model: measured",
        "estimated": f"speed: {{V100: {true['estimated'][0]}}}",
        "assumed": f"walltime: {WALLTIME_S}s",
    }
    lab, home = folder / "lab", folder / "home"
    with service(lab, machines=MACHINES, policy="fair_finish", settings=SETTINGS):
        file = str(job(folder, "measured", true["measured"], ""))
        command = [sys.executable, "-m", "themis.cli", "profile", file, "-n", "lab", "--seconds", "15"]
        subprocess.run([*command, "--data-dir", str(lab)], check=True, capture_output=True)
    settings = {**SETTINGS, "profiles": f"gavel,{lab / 'profiles' / 'lab.csv'}"}
    with service(home, machines=MACHINES, policy="fair_finish", settings=settings), Client(home) as client:
        # The reader of job files knows the models of the tables in the data directory.
        shutil.copytree(lab / "profiles", home / "profiles", dirs_exist_ok=True)
        os.environ["THEMIS_DATA_DIR"] = str(home)
        apps = [client.submit_file(job(folder, n, true[n], said[n]), folder=folder)[0].app for n in true]
        marks = [(client.show(app).assumed, client.why(app, quick=True).assumed) for app in apps]
        before = believed(home, apps)
        end, own = time.monotonic() + LIMIT_S, set[tuple[str, str]]()
        while time.monotonic() < end and len({model for model, _ in own}) < 2:
            time.sleep(1.0)
            told = [r.record for r in client.events() if r.kind == "SpeedMeasured"]
            own = {(r["model"].partition("/")[2], r["gpu_type"]) for r in told if "/" in r["model"]}
        after = believed(home, apps)
    for name, app, mark in zip(true, apps, marks):
        print(f"{name}: assumed by show: {', '.join(mark[0]) or 'nothing'}; by why: {', '.join(mark[1]) or 'nothing'}")
        for kind, rate in zip(TYPES, true[name]):
            (first, like), (now, _) = before[app, kind], after[app, kind]
            whose = {"": "measured" if name == "measured" else "said", GUESSED: "from the walltime"}.get(
                like, f"as {like}"
            )
            moved = "measured" if (name, kind) in own else "moved with it" if now != first else "as before"
            print(
                f"| {seed} | {name} | {kind} | {rate:g} | {first:.1f}, {whose} | {off(first, rate)} | "
                f"{now:.1f}, {moved} | {off(now, rate)} |"
            )


def off(found: float, true: float) -> str:
    """By how much a speed is off, in per cent."""
    return f"{round(found / true - 1, 2) + 0.0:+.0%}"


def main() -> None:
    """Play the runs of the seeds that are named, by default 0."""
    for seed in map(int, sys.argv[1:] or ["0"]):
        with tempfile.TemporaryDirectory(prefix="themis-") as name:
            play(Path(name), seed)


if __name__ == "__main__":
    main()
