"""Runs of Pollux' workloads by the artifact's rules: rows and tables for docs/reproduction/pollux.md.

    python reproduction/pollux_elastic.py POLICY... [--workloads 1,6] [--load 0.5] [--kind learned] [--wrong noise]
    python reproduction/pollux_elastic.py bound --workloads 6
    python reproduction/pollux_elastic.py fit

Jobs are ``rigid``, or take any number of GPUs by curves that are ``known`` or ``learned``. ``bound``: 20 decisions of ``pollux``,
drawn from those on at least eight jobs, beside the best over all numbers of GPUs, whether they pack or not. A policy
``published:NAME`` is the artifact's own result of pollux, tiresias or optimus, measured against the same reference. ``--wrong``
gives the scheduler wrong estimates, five draws each: every job's remaining time wrong by up to half; every tenth job's, as if these
were one user's, a tenth of the true one; ten times the noise of the same jobs (``--kind learned``).
Rules: 16 machines of four GPUs, decisions each minute, 30 s for a start, no interference between jobs. Runs are kept in
out/reproduction/pollux.jsonl by a fingerprint of the code.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from grid import CODE, SHARED, marker, table
from themis.model.answers import Solved
from themis.model.goodput import level_of
from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float, Seconds
from themis.model.workload import Workload
from themis.optimize.gang_sizes import choose
from themis.optimize.step_times import Iterations, fit
from themis.policies.api import Policy, Workbench
from themis.policies.elastic_finish import ElasticFinish
from themis.policies.gang_sizes import Options, rows_of
from themis.policies.pollux import Pollux
from themis.report.metrics import Fold
from themis.sim.plan import Plan
from themis.traces.formats import load_workload
from themis.traces.pollux_speeds import applications

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
STORE = Path("out/reproduction/pollux.jsonl")
OURS = "elastic_finish:backfill=false"
POLLUX = "pollux:backfill=false"
RIGID = ("srsf", "drf", "fair_finish", "tiresias", "tiresias_2q:threshold=15", "optimus")
WORKLOADS = (1, 2, 3, 4, 5, 6, 7, 8)
WRONG = ("remaining", "tenfold", "noise")
DRAWS = 5
NOISY = level_of(10.0) - 1
"""Noise levels that make ten times the noise."""
SCRIPT = "python reproduction/pollux_elastic.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What determines a run.

    Attributes
    ----------
    number : of the workload. ``kind`` : rigid, known or learned. ``wrong`` : one of ``WRONG``, by the draw ``seed``.
    limit : number of jobs, the first ones; 0: all.
    """

    policy: str
    number: int
    load: float = 1.0
    kind: str = "known"
    wrong: str = ""
    seed: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasted:
    """A job of a run: seconds, GPU-seconds, starts after the first; its reference and time alone by the run's own curves."""

    jct: Seconds
    gpu_s: Seconds
    restarts: int
    t_reference: Seconds
    t_alone: Seconds
    arrival: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one run.

    Attributes
    ----------
    jct, p99, makespan : seconds; the makespan from 0. ``worst`` : largest JCT over the time in the reference, or, where that is
        longer, alone after one round and one start; ``late`` : share of jobs beyond ``LATE`` of it. ``gpu_h``, ``restarts`` :
        GPU hours; starts after the first, a job. ``rho`` : [jobs], in order of arrival; ``each`` : their JCT.
    """

    jct: Seconds
    p99: Seconds
    makespan: Seconds
    worst: float
    late: float
    gpu_h: float
    restarts: float
    rho: Float
    each: Float


class Runs:
    """Runs by cell, from the store where it has them; ``only`` those with ``measured``."""

    def __init__(self, data: Path, store: Path, *, measured: bool = False) -> None:
        self.data, self.store, self.measured = data, store, measured
        self.found: dict[str, dict[str, Lasted]] = {}
        for line in map(json.loads, store.read_text().splitlines() if store.exists() else ()):
            if line["code"] == CODE:
                self.found[line["cell"]] = {name: Lasted(**job) for name, job in line["jobs"].items()}

    def jobs(self, cell: Cell) -> dict[str, Lasted]:
        """Each job of a run, in order of arrival."""
        key = json.dumps(dataclasses.asdict(cell), sort_keys=True)
        if key not in self.found:
            if self.measured:
                raise KeyError(key)
            self.found[key] = simulated(self.data, cell)
            self.store.parent.mkdir(parents=True, exist_ok=True)
            jobs = {name: dataclasses.asdict(job) for name, job in self.found[key].items()}
            with self.store.open("a") as file:
                file.write(json.dumps({"code": CODE, "cell": key, "jobs": jobs}) + "\n")
        return self.found[key]

    def figures(self, cell: Cell) -> Figures:
        """A run's figures, against the reference with the jobs' true curves, which no policy influences."""
        if cell.policy.startswith("published:"):
            return self.published(cell)
        jobs = self.jobs(cell)
        return replace(
            self.against(cell, {name: job.jct for name, job in jobs.items()}),
            gpu_h=sum(job.gpu_s for job in jobs.values()) / 3600,
            restarts=sum(job.restarts for job in jobs.values()) / len(jobs),
        )

    def published(self, cell: Cell) -> Figures:
        """The artifact's own results of a policy."""
        name = f"{cell.policy.partition(':')[2]}-{cell.load}"
        file = self.data / "pollux" / "loads" / "results" / name / "summary.json"
        return self.against(cell, json.loads(file.read_text())["jcts"][f"workload-{cell.number}"])

    def against(self, cell: Cell, lasted: Mapping[str, Seconds]) -> Figures:
        """Figures of completion times."""
        true = self.jobs(Cell(policy=OURS, number=cell.number, load=cell.load, limit=cell.limit))
        jct = np.array([lasted[name] for name in true], dtype=np.float64)
        rho = jct / np.array([max(job.t_reference, job.t_alone + ROUND_S) for job in true.values()])
        return Figures(
            jct=float(jct.mean()),
            p99=float(np.percentile(jct, 99)),
            makespan=float((np.array([job.arrival for job in true.values()]) + jct).max()),
            worst=float(rho.max()),
            late=float((rho > LATE).mean()),
            gpu_h=np.nan,
            restarts=np.nan,
            rho=rho,
            each=jct,
        )


