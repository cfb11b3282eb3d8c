"""Many simulations of a grid of conditions, in processes, with results kept so that an interrupted run goes on.

A ``Cell`` is everything that determines one run. Its result is stored under the cell and a fingerprint of the code:
a change of the code measures anew, never mixes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import themis
from themis.report.intervals import Interval, t_interval
from themis.report.metrics import Fold
from themis.report.numbers import RHO_STATS, SCALARS
from themis.report.result import RunMetrics, scalar
from themis.sim.many import Done, SimulationRun, run_many
from themis.sim.many import Progress as Step
from themis.sim.runner import Record, Simulation

SHARED = Path(os.environ.get("THEMIS_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""Recorded traces and published results."""
RHO = tuple(f"{form}_{stat}" for form in ("rho_paper", "rho_exact") for stat in RHO_STATS)
PER_APP = ("rho_paper", "rho_exact", "jct", "t_id_paper", "gpu_seconds", "placement")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run.

    Attributes
    ----------
    policy : with parameters after a colon. ``workload`` : a generator's name. ``cluster`` : a preset.
    load, gpus : offered load, and the GPUs that it speaks of. ``network`` : share of network-intensive apps, or None.
    lease_s : length of a lease. ``error`` : bound of the agents' estimation errors. ``lie`` : what a liar adds.
    scale : factor on every app's work, for the quick form.
    """

    policy: str
    workload: str
    cluster: str
    seed: int
    apps: int
    load: float = 1.4
    gpus: int = 64
    network: float | None = None
    lease_s: float = 600.0
    error: float = 0.0
    lie: float | None = None
    scale: float = 1.0

    @property
    def key(self) -> str:
        """The cell as text."""
        values = dataclasses.asdict(self)
        return json.dumps({k: v for k, v in values.items() if k != "scale" or v != 1.0}, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to: numbers by the report's names, and columns over its apps."""

    numbers: Mapping[str, float]
    apps: Mapping[str, list[Any]]

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]


Results = Mapping[Cell, Result]


class Brief:
    """A fold that keeps of a run only what the tables need."""

    def __init__(self) -> None:
        self.fold = Fold()

    def add(self, time: float, record: Record) -> None:
        """Take one record in."""
        self.fold.add(time, record)

    def result(self) -> Result:
        """The run's numbers."""
        return brief(self.fold.result())


def brief(run: RunMetrics) -> Result:
    """The numbers of a run, and those of its completed apps."""
    numbers = {name: scalar(run, name) for name in (*SCALARS, *RHO)}
    numbers["jobs_stopped"] = float(sum(outcome == "stopped" for outcome in run.jobs.outcome))
    numbers["jobs"] = float(len(run.jobs.outcome))
    apps: dict[str, list[Any]] = {name: [getattr(app, name) for app in run.completed] for name in PER_APP}
    return Result(numbers=numbers, apps=apps | {"name": [app.name for app in run.completed]})


def measure(
    cells: Iterable[Cell], build: Callable[[Cell], Simulation], store: Path, *, processes: int, batch: int = 24
) -> dict[Cell, Result]:
    """Run what the store does not hold yet, batch by batch, and return the results of all cells."""
    wanted = list(dict.fromkeys(cells))
    store.parent.mkdir(parents=True, exist_ok=True)
    found = _stored(store, wanted)
    todo = [cell for cell in wanted if cell not in found]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bars, store.open("a") as file:
        bar = bars.add_task("runs", total=len(wanted), completed=len(found))

        def watch(step: Step) -> None:
            if step.ended:
                bars.advance(bar)

        for first in range(0, len(todo), batch):
            part = todo[first : first + batch]
            runs = [SimulationRun(simulation=build(cell)) for cell in part]
            for cell, done in zip(part, run_many(runs, Brief, processes=processes, watch=watch)):
                found[cell] = _checked(cell, done)
                line = {"code": CODE, "cell": cell.key, "result": dataclasses.asdict(found[cell])}
                file.write(json.dumps(line) + "\n")
            file.flush()
    return found


def _checked(cell: Cell, done: Done[Result]) -> Result:
    if done.result is None:
        raise SystemExit(f"{cell.key}: {done.failure.message if done.failure else 'no result'}")
    if len(done.result.apps["jct"]) != cell.apps:
        raise SystemExit(f"{cell.key}: {len(done.result.apps['jct'])} of {cell.apps} apps ended.")
    return done.result


def _stored(store: Path, wanted: list[Cell]) -> dict[Cell, Result]:
    by_key = {cell.key: cell for cell in wanted}
    found = {}
    for text in store.read_text().splitlines() if store.exists() else ():
        line = json.loads(text)
        if line["code"] == CODE and line["cell"] in by_key:
            found[by_key[line["cell"]]] = Result(**line["result"])
    return found


def stored_by_code(store: Path, wanted: Iterable[Cell]) -> dict[str, dict[Cell, Result]]:
    """What a store holds of these cells, by the fingerprint of the code that measured it."""
    by_key = {cell.key: cell for cell in wanted}
    found: dict[str, dict[Cell, Result]] = {}
    for text in store.read_text().splitlines() if store.exists() else ():
        line = json.loads(text)
        if line["cell"] in by_key:
            found.setdefault(line["code"], {})[by_key[line["cell"]]] = Result(**line["result"])
    return found


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(themis.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


CODE = _fingerprint()


# ---- tables ---------------------------------------------------------------------------------------------------------


def over_seeds(results: Results, cells: Iterable[Cell], number: Callable[[Result], float]) -> Interval:
    """Mean over the cells, one a seed, with its 95 % interval."""
    return t_interval([number(results[cell]) for cell in cells])


def text(x: Interval, digits: int = 2, scale: float = 1.0) -> str:
    """``mean ± half``; no half with one seed."""
    half = "" if x.half != x.half else f" ± {x.half / scale:,.{digits}f}"
    return f"{x.mean / scale:,.{digits}f}{half}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    titles = list(head)
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def marker(name: str, command: str) -> str:
    """The comment above a measured table: its name, which quotes refer to, the command and the commit (tests/house/figures.py)."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"<!-- table {name}: {command}; {commit} -->\n\n"
