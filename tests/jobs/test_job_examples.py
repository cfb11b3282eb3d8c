"""The examples are read, built, and say what their comments promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from themis.jobs import build, check, read_jobs
from themis.model.workload import Halving

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_has_no_fault_and_builds(path: Path) -> None:
    assert check([path]) == []
    for spec in read_jobs([path], folder=Path("/somewhere")):
        built = build(spec, user="ada")
        assert len(built.programs) == len(built.app.jobs) == len(spec.trials)


def test_the_sweep_example_has_the_rungs_that_it_tells() -> None:
    (spec,) = read_jobs([EXAMPLES / "sweep.yaml"])
    assert isinstance(spec.tuner, Halving)
    assert [rung.jobs for rung in spec.tuner.rungs] == [27, 9, 3, 1]
    assert [rung.steps for rung in spec.tuner.rungs] == pytest.approx([3_000, 6_000, 18_000, 54_000])
