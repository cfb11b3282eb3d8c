"""A loop over data without a framework whose batch size doubles after some epochs. Arguments: epochs, seconds a step.

Each attempt appends a line to ``history`` in the checkpoint folder for every epoch: its number and its batches.
"""

import json
import os
import sys
import time
from pathlib import Path

from themis import train

EPOCHS, PAUSE, EXAMPLES = int(sys.argv[1]), float(sys.argv[2]), 64
FOLDER = Path(os.environ["THEMIS_CHECKPOINT_DIR"])
state = {"seen": 0}
run = train.Run(
    save=lambda path: path.write_text(json.dumps(state)),
    load=lambda path: state.update(json.loads(path.read_text())),
    report_every_s=0.05,
)
run.batch_size = 8


def loader() -> list[range]:
    size = run.batch_size
    return [range(i, i + size) for i in range(0, EXAMPLES, size)]


last = -1
for batch in run.batches(loader, epochs=EPOCHS):
    if run.epoch != last:
        last = run.epoch
        with (FOLDER / "history").open("a") as file:
            print(run.epoch, len(batch), file=file)
    state["seen"] += len(batch)
    if run.epoch == 2:
        run.batch_size = 16  # from the next epoch on
    time.sleep(PAUSE)
(FOLDER / "result").write_text(str(state["seen"]))
