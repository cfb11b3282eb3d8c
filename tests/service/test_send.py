"""Sending a folder with the command line and over HTTP: a real service, agents and processes."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from daemon import QUICK, Daemon, daemon

from themis.client.aio import AsyncClient
from themis.client.client import Client
from themis.client.home import read_endpoint, read_token
from themis.client.sending import only_here
from themis.errors import InputError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = (*QUICK, "max_bundle=1 MiB", "bundles_quota=4 MiB", "node_lease=30")
    with daemon(tmp_path_factory.mktemp("home"), options=("--gpus", "4"), settings=settings) as there:
        yield there


def themis(service: Daemon, folder: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "themis.cli", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "THEMIS_DATA_DIR": str(service.home)},
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def ask(
    service: Daemon, verb: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, object]]:
    address = read_endpoint(service.home).http.removeprefix("http://")
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        token = {"Authorization": f"Bearer {read_token(service.home)}"} if "Authorization" not in headers else {}
        kind = {"Content-Type": "application/octet-stream"} if body is not None else {}
        connection.request(verb, path, body, {**kind, **token, **headers})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def code(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_dot_", ".")).write_text(text)
    return folder


def test_run_sends_the_folder_once_and_runs_in_a_copy(service: Daemon, tmp_path: Path) -> None:
    folder = code(tmp_path / "code", train_dot_sh="echo here is $(pwd); cat data\n", data="42\n")
    status, out, err = themis(service, folder, "run", "--send", ".", "--", "sh", "train.sh")
    assert (status, "42" in out, "Sent" in err) == (0, True, True)
    assert f"here is {service.home}/run/nodes/" in out
    status, out, err = themis(service, folder, "run", "--send", ".", "--", "sh", "train.sh")
    assert (status, "42" in out, "Sent" in err) == (0, True, False)


def test_folders_are_sent_over_tls_by_the_command_and_by_both_clients(tmp_path: Path) -> None:
    folder = code(tmp_path / "code", train_dot_sh="cat data\n", data="42\n")
    code(folder / "sub", more_dot_sh="cat ../data > $OUT\n")
    (folder / "job.yaml").write_text("name: sent\nsend: .\ncommand: sh train.sh\n")
    with daemon(tmp_path / "home", options=("--gpus", "2"), settings=(*QUICK, "tls=on")) as there:
        assert read_endpoint(there.home).http.startswith("https://")
        status, out, err = themis(there, folder, "run", "--send", ".", "--", "sh", "train.sh")
        assert (status, "42" in out, "Sent" in err) == (0, True, True), err
        with there.client() as client:
            env = {"OUT": str(tmp_path / "first")}
            made = client.run("sh more.sh", send=folder, cwd=folder / "sub", env=env)
            assert client.wait(made.app).state == "completed"
            (again,) = client.submit_file(folder / "job.yaml", folder=folder)
            assert client.wait(again.app).state == "completed"
        assert (tmp_path / "first").read_text() == "42\n"

        async def run() -> str:
            async with AsyncClient(there.home) as client:
                made = await client.run("sh sub/more.sh", send=folder, env={"OUT": str(tmp_path / "second")})
                return (await client.wait(made.app)).state

        (folder / "sub" / "more.sh").write_text("cat data > $OUT\n")
        assert asyncio.run(run()) == "completed"
        assert (tmp_path / "second").read_text() == "42\n"


def test_a_client_with_an_address_says_how_to_send(service: Daemon, tmp_path: Path) -> None:
    address = f"http://{read_endpoint(service.home).address}"
    with (
        Client(address=address, token=read_token(service.home)) as client,
        pytest.raises(InputError, match="files are sent with the login of a data directory"),
    ):
        client.run("true", send=tmp_path)


def test_a_folder_on_a_disk_of_this_machine_is_only_here_and_homes_are_never_sent_unasked(tmp_path: Path) -> None:
    assert only_here(str(tmp_path))
    for folder in ("/", "/tmp", str(Path.home())):
        assert not only_here(folder)


def test_a_job_file_sends_its_folder_and_runs_in_a_folder_of_it(service: Daemon, tmp_path: Path) -> None:
    folder = code(tmp_path / "code", top="7\n")
    code(folder / "sub", go_dot_sh="cat ../top; basename $(pwd)\n")
    (folder / "job.yaml").write_text("name: sent\nsend: .\nworkdir: sub\ncommand: sh go.sh\n")
    status, out, err = themis(service, folder, "submit", "job.yaml")
    assert (status, err.startswith("Sent")) == (0, True), err
    app = out.split()[0]
    assert themis(service, folder, "wait", app)[0] == 0
    assert themis(service, folder, "logs", app)[1].split() == ["7", "sub"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("send: .\nworkdir: ../other\n", "expected a folder in"),
        ("send: nowhere\n", "does not exist"),
        ("packages: ../up.txt\n", "uv.lock, a requirements file"),
        ("launcher: podman\n", "bwrap, apptainer:IMAGE or docker:IMAGE"),
        ("modules: ['a b']\n", "names of modules"),
    ],
)
def test_wrong_job_files_are_one_sentence(service: Daemon, tmp_path: Path, text: str, sentence: str) -> None:
    folder = code(tmp_path / "code", job_dot_yaml=f"name: wrong\ncommand: 'true'\n{text}")
    status, _, err = themis(service, folder, "submit", "job.yaml")
    assert (status, sentence in err, "Traceback" in err) == (2, True, False), err


def test_a_folder_that_is_too_large_is_refused_before_it_is_sent(service: Daemon, tmp_path: Path) -> None:
    folder = code(tmp_path / "code", big="x" * (2 << 20))
    status, _, err = themis(service, folder, "run", "--send", ".", "--", "true")
    assert status == 2
    assert "big (2.0 MiB)" in err


def test_uploads_are_verified_limited_and_need_a_token(service: Daemon) -> None:
    data = os.urandom(100_000)
    name = hashlib.sha256(data).hexdigest()
    path = f"/v1/bundles/{name}"
    assert ask(service, "GET", path)[0] == 404
    assert ask(service, "PUT", path, data[:-1])[0] == 400
    assert ask(service, "GET", path)[0] == 404
    assert ask(service, "PUT", path, data, Authorization="Bearer wrong")[0] == 401
    assert ask(service, "PUT", path, data, **{"Content-Type": "application/json"})[0] == 415
    assert ask(service, "PUT", "/v1/bundles/x", data)[0] == 400
    assert ask(service, "PUT", path, os.urandom(2 << 20))[0] == 413
    for _ in range(2):
        assert ask(service, "PUT", path, data) == (201, {"sha256": name, "bytes": len(data)})
    assert ask(service, "GET", path) == (200, {"sha256": name, "bytes": len(data)})
    assert not list((service.home / "bundles").glob(".*"))


def test_an_upload_that_breaks_off_leaves_nothing(service: Daemon) -> None:
    address = read_endpoint(service.home).http.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.putrequest("PUT", f"/v1/bundles/{'a' * 64}")
    for header in (
        ("Authorization", f"Bearer {read_token(service.home)}"),
        ("Content-Type", "application/octet-stream"),
        ("Content-Length", "500000"),
    ):
        connection.putheader(*header)
    connection.endheaders(b"x" * 1000)
    connection.close()
    from processes import wait_until

    wait_until(lambda: not list((service.home / "bundles").glob(".*")), "the part is removed")


def test_the_quota_is_kept_and_says_what_to_do(service: Daemon) -> None:
    statuses = []
    for _ in range(6):
        data = os.urandom(900_000)
        statuses.append(ask(service, "PUT", f"/v1/bundles/{hashlib.sha256(data).hexdigest()}", data))
    assert statuses[-1][0] == 507
    assert "bundles_quota" in str(statuses[-1][1]["error"])


def test_a_submission_whose_files_are_not_here_is_refused(service: Daemon) -> None:
    program = {"argv": ["true"], "cwd": "/", "bundle": "b" * 64, "work_is_time": True}
    job = {"name": "job", "regimes": [{"steps": 60}], "gpus_min": 1, "program": program}
    body = json.dumps({"name": "missing", "jobs": [job]}).encode()
    status, reply = ask(service, "POST", "/v1/apps", body, **{"Content-Type": "application/json"})
    assert (status, "send its files again" in str(reply["error"])) == (400, True)
