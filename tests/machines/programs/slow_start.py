"""Torch steps that begin after a long start. Arguments: seconds of the start, in addition to the import of torch; steps."""

import os
import sys
import time
from pathlib import Path

import torch

from themis import train

time.sleep(float(sys.argv[1]))
state = {"weight": torch.zeros(4)}
run = train.Run(
    save=lambda path: torch.save(state, path),
    load=lambda path: state.update(torch.load(path)),
    report_every_s=0.1,
)
for _ in run.steps(int(sys.argv[2])):
    state["weight"] += 1.0
    run.report(loss=1.0)
    time.sleep(0.1)
(Path(os.environ["THEMIS_CHECKPOINT_DIR"]) / "result").write_text(str(state["weight"].sum().item()))
