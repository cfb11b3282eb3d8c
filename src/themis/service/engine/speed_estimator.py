"""Speeds given with a submission, in a separate profile for each such app, and speeds measured in training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from themis.errors import InputError
from themis.machines.engines.program import Measurement
from themis.model.events import SpeedMeasured
from themis.model.speed import DEFAULT_SLOWDOWN, Curve, Profile, ProfileBook
from themis.model.units import Locality, Seconds
from themis.model.workload import App, Job
from themis.schema import messages as schema
from themis.traces.profiles.models import GENERIC, IDEAL

NEWS = 0.05
"""A measurement changes an estimated speed when it differs by more than this share; the rest is not written to the journal."""

LEAST, SURE = 5, 2.0
"""Least number of reports, and of standard errors by which their mean has to differ as well: a report covers a second or two,
and some are far off, for instance after a process had to wait."""

APART_S: Seconds = 60.0
"""Seconds between two changes of one kind."""

FACTOR = 2.0
"""Largest factor by which one user's jobs alone may change a speed that other users' jobs share."""

Kind = tuple[str, int, str, int, Locality, tuple[str, int] | None]
"""Model, batch size, GPU type, GPUs, locality and partner."""


@dataclass(slots=True)
class Reports:
    """Mean and spread of the reports since an instant (Welford's sums)."""

    since: Seconds
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, rate: float) -> None:
        """One more report."""
        self.count += 1
        off = rate - self.mean
        self.mean += off / self.count
        self.squares += off * (rate - self.mean)

    @property
    def error(self) -> float:
        """Standard error of the mean; of two reports or more."""
        return math.sqrt(self.squares / (self.count - 1) / self.count)


@dataclass(slots=True)
class SpeedEstimator:
    """Decides which measurements change an estimated speed, and by how much.

    Attributes
    ----------
    shipped : the book that the service was started with; other profiles came with submissions, one app each.
    reports : of each kind and user, those since the last change; they begin again after a minute without any.
    last : time of the last change of each kind. ``latest`` : what each user's jobs measured last, by kind.
    """

    shipped: ProfileBook
    reports: dict[tuple[Kind, str], Reports] = field(default_factory=dict)
    last: dict[Kind, Seconds] = field(default_factory=dict)
    latest: dict[Kind, dict[str, float]] = field(default_factory=dict)

    def measured(self, new: Measurement, book: ProfileBook, app: App, job: Job, now: Seconds) -> SpeedMeasured | None:
        """The event that the measurements of a user's jobs amount to with this one, or None.

        ``generic`` and ``ideal`` stand for unknown models: what one job measures says nothing of the others.
        """
        if new.model in (GENERIC, IDEAL) or new.model not in book.profiles:
            return None
        rate = new.steps_per_s * job.scale(new.batch)
        if not 0.0 < rate < math.inf:
            return None
        partner = (new.partner, new.partner_batch) if new.partner else None
        kind = (new.model, new.batch, new.gpu_type, new.gpus, Locality(new.locality), partner)
        if new.model not in self.shipped.profiles and new.model != own_profile(app):
            return None
        reports = self._reports(kind, app.user, rate, now)
        if reports.count < LEAST:
            return None
        rate = reports.mean
        if new.model in self.shipped.profiles:
            rate = self._bounded(kind, rate, app.user)
        estimated = book.rate(*kind)
        if rate == 0.0 or abs(rate - estimated) <= max(NEWS * rate, SURE * reports.error):
            return None
        if now < self.last.get(kind, -APART_S) + APART_S:
            return None
        self.last[kind] = now
        del self.reports[kind, app.user]
        return SpeedMeasured(
            model=new.model,
            batch=new.batch,
            gpu_type=new.gpu_type,
            gpus=new.gpus,
            locality=int(new.locality),
            steps_per_s=rate,
            partner=new.partner,
            partner_batch=new.partner_batch,
        )

    def _reports(self, kind: Kind, user: str, rate: float, now: Seconds) -> Reports:
        """The reports of a kind, this one included."""
        reports = self.reports.get((kind, user))
        if reports is None or (reports.count >= LEAST and now > reports.since + APART_S):
            reports = self.reports[kind, user] = Reports(since=now)
        reports.add(rate)
        return reports

    def _bounded(self, kind: Kind, rate: float, user: str) -> float:
        """Limit a speed to ``FACTOR`` of that at the service's start or of another user's measurement; 0 without."""
        # An unmeasured pair on one GPU is compared with the job alone.
        base = self.shipped.rate(*kind) or self.shipped.rate(*kind[:5])
        latest = self.latest.setdefault(kind, {})
        latest[user] = rate
        known = [base] * (base > 0) + [other for name, other in latest.items() if name != user]
        if not known:
            return 0.0
        nearest = min(known, key=lambda other: abs(math.log(rate / other)))
        return min(max(rate, nearest / FACTOR), nearest * FACTOR)


def own_profile(app: App) -> str:
    """Name of the profile that comes with an app's submission."""
    return f"{app.user}/{app.name}"


def read_profile(name: str, message: schema.Profile) -> Profile:
    """The profile of a message.

    Raises
    ------
    InputError : its figures make none.
    """
    if len(message.slowdown) not in (0, 4):
        raise InputError(
            f"a profile has {len(message.slowdown)} slowdowns, expected 4: slot, machine, rack, cross-rack."
        )
    a, b, c, d = message.slowdown or DEFAULT_SLOWDOWN
    return Profile(
        name=name,
        slowdown=(a, b, c, d),
        source="said by its submitter",
        curves={
            (curve.gpu_type, 0): Curve(gpus=tuple(curve.gpus), rate=tuple(curve.steps_per_s))
            for curve in message.curves
        },
        like={(curve.gpu_type, 0): curve.like for curve in message.curves if curve.like},
        checkpoint_s=7.5 if message.checkpoint_s is None else message.checkpoint_s,
    )
