"""The README's picture of the demo is of the report as it is: its figures are those of a run (``make picture`` draws it)."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

import themis

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_figures_beside_the_picture_are_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (caption,) = re.findall(r"!\[(.*?)\]\(docs/img/demo\.png\)", text)
    quoted = {policy: value for value, policy in re.findall(r"([0-9.]+)[a-z ]* under (\w+)", caption)}
    (policies,) = re.findall(r"themis simulate --workload demo --policy (\S+) --seeds 0-9 --set step_s=60 ", text)
    assert set(quoted) <= set(policies.split(","))
    found = themis.simulate("demo", "demo-32", list(quoted), seeds=10, settings={"step_s": 60.0})
    worst = {
        policy: statistics.mean(run.rho_reference.max for run in found.runs if run.policy == policy)
        for policy in quoted
    }
    assert quoted == {policy: f"{mean:.2f}" for policy, mean in worst.items()}
