"""The live demonstration, with real training in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from processes import left_of
from themis.cli.live_demo import demo_run
from themis.client.submit_requests import read_requests
from themis.errors import InputError

pytestmark = pytest.mark.slow
PROGRAM = Path(demo_run.__file__).parent / "terrain.py"


def trained(folder: Path, *more: str) -> str:
    """What the demo's program says at its end."""
    command = [sys.executable, str(PROGRAM), "--steps", "120", "--pace", "0", *more]
    environ = {"PATH": "/usr/bin:/bin", "THEMIS_CHECKPOINT_DIR": str(folder)}
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout


def test_the_program_learns_and_ends_alike_however_often_it_was_stopped(tmp_path: Path) -> None:
    whole = trained(tmp_path / "a")
    assert float(whole.split()[3]) < 0.5, "it explains most of the landscape's variance"
    trained(tmp_path / "b", "--steps", "50")
    assert trained(tmp_path / "b") == whole


def test_three_users_share_the_machine_and_a_report_tells_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "SUBMIT_EVERY_S", 0.0)
    folder = tmp_path / "live"
    read = demo_run.read_requests

    def short(file: Path, user: str, *, folder: Path) -> list[object]:
        """The same apps with a tenth of the steps."""
        file.write_text(file.read_text().replace("0 steps", " steps").replace("speed: 10", "speed: 20"))
        return list(read(file, user, folder=folder))

    monkeypatch.setattr(demo_run, "read_requests", short)
    run = demo_run.run(folder)
    assert not run.simulated
    assert {app.user for app in run.apps} == set(demo_run.USERS)
    assert {app.outcome for app in run.apps} == {"completed"}
    assert demo_run.show(run, folder).read_text().count("<svg") > 5
    kinds = [json.loads(line)["kind"] for line in (folder / "live.jsonl").read_text().splitlines()]
    assert kinds[0] == "Header"
    assert kinds.count("AppFinished") == 3
    assert left_of(folder) == []
    (folder / "mine").touch()
    demo_run.remove(folder)
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_a_home_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "journal.db").touch()
    demo_run.remove(tmp_path)
    assert (tmp_path / "home" / "journal.db").exists()


@pytest.mark.parametrize(
    ("machines", "policy", "message"),
    [
        ("2xx4", "themis", "unknown cluster '2xx4'"),
        ("2x4", "themiss", "Did you mean 'themis'"),
        ("2x4", "themis:f=2", "f is 2.0, expected 0"),
    ],
)
def test_wrong_options_are_told_before_anything_starts(machines: str, policy: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        demo_run.check(machines, policy)


def test_the_apps_files_are_good(tmp_path: Path) -> None:
    for user in demo_run.USERS:
        requests = read_requests(PROGRAM.parent / "apps" / f"{user}.yaml", user, folder=tmp_path)
        assert [request.user for request in requests] == [user]
