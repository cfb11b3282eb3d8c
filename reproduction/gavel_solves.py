"""What the Gavel reproduction needs no simulation for: Figure 12's hierarchy against a static partition; errors of estimates."""

from __future__ import annotations

import numpy as np

from themis.fairness.forecasts.believed import measured_configs
from themis.fairness.forecasts.throughput import References, entries_of, estimate
from themis.model.units import Locality
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.finish_time_shares import JobsProgress
from themis.policies.gavel.hierarchy import Entity, hierarchical
from themis.policies.gavel.max_min import normalised
from themis.traces.gavel_jobs import GavelSingle
from themis.traces.profiles.measured import gavel_book

TYPES = ("V100", "P100", "K80")
ENTITIES = (1.0, 2.0, 3.0)
EACH = 6


def partition_loss(seed: int) -> float:
    """Share of the total normalised throughput that a static partition loses against the hierarchical policy.

    Figure 12's end: six jobs each of entities with weights 1, 2 and 3 on three GPUs of every type. In the partition every
    entity has its part of every type, and each of its jobs an equal part of that.
    """
    jobs = [app.jobs[0] for app in GavelSingle(jobs=EACH * len(ENTITIES)).generate(seed=seed).apps]
    book = gavel_book()
    rate = np.array([[book.rate(j.model, j.regimes[0].batch, t, 1, Locality.SLOT) for t in TYPES] for j in jobs])
    problem = Problem.of(rate, np.ones(len(jobs), dtype=np.int64), np.full(len(TYPES), 3.0))
    rows = np.arange(len(jobs)).reshape(len(ENTITIES), EACH)
    members = tuple(Entity(name=f"entity{e}", weight=w, jobs=rows[e]) for e, w in enumerate(ENTITIES))
    root = Entity(name="root", members=members, jobs=np.zeros(0, dtype=np.int64))
    ones = np.ones(len(jobs))
    progress = JobsProgress(
        left=ones, elapsed=0 * ones, isolated_elapsed=0 * ones, isolated_rate=problem.isolated_rate()
    )
    shared = hierarchical(problem, root, ones, progress).x
    part = np.repeat(np.array(ENTITIES) / sum(ENTITIES) / EACH, EACH)
    static = part[:, None] * problem.workers[None, :]
    static = static / np.maximum(static.sum(axis=1, keepdims=True), 1.0)
    return 1.0 - float(normalised(problem, static).sum() / normalised(problem, shared).sum())


NEW_JOBS = 6


def estimate_errors(references: int, probes: float, seed: int, draws: int = 4) -> tuple[float, float, float, float]:
    """Mean absolute error of entries that were not measured: nearest reference, completion, mean reference, best reference.

    Entries are shares of speed (``fairness.forecasts.throughput``); measurements are off by 5 %. New jobs are six that are
    no references,
    over so many draws of both.
    """
    book, rng = gavel_book(), np.random.default_rng([seed, references, round(1000 * probes)])
    pool = measured_configs(book, TYPES)
    found: list[tuple[float, float, float, float]] = []
    for _ in range(draws):
        order = rng.permutation(len(pool)).tolist()
        known_jobs = References.of(book, [pool[i] for i in order[:references]], TYPES)
        for i in order[references : references + NEW_JOBS]:
            truth = entries_of(book, pool[i], known_jobs.configs, TYPES)
            known = rng.random(len(truth)) < probes
            guess = estimate(known_jobs, truth * np.exp(0.05 * rng.standard_normal(len(truth))), known)
            rest = ~known
            every = np.abs(known_jobs.entries - truth)[:, rest].mean(axis=1)
            found.append(
                (
                    float(np.abs(guess.entries - truth)[rest].mean()),
                    float(np.abs(guess.fingerprint - truth)[rest].mean()),
                    float(np.abs(known_jobs.entries.mean(axis=0) - truth)[rest].mean()),
                    float(every.min()),
                )
            )
    a, b, c, d = np.mean(np.array(found), axis=0).tolist()
    return a, b, c, d
