"""Machines with a real sshd each: in a network namespace with an address of its own, and on a disk that no other machine sees."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from netns import Switch, switch
from processes import end_all, wait_until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
SETTINGS = """
ListenAddress {address}
HostKey {keys}/host-{name}
AuthorizedKeysFile {keys}/user.pub
StrictModes no
PidFile none
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxStartups 100
Subsystem sftp internal-sftp
"""
CLIENT = """
Host *
  User root
  IdentityFile {keys}/user
  IdentitiesOnly yes
  UserKnownHostsFile {keys}/known_hosts
  GlobalKnownHostsFile /dev/null
"""
DISK = "mount -t tmpfs -o size={size},mode=755 tmpfs {own} && exec {sshd} -D -e -f {keys}/sshd-{name}"


@dataclass
class SshMachines:
    """Hosts for ``themis fleet``; the path ``own`` is another disk on each of them.

    network : whose cables can be pulled. ``folder`` : keys and settings. ``servers`` : their sshd, by name.
    own : the folder that is a disk of each machine; the users of jobs may pass to it.
    """

    network: Switch
    folder: Path
    own: Path
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        """For ``ssh -F``."""
        return self.folder / "config"

    @property
    def known(self) -> Path:
        """Host keys that the service's machine knows."""
        return self.folder / "known_hosts"

    def tasks(self, name: str) -> Path:
        """A machine's folder of tasks, as the machine sees it."""
        return self.own / "tasks" / name

    def seen(self, name: str, path: Path) -> Path:
        """A path of the machine's disk, as this process can open it."""
        return Path(f"/proc/{self.servers[name].pid}/root{path}")

    def prepare(self) -> None:
        """Keys, and the client's settings."""
        self.own.chmod(0o755)
        for name in ("user", *(f"host-{name}" for name in self.network.machines)):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)], check=True)
        lines = [CLIENT.format(keys=self.folder)]
        for name in self.network.machines:
            lines.append(f"Host {name}\n  HostName {self.network.at(name)}\n  HostKeyAlias {name}\n")
            self.trust(name)
        self.config.write_text("".join(lines))

    def trust(self, name: str, key: str = "") -> None:
        """Let the client know the host key of a machine; ``key`` : of another one."""
        kept = (
            [line for line in self.known.read_text().splitlines() if line.split()[0] != name]
            if self.known.exists()
            else []
        )
        public = (self.folder / f"host-{key or name}.pub").read_text().split()
        self.known.write_text("\n".join([*kept, f"{name} {public[0]} {public[1]}", ""]))

    def boot(self, name: str, size: str = "400m") -> None:
        """Switch a machine on: an empty disk, and sshd."""
        words = {"keys": self.folder, "name": name, "own": self.own, "size": size, "sshd": SSHD}
        settings = SETTINGS.format(address=self.network.at(name), keys=self.folder, name=name)
        (self.folder / f"sshd-{name}").write_text(settings)
        with open(self.folder / f"sshd-{name}.log", "ab") as log:
            self.servers[name] = subprocess.Popen(
                [*self.network.prefix(name), "sh", "-c", DISK.format(**words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self.answers(name), lambda: (self.folder / f"sshd-{name}.log").read_text())

    def answers(self, name: str) -> bool:
        """Whether its sshd does."""
        found = subprocess.run(
            [
                "ssh",
                "-F",
                str(self.config),
                "-o",
                "BatchMode=yes",
                "-o",
                "ConnectTimeout=2",
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
                name,
                "true",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        return found.returncode == 0

    def kill(self, name: str) -> None:
        """The machine loses its power: every process in its namespace ends; its disk stays for ``seen`` until it is booted."""
        pids = subprocess.run(["ip", "netns", "pids", self.network.space(name)], capture_output=True, text=True).stdout
        for pid in map(int, pids.split()):
            if pid != self.servers[name].pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def off(self, name: str) -> None:
        """Switch a machine off; its disk is gone with it."""
        self.kill(name)
        self.servers[name].kill()
        self.servers[name].wait()

    def agents(self, name: str) -> list[int]:
        """Processes of the machine's agent: the one that dials the service, and the node agent."""
        pids = subprocess.run(["ip", "netns", "pids", self.network.space(name)], capture_output=True, text=True).stdout
        found = []
        for pid in map(int, pids.split()):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if words[2:3] in ([b"themis.machines.agent.remote"], [b"themis.machines.agent"]):
                    found.append(pid)
        return found

    def close(self) -> None:
        """End all of it."""
        for name in self.servers:
            self.off(name)
        end_all(self.own)
        shutil.rmtree(self.own)

    def listed(self, path: Path, gpus: int = 1, names: Sequence[str] = (), **more: dict[str, str]) -> Path:
        """A ``machines.yaml`` with these machines, or all; ``more`` : further keys of one."""
        lines = [f"ssh_config: {self.config}", f"folder: {self.own}/opt", f"python: {sys.executable}", "machines:"]
        for name in names or self.network.machines:
            lines += [f"- host: {name}", f"  gpus: {gpus}", f"  tasks: {self.tasks(name)}"]
            lines += [f"  {key}: {value}" for key, value in more.get(name, {}).items()]
        path.write_text("\n".join(lines))
        return path


@contextmanager
def ssh_machines(folder: Path, *names: str) -> Iterator[SshMachines]:
    """Machines of these names, switched on; or skip where that is not possible."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("OpenSSH is not installed: apt install openssh-server openssh-client")
    with switch(*names) as network:
        Path("/run/sshd").mkdir(exist_ok=True)
        folder.mkdir()
        made = SshMachines(network, folder.resolve(), Path(tempfile.mkdtemp(prefix="themis-own-")))
        made.prepare()
        try:
            for name in names:
                made.boot(name)
            yield made
        finally:
            made.close()
