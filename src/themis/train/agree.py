"""Agreement across ranks: all ranks stop, save and continue at the same step, or the first to leave hangs the others.

One function does it, the elementwise maximum over the ranks. PyTorch's process group gives it as soon as there is one;
another framework passes its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

Agree = Callable[[Sequence[float]], Sequence[float]]
"""Elementwise maximum over all ranks; every rank calls it equally often."""


def process_group() -> Any:
    """``torch.distributed`` if this process is in a group of several ranks, without importing it."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    return dist


def over_torch(values: Sequence[float]) -> Sequence[float]:
    """The maximum over PyTorch's default process group, on the device that its backend needs."""
    torch, dist = sys.modules["torch"], process_group()
    device = "cuda" if "nccl" in str(dist.get_backend()) else "cpu"
    tensor = torch.tensor(list(values), dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    maxima: list[float] = tensor.tolist()
    return maxima


def alone(values: Sequence[float]) -> Sequence[float]:
    """One rank."""
    return values
