"""Four machines with networks of their own: gangs over two, cables that are pulled, machines that die, clocks that are wrong."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon import Daemon, daemon
from test_ray_life import finish, node, start

from fleetmachines import Machines, free_port, machines
from netns import Switch, switch
from processes import PATIENCE_S, left_of, ranks_of, wait_until

# They share the addresses of their networks.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("netns")]
NAMES = ("m0", "m1", "m2", "m3")
FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


@dataclass
class World:
    """A service and four machines of one GPU each, m2 and m3 in another rack."""

    service: Daemon
    fleet: Machines
    network: Switch

    def up(self, *names: str) -> bool:
        return all(node(self.service, name).startswith("up") for name in names)

    def kill(self, name: str) -> None:
        """The machine loses its power: everything on it ends."""
        self.fleet.agents[name].kill()
        self.fleet.agents[name].wait()
        for pid in left_of(self.fleet.tasks(name)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with switch(*NAMES) as network:
        options = ("--engine", "fleet", "--host", network.address, "--port", str(free_port()))
        with (
            daemon(tmp_path / "home", options=options) as service,
            machines(service.home, tmp_path / "machines") as fleet,
        ):
            fleet.host = network.address
            for name in NAMES:
                fleet.prefix[name] = network.prefix(name)
                fleet.add(name, 1, "--label", f"rack={'a' if name in NAMES[:2] else 'b'}")
            found = World(service, fleet, network)
            wait_until(lambda: found.up(*NAMES), lambda: f"all serve\n{service.said()}")
            yield found


def busy(world: World) -> list[str]:
    """Machines with ranks."""
    return [name for name in NAMES if ranks_of(world.fleet.tasks(name))]


def test_a_pulled_cable_and_a_dead_machine_cost_no_job(world: World, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    apps = [start(world.service, witness, 1, 150) for _ in NAMES]
    wait_until(lambda: busy(world) == list(NAMES), "each machine has a job")
    world.network.pull("m2")
    world.kill("m3")
    wait_until(lambda: not ranks_of(world.fleet.tasks("m2")), "its supervisor stopped the job when the lease ended")
    wait_until(lambda: node(world.service, "m2").startswith("lost"), "it counts as lost")
    wait_until(lambda: node(world.service, "m3").startswith("lost"), "the dead one too")
    world.network.plug("m2")
    world.fleet.start("m3")
    wait_until(lambda: world.up(*NAMES), "both are back")
    apps.append(start(world.service, witness, 4, 10))
    finish(world.service, witness, apps)


@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed: apt install faketime")
def test_a_machine_whose_clock_is_a_year_ahead_is_told_so_and_one_hour_matters_not(
    world: World, tmp_path: Path
) -> None:
    def restart(name: str, offset: str) -> None:
        world.kill(name)
        fake = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": offset, "DONT_FAKE_MONOTONIC": "1"}
        world.fleet.environment[name] = fake
        world.fleet.start(name)

    restart("m0", "+1h")
    restart("m1", "+3y")
    wait_until(lambda: "this machine's clock is ahead" in world.fleet.said("m1"), "it says why")
    wait_until(lambda: world.up("m0") and node(world.service, "m1").startswith("lost"), "the other one serves")
    apps = [start(world.service, tmp_path / "witness", 3, 20)]
    world.fleet.environment.clear()
    world.kill("m1")
    world.fleet.start("m1")
    wait_until(lambda: world.up(*NAMES), "its clock was set")
    finish(world.service, tmp_path / "witness", apps)


def test_a_machine_joins_from_its_own_address_only_by_its_own_token(world: World, tmp_path: Path) -> None:
    assert world.fleet.member("m3").address == world.network.at("m3")
    shutil.copytree(world.fleet.state("m0"), world.fleet.state("stolen"))
    world.fleet.prefix["stolen"] = world.network.prefix("m3")
    thief = world.fleet.start("stolen")
    assert thief.wait(PATIENCE_S) == 2
    assert f"machine m0 is connected already, from {world.network.at('m0')}" in world.fleet.said("stolen")
