"""fair_finish beside its rivals on Themis' workloads at load 1.4: tables of docs/reproduction/fair-finish.md.

    python reproduction/fair_finish.py [--seeds 0-19] [--policies P,Q] [--scale 0.25] [--apps 24] [--store FILE] [--quick]

A run's apps are judged by (finish - arrival) / max(reference, alone): the reference is the app's finish on its own share of the
cluster (``core.reference``), alone its time on an idle one (``core.needs``). Runs are kept in the store, one JSON line each with a
fingerprint of the code, so that an interrupted measurement goes on. Everything is simulated, with one set of defaults.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import themis as package
from grid import marker, table
from themis.errors import counted
from themis.model.settings import Settings
from themis.policies.api import make_policy
from themis.report.intervals import Interval, ratio_interval, t_interval
from themis.report.metrics import Fold
from themis.sim.plan import parse_seeds
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

POLICIES = (
    "fair_finish",
    "srsf",
    "srtf",
    "drf",
    "gandiva",
    "tiresias",
    "themis",
    "max_min_fairness",
    "finish_time_fairness",
    "gandiva_fair",
    "shockwave",
    "shockwave:plan=market",
)
GROUNDS = {"workload 1": "themis1", "workload 2": "themis2"}
LOAD, GPUS, CLUSTER = 1.4, 64, "testbed-64"
NUMBERS = ("worst", "p95", "above", "jct", "makespan", "gpu_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    policy: str
    workload: str
    seed: int
    apps: int
    scale: float

    @property
    def key(self) -> str:
        """The cell as text."""
        return f"{self.policy} {self.workload} apps={self.apps} scale={self.scale:g} load={LOAD} seed={self.seed}"


def run(cell: Cell) -> dict[str, float]:
    """Simulate a cell: its numbers."""
    workload = load_workload(cell.workload, seed=cell.seed, apps=cell.apps, load=LOAD, gpus=GPUS, scale=cell.scale)
    began = time.process_time()
    fold = Fold()
    Simulation(
        workload=workload,
        cluster=load_cluster(CLUSTER),
        book=DEFAULT_BOOK,
        policy_name=cell.policy,
        policy=make_policy(cell.policy),
        settings=Settings(seed=cell.seed),
    ).run(fold)
    run = fold.result()
    late = run.rho_attainable
    return {
        "worst": late.max,
        "p95": float(np.percentile([app.rho_attainable for app in run.completed], 95)),
        "above": late.above_1_1,
        "jct": run.jct_mean,
        "makespan": run.makespan,
        "gpu_s": run.gpu_seconds,
        "cpu_s": time.process_time() - began,
    }


def cells(seeds: Sequence[int], apps: int, scale: float, policies: Sequence[str] = POLICIES) -> Iterator[Cell]:
    """Seed after seed, so that an interrupted measurement has whole seeds."""
    for seed in seeds:
        for workload in GROUNDS.values():
            for policy in policies:
                yield Cell(policy=policy, workload=workload, seed=seed, apps=apps, scale=scale)


def fingerprint() -> str:
    """Of all code that decides."""
    digest = hashlib.sha256()
    for path in sorted(Path(package.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def stored(store: Path, code: str) -> dict[str, dict[str, float]]:
    """The runs of this code."""
    if not store.exists():
        return {}
    lines = [json.loads(line) for line in store.read_text(encoding="utf-8").splitlines()]
    return {line["cell"]: line["numbers"] for line in lines if line["code"] == code}


def measure(wanted: Sequence[Cell], store: Path, code: str) -> dict[str, dict[str, float]]:
    """Run what the store does not hold."""
    found = stored(store, code)
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.open("a", encoding="utf-8") as file:
        for at, cell in enumerate(wanted):
            if cell.key not in found:
                found[cell.key] = run(cell)
                file.write(json.dumps({"code": code, "cell": cell.key, "numbers": found[cell.key]}) + "\n")
                file.flush()
                print(f"{at + 1} of {len(wanted)}: {cell.key}", flush=True)
    return found


def page(found: dict[str, dict[str, float]], seeds: Sequence[int], apps: int, scale: float, command: str) -> str:
    """The tables in Markdown, of the seeds that all policies have."""
    parts = []
    for title, workload in GROUNDS.items():
        keys = {
            (policy, seed): Cell(policy=policy, workload=workload, seed=seed, apps=apps, scale=scale).key
            for policy in POLICIES
            for seed in seeds
        }
        whole = [seed for seed in seeds if all(keys[policy, seed] in found for policy in POLICIES)]
        if not whole:
            continue
        runs = {policy: [found[keys[policy, seed]] for seed in whole] for policy in POLICIES}
        name = f"fair-finish-{workload[-1]}"
        parts += [f"**{title}**, {counted(len(whole), 'seed')}:\n", marker(name, command) + _absolute(runs)]
        if len(whole) > 1:
            parts += [
                "`fair_finish` over the others, geometric means of paired ratios (below 1 it is better), and how many points of "
                "the share later than 1.1 lie between them, on average (below 0 it is better):\n",
                marker(f"{name}-over", command) + _ratios(runs),
            ]
    return f"Command: `{command}`.\n\n" + "\n".join(parts)


def _absolute(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    head = ["policy", "max ρ attainable", "p95", "later than 1.1, %", "mean JCT h", "makespan h", "GPU h"]
    scales = ((1.0, 2), (1.0, 2), (100.0, 0), *[(1 / 3600, 1)] * 3)
    return (
        table(
            head,
            [
                [policy, *(_number(t_interval([r[n] for r in of]), *how) for n, how in zip(NUMBERS, scales))]
                for policy, of in runs.items()
            ],
        )
        + "\n"
    )


def _ratios(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    ours, numbers = runs[POLICIES[0]], ("worst", "p95", "jct", "makespan", "gpu_s")
    rows = [
        [
            policy,
            *(_number(ratio_interval([r[n] for r in ours], [r[n] for r in of]), 1, 3) for n in numbers),
            _number(t_interval([a["above"] - b["above"] for a, b in zip(ours, of)]), 100, 1),
        ]
        for policy, of in runs.items()
        if policy != POLICIES[0]
    ]
    return (
        table(["over", "max ρ attainable", "p95", "mean JCT", "makespan", "GPU time", "later than 1.1: points"], rows)
        + "\n"
    )


def _number(x: Interval, factor: float = 1.0, digits: int = 2) -> str:
    if np.isnan(x.low):
        return f"{x.mean * factor:.{digits}f}"
    return f"{x.mean * factor:.{digits}f} [{x.low * factor:.{digits}f}, {x.high * factor:.{digits}f}]"


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-19")
    parser.add_argument("--policies", default="", help="measure these alone, for tables that are printed later")
    parser.add_argument("--apps", type=int, default=24)
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--store", type=Path, default=Path("out/reproduction/fair-finish.jsonl"))
    parser.add_argument("--quick", action="store_true", help="one seed of a few small apps: shows that everything runs")
    given = parser.parse_args()
    seeds = [0] if given.quick else list(parse_seeds(given.seeds))
    apps, scale = (4, 0.05) if given.quick else (given.apps, given.scale)
    policies = [name for name in given.policies.split(",") if name]
    found = measure(list(cells(seeds, apps, scale, policies or POLICIES)), given.store, fingerprint())
    if policies:
        return
    command = f"python reproduction/fair_finish.py --seeds {given.seeds} --apps {apps} --scale {scale:g}"
    print(page(found, seeds, apps, scale, command))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
