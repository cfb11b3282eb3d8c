"""Goodput of a job whose batch size may change: steps at its base batch size that it makes per second (Pollux §3, §4).

With K GPUs on N machines, local batch size m, s accumulations, global batch size M = K m (s + 1), base M0 and noise phi:

    T_grad = a_c + b_c m        T_sync = 0 (K = 1) | a_r + b_r max(K - 2, 0) (N = 1) | a_n + b_n max(K - 2, 0)
    T_iter = s T_grad + (T_grad^g + T_sync^g)^(1/g)        efficiency = (phi + M0) / (phi + M)
    rate = M / T_iter * efficiency / M0

The unit of work is a step at M0, so that targets, dues and budgets keep their meaning whatever the batch size. phi is the
gradient noise scale, M0 var / sqr, in examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from themis.errors import InputError
from themis.model.units import Float, Int, Seconds

CANDIDATES = 50
"""Batch sizes that are tried between the smallest and the largest, in equal ratios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Parameters of the time of an iteration; seconds >= 0, ``overlap`` (g) from 1, none, to 10, nearly all."""

    grad_s: Seconds
    grad_example_s: Seconds
    network_s: Seconds
    network_gpu_s: Seconds
    machine_s: Seconds
    machine_gpu_s: Seconds
    overlap: float = 1.0

    def grad(self, local: Float) -> Float:
        """T_grad, seconds to compute a local batch, elementwise."""
        out: Float = self.grad_s + self.grad_example_s * np.asarray(local, dtype=np.float64)
        return out

    def sync(self, gpus: Float | Int, machines: Float | Int) -> Float:
        """T_sync, seconds to add gradients up over all GPUs, elementwise."""
        more = np.maximum(np.asarray(gpus, dtype=np.float64) - 2.0, 0.0)
        several = np.where(
            np.asarray(machines) > 1,
            self.network_s + self.network_gpu_s * more,
            self.machine_s + self.machine_gpu_s * more,
        )
        out: Float = np.where(np.asarray(gpus) > 1, several, 0.0)
        return out

    def iteration(self, gpus: Float | Int, machines: Float | Int, local: Float, accumulations: Float | Int) -> Float:
        """T_iter, seconds, elementwise."""
        grad, sync = self.grad(local), self.sync(gpus, machines)
        longer = np.maximum(grad, sync)
        # The power of the ratio: that of the seconds themselves underflows.
        both = longer * (1.0 + (np.minimum(grad, sync) / np.maximum(longer, 1e-300)) ** self.overlap) ** (
            1.0 / self.overlap
        )
        out: Float = accumulations * grad + both
        return out

    def array(self) -> Float:
        """The seven parameters in order."""
        return np.array(astuple(self), dtype=np.float64)

    @classmethod
    def of(cls, values: Sequence[float]) -> StepTimes:
        """The inverse of ``array``."""
        return cls(**dict(zip((f.name for f in fields(cls)), values, strict=True)))


LEVEL = 1.1
"""Ratio of noise between one level and the next."""


def level_of(noise: float) -> int:
    """Noise level: the nearest power of ``LEVEL``, counted from 1, which is a noise of 1 example or less."""
    return 1 + round(math.log(max(noise, 1.0)) / math.log(LEVEL))


def noise_of(level: int) -> float:
    """The noise that a level stands for, in examples."""
    return float(LEVEL ** (level - 1))


def efficiency(batch: Float, base: float, noise: float) -> Float:
    """Progress per example relative to the base batch size, elementwise (Pollux eq. 6): 1 at the base, less beyond it."""
    out: Float = (noise + base) / (noise + np.asarray(batch, dtype=np.float64))
    return out


class Best(NamedTuple):
    """[S] each: steps at the base batch size per second, local batch size and accumulations; 0 where no batch fits."""

    rate: Float
    local: Float
    accumulations: Float


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Batch sizes of a job whose batch size may change.

    Attributes
    ----------
    base : M0, the batch size that work is counted in and below which it never goes. ``most`` : largest global batch size.
    least : smallest global batch size, where it is larger than the base.
    local : smallest and largest batch size of one GPU; beyond the largest, gradients are accumulated.
    machine : GPUs of a machine. A gang that fits one is taken to be on one, a wider one on as few as hold it.
    """

    base: int
    most: int
    local: tuple[int, int]
    machine: int = 4
    least: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.base <= self.most:
            raise InputError(
                f"the base batch size is {self.base}, the largest {self.most}; expected 1 <= base <= largest."
            )
        if not 1 <= self.local[0] <= self.local[1]:
            raise InputError(f"the batch size of one GPU is {self.local}, expected 1 <= smallest <= largest.")
        if self.machine < 1:
            raise InputError(f"the machines of an adaptive job have {self.machine} GPUs, expected 1 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Known speed of an adaptive job. ``times`` : (GPU type or ``*``, parameters), of at least one."""

    batches: Adaptive
    times: tuple[tuple[str, StepTimes], ...]

    def __post_init__(self) -> None:
        if not self.times:
            raise InputError("a goodput has no step times, expected those of at least one GPU type.")

    def best(self, gpu_type: str, noise: float, largest: int) -> Best:
        """The best batch size on 1 to ``largest`` GPUs of a type; index 0 is no GPU."""
        return _best(self, gpu_type, noise, largest)

    def of(self, gpu_type: str) -> StepTimes | None:
        """Parameters on a GPU type."""
        known = dict(self.times)
        return known.get(gpu_type, known.get("*"))

    def spread(self, gpu_type: str, noise: float) -> float:
        """Slowdown of a gang that fits a machine and is on two: of a whole machine's GPUs, at its best batch size; at least 1."""
        times, gpus = self.of(gpu_type), self.batches.machine
        best = self.best(gpu_type, noise, gpus)
        if times is None or gpus < 2 or best.rate[-1] <= 0:
            return 1.0
        one, two = times.iteration(
            np.full(2, gpus), np.array([1, 2]), best.local[-1:], best.accumulations[-1:]
        ).tolist()
        return max(float(two) / float(one), 1.0)


@lru_cache(maxsize=4096)
def _best(goodput: Goodput, gpu_type: str, noise: float, largest: int) -> Best:
    times = goodput.of(gpu_type)
    out = Best(*(np.zeros(largest + 1) for _ in range(3)))
    if times is None:
        return out
    of = goodput.batches
    gpus, local, parts = _grid(of, largest)
    machines = np.where(gpus > of.machine, 2, 1)
    batch = gpus * local * (parts + 1.0)
    rate = batch / times.iteration(gpus, machines, local, parts) * efficiency(batch, of.base, noise) / of.base
    rate[local <= 0] = 0.0
    rows, at = np.arange(largest) + 1, rate.argmax(axis=1)
    for column, values in zip(out, (rate, local, parts)):
        column[rows] = values[rows - 1, at]
    return out


@lru_cache(maxsize=256)
def _grid(of: Adaptive, largest: int) -> tuple[Float, Float, Float]:
    """[S, options] each: GPUs, local batch sizes (0: no option) and accumulations."""
    sizes, parts = np.zeros((largest, CANDIDATES)), np.zeros((largest, CANDIDATES))
    for gpus in range(1, largest + 1):
        m, s = options(of, gpus)
        sizes[gpus - 1, : len(m)], parts[gpus - 1, : len(s)] = m, s
    return np.repeat(np.arange(1.0, largest + 1.0)[:, None], CANDIDATES, axis=1), sizes, parts


def options(of: Adaptive, gpus: int) -> tuple[Float, Float]:
    """(local batch sizes, accumulations) that a gang may choose from; empty where it is too wide for the largest batch.

    On one GPU a batch beyond the base is taken in at least two parts: the noise is estimated from their difference.
    """
    low, high = max(of.base, of.least, of.local[0] * gpus), of.most
    if low > high:
        return np.zeros(0), np.zeros(0)
    batch = np.geomspace(low, high, CANDIDATES) if low < high else np.array([float(low)])
    each = batch / gpus
    parts = np.ceil(each / of.local[1] - 1e-9)
    if gpus == 1:
        parts = np.where(batch > of.base * (1 + 1e-9), np.maximum(parts, 2.0), parts)
    return np.maximum(np.ceil(each / parts - 1e-9), 1.0), parts - 1.0
