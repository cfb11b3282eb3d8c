"""A trial's resources as Tune knows them: CPUs of Ray's, and GPUs that are Themis'."""

from __future__ import annotations

from typing import Any

from ray import tune


class LeasedGpus(tune.PlacementGroupFactory):  # type: ignore[misc]
    """Resources of a trial's actor, which has no GPUs of Ray's, and how many its worker has; these two make it what it is."""

    def __init__(self, cpus: float, gpus: int) -> None:
        super().__init__([{"CPU": cpus}])
        self.cpus, self.gpus = cpus, gpus

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeasedGpus) and (self.cpus, self.gpus) == (other.cpus, other.gpus)

    def __hash__(self) -> int:
        return hash((self.cpus, self.gpus))

    def __repr__(self) -> str:
        return f"LeasedGpus(cpus={self.cpus:g}, gpus={self.gpus})"


def seen_by_trainable(cpus: float, gpus: int) -> Any:
    """The trial's resources as the trainable sees them: one bundle, because its process has both CPUs and GPUs."""
    return tune.PlacementGroupFactory([{"CPU": cpus, "GPU": gpus}])
