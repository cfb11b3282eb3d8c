"""The rules of Shockwave's schedules, against every schedule of its trace."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from themis.errors import InputError
from themis.model.dynamic import Mode
from themis.traces.schedules import schedule


def runs(mode: Mode, model: str, batch: int, gpus: int, epochs: int) -> list[list[int]]:
    return [[r.batch, int(r.steps)] for r in schedule(mode, model, batch, gpus, epochs)]


def test_the_rules_give_every_dynamic_job_of_the_real_trace(shared_data: Path) -> None:
    jobs = json.loads((shared_data / "shockwave" / "bs_schedules" / "dynamic_120jobs_32gpu.json").read_text())
    dynamic = [job for job in jobs if job["mode"] != "static"]
    assert len(dynamic) == 116
    for job in dynamic:
        got = runs(Mode(job["mode"]), job["model"], job["bs_rle"][0][0], job["gpus"], job["epochs"])
        assert got == job["bs_rle"], job["id"]


def test_accordion_is_large_but_for_its_start_and_after_decays() -> None:
    assert runs(Mode.ACCORDION, "LM", 20, 1, 24) == [[20, 10], [80, 14]]
    assert runs(Mode.ACCORDION, "ResNet-18", 64, 1, 236) == [[64, 71], [256, 79], [64, 10], [256, 76]]
    assert runs(Mode.ACCORDION, "LM", 80, 1, 24) == [[80, 24]]
    assert runs(Mode.ACCORDION, "LM", 20, 1, 7) == [[20, 7]]


def test_gns_doubles_and_one_that_climbed_twice_ends_where_it_began() -> None:
    assert runs(Mode.GNS, "LM", 10, 1, 23) == [[10, 11], [20, 10], [40, 1], [10, 1]]
    assert runs(Mode.GNS, "LM", 40, 1, 83) == [[40, 11], [80, 72]]
    assert runs(Mode.GNS, "LM", 40, 8, 83) == [[40, 83]]


@pytest.mark.parametrize("epochs", range(1, 130))
def test_a_schedule_has_its_epochs_and_no_two_alike_in_a_row(epochs: int) -> None:
    for mode in (Mode.GNS, Mode.ACCORDION):
        for model, batch in (("LM", 5), ("ResNet-50", 16), ("ResNet-18", 16)):
            regimes = runs(mode, model, batch, 1, epochs)
            assert sum(n for _, n in regimes) == epochs
            assert all(a[0] != b[0] for a, b in pairwise(regimes))


def test_what_has_no_schedule_is_refused() -> None:
    with pytest.raises(InputError, match="0 epochs"):
        schedule(Mode.GNS, "LM", 5, 1, 0)
    with pytest.raises(InputError, match="expected accordion or gns"):
        schedule(Mode.DECLARED, "LM", 5, 1, 3)
