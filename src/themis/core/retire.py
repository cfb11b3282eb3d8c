"""Apps that are long over: of their specifications the core keeps what callers may still ask, names and user.

Nothing that is decided depends on them, so a state that retired them and one that did not make the same decisions.
Their rows of numbers stay, for apps and jobs are numbered by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from themis.core.state import State
from themis.model.units import Seconds
from themis.model.workload import App, Job, Regime

_MODEL = "~"
"""A name that no profile has."""
_REGIMES = (Regime(steps=1.0),)


def is_pruned(app: App) -> bool:
    """True if only the app's names are kept."""
    return app.jobs[0].model == _MODEL


def pruned(name: str, user: str, arrival: Seconds, jobs: Sequence[str]) -> App:
    """Reduced spec of a pruned app: name, user, arrival and job names."""
    return App(name=name, user=user, arrival=arrival, jobs=_jobs(tuple(jobs)))


@lru_cache(4096)
def _jobs(names: tuple[str, ...]) -> tuple[Job, ...]:
    return tuple(Job(name=name, model=_MODEL, regimes=_REGIMES) for name in names)


def prune(state: State, before: Seconds) -> list[int]:
    """Prune apps that finished before then and released everything; returns their jobs."""
    t, out = state.apps, list[int]()
    over = np.flatnonzero((t.active[: t.size] == 0) & (t.ended[: t.size] < before))
    busy = {int(state.jobs.app[j]) for j in state.occupied}
    for a in over[int(np.searchsorted(over, state.retired_below)) :].tolist():
        app = state.app_specs[a]
        if a in busy or is_pruned(app):
            continue
        state.app_specs[a] = left = pruned(app.name, app.user, app.arrival, [job.name for job in app.jobs])
        jobs = state.app_jobs(a).tolist()
        for j, job in zip(jobs, left.jobs):
            state.job_specs[j], state.regimes[j] = job, job.regimes
        out += jobs
    while state.retired_below < t.size and is_pruned(state.app_specs[state.retired_below]):
        state.retired_below += 1
    return out
