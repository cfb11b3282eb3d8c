"""What the service keeps of a job's checkpoints and outputs, fetched by its owner: a real service, agents and processes."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import QUICK, Daemon, daemon
from test_send import ask

from processes import PATIENCE_S, wait_until
from themis.client.client import Client
from themis.client.home import log_in, read_endpoint, read_token
from themis.errors import InputError

pytestmark = pytest.mark.slow
LINE = "mkdir -p results; echo done >> results/log; echo 5 > $THEMIS_CHECKPOINT_DIR/step"
JOB = """
name: back
command: "{line}"
shell: true
send: .
outputs: results
checkpoint_dir: themis://
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("home"), options=("--gpus", "4"), settings=(*QUICK, "node_lease=30")) as there:
        yield there


def themis(home: Path, folder: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "themis.cli", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "THEMIS_DATA_DIR": str(home)},
        timeout=PATIENCE_S,
    )
    return done.returncode, done.stdout, done.stderr


def kept(service: Daemon, app: int) -> list[dict[str, object]]:
    status, found = ask(service, "GET", f"/v1/apps/{app}/copies")
    assert status == 200
    return found["copies"]  # type: ignore[index]


def test_a_job_file_with_outputs_is_fetched_by_its_owner_with_a_login_and_by_nobody_else(
    service: Daemon, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.yaml").write_text(JOB.format(line=LINE))
    with service.client() as client:
        other = client.add_user("daemon")
    endpoint = read_endpoint(service.home)
    mine, others = tmp_path / "mine", tmp_path / "others"
    log_in(mine, endpoint.address, read_token(service.home))
    log_in(others, endpoint.address, other)
    # A login has no HTTP address of its own: it asks for it, to send the files as well.
    rc, out, err = themis(mine, code, "submit", "job.yaml")
    assert rc == 0, err
    app = int(out.split()[0])
    with service.client() as client:
        ended = client.wait(app, timeout_s=PATIENCE_S)
        assert ended.state == "completed", client.show(app)
    rc, out, err = themis(mine, code, "fetch", "back")
    assert (rc, out) == (0, "back\n"), err
    assert (code / "back" / "outputs" / "results" / "log").read_text() == "done\n"
    assert (code / "back" / "checkpoints" / "step").read_text() == "5\n"
    (code / "back" / "outputs" / "results" / "log").write_text("mine")
    (code / "back" / "outputs" / "other").write_text("stays")
    with Client(mine) as client:
        assert client.fetch(app, code / "back") == [code / "back"]
    assert (code / "back" / "outputs" / "results" / "log").read_text() == "done\n"
    assert sorted(path.name for path in (code / "back").iterdir()) == ["checkpoints", "outputs"], "no draft is left"
    assert (code / "back" / "outputs" / "other").read_text() == "stays"

    rc, _, err = themis(others, tmp_path, "fetch", str(app))
    assert (rc, "and administrators may fetch its files, and you are daemon" in err) == (2, True)
    with Client(others) as client, pytest.raises(InputError, match="you are daemon"):
        client.fetch(app, tmp_path / "stolen")
    assert ask(service, "GET", f"/v1/apps/{app}/copies/0", Authorization=f"Bearer {other}")[0] == 403
    assert ask(service, "GET", f"/v1/apps/{app}/copies/0", Authorization="Bearer wrong")[0] == 401
    assert ask(service, "GET", f"/v1/apps/{app}/copies/7")[0] == 404
    assert ask(service, "GET", f"/v1/apps/{app}/copies/..%2f0")[0] == 400
    assert themis(mine, tmp_path, "fetch", str(app), "--job", "4")[0] == 2


def test_what_cannot_be_fetched_is_one_sentence(service: Daemon, tmp_path: Path) -> None:
    with service.client() as client:
        app = client.run(["true"]).app
        client.wait(app, timeout_s=PATIENCE_S)
    rc, _, err = themis(service.home, tmp_path, "fetch", str(app))
    assert (rc, err.count("\n"), "the service keeps no files of app" in err) == (2, 1, True)
    rc, _, err = themis(service.home, tmp_path, "fetch", "nosuch")
    assert (rc, "unknown app 'nosuch'" in err) == (2, True)
    with service.client() as client, pytest.raises(InputError, match="sent with; send some"):
        client.run(["true"], outputs=["results"])


def test_a_copy_that_is_damaged_on_the_services_disk_is_one_sentence(service: Daemon, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with service.client() as client:
        made = client.run(["sh", "-c", "echo 1 > x"], send=tmp_path / "work", outputs=["x"])
        client.wait(made.app, timeout_s=PATIENCE_S)
    wait_until(lambda: bool(kept(service, made.app)), "the copy is here")
    (service.home / "copies" / "files" / str(kept(service, made.app)[0]["sha256"])).write_bytes(b"damaged")
    rc, _, err = themis(service.home, tmp_path, "fetch", str(made.app), "--to", "there")
    assert (rc, err.count("\n"), "the service's copy is damaged" in err) == (2, 1, True)
    assert not [*(tmp_path / "there").iterdir()]


def test_an_archive_with_a_path_out_of_the_folder_is_refused_where_it_is_fetched(tmp_path: Path) -> None:
    """The service trusts no machine with what users unpack, and users need not trust the service."""
    from themis.machines.agent.prepare import Failed, unpack

    for name, link in (("../x", ""), ("/etc/x", ""), ("a/../../x", ""), ("in", "/etc"), ("in", "../..")):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            member = tarfile.TarInfo(name)
            if link:
                member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member)
        path = tmp_path / "archive"
        path.write_bytes(data.getvalue())
        (tmp_path / "to").mkdir(exist_ok=True)
        with open(path, "rb") as file, pytest.raises(Failed):
            unpack(file.fileno(), str(tmp_path / "to"), hashlib.sha256(data.getvalue()).hexdigest())
        assert not [*(tmp_path / "to").iterdir()]
