"""Values with units: "2..8" GPUs, "16 GiB", "2h30m", "0-9%4", "90 epochs".

Every function takes a YAML value (text or number) and returns the number, or raises ``Unreadable`` with what was expected;
the caller adds where.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from themis import limits

Seconds: TypeAlias = float

MOST_JOBS = limits.JOBS.most
"""Maximum number of jobs of an app: of an array, or trials of a sweep."""
MOST_GPUS = int(limits.GPUS.most)
UNKNOWN_WORK_S: Seconds = 3.75 * 3600
"""Assumed run time of a job without estimates, on its fewest GPUs."""


class Unreadable(ValueError):
    """Expected form of an unreadable text."""


DURATION = "a time such as 90s, 45m, 2h30m, 1d12h or 02:30:00, at least 1ms, at most ten years"
_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|min|[wdhms])", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)", re.ASCII)


def duration(value: object, *, zero: bool = False) -> Seconds:
    """Seconds of ``90``, ``90s``, ``2h30m``, ``02:30:00`` or ``1-12:00:00``; at most ten years."""
    expected = DURATION.replace("at least 1ms", "0 or more") if zero else DURATION
    seconds = _number(value)
    if isinstance(value, str):
        text = value.strip()
        if clock := _CLOCK.fullmatch(text):
            days, hours, minutes, rest = (float(part or 0) for part in clock.groups())
            seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
        elif text and not _PART.sub("", text).strip():
            units = [unit for _, unit in _PART.findall(text)]
            if len(set(units)) < len(units):
                raise Unreadable(expected)
            seconds = sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(text))
    if not (limits.SECONDS if zero else limits.WALLTIME_S).holds(seconds):
        raise Unreadable(expected)
    assert seconds is not None
    return seconds


MEMORY = "memory with its unit, such as 16 GiB or 500 MB, above 0, at most 1 EiB"
_BYTES = {unit: 1024 ** (i + 1) for i, unit in enumerate("kmgtp")}
_BYTES |= {f"{unit}ib": 1024 ** (i + 1) for i, unit in enumerate("kmgtp")}
_BYTES |= {f"{unit}b": 1000 ** (i + 1) for i, unit in enumerate("kmgtp")} | {"b": 1}
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]+)", re.ASCII)


def duration_words(seconds: Seconds) -> str:
    """A time as ``duration`` reads it: ``10m``, ``2h30m``, ``1d12h``, ``0.5s``."""
    if seconds != int(seconds) or seconds <= 0:
        return f"{seconds:g}s" if seconds else "0"
    left, out = int(seconds), ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        out += f"{count}{unit}" if count else ""
    return out


def memory(value: object) -> int:
    """Bytes of ``16 GiB``, ``16GB`` (powers of 1000) or ``16G`` (of 1024, as in Slurm and Docker)."""
    form = _MEMORY.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if form is None or form[2] not in _BYTES:
        raise Unreadable(MEMORY)
    size = float(form[1]) * _BYTES[form[2]]
    if not 1 <= size <= limits.MEMORY.most:
        raise Unreadable(MEMORY)
    return int(size)


GPUS = f"a number of GPUs such as 4, or 2..8 for any number from 2 to 8, at least 1, at most {MOST_GPUS:,}"
_RANGE = re.compile(r"(\d{1,7})\s*\.\.\s*(\d{1,7})", re.ASCII)


def gpus(value: object) -> tuple[int, int]:
    """Minimum and maximum GPUs of a gang: ``4`` or ``2..8``."""
    low = high = value
    if isinstance(value, str):
        form = _RANGE.fullmatch(value.strip())
        low, high = (int(form[1]), int(form[2])) if form else (0, 0)
    whole = isinstance(low, int) and isinstance(high, int) and not isinstance(low, bool)
    if not whole or not 1 <= low <= high <= MOST_GPUS:  # type: ignore[operator]
        raise Unreadable(GPUS)
    return low, high  # type: ignore[return-value]


ARRAY = (
    f"ascending indices such as 0-9, 0-20:5, 1,4,7 or 0-9%4 (at most 4 concurrently), or a count; at most {MOST_JOBS}"
)
_INDICES = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Ascending indices of an array of jobs, and how many may run concurrently (0: no limit)."""

    indices: tuple[int, ...]
    at_once: int = 0


def array(value: object) -> Array:
    """``0-9%4``, ``1,4,7-9``, ``0-20:5``, or a count: 10 is 0 to 9."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_JOBS:
            raise Unreadable(ARRAY)
        return Array(indices=tuple(range(value)))
    if not isinstance(value, str):
        raise Unreadable(ARRAY)
    text, percent, most = value.replace(" ", "").partition("%")
    if percent and not re.fullmatch(r"0*[1-9]\d{0,6}", most, re.ASCII):
        raise Unreadable(ARRAY)
    indices: list[int] = []
    for part in text.split(","):
        form = _INDICES.fullmatch(part)
        if form is None:
            raise Unreadable(ARRAY)
        first, last, step = int(form[1]), int(form[2] or form[1]), int(form[3] or 1)
        found = range(first, last + 1, step) if step else ()
        if not found or len(indices) + len(found) > MOST_JOBS or (indices and found[0] <= indices[-1]):
            raise Unreadable(ARRAY)
        indices += found
    return Array(indices=tuple(indices), at_once=int(most or 0))


WORK = "steps as a number, or work with its unit such as 90000 steps, 90 epochs or 40 gpu-hours, at least 0.001, at most 1e15"
_WORK = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?)\s*(steps?|epochs?|gpu-(?:hours?|minutes?|seconds?))", re.ASCII)
_GPU_SECONDS = {"gpu-hour": 3600.0, "gpu-minute": 60.0, "gpu-second": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work in ``step``, ``epoch`` or ``gpu-second`` (seconds on one reference GPU)."""

    amount: float
    unit: str = "step"

    def steps(self, steps_per_epoch: float) -> float:
        """The work in steps, for work in steps or epochs."""
        return self.amount * (steps_per_epoch if self.unit == "epoch" else 1.0)


def work(value: object) -> Work:
    """``90000``, ``90000 steps``, ``90 epochs`` or ``40 gpu-hours``."""
    amount, unit = _number(value), "step"
    if isinstance(value, str):
        form = _WORK.fullmatch(value.strip().lower())
        if form is None:
            raise Unreadable(WORK)
        amount, unit = float(form[1]), form[2].removesuffix("s")
        if unit in _GPU_SECONDS:
            amount, unit = amount * _GPU_SECONDS[unit], "gpu-second"
    if not limits.STEPS.holds(amount):
        raise Unreadable(WORK)
    assert amount is not None
    return Work(amount=amount, unit=unit)


def _number(value: object) -> float | None:
    """The value as a float; None if it is no number, not finite, or beyond every limit here."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) <= limits.DONE.most else None
