"""Tokens of machines: replaced while they serve, refused once they were, and shown to no other authority."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from daemon import QUICK, daemon
from test_ray_life import node
from test_tls import company_files

from fleetmachines import free_port, machines
from processes import PATIENCE_S, wait_until
from themis.client.home import read_endpoint
from themis.machines.agent.identity import token_of

pytestmark = pytest.mark.slow


def ports_of(pid: int) -> set[int]:
    """TCP ports that a process listens on, from /proc/net/tcp (state 0A)."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    files = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in files}


def test_tokens_are_replaced_while_machines_serve_and_a_copy_of_an_old_one_is_refused(tmp_path: Path) -> None:
    options = ("--engine", "fleet", "--port", str(free_port()))
    settings = (*QUICK, "node_token=5s")
    with (
        daemon(tmp_path / "home", options=options, settings=settings) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", "it serves")
        old, first = fleet.state("old"), token_of(fleet.state("m0"))
        shutil.copytree(fleet.state("m0"), old)
        wait_until(lambda: token_of(fleet.state("m0")) != first, "it has another token")
        assert (fleet.state("m0") / "token").stat().st_mode & 0o777 == 0o600
        made = fleet.member("m0").made
        wait_until(lambda: fleet.member("m0").made > made, "it serves with a later one")
        thief = fleet.start("old")
        assert thief.wait(PATIENCE_S) == 2
        assert "the token of machine m0 is not the one that it was given last" in fleet.said("old")
        wait_until(lambda: node(service, "m0") == "up 0", "nothing happened to it")


def test_a_machine_shows_its_token_to_no_service_of_another_authority(tmp_path: Path) -> None:
    options = ("--engine", "fleet", "--port", str(free_port()))
    with (
        daemon(tmp_path / "home", options=options) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", "it serves")
        service.down()
        shutil.rmtree(service.home / "authority")
        service.up()
        wait_until(
            lambda: "not from the authority that this machine trusts" in fleet.said("m0"), lambda: fleet.said("m0")
        )
        assert len(fleet.said("m0").splitlines()) < 8, "it says it once"


def test_machines_dial_the_apis_port_whatever_certificate_the_api_shows(tmp_path: Path) -> None:
    certificate, key, _ = company_files(tmp_path, "own")
    settings = (*QUICK, "tls=on", f"tls_certificate={certificate}", f"tls_key={key}")
    with (
        daemon(tmp_path / "home", options=("--engine", "fleet"), settings=settings) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        assert fleet.address.rpartition(":")[2] == read_endpoint(service.home).address.rpartition(":")[2]
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", lambda: f"it serves: {fleet.said('m0')}")
        assert service.process is not None
        open_ports = {port for pid in (service.process.pid, *fleet.gateways()) for port in ports_of(pid)}
        assert open_ports == {int(fleet.address.rpartition(":")[2])}
