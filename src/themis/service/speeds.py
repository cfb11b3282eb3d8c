"""Speeds that come with a submission: a profile of its own for each such app, kept in the journal."""

from __future__ import annotations

from themis.client import themis_pb2 as pb
from themis.errors import InputError
from themis.profiles.speed import DEFAULT_SLOWDOWN, Curve, Profile


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
