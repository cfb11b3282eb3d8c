"""What carries out commands: starts gangs, stops them, and reports back through events only."""

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
