"""Who had more than the equal share, who less, since when, and who lent to whom, from a log alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from report_cases import HEADER, Log, app, grant, revoke

from themis.model import events as e
from themis.model.cluster import Machine
from themis.report.lending import Lending

HOUR = 3600.0


def wanting(name: str, user: str, gpus: int, time: float = 0.0) -> e.AppSubmitted:
    """An app of one job that can use so many GPUs."""
    event = app(name, time, 1, user)
    return replace(event, app=replace(event.app, jobs=(replace(event.app.jobs[0], gpus_max=gpus),)))


START: Log = [
    (0.0, HEADER),
    (0.0, e.MachineJoined(machine=Machine(name="m", gpus=4, gpu_type="v100", rack="r"))),
    (0.0, wanting("A", "ann", 4)),
    (0.0, wanting("B", "bob", 4)),
]


def taken(log: Log, samples: int = 288) -> Lending:
    lending = Lending(samples)
    for time, record in log:
        lending.add(time, record)
    return lending


def test_one_who_waits_lends_to_the_one_who_runs_and_gets_it_back() -> None:
    log: Log = [*START, (0.0, grant(0, 0, 1, (0, 1, 2, 3)))]
    course = taken(log).course(HOUR)
    assert course.users == ("ann", "bob")
    np.testing.assert_allclose(course.entitled.sum(axis=0), [2 * HOUR, 2 * HOUR])
    np.testing.assert_allclose(course.leased.sum(axis=0), [4 * HOUR, 0])
    assert course.loans() == ((1, 0, pytest.approx(2 * HOUR)),)
    back: Log = [*log, (HOUR, revoke(0, 0, 1, "expired")), (HOUR, grant(1, 1, 1, (0, 1, 2, 3)))]
    course = taken(back).course(2 * HOUR)
    np.testing.assert_allclose(course.balance[-1], 0, atol=1e-6)
    assert {row[:2]: round(row[2] / HOUR, 6) for row in course.loans()} == {(1, 0): 2.0, (0, 1): 2.0}
    assert math.isnan(course.since(0)), "all is given back"
    later = taken(back).course(3 * HOUR)
    assert later.since(0) == later.since(1) == pytest.approx(2 * HOUR, abs=later.width)


def test_who_can_use_no_more_lends_nothing() -> None:
    log: Log = [*START[:2], (0.0, wanting("A", "ann", 4)), (0.0, wanting("B", "bob", 1))]
    log += [(0.0, grant(0, 0, 1, (0, 1, 2))), (0.0, grant(1, 1, 1, (3,)))]
    course = taken(log).course(HOUR)
    np.testing.assert_allclose(course.entitled.sum(axis=0), [3 * HOUR, HOUR])
    assert course.loans() == ()


def test_between_users_a_second_app_entitles_to_no_more() -> None:
    more: Log = [*START, (0.0, wanting("A2", "ann", 4))]
    assert taken(more).course(HOUR).entitled.sum(axis=0) == pytest.approx([8 / 3 * HOUR, 4 / 3 * HOUR])
    between: Log = [more[0], (0.0, e.FairnessSet(between="users")), *more[1:]]
    assert taken(between).course(HOUR).entitled.sum(axis=0) == pytest.approx([2 * HOUR, 2 * HOUR])


def test_idle_gpus_are_in_no_loan() -> None:
    assert taken(START).course(HOUR).loans() == ()


def test_samples_are_bounded_and_add_up_however_long_it_takes() -> None:
    log: Log = [*START, (0.0, grant(0, 0, 1, (0, 1, 2, 3)))]
    for k in range(1, 400):
        a, b = (0, 1) if k % 2 else (1, 0)
        attempt = k // 2 + 1
        log += [(k * HOUR, revoke(a, a, attempt, "expired")), (k * HOUR, grant(b, b, (k + 1) // 2 + 1, (0, 1, 2, 3)))]
    course = taken(log, samples=20).course(400 * HOUR)
    assert len(course.leased) <= 21
    assert course.leased.sum() == pytest.approx(1600 * HOUR)
    assert course.entitled.sum(axis=0) == pytest.approx([800 * HOUR, 800 * HOUR])
    assert course.start + course.width * len(course.leased) >= course.end


def test_nothing_yet_is_an_empty_course() -> None:
    course = Lending().course(5.0)
    assert (course.users, course.loans(), len(course.balance)) == ((), (), 0)
