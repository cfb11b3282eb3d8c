"""Interface to the executor: it starts and stops gangs on command and reports back through events only.

Grant   -> JobStarted, then any number of JobProgress or LossReported, JobReached at the target
Revoke  -> JobStopped, once nothing of the gang holds its GPUs
Renew   -> nothing

Each attempt (a job's grant) has at most one JobStarted, first, and exactly one JobStopped, last, also when the gang died
without a ``Revoke``; its ``steps`` are where the next attempt begins. A preempted gang is no failure.
``themis.testing.executors`` checks this and more for any executor.
"""

from __future__ import annotations

from typing import Protocol

from themis.model.events import Command
from themis.model.workload import App


class Executor(Protocol):
    """Simulated processes, processes of this machine, or of a cluster."""

    def admit(self, first_job: int, app: App) -> None:
        """Learn about an app's jobs, whose ids start at ``first_job``."""
        ...

    def submit(self, command: Command) -> None:
        """Carry out a Grant, Renew or Revoke; results come back only as events."""
        ...
