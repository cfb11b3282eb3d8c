"""Bids as policies ask for them and app agents answer (Themis §3.3.1): plain arrays, checked once when built.

A bid is a set of exclusive rows. A row asks for gangs, not for GPUs by name: GPUs of one machine are equal, so an
allocation is a count per machine, and a row says how far each of its gangs may reach.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from themis.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MACHINE, RACK, ANYWHERE = 1, 2, 3
"""Span that one gang may have: the values of `Bids.row_span`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bids:
    """Bids of B bidders, sorted by (arrival, id), with R exclusive rows, sorted by bidder; a bidder wins at most one.

    Attributes
    ----------
    base
        Shape [B], log V(nothing) = -log rho_old, nats.
    expiring_bidder, expiring_machine, expiring_gpus
        Shape [E]: GPUs of the offer that the bidder holds until this instant; winning them again moves nothing.
    row_bidder
        Shape [R], rising.
    row_span
        Shape [R]: each gang lies on one machine (1), in one rack (2), or anywhere (3). Different gangs may lie apart.
    row_type
        Shape [R], the GPU type that all GPUs of the row must have.
    row_anchor
        Shape [R]: -1, or the machine (span 1) or rack (span 2) in which ALL GPUs of the row must lie.
    row_value
        Shape [R], log V(row) = -log rho(row), nats, > base of the bidder.
    gang_ptr
        Shape [R + 1]: gangs ``gang_ptr[r]:gang_ptr[r + 1]`` belong to row r; at least one each.
    gang_size, gang_count
        Shape [gang_ptr[-1]]: `gang_count` gangs of `gang_size` GPUs, both >= 1.
    gpus
        Shape [R], GPUs of each row; computed.

    Raises
    ------
    InputError
        When shapes, order or ranges are wrong, or a value is not finite.
    """

    base: Floats
    expiring_bidder: Ints
    expiring_machine: Ints
    expiring_gpus: Ints
    row_bidder: Ints
    row_span: Ints
    row_type: Ints
    row_anchor: Ints
    row_value: Floats
    gang_ptr: Ints
    gang_size: Ints
    gang_count: Ints
    gpus: Ints = field(init=False)

    def __post_init__(self) -> None:
        store(self, np.float64, "base", "row_value")
        store(self, np.int64, "expiring_bidder", "expiring_machine", "expiring_gpus", "row_bidder", "row_span")
        store(self, np.int64, "row_type", "row_anchor", "gang_ptr", "gang_size", "gang_count")
        self._check_shapes()
        if self.rows:
            self._check_rows()
            gpus = np.add.reduceat(self.gang_size * self.gang_count, self.gang_ptr[:-1])
        else:
            gpus = np.zeros(0, np.int64)
        object.__setattr__(self, "gpus", gpus)
        if self.expiring_gpus.size:
            holder = self.expiring_bidder
            if holder.min() < 0 or holder.max() >= self.bidders or self.expiring_gpus.min() < 0:
                raise InputError(f"Bids: expiring_bidder must be in 0..{self.bidders - 1} and expiring_gpus >= 0.")

    @property
    def bidders(self) -> int:
        """B."""
        return self.base.size

    @property
    def rows(self) -> int:
        """R."""
        return self.row_bidder.size

    def lowered(self, by: Floats) -> Bids:
        """The same bids with a base that is lower by these nats, shape [B], >= 0: they stay valid."""
        return self.made(**{name: getattr(self, name) for name in self.__slots__} | {"base": self.base - by})

    def weighted(self, weight: Floats) -> Bids:
        """The same bids in weighted nats, w log V, for weights of shape [B], > 0: they stay valid."""
        columns = {name: getattr(self, name) for name in self.__slots__}
        columns["base"], columns["row_value"] = self.base * weight, self.row_value * weight[self.row_bidder]
        return self.made(**columns)

    @classmethod
    def made(cls, **columns: Ints | Floats) -> Self:
        """Bids of all these columns, ``gpus`` too, that are known to be right: nothing is checked again."""
        out = object.__new__(cls)
        for name, column in columns.items():
            object.__setattr__(out, name, column)
        return out

    def gangs(self, row: int) -> dict[int, int]:
        """Gangs of `row` as {size: count}, largest first."""
        span = slice(self.gang_ptr[row], self.gang_ptr[row + 1])
        found: dict[int, int] = {}
        for size, count in sorted(zip(self.gang_size[span].tolist(), self.gang_count[span].tolist()), reverse=True):
            found[size] = found.get(size, 0) + count
        return found

    def _check_shapes(self) -> None:
        r, e = self.row_bidder.shape, self.expiring_bidder.shape
        if self.base.ndim != 1 or len(r) != 1 or len(e) != 1:
            raise InputError("Bids: every array must have one dimension.")
        if any(a.shape != r for a in (self.row_span, self.row_type, self.row_anchor, self.row_value)):
            raise InputError(f"Bids: row_span, row_type, row_anchor, row_value need {r[0]} entries, as row_bidder.")
        if self.expiring_machine.shape != e or self.expiring_gpus.shape != e:
            raise InputError(f"Bids: the expiring arrays must share one length; expiring_bidder has {e[0]}.")
        if self.gang_ptr.shape != (r[0] + 1,):
            raise InputError(f"Bids: gang_ptr has shape {self.gang_ptr.shape}, expected ({r[0] + 1},).")
        gangs = (int(self.gang_ptr[-1]),)
        if self.gang_ptr[0] != 0 or self.gang_size.shape != gangs or self.gang_count.shape != gangs:
            raise InputError("Bids: gang_ptr must run from 0 to the length of gang_size and gang_count.")
        if not np.isfinite(self.base).all() or not np.isfinite(self.row_value).all():
            raise InputError("Bids: base and row_value must be finite.")

    def _check_rows(self) -> None:
        who = self.row_bidder
        if who[0] < 0 or who[-1] >= self.bidders or (who[1:] < who[:-1]).any():
            raise InputError(f"Bids: row_bidder must rise within 0..{self.bidders - 1}.")
        if (self.gang_ptr[1:] <= self.gang_ptr[:-1]).any():
            raise InputError("Bids: gang_ptr must rise; every row needs at least one gang.")
        if self.gang_size.min() < 1 or self.gang_count.min() < 1:
            raise InputError("Bids: gang_size and gang_count must be >= 1.")
        if self.row_span.min() < MACHINE or self.row_span.max() > ANYWHERE:
            raise InputError("Bids: row_span must be 1 (machine), 2 (rack) or 3 (anywhere).")
        if self.row_type.min() < 0 or self.row_anchor.min() < -1:
            raise InputError("Bids: row_type must be >= 0 and row_anchor >= -1.")
        if ((self.row_anchor >= 0) & (self.row_span == ANYWHERE)).any():
            raise InputError("Bids: a row with span 3 cannot be anchored; use span 1 (machine) or 2 (rack).")
        low = self.row_value <= self.base[who]
        if low.any():
            row = int(low.argmax())
            raise InputError(
                f"Bids: row {row} of bidder {who[row]} is worth {self.row_value[row]:.6g}, not above its base "
                f"{self.base[who[row]]:.6g}; leave out rows that do not improve on nothing."
            )


def store(target: object, kind: type[np.int64 | np.float64], *names: str) -> None:
    """Write these arrays of a frozen object down in this type; InputError where whole numbers are expected and not given."""
    for name in names:
        given = np.asarray(getattr(target, name))
        if kind is np.int64 and given.size and given.dtype.kind not in "iu":
            raise InputError(f"{type(target).__name__}: {name} must hold whole numbers, got {given.dtype}.")
        array = given.astype(kind, copy=False)
        object.__setattr__(target, name, array)
