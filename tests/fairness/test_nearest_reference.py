"""Speeds of a new model on GPU types that its submitter does not name: those of the nearest measured model, until measured."""

from __future__ import annotations

import math

import pytest

from themis.core.learning import Measured
from themis.fairness.forecasts.believed import nearest_reference
from themis.model.events import SpeedMeasured
from themis.model.speed import ANY_TYPE, GUESSED, Curve, Profile, ProfileBook
from themis.traces.profiles.measured import gavel_book
from themis.traces.profiles.models import DEFAULT_BOOK

TYPES = ("V100", "P100", "K80")


def model(name: str, *rates: float) -> Profile:
    """A model measured on one and two GPUs of each type."""
    return Profile(
        name=name, curves={(kind, 0): Curve(gpus=(1, 2), rate=(rate, 1.5 * rate)) for kind, rate in zip(TYPES, rates)}
    )


BOOK = ProfileBook(
    profiles={p.name: p for p in (model("steep", 12, 3, 1), model("flat", 8, 6, 4), model("mild", 10, 5, 2.5))}
)


def test_the_reference_with_the_nearest_ratios_lends_its_speeds_and_its_scaling() -> None:
    known = {"V100": Curve(gpus=(1,), rate=(100.0,)), "P100": Curve(gpus=(1,), rate=(26.0,))}
    found = nearest_reference(BOOK, known, "K80")
    assert found is not None
    (name, _), curve = found
    assert name == "steep"
    assert curve.gpus == (1, 2)
    assert curve.rate == pytest.approx((100 / 12, 150 / 12))


def test_with_one_type_known_the_model_nearest_to_the_mean_stands_in() -> None:
    found = nearest_reference(BOOK, {"V100": Curve(gpus=(2,), rate=(20.0,))}, "K80")
    assert found is not None
    mean = sum(math.log(p.curves["K80", 0].unit / p.curves["V100", 0].unit) for p in BOOK.profiles.values()) / 3
    assert (
        found[0][0]
        == min(
            BOOK.profiles.values(),
            key=lambda p: abs(math.log(p.curves["K80", 0].unit / p.curves["V100", 0].unit) - mean),
        ).name
    )
    assert found[1].unit == pytest.approx(10.0 / 4), "a gang of two at 20 steps/s is 10 for each GPU"


def test_models_that_run_alike_on_all_types_or_were_not_measured_on_one_are_no_references() -> None:
    assert nearest_reference(DEFAULT_BOOK, {"V100": Curve(gpus=(1,), rate=(1.0,))}, "K80") is None
    assert nearest_reference(BOOK, {"V100": Curve(gpus=(1,), rate=(1.0,))}, "A100") is None


def test_estimates_of_gavels_models_from_the_others_are_nearer_than_the_same_speed_on_all_types() -> None:
    """Each model in turn is unknown on K80, and known on V100 and P100."""
    book, off, alike = gavel_book(), [], []
    for profile in book.profiles.values():
        for batch in sorted({batch for _, batch in profile.curves}):
            curves = {kind: profile.curves.get((kind, batch)) for kind in TYPES}
            if not all(curves.values()):
                continue
            others = ProfileBook(profiles={name: p for name, p in book.profiles.items() if name != profile.name})
            known = {kind: curve for kind, curve in curves.items() if curve is not None and kind != "K80"}
            found = nearest_reference(others, known, "K80")
            truth = profile.curves["K80", batch].unit
            assert found is not None
            off.append(abs(math.log(found[1].unit / truth)))
            alike.append(abs(math.log(known["V100"].unit / truth)))
    assert len(off) >= 20
    assert sum(off) < sum(alike)


