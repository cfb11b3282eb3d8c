"""A job whose loss falls to a floor: ``curve.py FLOOR STEPS``, a hundred steps a second."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from themis import train

floor, total = float(sys.argv[1]), int(sys.argv[2])
run = train.Run(save=lambda path: path.write_text("state"), load=Path.exists, check_every_s=0.05, report_every_s=0.05)
for step in run.steps(total):
    time.sleep(0.01)
    run.report(loss=floor + 1.0 / (0.05 * (step + 1) + 1.0))
