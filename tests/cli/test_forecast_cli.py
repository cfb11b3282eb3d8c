"""``themis forecast evaluate``: table, JSON and figure, and what it says of workloads that it cannot judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command

TRACE = """app,submit_s,gpus,steps,dynamic
a,0,1,10@4 20@8,gns 4=100 8=50 16=25
b,0,1,30@4,accordion 4=100 8=50
c,0,1,30,
"""


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(TRACE)
    return "t.csv"


def test_evaluate_prints_a_table_and_draws(themis: Command, trace: str) -> None:
    ended = themis("forecast", "evaluate", trace, "--plot", "e.svg")
    assert ended.code == 0, ended
    assert "restatement" in ended.out
    assert "2 dynamic jobs, 1 of which change" in " ".join(ended.out.split())
    assert Path("e.svg").read_text().startswith("<?xml")


def test_evaluate_as_json_has_every_point(themis: Command, trace: str) -> None:
    found = json.loads(themis("forecast", "evaluate", trace, "--json", "--points", 5).out)
    assert (found["jobs"], found["changing"], found["progress"]) == (2, 1, [0.0, 0.2, 0.4, 0.6, 0.8])
    greedy = found["errors"]["greedy"]["regimes"]
    assert greedy["at_changing"][2:] == [0.0, 0.0, 0.0]
    assert greedy["mean"] == pytest.approx(sum(greedy["at"]) / 5)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("demo",), "no dynamic job"),
        (("nowhere.csv",), "nowhere.csv"),
        (("t.csv", "--plot", "e.gif"), "expected .png or .svg"),
        (("t.csv", "--profiles", "nothing"), "nothing"),
    ],
)
def test_wrong_input_is_one_sentence(themis: Command, trace: str, args: tuple[str, ...], said: str) -> None:
    ended = themis("forecast", "evaluate", *args)
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err
