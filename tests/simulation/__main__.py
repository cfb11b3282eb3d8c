"""``python -m simulation``: run histories by hand."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from simulation import world
from simulation.shrink import report


def main() -> int:
    """0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("first", type=int, help="first seed")
    parser.add_argument("count", type=int, nargs="?", default=1, help="number of seeds")
    parser.add_argument("--story", action="store_true", help="print what happened")
    parser.add_argument("--shrink", action="store_true", help="print the shortest story of each failure")
    parser.add_argument("--trace", action="store_true", help="raise the first failure")
    given = parser.parse_args()
    world.TRACE = given.trace
    logging.disable(logging.ERROR)
    began, bad = time.process_time(), 0
    for seed in range(given.first, given.first + given.count):
        found = world.run(seed)
        if (found.wrong and not given.shrink) or given.story:
            print(f"seed {seed}: {found.wrong or 'all promises kept'}", flush=True)
            print("\n".join(found.story) if given.story else "", flush=True)
        if found.wrong and given.shrink:
            print(report(world.history(seed)), flush=True)
        bad += bool(found.wrong)
        if (seed - given.first) % 100 == 99:
            print(f"{seed + 1 - given.first} histories, {bad} broken", file=sys.stderr, flush=True)
    took = time.process_time() - began
    print(f"{given.count} histories, {bad} broken, {took:.1f} CPU seconds, {given.count / took:.1f} a second")
    return int(bad > 0)


sys.exit(main())
