"""Number of batch size changes of a dynamic job: a prior learned from finished jobs.

Counts of finished jobs by how often they changed, for each mode, each model under it, and each first batch size of that. A
prior begins flat, with half of all jobs never changing, and each finer group counts as ``STRENGTH`` jobs of the coarser one
together with its own: a Dirichlet-multinomial with back-off. A pure fold over finished jobs: same jobs, same prior.
"""

from __future__ import annotations

from typing import TypeAlias

History: TypeAlias = dict[tuple[str, ...], list[int]]
"""(mode), (mode, model) or (mode, model, first batch size) -> jobs that never changed, that changed once, ..."""

NEVER = 0.5
"""Prior share of jobs that never change, before any has finished: about that of the published schedules."""
STRENGTH = 2.0
"""Jobs that what is known of a coarser group counts as."""
MOST = 64
"""Largest number of changes with a count of its own; larger ones count as this."""


def learn(history: History, mode: str, model: str, batch: int, changes: int) -> None:
    """Learn from a finished job that began at ``batch`` and changed its batch size 0 or more times."""
    for key in _keys(mode, model, batch):
        counts = history.setdefault(key, [])
        counts += [0] * (min(changes, MOST) + 1 - len(counts))
        counts[min(changes, MOST)] += 1


def prior(history: History, mode: str, model: str, batch: int, most: int) -> tuple[float, ...]:
    """Probability of 0, 1, ..., ``most`` changes over a job's whole life; they add up to 1."""
    if most <= 0:
        return (1.0,)
    out = [NEVER] + [(1.0 - NEVER) / most] * most
    for key in _keys(mode, model, batch):
        counts = history.get(key)
        if counts is None:
            break
        found = [0.0] * (most + 1)
        for changes, jobs in enumerate(counts):
            found[min(changes, most)] += jobs
        jobs = sum(counts)
        out = [(count + STRENGTH * share) / (jobs + STRENGTH) for count, share in zip(found, out)]
    return tuple(out)


def _keys(mode: str, model: str, batch: int) -> tuple[tuple[str, ...], ...]:
    return (mode,), (mode, model), (mode, model, str(batch))
