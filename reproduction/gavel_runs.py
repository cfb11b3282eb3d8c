"""Single simulations of the Gavel reproduction, kept so that an interrupted one goes on; and its fluid ideal.

A ``Cell`` is everything that determines a run. Results are stored under the cell and a fingerprint of the code.
"""

from __future__ import annotations

import dataclasses
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from grid import CODE, SHARED
from themis.fairness.forecasts.believed import Estimation, believed_book
from themis.model.events import AppFinished, Grant, JobReached, JobStopped
from themis.model.settings import Settings
from themis.model.speed import ProfileBook
from themis.model.units import Float, Locality
from themis.model.workload import Workload
from themis.optimize.shares.problem import Problem
from themis.policies.api import make_policy
from themis.policies.gavel.max_min import max_min
from themis.sim.plan import key_value, split_parameters
from themis.sim.runner import Record, Simulation
from themis.traces.formats import build_options, load_workload
from themis.traces.profiles.gavel_table import profiles_from_gavel
from themis.traces.profiles.measured import gavel_book
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

ROOT = Path(__file__).parents[1]
DATA = SHARED / "gavel"
THIRD = "1x12@V100+1x12@P100+1x12@K80"
PHYSICAL = "1x8@V100+1x16@P100+1x24@K80"
PRICE = {"V100": 2.48, "P100": 1.46, "K80": 0.45}
"""Dollars of a GPU-hour, Google Cloud's list of 2020; an assumption, the paper names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run.

    Attributes
    ----------
    workload : as on the command line, or a file of the recorded traces. ``table`` : a recorded table, empty: the shipped.
    first, last : the jobs that are measured, by arrival; the run ends when they have. ``estimate`` : as on the command line.
    """

    policy: str
    workload: str
    cluster: str = THIRD
    seed: int = 0
    first: int = 0
    last: int = 0
    table: str = ""
    estimate: str = ""

    @property
    def key(self) -> str:
        """The cell as text."""
        values = dataclasses.asdict(self)
        return json.dumps({k: v for k, v in values.items() if k != "estimate" or v}, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of each job that was measured: seconds to its end, weight, whether it missed its deadline; dollars and CPU in all."""

    jct: list[float]
    weight: list[float]
    missed: list[bool]
    end: float
    dollars: float
    cpu: float

    @property
    def mean(self) -> float:
        """Mean JCT, hours."""
        return float(np.mean(self.jct)) / 3600.0


class _Enough(Exception):
    """All jobs that are measured have ended."""


@dataclass(slots=True)
class Store:
    """Results on disk."""

    path: Path
    found: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for text in self.path.read_text().splitlines() if self.path.exists() else ():
            line = json.loads(text)
            if line["code"] == CODE:
                self.found[line["cell"]] = Result(**line["result"])

    def run(self, cell: Cell) -> Result:
        """The cell's result, measured now if it is not there."""
        if cell.key not in self.found:
            found = self.found[cell.key] = simulate(cell)
            line = {"code": CODE, "cell": cell.key, "result": dataclasses.asdict(found)}
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(
                f"{found.cpu:6.1f} CPU s  {found.mean:8.2f} h  {cell.policy}  {cell.workload}  seed {cell.seed}",
                flush=True,
            )
        return self.found[cell.key]


@lru_cache(maxsize=4)
def book_of(table: str) -> ProfileBook:
    """The profiles, without a cost of checkpoints, as the published simulator has it."""
    if not table:
        return gavel_book().with_profiles(replace(p, checkpoint_s=0.0) for p in gavel_book().profiles.values())
    profiles = profiles_from_gavel(DATA / "tables" / f"{table}.json")
    return DEFAULT_BOOK.with_profiles(replace(p, checkpoint_s=0.0) for p in profiles)


def workload_of(cell: Cell) -> Workload:
    """The cell's workload."""
    if cell.workload.endswith(".trace"):
        return load_workload(str(DATA / cell.workload), book=book_of(cell.table))
    name, options = split_parameters(cell.workload)
    return load_workload(name, seed=cell.seed, book=book_of(cell.table), **options)


def simulate(cell: Cell) -> Result:
    """Run a cell: rounds of six minutes, no cost of preemption."""
    workload, cluster = workload_of(cell), load_cluster(cell.cluster)
    last = cell.last or len(workload.apps)
    wanted, ended, at = set(range(cell.first, last)), {}, {"now": 0.0}
    price_of = [PRICE.get(m.gpu_type, 0.0) for m in cluster.machines for _ in range(m.gpus)]
    held: dict[int, tuple[float, float]] = {}
    dollars = 0.0

    def watch(now: float, record: Record) -> None:
        nonlocal dollars
        at["now"], kind = now, type(record)
        if kind is Grant:
            gpus = record.gpus
            held[record.job] = now, price_of[gpus[0]] if len(gpus) == 1 else sum(price_of[g] for g in gpus)
        elif kind is JobStopped or kind is JobReached:
            if record.job in held:
                since, price = held.pop(record.job)
                dollars += (now - since) / 3600.0 * price
        elif kind is AppFinished:
            ended[record.app] = record.jct
            if wanted <= ended.keys():
                raise _Enough

    believed = None
    if cell.estimate:
        how = build_options("estimate", Estimation, dict(map(key_value, cell.estimate.split(","))))
        assert isinstance(how, Estimation)
        trained = [(j.model, r.batch) for app in workload.apps for j in app.jobs for r in j.regimes]
        believed = believed_book(book_of(cell.table), trained, cluster.gpu_types, how, cell.seed)
    began = time.process_time()
    with suppress(_Enough):
        Simulation(
            workload=workload,
            cluster=cluster,
            book=book_of(cell.table),
            policy_name=cell.policy,
            estimated=believed,
            policy=make_policy(cell.policy),
            settings=Settings(container_s=0.0, seed=cell.seed),
        ).run(watch)
    apps = [workload.apps[a] for a in sorted(wanted)]
    jct = [ended[a] for a in sorted(wanted)]
    return Result(
        jct=jct,
        weight=[app.weight for app in apps],
        end=at["now"],
        dollars=dollars,
        cpu=time.process_time() - began,
        missed=[app.deadline is not None and app.arrival + t > app.deadline * (1 + 1e-9) for app, t in zip(apps, jct)],
    )


def fluid(cell: Cell) -> Result:
    """The ideal of Figure 15b: every job has exactly its share of max-min fairness at every instant."""
    workload, cluster, book = workload_of(cell), load_cluster(cell.cluster), book_of(cell.table)
    types = list(cluster.gpu_types)
    workers = np.array([float(cluster.machine_gpus[cluster.machine_type == k].sum()) for k in range(len(types))])
    jobs = [app.jobs[0] for app in workload.apps]
    gpus = np.array([job.gpus_max for job in jobs])
    rate = np.array(
        [[book.rate(j.model, j.regimes[0].batch, t, j.gpus_max, Locality.MACHINE) for t in types] for j in jobs]
    )
    left, arrival = np.array([job.steps for job in jobs]), np.array([app.arrival for app in workload.apps])
    last = cell.last or len(jobs)
    end = np.full(len(jobs), np.inf)
    began, now, there = time.process_time(), 0.0, np.zeros(len(jobs), dtype=bool)
    while not np.isfinite(end[cell.first : last]).all():
        there |= (arrival <= now + 1e-9) & ~np.isfinite(end)
        rows = np.flatnonzero(there)
        speed: Float = np.zeros(len(jobs))
        if len(rows):
            problem = Problem.of(rate[rows], gpus[rows], workers)
            speed[rows] = problem.throughput(max_min(problem, np.ones(len(rows))).x)
        ahead = arrival[arrival > now + 1e-9]
        take = np.divide(left, speed, out=np.full(len(jobs), np.inf), where=there & (speed > 0))
        step = min(float(take.min()), float(ahead.min()) - now if len(ahead) else np.inf)
        left, now = left - speed * step, now + step
        over = there & (left <= 1e-9 * np.array([job.steps for job in jobs]))
        end[over], there[over] = now, False
    jct = (end - arrival)[cell.first : last].tolist()
    return Result(
        jct=jct,
        weight=[1.0] * len(jct),
        missed=[False] * len(jct),
        end=now,
        dollars=0.0,
        cpu=time.process_time() - began,
    )
