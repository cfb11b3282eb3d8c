"""Shockwave (NSDI'23): its recorded trace, and generated ones on 64 to 256 GPUs. Writes docs/reproduction/shockwave.md.

    python reproduction/shockwave_nsdi23.py [--quick] [--out PAGE]

Simulated, machines of 4 V100, rounds of 120 s, 20 s for every start of a job and no other cost of a change, speed
independent of placement, as the published simulator has it. Jobs that change their batch size are forecast; nobody knows
their schedules. The trace and results are looked for in ``THEMIS_DATA`` or ``../shared/data``; ``--quick`` runs 24 generated
jobs and needs neither.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from themis.model.events import AppFinished, Grant
from themis.model.settings import Settings
from themis.model.units import Float, Locality
from themis.model.workload import Workload
from themis.policies.api import make_policy
from themis.profiles.gavel_table import profiles_from_gavel
from themis.profiles.measured import gavel_book
from themis.profiles.models import DEFAULT_BOOK
from themis.profiles.presets import load_cluster
from themis.profiles.speed import ProfileBook
from themis.report.intervals import t_interval
from themis.sim.runner import Record, Simulation
from themis.traces.shockwave import Shockwave
from themis.traces.shockwave_jobs import ShockwaveJobs

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("THEMIS_DATA", ROOT.parent / "shared" / "data")) / "shockwave"
PAGE = ROOT / "docs" / "reproduction" / "shockwave.md"
NOTES = ROOT / "reproduction" / "notes" / "shockwave.md"
PUBLISHED = (
    "shockwave", "finish_time_fairness", "max_min_fairness", "allox", "max_sum_throughput_perf", "min_total_duration",
    "gandiva_fair",
)  # fmt: skip
ROUNDS = "round_s=120"
POLICIES = (
    "shockwave", f"finish_time_fairness:{ROUNDS}", f"max_min_fairness:{ROUNDS}",
    f"max_min_fairness:{ROUNDS},resolve_interval=1000,backfill=false", f"allox:{ROUNDS}", f"max_throughput:{ROUNDS}",
    "ossp", f"gandiva_fair:{ROUNDS},tickets_by_size=true",
    "themis",
)  # fmt: skip
VARIANTS = (
    *(f"shockwave:makespan={price}" for price in (0.001, 0.01, 0.1, 1.0, 10.0)),
    *(f"shockwave:window={rounds}" for rounds in (20, 30, 60, 90)),
    *(f"shockwave:window=60,makespan={price}" for price in (0.001, 0.01, 1.0, 10.0)),
    "shockwave:power=1", "shockwave:power=10", "shockwave:forecast=greedy", "shockwave:noise=1", "shockwave:reactive=false",
    "shockwave:backfill=false",
)  # fmt: skip
SCALES = ((220, 64), (460, 128), (900, 256))
AT_SCALE = ("shockwave", f"max_min_fairness:{ROUNDS}", f"finish_time_fairness:{ROUNDS}", f"allox:{ROUNDS}", "ossp")
LONGER = ("shockwave:window=400", "shockwave:window=1000")
THRESHOLDS = (1.0, 1.05, 1.1)
HEAD = (
    "| policy | makespan s | mean JCT s | worst rho_static | unfair > 1 / 1.05 / 1.1 % | worst rho_contention | "
    "unfair > 1 / 1.05 / 1.1 % | starts | CPU s |\n|---|---|---|---|---|---|---|---|---|"
)
SEEDS_HEAD = (
    "| GPU-hours | policy | makespan s | mean JCT s | worst rho_static | unfair > 1 % | > 1.05 % | > 1.1 % |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A workload with what its jobs take alone, on so many GPUs."""

    workload: Workload
    book: ProfileBook
    alone: Float
    gpus: int


def recorded() -> World:
    """The recorded trace with its measured speeds and schedules."""
    schedules = DATA / "bs_schedules" / "dynamic_120jobs_32gpu.json"
    profiles = profiles_from_gavel(DATA / "throughputs" / "tacc_throughputs.json")
    book = DEFAULT_BOOK.with_profiles(replace(p, checkpoint_s=0.0, slowdown=(1.0, 1.0, 1.0, 1.0)) for p in profiles)
    workload = Shockwave(schedules=str(schedules)).read(DATA / "traces" / "dynamic_120jobs_32gpu.trace", book=book)
    alone = np.array([job["isolated_s"] for job in json.loads(schedules.read_text())])
    return World(workload=workload, book=book, alone=alone, gpus=32)


def generated(jobs: int, gpus: int, seed: int = 0, scale: float = 0.2) -> World:
    """A generated trace; gangs run alike wherever they are."""
    profiles = gavel_book().profiles.values()
    book = ProfileBook.of(replace(p, checkpoint_s=0.0, slowdown=(1.0, 1.0, 1.0, 1.0)) for p in profiles)
    workload = ShockwaveJobs(jobs=jobs, gpus=gpus, scale=scale).generate(seed=seed, book=book)
    alone = [
        sum(r.steps * job.scale(r.batch) / book.rate(job.model, r.batch, "V100", job.gpus_max, Locality.SLOT) for r in job.regimes)
        for job in (app.jobs[0] for app in workload.apps)
    ]  # fmt: skip
    return World(workload=workload, book=book, alone=np.array(alone), gpus=gpus)


