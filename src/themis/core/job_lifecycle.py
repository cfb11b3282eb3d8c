"""A job's life as a table: in each status, what may happen to the job and which status follows.

``move`` is the only function that changes a status. A gang's life, of which a job has one for each attempt, is
``machines.engines.gang_lifecycle``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from themis.core.tables import Jobs, Status
from themis.errors import InvariantBroken
from themis.model.units import Seconds


class JobChange(IntEnum):
    """Kinds of change of a job."""

    GRANT = 0
    """The job gets a lease."""
    RELEASE = 1
    """The job's lease ends, and the job requests another one."""
    PAUSE = 2
    """The job finished the work of its rung and waits for the rung's other jobs."""
    PROMOTE = 3
    """The job's rung is over; the job is promoted to the next one."""
    HOLD = 4
    """The user pauses the app."""
    RESUME = 5
    END = 6
    """The job completed, failed, was cancelled, or was stopped by its tuner."""


GRANT, RELEASE, END = JobChange.GRANT, JobChange.RELEASE, JobChange.END
"""Names in the module, for changes that each decision makes to many jobs: access to an enumeration member is slower."""


def _table() -> Mapping[tuple[Status, JobChange], Status]:
    s, c = Status, JobChange
    return MappingProxyType(
        {
            (s.WAITING, c.GRANT): s.RUNNING,
            (s.WAITING, c.HOLD): s.HELD,
            (s.RUNNING, c.RELEASE): s.WAITING,
            (s.RUNNING, c.PAUSE): s.PAUSED,
            (s.RUNNING, c.HOLD): s.HELD,
            (s.RUNNING, c.END): s.ENDED,
            (s.PAUSED, c.PROMOTE): s.WAITING,
            (s.PAUSED, c.END): s.ENDED,
            (s.HELD, c.RESUME): s.WAITING,
            # A gang may report its last step after it was asked to stop.
            (s.WAITING, c.PAUSE): s.PAUSED,
            (s.WAITING, c.END): s.ENDED,
            (s.HELD, c.PAUSE): s.PAUSED,
            (s.HELD, c.END): s.ENDED,
        }
    )


TRANSITIONS = _table()
"""(status, change) -> the status that follows; a pair that is not here cannot happen."""

_NEXT = [[TRANSITIONS.get((status, change), -1) for change in JobChange] for status in Status]


def move(jobs: Jobs, j: int, change: JobChange, now: Seconds) -> None:
    """Change a job's status.

    Raises
    ------
    InvariantBroken : the change cannot happen in the job's status; with the job's latest changes.
    """
    status = jobs.one.status
    before = status[j]
    after = _NEXT[before][change]
    if after < 0:
        raise InvariantBroken(
            f"job {j} is {Status(before).name.lower()}, so {change.name} cannot happen at {now:g} s; {story(jobs, j)}."
        )
    status[j] = after
    jobs.moved(j, before, after)
    jobs.changes.append((now, j, change))


def story(jobs: Jobs, j: int) -> str:
    """A job's figures and its changes, as far as the latest changes of all jobs go back."""
    t = jobs.one
    changes = [f"{change.name} at {time:g} s" for time, job, change in jobs.changes if job == j]
    return f"it is of app {t.app[j]}, had {t.attempt[j]} attempts and did {t.done[j]:g} of {t.total[j]:g} steps: " + (
        ", ".join(changes) or "no recent changes"
    )
