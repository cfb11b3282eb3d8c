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
"""A measurement is news when it is off what is believed by more than this share; others leave the journal alone."""

APART_S: Seconds = 60.0
"""Between two pieces of news of one kind."""

FACTOR = 2.0
"""By so much may one user's jobs alone change a speed that others count on too."""

Kind = tuple[str, int, str, int, Locality, tuple[str, int] | None]
"""Model, batch size, GPU type, GPUs, locality and partner."""


@dataclass(slots=True)
class Lessons:
    """Which measurements are news, and how far each is believed.

    Attributes
    ----------
    shipped : the book that the service was started with; other profiles came with submissions, one app each.
    last : when there last was news of each kind. ``said`` : what each user's jobs measured last, by kind.
    """

    shipped: ProfileBook
    last: dict[Kind, Seconds] = field(default_factory=dict)
    said: dict[Kind, dict[str, float]] = field(default_factory=dict)

    def hear(self, new: Measurement, book: ProfileBook, app: App, job: Job, now: Seconds) -> SpeedMeasured | None:
        """The event that a measurement by a job of an app is worth, or None.

        ``generic`` and ``ideal`` stand for models that nobody knows: what one job measures says nothing of the others.
        """
        if new.model in (GENERIC, IDEAL) or new.model not in book.profiles:
            return None
        rate = new.steps_per_s * job.scale(new.batch)
        if not 0.0 < rate < math.inf:
            return None
        partner = (new.partner, new.partner_batch) if new.partner else None
        kind = (new.model, new.batch, new.gpu_type, new.gpus, Locality(new.locality), partner)
        if new.model in self.shipped.profiles:
            rate = self._bounded(kind, rate, app.user)
        elif new.model != own_profile(app):
            return None
        believed = book.rate(*kind)
        if rate == 0.0 or abs(rate - believed) <= NEWS * rate or now < self.last.get(kind, -APART_S) + APART_S:
            return None
        self.last[kind] = now
        return SpeedMeasured(
            model=new.model, batch=new.batch, gpu_type=new.gpu_type, gpus=new.gpus, locality=int(new.locality),
            steps_per_s=rate, partner=new.partner, partner_batch=new.partner_batch,
        )  # fmt: skip

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
