"""Number of assumed, unmeasured speeds that a run depends on: counted from the log, and as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from themis.model.events import AppSubmitted, AssumedSpeed
from themis.model.workload import Job
from themis.report.result import RunMetrics

MOST = 3
"""Assumed speeds that a sentence names."""


@dataclass(slots=True)
class SpeedsGiven:
    """Collects them from the apps and machines of a log."""

    types: dict[str, None] = field(default_factory=dict)
    wanted: set[tuple[str, int, int, tuple[str, ...]]] = field(default_factory=set)
    """Model, batch size, GPUs, and the types that the job may use."""
    found: dict[AssumedSpeed, None] = field(default_factory=dict)
    logged: bool = False
    """True if the log says which are assumed."""

    def join(self, gpu_type: str) -> None:
        """A machine of this type came."""
        self.types[gpu_type] = None

    def add(self, event: AppSubmitted) -> None:
        """An app came."""
        for job in event.app.jobs:
            self.wanted.update(_wanted(job))
        if event.assumed is not None:
            self.logged = True
            self.found |= dict.fromkeys(event.assumed)

    def count(self) -> int:
        """All speeds that the apps so far depend on."""
        return len({(m, b, n, k) for m, b, n, may in self.wanted for k in self.types if not may or k in may})

    @property
    def assumed(self) -> tuple[AssumedSpeed, ...] | None:
        """The unmeasured speeds, in the order of their first app; None where the log does not say."""
        return tuple(self.found) if self.logged else None


def _wanted(job: Job) -> set[tuple[str, int, int, tuple[str, ...]]]:
    sizes = {job.gpus_min, job.gpus_max}
    return {(model, batch, gpus, job.gpu_types) for model, batch in job.configs for gpus in sizes}


def sentence(runs: Sequence[RunMetrics]) -> str:
    """Sentence on the number of assumed speeds of the run with most of them; empty where no log has any."""
    logged = [run.inputs for run in runs if run.inputs.assumed is not None]
    if not logged:
        return ""
    most = max(logged, key=lambda inputs: len(inputs.assumed or ()))
    assumed = most.assumed or ()
    if not assumed:
        return f"All {most.speeds} speeds were measured."
    names = ", ".join(map(describe, assumed[:MOST])) + (f" and {len(assumed) - MOST} more" * (len(assumed) > MOST))
    verb = "is" if len(assumed) == 1 else "are"
    return f"{len(assumed)} of {most.speeds} speeds {verb} assumed, not measured: {names}."


def describe(speed: AssumedSpeed) -> str:
    """``Transformer at batch size 256, 2 x V100``."""
    batch = f" at batch size {speed.batch}" if speed.batch else ""
    return f"{speed.model}{batch} on {speed.gpus} {speed.gpu_type}"
