"""The examples are read, built, and say what their comments promise; each ends on eight virtual GPUs as its head says."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from processes import PATIENCE_S
from themis.client.client import Client
from themis.jobs import build, check, read_jobs
from themis.model.workload import Halving
from themis.service.operations.service_settings import load
from themis.service.operations.up import running

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = EXAMPLES / "jobs"
PATHS = sorted(JOBS.glob("*.yaml"))
STATES = {"completes": "completed", "fails": "failed"}


def promised(path: Path) -> dict[str, str]:
    """The state in which each app ends, by the head of its file."""
    head = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    return {name: STATES[verb] for name, verb in re.findall(rf"([\w-]+) ({'|'.join(STATES)})\b", head)}


@pytest.mark.parametrize("path", [*PATHS, EXAMPLES / "testbed" / "accordion.yaml"], ids=lambda path: path.stem)
def test_every_example_has_no_fault_and_builds(path: Path) -> None:
    assert check([path]) == []
    specs = read_jobs([path], folder=Path("/somewhere"))
    for spec in specs:
        built = build(spec, user="ada")
        assert len(built.programs) == len(built.app.jobs) == len(spec.trials)
    assert promised(path).keys() == {spec.name for spec in specs}


def test_the_sweep_example_has_the_rungs_that_it_tells() -> None:
    (spec,) = read_jobs([JOBS / "sweep.yaml"])
    assert isinstance(spec.tuner, Halving)
    assert [rung.jobs for rung in spec.tuner.rungs] == [9, 3, 1]
    assert [rung.steps for rung in spec.tuner.rungs] == pytest.approx([30, 60, 180])


@pytest.mark.slow
def test_every_example_ends_on_eight_virtual_gpus_as_its_head_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are submitted together, with steps of a fifth of the time; the one with PyTorch only where that is installed."""
    shutil.copytree(JOBS, tmp_path / "jobs")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    paths = [path for path in PATHS if path.stem != "anywhere" or importlib.util.find_spec("torch")]
    faster = {"lease": "4s", "tick": "1s", "container": "0.2s", "backoff": "0.5s", "port": 0}
    config = load(EXAMPLES / "eight-gpus.yaml", {**faster, "allow_root": os.geteuid() == 0, "single_trust": True})
    home = tmp_path / "home"
    home.mkdir()
    with running(home, config), Client(home) as client:
        assert sum(node.gpus for node in client.nodes()) == 8
        expected: dict[int, tuple[str, str]] = {}
        for path in paths:
            file = tmp_path / "jobs" / path.name
            file.write_text(path.read_text().replace("train.py", "train.py --pause 0.002"))
            for made in client.submit_file(file, folder=file.parent):
                expected[made.app] = (made.name, promised(path)[made.name])
        ended = {app: client.wait(app, PATIENCE_S) for app in expected}
        assert {app: (row.name, row.state) for app, row in ended.items()} == expected
        (failed,) = (row for row in ended.values() if row.state == "failed")
        assert "exit code 1" in failed.reason
        assert (tmp_path / "jobs" / "embeddings.txt").read_text().count("\n") == 100
        assert not (tmp_path / "jobs" / "shards").exists()
        trials = client.show("lr-search").jobs
        assert sorted(round(job.steps) for job in trials) == [30] * 6 + [90] * 2 + [270]
