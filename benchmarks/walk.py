"""The walk of events through the core: functions of ``themis.core`` that ``Scheduler.step`` enters, and the files that they are in.

    python benchmarks/walk.py [--policy themis] [--event JobReached]

A random workload with sweeps, bags and failures; one line per kind of event: how many there were, and of their walks the
median and the longest. ``--event``: the functions of the longest walk of that kind, in order.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from themis.core.scheduler import Scheduler
from themis.model.events import Command, Event
from themis.model.units import Seconds
from themis.policies.api import make_policy
from themis.testing.builders import random_simulation

Walk = list[tuple[str, str]]


def walks(policy: str, seed: int = 0) -> dict[str, list[Walk]]:
    """Of each kind of event, the functions entered as (file, name), event by event."""
    out: dict[str, list[Walk]] = defaultdict(list)
    step = Scheduler.step

    def watched(self: Scheduler, event: Event, now: Seconds) -> list[Command]:
        walk: Walk = []

        def enter(frame: FrameType, what: str, _: Any) -> None:
            path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
            if what == "call" and path.parent.name == "core" and not frame.f_code.co_name.startswith("<"):
                walk.append((path.name, name))

        sys.setprofile(enter)
        try:
            return step(self, event, now)
        finally:
            sys.setprofile(None)
            out[type(event).__name__].append(walk)

    sim = random_simulation(make_policy(policy), seed, name=policy)
    Scheduler.step = watched  # type: ignore[method-assign]
    try:
        replace(sim, settings=replace(sim.settings, validate=False)).run()
    finally:
        Scheduler.step = step  # type: ignore[method-assign]
    return out


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="themis")
    parser.add_argument("--event", default="")
    given = parser.parse_args()
    found = walks(given.policy)
    print(f"{'event':<18}{'events':>7}{'median: functions':>19}{'files':>7}{'longest: functions':>20}{'files':>7}")
    for kind, those in sorted(found.items()):
        those.sort(key=len)
        middle, longest = those[len(those) // 2], those[-1]
        print(
            f"{kind:<18}{len(those):>7}{len(middle):>19}{len({file for file, _ in middle}):>7}"
            f"{len(longest):>20}{len({file for file, _ in longest}):>7}"
        )
    for file, name in found[given.event][-1] if given.event else ():
        print(f"  {file:<16} {name}")


if __name__ == "__main__":
    main()