def simulate(world: World, policy: str) -> tuple[Float, int, float]:
    """(JCT of every job, starts, CPU seconds)."""
    jct: dict[int, float] = {}
    starts = 0

    def watch(now: float, record: Record) -> None:
        nonlocal starts
        if isinstance(record, AppFinished):
            jct[record.app] = record.jct
        starts += isinstance(record, Grant)

    began = time.process_time()
    Simulation(
        workload=world.workload, cluster=load_cluster(f"{world.gpus // 4}x4@V100"), book=world.book, policy_name=policy,
        policy=make_policy(policy), settings=Settings(container_s=20.0, lease_s=120.0),
    ).run(watch)  # fmt: skip
    return np.array([jct[a] for a in range(len(jct))]), starts, time.process_time() - began


def figures(world: World, jct: Float) -> list[str]:
    """Cells of a row, by both definitions of rho."""
    arrival = np.array([app.arrival for app in world.workload.apps])
    end = arrival + jct
    static = jct / (world.alone * max(1.0, len(jct) / world.gpus))
    together = np.minimum(end[:, None], end) - np.maximum(arrival[:, None], arrival)
    contention = np.maximum(together, 0.0).sum(axis=1) / jct / world.gpus
    live = jct / (world.alone * np.maximum(1.0, contention))
    cells = [f"{end.max():,.0f}", f"{jct.mean():,.0f}"]
    for rho in (static, live):
        cells += [f"{rho.max():.2f}", " / ".join(f"{100 * (rho > limit).mean():.1f}" for limit in THRESHOLDS)]
    return cells


def rows(world: World, policies: tuple[str, ...]) -> Iterator[str]:
    """A row a policy, as soon as it is known."""
    for policy in policies:
        jct, starts, cpu = simulate(world, policy)
        line = "| " + " | ".join([f"`{policy}`", *figures(world, jct), str(starts), f"{cpu:.1f}"]) + " |"
        print(line, flush=True)
        yield line


def over_seeds(jobs: int, gpus: int, scale: float, policies: tuple[str, ...], seeds: range) -> Iterator[str]:
    """A row a policy: mean and half width of the 95 % interval over seeds."""
    worlds = [generated(jobs, gpus, seed, scale) for seed in seeds]
    for policy in policies:
        found = []
        for world in worlds:
            jct, _, _ = simulate(world, policy)
            end = np.array([app.arrival for app in world.workload.apps]) + jct
            rho = jct / (world.alone * max(1.0, len(jct) / world.gpus))
            found.append([end.max(), jct.mean(), rho.max(), *(100 * (rho > limit).mean() for limit in THRESHOLDS)])
        cells = [t_interval(list(map(float, column))) for column in zip(*found)]
        text = [f"{c.mean:,.{d}f} ± {c.half:,.{d}f}" for c, d in zip(cells, (0, 0, 2, 1, 1, 1))]
        line = "| " + " | ".join([f"{scale:g}", f"`{policy}`", *text]) + " |"
        print(line, flush=True)
        yield line


def published(world: World) -> Iterator[str]:
    """What the published simulator gave, in the same figures."""
    for name in PUBLISHED:
        jct = np.array(json.loads((DATA / "results_32gpu" / f"{name}.json").read_text())["jct_list"])
        yield "| " + " | ".join([f"published {name}", *figures(world, jct), "", ""]) + " |"


def main() -> None:
    """Measure, and write the page again after every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="24 generated jobs on 8 GPUs; seconds")
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    if not given.quick and not DATA.exists():
        parser.exit(2, f"No trace in {DATA}; set THEMIS_DATA to the folder that holds shockwave/, or use --quick.\n")
    page = NOTES.read_text(encoding="utf-8")
    if given.quick:
        tables = [("recorded", list(rows(generated(24, 8), POLICIES[:3]))), ("variants", []), ("scales", [])]
        seeds = list(over_seeds(12, 8, 0.2, POLICIES[:1], range(2)))
    else:
        world = recorded()
        tables = [("recorded", [*published(world), *rows(world, POLICIES)]), ("variants", list(rows(world, VARIANTS)))]
        scales = []
        for jobs, gpus in SCALES:
            at = generated(jobs, gpus)
            scales += [f"| **{jobs} jobs, {gpus} GPUs** | | | | | | | | |", *rows(at, AT_SCALE)]
        tables.append(("scales", scales))
        seeds = [
            *over_seeds(220, 64, 0.2, AT_SCALE[:3], range(5)),
            *over_seeds(220, 64, 1.0, (*AT_SCALE[:3], *LONGER), range(5)),
        ]
    for name, lines in tables:
        page = page.replace("{{" + name + "}}", "\n".join([HEAD, *lines]))
    page = page.replace("{{seeds}}", "\n".join([SEEDS_HEAD, *seeds]))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
