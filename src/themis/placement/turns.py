"""Who is next for GPUs by weight, also where a share is less than one gang: turns, as a pure function of the snapshot.

An app's share is its weighted part of the GPUs in service, water-filled under what it can use. Most shares are no whole number
of gangs. The whole gangs of a share are dealt first; the GPUs that remain make up the fractions, and go to the apps that would
have least of what they are entitled to at the end of a lease that they got now:

    (GPU-seconds so far + smallest gang * lease) / ((elapsed + lease) R_C / N_avg)

No app holds more than one gang beyond its share for the sake of what it missed, and in the long run all have received alike
(decision 0024). The next lease counts, as in fair queueing by finish times (Demers, Keshav and Shenker 1989): an app that just
came, with a share of a third of a gang, waits two leases for its first one, or a user could be served ever first by submitting
ever new apps. Where all weights are alike this does not apply: the least share per weight is next, as ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float, Int
from themis.placement.grants import least_waiting

WHOLE, TURN, BEYOND = 0.0, 1.0, 2.0
"""Ranks of an app's next gang: within its share, the one that crosses it, and further ones."""


def shares(s: Snapshot) -> Float:
    """[A], GPUs of each app's weighted share of those in service, water-filled under what its jobs can use."""
    most = np.add.reduceat(s.job_gpus_max, s.job_ptr[:-1]).astype(np.float64)
    return water_filled(s.app_weight, most, float(s.machine_gpus.sum()))


def water_filled(weight: Float, most: Float, volume: float) -> Float:
    """``min(weight level, most)`` at the level at which it sums to ``volume``; ``most`` where that is no more.

    Parameters
    ----------
    weight : [A], > 0. ``most`` : [A], >= 0. ``volume`` : >= 0.
    """
    order = np.argsort(most / weight, kind="stable")
    filled, rising = np.cumsum(most[order]), weight[order][::-1].cumsum()[::-1]
    # With those before it full, where everybody is at the level at which it is full too.
    needed = filled - most[order] + most[order] / weight[order] * rising
    k = int(np.searchsorted(needed, volume))
    if k == len(order):
        return most
    level = (volume - (float(filled[k - 1]) if k else 0.0)) / float(rising[k])
    out: Float = np.minimum(weight * level, most)
    return out


@dataclass(frozen=True, slots=True)
class Turns:
    """Of one snapshot.

    Attributes
    ----------
    share : Float[A], GPUs (``shares``). ``received`` : Float[A], over entitled, the next lease of a gang included.
    least : Int[A], GPUs of the smallest gang that waits.
    """

    snapshot: Snapshot
    share: Float
    received: Float
    least: Int

    @classmethod
    def of(cls, s: Snapshot) -> Turns:
        """The turns of these apps."""
        if not s.weighted:
            none = np.zeros(s.apps)
            return cls(s, none, none, np.zeros(s.apps, dtype=np.int64))
        least = least_waiting(s)
        entitled = (s.app_elapsed + s.lease_s) * s.app_capacity / s.app_contention
        return cls(s, shares(s), (s.app_attained + least * s.lease_s) / entitled, least)

    def keys(self, rows: Int, has: Float | Int) -> tuple[Float, Float]:
        """(rank, value) of the next gangs of app rows that have so many GPUs, the least first, each [len(rows)]."""
        per_weight = has / self.snapshot.app_weight[rows]
        if not self.snapshot.weighted:
            return np.zeros(len(rows)), per_weight
        share = self.share[rows] + 1e-9
        rank = np.where(has + self.least[rows] <= share, WHOLE, np.where(has < share - 2e-9, TURN, BEYOND))
        return rank, np.where(rank == TURN, self.received[rows], per_weight)

    def key(self, a: int, has: float) -> tuple[float, float]:
        """``keys`` of one app."""
        per_weight = has / float(self.snapshot.app_weight[a])
        if not self.snapshot.weighted:
            return 0.0, per_weight
        share = float(self.share[a]) + 1e-9
        if has + float(self.least[a]) <= share:
            return WHOLE, per_weight
        return (TURN, float(self.received[a])) if has < share - 2e-9 else (BEYOND, per_weight)

    def waits(self, gpus: int) -> Bool:
        """[A], apps without GPUs whose share is less than a gang and whose turn it is not, where ``gpus`` are on offer.

        The whole gangs of the others' shares come first. What is left of the offer is for as many fractions as fit, those who
        received least first; with nothing left over, and no whole gang due, for one.
        """
        s = self.snapshot
        if not s.weighted:
            return np.zeros(s.apps, dtype=bool)
        least = np.maximum(self.least, 1)
        whole = np.floor((self.share + 1e-9) / least) * least
        due = float(np.maximum(whole - s.app_held, 0.0).sum())
        fraction = (self.share - whole > 2e-9) & (s.app_held < self.share) & (self.least > 0)
        rows = fraction.nonzero()[0]
        rows = rows[np.lexsort((s.app_id[rows], s.app_arrival[rows], self.received[rows]))]
        enough = least[rows].cumsum() <= max(gpus - due, 0.0)
        if len(rows) and due <= 0.0:
            enough[0] = True
        out: Bool = fraction & (whole == 0.0)
        out[rows[enough]] = False
        return out
