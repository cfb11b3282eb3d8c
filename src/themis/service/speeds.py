"""Speeds that come with a submission, a profile of its own for each such app, and those that jobs measure as they train."""

from __future__ import annotations

from dataclasses import dataclass, field

from themis.client import themis_pb2 as pb
from themis.errors import InputError
from themis.executors.program import Measurement
from themis.model.events import SpeedMeasured
from themis.model.units import Locality, Seconds
from themis.model.workload import Job
from themis.profiles.models import GENERIC, IDEAL
from themis.profiles.speed import DEFAULT_SLOWDOWN, Curve, Profile, ProfileBook

NEWS = 0.05
"""A measurement is news when it is off what is believed by more than this share; others leave the journal alone."""

APART_S: Seconds = 60.0
"""Between two pieces of news of one kind."""


@dataclass(slots=True)
class Lessons:
    """Which measurements are news: when each kind was last."""

    last: dict[tuple[object, ...], Seconds] = field(default_factory=dict)

    def hear(self, new: Measurement, book: ProfileBook, job: Job, now: Seconds) -> SpeedMeasured | None:
        """The event that a measurement is worth, or None.

        ``generic`` and ``ideal`` stand for models that nobody knows: what one job measures says nothing of the others.
        """
        if new.model in (GENERIC, IDEAL) or new.model not in book.profiles:
            return None
        rate = new.steps_per_s * job.scale(new.batch)
        partner = (new.partner, new.partner_batch) if new.partner else None
        believed = book.rate(new.model, new.batch, new.gpu_type, new.gpus, Locality(new.locality), partner)
        kind = (new.model, new.batch, new.gpu_type, new.gpus, new.locality, partner)
        if abs(rate - believed) <= NEWS * rate or now < self.last.get(kind, -APART_S) + APART_S:
            return None
        self.last[kind] = now
        return SpeedMeasured(
            model=new.model, batch=new.batch, gpu_type=new.gpu_type, gpus=new.gpus, locality=int(new.locality),
            steps_per_s=rate, partner=new.partner, partner_batch=new.partner_batch,
        )  # fmt: skip


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
