"""``themis up`` as a process of its own, to be killed and started again, that leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import PATIENCE_S, end_all, left_of, wait_until
from themis.client.client import Client
from themis.client.home import read_endpoint
from themis.errors import ThemisError

PROGRAMS = Path(__file__).parent / "programs"
QUICK = (
    "lease=2",
    "tick=1",
    "container=0.2",
    "grace=1",
    "node_lease=4",
    "node_renew=0.5",
    "node_margin=1",
    "progress=0.5",
    "check_state=true",
    "retries=0",
)


@dataclass
class Daemon:
    """A service with a home of its own."""

    home: Path
    options: Sequence[str] = ("--machines", "2x2")
    settings: Sequence[str] = QUICK
    process: subprocess.Popen[bytes] | None = None
    starts: int = field(default=0)
    umask: int = -1
    """Of the shell that it is started in; -1 for this process's."""

    def up(self) -> None:
        """Start it and wait until it answers."""
        settings = [word for setting in self.settings for word in ("--set", setting)]
        root = ["--allow-root"] if os.geteuid() == 0 else []
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "endpoint.json").unlink(missing_ok=True)
        self.starts += 1
        with open(self.home / f"up-{self.starts}.log", "wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "themis.cli",
                    "up",
                    "--home",
                    str(self.home),
                    "--port",
                    "0",
                    *self.options,
                    *settings,
                    *root,
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=self.umask,
            )
        wait_until(self._answers, lambda: f"the arbiter answers; it said {self.said()}")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the arbiter ended: {self.said()}"
        try:
            return read_endpoint(self.home).pid == self.process.pid
        except ThemisError:
            return False

    def said(self) -> str:
        """All that it wrote."""
        return "\n".join(path.read_text() for path in sorted(self.home.glob("up-*.log")))

    def kill(self) -> None:
        """kill -9 of the arbiter."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def agents(self) -> list[int]:
        """Node agents of this home."""
        return self._called(b"themis.machines.agent\0")

    def bridges(self) -> list[int]:
        """Bridges to Ray of this home."""
        return self._called(b"themis.machines.engines.bridge")

    def _called(self, name: bytes) -> list[int]:
        pids = []
        for pid in left_of(self.home):
            # What ends meanwhile is not one of them.
            with suppress(OSError):
                if name in Path(f"/proc/{pid}/cmdline").read_bytes():
                    pids.append(pid)
        return pids

    def down(self) -> int:
        """SIGTERM; returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def client(self) -> Client:
        """A connection that outlives restarts as long as the port does; ask for a new one after each."""
        return Client(self.home, timeout_s=PATIENCE_S)


@contextmanager
def daemon(home: Path, **more: Any) -> Iterator[Daemon]:
    """A running service; whatever is left of it in the end is killed."""
    service = Daemon(home.resolve(), **more)
    try:
        service.up()
        yield service
    finally:
        if service.process is not None and service.process.poll() is None:
            if "--engine" in service.options:
                # The nodes of a cluster that other tests use too are let go in order only.
                service.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    service.process.wait(PATIENCE_S)
            service.process.kill()
            service.process.wait()
        end_all(service.home)
