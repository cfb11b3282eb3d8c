"""A loop of steps without a framework, under ``themis.train``. Arguments: steps, seconds a step.

Each attempt appends a line to ``history`` in the checkpoint folder: where it began, with how many GPUs.
"""

import json
import os
import sys
import time
from pathlib import Path

from themis import train

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2])
FOLDER = Path(os.environ["THEMIS_CHECKPOINT_DIR"])
state = {"sum": 0}
run = train.Run(
    save=lambda path: path.write_text(json.dumps(state)),
    load=lambda path: state.update(json.loads(path.read_text())),
    report_every_s=0.05,
)
first = True
for step in run.steps(STEPS):
    if first and run.world.rank == 0:
        with (FOLDER / "history").open("a") as file:
            print(step, run.world.gpus, file=file)
    first = False
    state["sum"] += step
    run.report(loss=1.0 / (step + 1))
    time.sleep(PAUSE)
if run.world.rank == 0:
    (FOLDER / "result").write_text(str(state["sum"]))
