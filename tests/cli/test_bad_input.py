"""Wrong input of every kind: exit code 2, one sentence on stderr that says what to do, no traceback, nothing on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import Command

HEADER = "app,user,submit_s,gpus,duration_s\n"

FILES = {
    "broken-row.csv": HEADER + "a,u,0,2,60\nb,u,5,many,60\n",
    "negative.csv": HEADER + "a,u,-5,2,60\n",
    "empty.csv": "",
    "short-row.csv": HEADER + "a,u,0\n",
    "columns.csv": "x,y,z\n1,2,3\n",
    "too-large.csv": HEADER + "a,u,0,64,60\n",
    "no-machines.yaml": "machines: []\n",
    "no-gpus.yaml": "machines:\n  - {count: 2, gpus: 0}\n",
    "typo.yaml": "machines:\n  - {cuont: 2, gpus: 4}\n",
    "twice.yaml": "machines:\n  - {gpus: 4, gpus: 8}\n",
    "not-yaml.yaml": "machines: [\n",
    "log.jsonl": '{"t": 0, "kind": "Grant"}\n',
    "notes.jsonl": "these are notes\n",
    "endless.csv": "app,submit_s,gpus,duration_s\na,0,1,1e300\n",
    "far.csv": "app,submit_s,gpus,duration_s\na,1e15,1,5\n",
    "loss.csv": "app,submit_s,gpus,duration_s,loss\na,0,1,5,nan 0 0\n",
    "pole.csv": "app,submit_s,gpus,duration_s,loss\na,0,1,5,1 -1 0\n",
}

CASES = {
    "a broken row of a trace": (["-w", "broken-row.csv"], "broken-row.csv, line 3, column 'gpus': got 'many'"),
    "a negative time in a trace": (["-w", "negative.csv"], "line 2, column 'submit_s': got '-5'"),
    "an empty trace": (["-w", "empty.csv"], "is empty"),
    "a row with too few cells": (["-w", "short-row.csv"], "line 2, column 'gpus'"),
    "a trace of no known format": (["-w", "columns.csv"], "no format has the columns x, y, z"),
    "a trace that is not there": (["-w", "nowhere.csv"], "cannot read trace 'nowhere.csv'"),
    "a trace that is a folder": (["-w", "."], "cannot read trace '.'"),
    "a job that can never fit": (["-w", "too-large.csv", "-c", "8x4"], "needs 64 GPUs; cluster '8x4' has 32"),
    "an unknown workload": (["-w", "demoo"], "Did you mean 'demo'?"),
    "an unknown workload option": (["-w", "themis1:aps=3"], "Did you mean 'apps'?"),
    "a wrong workload option": (["-w", "themis1:apps=few"], "option 'apps' got 'few'"),
    "a workload option out of range": (["-w", "themis1:load=-1"], "load is -1.0, expected more than 0"),
    "a seed among workload options": (["-w", "demo:seed=3"], "seed is not one of its options"),
    "a job of no end": (["-w", "endless.csv"], "takes 1e+300 s, expected at most 1e+10 s"),
    "an arrival in no future": (["-w", "far.csv"], "app 'a' arrives at 1e+15 s, expected at most"),
    "a loss that is no number": (["-w", "loss.csv"], "line 2, column 'loss': got 'nan 0 0', expected three numbers"),
    "a loss that divides by 0": (["-w", "pole.csv"], "line 2, column 'loss': got '1 -1 0'"),
    "a demo of no end": (["-w", "demo:hours=1e308"], "hours is 1e+308, expected more than 0, 1e-6 to 1e9"),
    "an unknown trace format": (["-w", "too-large.csv", "-f", "philly_app"], "Did you mean 'philly_apps'?"),
    "an unknown cluster": (["-c", "sim-265"], "Did you mean 'sim-256'?"),
    "a cluster shorthand gone wrong": (["-c", "8x4x2"], "is not COUNTxGPUS"),
    "a cluster without machines": (["-c", "no-machines.yaml"], "no-machines.yaml"),
    "a machine without GPUs": (["-c", "no-gpus.yaml"], "machines[0].gpus is 0"),
    "a machine of too many GPUs": (["-c", "1x99999999999"], "has 99999999999 GPUs, expected at most"),
    "a misspelt key of a cluster": (["-c", "typo.yaml"], "Did you mean 'count'?"),
    "a cluster's key given twice": (["-c", "twice.yaml"], "line 2: duplicate key 'gpus'"),
    "a cluster that is not YAML": (["-c", "not-yaml.yaml"], "not valid YAML"),
    "a cluster that is not there": (["-c", "nowhere.yaml"], "cannot read cluster file 'nowhere.yaml'"),
    "an unknown policy": (["-p", "tiresas"], "Did you mean 'tiresias'?"),
    "no policy": (["-p", ","], "no policy is named"),
    "an unknown parameter": (["-p", "themis:pament=floor"], "Did you mean 'payment'?"),
    "a wrong parameter": (["-p", "themis:payment=flor"], "Did you mean 'floor'?"),
    "a parameter that is no number": (["-p", "themis:f=most"], "f is 'most', expected a number such as"),
    "a price of no type of the cluster": (
        ["-c", "gavel-36", "-p", "min_cost:cost=V10=2"],
        "cost=V10=2: unknown GPU type",
    ),
    "a parameter given twice": (["-p", "shockwave:window=3,window=4"], "window is there twice"),
    "an unknown parameter of a planner": (["-p", "shockwave:windw=3"], "Did you mean 'window'?"),
    "a window that is negative": (["-p", "shockwave:window=-1"], "window is -1, expected 0 to 1000"),
    "a window that is no number": (["-p", "shockwave:window=nan"], "window is 'nan', expected a whole number"),
    "a power that is no number": (["-p", "shockwave:power=nan"], "power is nan, expected 0 to 20"),
    "a price without end": (["-p", "shockwave:makespan=inf"], "makespan is inf, expected 0 to 1e+06"),
    "patience below one": (["-p", "shockwave:patience=0.5"], "patience is 0.5, expected 1 to 1000"),
    "an unknown forecast": (["-p", "shockwave:forecast=luck"], "Known: bayes, greedy, posterior, restatement"),
    "a dynamic share above one": (["-w", "shockwave_jobs:dynamic=2"], "dynamic is 2.0, expected a share"),
    "an empty trace without a header": (["-w", "empty.csv", "-f", "shockwave"], "is empty, expected rows of 12 cells"),
    "a gang larger than the cluster": (
        ["-w", "too-large.csv", "-c", "8x4", "-p", "shockwave"],
        "needs 64 GPUs; cluster '8x4' has 32",
    ),
    "a parameter out of range": (["-p", "themis:f=2"], "f is 2.0, expected 0"),
    "a round of no length": (["-p", "isolated:round_s=0"], "policy isolated: round_s is 0.0, expected at least 1"),
    "a round that is no number": (["-p", "max_min_fairness:round_s=nan"], "round_s is nan"),
    "a plan of no rounds": (["-p", "round_robin:window=0"], "window is 0, expected 1 to 1000"),
    "a parameter without a colon": (["-p", "themis,f=0.7"], "write themis:f=0.7"),
    "an unknown setting": (["--set", "lease=300"], "Did you mean 'lease_s'?"),
    "a wrong setting": (["--set", "lease_s=long"], "setting lease_s is 'long', expected a number"),
    "a setting out of range": (["--set", "lease_s=-1"], "lease_s is -1.0, expected more than 0"),
    "an infinite setting": (["--set", "lease_s=inf"], "setting lease_s is 'inf'"),
    "a setting without a value": (["--set", "lease_s"], "expected KEY=VALUE"),
    "a seed that is no number": (["--seeds", "one"], "seeds are 'one'"),
    "a falling range of seeds": (["--seeds", "4-0"], "seeds are '4-0'"),
    "far too many seeds": (["--seeds", "0-999999999"], "at most 10,000"),
    "a negative time between failures": (["--mtbf", "-1"], "mtbf is -1.0"),
    "an output folder that is a file": (["-o", "empty.csv"], "empty.csv"),
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_simulate_ends_in_one_sentence_on(case: str, themis: Command) -> None:
    args, expected = CASES[case]
    ended = themis("simulate", *(["-p", "fifo"] if "-p" not in args else []), *args, "-q", "-j1")
    assert ended.code == 2, ended
    assert expected in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert ended.out == ""


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["replay", "nowhere.jsonl"], "nowhere.jsonl"),
        (["replay", "log.jsonl"], "expected a Header"),
        (["replay", "notes.jsonl"], "notes.jsonl, line 1"),
        (["explain", "a", "--log", "nowhere.jsonl"], "nowhere.jsonl"),
        (["explain", "a", "--log", "notes.jsonl"], "notes.jsonl, line 1"),
    ],
)
def test_a_log_that_cannot_be_read_ends_in_one_sentence(args: list[str], expected: str, themis: Command) -> None:
    ended = themis(*args)
    assert ended.code == 2, ended
    assert expected in ended.err
    assert len(ended.err.strip().splitlines()) == 1


def test_an_unknown_option_or_verb_is_a_usage_error(themis: Command) -> None:
    assert themis("simulate", "--polcy", "drf").code == 2
    assert themis("simulat").code == 2


def test_debugging_shows_the_traceback(themis: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEMIS_DEBUG", "1")
    from themis.errors import UnknownName

    with pytest.raises(UnknownName):
        themis("simulate", "-p", "nobody")


def test_a_mistyped_option_of_run_is_no_program(themis: Command) -> None:
    ended = themis("run", "--gpu", "2", "--", "true")
    assert ended.code == 2
    assert "--gpus" in ended.err


def test_a_url_of_checkpoints_that_lacks_a_slash_is_refused(themis: Command) -> None:
    ended = themis("run", "--checkpoints", "s3:/bucket", "--", "true")
    assert ended.code == 2
    assert "two slashes" in ended.err


def test_what_follows_the_program_is_the_programs(themis: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from themis.client.light import Service
    from themis.errors import InputError

    seen: list[object] = []

    def submitted(self: Service, method: str, **request: Any) -> object:
        if method == "Info":
            return {"engine": "local"}
        (job,) = request["jobs"]
        seen.append((job["program"]["argv"], (job["gpus_min"], job["gpus_max"])))
        raise InputError("enough")

    monkeypatch.setattr(Service, "__init__", lambda self, home, **more: None)
    monkeypatch.setattr(Service, "__exit__", lambda self, *ended: None)
    monkeypatch.setattr(Service, "call", submitted)
    themis("run", "-g", "2", "python", "train.py", "--gpus", "8", "-g", "9")
    themis("run", "--", "--strange")
    for both in ("1..4", "1-4"):
        themis("run", "-g", both, "true")
    assert seen == [
        (["python", "train.py", "--gpus", "8", "-g", "9"], (2, 2)),
        (["--strange"], (1, 1)),
        (["true"], (1, 4)),
        (["true"], (1, 4)),
    ]


@pytest.mark.parametrize("gpus", ["0", "two", "3-1", "0-2", "2-x", "-1", "", "2..", "4..2", "²", "9" * 5000])
def test_gpus_of_a_command_that_make_no_sense_are_refused_before_it_is_submitted(themis: Command, gpus: str) -> None:
    ended = themis("run", "--gpus", gpus, "--", "true")
    assert ended.code == 2
    assert "expected a number such as 2, or a range such as 1..4" in ended.err


@pytest.mark.parametrize("text", ["a b=1", "=1", "A", "1A=2", "THEMIS_RUN_DIR=x"])
def test_a_variable_that_no_job_can_have_is_refused_before_it_is_submitted(themis: Command, text: str) -> None:
    ended = themis("run", "-e", text, "true")
    assert ended.code == 2
    assert "Error: --env" in ended.err


@pytest.mark.parametrize("weight", ["0", "-1", "nan"])
def test_a_weight_that_is_none_is_not_taken_for_the_default(themis: Command, weight: str) -> None:
    ended = themis("run", "--weight", weight, "--", "true")
    assert (ended.code, f"--weight is {weight}, expected a number above 0" in ended.err) == (2, True)
