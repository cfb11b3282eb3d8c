"""Small things of daily use: what is printed when, and what goes on through a restart."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import QUICK, Daemon, daemon

from processes import PATIENCE_S, running, wait_until
from themis.cli import main
from themis.client import client as sdk
from themis.client.client import Client
from themis.client.command import words_of
from themis.errors import InputError
from themis.service.operations.engines import no_nodes
from themis.service.operations.until_stopped import farewell

LONG = (*QUICK, "node_lease=120")
"""Jobs outlive a restart on a busy machine."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("home"), options=("--gpus", "2"), settings=LONG) as there:
        yield there


def themis(*words: str) -> int:
    try:
        main(list(words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_command_may_be_one_line() -> None:
    assert words_of("python x.py --name 'a b'") == ["python", "x.py", "--name", "a b"]
    assert words_of(["python", "x.py"]) == ["python", "x.py"]
    for wrong in ("", "  ", [], ["a", 1], "'", None):
        with pytest.raises(InputError, match=r"expected a program and its arguments, such as \['python', 'train.py'\]"):
            words_of(wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_client_runs_a_line_as_itswords_of(service: Daemon) -> None:
    with service.client() as client:
        app = client.run("echo one 'two three'").app
        assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
        assert b"".join(client.logs(app)) == b"one two three\n"


@pytest.mark.slow
def test_state_names_are_the_same_in_the_table_and_as_json(service: Daemon, capfd: pytest.CaptureFixture[str]) -> None:
    with service.client() as client:
        client.run(["true"])
        app = client.run(["true"]).app
        client.wait(app, timeout_s=PATIENCE_S)
        (job,) = client.show(app).jobs
    assert job.id == 0
    assert themis("show", str(app), "--home", str(service.home)) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    (at,) = (i for i, words in enumerate(lines) if words[:1] == ["job"])
    row = next(words for words in lines[at + 1 :] if words[:1] == ["0"])
    assert lines[at][:4] == ["job", "name", "state", "outcome"]
    assert row[2:4] == [job.state, job.outcome] == ["ended", "completed"]


@pytest.mark.slow
def test_ctrl_c_while_following_says_how_to_go_on_or_end_it(service: Daemon, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "themis.cli",
        "run",
        "--home",
        str(service.home),
        "--",
        "sh",
        "-c",
        "echo begun; sleep 1000",
    ]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "begun\n"
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=PATIENCE_S)
    words = " ".join(said.split())
    assert run.returncode == 130
    assert "goes on. Follow it with `themis logs -f" in words
    with service.client() as client:
        (app,) = client.queue()
        assert f"end it with `themis cancel {app.id}`" in words
        client.cancel(app.id)


@pytest.mark.slow
def test_an_app_is_explained_from_a_home(service: Daemon, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with service.client() as client:
        made = client.run(["true"], name="told")
        client.wait(made.app, timeout_s=PATIENCE_S)
    assert themis("explain", "told", "--log", str(service.home)) == 0
    assert "completed" in capfd.readouterr().out
    assert themis("explain", "told", "--log", str(tmp_path)) == 2
    assert "has no journal.db" in " ".join(capfd.readouterr().err.split())


@pytest.mark.slow
def test_a_state_in_which_nothing_is_to_be_decided_is_no_error(
    tmp_path: Path, service: Daemon, capfd: pytest.CaptureFixture[str]
) -> None:
    with service.client() as client:
        wait_until(lambda: not client.queue(), "the cluster is idle")
        (tmp_path / "state.json.gz").write_bytes(client.dump())
    for more in ((), ("--json",), ("--policy", "drf")):
        assert themis("replay", str(tmp_path / "state.json.gz"), *more) == 0
        assert "nothing is to be decided in this state" in " ".join(capfd.readouterr().out.split())


@pytest.mark.slow
def test_who_follows_logs_hears_all_once_through_a_restart_and_sigterm_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk, "RETRY_S", 0.05)
    text = "for i in 1 2 3 4 5 6 7 8; do echo line $i; while [ ! -e step$i ]; do sleep 0.05; done; done"
    with daemon(tmp_path / "home", options=("--gpus", "1", "--leave-jobs"), settings=LONG) as there:
        said: list[str] = []
        heard: list[bytes] = []
        ended: list[BaseException | None] = []
        (tmp_path / "work").mkdir()
        with Client(there.home, patience_s=0.1, on_wait=said.append) as client:
            app = client.run(["sh", "-c", text], cwd=tmp_path / "work").app

            def follow() -> None:
                try:
                    heard.extend(client.logs(app, follow=True))
                    ended.append(None)
                except BaseException as error:
                    ended.append(error)

            thread = threading.Thread(target=follow)
            thread.start()
            (tmp_path / "work" / "step1").touch()
            wait_until(lambda: b"line 2" in b"".join(heard), "it is followed")
            assert there.down() == 0
            assert "stopping; 1 job runs on until the next `themis up`" in there.said()
            wait_until(lambda: bool(said), "that it is away is said")
            (tmp_path / "work" / "step2").touch()
            assert thread.is_alive(), ended
            there.up()
            for step in range(3, 9):
                (tmp_path / "work" / f"step{step}").touch()
            thread.join(PATIENCE_S)
        assert ended == [None]
        assert b"".join(heard) == b"".join(b"line %d\n" % i for i in range(1, 9))
        assert "Retrying for up to 600 s." in said[0]


def test_what_is_said_at_the_end_is_what_happens() -> None:
    assert farewell(0.0, 0, leave_jobs=False) == "stopping; no job runs."
    assert "2 jobs save and stop, which takes up to 60 s" in farewell(60.0, 2, leave_jobs=False)
    assert "1 job runs on until" in farewell(60.0, 1, leave_jobs=True)
    assert "2 jobs run on until" in farewell(60.0, 2, leave_jobs=True)


def test_a_ray_cluster_without_gpus_names_a_remedy() -> None:
    said = no_nodes("")
    assert "there are 0 GPUs: none of its nodes has GPUs" in said
    assert "`ray start --num-gpus N`" in said
    assert "`ray start --head --node-ip-address ADDRESS`" in said
    assert "cannot find Raylet" in no_nodes("cannot find Raylet")
