"""Units, index letters and localities: the words that every other module uses.

Simulated time is float seconds since the trace's start. Index letters are fixed everywhere:
``a`` app, ``j`` job, ``k`` GPU type, ``n`` machine, ``g`` GPU, ``r`` round.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Seconds: TypeAlias = float
GpuSeconds: TypeAlias = float

Int: TypeAlias = npt.NDArray[np.int64]
Float: TypeAlias = npt.NDArray[np.float64]
Bool: TypeAlias = npt.NDArray[np.bool_]

NONE = -1
"""Index that means "no such app, job, GPU type, ...": columns stay integer."""


class Locality(IntEnum):
    """The widest boundary that a gang's GPUs span, best first (Themis §6.1: a 4-level hierarchy)."""

    SLOT = 0
    MACHINE = 1
    RACK = 2
    CROSS_RACK = 3


def next_tick(time: Seconds, tick: Seconds) -> Seconds:
    """The first multiple of ``tick`` at or after ``time``; lease expiries fall on ticks so that one auction serves all."""
    return math.ceil(time / tick - 1e-9) * tick


def end_of_lease(now: Seconds, lease_s: Seconds, step_s: Seconds) -> Seconds:
    """End of a lease of ``lease_s`` that begins now: with ``step_s`` at their next multiple at the latest (decision 99)."""
    full = now + lease_s
    return min(full, (math.floor(now / step_s + 1e-9) + 1) * step_s) if step_s else full


def round_end(now: Seconds, round_s: Seconds, origin: Seconds = 0.0) -> Seconds:
    """Rounds begin at ``origin`` and at multiples of their length from then on: the next boundary after ``now``.

    What is a millionth of a second before a boundary is on it, or as near to it as the clock can tell at that time.
    """
    near = max(1e-6, 4 * math.ulp(now))
    return origin + (math.floor((now - origin + near) / round_s) + 1) * round_s
