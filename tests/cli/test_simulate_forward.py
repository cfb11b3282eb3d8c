"""`themis simulate` of a state: tables of 80 columns, JSON, and wrong input in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command

from themis.model.log import LogWriter
from themis.model.settings import Settings
from themis.policies.api import make_policy
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli-forward") / "fifo.jsonl.gz"
    simulation = Simulation(
        workload=load_workload("demo"),
        cluster=load_cluster("demo-32"),
        book=DEFAULT_BOOK,
        policy_name="fifo",
        policy=make_policy("fifo"),
        settings=Settings(),
    )
    with LogWriter(path) as writer:
        simulation.run(writer)
    return path


def test_a_log_that_is_over_shows_what_happened_beside_other_policies_within_80_columns(
    themis: Command, log: Path
) -> None:
    ended = themis("simulate", "-w", log, "-p", "drf", "--seeds", 1)
    assert ended.code == 0, ended.err
    assert "happened" in ended.out
    assert "Under drf" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    found = json.loads(themis("simulate", "-w", log, "-p", "current", "--seeds", "0-0", "--json").out)
    for app in found["apps"]:
        assert app["forecasts"][0]["median_s"] == pytest.approx(app["happened_s"], abs=1e-6), "its own policy again"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-p", "fari_finish"), "Did you mean 'fair_finish'"),
        (("--at", "9h", "--without", "nobody"), "unknown app 'nobody'"),
        (("--add-gpus", "eight"), "GPUs to add are 'eight', expected a number"),
        (("--horizon", "soon"), "--horizon is 'soon', expected a time such as 90s"),
        (("--seeds", "0"), "seeds are 0, expected 1 to 1000 simulations"),
        (("--cluster", "4x4"), "--cluster is for a workload from its beginning"),
        (("--live",), "--live begins with the running service's state; drop --workload"),
    ],
)
def test_wrong_input_is_one_sentence(themis: Command, log: Path, words: tuple[str, ...], said: str) -> None:
    ended = themis("simulate", "-w", log, *words)
    assert ended.code == 2
    assert said in " ".join(ended.err.split())


def test_what_only_a_state_takes_is_refused_for_a_workload(themis: Command) -> None:
    ended = themis("simulate", "-w", "demo", "--add-gpus", 8)
    assert ended.code == 2
    assert "--add-gpus is for a present state" in " ".join(ended.err.split())
