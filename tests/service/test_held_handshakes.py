"""Hundreds of connections that never finish their handshake, at each port of a service: others are served, files do not run out."""

from __future__ import annotations

import asyncio
import os
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from fleetmachines import machines
from processes import PATIENCE_S, wait_until
from themis.client.client import Client
from themis.client.home import read_endpoint
from themis.client.light import Service as Light
from themis.trust.authority.ca import Authority
from themis.trust.authority.contexts import HANDSHAKE_S, client_context, server_context
from themis.trust.authority.entrance import MOST_HANDSHAKES, Entrance, network_of

HELD = 1000
"""Connections at each port."""
FILES = 1024
"""That a service is given; the usual limit of a login."""
HELLO = bytes.fromhex("16030100c8010000c40303")
"""Half a message that begins a handshake."""
SOON_S = 10.0
"""For an answer, with a new connection, on a busy machine."""


class Holder:
    """Holds so many connections open at each port, with half a handshake; what the service closes is opened again."""

    def __init__(self, ports: list[int]) -> None:
        self.ports, self.opened, self.most = ports, 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Holder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        held = dict.fromkeys(self.ports, 0)
        with selectors.DefaultSelector() as selector:
            while not self._over.is_set():
                for port in self.ports:
                    # In pieces, so that none of the ports is behind.
                    for _ in range(min(HELD - held[port], 50)):
                        with suppress(OSError):
                            one = socket.create_connection(("127.0.0.1", port), timeout=2)
                            one.sendall(HELLO)
                            one.setblocking(False)
                            selector.register(one, selectors.EVENT_READ, port)
                            held[port] += 1
                            self.opened += 1
                self.most = max(self.most, sum(held.values()))
                for key, _ in selector.select(0.05):
                    with suppress(BlockingIOError, OSError):
                        if key.fileobj.recv(4096):  # type: ignore[union-attr]
                            continue
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    held[key.data] -= 1
            for key in [*selector.get_map().values()]:
                key.fileobj.close()  # type: ignore[union-attr]


@contextmanager
def limited(files: int) -> Iterator[None]:
    """What is started within may open so many files; this process has as many as it may afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else soft, hard))


def files_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def answers(home: Path) -> tuple[float, float]:
    """Seconds of a call of each client, with a connection of its own."""
    began = time.monotonic()
    with Client(home, timeout_s=PATIENCE_S) as client:
        assert client.info().gpus == 2
    between = time.monotonic()
    with Light(home) as light:
        assert light.call("Info")["gpus"] == 2
        assert light._client is None, "HTTP did not answer"
    return between - began, time.monotonic() - between


@pytest.mark.slow
def test_connections_that_never_finish_their_handshake_keep_nobody_out_and_leave_files(tmp_path: Path) -> None:
    options = ("--engine", "fleet", "--set", "tls=on")
    with ExitStack() as stack:
        with limited(FILES):
            service = stack.enter_context(daemon(tmp_path / "home", options=options, settings=QUICK))
        fleet = stack.enter_context(machines(service.home, tmp_path / "machines"))
        client = stack.enter_context(service.client())
        fleet.add("m0", 2)
        wait_until(lambda: client.info().gpus == 2, "the machine serves")
        endpoint = read_endpoint(service.home)
        port = int(endpoint.address.rpartition(":")[2])
        assert fleet.address.endswith(f":{port}")
        assert service.process is not None
        pids = [service.process.pid, *fleet.gateways()]
        slowest, files = [0.0, 0.0], [files_of(pid) for pid in pids]
        with Holder([port]) as holder:
            wait_until(lambda: holder.opened >= HELD, "they are held")
            end = time.monotonic() + 3 * HANDSHAKE_S
            # A machine that dials again, one that is new and a job are served meanwhile.
            fleet.agents["m0"].kill()
            fleet.agents["m0"].wait()
            fleet.start("m0")
            joined = fleet.join("m1", 2)
            assert joined.returncode == 0, joined.stderr
            app = client.run(["true"]).app
            assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
            while time.monotonic() < end:
                slowest = [*map(max, slowest, answers(service.home))]
                files = [*map(max, files, map(files_of, pids))]
        print(f"slowest call {slowest} s, files {files}, opened {holder.opened}, at once {holder.most}")
        assert holder.most > MOST_HANDSHAKES, "more were held than are let in"
        assert max(slowest) < SOON_S, slowest
        assert max(files) < FILES * 2, "the bounds of connections"
        assert "Too many open files" not in service.said()
        assert "Too many open files" not in (service.home / "run" / "gateway.log").read_text()


@pytest.mark.slow
def test_the_service_takes_more_files_than_it_is_given_and_its_jobs_do_not(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with limited(FILES):
            service = stack.enter_context(daemon(tmp_path / "home", settings=QUICK))
        assert service.process is not None
        assert resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)[0] > FILES
        with service.client() as client:
            app = client.run(["sh", "-c", f"ulimit -Sn > {tmp_path}/files"]).app
            assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
        assert int((tmp_path / "files").read_text()) == FILES


def test_the_address_that_holds_most_handshakes_loses_the_oldest_of_them(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path)
    context = server_context(authority.server(["127.0.0.1"]))
    served: list[asyncio.BaseTransport] = []

    class Served(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            served.append(transport)

    async def closed(reader: asyncio.StreamReader) -> bool:
        with suppress(TimeoutError):
            return await asyncio.wait_for(reader.read(1), 0.3) == b""
        return False

    async def hold(port: int, source: str) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        writer.write(HELLO)
        kept.append(writer)
        return reader

    kept: list[asyncio.StreamWriter] = []

    async def story() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        port = listener.getsockname()[1]
        entrance = Entrance(listener, lambda: context, Served, most=4, least_s=0.05, handshake_s=60.0)
        entrance.start()
        quiet = await hold(port, "127.0.0.2")
        greedy = [await hold(port, "127.0.0.3") for _ in range(6)]
        assert [await closed(reader) for reader in greedy] == [True, True, True, False, False, False]
        assert not await closed(quiet)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client_context(authority.pem), ssl_handshake_timeout=PATIENCE_S
        )
        end = time.monotonic() + PATIENCE_S
        while not served and time.monotonic() < end:  # in TLS 1.3 the server ends its handshake last
            await asyncio.sleep(0.01)
        assert len(served) == 1, "a caller that finishes its handshake is served"
        assert not await closed(quiet)
        for each in (writer, *kept):
            each.close()
        await entrance.close()

    asyncio.run(story())


def test_callers_above_the_limit_wait_and_none_of_them_is_closed(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path)
    context = server_context(authority.server(["127.0.0.1"]))

    async def story() -> int:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        entrance = Entrance(
            listener, lambda: context, asyncio.Protocol, most=3, least_s=PATIENCE_S, handshake_s=PATIENCE_S
        )
        entrance.start()
        callers = [
            asyncio.open_connection(
                "127.0.0.1",
                listener.getsockname()[1],
                ssl=client_context(authority.pem),
                ssl_handshake_timeout=PATIENCE_S,
            )
            for _ in range(30)
        ]
        links = await asyncio.gather(*callers)
        for _, writer in links:
            writer.close()
        await entrance.close()
        return len(links)

    assert asyncio.run(story()) == 30


def test_addresses_of_one_ipv6_network_are_one_caller() -> None:
    assert network_of("10.0.0.7") == network_of("::ffff:10.0.0.7") == "10.0.0.7"
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2%eth0") == "2001:db8::/64"
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
