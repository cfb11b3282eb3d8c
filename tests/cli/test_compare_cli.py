"""``themis compare``: what it prints, what it writes, and one sentence with exit code 2 for whatever cannot be compared."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from command import Command

from themis.model.events import SCHEMA
from themis.report.comparison_table import CSV


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies on three seeds of a small workload."""
    from themis.cli import main

    path = tmp_path_factory.mktemp("compare") / "runs"
    args = ("-w", "demo:hours=0.3", "-p", "fifo,drf", "--seeds", "0-2", "-q", "-j1", "--no-report")
    with pytest.raises(SystemExit) as end:
        main(["simulate", *args, "-o", str(path)])
    assert not end.value.code
    return path


def test_a_table_has_policies_with_intervals_and_paired_differences(logs: Path, themis: Command) -> None:
    ended = themis("compare", logs, "--baseline", "fifo", "-q")
    assert ended.code == 0, ended.err
    for text in ("drf", "fifo", "±", "Difference to fifo", "Simulated: workload demo", "seeds 0 to 2"):
        assert text in ended.out
    assert "paired over 3 common seeds" in " ".join(ended.out.split())
    assert "max ρ exact" in ended.out
    assert "hidden payment" not in ended.out
    assert "failed leases" in themis("compare", logs, "--all", "-q").out
    assert ended.err == ""


def test_the_report_of_live_runs_sends_simulated_ones_to_compare(logs: Path, themis: Command, tmp_path: Path) -> None:
    ended = themis("report", logs, "-o", tmp_path / "out")
    assert ended.code == 2
    assert f"have their report by `themis compare {logs} --html report.html`" in " ".join(ended.err.split())
    assert not (tmp_path / "out").exists()


def test_one_seed_has_no_interval_and_says_so(logs: Path, themis: Command) -> None:
    ended = themis("compare", logs / "drf-seed0.jsonl.gz", logs / "fifo-seed0.jsonl.gz", "-q", "-b", "drf")
    assert "±" not in ended.out
    assert "no confidence interval can be given" in " ".join(ended.out.split())
    assert "on the one common seed" in " ".join(ended.out.split())


def test_json_has_intervals_differences_and_definitions(logs: Path, themis: Command) -> None:
    said = json.loads(themis("compare", logs, "-o", "json", "-b", "drf", "-q").out)
    assert (said["kind"], said["baseline"], said["doubts"]) == ("simulated", "drf", [])
    drf, fifo = said["policies"]
    assert (drf["policy"], drf["seeds"], fifo["common_seeds"]) == ("drf", [0, 1, 2], 3)
    a, b = (policy["metrics"]["jct_mean"] for policy in (drf, fifo))
    assert a["low"] < a["mean"] < a["high"]
    assert a["method"] == "t"
    assert drf["metrics"]["jct_p99"]["method"] == "bootstrap"
    difference = fifo["differences"]["jct_mean"]
    assert difference["mean"] == pytest.approx(b["mean"] - a["mean"])
    assert difference["significant"] == (difference["low"] > 0 or difference["high"] < 0)
    assert drf["differences"]["jct_mean"]["mean"] == 0.0
    assert set(said["definitions"]) == set(drf["metrics"])
    assert json.loads(themis("compare", logs, "-o", "json", "-q").out)["policies"][0]["differences"] is None


def test_csv_has_a_row_for_each_number_and_policy(logs: Path, themis: Command) -> None:
    args = ("compare", logs, "-o", "csv", "-q", "-m", "makespan", "-m", "rho_exact_max")
    rows = list(csv.DictReader(io.StringIO(themis(*args, "-b", "drf").out)))
    assert list(rows[0]) == list(CSV)
    assert [(row["metric"], row["policy"]) for row in rows] == [
        ("makespan", "drf"),
        ("makespan", "fifo"),
        ("rho_exact_max", "drf"),
        ("rho_exact_max", "fifo"),
    ]
    assert float(rows[1]["difference"]) == pytest.approx(float(rows[1]["mean"]) - float(rows[0]["mean"]))
    assert rows[1]["significant"] in ("0", "1")
    assert next(csv.DictReader(io.StringIO(themis(*args).out)))["difference"] == ""


def test_numbers_are_those_of_the_simulation(logs: Path, themis: Command) -> None:
    runs = json.loads((logs / "results.json").read_text(encoding="utf-8"))["runs"]
    said = json.loads(themis("compare", logs, "-o", "json", "-q").out)["policies"]
    for policy in said:
        spans = [run["makespan"] for run in runs if run["policy"] == policy["policy"]]
        assert policy["metrics"]["makespan"]["mean"] == pytest.approx(sum(spans) / 3)


@pytest.mark.slow
def test_report_tables_and_figures_are_written_and_named(logs: Path, tmp_path: Path, themis: Command) -> None:
    ended = themis(
        "compare",
        logs,
        "-b",
        "drf",
        "--html",
        tmp_path / "r" / "c.html",
        "--tables",
        tmp_path / "t",
        "--figures",
        tmp_path / "f",
        "--figure-format",
        "png",
    )
    assert ended.code == 0, ended.err
    assert "Difference to drf" in (tmp_path / "r" / "c.html").read_text(encoding="utf-8")
    assert {p.name for p in (tmp_path / "t").iterdir()} == {"results.parquet", "apps.parquet", "jobs.parquet"}
    assert (tmp_path / "f" / "rho-exact.png").is_file()
    for name in ("c.html", "apps.parquet", "rho-exact.png"):
        assert name in ended.err


