"""Measured step times correct the speed model (Themis §6.1, footnote 3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from themis.core.learning import Measured
from themis.machines.engines.program import Measurement
from themis.model.speed import ProfileBook, linear
from themis.model.units import Locality


def at(locality: Locality, rate: float, gpus: int = 4) -> Measurement:
    """A measurement of one model."""
    return Measurement(job=0, attempt=1, model="new", gpu_type="k80", gpus=gpus, locality=locality, steps_per_s=rate)


def test_the_slowdown_of_a_locality_is_the_best_rate_over_the_rate_there() -> None:
    measured = Measured()
    for m in (at(Locality.MACHINE, 10.0), at(Locality.RACK, 8.0), at(Locality.RACK, 50.0, gpus=8)):
        measured.take(m)
    assert measured.slowdowns("new") == {Locality.RACK: pytest.approx(1.25)}
    assert measured.slowdowns("other") == {}


def test_a_corrected_profile_gives_the_measured_rates_back() -> None:
    measured = Measured()
    for m in (at(Locality.SLOT, 10.0), at(Locality.RACK, 8.0), at(Locality.RACK, 14.0, gpus=8)):
        measured.take(m)
    book = ProfileBook.of([measured.corrected(linear("new", 1.0))])
    assert book.rate("new", 0, "k80", 4, Locality.SLOT) == pytest.approx(10.0)
    assert book.rate("new", 0, "k80", 4, Locality.RACK) == pytest.approx(8.0)
    assert book.rate("new", 0, "k80", 8, Locality.RACK) == pytest.approx(14.0)
    assert book.rate("new", 0, "v100", 2, Locality.SLOT) == pytest.approx(2.0), "other types keep what was assumed"


def test_measurements_are_smoothed_and_counted_in_steps_of_the_model() -> None:
    measured = Measured()
    measured.take(at(Locality.SLOT, 5.0), step_scale=2.0)
    measured.take(at(Locality.SLOT, 10.0), step_scale=2.0)
    assert list(measured.rates.values()) == [pytest.approx(0.8 * 10 + 0.2 * 20)]


@pytest.mark.parametrize("sizes", [(4,), (4, 1), (1, 4)])
def test_a_share_beside_a_partner_is_of_the_speed_of_a_gang_of_that_size_alone(sizes: tuple[int, ...]) -> None:
    """A gang of 4 that does 3 of its 4 steps/s keeps 0.75, and 0.5 on one GPU counts more."""
    measured = Measured()
    for gpus in sizes:
        rate = 3.0 if gpus == 4 else 0.5
        measured.take(replace(at(Locality.SLOT, rate, gpus), partner="other"))
    profile = measured.corrected(linear("new", 1.0))
    assert profile.share_beside("k80", 0, ("other", 0)) == pytest.approx(0.5 if 1 in sizes else 0.75)
