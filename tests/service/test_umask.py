"""The files of a service have the same modes under every umask: no other account can write to them. Real processes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from daemon import daemon

from processes import wait_until
from themis.client.home import Endpoint, write_endpoint

pytestmark = pytest.mark.slow


def modes(home: Path) -> dict[str, str]:
    """Mode of each file and folder in a data directory by its path, but for what the test itself made and what comes and goes."""
    found = {}
    for base, folders, files in os.walk(home):
        for name in (*folders, *files):
            path = Path(base, name)
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and not name.startswith("up-"):
                found[str(path.relative_to(home))] = oct(stat.S_IMODE(mode))
    return found


def lived(home: Path, umask: int) -> dict[str, str]:
    """The modes while a job runs that saves and reports, in a service that was started under this umask."""
    with daemon(home, umask=umask) as service, service.client() as client:
        line = "umask > $THEMIS_CHECKPOINT_DIR/umask; : > $THEMIS_RUN_DIR/reports/reports.jsonl; echo ready; sleep 1000"
        client.run(["sh", "-c", line], name="a", cwd="/")
        wait_until(
            lambda: any(path.read_text() for path in home.glob("run/nodes/*/logs/*/rank-0.log")), "the job wrote"
        )
        (said,) = home.glob("run/checkpoints/app0/job0/umask")
        assert said.read_text().strip() == "0022"
        return modes(home)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return lived(tmp_path_factory.mktemp("usual") / "home", 0o022)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_of_a_service_have_the_same_modes_under_every_umask(
    tmp_path: Path, usual: dict[str, str], umask: int
) -> None:
    found = lived(tmp_path / "home", umask)
    assert {path: mode for path, mode in found.items() if int(mode, 8) & 0o022} == {}
    both = found.keys() & usual.keys()
    assert {path: found[path] for path in both} == {path: usual[path] for path in both}
    assert {"journal.db", "token", "endpoint.json", "run", "run/checkpoints/app0/job0"} <= both
    assert [path for path in both if "/tasks/" in path and path.endswith("task.json")]
    assert found["run"] == ("0o711" if os.geteuid() == 0 else "0o700")


def test_an_address_can_be_read_by_all_and_written_by_its_owner(tmp_path: Path) -> None:
    for umask in (0o000, 0o077):
        before = os.umask(umask)
        try:
            write_endpoint(tmp_path, Endpoint(http="http://h:1", pid=0))
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "endpoint.json").stat().st_mode) == 0o644