def damaged(logs: Path, folder: Path) -> dict[str, Path]:
    """Files that are no whole log, by what is wrong with them."""
    packed = (logs / "drf-seed0.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines(keepends=True)
    made = {
        "empty.jsonl": b"",
        "notes.jsonl": b"notes\n",
        "table.jsonl": b"a,b\n1,2\n",
        "other.jsonl": b'{"a": 1}\n',
        "packed-short.jsonl.gz": packed[: len(packed) // 2],
        "not-packed.jsonl.gz": b"\x00\xff" * 50,
        "damaged.jsonl.gz": packed[:2000] + b"x" * 50 + packed[2050:],
        "mid-line.jsonl": b"".join(lines[:40])[:-9],
        "short.jsonl": b"".join(lines[:40]),
        "newer.jsonl": lines[0].replace(f'"schema":{SCHEMA}'.encode(), b'"schema":99') + b"".join(lines[1:]),
        "kind.jsonl": lines[0] + b'{"t":1.0,"kind":"Gramt"}\n',
    }
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in made}


SAID = {
    "empty.jsonl": "is empty, expected an event log",
    "notes.jsonl": "this is no event log of Themis",
    "table.jsonl": "this is no event log of Themis",
    "other.jsonl": "this is no event log of Themis",
    "packed-short.jsonl.gz": "ends too early; it was cut off",
    "not-packed.jsonl.gz": "cannot read the log",
    "damaged.jsonl.gz": "damaged.jsonl.gz, line",
    "mid-line.jsonl": "was cut off or edited there",
    "short.jsonl": "the run was cut off",
    "newer.jsonl": f"has schema 99, this Themis reads {SCHEMA}",
    "kind.jsonl": "unknown kind of record 'Gramt'",
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_no_whole_log_ends_in_one_sentence(name: str, logs: Path, tmp_path: Path, themis: Command) -> None:
    ended = themis("compare", damaged(logs, tmp_path)[name])
    assert ended.code == 2, ended
    assert SAID[name] in ended.err
    assert name in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert ended.out == ""


WRONG = {
    "a folder that is not there": (["nowhere"], "nowhere is not there"),
    "a misspelt folder": (["{near}"], "did you mean"),
    "a folder without logs": (["{empty}"], "holds no logs"),
    "a misspelt baseline": (["{logs}", "-b", "dfr"], "Did you mean 'drf'?"),
    "a misspelt metric": (["{logs}", "-m", "jct_men"], "Did you mean 'jct_mean'?"),
    "a misspelt output": (["{logs}", "-o", "jsn"], "Did you mean 'json'?"),
    "a figure format that is none": (["{logs}", "--figure-format", "sgv"], "Did you mean 'svg'?"),
    "a report that cannot be written": (["{logs}", "-q", "-o", "csv", "--html", "{logs}"], "is a folder, expected"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_ends_in_one_sentence(case: str, logs: Path, tmp_path: Path, themis: Command) -> None:
    args, said = WRONG[case]
    places = {"logs": logs, "near": logs.parent / "runz", "empty": tmp_path}
    ended = themis("compare", *(arg.format(**places) for arg in args))
    assert ended.code == 2, ended
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.strip().splitlines()) == 1


def test_unlike_runs_are_refused_and_compared_anyway_with_a_note(logs: Path, tmp_path: Path, themis: Command) -> None:
    made = themis(
        "simulate",
        "-w",
        "demo:hours=0.3",
        "-p",
        "drf",
        "-q",
        "--no-report",
        "--set",
        "lease_s=300",
        "-o",
        tmp_path / "short",
    )
    assert made.code == 0, made.err
    refused = themis("compare", logs, tmp_path / "short", "-q")
    assert refused.code == 2
    assert "differ in setting lease_s: 600 and 300" in refused.err
    ended = themis("compare", logs, tmp_path / "short", "--anyway", "-q", "-o", "csv", "-m", "makespan")
    assert ended.code == 0, ended.err
    assert "Note:" in ended.err
    policies = [row["policy"] for row in csv.DictReader(io.StringIO(ended.out))]
    assert policies == ["drf, lease_s=600.0", "fifo, lease_s=600.0", "drf, lease_s=300.0"]


@pytest.mark.parametrize("verb", [["compar"], ["compare", "--basline", "drf"]])
def test_misspelt_verbs_and_options_are_corrected(verb: list[str], themis: Command) -> None:
    ended = themis(*verb)
    assert ended.code == 2
    assert verb[-1] == "drf" or "compare" in ended.err
    assert "--baseline" in ended.err or verb == ["compar"]


def test_a_place_that_cannot_be_written_is_said_first(logs: Path, tmp_path: Path, themis: Command) -> None:
    ended = themis("compare", logs, "--html", tmp_path, "-q")
    assert (ended.code, ended.out) == (2, "")
    assert "is a folder, expected a file" in " ".join(ended.err.split())
    (tmp_path / "file").write_text("")
    for option in ("--figures", "--tables"):
        assert "cannot write to the folder" in themis("compare", logs, option, tmp_path / "file", "-q").err


def test_an_interrupt_is_said(logs: Path, themis: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("themis.report.gather.gather", interrupted)
    ended = themis("compare", logs, "-q")
    assert (ended.code, ended.err.strip()) == (130, "Interrupted.")
