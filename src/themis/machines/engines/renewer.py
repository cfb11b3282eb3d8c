"""The renewal of machines' leases while the service starts, before its settings and its journal are read.

    lock of the data directory -> Renewer -> settings, journal, arbiter -> LocalExecutor.start, which takes over

A machine's lease says that a service is there, and nothing of jobs. So the renewer knows none and decides nothing: it answers the
agents that an earlier service left, with leases of the length that they had from it. The executor counts its own leases of machines
from the moment it takes over, so none of them ends earlier than one that was given here
([decision 77](docs/decisions/0077-leases-are-renewed-first.md)).

All starts since a service last ran have the length of one lease together for this: the jobs of a service that never comes back end
at most that much later. Few modules are imported, so that the first renewal does not wait for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from themis.machines.agent.channel import SocketChannel, listen, readable
from themis.machines.agent.messages import Lease, Renew
from themis.machines.agent.system import clock

LOOK_S = 1.0
"""Between two looks whether it should end."""


def socket_file(root: Path) -> Path:
    """Socket at which agents with this folder reach the service."""
    return root / "arbiter" / "agents.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The service that ran with a folder before, as far as the next start needs it.

    Attributes
    ----------
    lease_s : of its machines, seconds; 0 where none ran. ``version`` : of Themis.
    starting_since : when the first start since then began to renew leases, on ``clock``; None where none did.
    """

    lease_s: float = 0.0
    version: str = ""
    starting_since: float | None = None


def before(root: Path) -> Before:
    """State that an earlier run saved; the default if there is none or the file is damaged."""
    try:
        found = Before(**json.loads(_file(root).read_text()))
        since = found.starting_since
        return replace(found, lease_s=float(found.lease_s), starting_since=None if since is None else float(since))
    except (OSError, ValueError, TypeError):  # none, or power was lost as it was written
        return Before()


def note_lease(root: Path, lease_s: float, version: str = "") -> None:
    """Keep, for the next start, that a service runs and gives leases of this length; a full disk only makes that start slower."""
    with contextlib.suppress(OSError):
        _write(root, Before(lease_s=lease_s, version=version))


def _file(root: Path) -> Path:
    return root / "arbiter" / "lease.json"


def _write(root: Path, kept: Before) -> None:
    path = _file(root)
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(asdict(kept)))
    draft.replace(path)


class Renewer:
    """Thread that answers agents from its creation until ``hand_over`` or ``close``.

    Attributes
    ----------
    server : the socket that agents dial; it is the executor's after ``hand_over``.
    until : on ``clock``; no lease is given from then on.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = clock) -> None:
        self.clock, self.root = clock, root
        self._before = before(root)
        self.lease_s, since = self._before.lease_s, self._before.starting_since
        now = clock()
        # One of before a reboot is later than now; nothing runs then.
        self._since = now if since is None or since > now else since
        self.until = self._since + self.lease_s
        self._noted = since == self._since
        self.server = listen(socket_file(root))
        self._channels: dict[int, SocketChannel] = {}
        self._stopped, self._stop = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="themis-renewer", daemon=True)
        self._thread.start()

    def hand_over(self) -> socket.socket:
        """Stop answering and close all connections, so that agents dial again; returns the socket where they wait."""
        if self._stop >= 0:
            os.write(self._stop, b".")
            self._thread.join()
            os.close(self._stop)
            os.close(self._stopped)
            self._stop = self._stopped = -1
        return self.server

    def close(self) -> None:
        """Stop answering without a successor."""
        self.hand_over().close()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            for channel in self._channels.values():
                channel.close()

    def _turn(self) -> bool:
        ready = readable([self._stopped, self.server, *self._channels], LOOK_S)
        if self._stopped in ready:
            return False
        if self.server.fileno() in ready:
            with contextlib.suppress(OSError):
                channel = SocketChannel(self.server.accept()[0])
                self._channels[channel.socket.fileno()] = channel
        for number in ready & self._channels.keys():
            try:
                for message in self._channels[number].receive(0.0):
                    if isinstance(message, Renew):
                        self._renew(self._channels[number], message)
            except Exception:  # an agent's bad message ends its own connection alone
                self._channels.pop(number).close()
        return True

    def _renew(self, channel: SocketChannel, renew: Renew) -> None:
        if self.clock() >= self.until:
            return
        if not self._noted:
            # Before the first: a start that is killed right after it must not have as much time again.
            _write(self.root, replace(self._before, starting_since=self._since))
            self._noted = True
        channel.send(Lease(sequence=renew.sequence, lease_s=self.lease_s))


@contextmanager
def renewing(root: Path) -> Iterator[Renewer | None]:
    """Renew leases as long as the block lasts or until the executor takes over; None where no service ran in this folder before."""
    renewer = Renewer(root) if before(root).lease_s > 0 else None
    try:
        yield renewer
    finally:
        if renewer is not None:
            renewer.close()
