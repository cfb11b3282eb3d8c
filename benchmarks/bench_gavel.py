"""How fast Gavel's policies are solved, as tables and ratios; asserts no seconds.

    python benchmarks/bench_gavel.py [--quick] [--sharing] [--simulator]

(a) 128, 512 and 2,048 jobs on a quarter as many GPUs of each of three types, against the textbook program in cvxpy with
    its fastest conic solver that reaches the optimum: objective equal or better, ratio of times.
(b) Water filling and hierarchies of 64 entities, the same jobs.
(c) Space sharing: pairs of 512 and 1,024 single-GPU jobs, and the memory that it takes.
(d) 10,000 jobs on seven types, every policy anew.
(e) The simulator on Gavel's continuous trace until jobs 300-599 are done, and the published one in the same run: THEMIS_PEERS names
    the folder with gavel/, a checkout of stanford-futuredata/gavel (commit c4fa400).

Rates are measured ones (Gavel's table) where ../shared/data or THEMIS_DATA has them, else drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

from themis.model.units import Float, Int
from themis.optimize.shares.pair_filling import water_fill_paired
from themis.optimize.shares.pairs import PairRates, PairShares, highest_level_paired, paired_throughput
from themis.optimize.shares.problem import Need, Problem
from themis.policies.gavel.finish_time_shares import JobsProgress, finish_time_fairness, needed
from themis.policies.gavel.hierarchy import Entity, SharingRule, hierarchical
from themis.policies.gavel.makespan_shares import min_makespan
from themis.policies.gavel.max_min import max_min, max_min_water_filling, normalised_unit
from themis.policies.gavel.pair_deadlines import keep_deadlines_paired
from themis.policies.gavel.pair_hierarchy import hierarchical_paired
from themis.policies.gavel.pair_totals import best_total_paired
from themis.policies.gavel.total import best_total, cost_adjusted, in_order, precedence, relative

TABLE = Path(os.environ.get("THEMIS_DATA", Path(__file__).parents[2] / "shared" / "data")) / "gavel" / "tables"
TYPES = ("v100", "p100", "k80")
GANGS, GANG_PART = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)
SOLVERS = ("CLARABEL", "SCS", "HIGHS")
RULES = {
    "64 entities, fairness": (SharingRule.FAIRNESS,),
    "half of them fifo": (SharingRule.FAIRNESS, SharingRule.FIFO),
    "a third finish-time fairness": (SharingRule.FAIRNESS, SharingRule.FIFO, SharingRule.FINISH_TIME_FAIRNESS),
}
CONTINUOUS = "sim_cases/cont1000_single_lam2100.trace"
SIMULATED = ("max_min_fairness:resolve_interval=1920", "max_min_fairness")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """Jobs with their work, and pair rates of their models."""

    problem: Problem
    progress: JobsProgress
    pairs: PairRates
    weight: Float


def models() -> tuple[Float, Float]:
    """Rates alone [A, gang, K] and beside another [A, A, K]."""
    if not TABLE.is_dir():
        rng = np.random.default_rng(0)
        alone = rng.uniform(1, 50, (26, 1, 1)) * np.sort(rng.uniform(0.15, 1.0, (26, 1, 3)), axis=2)[:, :, ::-1]
        slower = rng.uniform(0.3, 1.0, (26, 26, 3))
        return alone * np.array([1.0, 1.9, 3.6, 6.8])[None, :, None], alone[:, :1, :] * slower
    table = json.loads((TABLE / "simulation_throughputs.json").read_text())
    names = sorted({key.rsplit(", ", 1)[0] for key in table["v100"]})

    def look(gpu: str, name: str, gangs: int, other: str) -> float:
        found = table[gpu].get(f"{name}, {gangs})", {}).get(other, 0.0)
        return float(found[0] if isinstance(found, list) else found)

    alone = np.array([[[look(t, n, g, "null") for t in TYPES] for g in GANGS] for n in names])
    beside = np.array([[[look(t, n, 1, f"{m}, 1)") for t in TYPES] for m in names] for n in names])
    return alone, beside


def instance(jobs: int, seed: int, *, gangs: bool, types: int = 3) -> Instance:
    """Jobs as in Gavel §7: durations of minutes to days on a V100, models at random; a quarter as many GPUs a type."""
    rng = np.random.default_rng(seed)
    alone, beside = models()
    model = rng.integers(len(alone), size=jobs)
    size = rng.choice(4, size=jobs, p=GANG_PART) if gangs else np.zeros(jobs, dtype=np.int64)
    size = np.where(alone[model, size, 0] > 0, size, 0)
    rate, workers = alone[model, size], np.full(3, jobs / 4)
    if types > 3:
        more = rng.uniform(0.4, 2.0, (len(alone), types - 3))
        rate, workers = np.hstack([rate, rate[:, :1] * more[model]]), np.full(types, jobs * 0.75 / types)
    gpus = np.array(GANGS)[size]
    problem = Problem.of(rate, gpus, workers)
    minutes = 10 ** np.where(rng.random(jobs) < 0.8, rng.uniform(1.5, 3, jobs), rng.uniform(3, 4, jobs))
    work, done = 60 * minutes * rate[:, 0], rng.uniform(0.0, 0.9, jobs)
    isolated = problem.isolated_rate()
    so_far = done * work / isolated
    progress = JobsProgress(
        left=(1 - done) * work,
        elapsed=so_far * rng.uniform(0.8, 1.2, jobs),
        isolated_elapsed=so_far,
        isolated_rate=isolated,
    )
    pairs = PairRates(model=np.where(gpus == 1, model, -1), rate=beside)
    return Instance(problem=problem, progress=progress, pairs=pairs, weight=rng.choice([1.0, 2.0, 5.0], jobs))


def textbook(i: Instance, goal: str) -> tuple[float, float, str]:
    """(objective, seconds, solver) of the best of cvxpy's conic solvers, its median of three."""
    tried = [found for found in (_solved(i, goal, solver) for solver in SOLVERS) if found is not None]
    assert tried, f"no conic solver solved {goal}"
    first = tried[0][0]
    value, seconds, solver = min((f for f in tried if abs(f[0] - first) <= 1e-4 * abs(first)), key=lambda f: f[1])
    again = [found[1] for found in (_solved(i, goal, solver) for _ in range(2)) if found is not None]
    return value, median([seconds, *again]), solver


