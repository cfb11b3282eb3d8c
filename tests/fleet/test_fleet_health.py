"""Machines of a fleet that are sick, come back smaller, are removed from afar, or have no folder of a job's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Daemon, daemon
from test_ray_life import finish, node, start

from fleetmachines import Machines, machines
from processes import PATIENCE_S, wait_until
from themis.errors import InputError
from themis.machines.agent.health import FAULTS
from themis.schema import messages as schema

pytestmark = pytest.mark.slow
FLEET = ("--engine", "fleet")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Daemon]:
    with daemon(tmp_path / "home", options=FLEET) as found:
        yield found


@pytest.fixture
def fleet(service: Daemon, tmp_path: Path) -> Iterator[Machines]:
    with machines(service.home, tmp_path / "machines") as found:
        yield found


def row(service: Daemon, name: str) -> schema.Node:
    with service.client() as client:
        return next(n for n in client.nodes() if n.name == name)


def command(service: Daemon, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "themis.cli", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "THEMIS_DATA_DIR": str(service.home)},
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_sick_gpu_gets_no_job_and_the_nodes_say_why(service: Daemon, fleet: Machines, tmp_path: Path) -> None:
    """The fault is simulated."""
    fleet.add("m0", 2)
    wait_until(lambda: node(service, "m0") == "up 0", service.said)
    (fleet.tasks("m0") / FAULTS).write_text("1 XID error 79\n")
    wait_until(lambda: row(service, "m0").withheld == 1, "the GPU is withheld")
    assert "1: simulated: XID error 79" in command(service, tmp_path, "nodes").stdout.replace("\n", " ")
    app = start(service, tmp_path / "witness", 2, 10)
    alone = start(service, tmp_path / "witness", 1, 10)
    with service.client() as client:
        assert client.wait(alone).state == "completed"
        assert client.show(app).app.state == "waiting"
        (fleet.tasks("m0") / FAULTS).unlink()
    finish(service, tmp_path / "witness", [app, alone])


def test_a_machine_that_comes_back_with_fewer_gpus_is_resized(service: Daemon, fleet: Machines, tmp_path: Path) -> None:
    fleet.add("m0", 2)
    wait_until(lambda: node(service, "m0") == "up 0", service.said)
    file = fleet.state("m0") / "machine.json"
    whole = file.read_text()
    for gpus in (1, 2):
        fleet.agents["m0"].terminate()
        fleet.agents["m0"].wait(PATIENCE_S)
        file.write_text(json.dumps({**json.loads(whole), "gpus": gpus}))
        fleet.start("m0")
        wait_until(
            lambda gpus=gpus: (row(service, "m0").gpus, row(service, "m0").state) == (gpus, "up"),
            lambda: f"{row(service, 'm0')} {service.said()} {fleet.said('m0')}",
        )
        app = start(service, tmp_path / f"witness{gpus}", gpus, 5)
        with service.client() as client:
            assert client.wait(app).state == "completed"


def test_an_administrator_removes_a_machine_from_afar(service: Daemon, fleet: Machines, tmp_path: Path) -> None:
    fleet.add("m0", 1)
    fleet.add("m1", 1)
    wait_until(lambda: node(service, "m0") == node(service, "m1") == "up 0", service.said)
    with service.client() as client:
        token = client.add_user("ada")
        assert client.remove_node("m0").state == "leaving"
        with pytest.raises(InputError, match="no machine named 'm7' has joined; machines: "):
            client.remove_node("m7")
    wait_until(lambda: fleet.member("m0").state == "removed", service.said)
    assert fleet.agents["m0"].wait(PATIENCE_S) == 2
    assert "machine m0 was removed from the service" in fleet.said("m0")
    # A login alone, without the service's data directory.
    login = tmp_path / "login"
    login.mkdir(mode=0o700)
    for name in ("endpoint.json", "token"):
        (login / name).write_bytes((service.home / name).read_bytes())
        (login / name).chmod(0o600)
    mine = token + "\n"
    theirs = (login / "token").read_text()
    for text, code in ((mine, 2), (theirs, 0)):
        (login / "token").write_text(text)
        done = command(service, tmp_path, "agent", "remove", "m1", "--data-dir", str(login))
        assert done.returncode == code, done.stderr
    wait_until(lambda: fleet.member("m1").state == "removed", service.said)


def test_run_sends_the_folder_unasked_where_machines_are_elsewhere(
    service: Daemon, fleet: Machines, tmp_path: Path
) -> None:
    fleet.add("m0", 1)
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "go.sh").write_text("echo here is $(pwd)\n")
    wait_until(lambda: node(service, "m0") == "up 0", service.said)
    done = command(service, folder, "run", "--", "sh", "go.sh")
    assert done.returncode == 0, done.stderr
    assert f"here is {fleet.tasks('m0')}/work/" in done.stdout
    assert f"The files of {folder} are sent, because the machines do not have this folder" in done.stderr
    done = command(service, folder, "run", "--no-send", "--", "sh", "go.sh")
    assert f"here is {folder}" in done.stdout
    done = command(service, folder, "run", "--no-send", "--send", ".", "--", "true")
    assert (done.returncode, "exclude each other" in done.stderr) == (2, True)
