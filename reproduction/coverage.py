"""How often 80 % intervals of apps' finishes and starts hold, by policy and workload. Writes docs/reproduction/coverage.md.

Generated: Shockwave's jobs on 16 GPUs, five seeds. Philly: windows of its jobs on 40 and 20 machines of 8 GPUs; its trace is
looked for in ``THEMIS_DATA`` or ``../shared/data`` and left out where it is not there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from themis.errors import ThemisError
from themis.report.metrics import Fold
from themis.report.outlook import Coverage
from themis.sim.many import run_many
from themis.sim.plan import Plan

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("THEMIS_DATA", ROOT.parent / "shared" / "data"))
PHILLY = DATA / "philly" / "philly_jobs.csv.gz"
PAGE = ROOT / "docs" / "reproduction" / "coverage.md"
POLICIES = ("shockwave", "themis", "drf", "max_min_fairness")
HOUR = 3600
SEEDS = tuple(range(int(os.environ.get("THEMIS_COVERAGE_SEEDS", "5"))))
WINDOWS = tuple(int(day) for day in os.environ.get("THEMIS_COVERAGE_DAYS", "60").split(","))
"""Days of Philly at which a window begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A workload, a cluster and its seeds."""

    name: str
    workload: str
    cluster: str
    seeds: Sequence[int]
    format: str = ""


def worlds() -> list[World]:
    """Those that can be run here."""
    out = [
        World(
            name=f"generated, {len(SEEDS)} seeds",
            workload="shockwave_jobs:jobs=300,gpus=16,load=1.1,scale=0.05",
            cluster="1x16@V100",
            seeds=SEEDS,
        ),
    ]
    if PHILLY.exists():
        out += [
            World(
                name=f"Philly from day {day}, {8 * machines} GPUs",
                workload=f"{PHILLY}:start={day * 24 * HOUR},limit=400",
                cluster=f"{machines}x8",
                seeds=(0,),
                format="philly_jobs",
            )
            for day in WINDOWS
            for machines in (40, 20)
        ]
    return out


def measured(world: World, policy: str) -> Coverage:
    """All its runs together.

    Raises
    ------
    ThemisError : a run failed.
    """
    plan = Plan(
        workload=world.workload,
        cluster=world.cluster,
        policies=(policy,),
        seeds=tuple(world.seeds),
        format=world.format,
        settings={"lease_s": "600"},
    )
    found = []
    for done in run_many(plan.runs(), Fold, processes=1):
        if done.result is None:
            raise ThemisError(done.failure.message if done.failure else "a run has no result")
        found.append(done.result.coverage)
    return Coverage(
        finishes=sum(c.finishes for c in found),
        finishes_held=sum(c.finishes_held for c in found),
        starts=sum(c.starts for c in found),
        starts_held=sum(c.starts_held for c in found),
    )


def share(part: float, of: int) -> str:
    """``79 % of 3,021``."""
    return f"{100 * part:.0f} % of {of:,}" if of else "–"


def main() -> None:
    """Measure and write the page."""
    rows = ["| workload | policy | finishes within | starts within, of apps that had to wait |", "|---|---|---|---|"]
    for world in worlds():
        for policy in POLICIES:
            c = measured(world, policy)
            rows.append(
                f"| {world.name} | {policy} | {share(c.of_finishes, c.finishes)} | {share(c.of_starts, c.starts)} |"
            )
            print(rows[-1], flush=True)
    notes = (ROOT / "reproduction" / "notes" / "coverage.md").read_text()
    PAGE.write_text(notes.replace("{{rows}}", "\n".join(rows)))


if __name__ == "__main__":
    main()
