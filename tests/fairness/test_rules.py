"""The Dirichlet rules of Shockwave §5, by hand and by what must hold for every job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from themis.errors import InputError
from themis.fairness.forecasts.rules import Forecaster, Rule, ahead, expected
from themis.model.units import Float, Int


def one(total: float, past: float, seen: float, finished: int, later: int) -> tuple[Float, Float, Float, Int, Int]:
    return np.array([total]), np.array([past]), np.array([seen]), np.array([finished]), np.array([later])


def means(rule: Rule, total: float, past: float, seen: float, finished: int, later: int) -> tuple[float, float]:
    ongoing, each = expected(rule, *one(total, past, seen, finished, later))
    return float(ongoing[0]), float(each[0])


def test_shockwave_5_the_prior_is_even_by_restatement_and_by_bayes() -> None:
    assert means(Rule.RESTATEMENT, 100, 0, 0, 0, 3) == (25, 25)
    assert means(Rule.BAYES, 100, 0, 0, 0, 3) == (25, 25)
    assert means(Rule.GREEDY, 100, 0, 0, 0, 3) == (100, 0)


def test_shockwave_5_restatement_keeps_what_ended_and_splits_the_rest_evenly() -> None:
    # E = 100, K = 4, m_1 = 10: S_1 = 90 / 3. Then m_2 = 50: S_2 = 40 / 2.
    assert means(Rule.RESTATEMENT, 100, 10, 0, 1, 2) == (30, 30)
    assert means(Rule.RESTATEMENT, 100, 10, 20, 1, 2) == (30, 30)
    assert means(Rule.RESTATEMENT, 100, 60, 5, 2, 1) == (20, 20)


def test_a_regime_that_outlasts_its_share_lasts_one_epoch_more_than_was_seen() -> None:
    assert means(Rule.RESTATEMENT, 100, 10, 45, 1, 2) == (46, 22)
    assert means(Rule.RESTATEMENT, 100, 10, 89.5, 1, 2) == (90, 0)


def test_the_last_regime_has_all_that_is_left() -> None:
    assert means(Rule.RESTATEMENT, 100, 60, 5, 3, 0) == (40, 0)


def test_the_standard_update_adds_what_was_seen_to_the_prior() -> None:
    # Dir(25, 25, 25, 25), 10 and 20 epochs seen of the first two: 100 * (25 + 20) / 130 and 100 * 25 / 130.
    assert means(Rule.BAYES, 100, 10, 20, 1, 2) == (pytest.approx(4500 / 130), pytest.approx(2500 / 130))


def test_what_is_ahead_under_the_standard_update_is_scaled_to_the_epochs_left() -> None:
    # Ongoing: 4500 / 130 - 20 more; two of 2500 / 130 each; 70 epochs are left.
    rest, each = 4500 / 130 - 20, 2500 / 130
    got = ahead(Rule.BAYES, *one(100, 10, 20, 1, 2))
    assert got[0][0] == pytest.approx(70 * rest / (rest + 2 * each))
    assert got[1][0] == pytest.approx(70 * each / (rest + 2 * each))


jobs = st.builds(
    lambda total, a, b, finished, later: (total, total * a * (finished > 0), total * (1 - a) * b, finished, later),
    st.floats(1, 5000),
    st.floats(0, 0.95),
    st.floats(0, 0.999),
    st.integers(0, 5),
    st.integers(0, 5),
)


@given(jobs, st.sampled_from([rule for rule in Rule if rule is not Rule.POSTERIOR]))
def test_what_is_ahead_adds_up_to_the_epochs_left_and_is_never_negative(
    job: tuple[float, float, float, int, int], rule: Rule
) -> None:
    ongoing, each = ahead(rule, *one(*job))
    total, past, seen, _, later = job
    assert ongoing[0] >= 0
    assert each[0] >= 0
    assert ongoing[0] + later * each[0] == pytest.approx(max(total - past - seen, 0.0), abs=1e-6)


@given(jobs)
def test_restated_means_add_up_to_all_epochs(job: tuple[float, float, float, int, int]) -> None:
    total, past, _, _, later = job
    ongoing, each = means(Rule.RESTATEMENT, *job)
    assert past + ongoing + later * each == pytest.approx(total)


@given(st.lists(st.floats(0.5, 200), min_size=1, max_size=6), st.integers(0, 4), st.floats(0, 1))
def test_standard_means_add_up_to_all_epochs(finished: list[float], later: int, share: float) -> None:
    total = sum(finished) * (1 + share)
    *before, seen = finished
    ongoing, each = means(Rule.BAYES, total, sum(before), seen, len(before), later)
    regimes = len(before) + 1 + later
    mine = sum(total * (total / regimes + m) / (total + sum(finished)) for m in before)
    assert mine + ongoing + later * each == pytest.approx(total)


@given(jobs, st.floats(0, 1))
def test_the_longer_a_regime_lasts_the_longer_it_is_forecast_to_be(
    job: tuple[float, float, float, int, int], less: float
) -> None:
    total, past, seen, finished, later = job
    for rule in (Rule.RESTATEMENT, Rule.GREEDY):
        now, then = means(rule, *job), means(rule, total, past, seen * less, finished, later)
        assert now[0] >= then[0] - 1e-9
        assert now[1] <= then[1] + 1e-9


def test_noise_is_a_share() -> None:
    with pytest.raises(InputError, match=r"noise is 1.5, expected a share from 0 to 1"):
        Forecaster(noise=1.5)
