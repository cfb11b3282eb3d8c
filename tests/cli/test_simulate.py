"""What ``themis simulate`` leaves behind, and that it does not depend on how many runs go together."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from command import Command

from processes import PATIENCE_S
from themis.model.events import AppFinished
from themis.model.log import read_log

SMALL = ("-w", "demo:hours=1", "-c", "demo-32", "-p", "themis:f=0.6,drf", "--seeds", "0-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one small comparison."""
    from themis.cli import main

    path = tmp_path_factory.mktemp("small") / "results"
    main(["simulate", *SMALL, "-o", str(path), "-q", "-j2"])
    return path


@pytest.mark.slow
def test_all_files_are_there(folder: Path) -> None:
    logs = {f"{policy}-seed{seed}.jsonl.gz" for policy in ("themis-f=0.6", "drf") for seed in (0, 1)}
    tables = {f"{name}.parquet" for name in ("results", "apps", "jobs")}
    others = {"results.json", "results.csv", "apps.csv", "gangs.csv", "report.html"}
    assert {p.name for p in folder.iterdir()} == logs | tables | others
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "themis:f=0.6" in report
    assert 'src="http' not in report


@pytest.mark.slow
def test_results_say_what_was_run(folder: Path) -> None:
    runs = json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]
    who = [("themis:f=0.6", 0), ("themis:f=0.6", 1), ("drf", 0), ("drf", 1)]
    assert [(run["policy"], run["seed"]) for run in runs] == who
    assert runs[0]["params"]["f"] == 0.6
    with (folder / "results.csv").open(encoding="utf-8") as file:
        assert [(row["policy"], int(row["seed"])) for row in csv.DictReader(file)] == who
    with (folder / "apps.csv").open(encoding="utf-8") as file:
        apps = list(csv.DictReader(file))
    assert len(apps) == sum(len(run["apps"]) for run in runs) == 4 * 16


