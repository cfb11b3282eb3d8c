"""Machines as network namespaces, each with an address of its own, behind a switch whose cables can be pulled."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NETWORKS = tuple(f"10.203.{n}" for n in range(78, 110))
"""A switch has the first that no other has: several test runs may share a machine. ``.1`` is this machine's address."""


@dataclass
class Switch:
    """A bridge of this machine, and a namespace for each name, with the interface eth0."""

    name: str
    machines: tuple[str, ...]
    network: str = ""

    @property
    def address(self) -> str:
        """Where the machines reach this one."""
        return f"{self.network}.1"

    def at(self, machine: str) -> str:
        """The machine's own address."""
        return f"{self.network}.{self.machines.index(machine) + 2}"

    def space(self, machine: str) -> str:
        """The machine's namespace."""
        return f"{self.name}-{machine}"

    def port(self, machine: str) -> str:
        """The switch's end of the machine's cable."""
        return f"{self.name}p{self.machines.index(machine)}"

    def prefix(self, machine: str) -> list[str]:
        """Words before a command that runs on the machine."""
        return ["ip", "netns", "exec", self.space(machine)]

    def lay(self) -> bool:
        """Make all of it; False where that is not allowed."""
        with open(Path(tempfile.gettempdir()) / "themis-test-networks.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            taken = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True).stdout
            self.network = next(network for network in NETWORKS if f" {network}." not in taken)
            commands = [f"link add {self.name} type bridge", f"addr add {self.address}/24 dev {self.name}"]
            if not all(_ip(command) for command in commands):
                return False
        commands = [f"link set {self.name} up"]
        for machine in self.machines:
            space, port = self.space(machine), self.port(machine)
            commands += [
                f"netns add {space}",
                f"link add {port} type veth peer name eth0 netns {space}",
                f"link set {port} master {self.name} up",
                f"-n {space} addr add {self.at(machine)}/24 dev eth0",
                f"-n {space} link set eth0 up",
                f"-n {space} link set lo up",
            ]
        return all(_ip(command) for command in commands)

    def pull(self, machine: str) -> None:
        """Pull the machine's cable."""
        assert _ip(f"link set {self.port(machine)} down")

    def plug(self, machine: str) -> None:
        """Plug it in again."""
        assert _ip(f"link set {self.port(machine)} up")

    def remove(self) -> None:
        """All of it; processes in the namespaces live on without a network."""
        for machine in self.machines:
            _ip(f"link del {self.port(machine)}")
            _ip(f"netns del {self.space(machine)}")
        _ip(f"link del {self.name}")


@contextmanager
def switch(*machines: str) -> Iterator[Switch]:
    """Namespaces of these names; or skip where they are not allowed."""
    made = Switch(f"th{os.getpid() % 100000}", machines)
    try:
        if os.geteuid() != 0 or shutil.which("ip") is None or not made.lay():
            pytest.skip("network namespaces need root and the command ip")
        yield made
    finally:
        made.remove()


def _ip(words: str) -> bool:
    return subprocess.run(["ip", *words.split()], capture_output=True).returncode == 0