def _solved(i: Instance, goal: str, solver: str) -> tuple[float, float, str] | None:
    """One solve, model building included; None where the solver does not reach the optimum."""
    import cvxpy as cp  # the one reference that needs it; other benchmarks draw their instances from here

    started = time.process_time()
    p = i.problem
    x = cp.Variable(p.rate.shape, nonneg=True)
    rate = cp.sum(cp.multiply(p.rate, x), axis=1)
    valid = [cp.sum(x, axis=1) <= 1, p.gpus.astype(float) @ x <= p.workers]
    if goal == "max_min":
        objective = cp.Maximize(cp.min(cp.multiply(1 / normalised_unit(p), rate)))
    elif "makespan" in goal:
        objective = cp.Maximize(cp.min(cp.multiply(1 / work_left(i, goal), rate)))
    else:
        progress = new_jobs(i) if "new" in goal else i.progress
        alone = progress.alone()
        wait = cp.multiply(progress.left / alone, cp.inv_pos(rate))
        objective = cp.Minimize(cp.max(progress.elapsed / alone + wait))
    program = cp.Problem(objective, valid)
    try:
        program.solve(solver=solver, **({"max_iters": 2_000} if solver == "SCS" else {}))
    except cp.error.SolverError:
        return None
    if program.status != "optimal":
        return None
    seconds = time.process_time() - started
    return _score(i, goal, np.asarray(x.value)), seconds, solver


def _score(i: Instance, goal: str, x: Float) -> float:
    """Objective of shares after they are made valid."""
    p = i.problem
    x = np.clip(x, 0.0, 1.0)
    x = x / np.maximum(x.sum(axis=1, keepdims=True), 1.0)
    x = x / max(float((p.usage(x) / p.workers).max()), 1.0)
    rate = p.throughput(x)
    if goal == "max_min":
        return float((rate / normalised_unit(p)).min())
    if "makespan" in goal:
        return float((work_left(i, goal) / rate).max())
    return float((new_jobs(i) if "new" in goal else i.progress).rho(rate).max())


