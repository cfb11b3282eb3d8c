"""Machines of a fleet as processes of this one, each with a folder of its own: they join with tokens and dial over TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from processes import PATIENCE_S, end_all, left_of, wait_until
from themis.machines.agent.identity import make_token
from themis.machines.engines.door import Door
from themis.machines.engines.fleet import FleetExecutor
from themis.machines.engines.members import LISTEN, Member, Members, authority_folder, members_file
from themis.trust.authority.ca import Authority
from themis.trust.authority.entrance import Entrance


def free_port() -> int:
    """A port that nothing listens on: machines dial it again when the service was restarted."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Machines:
    """Machines for the service of a data directory.

    root : folder of their certificates and logs; tasks are below the service's, where tests look for processes.
    prefix : words before a machine's commands, as of a network namespace.
    """

    home: Path
    root: Path
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    prefix: dict[str, Sequence[str]] = field(default_factory=dict)
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    host: str = "127.0.0.1"

    @property
    def address(self) -> str:
        """HOST:PORT where the service serves machines."""
        wait_until(lambda: bool(self.fact()), "machines are served")
        return f"{self.host}:{self.fact().rpartition(':')[2]}"

    def fact(self) -> str:
        with closing(Members(members_file(self.home))) as members:
            return members.fact(LISTEN)

    def token(self, ttl_s: float = 600.0, rack: str = "") -> str:
        """A join token."""
        with closing(Members(members_file(self.home))) as members:
            token, secret = make_token(Authority.open(authority_folder(self.home)).fingerprint)
            members.add_token(secret, ttl_s, rack)
            return token

    def member(self, name: str) -> Member:
        """What the service knows of a machine."""
        with closing(Members(members_file(self.home))) as members:
            return next(member for member in members.all() if member.name == name)

    def state(self, name: str) -> Path:
        """A machine's own folder."""
        return self.root / "state" / name

    def tasks(self, name: str) -> Path:
        """A machine's folder of tasks."""
        return self.home / "run" / "on-nodes" / name

    def command(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A ``themis`` command of a machine, run to its end."""
        return subprocess.run(
            [*self.prefix.get(name, ()), sys.executable, "-m", "themis.cli", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=self._env(name),
        )

    def join(self, name: str, gpus: int = 2, token: str = "", *more: str) -> subprocess.CompletedProcess[str]:
        """``themis agent join`` of a machine."""
        words = ["agent", "join", self.address, "--token", token or self.token(), "--name", name, "--gpus", str(gpus)]
        return self.command(name, *words, "--state", str(self.state(name)), "--root", str(self.tasks(name)), *more)

    def start(self, name: str, state: Path | None = None, *options: str) -> subprocess.Popen[bytes]:
        """``themis agent run`` of a machine; what it says is in ``said``."""
        (self.root / "logs").mkdir(parents=True, exist_ok=True)
        with open(self.root / "logs" / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [
                    *self.prefix.get(name, ()),
                    sys.executable,
                    "-m",
                    "themis.machines.agent.remote",
                    "--state",
                    str(state or self.state(name)),
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env(name),
            )
        self.agents.setdefault(name, process)
        if self.agents[name].poll() is not None:
            self.agents[name] = process
        return process

    def add(self, name: str, gpus: int = 2, *more: str) -> None:
        """A machine joins and serves."""
        done = self.join(name, gpus, "", *more)
        assert done.returncode == 0, done.stderr
        self.start(name)

    def said(self, name: str) -> str:
        """What a machine's agent said."""
        path = self.root / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def gateways(self) -> list[int]:
        """Processes of the service's gateway."""
        found = []
        for pid in left_of(self.home):
            try:
                if b"themis.machines.engines.gateway" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found

    def _env(self, name: str) -> dict[str, str]:
        return {**os.environ, **self.environment.get(name, {})}

    def close(self) -> None:
        """End them and all that they left."""
        for process in self.agents.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        end_all(self.root)
        end_all(self.home / "run" / "on-nodes")


@contextmanager
def machines(home: Path, root: Path) -> Iterator[Machines]:
    """Machines for a service that runs; nothing is left of them afterwards."""
    fleet = Machines(home.resolve(), root.resolve())
    try:
        yield fleet
    finally:
        fleet.close()


@contextmanager
def port_for(executor: FleetExecutor) -> Iterator[str]:
    """HOST:PORT where the machines of an executor without a service dial."""
    listener, loop = socket.create_server(("127.0.0.1", 0)), asyncio.new_event_loop()
    entrance = Entrance(listener, None, asyncio.Protocol, aside=Door(executor.door).takes)
    loop.call_soon(entrance.start)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    wait_until(executor.door.exists, "the gateway serves")
    executor.serve_at(address)
    try:
        yield address
    finally:
        asyncio.run_coroutine_threadsafe(entrance.close(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
