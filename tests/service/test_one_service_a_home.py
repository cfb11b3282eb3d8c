"""Who comes second to a home that a service has leaves it as it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake import request, world

from themis.errors import InputError
from themis.service.api.submission import submit
from themis.service.operations.backups import back_up, restore
from themis.service.operations.lock import only_one

HOLD = """
import sys
from pathlib import Path
from themis.service.operations.lock import only_one

with only_one(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@contextmanager
def held(home: Path) -> Iterator[None]:
    """Another process has the home, as a service that runs as root has: others may pass through it."""
    command = [sys.executable, "-c", HOLD, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        home.chmod(0o711)
        yield
        process.communicate()


def test_a_second_start_does_not_shut_the_home_to_jobs_that_pass_through(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with held(home):
        with pytest.raises(InputError, match="already runs with the data directory"), only_one(home):
            pass
        assert mode(home) == 0o711
    # Jobs that a killed service left run on while the next one starts, or repairs its journal.
    with only_one(home):
        assert mode(home) == 0o711


def test_a_home_that_others_can_read_is_shut(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    with only_one(home):
        assert mode(home) == 0o711
    with only_one(tmp_path / "fresh"):
        assert mode(tmp_path / "fresh") == 0o700


def test_nothing_is_restored_into_a_home_whose_service_runs(tmp_path: Path) -> None:
    home, target = tmp_path / "home", tmp_path / "backup"
    with world(home, 2) as w:
        w.ask(lambda a: submit(a, request("a")))
        (home / "token").write_text("old\n")
        back_up(home, target)
    (home / "token").write_text("new\n")
    with held(home):
        (home / "journal.db").rename(tmp_path / "aside")
        with pytest.raises(InputError, match="already runs with the data directory"):
            restore(target, home)
        assert (home / "token").read_text() == "new\n"
        assert not (home / "journal.db").exists()
        assert mode(home) == 0o711
    assert restore(target, home).records > 1
