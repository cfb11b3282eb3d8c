"""Runs of Pollux' workloads by the artifact's rules, and their figures: a row a workload, for docs/reproduction/pollux.md.

    python reproduction/pollux_elastic.py POLICY... [--workloads 1,6] [--load 0.5] [--rigid | --learned]
    python reproduction/pollux_elastic.py bound --workloads 6

``bound``: 20 decisions of ``pollux``, drawn from those on at least eight jobs, beside the best over all numbers of GPUs,
whether they pack or not. A policy ``published:NAME`` is the artifact's own result of pollux, tiresias or optimus, measured
against the same reference.
Rules: 16 machines of four GPUs, decisions each minute, 30 s for a start, no interference between jobs.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.optimize.gang_sizes import choose
from themis.policies.api import Policy, Workbench
from themis.policies.gang_sizes import Options, rows_of
from themis.policies.pollux import Pollux
from themis.report.metrics import Fold
from themis.sim.plan import Plan

CLUSTER = "16x4"
ROUND_S = 60.0
BUSY = 8
"""Jobs from which on a decision is looked at."""
START_S = 30.0
LOAD_S = 7.5
"""Seconds of a start that rigid jobs' models take for a checkpoint."""
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


@cache
def isolated(data: Path, number: int, load: float) -> dict[str, tuple[Seconds, Seconds, Seconds]]:
    """Each job's time in the reference and alone, by its true curve, which no policy influences; and its arrival."""
    fold = _folded(data, number, "elastic_finish:backfill=false", load, {"elastic": "yes"})[0]
    return {app.name: (app.t_reference, app.t_alone, app.arrival) for app in fold.result().apps}


def run(data: Path, number: int, policy: str, *, load: float = 1.0, **options: str) -> Figures:
    """One run. ``options`` : of the reader, as ``elastic="yes"``; without, jobs are rigid. A start costs 30 s in both."""
    fold, cpu_s = _folded(data, number, policy, load, options)
    apps, true = fold.result().apps, isolated(data, number, load)
    jct = np.array([app.jct for app in apps])
    fluid, alone, _ = np.array([true[app.name] for app in apps]).T
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


def published(data: Path, number: int, policy: str, load: float) -> Figures:
    """The artifact's own results of a policy, by the same reference."""
    file = data / "pollux" / "loads" / "results" / f"{policy}-{load}" / "summary.json"
    lasted = json.loads(file.read_text())["jcts"][f"workload-{number}"]
    true = isolated(data, number, load)
    jct = np.array([lasted[name] for name in true], dtype=np.float64)
    fluid, alone, arrival = np.array(list(true.values())).T
    rho = jct / np.maximum(fluid, alone + ROUND_S)
    return Figures(
        jct=float(jct.mean()),
        p99=float(np.percentile(jct, 99)),
        makespan=float((arrival + jct).max()),
        worst=float(rho.max()),
        late=float((rho > LATE).mean()),
        reference=float((jct / fluid).max()),
        gpu_h=np.nan,
        restarts=np.nan,
        cpu_s=0.0,
    )


def _folded(
    data: Path, number: int, policy: str | tuple[str, Policy], load: float, options: Mapping[str, str]
) -> tuple[Fold, Seconds]:
    file, where = workload_options(data, number, load)
    plan = Plan(
        workload=file,
        format="pollux",
        options={**where, **options},
        cluster=CLUSTER,
        policies=[policy],
        settings={"lease_s": str(ROUND_S), "container_s": str(START_S if options.get("elastic") else START_S - LOAD_S)},
    )
    (one,) = plan.runs()
    fold, before = Fold(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    one.simulation.run(fold.add)
    return fold, resource.getrusage(resource.RUSAGE_SELF).ru_utime - before


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched(Pollux):
    """``pollux``, and what it was asked."""

    asked: list[tuple[Snapshot, Solved, Seconds]] = field(default_factory=list, compare=False)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        before = time.process_time()
        out = Pollux.__call__(self, snapshot, bench)
        if len(snapshot.job_id) >= BUSY:
            self.asked.append((snapshot, out, time.process_time() - before))
        return out


def bound_of(data: Path, number: int) -> list[tuple[int, float, Seconds]]:
    """(Jobs, power mean over its bound, CPU seconds) of 20 decisions on known curves."""
    policy = _Watched(backfill=False)
    _folded(data, number, ("pollux", policy), 1.0, {"elastic": "yes"})
    out = []
    for i in sorted(np.random.default_rng(0).choice(len(policy.asked), 20, replace=False).tolist()):
        s, solved, cpu_s = policy.asked[i]
        options = Options(
            np.arange(int(s.machine_gpus.sum()) + 1), np.zeros(int(s.machine_gpus.sum()) + 1, dtype=np.int64)
        )
        rows = rows_of(s, options)
        value = policy.value(s, options, rows)
        value[:, 1:][~np.isfinite(rows.seconds[:, 1:])] = -np.inf
        best = choose(value, options.gpus, options.kind, np.array([int(s.free.sum())]))
        out.append((len(s.job_id), best.bound / solved.proof.objective, cpu_s))
    return out


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workloads", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--load", type=float, default=1.0)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--rigid", action="store_true")
    kind.add_argument("--learned", action="store_true")
    given = parser.parse_args()
    options = {} if given.rigid else {"elastic": "yes"} | ({"learned": "yes"} if given.learned else {})
    if given.policies == ["bound"]:
        for jobs, part, cpu_s in bound_of(given.data, int(given.workloads.split(",")[0])):
            print(f"| {jobs} jobs | {part:.1%} | {1e3 * cpu_s:.1f} ms |")
        return
    print("| policy | workload | JCT s | p99 s | makespan s | worst | > 1.2 | GPU h | restarts | CPU s |")
    for policy in given.policies:
        name, _, whose = policy.partition(":")
        for number in map(int, given.workloads.split(",")):
            if name == "published":
                f = published(given.data, number, whose, given.load)
            else:
                f = run(given.data, number, policy, load=given.load, **options)
            print(
                f"| {policy} | {number} | {f.jct:,.0f} | {f.p99:,.0f} | {f.makespan:,.0f} | {f.worst:.2f} | {f.late:.1%} | "
                f"{f.gpu_h:,.0f} | {f.restarts:.1f} | {f.cpu_s:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
