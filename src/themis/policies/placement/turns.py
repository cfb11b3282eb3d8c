"""Order of weighted turns for GPUs, also where a share is less than one gang; a pure function of the snapshot.

The unit is the app, or the user where fairness is between users or groups (``Snapshot.between``); of a user's apps the
one with fewest GPUs per weight is next, then the one that is furthest behind. A unit's share is its weighted part of
the GPUs in service, water-filled up to what it can use. Most shares are no whole number of gangs. The whole gangs of a
share are allocated first. The remaining GPUs make up the fractions, and go to the units with the lowest ratio of GPU
time received to GPU time entitled to at the end of a lease that began now:

(GPU-seconds so far + (GPUs held + next gang) * lease) / ((elapsed + lease) R_C / N_avg)

No unit holds more than one gang beyond its share to make up for a deficit, and in the long run all receive the same per
weight (decision 0024). The next lease counts, as in fair queueing by finish times (Demers, Keshav and Shenker 1989): an
app that has just arrived, with a share of a third of a gang, waits two leases for its first one. Otherwise a user could
always be served first by submitting new apps. Where all weights are equal this does not apply: the smallest share per
weight is next.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float, Int
from themis.policies.placement.grants import least_waiting

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


Key = tuple[float, float, float, float]


@dataclass(slots=True)
class Turns:
    """Turns in one snapshot, while GPUs are allocated; units as above.

    Attributes
    ----------
    unit : Int[A], the unit of each app. ``has`` : Float[U], GPUs that it holds beyond this instant, and those allocated since.
    share : Float[U], GPUs (``shares``, summed). ``weight`` : Float[U], of its apps here together.
    received : Float[U], GPU-seconds so far. ``entitled`` : Float[U], those by the end of a lease that begins now.
    own : Float[A], GPUs of the app's own share. ``least`` : Int[A], GPUs of the smallest gang that waits.
    behind : Float[A], received over entitled of the app itself, the next lease of a gang included; if weights are
        equal, what it received per weight, or 0.
    """

    snapshot: Snapshot
    unit: Int
    has: Float
    share: Float
    weight: Float
    received: Float
    entitled: Float
    least: Int
    own: Float
    behind: Float

    @classmethod
    def of(cls, s: Snapshot, *, by_received: bool = False) -> Turns:
        """Ranks before any allocation.

        ``by_received`` : with equal weights and shares, the app that has received least GPU time is next.
        """
        if not s.weighted:
            none, no = np.zeros(0), np.zeros(0, dtype=np.int64)
            so_far = s.app_attained / s.app_weight if by_received else np.zeros(s.apps)
            return cls(s, no, none, none, none, none, none, no, none, so_far)
        least = least_waiting(s)
        entitled = (s.app_elapsed + s.lease_s) * s.app_capacity / s.app_contention
        behind = (s.app_attained + least * s.lease_s) / entitled
        unit, received = np.arange(s.apps), s.app_attained
        if s.unit_received is not None and s.unit_entitled is not None and s.unit_rate is not None:
            _, first, unit = np.unique(s.app_user, return_index=True, return_inverse=True)
            received = s.unit_received[first]
            entitled = (s.unit_entitled + s.unit_rate * s.lease_s)[first]
        own = shares(s)
        has, share, weight = (np.bincount(unit, x).astype(np.float64) for x in (s.app_held, own, s.app_weight))
        return cls(s, unit, has, share, weight, received, np.maximum(entitled, 1e-300), least, own, behind)

    def key(self, a: int, has: float) -> Key:
        """Sort key of an app row that has ``has`` GPUs by now; the smallest is next."""
        s = self.snapshot
        per_weight = has / float(s.app_weight[a])
        if not s.weighted:
            return 0.0, per_weight, float(self.behind[a]), 0.0
        u, step = int(self.unit[a]), float(self.least[a])
        own, share = float(self.has[u]), float(self.share[u]) + 1e-9
        if own + step > share and own < share - 2e-9:
            by_then = (float(self.received[u]) + (own + step) * s.lease_s) / float(self.entitled[u])
            return TURN, by_then, per_weight, float(self.behind[a])
        return (
            (WHOLE if own + step <= share else BEYOND),
            own / float(self.weight[u]),
            per_weight,
            float(self.behind[a]),
        )

    def keys(self, rows: Int, has: Float | Int) -> Float:
        """``key`` of app rows, [len(rows), 4]."""
        if not self.snapshot.weighted:
            out = np.zeros((len(rows), 4))
            out[:, 1], out[:, 2] = has / self.snapshot.app_weight[rows], self.behind[rows]
            return out
        return np.array([self.key(a, h) for a, h in zip(rows.tolist(), has.tolist())]).reshape(-1, 4)

    def take(self, a: int, gpus: int) -> None:
        """The app row was allocated this number of GPUs."""
        if self.snapshot.weighted:
            self.has[self.unit[a]] += gpus

    def waits(self, gpus: int) -> Bool:
        """[A], apps without GPUs, whose own share is less than a gang, and whose turn has not come.

        Smallest gangs allocated by turns leave nothing of the offer for them.

        This many GPUs are on offer. Where a gang is next that is larger than all of them, it alone is not kept waiting.
        """
        s = self.snapshot
        out = np.zeros(s.apps, dtype=bool)
        if not s.weighted:
            return out
        out |= (s.app_held == 0) & (self.own + 1e-9 < self.least)
        trial = replace(self, has=self.has.copy())
        has, most = s.app_held.astype(np.float64), np.add.reduceat(s.job_gpus_max, s.job_ptr[:-1])
        heap = [(*trial.key(a, float(has[a])), a) for a in np.flatnonzero(self.least > 0).tolist()]
        heapq.heapify(heap)
        left = gpus
        while heap and left > 0:
            *old, a = heapq.heappop(heap)
            now = trial.key(a, float(has[a]))
            if now > tuple(old):
                heapq.heappush(heap, (*now, a))
                continue
            step = int(self.least[a])
            if step <= left or left == gpus:
                out[a] = False
            left -= step
            has[a] += step
            trial.take(a, step)
            if has[a] + step <= most[a]:
                heapq.heappush(heap, (*trial.key(a, float(has[a])), a))
        return out
