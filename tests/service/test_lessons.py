"""Which measurements of jobs are news to the speed model of a live service."""

from __future__ import annotations

from dataclasses import replace

import pytest

from themis.executors.program import Measurement
from themis.model.units import Locality
from themis.profiles.speed import ProfileBook, linear
from themis.service.speeds import Lessons
from themis.testing.builders import job

BOOK = ProfileBook.of([linear("m", 1.0), linear("generic", 1.0)])
SEEN = Measurement(
    job=0, attempt=1, model="m", gpu_type="V100", gpus=2, locality=Locality.SLOT, steps_per_s=3.0, batch=64
)


def test_a_speed_that_is_not_believed_is_news_once_a_minute() -> None:
    lessons, spec = Lessons(), job(1.0, model="m")
    told = lessons.hear(SEEN, BOOK, spec, 10.0)
    assert told is not None
    assert (told.model, told.batch, told.gpu_type, told.gpus, told.steps_per_s) == ("m", 64, "V100", 2, 3.0)
    assert lessons.hear(SEEN, BOOK, spec, 60.0) is None
    assert lessons.hear(replace(SEEN, gpus=1), BOOK, spec, 60.0) is not None, "another gang is another kind"
    assert lessons.hear(SEEN, BOOK, spec, 70.0) is not None


def test_what_is_believed_already_is_none() -> None:
    for rate in (1.92, 2.0, 2.09):
        assert Lessons().hear(replace(SEEN, steps_per_s=rate), BOOK, job(1.0, model="m"), 0.0) is None


def test_steps_are_counted_in_those_of_the_model() -> None:
    told = Lessons().hear(SEEN, BOOK, job(1.0, model="m", step_scale=2.0), 0.0)
    assert told is not None
    assert told.steps_per_s == pytest.approx(6.0)


def test_models_that_stand_for_all_unknown_ones_learn_nothing() -> None:
    assert Lessons().hear(replace(SEEN, model="generic"), BOOK, job(1.0, model="generic"), 0.0) is None
    assert Lessons().hear(replace(SEEN, model="absent"), BOOK, job(1.0, model="absent"), 0.0) is None
