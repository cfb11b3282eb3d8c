"""Speeds that come with a submission, a profile of its own for each such app, and those that jobs measure as they train."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from themis.client import themis_pb2 as pb
from themis.errors import InputError
from themis.executors.program import Measurement
from themis.model.events import SpeedMeasured
from themis.model.units import Locality, Seconds
from themis.model.workload import App, Job
from themis.profiles.models import GENERIC, IDEAL
from themis.profiles.speed import DEFAULT_SLOWDOWN, Curve, Profile, ProfileBook

NEWS = 0.05
"""What was measured is news when it is off what is believed by more than this share; the rest leaves the journal alone."""

LEAST, SURE = 5, 2.0
"""So many reports are heard first, and the mean of them has to be off by so many of its standard errors as well: a report is of
a second or two, and some of a job's many are far off, as after a process had to wait. The first one that is would be news."""

APART_S: Seconds = 60.0
"""Between two pieces of news of one kind."""

FACTOR = 2.0
"""By so much may one user's jobs alone change a speed that others count on too."""

Kind = tuple[str, int, str, int, Locality, tuple[str, int] | None]
"""Model, batch size, GPU type, GPUs, locality and partner."""


@dataclass(slots=True)
class Heard:
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
class Lessons:
    """Which measurements are news, and how far each is believed.

    Attributes
    ----------
    shipped : the book that the service was started with; other profiles came with submissions, one app each.
    heard : of each kind and user, the reports since the last news; without any for a minute, it begins anew.
    last : when there last was news of each kind. ``said`` : what each user's jobs measured last, by kind.
    """

    shipped: ProfileBook
    heard: dict[tuple[Kind, str], Heard] = field(default_factory=dict)
    last: dict[Kind, Seconds] = field(default_factory=dict)
    said: dict[Kind, dict[str, float]] = field(default_factory=dict)

    def hear(self, new: Measurement, book: ProfileBook, app: App, job: Job, now: Seconds) -> SpeedMeasured | None:
        """The event that what jobs of a user measured is worth with this measurement, or None.

        ``generic`` and ``ideal`` stand for models that nobody knows: what one job measures says nothing of the others.
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
        heard = self._heard(kind, app.user, rate, now)
        if heard.count < LEAST:
            return None
        rate = heard.mean
        if new.model in self.shipped.profiles:
            rate = self._bounded(kind, rate, app.user)
        believed = book.rate(*kind)
        if rate == 0.0 or abs(rate - believed) <= max(NEWS * rate, SURE * heard.error):
            return None
        if now < self.last.get(kind, -APART_S) + APART_S:
            return None
        self.last[kind] = now
        del self.heard[kind, app.user]
        return SpeedMeasured(
            model=new.model, batch=new.batch, gpu_type=new.gpu_type, gpus=new.gpus, locality=int(new.locality),
            steps_per_s=rate, partner=new.partner, partner_batch=new.partner_batch,
        )  # fmt: skip

    def _heard(self, kind: Kind, user: str, rate: float, now: Seconds) -> Heard:
        """What was heard of a kind, this report included."""
        heard = self.heard.get((kind, user))
        if heard is None or (heard.count >= LEAST and now > heard.since + APART_S):
            heard = self.heard[kind, user] = Heard(since=now)
        heard.add(rate)
        return heard

    def _bounded(self, kind: Kind, rate: float, user: str) -> float:
        """Within ``FACTOR`` of what the service was started with, or of what another user's jobs measured; 0 without either."""
        # Who shares GPUs although nobody has measured the pair is compared with the job alone.
        base = self.shipped.rate(*kind) or self.shipped.rate(*kind[:5])
        said = self.said.setdefault(kind, {})
        said[user] = rate
        known = [base] * (base > 0) + [other for name, other in said.items() if name != user]
        if not known:
            return 0.0
        nearest = min(known, key=lambda other: abs(math.log(rate / other)))
        return min(max(rate, nearest / FACTOR), nearest * FACTOR)


def own_profile(app: App) -> str:
    """Name of the profile that comes with an app's submission."""
    return f"{app.user}/{app.name}"


def read_profile(name: str, message: pb.Profile) -> Profile:
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
        name=name, slowdown=(a, b, c, d), source="said by its submitter",
        curves={(curve.gpu_type, 0): Curve(gpus=tuple(curve.gpus), rate=tuple(curve.steps_per_s)) for curve in message.curves},
        checkpoint_s=message.checkpoint_s if message.HasField("checkpoint_s") else 7.5,
    )  # fmt: skip
