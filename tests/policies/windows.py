"""Windows to plan: random ones with jobs that speed up or slow down, and small ones for brute force."""

from __future__ import annotations

from itertools import product

import numpy as np

from themis.model.forecast import Ahead
from themis.optimize.rounds.window import Window
from themis.policies.planning.round_window import budgets, columns, forecast_rho, window_of


def random_ahead(rng: np.random.Generator, jobs: int, contention: float = 3.0) -> Ahead:
    """One to three regimes a job, the later ones up to twice as fast or slower; half the jobs have begun."""
    counts = rng.integers(1, 4, jobs)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    progress = np.where(rng.random(jobs) < 0.5, rng.uniform(0.05, 0.9, jobs), 0.0)
    share = np.concatenate([(1 - p) * rng.dirichlet(np.ones(k)) for p, k in zip(progress, counts)])
    pace = np.concatenate([np.cumprod([1.0, *rng.uniform(0.5, 1.3, k - 1)]) for k in counts])
    alone = np.exp(rng.normal(np.log(3000), 0.8, jobs))
    owner = np.repeat(np.arange(jobs), counts)
    seconds = share * pace * alone[owner]
    isolated = np.bincount(owner, weights=seconds) + progress * alone
    return Ahead(
        ptr=ptr,
        share=share,
        seconds=seconds,
        progress=progress,
        isolated_s=isolated,
        contention=np.full(jobs, contention),
    )


def plain_window(gpus: list[int], capacity: int, value: np.ndarray, *, left: float) -> Window:
    """A window of single rounds in which every job needs ``left`` of them, and H has no price."""
    jobs, choices = value.shape
    ends = np.arange(choices)
    return Window(
        gpus=np.array(gpus),
        lengths=np.ones(choices - 1, dtype=np.int64),
        spent=np.tile(ends, (jobs, 1)),
        value=value,
        left=np.tile(120.0 * (left - ends), (jobs, 1)),
        useful=np.full(jobs, choices - 1),
        pull=0.0,
        capacity=capacity,
    )


def random_window(
    seed: int, *, jobs: int = 30, capacity: int = 8, rounds: int = 10, price: float = 0.3, fine: int | None = None
) -> Window:
    """A saturated window of gangs of 1, 2, 4 and 8 GPUs; of single rounds, or with longer ones after ``fine``."""
    rng = np.random.default_rng(seed)
    ahead = random_ahead(rng, jobs)
    sizes = [z for z in (1, 2, 4, 8) if z <= capacity]
    gpus = rng.choice(
        sizes, jobs, p=np.array([8.0, 4.0, 2.0, 1.0][: len(sizes)]) / sum([8.0, 4.0, 2.0, 1.0][: len(sizes)])
    )
    weight = budgets(forecast_rho(ahead, rng.uniform(0, 6000, jobs)), 5.0, np.ones(jobs))
    return window_of(
        ahead,
        gpus,
        weight=weight,
        skipped=np.where(rng.random(jobs) < 0.7, 20.0, 0.0),
        started=np.zeros(jobs),
        lengths=columns(rounds, rounds if fine is None else fine),
        round_s=120.0,
        pull=price * jobs * capacity / float(ahead.isolated_s.sum()),
        capacity=capacity,
    )


def best_by_trying(window: Window) -> float:
    """The optimum, by all counts that fit."""
    w = window
    choices = product(*(range(int(u) + 1) for u in w.useful))
    fits = (n for c in choices if int(w.gpus @ w.takes(n := np.array(c))) <= w.room)
    return max(w.objective(n) for n in fits)