@lru_cache(maxsize=4)
def _read(data: Path, number: int, load: float, limit: int, kind: str) -> Workload:
    archive = data / "pollux" / "pollux-osdi21.tar.gz"
    options = {"limit": str(limit)} | {"rigid": {}, "known": {"elastic": "yes"}}.get(
        kind, {"elastic": "yes", "learned": "yes"}
    )
    if load == 1.0:
        return load_workload(str(archive), format="pollux", member=MEMBER.format(number), **options)
    file = data / "pollux" / "loads" / f"workloads-{load}" / f"workload-{number}.csv"
    return load_workload(str(file), format="pollux", profiles=str(archive), **options)


def simulated(data: Path, cell: Cell, policy: Policy | None = None) -> dict[str, Lasted]:
    """Run a cell. A start costs 30 s, of rigid jobs too."""
    workload = _read(data, cell.number, cell.load, cell.limit, cell.kind)
    if cell.wrong == "noise":
        workload = noisier(workload, liars(cell, len(workload.apps)))
    elif cell.wrong:
        policy = _Misled(backfill=False, factor=told(cell, len(workload.apps)))
    plan = Plan(
        workload=workload,
        cluster=CLUSTER,
        policies=[(cell.policy, policy) if policy else cell.policy],
        settings={"lease_s": str(ROUND_S), "container_s": str(START_S - LOAD_S if cell.kind == "rigid" else START_S)},
    )
    (one,) = plan.runs()
    fold = Fold()
    one.simulation.run(fold.add)
    apps = {app.name: app for app in fold.result().apps}
    return {
        app.name: Lasted(
            jct=done.jct,
            gpu_s=done.gpu_seconds,
            restarts=done.restarts,
            t_reference=done.t_reference,
            t_alone=done.t_alone,
            arrival=done.arrival,
        )
        for app in workload.apps
        for done in [apps[app.name]]
    }


