"""Gavel's policies as users run them: the program and what it leaves over, on jobs of which no two are alike; asserts no seconds.

    python benchmarks/bench_whole.py [--quick] [--simulations] [--sharing] [--scarce]

- Whole policies (program, leftovers and allocation of them) on 2,048 jobs, alike (26 models) and all distinct, on three and seven
  types, against cvxpy's bare program with its fastest conic solver; objective equal or better, ratio of times.
- 10,000 jobs, all distinct: weights alike and over four orders of magnitude.
- ``--scarce``: pools of 6 to 57 % of all GPUs that jobs want, odd sizes, barred types; next to the bare program by HiGHS.
- ``--sharing``: water filling with pairs of 512 jobs on one GPU, each with rates of its own alone and next to each other job.
- ``--simulations``: whole simulations of ossp and allox on generated workloads.

Rates are drawn. CPU seconds of one thread, medians of five (Themis) and three (cvxpy).
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator
from functools import partial

import highspy
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from bench_gavel import GANG_PART, GANGS, Instance, new_jobs, textbook, timed, work_left
from themis.model.units import Float
from themis.optimize.shares.pair_filling import water_fill_paired
from themis.optimize.shares.pairs import PairRates
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.api import make_policy
from themis.policies.gavel.finish_time_shares import JobsProgress, finish_time_fairness
from themis.policies.gavel.makespan_shares import min_makespan
from themis.policies.gavel.max_min import max_min, max_min_water_filling, normalised_unit
from themis.policies.gavel.total import best_total, cost_adjusted, in_order, relative
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.library import load_book
from themis.traces.profiles.presets import load_cluster

Run = Callable[[], Shares]
QUEUES = (("460", "128", "32x4@V100"), ("900", "256", "64x4@V100"))


def drawn(jobs: int, types: int, *, alike: bool, seed: int = 0) -> Instance:
    """Gangs of 1 to 8 on three GPUs for four jobs; ``alike`` : 26 models' rates, else each job's own. Weights from 0.01 to 100."""
    rng = np.random.default_rng(seed)
    models = 26 if alike else jobs
    alone = rng.uniform(1, 50, (models, 1)) * rng.uniform(0.15, 1.0, (models, types)) * np.linspace(1, 0.4, types)
    gpus = np.array(GANGS)[rng.choice(4, size=jobs, p=GANG_PART)]
    rate = alone[rng.integers(26, size=jobs) if alike else np.arange(jobs)] * gpus[:, None] ** 0.9
    problem = Problem.of(rate, gpus, np.full(types, np.floor(jobs * 0.75 / types)))
    minutes = 10 ** np.where(rng.random(jobs) < 0.8, rng.uniform(1.5, 3, jobs), rng.uniform(3, 4, jobs))
    work, done, isolated = 60 * minutes * rate[:, 0], rng.uniform(0.0, 0.9, jobs), problem.isolated_rate()
    so_far = done * work / isolated
    progress = JobsProgress(
        left=(1 - done) * work,
        elapsed=so_far * rng.uniform(0.8, 1.2, jobs),
        isolated_elapsed=so_far,
        isolated_rate=isolated,
    )
    none = PairRates(model=np.full(jobs, -1), rate=np.zeros((0, 0, types)))
    return Instance(problem=problem, progress=progress, pairs=none, weight=10 ** rng.uniform(-2, 2, jobs))


def policies(i: Instance) -> Iterator[tuple[str, Run, bool]]:
    """(Goal as ``bench_gavel.textbook`` knows it, whole policy, whether more is better)."""
    ones = np.ones(i.problem.jobs)
    yield "max_min", lambda: max_min(i.problem, ones), True
    yield "finish_time", lambda: finish_time_fairness(i.problem, i.progress, ones), False
    yield "finish_time, new jobs", lambda: finish_time_fairness(i.problem, new_jobs(i), ones), False
    yield "makespan", lambda: min_makespan(i.problem, i.progress.left), False
    yield "makespan, a day each", lambda: min_makespan(i.problem, work_left(i, "a day each")), False


def against_cvxpy(jobs: int, kinds: list[tuple[bool, int]]) -> None:
    """Whole policies against the bare program."""
    print("\n| whole policy | jobs | types | Themis | gap | cvxpy's bare program | solver | ratio | objective |")
    print("|---|---|---|---|---|---|---|---|---|")
    for alike, types in kinds:
        i = drawn(jobs, types, alike=alike)
        for goal, run, larger in policies(i):
            found, mine = run(), timed(run)
            value, bare, solver = textbook(i, goal)
            highspy.Highs.resetGlobalScheduler(True)  # cvxpy's HiGHS may have started threads
            better = found.objective / value - 1 if larger else 1 - found.objective / value
            kind = "26 models" if alike else "distinct"
            print(
                f"| {goal} | {jobs:,} {kind} | {types} | {mine:.3f} | {found.gap:.0e} | {bare:.3f} | {solver} "
                f"| {bare / mine:.1f} | {better:+.0e} |",
                flush=True,
            )


def large(jobs: int, kinds: list[tuple[bool, int]]) -> None:
    """A new decision of every policy, leftovers included."""
    print("\n| whole policy, leftovers included | jobs | types | s | gap |\n|---|---|---|---|---|")
    for alike, types in kinds:
        i = drawn(jobs, types, alike=alike)
        p, w = i.problem, i.weight
        cost: Float = np.array([3.0, 1.5, 0.5, 1.0, 2.0, 2.5, 0.7])[:types]
        runs: dict[str, Run] = {name: run for name, run, _ in policies(i)} | {
            "max_min, weights 0.01 to 100": lambda p=p, w=w: max_min(p, w),
            "water filling, weights 0.01 to 100": lambda p=p, w=w: max_min_water_filling(p, w),
            "finish_time, weights 0.01 to 100": lambda p=p, w=w, i=i: finish_time_fairness(p, i.progress, w),
            "fifo_hetero": lambda p=p: in_order(p, np.arange(p.jobs)),
            "max_throughput": lambda p=p: best_total(p, relative(p)),
            "min_cost": lambda p=p, cost=cost: cost_adjusted(p, cost),
        }
        kind = "26 models" if alike else "distinct"
        for name, run in runs.items():
            print(f"| {name} | {jobs:,} {kind} | {types} | {timed(run, 3):.3f} | {abs(run().gap):.0e} |", flush=True)


def scarce_pools(jobs: int, types: int, seed: int) -> tuple[Problem, Float, Float]:
    """Distinct jobs of odd sizes, one type in ten barred, pools of 6 to 57 % of all GPUs that jobs want; work left; weights."""
    rng = np.random.default_rng(seed)
    alone = rng.uniform(1, 50, (jobs, 1)) * rng.uniform(0.15, 1.0, (jobs, types)) * np.linspace(1, 0.4, types)
    sizes, part = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16], [0.4, 0.15, 0.05, 0.15, 0.03, 0.05, 0.02, 0.1, 0.03, 0.02]
    gpus = rng.choice(sizes, jobs, p=part)
    rate = alone * gpus[:, None] ** 0.9
    rate[rng.random(rate.shape) < 0.1] = 0.0
    problem = Problem.of(rate, gpus, np.floor(gpus.sum() * rng.uniform(0.06, 0.57, types) / types) + 16)
    fastest = np.where(problem.active, rate.max(1), 1.0)  # few types may all be barred
    return problem, fastest * 60 * 10 ** rng.uniform(1.5, 4, jobs), 10 ** rng.uniform(-2, 2, jobs)


def bare(p: Problem, need: Float) -> tuple[float, float]:
    """(CPU seconds, largest t) of the bare program: every job gets ``need`` [J] times t. HiGHS with its defaults, by scipy."""
    types, rows = p.types, np.flatnonzero(p.active)
    started = time.process_time()
    job, kind = np.repeat(np.arange(len(rows)), types), np.tile(np.arange(types), len(rows))
    cell, one = np.arange(len(job)), np.ones(len(job))
    row = np.concatenate([job, len(rows) + job, 2 * len(rows) + p.pool[kind], np.arange(len(rows))])
    column = np.concatenate([cell, cell, cell, np.full(len(rows), len(cell))])
    value = np.concatenate(
        [-(p.rate[rows] / need[rows, None]).ravel(), one, p.gpus[rows][job].astype(np.float64), np.ones(len(rows))]
    )
    side = np.concatenate([np.zeros(len(rows)), np.ones(len(rows)), p.workers])
    gain = np.append(np.zeros(len(cell)), -1.0)
    found = linprog(gain, A_ub=coo_array((value, (row, column))).tocsr(), b_ub=side, method="highs")
    return time.process_time() - started, -float(found.fun)


def scarce(jobs: int, types: int, seeds: int) -> None:
    """Leftovers where pools are scarce: the worst of several instances, next to the program alone and to bare HiGHS."""
    print(
        "\n| scarce pools, whole policy | jobs | types | worst s | median s | program alone, worst s | gap | bare HiGHS, worst s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in ("makespan", "max_min, weights 0.01 to 100"):
        whole, alone, gaps, highs = [], [], [], []
        for seed in range(seeds):
            p, left, weight = scarce_pools(jobs, types, seed)
            run = partial(min_makespan, p, left) if name == "makespan" else partial(max_min, p, weight)
            found = run()
            gaps.append(abs(found.gap))
            whole.append(timed(run, 1))
            alone.append(timed(partial(run, fill=False), 1))
            need = left / found.objective if name == "makespan" else weight * normalised_unit(p) * found.objective
            spent, level = bare(p, need)
            assert abs(level - 1.0) < 1e-6, f"seed {seed}: the bare program reaches {level} times our objective"
            highs.append(spent)
        print(
            f"| {name} | {jobs:,} distinct | {types} | {max(whole):.3f} | {np.median(whole):.3f} | {max(alone):.3f} "
            f"| {max(gaps):.0e} | {max(highs):.3f} |",
            flush=True,
        )


def sharing(jobs: int, kinds: list[tuple[int, bool]]) -> None:
    """Water filling over jobs and pairs, all distinct; ``kinds`` : (types, weights over four orders of magnitude or alike)."""
    print("\n| water filling with sharing | types | weights | s | gap | columns |\n|---|---|---|---|---|---|")
    for types, wide in kinds:
        rng = np.random.default_rng(0)
        alone = rng.uniform(1, 50, (jobs, 1)) * rng.uniform(0.15, 1.0, (jobs, types)) * np.linspace(1, 0.4, types)
        beside = alone[:, None, :] * rng.uniform(0.3, 1.0, (jobs, jobs, types))
        workers = np.full(types, np.floor(jobs * 0.75 / types))
        problem = Problem.of(alone, np.ones(jobs, dtype=np.int64), workers)
        pairs = PairRates(model=np.arange(jobs), rate=beside)
        unit = normalised_unit(problem) * (10 ** rng.uniform(-2, 2, jobs) if wide else 1.0)
        fill, started = partial(water_fill_paired, problem, pairs, unit), time.process_time()
        found = fill()
        seconds = time.process_time() - started if wide else timed(fill, 3)
        gap = found.bound / float((found.throughput / unit).min()) - 1
        weights = "0.01 to 100" if wide else "alike"
        print(
            f"| {jobs:,} distinct | {types} | {weights} | {seconds:.2f} | {abs(gap):.0e} | {found.columns:,} |",
            flush=True,
        )


def simulations(sizes: tuple[tuple[str, str, str], ...]) -> None:
    """Whole simulations, log not written; its hash shows whether two versions decide alike."""
    print("\n| simulation | jobs | GPUs | CPU s | decisions' hash |\n|---|---|---|---|---|")
    for policy in ("ossp", "allox"):
        for jobs, gpus, cluster in sizes:
            simulation = Simulation(
                workload=load_workload("shockwave_jobs", seed=0, jobs=jobs, gpus=gpus),
                cluster=load_cluster(cluster),
                book=load_book("gavel"),
                policy_name=policy,
                policy=make_policy(policy),
            )
            digest = hashlib.sha256()
            began = time.process_time()
            simulation.run(lambda at, record, d=digest: d.update(f"{at!r}{record!r}".encode()))
            print(
                f"| {policy} | {jobs} | {gpus} | {time.process_time() - began:.1f} | {digest.hexdigest()[:12]} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, without cvxpy")
    parser.add_argument("--simulations", action="store_true", help="ossp and allox alone")
    parser.add_argument("--sharing", action="store_true", help="space sharing alone")
    parser.add_argument("--scarce", action="store_true", help="scarce pools alone")
    given = parser.parse_args()
    if given.quick:
        large(220, [(False, 3)])
        scarce(220, 3, 1)
        sharing(40, [(3, False)])
        return
    if given.sharing:
        sharing(512, [(3, False), (7, False), (3, True)])
        return
    if given.scarce:
        scarce(2048, 7, 8)
        return
    if not given.simulations:
        kinds = [(False, 7), (False, 3), (True, 7), (True, 3)]
        against_cvxpy(2048, kinds)
        scarce(2048, 7, 8)
        large(10_000, kinds[:3])
    simulations(QUEUES)


if __name__ == "__main__":
    main()
