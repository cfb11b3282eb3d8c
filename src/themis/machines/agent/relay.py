"""A node agent reached from afar: what an actor of a cluster engine does on its node. Knows no engine.

    arbiter --- bridge === Relay --- Unix socket --- node agent --- supervisors --- ranks

The relay starts the node agent of one machine as it would be started by hand, and carries bytes between the agent's
socket and the caller: it neither reads nor remembers what they send. The agent is no child of the relay's process, so
what ends that process (an engine kills an actor's children without a warning) ends no job: supervisors hold the lease, and
the relay that comes next finds the agent where it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from themis.errors import InputError
from themis.machines.agent.channel import ChannelClosed, listen, readable
from themis.machines.agent.gpus import Claim, claim, nvml_gpus, release
from themis.machines.agent.locks import inhabited, locked
from themis.machines.agent.logfile import turned
from themis.machines.agent.messages import PROTOCOL
from themis.machines.agent.system import clock, passable

WAIT_S = 1.0
"""Longest that a call waits."""
RESPAWN_S = 3.0
"""Between two starts of the agent."""
CHUNK = 1 << 18
DETACH = 'setsid "$@" </dev/null >>"$0" 2>&1 &'
"""The shell ends immediately, and the agent is no child of a process that an engine would look for."""


class Relay:
    """One machine's agent, for callers of one arbiter.

    Parameters
    ----------
    node : name of the machine. ``root`` : folder of its tasks and logs, on a disk of the machine; it comes into being.
    owner : id of the arbiter that may speak through this relay.
    gpus : that the engine counts on this machine. Where NVML finds as many, the relay claims this many of them by their
        UUIDs, the engine's own choice first, for an engine's numbers begin at 0 in each of its daemons; else they are
        mere slots.
    options : of ``python -m themis.machines.agent`` in addition.
    """

    def __init__(self, node: str, root: str, owner: str, gpus: int = 0, options: tuple[str, ...] = ()) -> None:
        self.node, self.root, self.owner, self.options = node, Path(root).expanduser(), owner, tuple(options)
        self.lock = threading.Lock()
        self.session = 0
        self.agent: socket.socket | None = None
        self.gone: socket.socket | None = None
        self.spawned = -RESPAWN_S
        self.spawns = 0
        self.leaving = False
        self.gpus = gpus
        self.claims: list[Claim] = []
        self.joined: tuple[str, ...] = ()
        self.read: dict[Path, tuple[int, int]] = {}
        """Inode and number of bytes read, for each log that is followed."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        not_planted(self.root)
        passable(self.root)
        # The latest relay of a folder is the one that counts: an engine may start another before the last one is dead.
        self.mark = f"{os.getpid()} {clock()}"
        (self.root / "relay").write_text(self.mark)
        self.server = listen(self.root / "relay.sock")
        threading.Thread(target=self._watch, name="themis-relay", daemon=True).start()

    # ---- calls; at most one ``receive`` and one ``send`` at a time ------------------------------------------------

    def describe(self) -> dict[str, object]:
        """Description of this machine for the arbiter.

        Raises
        ------
        InputError : its GPUs are not free yet.
        """
        with self.lock:
            devices = self._devices()
        return {
            "protocol": PROTOCOL,
            "devices": devices,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "root": str(self.root),
        }

    def open(self, owner: str) -> int:
        """Begin a conversation: the agent is made to dial again, so that it begins with its ``Hello``.

        Raises
        ------
        Closed : the relay belongs to another arbiter, or a later relay serves this machine.
        """
        if owner != self.owner:
            raise ChannelClosed(f"node {self.node} is kept by another service ({self.owner}); end that one first")
        self._still_mine()
        with self.lock:
            self.session += 1
            self._drop()
            return self.session

    def receive(self, session: int, wait_s: float = WAIT_S) -> bytes:
        """Receive data from the agent, waiting up to ``wait_s`` seconds; empty if none came. Raises ``ChannelClosed``
        when the connection has ended."""
        self._still_mine()
        agent = self._agent(session, wait_s)
        if agent is None:
            return b""
        try:
            if not readable([agent], wait_s):
                return b""
            data = agent.recv(CHUNK)
        except (OSError, ValueError) as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            with self.lock:
                if self.agent is agent:
                    self._drop()
            raise ChannelClosed("the agent hung up")
        return data

    def send(self, session: int, data: bytes) -> None:
        """Hand bytes to the agent. Raises ``ChannelClosed`` when the conversation has ended."""
        with self.lock:
            agent = self.agent if session == self.session else None
        if agent is None:
            raise ChannelClosed("no agent listens")
        try:
            agent.sendall(data)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def close(self) -> None:
        """Close the connection; the agent keeps running."""
        with self.lock:
            self.session += 1
            self._drop()
            self._drop()
        self.server.close()
        # Once: a descriptor's number is soon another's.
        claims, self.claims = self.claims, []
        release(claims)

    def end(self, number: int = signal.SIGINT) -> None:
        """Ask the agent to end; its jobs, if any, stay as long as its lease. SIGTERM: as its ``notice_s`` says."""
        with contextlib.suppress(OSError, ValueError):
            if self.kept():
                os.kill(int((self.root / "agent.lock").read_text()), number)

    def leave(self) -> None:
        """The machine is taken away: the agent ends after its jobs, and no other is started."""
        self.leaving = True
        self.end(signal.SIGTERM)

    def logs(self) -> list[tuple[str, bool, bytes]]:
        """Log output of the ranks since the last call: (path below the machine's folder, whether the file was
        truncated, bytes)."""
        tasks = {path.name for path in (self.root / "tasks").glob("[!.]*")}
        watched = {p for task in tasks for p in (self.root / "logs" / task).glob("rank-*.log")}
        new: list[tuple[str, bool, bytes]] = []
        left = CHUNK
        for path in sorted(watched | set(self.read)):
            known, at = self.read.get(path, (0, 0))
            data, inode = b"", known
            with contextlib.suppress(OSError), open(path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(at if inode == known else 0)
                data = file.read(left)
            if data:
                new.append((str(path.relative_to(self.root)), inode != known, data))
                left -= len(data)
                self.read[path] = (inode, (at if inode == known else 0) + len(data))
            elif path not in watched and left:
                # Its task has ended, and all of it was read.
                self.read.pop(path, None)
        return new

    # ---- GPUs -----------------------------------------------------------------------------------------------------

    def _devices(self) -> list[str]:
        """The GPUs of this machine's agent, claimed; those that a living agent of this folder has are known by a file."""
        record = self.root / "devices.json"
        known: list[str] = json.loads(record.read_text()) if record.exists() else []
        if self.kept():
            return known
        if not self.claims:
            there = physical(known)
            if self.joined:
                there = [device for device in self.joined if device in there]
            count = len(there) if self.joined else self.gpus
            # Supervisors that outlived the last agent and its relay still hold the claims of their GPUs.
            ours = set(known) if inhabited(self.root) else frozenset()
            self.claims = claim(there, count, ours=ours) if 0 < count <= len(there) else []
            record.write_text(json.dumps(self._positions()))
        return self._positions()

    def _positions(self) -> list[str]:
        """The machine's GPUs by position, those that are lost included where it joined with them."""
        return list(self.joined) or [held.device for held in self.claims]

    def join_with(self, devices: Sequence[str]) -> None:
        """GPUs with which the machine joined, by position; only these are claimed, if present."""
        self.joined = tuple(devices)

    # ---- the agent ------------------------------------------------------------------------------------------------

    def _agent(self, session: int, wait_s: float) -> socket.socket | None:
        """The agent's connection, waited for; an agent that does not come is started."""
        with self.lock:
            if session != self.session:
                raise ChannelClosed("another conversation began")
            if self.agent is not None:
                return self.agent
        if not readable([self.server], wait_s):
            self._start()
            return None
        agent = self.server.accept()[0]
        agent.settimeout(10.0)
        with self.lock:
            if self.agent is None:
                self.agent = agent
        return self.agent

    def _start(self) -> None:
        """Start an agent, unless one has the folder: it dials by itself then."""
        if time.monotonic() < self.spawned + RESPAWN_S or self.leaving or self.kept():
            return
        with self.lock:
            self._devices()
        self.spawned = time.monotonic()
        self.spawns += 1
        # Nothing of the engine's settings or secrets goes to agents, and so to supervisors and jobs.
        locks = [str(held.lock) for held in self.claims]
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        subprocess.run(
            [
                "sh",
                "-c",
                DETACH,
                str(turned(self.root / "agent.log")),
                sys.executable,
                "-m",
                "themis.machines.agent",
                "--node",
                self.node,
                "--root",
                str(self.root),
                "--connect",
                str(self.root / "relay.sock"),
                "--leave",
                *(word for lock in locks for word in ("--claim", lock)),
                *(word for device in self._positions() for word in ("--device", device)),
                *self.options,
            ],
            env=env,
            check=True,
            timeout=10.0,
            pass_fds=tuple(map(int, locks)),
        )

    def kept(self) -> bool:
        """True if an agent holds the folder's lock."""
        return locked(self.root / "agent.lock")

    def _drop(self) -> None:
        """Close the connection to the agent. A thread that still reads sees its end; the last reader closes it."""
        if self.gone is not None:
            self.gone.close()
        self.gone, self.agent = self.agent, None
        if self.gone is not None:
            with contextlib.suppress(OSError):
                self.gone.shutdown(socket.SHUT_RDWR)

    def _still_mine(self) -> None:
        if not self._mine():
            raise ChannelClosed(f"another relay serves {self.node} now")

    def _mine(self) -> bool:
        with contextlib.suppress(OSError):
            return (self.root / "relay").read_text() == self.mark
        return False

    def _watch(self) -> None:
        """Release the agent to the next relay, even if this relay gets no further calls."""
        while self._mine():
            time.sleep(WAIT_S)
        with self.lock:
            self.session += 1
            self._drop()


def not_planted(folder: Path) -> None:
    """Check that, in folders that all users may write to, ours is no other user's, who could place tasks in it.

    Raises
    ------
    InputError : it is.
    """
    for path in (folder, *folder.parents):
        above, found = path.parent.stat().st_mode, path.lstat()
        if (
            above & stat.S_IWOTH
            and path != path.parent
            and (found.st_uid not in (0, os.geteuid()) or path.is_symlink())
        ):
            raise InputError(f"{path} is another user's, so it is not safe for tasks; choose another node_root.")


def physical(first: Sequence[str] = ()) -> list[str]:
    """UUIDs of this machine's GPUs: these first, then those that the engine gave this process, then the others."""
    try:
        found = [device for device, _ in nvml_gpus()]
    except InputError:
        return []
    shown = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    given = [found[int(word)] if word.isdecimal() and int(word) < len(found) else word for word in shown]
    return [d for d in dict.fromkeys([*first, *given, *found]) if d in found]
