"""``themis profiles``: list, show, add, from-run, and runs with what was added."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from command import Command

from themis.traces.profiles.csv_file import read_csv


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THEMIS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_models_are_listed_as_table_json_and_csv(themis: Command) -> None:
    assert "ResNet-50" in themis("profiles", "list").out
    rows = json.loads(themis("profiles", "list", "-o", "json").out)
    lm = next(row for row in rows if row["model"] == "LM")
    assert (lm["gpu_types"], lm["batches"], lm["gpus"]) == (["K80", "P100", "V100"], [5, 10, 20, 40, 80], [1, 2, 4, 8])
    table = list(csv.DictReader(io.StringIO(themis("profiles", "list", "-o", "csv").out)))
    assert [row["model"] for row in table] == [row["model"] for row in rows]


def test_a_model_is_shown_with_its_rates_and_what_it_keeps_beside_others(themis: Command) -> None:
    rows = json.loads(themis("profiles", "show", "ResNet-50", "-o", "json").out)
    assert {
        "model": "ResNet-50",
        "gpu_type": "V100",
        "batch": 64,
        "gpus": 1,
        "steps_per_s": 4.395,
        "per_gpu": 4.395,
    } in rows
    shares = json.loads(themis("profiles", "show", "A3C", "--colocated", "-o", "json").out)
    assert shares[0] == {
        "model": "A3C",
        "gpu_type": "V100",
        "batch": "",
        "partner": "A3C",
        "partner_batch": "",
        "share": pytest.approx(0.5097),
    }
    ended = themis("profiles", "show", "ResNet-5")
    assert (ended.code, "Did you mean 'ResNet-50'" in ended.err) == (2, True)
    assert themis("profiles", "list", "-o", "tabel").code == 2


def test_a_table_of_ones_own_is_checked_kept_and_used(themis: Command, tmp_path: Path, home: Path) -> None:
    path = tmp_path / "lab.csv"
    path.write_text("model,gpu_type,steps_per_s\nmine,gpu,-1\n")
    ended = themis("profiles", "add", path)
    assert (ended.code, "line 2, column 'steps_per_s': got '-1'" in ended.err) == (2, True)
    assert not (home / "profiles").exists()
    path.write_text("model,gpu_type,steps_per_s\nmine,gpu,2\n")
    ended = themis("profiles", "add", path)
    assert (ended.code, "lab.csv: 1 model, 1 rate. Use it" in ended.err) == (0, True)
    assert (home / "profiles" / "lab.csv").exists()
    assert themis("profiles", "add", path).code == 2
    assert "Your own tables: lab." in themis("profiles", "list").err
    ended = themis("profiles", "show", "mine")
    assert (ended.code, "themis profiles show mine --profiles lab" in ended.err) == (2, True)
    trace = tmp_path / "t.csv"
    trace.write_text("app,submit_s,gpus,steps,model\na,0,1,7200,mine\n")
    for books, hours in (("lab", 1.0), (f"themis,{path}", 1.0)):
        told = themis(
            "simulate",
            "-w",
            trace,
            "-c",
            "1x1",
            "-p",
            "fifo",
            "--profiles",
            books,
            "--json",
            "--set",
            "container_s=0",
            "-j",
            1,
        )
        assert told.code == 0, told.err
        assert f'"makespan": {3600 * hours}' in told.out
    ended = themis("simulate", "-w", trace, "-c", "1x1", "-p", "fifo", "-j", 1)
    assert (ended.code, "a model of the profile book" in ended.err) == (2, True)


def test_what_a_run_measured_is_what_it_was_simulated_with(themis: Command, tmp_path: Path, home: Path) -> None:
    log = tmp_path / "run"
    policy = "max_min_fairness:sharing=true"
    told = themis(
        "simulate",
        "-w",
        "gavel_single:jobs=12,rate=60",
        "-c",
        "1x1@V100+1x1@K80",
        "-p",
        policy,
        "-q",
        "-o",
        log,
        "--no-report",
        "--set",
        "container_s=0",
        "-j",
        1,
    )
    assert told.code == 0, told.err
    assert themis("profiles", "from-run", next(log.glob("*.jsonl.gz")), "--name", "found").code == 0
    found = read_csv(home / "profiles" / "found.csv")
    from themis.traces.profiles.measured import gavel_throughputs

    truth = gavel_throughputs()
    assert found.beside
    for kind, jobs in found.together.items():
        for key, rate in jobs.items():
            assert rate == pytest.approx(truth.together[kind][key], rel=1e-6)
    for kind, pairs in found.beside.items():
        for pair, rate in pairs.items():
            assert rate == pytest.approx(truth.beside[kind][pair], rel=1e-6)


def test_a_run_that_is_none_is_refused(themis: Command, tmp_path: Path) -> None:
    assert "is not a data directory" in themis("profiles", "from-run", tmp_path).err
    ended = themis("profiles", "from-run", tmp_path / "absent.jsonl")
    assert (ended.code, "Traceback" in ended.err) == (2, False)


def test_trace_commands_know_the_speeds_that_a_workload_is_of(themis: Command, tmp_path: Path) -> None:
    told = themis("trace", "describe", "gavel_multi:jobs=20", "-c", "gavel-36", "--json")
    assert json.loads(told.out)["jobs"] == 20
    path = tmp_path / "jobs.csv"
    assert themis("trace", "convert", "gavel_single:jobs=3", path).code == 0
    assert themis("trace", "validate", path).code == 2, "the default book does not know its models"
    assert themis("trace", "validate", path, "--profiles", "gavel", "-c", "gavel-36").code == 0
    assert themis("trace", "scale", path, tmp_path / "half.csv", "--time", "0.5", "--profiles", "gavel").code == 0


def test_what_cannot_be_estimated_is_said_in_one_sentence(themis: Command) -> None:
    for arguments, sentence in (
        (("-w", "demo", "--estimate", "probes=0.1"), "nothing to estimate"),
        (("-w", "gavel_single:jobs=3", "-c", "gavel-36", "--estimate", "probe=0.1"), "Did you mean 'probes'"),
        (("-w", "gavel_single:jobs=3", "-c", "gavel-36", "--estimate", "probes=2"), "probes is 2.0, expected a share"),
        (("-w", "gavel_single:jobs=3", "-c", "gavel-36", "--profiles", "gavl"), "Did you mean 'gavel'"),
    ):
        ended = themis("simulate", "-p", "fifo", *arguments)
        assert ended.code == 2
        assert sentence in ended.err