@pytest.mark.slow
def test_logs_are_equal_byte_for_byte_whatever_runs_beside_them(folder: Path, tmp_path: Path, themis: Command) -> None:
    assert themis("simulate", *SMALL, "-o", tmp_path, "-q", "-j1", "--no-report").code == 0
    for log in folder.glob("*.jsonl.gz"):
        assert log.read_bytes() == (tmp_path / log.name).read_bytes(), log.name
    for name in ("results.json", "results.csv", "apps.csv", "results.parquet", "apps.parquet", "jobs.parquet"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
    assert not (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_every_log_replays(folder: Path, themis: Command) -> None:
    for log in sorted(folder.glob("*.jsonl.gz")):
        ended = themis("replay", log, "--json")
        assert ended.code == 0, ended.err
        said = json.loads(ended.out)
        assert (said["equal"], said["difference"], said["apps"]) == (True, None, 16)
    assert "gave the same" in themis("replay", log).out


@pytest.mark.slow
def test_a_log_that_was_cut_off_replays_so_far_and_says_so(folder: Path, tmp_path: Path, themis: Command) -> None:
    with gzip.open(min(folder.glob("*.jsonl.gz")), "rt", encoding="utf-8") as log:
        lines = log.readlines()
    cut = next(i for i, line in enumerate(lines) if '"kind":"JobStarted"' in line) + 1
    (tmp_path / "cut.jsonl").write_text("".join(lines[:cut]), encoding="utf-8")
    ended = themis("replay", str(tmp_path / "cut.jsonl"))
    assert ended.code == 0
    assert "Apps still active at the end: " in ended.out
    (tmp_path / "head.jsonl").write_text(lines[0], encoding="utf-8")
    assert "Known: none." in themis("explain", "x", "--log", str(tmp_path / "head.jsonl")).err


@pytest.mark.slow
def test_an_edited_log_does_not_replay(folder: Path, tmp_path: Path, themis: Command) -> None:
    lines = gzip.decompress((folder / "drf-seed0.jsonl.gz").read_bytes()).decode().splitlines()
    at = next(i for i, line in enumerate(lines) if '"kind":"Renew"' in line)
    edited = tmp_path / "edited.jsonl"
    edited.write_text("\n".join([*lines[:at], *lines[at + 1 :]]) + "\n", encoding="utf-8")
    ended = themis("replay", edited)
    assert ended.code == 1
    assert f"does not replay: record {at + 1} at" in ended.err
    assert len(ended.err.strip().splitlines()) == 1


@pytest.mark.slow
def test_why_an_app_got_what_it_got(folder: Path, themis: Command) -> None:
    log = folder / "themis-f=0.6-seed0.jsonl.gz"
    finished = next(record for _, record in read_log(log) if isinstance(record, AppFinished))
    assert finished.outcome == "completed"
    ended = themis("explain", "langmodel-sweep", "--log", log)
    assert ended.code == 0, ended.err
    assert "langmodel-sweep" in ended.out
    assert json.loads(themis("explain", "langmodel-sweep", "--log", log, "--json").out)
    wrong = themis("explain", "langmodel-swep", "--log", log)
    assert wrong.code == 2
    assert "langmodel-sweep" in wrong.err


@pytest.mark.slow
def test_results_on_stdout_are_json_alone(themis: Command) -> None:
    ended = themis("simulate", "-w", "demo:hours=0.5", "-p", "fifo", "--json")
    assert ended.code == 0
    [run] = json.loads(ended.out)["runs"]
    assert (run["policy"], len(run["apps"])) == ("fifo", 16)


@pytest.mark.slow
def test_the_table_has_a_row_for_each_policy_and_the_report_is_named(tmp_path: Path, themis: Command) -> None:
    ended = themis("simulate", "-w", "demo:hours=0.5", "-p", "fifo,drf", "-o", tmp_path / "deep" / "out")
    assert ended.code == 0
    assert "fifo" in ended.out
    assert "drf" in ended.out
    assert "report.html" in ended.err.replace("\n", "")


@pytest.mark.slow
def test_figures_are_written_beside_the_results(tmp_path: Path, themis: Command) -> None:
    args = ("simulate", "-w", "demo:hours=0.3", "-p", "fifo", "--figures", tmp_path / "figures")
    assert themis(*args, "--figure-format", "png").code == 0
    assert (tmp_path / "figures" / "gantt-fifo.png").is_file()
    wrong = themis(*args, "--figure-format", "jpeg")
    assert wrong.code == 2
    assert "unknown figure format 'jpeg'" in wrong.err


def test_what_cannot_be_written_is_said_before_anything_runs(tmp_path: Path, themis: Command) -> None:
    (tmp_path / "file").write_text("")
    args = ("simulate", "-w", "demo:hours=0.3", "-p", "fifo", "-q", "-o", tmp_path / "out")
    for option in ("--out", "--figures"):
        ended = themis(*args, option, tmp_path / "file" / "below")
        assert ended.code == 2
        assert "cannot write to the folder" in ended.err
        assert not list((tmp_path / "out").glob("*.jsonl.gz"))
        assert "empty value" in themis(*args, option, "").err


def test_logs_of_other_runs_in_the_folder_are_named(tmp_path: Path, themis: Command) -> None:
    args = ("simulate", "-w", "demo:hours=0.3", "-q", "-j1", "--no-report", "-o", tmp_path)
    assert themis(*args, "-p", "fifo").err == ""
    assert themis(*args, "-p", "fifo").err == ""
    assert "has logs of other runs: fifo-seed0.jsonl.gz." in " ".join(themis(*args, "-p", "drf").err.split())


@pytest.mark.slow
def test_machines_fail_and_everything_still_ends(themis: Command) -> None:
    args = ("-w", "demo:hours=2", "-p", "themis,drf", "--mtbf", "20000", "--repair", "900", "--set", "validate=true")
    ended = themis("simulate", *args, "--json", "-q")
    assert ended.code == 0, ended.err
    assert all(run["failures"] > 0 for run in json.loads(ended.out)["runs"])


@pytest.mark.slow
def test_an_interrupt_ends_with_130_and_leaves_no_process(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "themis.cli",
        "simulate",
        "-w",
        "themis1",
        "-c",
        "sim-256",
        "-p",
        "drf,themis",
        "-j2",
        "-o",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    _wait_for(lambda: len(list(tmp_path.glob("*.jsonl.gz"))) == 2)  # both runs are under way
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert _gone(process.pid)


def _wait_for(there: Callable[[], bool]) -> None:
    for _ in range(600):
        if there():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come about within a minute")


def _gone(group: int) -> bool:
    """Whether a process group ends within some seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("verb", ["policies", "workloads", "clusters"])
def test_every_listing_is_text_json_and_yaml(verb: str, themis: Command) -> None:
    rows = json.loads(themis(verb, "--json").out)
    assert json.loads(themis(verb, "-o", "json").out) == rows
    assert [row["name"] for row in yaml.safe_load(themis(verb, "-o", "yaml").out)] == [row["name"] for row in rows]
    wrong = themis(verb, "-o", "jsno")
    assert (wrong.code, "Did you mean 'json'" in wrong.err) == (2, True)
    text = themis(verb).out
    assert rows
    assert all(row["name"] in text for row in rows)
    assert not {"=True", "=None"} & set(re.findall(r"=\w+", text))  # as one writes them


def test_the_cluster_of_seven_types_is_listed_with_and_without_its_data(
    themis: Command, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THEMIS_DATA", raising=False)
    assert "set THEMIS_DATA to it" in json.loads(themis("clusters", "--json").out)[-1]["about"]
    monkeypatch.setenv("THEMIS_DATA", str(shared_data))
    openb = json.loads(themis("clusters", "--json").out)[-1]
    assert (openb["name"], openb["machines"], openb["gpus"], len(openb["gpu_types"])) == ("openb", 1213, 6212, 7)


@pytest.mark.parametrize("verb", ["simulate", "compare", "replay", "explain", "policies", "workloads", "clusters"])
def test_every_verb_has_help_with_an_example(verb: str, themis: Command) -> None:
    ended = themis(verb, "--help")
    assert ended.code == 0
    assert "xample" in ended.out


def test_the_version_is_told(themis: Command) -> None:
    from themis.version import sentence

    assert themis("--version").out == f"{sentence()}\n"


@pytest.mark.parametrize(("options", "apps"), [([], 1), (["--single-jobs"], 2)])
def test_each_job_of_a_trace_can_be_an_app(options: list[str], apps: int, tmp_path: Path, themis: Command) -> None:
    trace = tmp_path / "philly.csv"
    trace.write_text("app_id,vc,submit_s,num_gpus,duration_s\na,v,0,1,60\na,v,5,2,60\n", encoding="utf-8")
    ended = themis("simulate", "-w", trace, "-f", "philly_apps", "-c", "1x4", "-p", "fifo", "--json", "-q", *options)
    assert ended.code == 0, ended.err
    assert len(json.loads(ended.out)["runs"][0]["apps"]) == apps
