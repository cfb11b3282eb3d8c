"""Which measurements of jobs are news to the speed model of a live service."""

from __future__ import annotations

from dataclasses import replace

import pytest

from themis.core.state import State
from themis.executors.program import Measurement
from themis.model.units import Locality
from themis.model.workload import App
from themis.profiles.speed import ProfileBook, linear
from themis.service.speeds import Lessons
from themis.testing.builders import NO_OVERHEAD, app, job

BOOK = ProfileBook.of([linear("m", 1.0), linear("generic", 1.0)])
SEEN = Measurement(
    job=0, attempt=1, model="m", gpu_type="V100", gpus=2, locality=Locality.SLOT, steps_per_s=3.0, batch=64
)
ADA, BOB = (app("a", [job(1.0)], user=user) for user in ("ada", "bob"))


def test_a_speed_that_is_not_believed_is_news_once_a_minute() -> None:
    lessons, spec = Lessons(BOOK), job(1.0, model="m")
    told = lessons.hear(SEEN, BOOK, ADA, spec, 10.0)
    assert told is not None
    assert (told.model, told.batch, told.gpu_type, told.gpus, told.steps_per_s) == ("m", 64, "V100", 2, 3.0)
    assert lessons.hear(SEEN, BOOK, ADA, spec, 60.0) is None
    assert lessons.hear(replace(SEEN, gpus=1), BOOK, ADA, spec, 60.0) is not None, "another gang is another kind"
    assert lessons.hear(SEEN, BOOK, ADA, spec, 70.0) is not None


def test_what_is_believed_already_is_none() -> None:
    for rate in (1.92, 2.0, 2.09):
        assert Lessons(BOOK).hear(replace(SEEN, steps_per_s=rate), BOOK, ADA, job(1.0, model="m"), 0.0) is None


def test_steps_are_counted_in_those_of_the_model() -> None:
    told = Lessons(BOOK).hear(replace(SEEN, steps_per_s=1.5), BOOK, ADA, job(1.0, model="m", step_scale=2.0), 0.0)
    assert told is not None
    assert told.steps_per_s == pytest.approx(3.0)


def test_models_that_stand_for_all_unknown_ones_learn_nothing() -> None:
    assert Lessons(BOOK).hear(replace(SEEN, model="generic"), BOOK, ADA, job(1.0, model="generic"), 0.0) is None
    assert Lessons(BOOK).hear(replace(SEEN, model="absent"), BOOK, ADA, job(1.0, model="absent"), 0.0) is None


def heard(lessons: Lessons, who: App, rate: float, now: float, *, book: ProfileBook = BOOK, **more: object) -> float:
    """The rate that is believed of what somebody's job measured, 0 if it is no news."""
    new = replace(SEEN, steps_per_s=rate, **more)  # type: ignore[arg-type]
    told = lessons.hear(new, book, who, job(1.0, model=new.model), now)
    return told.steps_per_s if told is not None else 0.0


def test_one_users_jobs_change_a_shared_speed_by_a_factor_of_two_at_most_however_often_they_say_it() -> None:
    """The profile says 2 steps/s for two GPUs."""
    for lie, bound in ((1e9, 4.0), (1e-9, 1.0)):
        lessons, believed = Lessons(BOOK), BOOK
        state = State(believed, NO_OVERHEAD)
        for n in range(20):
            told = lessons.hear(replace(SEEN, steps_per_s=lie), state.book, ADA, job(1.0, model="m"), 60.0 * n)
            if told is not None:
                state.learn_speed(told)
        assert state.book.rate("m", 64, "V100", 2, Locality.SLOT) == pytest.approx(bound)


def test_what_two_users_measured_alike_is_believed_and_one_of_them_alone_is_not() -> None:
    lessons = Lessons(BOOK)
    assert heard(lessons, ADA, 20.0, 0.0) == 4.0
    assert heard(lessons, replace(ADA, name="another"), 20.0, 60.0) == 4.0, "one user, two apps"
    assert heard(lessons, BOB, 19.0, 120.0) == 19.0
    assert heard(lessons, ADA, 20.0, 180.0) == 20.0
    assert heard(lessons, ADA, 1000.0, 240.0) == 38.0, "twice what the other measured"
    assert heard(lessons, BOB, 1.2, 300.0) == 1.2, "near to the profile"
    assert heard(lessons, ADA, 1000.0, 360.0) == 4.0


def test_a_pair_that_nobody_measured_is_compared_with_the_job_alone() -> None:
    assert heard(Lessons(BOOK), ADA, 50.0, 0.0, partner="other", partner_batch=8) == 4.0


def test_a_profile_of_a_submission_is_its_own_apps_to_correct() -> None:
    book = BOOK.with_profiles([linear("ada/a", 1.0)])
    assert heard(Lessons(BOOK), ADA, 50.0, 0.0, book=book, model="ada/a") == 50.0
    assert heard(Lessons(BOOK), BOB, 50.0, 0.0, book=book, model="ada/a") == 0.0
    assert heard(Lessons(BOOK), ADA, float("inf"), 0.0, book=book, model="ada/a") == 0.0
