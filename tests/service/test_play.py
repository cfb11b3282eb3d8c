"""``themis submit`` with a trace: real jobs, which one name submits once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from themis.cli.start import main
from themis.client.trace_requests import Play, requests_of
from themis.errors import InputError
from themis.jobs.readers import NAME
from themis.model.events import AppSubmitted
from themis.model.log import read_log
from themis.report.metrics import metrics_of
from themis.schema import messages as schema
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK

TRACE = "app,user,submit_s,gpus,duration_s,model\na,ada,0,1,40,ResNet50\nb,ben,20,2,60,VGG16\n"


@pytest.mark.slow
def test_a_trace_runs_as_real_jobs_at_its_scale_and_the_same_command_submits_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    line = ["submit", str(trace), "--scale", "20", "--home", str(tmp_path / "home"), "--wait"]
    with daemon(tmp_path / "home", options=("--machines", "1x4"), settings=(*QUICK, "single_trust=true")) as service:
        main(line)
        assert capsys.readouterr().out == "0 a\n1 b\n"
        client = service.client()
        ended = [client.show(app).app for app in (0, 1)]
        assert [app.state for app in ended] == ["completed", "completed"]
        assert ended[1].submitted - ended[0].submitted >= 0.99
        times = [app.ended - app.submitted for app in ended if app.ended is not None]
        # Durations of 2 and 3 s, and no less.
        assert times[0] >= 1.9
        assert times[1] >= 2.9
        main(line)
        assert capsys.readouterr().out == "0 a\n1 b\n"
        assert len(client.history()) == 2
        with pytest.raises(SystemExit) as end:
            main([*line[:3], "10", *line[4:]])
        assert end.value.code == 2
        assert "--name is 'trace-0', which another trace or other options" in capsys.readouterr().err
        assert len(client.history()) == 2
        far = [client.run(["sleep", "900"], hours=1e7).app for _ in range(2)]
        client.cancel(far[0])
        client.wait(client.run(["false"], hours=1e7).app)
    main(["report", str(tmp_path / "home"), "-o", str(tmp_path / "out"), "--figure-format", "svg"])
    said = capsys.readouterr().out
    assert "completion time live over simulated" in said
    assert "median of 2 apps" in said
    logs = (read_log(tmp_path / "out" / name) for name in ("home.jsonl", "home-simulated.jsonl"))
    first = [next(time for time, record in log if isinstance(record, AppSubmitted)) for log in logs]
    ticks = first[0] - first[1]
    assert ticks == pytest.approx(round(ticks), abs=1e-6), "simulated apps come as long before a tick as live ones"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {
        "report.html",
        "live-over-simulated.svg",
        "rho-reference.svg",
        "jct.svg",
        "gpu-use.svg",
        "shares.svg",
    }
    drawn = (tmp_path / "out" / "jct.svg").read_text()
    assert "fair_finish, simulated" in drawn
    assert "stroke-dasharray" in drawn, "the simulation's line is dashed"
    both = [metrics_of(tmp_path / "out" / name) for name in ("home.jsonl", "home-simulated.jsonl")]
    assert [run.simulated for run in both] == [False, True]
    for live, simulated in zip([*both[0].apps[:3], both[0].apps[4]], [*both[1].apps[:3], both[1].apps[4]]):
        assert live.jct == pytest.approx(simulated.jct, abs=1.5)
    outcomes = [[app.outcome for app in run.apps] for run in both]
    assert outcomes == [["completed", "completed", "cancelled", "active", left] for left in ("failed", "cancelled")]
    assert "makespan" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["job.yaml", "--scale", "2"], "--scale is for a trace or a generator, and job.yaml is neither; drop it."),
        (["trace.csv", "--", "x"], "trace.csv is a trace, which takes no arguments, got 'x'."),
        (["demo:seed=3"], "'demo:seed=3': seed is not one of its options; use --seed."),
        (["demo", "--seed=-1"], "--seed is -1, expected 0 or more."),
        (["nosuch.csv", "--scale", "60"], "'nosuch.csv' is no file, and no workload has this name."),
        (["demoo", "--scale", "60"], "'demoo' is no file, and no workload has this name. Did you mean 'demo'?"),
        (["empty.csv"], "trace 'empty.csv' is empty, expected a header with column names."),
        (["nothing"], "cannot read 'nothing': No such file or directory."),
    ],
)
def test_wrong_lines_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE)
    Path("job.yaml").write_text("name: a\ncommand: x\n")
    Path("empty.csv").write_text("")
    (tmp_path / "endpoint.json").write_text('{"http": "127.0.0.1:1", "pid": 1}')
    (tmp_path / "token").write_text("token")
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(SystemExit) as end:
        main(["submit", "--home", str(tmp_path), *words])
    assert end.value.code == 2
    assert capsys.readouterr().err.strip() == f"Error: {said}"


@pytest.mark.parametrize(("key", "given"), [("name", "../../x"), ("name", "a/b"), ("owner", "no such")])
def test_names_are_checked_before_anything_is_started(key: str, given: str) -> None:
    option = "user" if key == "owner" else key
    with pytest.raises(InputError) as wrong:
        Play(**{"name": "ok", key: given})  # type: ignore[arg-type]
    assert str(wrong.value) == f"--{option} is {given!r}, expected {NAME}."


def test_a_job_of_a_thousand_years_is_not_submitted(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE.replace(",40,", ",1e11,"))
    node = schema.Node(name="m", gpus=4, gpu_type="gpu")
    with pytest.raises(InputError, match=r"job 'a/00' of app 'a' takes 1e\+11 s, expected at most 1e\+10 s"):
        requests_of(load_workload(str(trace)), [node], DEFAULT_BOOK, Play(name="long"))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's service runs jobs as other accounts")
def test_a_user_without_an_account_is_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --wait, too, where apps are submitted by a process in the background."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    with daemon(tmp_path / "home", options=("--machines", "1x4"), settings=QUICK), pytest.raises(SystemExit) as end:
        main(["submit", str(trace), "--home", str(tmp_path / "home")])
    assert end.value.code == 2
    assert "user 'ada' does not exist on this machine" in capsys.readouterr().err
    assert not list((tmp_path / "home" / "plays").iterdir()), "neither a log, nor is the name taken"


@pytest.mark.unfoldable  # its journal is damaged
def test_the_report_of_a_damaged_journal_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(tmp_path / "home", options=("--machines", "1x1"), settings=QUICK) as service:
        assert service.client().run(["true"], hours=0.01).app == 0
    journal = tmp_path / "home" / "journal.db"
    with contextlib.closing(sqlite3.connect(journal)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(journal.read_bytes())
    data[4096 : len(data) - 4096] = b"x" * (len(data) - 8192)
    journal.write_bytes(data)
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path / "home"), "-o", str(tmp_path / "out")])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"cannot read {journal}" in said
    assert "themis doctor" in said
