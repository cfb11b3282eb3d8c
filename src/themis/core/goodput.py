"""Reports of adaptive jobs on their goodput, and the row of the speed table that each of them has of its own.

Without a report a job is believed to train as its model's batch size 0, and gets one GPU, or its smallest gang. From
the first report on it may have twice the GPUs that it ran on so far (Pollux §4.1): beyond them its curve is a guess.
"""

from __future__ import annotations

from themis.core import reference, regimes
from themis.core.state import State
from themis.model.events import GoodputReported

CHANGED = 1.1
"""Ratio of noise from which on it counts as changed."""
AHEAD = 2
"""GPUs that a job may have, over those that it ran on."""


def reported(state: State, event: GoodputReported) -> None:
    """Take in a report; what it does not change costs nothing. The next decision is solved again."""
    j = event.job
    if not state.runs(j, event.attempt) or state.job_specs[j].adaptive is None:
        return
    regimes.report(state, j, event.steps)
    noise, times, seen = state.goodput.get(j, (0.0, (), 0))
    gpus, new = int(state.jobs.gpus[j]), (event.gpu_type, event.times)
    if noise / CHANGED <= event.noise <= noise * CHANGED and new in times and gpus <= seen:
        return
    reference.advance(state)
    kept = tuple(old for old in times if old[0] != event.gpu_type)
    state.goodput[j] = (event.noise, (*kept, new), max(gpus, seen))
    state.fill_goodput(j)
    regimes.renew(state, j)
    state.version += 1


def most_gpus(state: State, j: int) -> int:
    """Most GPUs that an adaptive job may have now."""
    seen = state.goodput[j][2] if j in state.goodput else 0
    return max(AHEAD * seen, 1, int(state.jobs.gpus_min[j]))