# ---- wrong estimates ------------------------------------------------------------------------------------------------


def liars(cell: Cell, jobs: int) -> Bool:
    """[jobs], true for every tenth job in order of arrival, from that of the draw on."""
    return np.arange(jobs) % 10 == cell.seed


def told(cell: Cell, jobs: int) -> Float:
    """[jobs], what each job's remaining time is multiplied with before a policy sees it."""
    if cell.wrong == "tenfold":
        return np.where(liars(cell, jobs), 0.1, 1.0)
    return np.random.default_rng(cell.seed).uniform(0.5, 1.5, jobs)


def noisier(workload: Workload, who: Bool) -> Workload:
    """The workload whose jobs report ten times their noise where ``who`` says so, and train as they did."""
    apps, profiles = list(workload.apps), {profile.name: profile for profile in workload.profiles}
    for i in np.flatnonzero(who):
        (job,) = apps[i].jobs
        regimes = tuple(replace(regime, batch=regime.batch + NOISY) for regime in job.regimes)
        apps[i] = replace(apps[i], jobs=(replace(job, regimes=regimes),))
        old = profiles[job.model]
        profiles[job.model] = replace(
            old,
            curves={(kind, level and level + NOISY): curve for (kind, level), curve in old.curves.items()},
            iterations={(level + NOISY, *where): found for (level, *where), found in old.iterations.items()},
        )
    return replace(workload, apps=tuple(apps), profiles=tuple(profiles.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Misled(ElasticFinish):
    """``elastic_finish``, where it sees wrong remaining times. Numbers of jobs are those of their apps, in order of arrival."""

    factor: Float

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        seconds = snapshot.job_seconds * self.factor[snapshot.job_id][:, None, None]  # type: ignore[operator]
        return ElasticFinish.__call__(self, replace(snapshot, job_seconds=seconds), bench)


# ---- the bound ------------------------------------------------------------------------------------------------------


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
    simulated(data, Cell(policy="pollux", number=number), policy)
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


# ---- the fit --------------------------------------------------------------------------------------------------------


def fit_errors(data: Path) -> list[tuple[str, int, float, float]]:
    """Of each application: points, and mean error of an iteration's time: of a held-out third, of over 16 GPUs from up to 16."""
    out = []
    for name, app in sorted(applications(data / "pollux" / "pollux-osdi21.tar.gz").items()):
        rows = [
            (sum(place), len(place), local, max(step - sync, 1e-6), step)
            for place, points in app.times.items()
            for local, step, sync in points
        ]
        gpus, machines, local, grad_s, step_s = np.array(rows).T
        all_of = Iterations(gpus=gpus, machines=machines, local=local, grad_s=grad_s, iteration_s=step_s)
        order = np.random.default_rng(0).permutation(len(rows))
        third, rest = np.split(order, [len(rows) // 3])
        cases = (rest, third), (np.flatnonzero(gpus <= 16), np.flatnonzero(gpus > 16))
        errors = []
        for seen, other in cases:
            found, held = fit(all_of.of(seen)), all_of.of(other)
            told = found.iteration(held.gpus, held.machines, held.local, 0.0)
            errors.append(float(np.abs(told / held.iteration_s - 1.0).mean()))
        out.append((name, len(rows), *errors))
    return out


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(runs: Runs, numbers: Iterable[int] = WORKLOADS, *, limit: int = 0, draws: int = DRAWS) -> dict[str, str]:
    """The page's tables by name; of ``measured`` runs alone where the store lacks a cell."""
    where = tuple(numbers)
    return {
        "known": _known(runs, where, limit),
        "loads": _loads(runs, where, limit),
        "rigid": _rigid(runs, where, limit),
        "learned": _learned(runs, where, limit),
        "wrong": _wrong(runs, where, limit, draws),
    }


def _rows(runs: Runs, cells: Iterable[Cell]) -> list[tuple[Cell, Figures]]:
    out = []
    for cell in cells:
        try:
            out.append((cell, runs.figures(cell)))
        except KeyError:
            if not runs.measured:
                raise
    return out


def _mean(rows: Iterable[tuple[Cell, Figures]]) -> str:
    return f"{np.mean([f.jct for _, f in rows]):,.0f}"


def _known(runs: Runs, numbers: tuple[int, ...], limit: int) -> str:
    ours = _rows(runs, (Cell(policy=OURS, number=n, limit=limit) for n in numbers))
    theirs = {
        name: [runs.figures(Cell(policy=f"published:{name}", number=c.number, limit=limit)) for c, _ in ours]
        for name in ("tiresias", "pollux")
    }
    rows = [
        [str(c.number), f"{t.jct:,.0f}", *_cells(p)[:2], f"{p.worst:.2f}", *_cells(f)]
        for (c, f), t, p in zip(ours, theirs["tiresias"], theirs["pollux"])
    ]
    means = [f"{np.mean([f.jct for f in fs]):,.0f}" for fs in theirs.values()]
    rows.append(["mean", *means, "", "", _mean(ours), *[""] * 6])
    head = [
        "workload",
        "Tiresias, published: JCT s",
        "Pollux, published: JCT s",
        "its makespan s",
        "its worst",
        *HEAD,
    ]
    return marker("pollux-known", f"{SCRIPT} {OURS}") + table(head, rows)


HEAD = ("JCT s", "makespan s", "p99 s", "worst", "late %", "GPU h", "restarts a job")


def _cells(f: Figures) -> list[str]:
    return [
        *(f"{x:,.0f}" for x in (f.jct, f.makespan, f.p99)),
        f"{f.worst:.2f}",
        f"{100 * f.late:.1f}",
        f"{f.gpu_h:,.0f}",
        f"{f.restarts:.1f}",
    ]


def _loads(runs: Runs, numbers: tuple[int, ...], limit: int) -> str:
    rows = []
    for load in (0.5, 1.5):
        ours = _rows(runs, (Cell(policy=OURS, number=n, load=load, limit=limit) for n in numbers))
        theirs = [runs.figures(replace(c, policy="published:pollux")) for c, _ in ours]
        rows += [
            [f"{load}", str(c.number), f"{p.jct:,.0f}", *_cells(f)[:5]] for (c, f), p in zip(ours, theirs, strict=True)
        ]
        rows.append([f"{load}", "mean", f"{np.mean([p.jct for p in theirs]):,.0f}", _mean(ours), *[""] * 4])
    return marker("pollux-loads", f"{SCRIPT} {OURS} --load 0.5") + table(
        ["load", "workload", "Pollux, published: JCT s", *HEAD[:5]], rows
    )


def _summary(runs: Runs, policy: str, kind: str, numbers: tuple[int, ...], limit: int) -> list[str] | None:
    """Mean JCT of each workload and of all, the mean makespan, the worst of all and the mean share of late jobs."""
    rows = _rows(runs, (Cell(policy=policy, number=n, kind=kind, limit=limit) for n in numbers))
    if len(rows) < len(numbers):
        return None
    every = [f for _, f in rows]
    return [
        policy.replace(":backfill=false", ""),
        kind,
        *(f"{f.jct:,.0f}" for f in every),
        _mean(rows),
        f"{np.mean([f.makespan for f in every]):,.0f}",
        f"{max(f.worst for f in every):.2f}",
        f"{100 * np.mean([f.late for f in every]):.1f}",
    ]


def _rigid(runs: Runs, numbers: tuple[int, ...], limit: int) -> str:
    rows = [row for policy in RIGID if (row := _summary(runs, policy, "rigid", numbers, limit))]
    head = ["policy", "jobs", *map(str, numbers), "mean JCT s", "mean makespan s", "worst", "late %"]
    return marker("pollux-rigid", f"{SCRIPT} {' '.join(RIGID)} --kind rigid") + table(head, rows)


def _learned(runs: Runs, numbers: tuple[int, ...], limit: int) -> str:
    cells = (Cell(policy=policy, number=n, kind="learned", limit=limit) for policy in (POLLUX, OURS) for n in numbers)
    rows = [
        [
            c.policy.partition(":")[0],
            str(c.number),
            f"{runs.figures(replace(c, policy='published:pollux', kind='known')).jct:,.0f}",
            *_cells(f),
        ]
        for c, f in _rows(runs, cells)
    ]
    for policy in (POLLUX, OURS):
        if len(
            found := _rows(runs, (Cell(policy=policy, number=n, kind="learned", limit=limit) for n in numbers))
        ) == len(numbers):
            theirs = [runs.figures(Cell(policy="published:pollux", number=n, limit=limit)).jct for n in numbers]
            rows.append([policy.partition(":")[0], "mean", f"{np.mean(theirs):,.0f}", _mean(found), *[""] * 6])
    return marker("pollux-learned", f"{SCRIPT} {POLLUX} {OURS} --kind learned") + table(
        ["policy", "workload", "Pollux, published: JCT s", *HEAD], rows
    )


def _wrong(runs: Runs, numbers: tuple[int, ...], limit: int, draws: int) -> str:
    """Figures with wrong estimates, mean and largest over draws, beside those with the truth."""
    rows = []
    for n in [n for n in (6, 1) if n in numbers]:
        for wrong in WRONG:
            kind = "learned" if wrong == "noise" else "known"
            cells = [
                Cell(policy=OURS, number=n, kind=kind, wrong=wrong, seed=seed, limit=limit) for seed in range(draws)
            ]
            found = _rows(runs, [replace(cells[0], wrong="", seed=0), *cells])
            if len(found) < 2 or found[0][0].wrong:
                continue
            (_, truth), *told_wrong = found
            others, theirs = [], []
            for cell, f in told_wrong:
                who = liars(cell, len(f.rho)) if wrong != "remaining" else np.zeros(len(f.rho), dtype=bool)
                others.append((f.rho[~who].max(), truth.rho[~who].max()))
                theirs.append(f.each[who].mean() / truth.each[who].mean() if who.any() else np.nan)
            rows.append(
                [
                    str(n),
                    wrong,
                    str(len(others)),
                    f"{truth.jct:,.0f}",
                    f"{np.mean([f.jct for _, f in told_wrong]):,.0f}",
                    f"{np.mean([b for _, b in others]):.2f}",
                    f"{np.mean([a for a, _ in others]):.2f}",
                    f"{max(a for a, _ in others):.2f}",
                    f"{max(a / b for a, b in others):.2f}",
                    "" if np.isnan(theirs[0]) else f"{np.mean(theirs):.2f}",
                ]
            )
    head = [
        "workload",
        "wrong",
        "draws",
        "JCT s, truth",
        "JCT s",
        "worst of others, truth",
        "worst of others",
        "its largest",
    ]
    head += ["largest over truth", "JCT of those who lie over truth"]
    return marker("pollux-wrong", f"{SCRIPT} {OURS} --wrong remaining --workloads 6,1") + table(head, rows)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+")
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--workloads", default=",".join(map(str, WORKLOADS)))
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--kind", choices=("rigid", "known", "learned"), default="known")
    parser.add_argument("--wrong", choices=WRONG, default="")
    given = parser.parse_args()
    numbers = [int(number) for number in given.workloads.split(",")]
    if given.policies == ["bound"]:
        for jobs, part, cpu_s in bound_of(given.data, numbers[0]):
            print(f"| {jobs} jobs | {part:.1%} | {1e3 * cpu_s:.1f} ms |")
        return
    if given.policies == ["fit"]:
        for name, points, held_out, wide in fit_errors(given.data):
            print(f"| {name} | {points} | {held_out:.1%} | {wide:.1%} |")
        return
    runs = Runs(given.data, given.store)
    print("| policy | workload | draw | " + " | ".join(HEAD) + " |")
    for policy in given.policies:
        for number in numbers:
            for seed in range(DRAWS if given.wrong else 1):
                cell = Cell(
                    policy=policy, number=number, load=given.load, kind=given.kind, wrong=given.wrong, seed=seed
                )
                print(f"| {policy} | {number} | {seed} | " + " | ".join(_cells(runs.figures(cell))) + " |", flush=True)


if __name__ == "__main__":
    main()
