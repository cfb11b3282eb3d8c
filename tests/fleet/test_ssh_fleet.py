"""Four hosts with sshd become a fleet: gangs of two users, preemption and resume without shared folders, machines that fail."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon import QUICK, Daemon, daemon
from test_ray_life import node

from fleetmachines import free_port
from processes import PATIENCE_S, ranks_of, wait_until
from sshmachines import SshMachines, ssh_machines

# They share the addresses of their networks.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("netns")]
NAMES = ("m0", "m1", "m2", "m3")
FIT = Path(__file__).parents[1] / "machines" / "programs" / "torch_fit.py"
FIT_JOB = """
name: fit
command: [{python}, {fit}, 60, 0.2]
gpus: 2
launch: gpu
work: 60 gpu-seconds
grace: 20s
retries: 2
env: {{GLOO_SOCKET_IFNAME: eth0, FSSPEC_SFTP_KEY_FILENAME: {keys}/user, HOME: {home}}}
checkpoint_dir: sftp://root@{url}
"""


@dataclass
class World:
    """A service and four hosts of one GPU each."""

    hosts: SshMachines
    service: Daemon

    def up(self, *names: str) -> bool:
        return all(node(self.service, name).startswith("up") for name in names)

    def busy(self) -> list[str]:
        """Machines with ranks."""
        return [name for name in NAMES if ranks_of(self.hosts.tasks(name))]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ssh_machines(tmp_path / "net", *NAMES) as hosts:
        listed = hosts.listed(tmp_path / "machines.yaml")
        options = ("--fleet", str(listed), "--host", hosts.network.address, "--port", str(free_port()))
        with daemon(tmp_path / "home", options=options, settings=(*QUICK, "node_lease=8")) as service:
            found = World(hosts, service)
            wait_until(lambda: found.up(*NAMES), lambda: f"all serve\n{service.said()}")
            yield found


def test_a_torch_gang_is_preempted_and_resumes_on_a_third_machine_beside_the_job_of_another_user(
    world: World, tmp_path: Path
) -> None:
    """No machine sees a folder of another one: checkpoints travel over SFTP."""
    pytest.importorskip("torch", reason="PyTorch is not installed; pip install 'themis-scheduler[torch]'")
    pytest.importorskip("paramiko", reason="paramiko is not installed: pip install paramiko")
    hosts, service = world.hosts, world.service
    store = hosts.own / "store"
    hosts.seen("m3", store).mkdir()
    own = hosts.own / "of-nobody"
    for name in NAMES:
        hosts.seen(name, own).mkdir()
        os.chown(hosts.seen(name, own), pwd.getpwnam("nobody").pw_uid, -1)
    with service.client() as client:
        client.drain("m3")
        file = tmp_path / "job.yaml"
        file.write_text(
            FIT_JOB.format(
                python=sys.executable,
                fit=FIT,
                keys=hosts.folder,
                home=hosts.own,
                url=f"{hosts.network.at('m3')}{store}",
            )
        )
        app = client.submit_file(file)[0].app
        wait_until(
            lambda: (client.show(app).jobs[0].steps or 0) >= 3,
            lambda: f"it trains\n{client.show(app)}\n{service.said()}",
        )
        other = client.run(
            ["/bin/sleep", "40"],
            user="nobody",
            gpus=1,
            hours=0.02,
            cwd=Path("/"),
            checkpoint_dir=str(own),
        ).app
        theirs: dict[str, set[int]] = {}

        def beside() -> bool:
            """A rank may end between two looks."""
            theirs.clear()
            for name in world.busy():
                with contextlib.suppress(OSError):
                    theirs[name] = {Path(f"/proc/{pid}").stat().st_uid for pid in ranks_of(hosts.tasks(name))}
            return sorted(map(len, theirs.values())) == [1, 1, 1]

        wait_until(beside, lambda: f"each has its machines\n{client.show(other)}\n{client.show(app)}\n{theirs}")
        gang = [name for name, users in theirs.items() if users == {0}]
        assert len(gang) == 2, "the other one runs under its user's account"
        client.undrain("m3")
        client.drain(gang[0])
        for each in (app, other):
            assert client.wait(each, timeout_s=PATIENCE_S).state == "completed", (client.show(each), service.said())
        attempts = list(client.show(app).jobs[0].attempts)
    assert len(attempts) >= 2
    assert attempts[0].ending == "stopped"
    wait_until(
        lambda: len([p for p in hosts.seen("m3", store).rglob("*") if p.is_file()]) >= 1,
        "the machines left their copies",
    )


def test_cables_that_are_pulled_agents_that_are_killed_and_machines_that_die_cost_no_job(world: World) -> None:
    """All while each machine has a job; agents that are gone are started again through ssh."""
    hosts, service = world.hosts, world.service
    with service.client() as client:
        apps = [client.run(["sleep", "60"], gpus=1, hours=0.02, retries=5).app for _ in NAMES]
        wait_until(lambda: world.busy() == list(NAMES), "each machine has a job")
        hosts.network.pull("m1")
        for pid in hosts.agents("m2"):
            os.kill(pid, signal.SIGKILL)
        hosts.kill("m3")
        wait_until(lambda: node(service, "m1").startswith("lost"), "the machine without a cable counts as lost")
        wait_until(lambda: not ranks_of(hosts.tasks("m1")), "its supervisor stopped its job when the lease ended")
        hosts.network.plug("m1")
        wait_until(lambda: world.up(*NAMES), lambda: f"all are back\n{service.said()}")
        gang = client.run(["true"], gpus=4, hours=0.01, launch="gpu").app
        for app in (*apps, gang):
            assert client.wait(app, timeout_s=PATIENCE_S).state == "completed", service.said()
    assert hosts.agents("m2")
    assert hosts.agents("m3")
