"""Tables fit 80 columns, sentences come before figures, and old names still work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from themis.cli import main, table_columns
from themis.cli.account_verbs import ALL_PAST, ATTEMPTS, HOURS, PAST
from themis.cli.account_verbs import APPS as COUNTS
from themis.cli.ask import summary
from themis.cli.table_columns import ALL_APPS, ALL_JOBS, ALL_SHARES, APPS, JOBS, SHARES, Columns, why_now
from themis.cli.terminal_table import left_out, lines_of
from themis.cli.user import ENTRIES
from themis.data_dir import default_home
from themis.schema import messages as schema
from themis.schema.wire import as_dict

USAGE = {
    "user": "carol",
    "apps": 1234,
    "completed": 1000,
    "cancelled": 200,
    "failed": 34,
    "gpu_hours": 12345.67,
    "useful_hours": 12000.67,
    "idle_hours": 345.67,
}
USAGES: Columns = {"user": lambda r: r["user"], **COUNTS, **HOURS}
APP = {
    "id": 123,
    "name": "langmodel-sweep",
    "user": "carol",
    "state": "completed",
    "gpus": 128,
    "demand": 128,
    "jobs": 64,
    "jobs_ended": 31,
    "jobs_done": 31,
    "progress": 0.54,
    "waits": "at_once",
    "rho": 1.34,
    "gpu_hours": 1250.25,
    "submitted": 1.7e9,
    "ended": 1.8e9,
}
JOB = {
    "id": 1234,
    "name": "lr-search-12",
    "state": "ended",
    "outcome": "completed",
    "attempt": 12,
    "gpus": [0, 1, 2, 3],
    "nodes": ["node0"],
    "steps": 90000,
    "total": 90000,
    "gpu_hours": 12.5,
    "until": 1.7e9,
    "attempts": [],
}
SHARE = {
    "user": "carol",
    "apps": 12,
    "gpus": 128,
    "share": 0.5,
    "fair": 0.25,
    "gpu_hours": 1250.25,
    "private_gpu_hours": 2000.5,
}
CHECK = {"check": "containment", "state": "note", "finding": "jobs are contained by cgroups; " * 10}
CHECKS: Columns = {name: lambda row, name=name: row[name] for name in CHECK}  # type: ignore[misc]


def printed(row: Mapping[str, Any], columns: Columns, width: int | None = 80) -> list[str]:
    """The lines of a table of one row, on a terminal of this width or in a file."""
    cells = [str(cell(row)) for cell in columns.values()]
    return list(lines_of(list(columns), [cells], width))


@pytest.mark.parametrize(
    ("row", "columns"), [(APP, APPS), (APP, PAST), (JOB, JOBS), (SHARE, SHARES), (CHECK, CHECKS), (USAGE, USAGES)]
)
def test_tables_fit_80_columns(row: Mapping[str, Any], columns: Columns) -> None:
    lines = printed(row, columns)
    assert max(map(len, lines)) <= 80, "\n".join(lines)
    assert len(lines) == 3 or row is CHECK, "nothing wraps but findings"
    words = " ".join(lines).split()
    assert {word for cell in columns.values() for word in str(cell(row)).split()} >= set(words[-3:])


WIDEST = {
    **dict.fromkeys(("name", "user", "action", "group"), "n" * 64),
    "message": "FileNotFoundError: no such file or directory: " + "/deep" * 30,
    "reason": "its job failed once: exit code 1: FileNotFoundError: " + "/deep" * 30,
    "waits": "machines_away",
    "state": "completed",
    "elapsed_s": 200_000.0,
    "sooner_s": -7199.0,
    "sooner_worst_s": -7199.0,
    "promise_kept": 1200,
    "promise_known": 1234,
    "walltime_s": 200_000.0,
    "steps_known": False,
    "metrics": {"loss": 0.1234567, "accuracy": 0.9876, "perplexity": 12345.6},
    "rho": 1.25,
    **{f"{name}_hours": 12345.67 for name in ("gpu", "useful", "restart", "lost", "idle")},
    "started": 1.7e9,
    "runs": [],
    "cost": 0.0,
    "time": 1.7e9,
    "method": "token",
    "address": "127.0.0.1",
    "target": "n" * 64,
    "outcome": "refused",
    "count": 1,
}


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        *((APP, columns) for columns in (APPS, ALL_APPS, PAST, ALL_PAST)),
        *((JOB, columns) for columns in (JOBS, ALL_JOBS)),
        *((SHARE, columns) for columns in (SHARES, ALL_SHARES)),
        ({}, ENTRIES),
        ({"app": "n" * 64, "job": 1234, "ending": "failed", "code": 143, "cause": "expired"}, ATTEMPTS),
    ],
)
def test_the_widest_rows_fit_80_columns_and_a_line_names_what_they_leave_out(
    row: Mapping[str, Any], columns: Columns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table_columns, "width_of_terminal", lambda: 80)
    widest = {**row, **WIDEST}
    table_columns.show_rows([widest], "table", columns)
    titles, _, *rest = capsys.readouterr().out.splitlines()
    assert max(map(len, (titles, *rest))) <= 80, "\n".join((titles, *rest))
    said = " ".join(rest)
    for title, cell in columns.items():
        assert not str(cell(widest)) or title in titles or title in said


def test_a_narrow_terminal_leaves_out_empty_columns_first_and_without_a_word() -> None:
    running = {**APP, "state": "running", "gpus": 8, "demand": 8, "sooner_s": 720.0, "elapsed_s": 723.0, "waits": ""}
    cells = [str(cell(running)) for cell in APPS.values()]
    assert "pending reason" not in printed(running, APPS)[0]
    assert "vs own share" in printed(running, APPS)[0]
    assert left_out(list(APPS), [cells], 80) == []


@pytest.mark.parametrize("width", [56, 80, 140])
@pytest.mark.parametrize(("row", "columns"), [(APP, ALL_APPS), (JOB, ALL_JOBS), (APP, PAST)])
def test_a_narrow_terminal_leaves_columns_out(row: Mapping[str, Any], columns: Columns, width: int) -> None:
    titles, _, cells = printed(row, columns, width)
    assert max(len(titles), len(cells)) <= width
    assert titles.split()[0] == next(iter(columns)), "the number stays"
    assert "state" in titles


def test_a_long_name_is_shortened_on_a_terminal_and_whole_elsewhere() -> None:
    row = {**APP, "name": "n" * 60}
    assert max(map(len, printed(row, APPS))) <= 80
    assert any("n…" in line for line in printed(row, APPS))
    assert any("n" * 60 in line for line in printed(row, APPS, None))


def test_sentences_wrap_between_words() -> None:
    lines = printed(CHECK, CHECKS)[2:]
    assert (
        " ".join(" ".join(line.split()) for line in lines).removeprefix("containment note ") == CHECK["finding"].strip()
    )


def test_progress_is_shown_only_where_programs_report_steps() -> None:
    guessed = {**APP, "state": "running", "steps_known": False, "elapsed_s": 723.0, "walltime_s": 7200.0}
    assert (APPS["time"](guessed), APPS["progress"](guessed)) == ("12:03", "of 2:00:00")
    assert APPS["progress"]({**guessed, "steps_known": True}) == "54%"
    assert JOBS["steps"]({**JOB, "steps": None}) == ""


def test_fairness_is_one_number_in_words_and_symbols_come_with_verbose() -> None:
    assert not any("rho" in name for name in (*APPS, *SHARES))
    row = {**APP, "sooner_s": 720.0}
    assert APPS["vs own share"](row) == "12.0 min sooner"
    assert APPS["vs own share"]({**APP, "sooner_s": -30.0}) == "30 s later"
    assert SHARES["vs own share"]({"sooner_worst_s": 1.0}) == "the same"
    assert ALL_APPS["rho"](APP) == "1.34"


def test_why_begins_with_the_plain_sentence_and_has_figures_with_verbose() -> None:
    found = schema.WhyReply(
        code="all_leased",
        sentence="all 8 GPUs are leased; the next lease ends in 40 s.",
        position=2,
        of=3,
        rho=1.25,
        ahead=[schema.Ahead(app=1, name="a", user="bob", rho=2.5)],
        weight=0.5,
        fair=0.5,
        between="users",
    )
    plain = why_now(found)
    assert plain[0] == "waiting: all 8 GPUs are leased; the next lease ends in 40 s."
    assert "  ahead: app 1, a of bob" in plain
    assert "Fair share: 50% of the cluster (weight 0.5; shared between users)." in plain
    assert not any("rho" in line or "all_leased" in line or "1.25" in line for line in plain)
    verbose = why_now(found, verbose=True)
    assert verbose[1] == "Reason code: all_leased."
    assert verbose[2].endswith(", rho 1.25.")
    assert "  ahead: app 1, a of bob, rho 2.50" in verbose
    assert why_now(schema.WhyReply(code="partly_running", sentence="x."))[0] == "running: x."


def test_show_begins_with_a_sentence_and_the_state_of_the_api() -> None:
    app = as_dict(schema.App(id=1, name="a", user="bob", state="running", gpus=2, demand=4))
    assert summary(app) == "App 1, a, of bob: running on 2 of 4 GPUs."
    waiting = as_dict(schema.App(id=1, name="a", user="bob", state="waiting"))
    assert summary(waiting, "all 8 GPUs are leased; the next lease ends in 40 s.") == (
        "App 1, a, of bob: waiting: all 8 GPUs are leased; the next lease ends in 40 s."
    )
    failed = as_dict(schema.App(id=1, name="a", user="bob", state="failed", reason="job 0 failed 3 times"))
    assert summary(failed) == "App 1, a, of bob: failed: job 0 failed 3 times."


@pytest.mark.parametrize("option", ["--data-dir", "--home"])
def test_the_data_directory_has_two_options(tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["queue", option, str(tmp_path / "here")])
    said = " ".join(capfd.readouterr().err.split())
    assert (end.value.code, f"no service was started with the data directory {tmp_path}/here" in said) == (2, True)


def test_a_file_as_the_data_directory_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.yaml").write_text("")
    with pytest.raises(SystemExit) as end:
        main(["queue", "--data-dir", str(tmp_path / "jobs.yaml")])
    said = " ".join(capfd.readouterr().err.split())
    assert (end.value.code, f"{tmp_path}/jobs.yaml is a file, expected a data directory" in said) == (2, True)


def test_the_data_directory_has_two_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEMIS_HOME", str(tmp_path / "old"))
    assert default_home() == tmp_path / "old"
    monkeypatch.setenv("THEMIS_DATA_DIR", str(tmp_path / "new"))
    assert default_home() == tmp_path / "new"


def test_text_of_users_is_no_control_of_a_terminal_and_no_formula_of_a_spreadsheet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"id": 3, "parameters": {"text": "=HYPERLINK(1)\n\x1b[31m", "lr": "-1e-3"}}
    columns: Columns = {"job": lambda r: r["id"], "parameters": lambda r: r["parameters"]["text"]}
    table_columns.show_rows([row], "table", columns)
    assert capsys.readouterr().out.splitlines()[-1] == r"3    =HYPERLINK(1)\n\x1b[31m"
    table_columns.show_rows([row], "csv", columns)
    assert capsys.readouterr().out == 'id,text,lr\n3,"\'=HYPERLINK(1)\n\x1b[31m",-1e-3\n'
    failed = {"id": 3, "name": "job", "attempts": [], "last_lines": ["\x1b]0;title\x07a\t\tb"]}
    assert (
        table_columns.last_words({"app": {"reason": ""}, "jobs": [failed]})[1] == r"  \x1b]0;title\x07a             b"
    )
