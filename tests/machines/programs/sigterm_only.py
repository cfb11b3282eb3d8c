"""A script that knows nothing of Themis: it saves when it gets SIGTERM, and goes on from what it saved."""

import os
import signal
import sys
import time
from pathlib import Path

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2])
saved = Path(os.environ["THEMIS_CHECKPOINT_DIR"]) / "my-own-checkpoint"
step = int(saved.read_text()) if saved.exists() else 0
print("begins at", step, flush=True)


def leave(*_: object) -> None:
    saved.write_text(str(step))
    sys.exit(0)


signal.signal(signal.SIGTERM, leave)
while step < STEPS:
    time.sleep(PAUSE)
    step += 1
print("done", flush=True)
