"""Placement without regard to locality, as schedulers have it that count GPUs and know no machines.

A gang's GPUs are drawn uniformly from all free ones of a type; the type is that of a GPU drawn from all that the gang may
use. For baselines as their authors built them (decision 30): their papers leave placement to the cluster.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from themis.model.units import Int
from themis.policies.placement.packing import Counts


class Placing(StrEnum):
    """Placement of gangs: ``packed`` on the narrowest locality with room, ``blind`` anywhere."""

    PACKED = "packed"
    BLIND = "blind"


def blind_counts(free: Int, machine_type: Int, gpus: int, least: Int, seed: tuple[int, ...]) -> Counts | None:
    """GPUs per machine for a gang of up to ``gpus`` GPUs, drawn from the free ones; None if there is no room for it.

    Parameters
    ----------
    free, machine_type : Int[N]. ``least`` : Int[K], the smallest gang that is taken on each type, more than ``gpus`` where
        none is. An elastic gang gets fewer GPUs only where no type has as many as it asks for.
    seed : whole numbers, 0 or more; the same seed draws the same GPUs.
    """
    room = np.bincount(machine_type, weights=free, minlength=len(least)).astype(np.int64)
    allowed = least <= gpus
    fits = allowed & (room >= gpus)
    if not fits.any():
        fits = allowed & (room >= least) & (room > 0)
    if not fits.any():
        return None
    rng = np.random.default_rng(seed)
    k = int(rng.choice(len(room), p=np.where(fits, room, 0) / room[fits].sum()))
    drawn = rng.multivariate_hypergeometric(np.where(machine_type == k, free, 0), min(gpus, int(room[k])))
    return tuple((int(n), int(drawn[n])) for n in drawn.nonzero()[0])
