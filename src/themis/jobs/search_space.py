"""Search spaces of sweeps: parameters, and the trials sampled from them.

Each parameter has its own random stream, from the seed and its name: adding a parameter or trials does not change other
values.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from themis.faults import did_you_mean
from themis.jobs.readers import plain
from themis.jobs.spec import Trial, Value
from themis.limits import shown
from themis.sizes import MOST_JOBS, Unreadable

DIGITS = 6
"""Significant digits of sampled numbers, so that commands and logs stay readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """Numbers from low to high, both included; ``log``: evenly over their magnitude; ``whole``: whole numbers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, u: float) -> Value:
        """The value at the share ``u`` of the range, in [0, 1)."""
        low, high = (self.low, self.high + 1) if self.whole else (self.low, self.high)
        value = low * math.exp(u * math.log(high / low)) if self.log else low + u * (high - low)
        if self.whole:
            return int(min(max(math.floor(value), self.low), self.high))
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the values; ``grid``: every value is used, with any sampler."""

    values: tuple[Value, ...]
    grid: bool = False

    def at(self, u: float) -> Value:
        """The value at the share ``u`` of the list, in [0, 1)."""
        return self.values[int(u * len(self.values))]


Domain: TypeAlias = NumberRange | Choice
Space: TypeAlias = Mapping[str, Domain]
FORMS = ("uniform", "loguniform", "int", "logint", "choice", "grid")
DOMAIN = (
    "a list of values, one value, or one of {uniform: [low, high]}, {loguniform: ...}, {int: ...}, {logint: ...}, "
    "{choice: [...]}, {grid: [...]}"
)


def domain(value: object) -> Domain:
    """A parameter as written."""
    if _scalar(value):
        return Choice(values=(value,))  # type: ignore[arg-type]
    if isinstance(value, list):
        return _listed(value, grid=False)
    if not isinstance(value, dict) or len(value) != 1:
        raise Unreadable(DOMAIN)
    ((form, given),) = value.items()
    if form not in FORMS:
        raise Unreadable(f"{DOMAIN}, not {shown(form)}.{did_you_mean(str(form), FORMS)}".rstrip("."))
    if form in ("choice", "grid"):
        return _listed(given, grid=form == "grid")
    return _numbers(form, given)


def _listed(given: object, *, grid: bool) -> Choice:
    if not isinstance(given, list) or not given or not all(map(_scalar, given)) or len(given) > MOST_JOBS:
        raise Unreadable("a non-empty list of values: text, finite numbers, true or false")
    return Choice(values=tuple(given), grid=grid)


def _numbers(form: str, given: object) -> NumberRange:
    whole, log = form.endswith("int"), form.startswith("log")
    kind = "whole numbers" if whole else "numbers"
    expected = f"two {kind} [low, high] with {'0 < ' if log else ''}low < high, at most 1e15 in size"
    if not isinstance(given, list) or len(given) != 2:
        raise Unreadable(expected)
    for bound in given:
        fits = isinstance(bound, int if whole else (int, float)) and not isinstance(bound, bool)
        if not fits or not -1e15 <= bound <= 1e15:
            raise Unreadable(expected)
    low, high = given
    if not low < high or (log and not low > 1e-300):
        raise Unreadable(expected)
    return NumberRange(low=low, high=high, log=log, whole=whole)


def _scalar(value: object) -> bool:
    if isinstance(value, (bool, str)):
        return isinstance(value, bool) or plain(value)
    if isinstance(value, int):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def points(space: Space, *, grid: bool) -> int:
    """Number of combinations of the enumerated parameters: all with the grid sampler, else those marked ``grid``.

    Raises
    ------
    Unreadable : the grid sampler needs a finite list of values, and a parameter has none.
    """
    product = 1
    for name, values in space.items():
        if grid or (isinstance(values, Choice) and values.grid):
            product *= len(_enumerated(name, values))
    return product


def sample(space: Space, trials: int, *, seed: int, grid: bool) -> tuple[Trial, ...]:
    """Sample trials. Enumerated parameters cycle through their combinations, the last parameter fastest."""
    listed = {n: _enumerated(n, d) for n, d in space.items() if grid or (isinstance(d, Choice) and d.grid)}
    streams = {name: random.Random(f"{seed}:{name}") for name in space if name not in listed}
    combinations = itertools.cycle(itertools.product(*listed.values()))
    out: list[Trial] = []
    for index, combination in zip(range(trials), combinations):
        drawn: dict[str, Value] = {name: space[name].at(stream.random()) for name, stream in streams.items()}
        drawn |= dict(zip(listed, combination))
        out.append(Trial(index=index, parameters={name: drawn[name] for name in space}))
    return tuple(out)


def _enumerated(name: str, values: Domain) -> tuple[Value, ...]:
    if isinstance(values, Choice):
        return values.values
    if not values.whole or values.high - values.low >= MOST_JOBS:
        bounds: Any = [values.low, values.high]
        raise Unreadable(f"lists or short ranges of whole numbers for the grid sampler; {name!r} has {shown(bounds)}")
    return tuple(range(int(values.low), int(values.high) + 1))
