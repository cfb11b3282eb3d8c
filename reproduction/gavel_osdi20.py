"""Gavel (OSDI'20): two recorded traces replayed beside the published simulator's results. Writes docs/reproduction/gavel.md.

Simulated, 12 V100 + 12 P100 + 12 K80, rounds of 360 s, Gavel's measured speeds, no cost of preemption, as that simulator has it.
The traces and results are looked for in ``THEMIS_DATA`` or ``../shared/data``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from themis.model.events import AppFinished
from themis.model.settings import Settings
from themis.policies.api import make_policy
from themis.profiles.gavel_table import profiles_from_gavel
from themis.profiles.models import DEFAULT_BOOK
from themis.profiles.presets import load_cluster
from themis.sim.runner import Record, Simulation
from themis.traces.gavel import Gavel

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("THEMIS_DATA", ROOT.parent / "shared" / "data")) / "gavel"
PAGE = ROOT / "docs" / "reproduction" / "gavel.md"
CONTINUOUS, STATIC = "cont1000_single_lam2100", "static120_multi"
WINDOW = (300, 600)
AS_PUBLISHED = "resolve_interval=1920,backfill=false"
ROWS = (
    (STATIC, "makespan", "min_total_duration_perf"),
    (STATIC, "max_min_fairness", "max_min_fairness_perf"),
    (CONTINUOUS, "max_min_fairness", "max_min_fairness_perf"),
)


class _Enough(Exception):
    """All jobs that are measured have ended."""


def measure(trace: str, policy: str) -> tuple[float, float]:
    """(hours: mean JCT of jobs 300-599, or the makespan of the static trace; CPU seconds)."""
    table = profiles_from_gavel(DATA / "tables" / "simulation_throughputs.json")
    book = DEFAULT_BOOK.with_profiles(replace(p, checkpoint_s=0.0) for p in table)
    workload = Gavel().read(DATA / "sim_cases" / f"{trace}.trace", book=book)
    wanted = set(range(*WINDOW)) if trace == CONTINUOUS else set(range(len(workload.apps)))
    jct: dict[int, float] = {}

    def watch(now: float, record: Record) -> None:
        if isinstance(record, AppFinished):
            jct[record.app] = record.jct
            if wanted <= jct.keys():
                raise _Enough

    began = time.process_time()
    with suppress(_Enough):
        Simulation(
            workload=workload, cluster=load_cluster("1x12@V100+1x12@P100+1x12@K80"), book=book, policy_name=policy,
            policy=make_policy(policy), settings=Settings(container_s=0.0),
        ).run(watch)  # fmt: skip
    took = time.process_time() - began
    hours = [jct[a] / 3600 for a in sorted(wanted)]
    return (sum(hours) / len(hours) if trace == CONTINUOUS else max(hours)), took


def published(trace: str, case: str) -> float:
    """The same figure of the published simulator, hours."""
    found = json.loads((DATA / "sim_cases" / f"{trace}.{case}.c12.json").read_text())
    return float(found["avg_jct_h"] if trace == CONTINUOUS else found["max_jct_h"])


def main() -> None:
    """Measure and write the page."""
    if not DATA.exists():
        sys.exit(f"No traces in {DATA}; set THEMIS_DATA to the folder that holds gavel/.")
    notes = (ROOT / "reproduction" / "notes" / "gavel.md").read_text()
    lines = [
        "| trace | policy | published | ours | as published: re-solved every 1,920 s, no backfilling | CPU s, both |",
        "|---|---|---|---|---|---|",
    ]
    for trace, policy, case in ROWS:
        here, cpu = measure(trace, policy)
        like, cpu_like = measure(trace, f"{policy}:{AS_PUBLISHED}")
        what = "continuous, mean JCT of jobs 300-599" if trace == CONTINUOUS else "static, makespan"
        row = (
            what,
            policy,
            f"{published(trace, case):.2f} h",
            f"{here:.2f} h",
            f"{like:.2f} h",
            f"{cpu:.1f}, {cpu_like:.1f}",
        )
        lines.append("| " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(notes.replace("{{rows}}", "\n".join(lines)))


if __name__ == "__main__":
    main()
