"""Callers at the machines' entrance who break off their handshake, or finish it and are no machine: nobody else notices."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from pathlib import Path

import pytest
from daemon import QUICK, Daemon, daemon
from test_ray_life import finish, node, start

from fleetmachines import Machines, free_port, machines
from processes import wait_until
from themis.machines.agent.identity import SERVER_NAME
from themis.machines.agent.messages import PROTOCOL
from themis.trust.authority.ca import Authority
from themis.trust.authority.contexts import client_context
from themis.trust.authority.entrance import server_name

pytestmark = pytest.mark.slow
BROKEN = 1000
"""Callers in each of three rounds: what bounds of connections let in at once is there after two, and the third may add nothing."""
WAIT_S = 60.0
"""For the service to close a connection: more than the time of a handshake and of a first message."""


def hello(authority: str) -> bytes:
    """The first message of a handshake that asks for the machines' server, all of it."""
    out = ssl.MemoryBIO()
    link = client_context(authority).wrap_bio(ssl.MemoryBIO(), out, server_hostname=SERVER_NAME)
    with contextlib.suppress(ssl.SSLWantReadError):
        link.do_handshake()
    return out.read()


def frame(kind: bytes, text: bytes, length: int | None = None) -> bytes:
    return struct.pack(">cI", kind, len(text) if length is None else length) + text


PRESENT = b'{"kind": "Present", "name": "m0", "token": "%s", "gpus": 2, "gpu_type": "gpu", "protocol": %d}'
FIRST = (
    frame(b"c", PRESENT % (b"0" * 64, PROTOCOL)),
    frame(b"c", b'{"kind": "Join", "secret": "00", "name": "m9", "gpus": 8, "gpu_type": "H200"}'),
    frame(b"c", b'{"kind": "Pong"}'),
    frame(b"d", b'{"kind": "Hello", "node": "m0", "trust": "root"}\n'),
    frame(b"c", b"", 1 << 30),
    frame(b"c", b"[" * 60_000),
    b"GET / HTTP/1.1\r\n\r\n",
    os.urandom(64),
    b"c",
    b"",
)
"""Words of callers who finished their handshake; half of one, or none, too."""


def measures(pid: int) -> tuple[int, int, int]:
    """Open files, threads and bytes of memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), pages * 4096


def break_some(service: Daemon, fleet: Machines, authority: str) -> None:
    """Half of the callers never finish the handshake, the others are no machine; half of all are gone at once."""
    host, _, port = fleet.address.rpartition(":")
    begin, context, held = hello(authority), client_context(authority), []
    assert server_name(begin) == SERVER_NAME, "they reach the machines' entrance"
    junk = os.urandom(400)
    broken = (begin, begin + junk, begin + begin, begin[:-40] + junk[:40])
    for i in range(BROKEN):
        one = socket.create_connection((host, int(port)), timeout=WAIT_S)
        # The service may close it before all of it is said.
        with contextlib.suppress(OSError):
            if i % 2:
                one.sendall(broken[i // 4 % len(broken)])
            else:
                one = context.wrap_socket(one, server_hostname=SERVER_NAME)
                one.sendall(FIRST[i // 4 % len(FIRST)])
        if i % 4 < 2:
            held.append(one)
        else:
            one.close()
        if i % 100 == 0:
            assert node(service, "m0").startswith("up"), service.said()
    for one in held:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while one.recv(4096):
                pass
        one.close()


@pytest.mark.timeout(600)
def test_a_thousand_broken_handshakes_of_no_machine_disturb_none_and_leave_nothing(tmp_path: Path) -> None:
    options = ("--engine", "fleet", "--port", str(free_port()))
    settings = ["node_lease=15" if word.startswith("node_lease") else word for word in QUICK]
    with (
        daemon(tmp_path / "home", options=options, settings=settings) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", "it serves")
        authority = Authority.open(service.home / "authority").pem
        (gateway,) = fleet.gateways()
        apps = [start(service, tmp_path / "witness", 2, 100)]
        break_some(service, fleet, authority)
        break_some(service, fleet, authority)
        files, threads, memory = measures(gateway)
        break_some(service, fleet, authority)
        wait_until(lambda: measures(gateway)[0] <= files + 4, "files are closed")
        after = measures(gateway)
        assert fleet.gateways() == [gateway], "it is the same process"
        assert after[1] <= threads + 4
        assert after[2] - memory < 24 << 20
        apps.append(start(service, tmp_path / "witness", 2, 10))
        with service.client() as client:
            assert [row.name for row in client.nodes()] == ["m0"], "nobody joined"
        assert not fleet.said("m0"), "its connection was never closed"
        finish(service, tmp_path / "witness", apps)
