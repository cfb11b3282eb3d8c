"""The `worst` of the measured pages is the figure that the command gives for the same run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import themis

REPRODUCTION = Path(__file__).parents[2] / "reproduction"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["drf", "fair_finish"])
def test_the_worst_of_the_pages_is_rho_attainable_of_the_command(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPRODUCTION))
    pages = runpy.run_path(str(REPRODUCTION / "fair_finish.py"))
    found = themis.simulate("demo", "demo-32", policy, seeds=[1], settings={"step_s": 60.0})
    assert pages["run"]("demo", policy, 1)["worst"] == pytest.approx(found.summary["rho_attainable_max"][0])
