"""`sia` on three GPU types: jobs of Gavel's static trace that scale, and as they are, beside other policies.

    python reproduction/sia_types.py [--jobs 24] [--data FOLDER]

The first jobs of `sim_cases/static120_multi.trace`, which all arrive at 0, on 12 V100 + 12 P100 + 12 K80, by Gavel's measured
speeds on 1, 2, 4 and 8 GPUs of each type. A rigid job has the GPUs of the trace, one that scales 1 to 8. Rounds and leases of
360 s, 30 s for a start. *Worst* is the largest completion time over that on the job's own share, or, where that is longer, alone
after one round. Sia's own workloads and results are not among the data.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from grid import SHARED, marker, table
from themis.model.workload import Workload
from themis.report.metrics import Fold
from themis.sim.plan import Plan
from themis.traces.formats import load_workload
from themis.traces.profiles.library import load_book

CLUSTER = "gavel-36"
ROUND_S = 360.0
LATE = 1.2
MOST = 8
"""GPUs of a job that scales."""
POLICIES = ("sia:round_s=360", "elastic_finish:round_s=360", "srsf", "fair_finish", "max_min_fairness")
HEAD = ("policy", "jobs", "JCT h", "p99 h", "makespan h", "worst", "late %", "GPU h", "restarts a job", "CPU s")


def workload_of(data: Path, jobs: int, scales: bool) -> Workload:
    """The first jobs of the trace."""
    trace = data / "gavel" / "sim_cases" / "static120_multi.trace"
    read = load_workload(str(trace), format="gavel", book=load_book("gavel", trace.parent))
    apps = read.apps[:jobs]
    if scales:
        apps = tuple(
            replace(app, jobs=tuple(replace(job, gpus_min=1, gpus_max=MOST) for job in app.jobs)) for app in apps
        )
    return replace(read, apps=apps)


def row(data: Path, jobs: int, policy: str, scales: bool) -> list[str]:
    """A run's figures."""
    begin = time.process_time()
    plan = Plan(
        workload=workload_of(data, jobs, scales),
        cluster=CLUSTER,
        policies=[policy],
        profiles="gavel",
        settings={"lease_s": str(ROUND_S), "container_s": "30"},
    )
    (one,) = plan.runs()
    fold = Fold()
    one.simulation.run(fold.add)
    apps = fold.result().apps
    jct = np.array([app.jct for app in apps])
    rho = jct / np.array([max(app.t_reference, app.t_alone + ROUND_S) for app in apps])
    return [
        policy.partition(":")[0],
        "scale" if scales else "rigid",
        *(f"{hours / 3600:,.2f}" for hours in (jct.mean(), np.percentile(jct, 99))),
        f"{max(app.arrival + app.jct for app in apps) / 3600:,.1f}",
        f"{rho.max():.2f}",
        f"{100 * (rho > LATE).mean():.0f}",
        f"{sum(app.gpu_seconds for app in apps) / 3600:,.0f}",
        f"{sum(app.restarts for app in apps) / len(apps):.1f}",
        f"{time.process_time() - begin:.0f}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--jobs", type=int, default=24)
    given = parser.parse_args()
    rows = [row(given.data, given.jobs, policy, scales) for scales in (True, False) for policy in POLICIES]
    print(marker("sia-types", "python reproduction/sia_types.py") + table(list(HEAD), rows))


if __name__ == "__main__":
    main()
