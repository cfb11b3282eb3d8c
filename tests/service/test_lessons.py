"""Which measurements of jobs are news to the speed model of a live service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from themis.core.state import State
from themis.machines.engines.program import Measurement
from themis.model.events import SpeedMeasured
from themis.model.speed import ProfileBook, linear
from themis.model.units import Locality
from themis.model.workload import App, Job
from themis.service.engine.speed_estimator import LEAST, SpeedEstimator
from themis.testing.builders import NO_OVERHEAD, app, job

BOOK = ProfileBook.of([linear("m", 1.0), linear("generic", 1.0)])
SEEN = Measurement(
    job=0, attempt=1, model="m", gpu_type="V100", gpus=2, locality=Locality.SLOT, steps_per_s=3.0, batch=64
)
ADA, BOB = (app("a", [job(1.0)], user=user) for user in ("ada", "bob"))


def hear(
    estimator: SpeedEstimator, new: Measurement, book: ProfileBook, who: App, spec: Job, now: float
) -> SpeedMeasured | None:
    """What a job says several times, and what that is worth in the end."""
    told = [estimator.measured(new, book, who, spec, now) for _ in range(LEAST)]
    assert not any(told[:-1])
    return told[-1]


def test_a_speed_that_is_not_believed_is_news_once_a_minute() -> None:
    estimator, spec = SpeedEstimator(BOOK), job(1.0, model="m")
    told = hear(estimator, SEEN, BOOK, ADA, spec, 10.0)
    assert told is not None
    assert (told.model, told.batch, told.gpu_type, told.gpus, told.steps_per_s) == ("m", 64, "V100", 2, 3.0)
    assert hear(estimator, SEEN, BOOK, ADA, spec, 60.0) is None
    assert hear(estimator, replace(SEEN, gpus=1), BOOK, ADA, spec, 60.0) is not None, "another gang is another kind"
    assert estimator.measured(SEEN, BOOK, ADA, spec, 70.0) is not None


def told_of(rates: Sequence[float], every: float = 0.5) -> list[tuple[int, float]]:
    """(which report, rate) of what is news where 2 steps/s are believed, and of what is believed from then on."""
    estimator, state, out = SpeedEstimator(BOOK), State(BOOK, NO_OVERHEAD), []
    for n, rate in enumerate(rates):
        new = replace(SEEN, steps_per_s=rate)
        told = estimator.measured(new, state.book, ADA, job(1.0, model="m"), every * n)
        if told is not None:
            out.append((n, told.steps_per_s))
            state.learn_speed(told)
    return out


def test_a_few_reports_that_are_far_off_are_no_news_and_a_mean_that_is_off_for_sure_is() -> None:
    """One in ten is of a process that had to wait, and the next one of steps that made up for it."""
    hiccups = [1.5 if n % 10 == 3 else 2.5 if n % 10 == 4 else 2.0 for n in range(400)]
    assert told_of(hiccups) == []
    assert told_of([1.2, *[2.0] * 100]) == [], "a slow beginning"
    ((when, rate),) = told_of([0.75 * rate for rate in hiccups[:50]])
    assert when < 10
    assert rate == pytest.approx(1.5, rel=0.1)
    assert told_of([1.0] * 5, every=600.0) == [(4, 1.0)], "reports may be ten minutes apart"


def test_a_speed_that_changes_is_news_within_two_minutes() -> None:
    told = told_of([*[2.0] * 1000, *[1.5] * 400])
    assert 0 < told[0][0] - 1000 <= 230
    assert [rate for _, rate in told] == sorted((rate for _, rate in told), reverse=True)
    assert told[-1][1] == 1.5


def test_what_is_believed_already_is_none() -> None:
    for rate in (1.92, 2.0, 2.09):
        assert hear(SpeedEstimator(BOOK), replace(SEEN, steps_per_s=rate), BOOK, ADA, job(1.0, model="m"), 0.0) is None


def test_steps_are_counted_in_those_of_the_model() -> None:
    told = hear(
        SpeedEstimator(BOOK), replace(SEEN, steps_per_s=1.5), BOOK, ADA, job(1.0, model="m", step_scale=2.0), 0.0
    )
    assert told is not None
    assert told.steps_per_s == pytest.approx(3.0)


def test_models_that_stand_for_all_unknown_ones_learn_nothing() -> None:
    for model in ("generic", "absent"):
        assert hear(SpeedEstimator(BOOK), replace(SEEN, model=model), BOOK, ADA, job(1.0, model=model), 0.0) is None


def heard(
    estimator: SpeedEstimator, who: App, rate: float, now: float, *, book: ProfileBook = BOOK, **more: object
) -> float:
    """The rate that is believed of what somebody's job measured, 0 if it is no news."""
    new = replace(SEEN, steps_per_s=rate, **more)  # type: ignore[arg-type]
    told = hear(estimator, new, book, who, job(1.0, model=new.model), now)
    return told.steps_per_s if told is not None else 0.0


def test_one_users_jobs_change_a_shared_speed_by_a_factor_of_two_at_most_however_often_they_say_it() -> None:
    """The profile says 2 steps/s for two GPUs."""
    for lie, bound in ((1e9, 4.0), (1e-9, 1.0)):
        estimator, believed = SpeedEstimator(BOOK), BOOK
        state = State(believed, NO_OVERHEAD)
        for n in range(20):
            new = replace(SEEN, steps_per_s=lie)
            told = [estimator.measured(new, state.book, ADA, job(1.0, model="m"), 60.0 * n) for _ in range(LEAST)][-1]
            if told is not None:
                state.learn_speed(told)
        assert state.book.rate("m", 64, "V100", 2, Locality.SLOT) == pytest.approx(bound)


def test_what_two_users_measured_alike_is_believed_and_one_of_them_alone_is_not() -> None:
    estimator = SpeedEstimator(BOOK)
    assert heard(estimator, ADA, 20.0, 0.0) == 4.0
    assert heard(estimator, replace(ADA, name="another"), 20.0, 60.0) == 4.0, "one user, two apps"
    assert heard(estimator, BOB, 19.0, 120.0) == 19.0
    assert heard(estimator, ADA, 20.0, 180.0) == 20.0
    assert heard(estimator, ADA, 1000.0, 240.0) == 38.0, "twice what the other measured"
    assert heard(estimator, BOB, 1.2, 300.0) == 1.2, "near to the profile"
    assert heard(estimator, ADA, 1000.0, 360.0) == 4.0


def test_a_pair_that_nobody_measured_is_compared_with_the_job_alone() -> None:
    assert heard(SpeedEstimator(BOOK), ADA, 50.0, 0.0, partner="other", partner_batch=8) == 4.0


def test_a_profile_of_a_submission_is_its_own_apps_to_correct() -> None:
    book = BOOK.with_profiles([linear("ada/a", 1.0)])
    assert heard(SpeedEstimator(BOOK), ADA, 50.0, 0.0, book=book, model="ada/a") == 50.0
    assert heard(SpeedEstimator(BOOK), BOB, 50.0, 0.0, book=book, model="ada/a") == 0.0
    assert heard(SpeedEstimator(BOOK), ADA, float("inf"), 0.0, book=book, model="ada/a") == 0.0
