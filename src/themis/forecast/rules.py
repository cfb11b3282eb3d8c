"""How many epochs a dynamic job's regimes will have had: the posterior mean, by three rules (Shockwave §5).

The prior of a job of E epochs and K regimes is Dirichlet, Dir(E/K, ..., E/K), of the shares of its epochs. Arrays are
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
    """What is believed of regimes that have not ended.

    RESTATEMENT: they share the remaining epochs evenly (Shockwave). BAYES: the standard update of the prior. GREEDY: the
    ongoing one lasts to the end, as reactive schedulers take it.
    """

    RESTATEMENT = "restatement"
    BAYES = "bayes"
    GREEDY = "greedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecaster:
    """What a policy asks of the forecasts that it is shown.

    Attributes
    ----------
    rule : of the update. ``noise`` : p in [0, 1], forecast times are off by factors that differ from job to job, uniform
        in 1 - p to 1 + p (Shockwave §8.10).
    """

    rule: Rule = Rule.RESTATEMENT
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
