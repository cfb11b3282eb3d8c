"""Runs of Pollux' workloads by the artifact's rules, and their figures: for the tables of docs/reproduction/pollux.md.

Rules: 16 machines of four GPUs, decisions each minute, 30 s for a start, no interference between jobs.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from themis.model.units import Seconds
from themis.report.metrics import Fold
from themis.sim.plan import Plan

CLUSTER = "16x4"
ROUND_S = 60.0
START_S = 30.0
LATE = 1.2
"""A job is late that takes this many times its time in the reference, or alone where that is longer."""
MEMBER = "simulator/workloads/workload-{}.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one run.

    Attributes
    ----------
    jct, p99, makespan : seconds; the makespan from 0. ``worst`` : largest JCT over the time in the reference, or, where that is
        longer, alone after one round and one start; ``late`` : share of jobs beyond ``LATE`` of it. ``reference`` : largest JCT
        over the time in the reference. ``gpu_h``, ``restarts`` : GPU hours; starts after the first, a job. ``cpu_s`` : of the run.
    """

    jct: Seconds
    p99: Seconds
    makespan: Seconds
    worst: float
    late: float
    reference: float
    gpu_h: float
    restarts: float
    cpu_s: float


def workload_options(data: Path, number: int, load: float) -> tuple[str, dict[str, str]]:
    """File and options of a workload at a load."""
    archive = data / "pollux" / "pollux-osdi21.tar.gz"
    if load == 1.0:
        return str(archive), {"member": MEMBER.format(number)}
    return str(data / "pollux" / "loads" / f"workloads-{load}" / f"workload-{number}.csv"), {"profiles": str(archive)}


def run(data: Path, number: int, policy: str, *, load: float = 1.0, **options: str) -> Figures:
    """One run. ``options`` : of the reader, as ``elastic="yes"``; without, jobs are rigid, and a start costs 30 s too."""
    file, where = workload_options(data, number, load)
    rigid = options.get("elastic", "no") == "no"
    plan = Plan(
        workload=file,
        format="pollux",
        options={**where, **options},
        cluster=CLUSTER,
        policies=[policy],
        settings={"lease_s": str(ROUND_S), "container_s": "22.5" if rigid else str(START_S)},
    )
    (one,) = plan.runs()
    fold, before = Fold(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    one.simulation.run(fold.add)
    cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    apps = fold.result().apps
    jct = np.array([app.jct for app in apps])
    fluid, alone = np.array([app.t_reference for app in apps]), np.array([app.t_alone for app in apps])
    rho = jct / np.maximum(fluid, alone + ROUND_S)
    return Figures(
        jct=float(jct.mean()),
        p99=float(np.percentile(jct, 99)),
        makespan=max(app.finish for app in apps),
        worst=float(rho.max()),
        late=float((rho > LATE).mean()),
        reference=float((jct / fluid).max()),
        gpu_h=sum(app.gpu_seconds for app in apps) / 3600,
        restarts=sum(app.restarts for app in apps) / len(apps),
        cpu_s=cpu_s,
    )
