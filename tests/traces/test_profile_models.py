"""The models of Table 4: figures, sources, and the two kinds of apps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from themis.model.units import Locality
from themis.traces.profiles.models import (
    DEFAULT_BOOK,
    TABLE_4,
    TABLE_4_MODELS,
    is_network_intensive,
    loss_curve,
    table_4_mix,
)


def test_table_1_vgg16_slows_down_by_1_289_across_machines_and_inception_not_at_all() -> None:
    assert DEFAULT_BOOK.get("VGG16").slowdown[Locality.RACK] == pytest.approx(103.6 / 80.4, abs=5e-4)
    assert DEFAULT_BOOK.get("Inception-v3").slowdown[Locality.RACK] == 1.0


def test_table_1_four_gpus_of_one_machine_reach_the_papers_images_per_second() -> None:
    for model, images in (("VGG16", 103.6), ("Inception-v3", 242)):
        assert 64 * DEFAULT_BOOK.rate(model, 0, "gpu", 4, Locality.MACHINE) == pytest.approx(images, rel=1e-3)


def test_table_4_has_eleven_models_of_10_60_30_percent() -> None:
    mix = table_4_mix()
    assert len(mix) == len(TABLE_4_MODELS) == 11
    for category, share in (("CV", 0.1), ("NLP", 0.6), ("Speech", 0.3)):
        assert sum(p for m, p in mix.items() if DEFAULT_BOOK.get(m).category == category) == pytest.approx(share)


@pytest.mark.parametrize("figures", TABLE_4, ids=lambda m: m.name)
def test_every_model_says_whether_it_is_measured_or_assumed(figures) -> None:  # type: ignore[no-untyped-def]
    profile = DEFAULT_BOOK.get(figures.name)
    assert profile.source.startswith(("measured: ", "assumption: "))
    assert 5 <= profile.checkpoint_s <= 10
    assert profile.slowdown[Locality.CROSS_RACK] >= profile.slowdown[Locality.RACK] >= 1
    assert figures.loss_start > figures.loss_floor > 0


def test_the_generic_model_has_the_papers_default_slowdown_and_the_ideal_one_none() -> None:
    assert DEFAULT_BOOK.get("generic").slowdown == (1.0, 1.0, 1.1, 1.3)
    assert DEFAULT_BOOK.get("ideal").slowdown == (1.0, 1.0, 1.0, 1.0)
    assert DEFAULT_BOOK.rate("generic", 0, "gpu", 1, Locality.SLOT) == 1.0


def test_both_kinds_of_models_exist_and_the_papers_examples_are_one_of_each() -> None:
    assert is_network_intensive(DEFAULT_BOOK.get("VGG16"))
    assert not is_network_intensive(DEFAULT_BOOK.get("Inception-v3"))


def test_a_loss_curve_falls_from_the_start_towards_its_floor() -> None:
    curve = loss_curve("VGG16", 1000.0)
    assert curve.at(0) == pytest.approx(6.9)
    assert curve.at(1000) == pytest.approx(1.3 + (6.9 - 1.3) / 21)
    assert loss_curve("VGG16", 1000.0, difficulty=100.0).at(1000) == pytest.approx(6.9)
    assert loss_curve("of my own", 10.0).at(0) == pytest.approx(1.0)


def test_figures_from_gavel_are_those_of_its_table() -> None:
    root = Path(os.environ.get("THEMIS_DATA") or Path(__file__).parents[2] / "../shared/data")
    path = root / "gavel" / "tables" / "simulation_throughputs.json"
    if not path.is_file():
        pytest.skip(f"Gavel's table is not at {path}; set THEMIS_DATA")
    table = json.loads(path.read_text())
    for model, theirs in (
        ("ResNet50", "ResNet-50 (batch size 64)"),
        ("LangModel", "LM (batch size 20)"),
        ("Transformer", "Transformer (batch size 64)"),
    ):
        one, four = str((theirs, 1)), str((theirs, 4))
        together, apart = (table[t][four]["null"] for t in ("p100", "p100_unconsolidated"))
        profile = DEFAULT_BOOK.get(model)
        assert profile.slowdown[Locality.RACK] == pytest.approx(max(1.0, together / apart), abs=1e-3)
        assert DEFAULT_BOOK.rate(model, 0, "P100", 1, Locality.SLOT) == pytest.approx(
            table["p100"][one]["null"], rel=2e-3
        )
