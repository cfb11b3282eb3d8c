"""Forecasts of ends of a live service whose users declare wrong speeds. Prints a row for docs/reproduction/declared-speeds.md.

Forty apps of one job each, on 1 or 2 of eight virtual GPUs, of 20 to 60 seconds: real processes that take the time of their
steps, report them, save and resume. Each declares a speed that is wrong by a factor between a quarter and four. Every few
seconds all active apps are asked about, as the first lines of ``themis why`` are; what counts is the answer nearest to a third of
the app's life, and of all answers that the point is in its interval.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from declared_speeds import Asked, constant, quality
from themis.cli.live_demo.demo_run import service
from themis.client.client import OVER, Client

APPS, GPUS = 40, 8
WITHIN_S = 240.0
"""Seconds in which the apps arrive: about 0.9 of the GPUs are wanted."""
LIMIT_S, EVERY_S = 480.0, 2.0
WRONG = 4.0
"""Most factor between the declared speed and the true one."""
SETTINGS = {"lease": 10, "tick": 2, "container": 0.5, "progress": 1, "grace": 5, "single_trust": "true", "retries": 0}
PROGRAM = """import sys, time
from themis import train
run = train.Run(save=lambda path: path.write_text(""), load=lambda path: None, check_every_s=0.2, report_every_s=0.5)
for step in run.steps(int(sys.argv[1])):
    time.sleep(1.0 / float(sys.argv[2]))
"""
JOB = """name: app{i}
command: [{python}, {program}, "{steps}", "{rate!r}"]
gpus: {gpus}
work: {steps} steps
speed: {{gpu: {{{gpus}: {declared!r}}}}}
checkpoint_time: 0.2s
"""


def play(folder: Path, seed: int) -> tuple[list[Asked], int, int]:
    """The answers at a third of each life; how many answers were given in all, and those whose point is outside its interval."""
    rng = np.random.default_rng(seed)
    program = folder / "paced.py"
    program.write_text(PROGRAM)
    arrivals = np.sort(rng.uniform(0.0, WITHIN_S, APPS))
    asked: dict[int, list[tuple[float, float, float, float]]] = {}
    home, machines = folder / "home", f"2x{GPUS // 2}"
    with service(home, machines=machines, policy="fair_finish", settings=SETTINGS), Client(home) as client:
        began, sent = time.time(), 0
        while time.time() < began + LIMIT_S:
            while sent < APPS and time.time() >= began + arrivals[sent]:
                rate, seconds, gpus = rng.uniform(4.0, 20.0), rng.uniform(20.0, 60.0), int(rng.choice((1, 1, 2)))
                declared = float(rate * WRONG ** rng.uniform(-1.0, 1.0))
                file = folder / f"app{sent}.yaml"
                text = JOB.format(
                    i=sent,
                    python=sys.executable,
                    program=program,
                    steps=round(rate * seconds),
                    rate=float(rate),
                    gpus=gpus,
                    declared=declared,
                )
                file.write_text(text)
                client.submit_file(file, folder=folder)
                sent += 1
            active = list(client.queue())
            for app in active:
                found = client.why(app.id, quick=True)
                if found.expected_end is not None and found.end_low is not None and found.end_high is not None:
                    times = float(found.end_low), float(found.expected_end), float(found.end_high)
                    asked.setdefault(app.id, []).append((time.time(), *times))
            if sent == APPS and not active:
                break
            time.sleep(EVERY_S)
        ended = [app for app in client.history("", 0) if app.state in OVER]
    answers = []
    for past in ended:
        assert past.state == "completed", f"{past.name} {past.state}: {past.reason}"
        assert past.ended is not None
        third = past.submitted + (past.ended - past.submitted) / 3.0
        at, low, point, high = min(asked[past.id], key=lambda answer: abs(answer[0] - third))
        answers.append(Asked(low=low - at, point=point - at, high=high - at, left=past.ended - at))
    every = [answer for found in asked.values() for answer in found]
    return answers, len(every), sum(not low <= point <= high for _, low, point, high in every)


def main() -> None:
    """Play the run of a seed, by default 0, and print its rows."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with tempfile.TemporaryDirectory(prefix="themis-") as name:
        answers, every, outside = play(Path(name), seed)
    held = sum(one.held for one in answers)
    print(f"{len(answers)} apps, {held} ended in their interval; of {every} answers the point was outside of {outside}")
    print(quality(answers).row(f"themis why, live, seed {seed}"))
    print(quality(constant(answers)).row(f"constant, live, seed {seed}"))


if __name__ == "__main__":
    main()
