"""Apps that make no sense are refused where they are built, in one sentence."""

from __future__ import annotations

import pytest

from themis.errors import InputError
from themis.model.workload import Bag, CurveStopping, Group, Halving, Hyperband, Rung, Tuner, User, brackets_of
from themis.testing.builders import app, job

ONE = Halving(rungs=(Rung(jobs=1, steps=5.0),))
TWO = Halving(rungs=(Rung(jobs=2, steps=5.0), Rung(jobs=1, steps=7.0)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"check_steps": 0.0}, "check_steps 0.0, expected a number above 0"),
        ({"check_steps": float("nan")}, "check_steps nan"),
        ({"check_steps": 1.0, "keep": 0}, "keep 0, expected at least 1"),
        ({"check_steps": 1.0, "confidence": 1.0}, "confidence 1.0, expected at least 0.5 and less than 1"),
        ({"check_steps": 1.0, "confidence": 0.4}, "confidence 0.4"),
        ({"check_steps": 1.0, "warmup": 3}, "warmup 3, expected at least 4"),
        ({"check_steps": 1.0, "noise": -0.1}, "noise -0.1"),
    ],
)
def test_curve_stopping_that_makes_no_sense_is_refused(given: dict[str, float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        CurveStopping(**given)  # type: ignore[arg-type]


def test_hyperband_needs_brackets() -> None:
    with pytest.raises(InputError, match="no brackets"):
        Hyperband(brackets=())


@pytest.mark.parametrize(
    ("tuner", "says"),
    [
        (TWO, "3 jobs but its first rung has 2"),
        (Hyperband(brackets=(TWO, TWO)), "3 jobs but the first rungs of its brackets have 4"),
        (
            CurveStopping(check_steps=1e-6),
            "2e.07 reports of its longest job; expected at most 10000. Raise check_steps",
        ),
    ],
)
def test_an_app_and_its_tuner_must_agree(tuner: Tuner, says: str) -> None:
    with pytest.raises(InputError, match=says):
        app("a", [job(20.0, name=f"j{i}") for i in range(3)], tuner=tuner)


def test_brackets_are_those_of_sweeps_in_rungs() -> None:
    assert brackets_of(TWO) == (TWO,)
    assert brackets_of(Hyperband(brackets=(TWO, ONE))) == (TWO, ONE)
    assert brackets_of(Bag()) == brackets_of(CurveStopping(check_steps=1.0)) == ()
    assert TWO.steps == 12.0


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_are_finite_numbers_above_0(weight: float) -> None:
    for build in (
        lambda: app("a", [job(1.0)], weight=weight),
        lambda: User(name="a", weight=weight),
        lambda: Group(name="a", weight=weight),
    ):
        with pytest.raises(InputError, match=f"'a' has weight {weight}, expected more than 0"):
            build()