def test_a_measurement_replaces_the_speed_that_stood_in_and_its_mark() -> None:
    profile = Profile(
        name="new",
        curves={("V100", 0): Curve(gpus=(1,), rate=(10.0,)), ("K80", 0): Curve(gpus=(1,), rate=(2.0,))},
        like={("K80", 0): "steep"},
    )
    assert profile.is_assumed("K80", 0, 1)
    assert profile.is_assumed("K80", 64, 1)
    assert not profile.is_assumed("V100", 0, 1)
    measured = Measured()
    measured.take(SpeedMeasured(model="new", gpu_type="K80", gpus=1, locality=0, steps_per_s=5.0))
    corrected = measured.corrected(profile)
    assert corrected.like == {}
    assert not corrected.is_assumed("K80", 0, 1)
    assert corrected.curves["K80", 0].rate == (5.0,)


def guessed(level: float) -> Profile:
    """A model of which only the time that it may take is known, with the speeds of ``steep`` on the other types."""
    curves = {(kind, 0): Curve(gpus=(1,), rate=(level * rate / 12,)) for kind, rate in zip(TYPES, (12, 3, 1))}
    like = {("V100", 0): GUESSED, ("P100", 0): "steep", ("K80", 0): "steep"}
    return Profile(name="new", curves={(ANY_TYPE, 0): Curve(gpus=(1,), rate=(level,)), **curves}, like=like)


def test_a_measurement_on_one_type_moves_the_speeds_that_stand_in_on_the_others_and_none_that_was_measured() -> None:
    profile, measured = guessed(120.0), Measured()
    measured.take(SpeedMeasured(model="new", gpu_type="K80", gpus=1, locality=0, steps_per_s=2.0))
    once = measured.corrected(profile)
    assert {key[0]: curve.unit for key, curve in once.curves.items()} == pytest.approx(
        {ANY_TYPE: 24.0, "V100": 24.0, "P100": 6.0, "K80": 2.0}
    )
    assert once.like == {("V100", 0): GUESSED, ("P100", 0): "steep"}
    # The V100 is half as fast as that, so what is left of the guess falls by the mean of both corrections.
    measured.take(SpeedMeasured(model="new", gpu_type="V100", gpus=1, locality=0, steps_per_s=12.0))
    for start in (once, profile):
        twice = measured.corrected(start)
        assert {key[0]: curve.unit for key, curve in twice.curves.items()} == pytest.approx(
            {ANY_TYPE: 24 / math.sqrt(2), "V100": 12.0, "P100": 6 / math.sqrt(2), "K80": 2.0}
        )
    # Speeds that the submitter named stay as they were said.
    said = Profile(name="new", curves=guessed(120.0).curves, like={("P100", 0): "steep"})
    assert measured.corrected(said).curves["P100", 0].unit == pytest.approx(30 * math.sqrt(2 / 10 * 12 / 120))


def test_gavels_models_measured_on_one_type_alone_are_known_better_on_the_others_than_at_one_speed_on_all() -> None:
    """Each model in turn is new, its speed guessed and then measured on V100, and everything else known of the others."""
    book, off, alike = gavel_book(), [], []
    for profile in book.profiles.values():
        for batch in sorted({batch for _, batch in profile.curves if profile.curves.get(("V100", batch))}):
            others = ProfileBook(profiles={name: p for name, p in book.profiles.items() if name != profile.name})
            guess = {"V100": Curve(gpus=(1,), rate=(7.0,))}
            found = {kind: nearest_reference(others, guess, kind) for kind in ("P100", "K80")}
            lent = {(kind, 0): one[1] for kind, one in found.items() if one is not None}
            new = Profile(
                name="new",
                curves={("V100", 0): guess["V100"], **lent},
                like=dict.fromkeys((("V100", 0), *lent), GUESSED),
            )
            truth = {kind: profile.curves[kind, batch].unit for kind in TYPES if (kind, batch) in profile.curves}
            measured = Measured()
            measured.take(SpeedMeasured(model="new", gpu_type="V100", gpus=1, locality=0, steps_per_s=truth["V100"]))
            corrected = measured.corrected(new)
            for kind in truth.keys() - {"V100"}:
                off.append(abs(math.log(corrected.curves[kind, 0].unit / truth[kind])))
                alike.append(abs(math.log(truth["V100"] / truth[kind])))
    assert len(off) >= 40
    assert sum(off) < sum(alike)