def new_jobs(i: Instance) -> JobsProgress:
    """All jobs arrive now: then the cluster sets the worst rho, not one job that is late already."""
    none = np.zeros(i.problem.jobs)
    return JobsProgress(
        left=i.progress.left, elapsed=none, isolated_elapsed=none, isolated_rate=i.progress.isolated_rate
    )


def work_left(i: Instance, goal: str) -> Float:
    """Work left: with durations as drawn one long job sets the makespan; with about a day for each, the cluster does."""
    if goal == "makespan":
        return i.progress.left
    return i.problem.fastest * np.random.default_rng(0).uniform(43_200, 86_400, i.problem.jobs)


def timed(run: Callable[[], object], repeats: int = 5) -> float:
    """Median of a few."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    return median(seconds)


def against_cvxpy(sizes: list[int]) -> None:
    print("\n(a) against the textbook program in cvxpy (CPU s of one thread; ratio: cvxpy over Themis)\n")
    print("| policy | jobs | gangs | Themis | gap | cvxpy | solver | ratio | objective |")
    print("|---|---|---|---|---|---|---|---|---|")
    for jobs in sizes:
        for gangs in (False, True):
            i = instance(jobs, 2, gangs=gangs)
            ones = np.ones(jobs)
            goals = {
                "max_min": (lambda i=i, one=ones: max_min(i.problem, one, fill=False), True),
                "makespan": (lambda i=i: min_makespan(i.problem, i.progress.left, fill=False), False),
                "makespan, a day each": (
                    lambda i=i: min_makespan(i.problem, work_left(i, "a day each"), fill=False),
                    False,
                ),
                "finish_time, new jobs": (
                    lambda i=i, one=ones: finish_time_fairness(i.problem, new_jobs(i), one, fill=False),
                    False,
                ),
                "finish_time": (
                    lambda i=i, one=ones: finish_time_fairness(i.problem, i.progress, one, fill=False),
                    False,
                ),
            }
            for goal, (run, larger) in goals.items():
                value, whole, solver = textbook(i, goal)
                found, mine = run(), timed(run, 15)
                better = found.objective / value - 1 if larger else 1 - found.objective / value
                print(
                    f"| {goal} | {jobs:,} | {'1-8' if gangs else '1'} | {mine:.4f} | {found.gap:.0e} | {whole:.3f} "
                    f"| {solver} | {whole / mine:.1f} | {better:+.1e} |",
                    flush=True,
                )


def filling(sizes: list[int]) -> None:
    print("\n(b) water filling and hierarchies (s)\n")
    print("| jobs | water filling | " + " | ".join(RULES) + " |\n|---|---|---|---|---|")
    for jobs in sizes:
        i = instance(jobs, 2, gangs=True)
        entity = np.random.default_rng(1).integers(64, size=jobs)
        row = [timed(lambda i=i: max_min_water_filling(i.problem, i.weight))]
        for rules in RULES.values():
            root = _tree(entity, rules)
            row.append(timed(lambda i=i, root=root: hierarchical(i.problem, root, i.weight, i.progress)))
        print(f"| {jobs:,} | " + " | ".join(f"{s:.3f}" for s in row) + " |", flush=True)


def _tree(entity: Int, rules: tuple[SharingRule, ...]) -> Entity:
    return Entity(
        name="root",
        jobs=np.zeros(0, dtype=np.int64),
        members=tuple(
            Entity(name=str(e), weight=1.0 + e % 3, rule=rules[e % len(rules)], jobs=np.flatnonzero(entity == e))
            for e in range(64)
        ),
    )


def space_sharing(sizes: list[int]) -> None:
    print("\n(c) space sharing, single-GPU jobs (s)\n")
    print("| jobs | pairs of jobs | policy | s | gap | columns generated | gain over no sharing | peak memory, MB |")
    print("|---|---|---|---|---|---|---|---|")
    for jobs in sizes:
        i = instance(jobs, 3, gangs=False)
        unit, left, best = normalised_unit(i.problem), i.progress.left, i.pairs.fastest(i.problem)
        found, seconds = _paired(i, lambda t, u=unit: t * u, float((best / unit).min()), np.zeros((jobs, 0)))
        value, alone = float((found.throughput / unit).min()), max_min(i.problem, np.ones(jobs), fill=False).objective
        _print_pairs(jobs, "max_min", seconds, found.bound / value - 1, found.columns, value / alone - 1)
        start = np.zeros(jobs)
        p = JobsProgress(left=left, elapsed=start, isolated_elapsed=start, isolated_rate=i.progress.isolated_rate)
        ceiling = float((p.alone() / (left / best)).min())
        found, seconds = _paired(i, needed(p, np.ones(jobs), np.ones(jobs)), ceiling, left[:, None])
        rho = float(p.rho(found.throughput).max())
        without = finish_time_fairness(i.problem, p, np.ones(jobs), fill=False).objective
        _print_pairs(jobs, "finish_time", seconds, rho * found.bound - 1, found.columns, 1 - rho / without)
        fill = partial(water_fill_paired, i.problem, i.pairs, unit)
        found, seconds = fill(), timed(fill, 3)
        value = float((found.throughput / unit).min())
        _print_pairs(jobs, "water filling", seconds, found.bound / value - 1, found.columns, value / alone - 1)
        for goal, weight in (("fifo", precedence(np.arange(jobs))), ("total", np.ones(jobs))):
            worth = weight / i.problem.fastest
            total = partial(best_total_paired, i.problem, i.pairs, worth)
            found, seconds = total(), timed(total, 3)
            value = float(worth @ found.throughput)
            alone = best_total(i.problem, weight[:, None] * relative(i.problem)).objective
            _print_pairs(jobs, goal, seconds, found.bound / value - 1, found.columns, value / alone - 1)
        required = i.problem.fastest * np.random.default_rng(jobs).uniform(0.2, 0.4, jobs)
        started = time.process_time()
        kept = keep_deadlines_paired(i.problem, i.pairs, required).kept
        worth, cost = 1 / i.problem.fastest, np.array([3.0, 1.5, 0.5])
        found = best_total_paired(i.problem, i.pairs, worth, cost, least=np.where(kept, required, 0.0))
        seconds = time.process_time() - started
        value = float(worth @ paired_throughput(i.problem, i.pairs, found.combos, found.x / cost))
        alone = cost_adjusted(i.problem, cost, required * (1 - 1e-9)).objective
        _print_pairs(jobs, "cost with deadlines", seconds, found.bound / value - 1, found.columns, value / alone - 1)
        for goal, rules in RULES.items():
            root = _tree(np.random.default_rng(1).integers(64, size=jobs), rules)
            pour = partial(hierarchical_paired, i.problem, i.pairs, root, i.weight, i.progress)
            started = time.process_time()
            found, value = pour()
            seconds = time.process_time() - started
            alone = hierarchical(i.problem, root, i.weight, i.progress).objective
            _print_pairs(jobs, goal, seconds, found.bound / value - 1, found.columns, value / alone - 1)


def crowds(sizes: list[int]) -> None:
    """Deadlines of which many must be given up: how many are kept beside how many no proof rules out."""
    print(
        "\n| jobs | each needs, of its fastest rate | deadlines kept | not ruled out | CPU s |\n|---|---|---|---|---|"
    )
    for jobs, (low, high) in product(sizes, ((0.6, 0.9), (0.8, 1.0))):
        i = instance(jobs, 1, gangs=False)
        required = i.problem.fastest * np.random.default_rng(jobs).uniform(low, high, jobs)
        started = time.process_time()
        found = keep_deadlines_paired(i.problem, i.pairs, required)
        seconds = time.process_time() - started
        print(f"| {jobs} | {low:g} to {high:g} | {found.kept.sum()} | {found.most} | {seconds:.1f} |", flush=True)


def _paired(i: Instance, need: Need, ceiling: float, alike: Float) -> tuple[PairShares, float]:
    """The level with pairs, and the median of three times."""
    run = partial(highest_level_paired, i.problem, i.pairs, need, ceiling, alike)
    return run(), timed(run, 3)


def _print_pairs(jobs: int, goal: str, seconds: float, gap: float, columns: int, gain: float) -> None:
    gap, memory = abs(gap), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {jobs:,} | {jobs * (jobs - 1) // 2:,} | {goal} | {seconds:.2f} | {gap:.0e} | {columns:,} | {gain:.1%} | {memory:.0f} |",
        flush=True,
    )


def large(jobs: int) -> None:
    print(f"\n(d) {jobs:,} jobs on seven types, solved anew, leftovers handed out (s)\n")
    i = instance(jobs, 4, gangs=True, types=7)
    p, ones = i.problem, np.ones(jobs)
    runs: dict[str, Callable[[], object]] = {
        "max_min_fairness": lambda: max_min(p, i.weight),
        "max_min_water_filling": lambda: max_min_water_filling(p, i.weight),
        "finish_time_fairness": lambda: finish_time_fairness(p, i.progress, ones),
        "makespan": lambda: min_makespan(p, i.progress.left),
        "hierarchical, 64 entities": lambda: hierarchical(
            p, _tree(np.arange(jobs) % 64, (SharingRule.FAIRNESS, SharingRule.FIFO)), ones
        ),
        "fifo_hetero": lambda: in_order(p, np.arange(jobs)),
        "max_throughput": lambda: best_total(p, relative(p)),
        "min_cost": lambda: cost_adjusted(p, np.array([3.0, 1.5, 0.5, 1.0, 2.0, 2.5, 0.7])),
    }
    print("| policy | s |\n|---|---|")
    for name, run in runs.items():
        print(f"| {name} | {timed(run, 3):.2f} |", flush=True)


def simulator(quick: bool = False) -> None:
    """The recorded trace, reading it not included."""
    if not TABLE.exists():
        print("\nNo recorded traces: set THEMIS_DATA to the folder that holds gavel/.")
        return
    sys.path.append(str(Path(__file__).parents[1] / "reproduction"))
    from gavel_runs import Cell, simulate

    print("\n| continuous trace, policy | CPU s | published / ours | mean JCT h |\n|---|---|---|---|")
    published = _published()
    if isinstance(published, str):
        print(f"| the published simulator | not run: {published} | | |")
    else:
        print(f"| the published simulator | {published['cpu_s']:.1f} | 1 | {published['mean_jct_h']:.2f} |", flush=True)
    for policy in SIMULATED:
        cell = Cell(policy=policy, workload=CONTINUOUS, first=300, last=600, table="simulation_throughputs")
        runs = [simulate(cell) for _ in range(1 if quick else 3)]
        seconds = median(run.cpu for run in runs)
        ratio = "" if isinstance(published, str) else f"{published['cpu_s'] / seconds:.1f}"
        print(f"| `{policy}` | {seconds:.1f} | {ratio} | {runs[0].mean:.2f} |", flush=True)


def _published() -> dict[str, float] | str:
    """The published simulator on the same trace in a process of its own; why it did not run where it cannot."""
    folder = Path(os.environ.get("THEMIS_PEERS", "")) / "gavel"
    if not os.environ.get("THEMIS_PEERS") or not folder.is_dir():
        return "THEMIS_PEERS names no folder with gavel/"
    if find_spec("cvxpy") is None:
        return "it needs cvxpy, which is not installed: pip install 'cvxpy>=1.5'"
    script, trace = Path(__file__).with_name("gavel_peer.py"), TABLE.parent / CONTINUOUS
    command = [sys.executable, script, folder, trace, "max_min_fairness_perf", "300", "600"]
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--sharing", action="store_true", help="(c) alone")
    parser.add_argument("--simulator", action="store_true", help="(e) alone")
    options = parser.parse_args()
    quick = options.quick
    if options.simulator:
        simulator(quick)
        return
    space_sharing([128] if quick else [512, 1024])  # first, for its peak memory is the process's
    crowds([30] if quick else [30, 60, 128, 512])
    if options.sharing:
        return
    against_cvxpy([128] if quick else [128, 512, 2048])
    filling([128] if quick else [128, 512, 2048])
    large(1_000 if quick else 10_000)
    if not quick:
        simulator()


if __name__ == "__main__":
    main()
