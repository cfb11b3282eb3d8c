"""How often 80 % intervals of apps' finishes and starts hold, by policy and workload. Writes docs/reproduction/coverage.md.

    python reproduction/coverage.py
    python reproduction/coverage.py --live [--apps 50] [--scale 0.6] [--seed 0] [--logs FOLDER]

Generated: Shockwave's jobs at three loads, and sweeps. Philly: windows of 400 jobs on 40 or 20 machines of 8 GPUs; its trace is
looked for in ``THEMIS_DATA`` or ``../shared/data`` and left out where it is not there. Next to the share that held stand the median
width of finishes' intervals, as the ratio of the times to both ends, and their mean interval score (Gneiting and Raftery 2007,
equation 43) of the logarithms of these times: less is better. The second form runs ``themis up`` with
virtual GPUs and real processes under each policy, one after the other, and writes the page's section of live runs alone.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fidelity import live_settings, run_live, workload
from grid import SHARED
from themis.errors import ThemisError
from themis.model.log import read_log
from themis.model.units import Seconds
from themis.report.calibrated import HIGH, LEAST_S, LOW, Calibrated
from themis.report.metrics import Fold
from themis.report.outlook import Coverage
from themis.sim.many import run_many
from themis.sim.plan import Plan

ROOT = Path(__file__).parents[1]
PHILLY = SHARED / "philly" / "philly_jobs.csv.gz"
PAGE = ROOT / "docs" / "reproduction" / "coverage.md"
POLICIES = ("shockwave", "themis", "drf", "max_min_fairness")
HOUR = 3600
SEEDS = tuple(range(int(os.environ.get("THEMIS_COVERAGE_SEEDS", "5"))))
WINDOWS = ((60, 40), (60, 20), (40, 20), (90, 20), (110, 20))
"""Days of Philly at which a window begins, and machines of 8 GPUs."""


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
        World(
            name="generated, load 0.8 on 32 GPUs, 2 seeds",
            workload="shockwave_jobs:jobs=300,gpus=32,load=0.8,scale=0.05",
            cluster="2x16@V100",
            seeds=(10, 11),
        ),
        World(
            name="generated, load 1.8 on 16 GPUs, 2 seeds",
            workload="shockwave_jobs:jobs=300,gpus=16,load=1.8,scale=0.05",
            cluster="1x16@V100",
            seeds=(10, 11),
        ),
        World(
            name="sweeps of Themis' workload 1 on 64 GPUs, 1 seed",
            workload="themis1:apps=120,load=1.2,gpus=64,scale=0.05",
            cluster="testbed-64",
            seeds=(0,),
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
            for day, machines in WINDOWS
        ]
    return out


class Noting(Calibrated):
    """Notes how wide each interval was that came true, and its score; both on the logarithmic axis."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[float] = []
        self.scores: list[float] = []

    def end(self, number: int, now: Seconds) -> None:
        one = self.open.get(number)
        if one is not None and not math.isnan(one.high):
            low, high, came = (math.log(max(at - one.made_at, LEAST_S)) for at in (one.low, one.high, now))
            missed = max(low - came, 0.0) / LOW + max(came - high, 0.0) / (1.0 - HIGH)
            self.widths.append(high - low)
            self.scores.append(high - low + missed)
        super().end(number, now)


class Noted(Fold):
    """A fold whose finishes are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.noting = self.outlook.finishes = Noting()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of a world under a policy: ``width`` is a ratio of times, ``score`` without a unit; NaN without intervals."""

    coverage: Coverage
    width: float
    score: float


def together(folds: Sequence[Noted]) -> Measured:
    """Some runs as one."""
    found = [fold.outlook.coverage() for fold in folds]
    widths = [width for fold in folds for width in fold.noting.widths]
    scores = [score for fold in folds for score in fold.noting.scores]
    return Measured(
        coverage=Coverage(
            finishes=sum(c.finishes for c in found),
            finishes_held=sum(c.finishes_held for c in found),
            starts=sum(c.starts for c in found),
            starts_held=sum(c.starts_held for c in found),
        ),
        width=math.exp(float(np.median(widths))) if widths else math.nan,
        score=float(np.mean(scores)) if scores else math.nan,
    )


def measured(world: World, policy: str) -> Measured:
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
    folds: list[Noted] = []

    def fold() -> Noted:
        folds.append(Noted())
        return folds[-1]

    for done in run_many(plan.runs(), fold, processes=1):
        if done.result is None:
            raise ThemisError(done.failure.message if done.failure else "a run has no result")
    return together(folds)


def share(part: float, of: int) -> str:
    """``79 % of 3,021``."""
    return f"{100 * part:.0f} % of {of:,}" if of else "–"


LIVE = "\n## Live runs"


def table(head: str, rows: Sequence[str]) -> str:
    """A Markdown table."""
    titles = f"| {head} | policy | finishes within | width | score | starts within, of apps that had to wait |"
    return "\n".join([titles, "|---" * 6 + "|", *rows])


def row(name: str, policy: str, found: Measured) -> str:
    """Of a table."""
    c = found.coverage
    width, score = ("–" if math.isnan(x) else f"{x:.2f}" for x in (found.width, found.score))
    return f"| {name} | {policy} | {share(c.of_finishes, c.finishes)} | {width} | {score} | {share(c.of_starts, c.starts)} |"


def live(policy: str, given: argparse.Namespace, folder: Path) -> Measured:
    """One live run; of its log, where there is one already."""
    log, here = folder / f"{policy}.jsonl", folder / policy
    if not log.exists():
        here.mkdir(parents=True, exist_ok=True)
        planned = workload(given.apps, given.seed, here, given.scale)
        run_live(planned, policy, live_settings(), here / "home", log)
    fold = Noted()
    for time, record in read_log(log):
        fold.add(time, record)
    return together([fold])


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true", help="one live run of each policy, nothing else")
    parser.add_argument("--apps", type=int, default=50, help="of a live run")
    parser.add_argument("--scale", type=float, default=0.6, help="of the durations of a live run")
    parser.add_argument("--seed", type=int, default=0, help="of a live run")
    parser.add_argument(
        "--logs", type=Path, help="keep the logs of live runs there; those that are there are not run again"
    )
    given = parser.parse_args()
    simulated, _, lived = (PAGE.read_text() if PAGE.exists() else "").partition(LIVE)
    rows = []
    if given.live:
        with tempfile.TemporaryDirectory(prefix="themis-coverage-") as place:
            for policy in POLICIES:
                rows.append(
                    row(f"seed {given.seed}", policy, live(policy, given, (given.logs or Path(place)).absolute()))
                )
                print(rows[-1], flush=True)
        lived = note("coverage-live").format(
            rows=table("live", rows), apps=given.apps, scale=given.scale, seed=given.seed
        )
    else:
        for world in worlds():
            for policy in POLICIES:
                rows.append(row(world.name, policy, measured(world, policy)))
                print(rows[-1], flush=True)
        simulated = note("coverage").replace("{{rows}}", table("workload", rows))
    PAGE.write_text(simulated + (LIVE + lived if lived else ""))


def note(name: str) -> str:
    """Hand-written text of the page."""
    return (ROOT / "reproduction" / "notes" / f"{name}.md").read_text()


if __name__ == "__main__":
    main()
