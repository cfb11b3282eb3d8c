"""GPU time above and below the equal share, and resulting loans: a fold over a log, in a bounded number of samples.

Entitled is the equal share between the unit of fairness in force, water-filled up to what each app can use
(``delivery``): a unit that can use no more is entitled to no more, and lends nothing. Leased counts from grants to
revocations. In each stretch of time those who had less than they were entitled to lent it to those who had more, in
proportion to the excess of these. GPUs that were on offer while no entitled app could use them are in no loan. Leaves
out: entitlements by policies' answers, and the use of leased time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from themis.model.events import AppSubmitted
from themis.model.log import Record
from themis.model.units import Float, GpuSeconds, Seconds
from themis.report.delivery import Delivery
from themis.report.metrics import FOLDED, Fold
from themis.report.outlook import Outlook
from themis.report.reference_finish import Reference

KINDS = FOLDED - {"Allocated", "SettingsChanged"}
"""Kinds of records that this fold reads."""
SAMPLES = 288
LEAST_S = 10.0
"""Between two samples at first; doubled whenever there are too many."""
EVEN = 1e-3
"""GPU hours; a balance nearer to 0 is even."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """GPU time that users were entitled to and had, over time.

    Attributes
    ----------
    start, width : seconds; stretch i covers start + i width to start + (i + 1) width, the last one to ``end``.
    users : U names. ``entitled``, ``leased`` : Float[T, U], GPU-seconds in each stretch.
    """

    start: Seconds
    width: Seconds
    end: Seconds
    users: tuple[str, ...]
    entitled: Float
    leased: Float

    @property
    def balance(self) -> Float:
        """[T, U], GPU-seconds received beyond the entitlement, from start to end of each stretch; below 0: lent."""
        out: Float = np.cumsum(self.leased - self.entitled, axis=0)
        return out

    def since(self, user: int) -> Seconds:
        """Time at which a user's balance got its present sign; NaN where it is even."""
        balance = self.balance[:, user] / 3600 if len(self.leased) else np.zeros(1)
        if abs(balance[-1]) < EVEN:
            return math.nan
        other = np.flatnonzero(balance * np.sign(balance[-1]) < EVEN)
        return self.start + self.width * (int(other[-1]) + 1 if len(other) else 0)

    def loans(self, most: int = 40) -> tuple[tuple[int, int, GpuSeconds], ...]:
        """(lender, borrower, GPU-seconds), the largest first; ``most`` : of them."""
        more = self.leased - self.entitled
        lent, borrowed = np.maximum(-more, 0.0), np.maximum(more, 0.0)
        on_top = borrowed.sum(axis=1)
        given = lent.sum(axis=1)
        # No more can have been lent than others had on top, and the other way round.
        share = np.divide(np.minimum(on_top, given), on_top * given, out=np.zeros(len(more)), where=on_top * given > 0)
        flows = (lent * share[:, None]).T @ borrowed
        order = np.argsort(-flows, axis=None, kind="stable")[:most]
        rows = [(*divmod(int(at), len(self.users)), float(flows.flat[at])) for at in order]
        return tuple((i, j, size) for i, j, size in rows if size >= EVEN * 3600)


class Lending:
    """Fold of records of ``KINDS`` in order; ``course`` may be read at any time."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self._fold = Fold()
        self._fold.delivery = Delivery(equal=True)
        self._users: dict[str, int] = {}
        self._user_of: list[int] = []
        """User of each app."""
        self._start = math.nan
        self._width = LEAST_S
        self._taken: list[tuple[Float, Float]] = []
        """At the end of each full stretch: cumulative entitlement and use of users, [U at that time] each."""

    def add(self, time: Seconds, record: Record) -> None:
        """Take one record in; times never fall."""
        if math.isnan(self._start):
            self._start = time
        self._sample(time)
        self._fold.add(time, record)
        if isinstance(record, AppSubmitted):
            self._user_of.append(self._users.setdefault(record.app.user, len(self._users)))

    @property
    def reference(self) -> Reference:
        """Ends of apps on their own share, by the records so far."""
        return self._fold.reference

    @property
    def outlook(self) -> Outlook:
        """Forecasts of apps, by the records so far."""
        return self._fold.outlook

    def course(self, now: Seconds) -> Course:
        """Course up to ``now``, which is no earlier than the last record."""
        if math.isnan(self._start):
            empty = np.zeros((0, 0))
            return Course(start=now, width=self._width, end=now, users=(), entitled=empty, leased=empty)
        self._sample(now)
        size = len(self._users)
        taken = [*self._taken, self._totals(now)]
        entitled, leased = (
            np.diff(np.array([np.pad(row[k], (0, size - len(row[k]))) for row in taken]), axis=0, prepend=0.0)
            for k in (0, 1)
        )
        users = tuple(self._users)
        return Course(start=self._start, width=self._width, end=now, users=users, entitled=entitled, leased=leased)

    def _sample(self, time: Seconds) -> None:
        """Take the samples that are due before this time."""
        while (time - self._start) / self._width > self.samples:
            self._taken = self._taken[1::2]
            self._width *= 2
        while (end := self._start + self._width * (len(self._taken) + 1)) < time:
            self._taken.append(self._totals(end))

    def _totals(self, time: Seconds) -> tuple[Float, Float]:
        """[U] each, at a time between the last record and the next: GPU-seconds entitled to and had since the start."""
        due, fold = self._fold.delivery.entitled(time)[0], self._fold
        leased = np.array([app.gpu_seconds for app in fold.ledger.apps])
        for lease in fold.leases.held.values():
            leased[lease.app] += lease.gpus * lease.held_s(time)
        users, size = np.array(self._user_of, dtype=np.int64), len(self._users)
        entitled, leased = (np.bincount(users, weights=column, minlength=size)[:size] for column in (due, leased))
        return entitled.astype(np.float64), leased.astype(np.float64)
