"""The published distributions of the Themis paper's two workloads, and how to draw from them.

The points are those that PCS (OSDI'24, MIT licence, github.com/TuftsNATLab/PCS) fitted to Themis Figures 3 and 8:
jobs per app, GPUs per job and GPU-seconds per app. Kept here as figures, the only ones taken from there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.errors import InputError
from themis.model.units import Float, Int


@dataclass(frozen=True, slots=True)
class Cdf:
    """Points (value, share at or below it), both rising, the last share 1."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        shares = [share for _, share in self.points]
        values = [value for value, _ in self.points]
        if shares != sorted(shares) or values != sorted(values) or not shares or shares[-1] != 1.0 or shares[0] < 0:
            raise InputError(f"the distribution {self.points} is no CDF, expected values and shares rising to share 1.")

    def smooth(self, u: Float) -> Float:
        """Inverse at u in [0, 1), straight lines between the points: for sizes and times."""
        out: Float = np.interp(u, [share for _, share in self.points], [value for value, _ in self.points])
        return out

    def stepped(self, u: Float) -> Int:
        """Inverse at u in [0, 1) that gives only the values listed: for GPU counts."""
        rising = [(value, share) for (value, share), before in self._steps() if share > before]
        index = np.searchsorted([share for _, share in rising], u, side="right")
        return np.array([value for value, _ in rising], dtype=np.int64)[index]

    @property
    def mean(self) -> float:
        """Mean of the values that ``smooth`` draws."""
        pairs = zip(self.points, self.points[1:], strict=False)
        return sum((share - before) * (low + value) / 2 for (low, before), (value, share) in pairs)

    def _steps(self) -> list[tuple[tuple[float, float], float]]:
        return list(zip(self.points, (0.0, *(share for _, share in self.points)), strict=False))


SERVICE = Cdf(
    (
        (3600, 0.0),
        (9216, 0.01),
        (40284, 0.11),
        (108864, 0.28),
        (297072, 0.35),
        (447552, 0.45),
        (1028304, 0.53),
        (1291464, 0.74),
        (1696176, 0.88),
        (2176452, 0.96),
        (2625444, 1.0),
    )
)
"""GPU-seconds per app, the same for both workloads (mean 829,343: 9.6 GPU days)."""

JOBS_1 = Cdf(((1, 0.0), (20, 0.23), (22, 0.35), (56, 0.55), (60, 0.69), (90, 1.0)))
"""Jobs per app in workload 1."""

JOBS_2 = Cdf(((1, 0.0), (5, 0.43), (13, 0.70), (23, 0.77), (28, 0.87), (64, 0.90), (87, 0.96), (90, 1.0)))
"""Jobs per app, workload 2."""

GPUS_1 = Cdf(((1, 0.75), (2, 0.98), (3, 1.0)))
"""Most GPUs per job, workload 1; the least is always 1."""

GPUS_2 = Cdf(((1, 0.20), (2, 0.38), (4, 0.98), (8, 1.0)))
"""Most GPUs per job, workload 2; the least is always 1."""
