"""A program that knows who else trains on its GPU, and is slowed by it: ``neighbour.py FOLDER NAME RATE NAME=SHARE...``.

Programs that share GPUs are given the same folder, in which each leaves its name under its process id.
"""

import os
import sys
import time
from pathlib import Path

from themis.train.run import Run

folder, name, rate, *shares = sys.argv[1:]
share = dict(pair.split("=") for pair in shares)
mine = Path(folder, str(os.getpid()))
mine.write_text(name)
due = time.monotonic()
for _ in Run(report_every_s=0.5).steps(10**12):
    names = [path.read_text() for path in Path(folder).iterdir() if path != mine and Path("/proc", path.name).exists()]
    due += 1 / float(rate) / (float(share[names[0]]) if names else 1.0)
    time.sleep(max(due - time.monotonic(), 0.0))
