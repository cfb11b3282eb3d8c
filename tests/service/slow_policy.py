"""Policies that misbehave, importable by the worker's process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import ClassVar

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.policies.api import ON_FREE_GPUS, Cadence, Granularity, Workbench
from themis.policies.fifo import Fifo


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Takes its time, then does as fifo; ``how`` says what goes wrong."""

    seconds: float = 0.0
    how: str = ""
    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        """On free GPUs."""
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Decide, or not."""
        time.sleep(self.seconds)
        if self.how == "die":
            os._exit(3)
        if self.how == "raise":
            raise ZeroDivisionError("a bug")
        if self.how == "print":
            print("this must not get between the replies")
        return Fifo()(snapshot, bench)
