"""Batch size changes of a job during training, as its user declares them (Shockwave §2.3, §5).

The user's program decides when; the scheduler observes and forecasts, and never changes a batch size itself. A job's
epochs are the same at any batch size, only their speed differs, so a dynamic job counts its work in epochs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from themis.errors import InputError


class Mode(StrEnum):
    """The pattern that batch sizes follow.

    ACCORDION alternates between the smallest and the largest; GNS (gradient noise scale) climbs to the limit, and begins
    again where it falls back; DECLARED is a schedule that the user wrote down, known from the start.
    """

    ACCORDION = "accordion"
    GNS = "gns"
    DECLARED = "declared"


ACCORDION_REGIMES = 6
"""Regimes that an accordion job is taken to have at most where its user does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """A job's declared range of batch sizes.

    Attributes
    ----------
    epoch_steps : (batch size, steps of the model in an epoch at it), batch sizes rising: all that the job may use.
    regimes : accordion: stretches at one batch size that it has at most, K in Shockwave §5; grows if exceeded.
    """

    mode: Mode
    epoch_steps: tuple[tuple[int, float], ...]
    regimes: int = ACCORDION_REGIMES

    def __post_init__(self) -> None:
        sizes = [batch for batch, _ in self.epoch_steps]
        if not sizes or sizes[0] < 1 or any(b <= a for a, b in pairwise(sizes)):
            raise InputError(
                f"the batch sizes of a dynamic job are {sizes}, expected at least one, rising from 1 or more."
            )
        if not all(0 < steps < math.inf for _, steps in self.epoch_steps):
            raise InputError(
                f"the steps per epoch of a dynamic job are {[s for _, s in self.epoch_steps]}, expected numbers above 0."
            )
        if self.regimes < 1:
            raise InputError(f"a dynamic job has at most {self.regimes} regimes, expected 1 or more.")

    @property
    def batches(self) -> tuple[int, ...]:
        """The declared batch sizes, rising."""
        return tuple(batch for batch, _ in self.epoch_steps)

    @property
    def hidden(self) -> bool:
        """True if only the job's program knows when it changes its batch size."""
        return self.mode is not Mode.DECLARED

    def steps_per_epoch(self, batch: int) -> float:
        """Steps of an epoch; at a batch size that was not declared, as many examples as at the nearest declared one."""
        near, steps = min(self.epoch_steps, key=lambda known: abs(math.log(known[0] / max(batch, 1))))
        return steps * near / max(batch, 1)

    def ahead(self, finished: int, batch: int) -> tuple[int, ...]:
        """Batch sizes expected after the ongoing regime, which is at ``batch`` and came after ``finished`` others.

        Shockwave §5: accordion alternates, up to its declared number of regimes; GNS climbs the declared sizes. Differs
        from the paper: one that fell back is expected to climb again, since 19 of its 57 GNS schedules do fall back.
        """
        low, high = self.batches[0], self.batches[-1]
        match self.mode:
            case Mode.GNS:
                return tuple(size for size in self.batches if size > batch)
            case Mode.ACCORDION if low < high:
                pair = (low, high) if batch == high else (high, low)
                return tuple(pair[i % 2] for i in range(max(self.regimes - finished - 1, 0)))
            case _:
                return ()


def climb(batch: int, limit: int) -> tuple[int, ...]:
    """Batch sizes of a GNS job: doubled from the first up to the limit (Shockwave §5)."""
    sizes = [batch]
    while sizes[-1] < limit:
        sizes.append(min(2 * sizes[-1], limit))
    return tuple(sizes)
