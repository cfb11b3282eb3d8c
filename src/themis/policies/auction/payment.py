"""Payment of the hidden payment in whole gangs: c_a * G_a is rarely whole (Themis pseudocode 1, line 9).

Four forms: "time" keeps every gang for the share c of the lease; "floor" keeps floor(c * n) of n gangs; "randomised"
keeps a number of gangs with mean c * n; "lottery" keeps everything with probability c. Only "time" and the mean of the
last two charge exactly c; "floor" takes every single gang won at c < 1.
Differs from the paper: it multiplies a vector of whole GPUs by c and does not say how to round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from themis.errors import InputError, UnknownName
from themis.optimize.programs import Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaidGrant:
    """Gangs and lease that an app holds after paying.

    Attributes
    ----------
    gangs
        Shape [Z], gangs kept of each size.
    lease
        Seconds, >= 0.
    """

    gangs: Ints
    lease: float


Form = Callable[[float, Ints, float, "np.random.Generator | None"], PaidGrant]


def pay(form: str, kept: float, gangs: Ints, lease: float, rng: np.random.Generator | None = None) -> PaidGrant:
    """Apply c_a to a grant.

    Parameters
    ----------
    form
        One of `FORMS`.
    kept
        c_a in [0, 1]; 0 where exp(-cost / w) is below the least float, as of weights 1e-6 among weights 1e6.
    gangs
        Shape [Z], gangs won of each size, >= 0.
    lease
        Full lease in seconds, >= 0.
    rng
        Source of chance; "randomised" and "lottery" need one.

    Raises
    ------
    UnknownName
        When `form` is not in `FORMS`.
    InputError
        When `kept` or `lease` is out of range, or chance is needed and `rng` is missing.
    """
    if form not in FORMS:
        raise UnknownName("payment form", form, FORMS)
    if not 0.0 <= kept <= 1.0 or lease < 0.0:
        raise InputError(f"payment: kept must be in [0, 1] and lease >= 0 s; got {kept:g} and {lease:g}.")
    return FORMS[form](kept, np.asarray(gangs, np.int64), lease, rng)


def in_time(kept: float, gangs: Ints, lease: float, rng: np.random.Generator | None) -> PaidGrant:
    """All gangs, for the share c of the lease."""
    return PaidGrant(gangs=gangs, lease=kept * lease)


def by_floor(kept: float, gangs: Ints, lease: float, rng: np.random.Generator | None) -> PaidGrant:
    """floor(c * n) gangs of each size."""
    # c comes from exp(log sums): 2 gangs at c = 1 - 1e-16 must stay 2.
    return PaidGrant(gangs=np.floor(kept * gangs + 1e-9).astype(np.int64), lease=lease)


def at_random(kept: float, gangs: Ints, lease: float, rng: np.random.Generator | None) -> PaidGrant:
    """floor(c * n) gangs of each size, and one more with the probability that makes the mean c * n."""
    mean = kept * gangs
    whole = np.floor(mean + 1e-9)
    more = _chance(rng, "randomised").random(gangs.size) < mean - whole
    return PaidGrant(gangs=(whole + more).astype(np.int64), lease=lease)


def by_lottery(kept: float, gangs: Ints, lease: float, rng: np.random.Generator | None) -> PaidGrant:
    """All gangs with probability c, else nothing."""
    won = _chance(rng, "lottery").random() < kept
    return PaidGrant(gangs=gangs if won else np.zeros_like(gangs), lease=lease if won else 0.0)


def _chance(rng: np.random.Generator | None, form: str) -> np.random.Generator:
    if rng is None:
        raise InputError(f"payment form {form!r} needs a seeded generator; pass rng.")
    return rng


FORMS: dict[str, Form] = {"time": in_time, "floor": by_floor, "randomised": at_random, "lottery": by_lottery}
"""Payment forms by name; "time" is the default of the policies."""

DRAWN = frozenset({"randomised", "lottery"})
"""Forms that need chance."""
