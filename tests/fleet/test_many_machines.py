"""Two hundred machines on one service; and what the side of a machine loads."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from fleetmachines import free_port, machines
from themis.machines.agent.frames import CONTROL, DATA, Frames, Join, Ping, Pong, Present, as_control
from themis.machines.agent.identity import SERVER_NAME
from themis.machines.agent.messages import PROTOCOL, Hello, Message, Renew, encode
from themis.machines.engines.members import Members, authority_folder, members_file
from themis.trust.authority.ca import Authority
from themis.trust.authority.contexts import client_context

COUNT = 200
HEAVY = ("numpy", "scipy", "pydantic", "httpx", "typer", "rich", "cryptography", "yaml")


def line_of(message: Message) -> bytes:
    """A message as agents send it."""
    return json.dumps(encode(message)).encode() + b"\n"


class Stub:
    """A machine without processes: it dials, introduces itself, renews its lease every second and answers."""

    def __init__(self, name: str, token: str, authority: str, port: int) -> None:
        self.name, self.token, self.port = name, token, port
        self.context = client_context(authority)

    async def serve(self) -> None:
        """Until cancelled; the connection is made again when it ends."""
        while True:
            with suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self.port, ssl=self.context, server_hostname=SERVER_NAME, ssl_handshake_timeout=60.0
                )
                try:
                    await self.converse(Frames(reader, writer))
                finally:
                    writer.transport.abort()
            await asyncio.sleep(1.0)

    async def converse(self, frames: Frames) -> None:
        await frames.say(Present(name=self.name, token=self.token, gpus=1, gpu_type="gpu", protocol=PROTOCOL))
        await frames.read_control()
        await frames.send(DATA, line_of(Hello(node=self.name, trust="single", protocol=PROTOCOL)))
        renewing = asyncio.create_task(self.renew(frames))
        try:
            while True:
                kind, data = await frames.read()
                if kind == CONTROL and isinstance(as_control(data), Ping):
                    await frames.say(Pong())
        finally:
            renewing.cancel()

    async def renew(self, frames: Frames) -> None:
        for n in range(1, 10_000):
            await frames.send(DATA, line_of(Renew(sequence=n, heard=n - 1)))
            await asyncio.sleep(3.0)


@pytest.mark.slow
def test_two_hundred_machines_serve_one_service(tmp_path: Path) -> None:
    port = free_port()
    options = ("--engine", "fleet", "--port", str(port))
    settings = (*[each for each in QUICK if not each.startswith("node_")], "node_lease=30", "node_renew=3")
    with daemon(tmp_path / "home", options=options, settings=settings) as service, machines(service.home, tmp_path):
        authority = Authority.open(authority_folder(service.home))
        stubs = []
        with closing(Members(members_file(service.home))) as members:
            for n in range(COUNT):
                members.add_token(str(n), 600.0)
                join = Join(secret=str(n), name=f"m{n}", gpus=1, gpu_type="gpu")
                _, token = members.admit(join, "")
                stubs.append(Stub(f"m{n}", token, authority.pem, port))

        def states() -> list[str]:
            with service.client() as client:
                return [node.state for node in client.nodes()]

        async def all_up() -> list[str]:
            serving = [asyncio.create_task(stub.serve()) for stub in stubs]
            end = time.monotonic() + 120.0
            try:
                while (found := await asyncio.to_thread(states)) != ["up"] * COUNT and time.monotonic() < end:
                    await asyncio.sleep(1.0)
                return found
            finally:
                for task in serving:
                    task.cancel()
                await asyncio.gather(*serving, return_exceptions=True)

        assert asyncio.run(all_up()) == ["up"] * COUNT, service.said()


def test_the_side_of_a_machine_loads_the_standard_library_alone() -> None:
    body = (
        "import sys, themis.cli.start, themis.cli.agent_verbs, themis.cli.parse\n"
        "import themis.machines.agent.remote, themis.machines.agent.joining, themis.machines.agent.systemd_unit\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
