"""Number of epochs of a dynamic job's regimes: the posterior mean, by four rules (Shockwave §5).

Three are the paper's, of a job whose number of regimes K is known: its prior is Dirichlet, Dir(E/K, ..., E/K), of the shares of
its E epochs. POSTERIOR is ours: K is unknown, 1 included, and given K the shares are Dir(1, ..., 1), which is to say that its K - 1
changes come at all epochs with equal chance. Arrays are
over jobs; of each, ``past`` epochs were done in finished regimes, ``seen`` in the ongoing one, and ``later`` regimes are
expected after it. Which batch sizes these have is the business of ``model.dynamic``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from themis.errors import InputError
from themis.model.units import Float, Int


class Rule(StrEnum):
    """Update rule for regimes that have not ended.

    POSTERIOR: there may be none after the ongoing one, or any number up to what the job declares. RESTATEMENT: they share the
    remaining epochs evenly (Shockwave). BAYES: the standard update of the prior. GREEDY: the ongoing one lasts to the end, as
    reactive schedulers take it.
    """

    POSTERIOR = "posterior"
    RESTATEMENT = "restatement"
    BAYES = "bayes"
    GREEDY = "greedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecaster:
    """Options of the forecasts that a policy is shown.

    Attributes
    ----------
    rule : of the update. ``noise`` : p in [0, 1], forecast times are off by factors that differ from job to job, uniform
        in 1 - p to 1 + p (Shockwave §8.10).
    """

    rule: Rule = Rule.POSTERIOR
    noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= 1:
            raise InputError(f"forecast noise is {self.noise}, expected a share from 0 to 1.")


FORECASTER = Forecaster()


def expected(rule: Rule, total: Float, past: Float, seen: Float, finished: Int, later: Int) -> tuple[Float, Float]:
    """Posterior mean of the epochs of the ongoing regime, and of each regime after it, [J] both.

    RESTATEMENT: after k regimes of m_1..m_k epochs the posterior is Dir(m_1..m_k, S..S), S = (E - sum m) / (K - k). The
    ongoing regime lasts at least one epoch more than was seen of it: max(S, seen + 1), never more than is left; the others
    share what remains. With the finished ones the means add up to E.

    BAYES: every epoch is a draw, Dir(E/K + n_1, ..., E/K + n_K) after n_i epochs of each, so E (E/K + n_i) / (E + sum n).
    These means add up to E with those of finished regimes, which differ from what was observed.

    Source: Shockwave §5. Differs from the paper: it does not say what becomes of an ongoing regime that outlasts S.
    """
    assert rule is not Rule.POSTERIOR, "needs a prior: see changes_ahead"
    regimes = finished + 1 + later
    left = np.maximum(total - past, 0.0)
    if rule is Rule.GREEDY:
        return left, np.zeros_like(left)
    if rule is Rule.BAYES:
        prior, scale = total / regimes, total / (total + past + seen)
        return (prior + seen) * scale, np.where(later > 0, prior * scale, 0.0)
    even = left / (1 + later)
    ongoing = np.where(later > 0, np.minimum(np.maximum(even, seen + 1.0), left), left)
    return ongoing, np.where(later > 0, (left - ongoing) / np.maximum(later, 1), 0.0)


def ahead(rule: Rule, total: Float, past: Float, seen: Float, finished: Int, later: Int) -> tuple[Float, Float]:
    """Epochs that are still to come of the ongoing regime, and of each regime after it, [J] both; they add up to what is left.

    The standard update's means do not add up to that: they are scaled to it.
    """
    ongoing, each = expected(rule, total, past, seen, finished, later)
    rest = np.maximum(ongoing - seen, 0.0)
    left = np.maximum(total - past - seen, 0.0)
    forecast = rest + each * later
    scale = np.divide(left, forecast, out=np.zeros_like(left), where=forecast > 0)
    return np.where(forecast > 0, rest * scale, left), each * scale


def changes_ahead(prior: Float, total: Float, done: Float, finished: Int) -> Float:
    """[J, C], probability that 0, 1, ..., C - 1 changes are still to come (POSTERIOR).

    With c changes in all, each equally likely at any of the E epochs, that the first f = ``finished`` came where they did and
    none since has the density c! / (c - f)! (1 - d/E)^(c - f). So p(m to come) is prior[f + m] (f + m)! / m! q^m, over its sum.

    Parameters
    ----------
    prior : Float[J, C], of the number of changes over the whole life; rows add up to 1. ``total`` : E, above 0.
    done : epochs done, in [0, E]. ``finished`` : Int[J], changes so far, below C.
    """
    count = prior.shape[1]
    m = np.arange(count)
    at = np.minimum(finished[:, None] + m, count - 1)
    weight = np.where(finished[:, None] + m < count, np.take_along_axis(prior, at, axis=1), 0.0)
    q = np.clip(1.0 - done / total, 0.0, 1.0)[:, None]
    growth = np.where(m > 0, q * (finished[:, None] + m) / np.maximum(m, 1), 1.0)
    out = weight * np.cumprod(growth, axis=1)
    # If rounding leaves no possible course, no further regime is expected.
    out[:, 0] = np.where(out.sum(axis=1) > 0, out[:, 0], 1.0)
    shares: Float = out / out.sum(axis=1, keepdims=True)
    return shares


def spread(chance: Float) -> Float:
    """[J, C], share of the epochs left that the ongoing regime, the first after it, ... has in the mean.

    With m changes to come the m + 1 regimes share what is left evenly, so the i-th has sum over m >= i of p(m) / (m + 1).
    """
    each = chance / (np.arange(chance.shape[1]) + 1.0)
    out: Float = np.cumsum(each[:, ::-1], axis=1)[:, ::-1]
    return out


RISK = 0.9
"""Quantile of a job's seconds left that the makespan's bound takes: work that may turn out long must not come last."""


def late_pace(chance: Float, pace: Float, quantile: float = RISK) -> Float:
    """[J], seconds per epoch left at this quantile of the posterior, at least the mean's.

    With m changes to come the mean pace of what is left is a flat Dirichlet mixture of the m + 1 paces, whose mean and variance are
    known; three points stand for it (Gauss and Hermite's, within the range of its paces).

    Parameters
    ----------
    chance : Float[J, C], as from ``changes_ahead``. ``pace`` : Float[J, C], seconds per epoch of the ongoing regime and of those
        that would come after it; what cannot come may be anything.
    """
    n = np.arange(pace.shape[1]) + 1.0
    mean = np.cumsum(pace, axis=1) / n
    deviation = np.sqrt(np.maximum(np.cumsum(pace**2, axis=1) / n - mean**2, 0.0) / (n + 1.0))
    low, high = np.minimum.accumulate(pace, axis=1), np.maximum.accumulate(pace, axis=1)
    points = np.concatenate([np.clip(mean + k * 3**0.5 * deviation, low, high) for k in (-1, 0, 1)], axis=1)
    weight = np.concatenate([chance * share for share in (1 / 6, 2 / 3, 1 / 6)], axis=1)
    order = np.argsort(points, axis=1, kind="stable")
    upto = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    first = np.argmax(upto >= quantile * upto[:, -1:] - 1e-12, axis=1)
    rows = np.arange(len(pace))
    out: Float = np.maximum(points[rows, order[rows, first]], (spread(chance) * pace).sum(axis=1))
    return out
