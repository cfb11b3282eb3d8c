"""Trains under ``themis.train``; its save raises. Argument: ``own`` for a loop that counts and saves by itself."""

import sys
import time
from pathlib import Path

from themis import train


def save(path: Path) -> None:
    if run.preempted:
        raise OSError("no room for the checkpoint")
    path.write_text("x")


own = sys.argv[1:] == ["own"]
run = train.Run(save=save, report_every_s=0.05, save_every_s=0.2)
if own:
    for step in range(1, 10_000):
        time.sleep(0.02)
        run.observe(step)
        if run.should_preempt():
            save(Path())
            run.exit()
else:
    for _ in run.steps(10_000):
        time.sleep(0.02)
