"""Saving and loading for plain PyTorch, under torchrun or not::

    run = train.Run(**pytorch.state(model=model, optimizer=optimizer, scheduler=scheduler))
    for batch in run.batches(loader, epochs=90): ...

Saved are the state dicts of whatever has one, without the wrapper of ``DistributedDataParallel``, and the random
number generators of every rank. With the same number of ranks a resumed run continues exactly as if it had never
stopped; with another number, each rank keeps the seeds that the script gave it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from themis.train.agree import process_group


def state(**parts: Any) -> dict[str, Any]:
    """``save``, ``load`` and ``everywhere`` for ``Run``, from objects with ``state_dict`` and ``load_state_dict``.

    Raises
    ------
    TypeError : a part without them.
    """
    for name, part in parts.items():
        if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
            raise TypeError(
                f"{name} is a {type(part).__name__} without state_dict and load_state_dict; save it yourself."
            )

    def save(path: Path) -> None:
        # All ranks call this, because each contributes its random state; one rank writes.
        random_states, rank = _random_states()
        if rank == 0:
            torch.save({"parts": {n: _bare(p).state_dict() for n, p in parts.items()}, "random": random_states}, path)

    def load(path: Path) -> None:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        missing = sorted(set(parts) - set(saved["parts"]))
        if missing:
            raise KeyError(f"the checkpoint {path} has no {', '.join(missing)}; it was written by another script.")
        for name, part in parts.items():
            _bare(part).load_state_dict(saved["parts"][name])
        dist = process_group()
        ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist else (1, 0)
        if ranks == len(saved["random"]):
            _set_random_state(saved["random"][rank])

    return {"save": save, "load": load, "everywhere": True}


def _bare(part: Any) -> Any:
    """The module inside DistributedDataParallel or DataParallel: their names depend on how many ranks there were."""
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    return part.module if isinstance(part, wrappers) else part


def _random_states() -> tuple[list[dict[str, Any]], int]:
    """Random state of every rank, and this one's number."""
    own = _random_state()
    dist = process_group()
    if dist is None:
        return [own], 0
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, own)
    return states, dist.get_rank()


def _random_state() -> dict[str, Any]:
    numpy = sys.modules.get("numpy")
    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = (kind, keys.tolist(), *rest)
    return found


def _set_random_state(saved: Mapping[str, Any]) -> None:
    torch.set_rng_state(saved["torch"])
    version, internal, gauss = saved["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])
    numpy = sys.modules.get("numpy")
    if "numpy" in saved and numpy is not None:
        kind, keys, *rest = saved["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
