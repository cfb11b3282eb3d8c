"""A job that trains at a known speed: each step takes what the profile says, and the loss falls by a known curve.

python paced.py --rate 10 --across 1.3 --steps 600 --quality 0.01
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from themis import train


def main() -> None:
    """Steps of the right length, counted from the attempt's start so that no delay adds up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, required=True, help="steps a second on one GPU")
    parser.add_argument("--across", type=float, default=1.0, help="divisor where the gang spans machines")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--quality", type=float, default=0.01)
    given = parser.parse_args()
    # One process a machine: more than one means that the gang spans machines.
    slow = given.across if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 1.0
    pace = slow / (given.rate * int(os.environ.get("THEMIS_GPUS", "1")))
    run = train.Run(save=lambda path: path.write_text("state"), load=Path.exists, check_every_s=0.1, report_every_s=0.5)
    due = time.monotonic()
    for step in run.steps(given.steps):
        due += pace
        time.sleep(max(due - time.monotonic(), 0.0))
        run.report(loss=1.0 / (given.quality * (step + 1) + 1.0))


if __name__ == "__main__":
    main()
