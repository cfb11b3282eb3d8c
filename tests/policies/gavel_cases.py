"""Problems for the tests of Gavel's policies, and the textbook program that they are compared with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from themis.model.units import Float, Int
from themis.optimize.shares.pairs import PairRates
from themis.optimize.shares.problem import Problem

PAPER = Problem.of(np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]]), np.ones(3, np.int64), np.ones(2))
"""Three jobs on one V100 and one K80 (Gavel §4.1)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One of the recorded policy cases."""

    problem: Problem
    weight: Float
    left: Float
    elapsed: Float
    pairs: PairRates | None


def load(folder: Path, name: str) -> Case:
    """Read a recorded case; types keep the file's order."""
    raw = json.loads((folder / name).read_text())
    types, jobs = list(raw["cluster_spec"]), raw["jobs"]
    rate = np.array([[j["throughputs"][t] for t in types] for j in jobs], dtype=float)
    pairs = None
    if "pairs" in raw:
        table = np.zeros((len(jobs), len(jobs), len(types)))
        for pair in raw["pairs"]:
            a, b = pair["ids"]
            for k, t in enumerate(types):
                table[a, b, k], table[b, a, k] = pair["throughputs"][t]
        pairs = PairRates(model=np.arange(len(jobs)), rate=table)
    # Not Problem.of: the recorded optima let a gang of 8 run on pools of 4 for half of the time.
    problem = Problem(
        rate=rate,
        gpus=np.array([j["scale_factor"] for j in jobs]),
        workers=np.array([raw["cluster_spec"][t] for t in types], dtype=float),
        pool=np.arange(len(types)),
    )
    columns = ("priority_weight", "num_steps_remaining", "time_since_start")
    weight, left, elapsed = (np.array([j[c] for j in jobs], dtype=float) for c in columns)
    return Case(problem=problem, weight=weight, left=left, elapsed=elapsed, pairs=pairs)


def random_problem(seed: int, jobs: int = 8, types: int = 3, *, barred: float = 0.15, alike: bool = False) -> Problem:
    """Gangs of 1 to 4 on pools of 4 to 8, some barred from some types; ``alike`` draws the rates from three models."""
    rng = np.random.default_rng(seed)
    rate = rng.uniform(0.2, 5.0, (jobs, types)) * rng.uniform(0.1, 10.0, (jobs, 1))
    if alike:
        rate = rate[rng.integers(min(3, jobs), size=jobs)]
    rate = np.where(rng.random((jobs, types)) < barred, 0.0, rate)
    rate[:, 0] = np.where(rate.any(axis=1), rate[:, 0], 1.0)
    gpus = rng.choice([1, 1, 2, 4], size=jobs)
    return Problem.of(rate, gpus, rng.integers(4, 9, size=types).astype(float))


def assert_valid(problem: Problem, x: Float) -> None:
    """Shares keep Gavel §3.1's constraints."""
    assert x.min() >= -1e-12
    assert x.sum(axis=1).max() <= 1 + 1e-9
    assert (problem.usage(x) <= problem.workers * (1 + 1e-9)).all()
    assert not x[problem.rate == 0].any()


def best_level(problem: Problem, slope: Float, base: Float | None = None) -> float:
    """Textbook program, one row for each job: the largest t with throughput >= base + t slope; rows of slope 0 count too."""
    jobs, types = problem.rate.shape
    base = np.zeros(jobs) if base is None else base
    time = np.hstack([np.kron(np.eye(jobs), np.ones((1, types))), np.zeros((jobs, 1))])
    rate = np.zeros((jobs, jobs * types + 1))
    use = np.zeros((len(problem.workers), jobs * types + 1))
    for j in range(jobs):
        rate[j, j * types : (j + 1) * types] = -problem.rate[j]
        for k in range(types):
            use[problem.pool[k], j * types + k] += problem.gpus[j]
    rate[:, -1] = slope
    gain = np.append(np.zeros(jobs * types), -1.0)
    bounds = [(0, 0 if r == 0 else 1) for r in problem.rate.ravel()] + [(None, None)]
    found = linprog(
        gain, np.vstack([time, rate, use]), np.concatenate([np.ones(jobs), -base, problem.workers]), bounds=bounds
    )
    assert found.status == 0, found.message
    return float(-found.fun)


def leximin(problem: Problem, unit: Float, weight: Float) -> Float:
    """Sorted lexicographic max-min of throughput / (unit weight) by the book: a program for each job at each level."""
    jobs = problem.jobs
    level, free = np.zeros(jobs), np.ones(jobs, dtype=bool)
    while free.any():
        base = np.where(free, 0.0, level * unit * weight * (1 - 1e-9))
        t = best_level(problem, np.where(free, unit * weight, 0.0), base)
        level[free] = t
        base = level * unit * weight * (1 - 1e-9)
        for j in np.flatnonzero(free):
            alone = np.zeros(jobs)
            alone[j] = unit[j] * weight[j]
            if best_level(problem, alone, base) <= 1e-6:
                free[j] = False
    return np.sort(level)


def total_of_pairs(problem: Problem, combos: Int, x: Float) -> tuple[Float, Float]:
    """(time of each job, GPUs used of each pool) of shares with pairs."""
    time = np.zeros(problem.jobs)
    for (a, b), row in zip(combos.tolist(), x):
        time[a] += row.sum()
        if b >= 0:
            time[b] += row.sum()
    use = np.bincount(problem.pool, problem.gpus[combos[:, 0]] @ x, minlength=len(problem.workers))
    return time, use
