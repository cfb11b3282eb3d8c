"""What-if forward compared with what then happened in a live service. Writes a section of docs/reproduction/fidelity.md.

The live side is that of ``fidelity.py``: ``themis up`` with virtual GPUs and real processes. At equal distances of its journal a
what-if under the service's own policy is made from the records up to there alone: state, arrivals and past errors. Since the state
is a function of the records, this is what the service would have answered at that instant. Later records say when the apps ended.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fidelity import MACHINES, PAGE, live_settings, run_live, workload
from themis.service.engine.journal import Journal
from themis.service.engine.present import of_journal
from themis.sim.forward.answer import answer
from themis.sim.forward.past import Correction, learn
from themis.sim.forward.present_state import Present
from themis.sim.forward.question import Question

HEADING = "## What-if forward"
HORIZON_S = 900.0
FIRST = 0.2
"""Part of the journal before the first what-if."""


@dataclass(frozen=True, slots=True)
class Told:
    """A forecast of one app, in seconds from the what-if, and what happened."""

    run: int
    learned: bool
    low: float
    median: float
    high: float
    happened: float

    @property
    def held(self) -> bool:
        """Whether the interval held."""
        return self.low <= self.happened <= self.high


def instants(journal: Path, count: int) -> list[float]:
    """Times of records at equal distances, from ``FIRST`` of the journal to where its last app came."""
    with closing(Journal(journal)) as db:
        rows = [time for _, time, _ in db.numbered()]
        last = max(time for (time,) in db.db.execute("SELECT t FROM records WHERE kind = 'AppSubmitted'"))
    until = next((i for i, time in enumerate(rows) if time > last), len(rows) - 1)
    return [rows[int(FIRST * len(rows) + (until - FIRST * len(rows)) * i / count)] for i in range(count)]


def forecasts(run: int, present: Present, asked: Question, by: Correction) -> list[Told]:
    """Forecasts of apps whose end is known."""
    found = answer(present, asked, learn_s=0.0, by=by)
    out = list[Told]()
    for row in found.apps:
        if row.happened is not None and row.state != "held":
            today = row.times[0]
            out.append(Told(run, by.learned, today.low, today.median, today.high, row.happened))
    return out


def told_in(run: int, journal: Path, count: int, seeds: int, learn_s: float) -> dict[str, list[Told]]:
    """What-ifs at each instant: calibrated, as simulated, and as simulated without further arrivals."""
    out: dict[str, list[Told]] = {"calibrated": [], "simulated": [], "no arrivals": []}
    for at in instants(journal, count):
        with closing(Journal(journal)) as db:
            present = of_journal(db, at=at)
        asked, plain = Question(seeds=range(seeds), horizon_s=HORIZON_S), Correction()
        out["calibrated"] += forecasts(run, present, asked, learn(present, learn_s))
        out["simulated"] += forecasts(run, present, asked, plain)
        out["no arrivals"] += forecasts(run, present, replace(asked, arrivals=False), plain)
        print(f"run {run}: what-if at {at:.1f} s, {len(out['calibrated'])} forecasts so far", flush=True)
    return out


def rows(name: str, told: Sequence[Told]) -> str:
    """A row of the table."""
    if not told:
        return f"| {name} | 0 | – | – | – | – | – |"
    held = sum(one.held for one in told)
    off = np.array([abs(one.median - one.happened) for one in told])
    share = np.array([abs(one.median - one.happened) / max(one.happened, 1.0) for one in told])
    bias = np.array([(one.median - one.happened) / max(one.happened, 1.0) for one in told])
    width = np.array([(one.high - one.low) / max(one.happened, 1.0) for one in told])
    return (
        f"| {name} | {len(told)} | {held / len(told):.0%} | {np.median(off):.1f} | {np.median(share):.0%} | "
        f"{np.median(bias):+.0%} | {np.median(width):.0%} |"
    )


def main() -> None:
    """Run live, ask at each instant, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default="themis,fair_finish")
    parser.add_argument("--seeds", default="10,11", help="of the workloads; each policy runs each of them")
    parser.add_argument("--apps", type=int, default=24)
    parser.add_argument("--scale", type=float, default=1.0, help="of durations and times between arrivals")
    parser.add_argument("--instants", type=int, default=10)
    parser.add_argument("--simulations", type=int, default=20)
    parser.add_argument("--learn", type=float, default=60.0, help="seconds for simulations of the past at each instant")
    parser.add_argument("--homes", type=Path, help="keep the data directories here, and use those that are there")
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="themis-") as folder:
        homes = given.homes or Path(folder)
        homes.mkdir(parents=True, exist_ok=True)
        told: dict[str, list[Told]] = {}
        number = 0
        for policy in given.policies.split(","):
            for seed in given.seeds.split(","):
                number += 1
                home, saved = homes / f"{policy}-{seed}", homes / f"{policy}-{seed}.json"
                if not home.exists():
                    planned = workload(given.apps, int(seed), Path(tempfile.mkdtemp(dir=folder)), given.scale)
                    run_live(planned, policy, live_settings(), home, homes / f"{policy}-{seed}.jsonl")
                if not saved.exists():
                    found = told_in(number, home / "journal.db", given.instants, given.simulations, given.learn)
                    saved.write_text(json.dumps({how: [asdict(one) for one in made] for how, made in found.items()}))
                for how, made in json.loads(saved.read_text()).items():
                    for name in (policy, "all"):
                        told.setdefault(f"{name}, {how}", []).extend(Told(**one) for one in made)
        learned = [one for one in told["all, calibrated"] if one.learned]
        before = [one for one, by in zip(told["all, simulated"], told["all, calibrated"]) if by.learned]
        told |= (
            {"calibrated from ten past forecasts on": learned, "... the same, as simulated": before} if learned else {}
        )
        table = [
            rows(name, made)
            for name, made in sorted(told.items(), key=lambda item: item[0].startswith(("all", "calib", "...")))
        ]
    command = " ".join(["python reproduction/fidelity_forward.py", *sys.argv[1:]])
    command = re.sub(r" --(homes|out) \S+", "", command)
    text = (Path(__file__).parent / "notes" / "fidelity-forward.md").read_text()
    section = text.format(
        table="\n".join(table),
        command=command,
        instants=given.instants,
        apps=given.apps,
        machines=MACHINES,
        runs=number,
        simulations=given.simulations,
    )
    before = given.out.read_text().partition(HEADING)[0].rstrip() if given.out.exists() else ""
    given.out.write_text(f"{before}\n\n{section}".lstrip())


if __name__ == "__main__":
    main()
