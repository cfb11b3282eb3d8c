"""Tokens of machines: replaced while they serve, refused once they were, and shown to no other authority."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from daemon import QUICK, daemon
from test_ray_life import node
from test_tls import company_files

from fleetmachines import free_port, machines
from processes import PATIENCE_S, wait_until
from themis.client.home import read_endpoint
from themis.machines.agent.identity import read_token, token_of

pytestmark = pytest.mark.slow


def ports_of(pid: int) -> set[int]:
    """TCP ports that a process listens on, from /proc/net/tcp (state 0A)."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    files = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in files}


def test_tokens_are_replaced_while_machines_serve_and_a_copy_of_an_old_one_is_refused(tmp_path: Path) -> None:
    options = ("--engine", "fleet", "--port", str(free_port()))
    settings = (*QUICK, "node_token=5s")
    with (
        daemon(tmp_path / "home", options=options, settings=settings) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", "it serves")
        old, first = fleet.state("old"), token_of(fleet.state("m0"))
        shutil.copytree(fleet.state("m0"), old)
        wait_until(lambda: token_of(fleet.state("m0")) != first, "it has another token")
        assert (fleet.state("m0") / "token").stat().st_mode & 0o777 == 0o600
        made = fleet.member("m0").made
        wait_until(lambda: fleet.member("m0").made > made, "it serves with a later one")
        thief = fleet.start("old")
        assert thief.wait(PATIENCE_S) == 2
        assert "the token of machine m0 is not the one that it was given last" in fleet.said("old")
        wait_until(lambda: node(service, "m0") == "up 0", "nothing happened to it")


def test_a_machine_shows_its_token_to_no_service_of_another_authority(tmp_path: Path) -> None:
    options = ("--engine", "fleet", "--port", str(free_port()))
    with (
        daemon(tmp_path / "home", options=options) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", "it serves")
        service.down()
        shutil.rmtree(service.home / "authority")
        service.up()
        wait_until(
            lambda: "not from the authority that this machine trusts" in fleet.said("m0"), lambda: fleet.said("m0")
        )
        assert len(fleet.said("m0").splitlines()) < 8, "it says it once"


def test_machines_dial_the_apis_port_whatever_certificate_the_api_shows(tmp_path: Path) -> None:
    certificate, key, _ = company_files(tmp_path, "own")
    settings = (*QUICK, "tls=on", f"tls_certificate={certificate}", f"tls_key={key}")
    with (
        daemon(tmp_path / "home", options=("--engine", "fleet"), settings=settings) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        assert fleet.address.rpartition(":")[2] == read_endpoint(service.home).address.rpartition(":")[2]
        fleet.add("m0", 2)
        wait_until(lambda: node(service, "m0") == "up 0", lambda: f"it serves: {fleet.said('m0')}")
        assert service.process is not None
        open_ports = {port for pid in (service.process.pid, *fleet.gateways()) for port in ports_of(pid)}
        assert open_ports == {int(fleet.address.rpartition(":")[2])}


@contextmanager
def recorded(port: int) -> Iterator[tuple[int, bytearray]]:
    """A proxy in front of a port that passes on what it gets: its own port, and all bytes of both directions."""
    heard, found = bytearray(), queue.SimpleQueue[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]()

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            try:
                while data := await reader.read(1 << 16):
                    heard.extend(data)
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(passed(reader, back), passed(there, writer))

    async def serve() -> None:
        over = asyncio.Event()
        async with await asyncio.start_server(between, "127.0.0.1", 0) as server:
            found.put((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    own, loop, over = found.get(timeout=PATIENCE_S)
    try:
        yield own, heard
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


def test_a_proxy_that_passes_tls_on_is_no_obstacle_and_hears_no_plain_text(tmp_path: Path) -> None:
    said = "written-by-a-rank"
    with (
        daemon(tmp_path / "home", options=("--engine", "fleet")) as service,
        machines(service.home, tmp_path / "machines") as fleet,
        recorded(int(fleet.address.rpartition(":")[2])) as (port, heard),
    ):
        token = fleet.token()
        words = ["agent", "join", f"127.0.0.1:{port}", "--token", token, "--name", "m0", "--gpus", "1"]
        state = fleet.state("m0")
        assert fleet.command("m0", *words, "--state", str(state), "--root", str(fleet.tasks("m0"))).returncode == 0
        fleet.start("m0")
        wait_until(lambda: node(service, "m0") == "up 0", "it serves")
        with service.client() as client:
            app = client.run(["sh", "-c", f"echo {said}; sleep 1"]).app
            assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
            wait_until(lambda: said.encode() in b"".join(client.logs(app)), "its output is here")
        assert len(heard) > 10_000
        secrets = [read_token(token)[0], token, token_of(state), said, "Hello", "Prepare"]
        assert not [one for one in secrets if one.encode() in heard]
