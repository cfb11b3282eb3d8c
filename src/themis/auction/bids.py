"""What the auction sells (Themis §3.3.1), a plain array, checked once when built; what is bid for it is ``model.bids``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.errors import InputError
from themis.model.bids import ANYWHERE, MACHINE, RACK, Bids, Bools, Floats, Ints, store

__all__ = ["ANYWHERE", "MACHINE", "RACK", "Bids", "Bools", "Floats", "Ints", "Offer"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """The GPUs on sale.

    Attributes
    ----------
    free
        Shape [N], GPUs offered on each machine, >= 0.
    machine_rack, machine_type
        Shape [N], the rack and the GPU type of each machine, >= 0.

    Raises
    ------
    InputError
        When shapes differ or a value is negative.
    """

    free: Ints
    machine_rack: Ints
    machine_type: Ints

    def __post_init__(self) -> None:
        store(self, np.int64, "free", "machine_rack", "machine_type")
        n = self.free.shape
        if len(n) != 1 or self.machine_rack.shape != n or self.machine_type.shape != n:
            raise InputError(f"Offer: free, machine_rack, machine_type must share one length; free has shape {n}.")
        if n[0] and min(self.free.min(), self.machine_rack.min(), self.machine_type.min()) < 0:
            raise InputError("Offer: free, machine_rack and machine_type must be >= 0; one is negative.")
