"""Certificates of machines: renewed while they serve, refused once they ended, were revoked, or are another authority's."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from daemon import QUICK, daemon
from test_ray_life import node

from fleetmachines import free_port, machines
from processes import wait_until
from themis.machines.agent.identity import ENDS
from themis.trust.authority.ca import Authority

pytestmark = pytest.mark.slow


def test_certificates_are_renewed_while_machines_serve_and_those_that_ended_are_refused(tmp_path: Path) -> None:
    options = ("--engine", "fleet", "--listen", f"127.0.0.1:{free_port()}")
    settings = (*QUICK, "node_certificate=20s")
    with (
        daemon(tmp_path / "home", options=options, settings=settings) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", "it serves")
        old = tmp_path / "old"
        shutil.copytree(fleet.state("m0"), old)
        first = fleet.member("m0").expires
        wait_until(lambda: fleet.member("m0").expires > first, "it has another certificate")
        wait_until(
            lambda: (fleet.state("m0") / "node.pem").read_bytes() != (old / "node.pem").read_bytes(), "it has it"
        )
        wait_until(lambda: node(service, "m0") == "up 0", "it serves with it")
        assert (fleet.state("m0") / "node.pem").stat().st_mode & 0o777 == 0o600
        fleet.agents["m0"].kill()
        fleet.agents["m0"].wait()
        # Off for longer than its certificate is valid.
        until = fleet.member("m0").expires + 1.0
        wait_until(lambda: time.time() > until, "it has ended")
        fleet.start("m0")
        wait_until(
            lambda: "the certificate of this machine expired on" in fleet.said("m0"),
            lambda: f"it says why: {fleet.said('m0')}",
        )
        assert "join it again" in fleet.said("m0")
        assert not node(service, "m0").startswith("up")
        # What brings it back.
        assert fleet.command("m0", "agent", "remove", "m0", "--data-dir", str(service.home)).returncode == 0
        wait_until(lambda: fleet.member("m0").state == "removed", "it is removed")
        fleet.agents["m0"].kill()
        fleet.agents["m0"].wait()
        shutil.rmtree(fleet.state("m0"))
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", "it serves again")


def test_a_service_or_a_machine_of_another_authority_is_refused(tmp_path: Path) -> None:
    options = ("--engine", "fleet", "--listen", f"127.0.0.1:{free_port()}")
    with (
        daemon(tmp_path / "home", options=options) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", "it serves")
        forged = Authority.open(tmp_path / "other").issue_node("m0", 1.0)
        shutil.copytree(fleet.state("m0"), fleet.state("forged"))
        (fleet.state("forged") / "node.pem").write_text(
            f"{ENDS}{forged.expires:.0f}\n" + forged.certificate_pem + forged.key_pem
        )
        fleet.start("forged")
        wait_until(lambda: "refuses the certificate of this machine" in fleet.said("forged"), "it says why")
        assert node(service, "m0") == "up 0"
        service.down()
        shutil.rmtree(service.home / "authority")
        service.up()
        wait_until(
            lambda: "not from the authority that this machine trusts" in fleet.said("m0"), lambda: fleet.said("m0")
        )
        assert len(fleet.said("m0").splitlines()) < 8, "it says it once"
