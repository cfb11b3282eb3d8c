"""Tuners as text, in the ``tuner`` column of the generic CSV; what is written is read back exactly.

bag
halving 8x1000 4x2000                     rungs of jobs x steps, each for this many more steps
hyperband 8x100 4x200 | 4x150 2x300       brackets of rungs
curve check_steps=500 keep=2              curve stopping; keep, confidence, warmup and noise have defaults
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields

from themis.model.workload import Bag, CurveStopping, Halving, Hyperband, Rung, Tuner

TUNERS = (
    "nothing (all jobs run to the end), rungs like 'halving 8x1000 4x2000' (jobs x steps), brackets like "
    "'hyperband 8x100 4x200 | 4x150 2x300', "
    "or 'curve check_steps=500'"
)
"""Expected content of the column."""

_WHOLE = ("keep", "warmup")


def read_tuner(text: str) -> Tuner:
    """The tuner that a cell describes.

    Raises
    ------
    ValueError : the text has another form. InputError : it is, but its numbers make no tuner.
    """
    kind, _, rest = text.strip().partition(" ")
    match kind:
        case "bag" if not rest.strip():
            return Bag()
        case "halving":
            return _halving(rest)
        case "hyperband":
            return Hyperband(brackets=tuple(map(_halving, rest.split("|"))))
        case "curve":
            return _curve(rest)
    raise ValueError(text)


def write_tuner(tuner: Tuner) -> str:
    """The cell; empty for a bag."""
    match tuner:
        case Halving():
            return f"halving {_rungs(tuner)}"
        case Hyperband():
            return f"hyperband {' | '.join(map(_rungs, tuner.brackets))}"
        case CurveStopping():
            return " ".join(["curve", *_set_apart(tuner)])
        case _:
            return ""


def _halving(text: str) -> Halving:
    parts = [part.split("x") for part in text.split()]
    rungs = tuple(Rung(jobs=int(jobs), steps=float(steps)) for jobs, steps in parts)
    if not rungs or not all(math.isfinite(rung.steps) for rung in rungs):
        raise ValueError(text)
    return Halving(rungs=rungs)


def _curve(text: str) -> CurveStopping:
    pairs = [part.split("=") for part in text.split()]
    given = {name: int(value) if name in _WHOLE else float(value) for name, value in pairs}
    known = {f.name for f in fields(CurveStopping)}
    if "check_steps" not in given or not given.keys() <= known or len(given) < len(pairs):
        raise ValueError(text)
    return CurveStopping(**given)  # type: ignore[arg-type]


def _rungs(tuner: Halving) -> str:
    return " ".join(f"{rung.jobs}x{float(rung.steps)!r}" for rung in tuner.rungs)


def _set_apart(tuner: CurveStopping) -> list[str]:
    """Parameters that differ from their defaults."""
    values = [(f.name, getattr(tuner, f.name), f.default) for f in fields(tuner)]
    return [
        f"{name}={value if name in _WHOLE else float(value)!r}"
        for name, value, default in values
        if default is MISSING or value != default
    ]
