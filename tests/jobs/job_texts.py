"""Job files for tests."""

from __future__ import annotations

import textwrap

from themis.jobs import Submission, parse


def faults(text: str, *, known: tuple[str, ...] | None = None, folder: str = "/work") -> list[str]:
    """What is wrong with a text, without the file's name."""
    reading = parse(textwrap.dedent(text), source="f.yaml", folder=folder, known=known)
    return [str(fault).removeprefix("f.yaml, ") for fault in reading.faults]


def jobs(text: str) -> tuple[Submission, ...]:
    """The submissions of a text without faults."""
    reading = parse(textwrap.dedent(text), source="f.yaml", folder="/work")
    assert not reading.faults, [str(fault) for fault in reading.faults]
    return reading.submissions


def job(text: str, base: str = "name: a\ncommand: python train.py {lr}\n") -> Submission:
    """One submission: ``base`` and these keys."""
    (found,) = jobs(base + textwrap.dedent(text))
    return found
