"""What it costs the arbiter to carry the bytes of a fleet's machines in its own process, next to the gateway's.

    python benchmarks/bench_carrier.py --rounds 3 --machines 200 --mib 20

A service with stand-ins for machines that renew their leases and send output of ranks, ``--mib`` MiB/s together, while 1,000
connections hold half a handshake. A client asks for the queue, one call after the other. In turns: the gateway as a process (as it
is), and in a thread of the service. Figures: milliseconds of a call, and CPU seconds of the service's process for each second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from themis.client.client import Client
from themis.errors import ThemisError
from themis.machines.agent.frames import CONTROL, DATA, LOG, Frames, Join, Ping, Pong, Present, as_control
from themis.machines.agent.identity import SERVER_NAME
from themis.machines.agent.logfile import LogLines
from themis.machines.agent.messages import PROTOCOL, Hello, Message, Renew, encode
from themis.machines.engines.fleet import FleetExecutor
from themis.machines.engines.gateway import Gateway
from themis.machines.engines.members import LISTEN, Members, authority_folder, members_file
from themis.machines.engines.renewer import socket_file
from themis.service.engine.config import Config
from themis.service.operations.up import running
from themis.trust.authority.ca import Authority
from themis.trust.authority.contexts import client_context

PIECE = 64 << 10
HALF = 1000


def serve(home: Path, *, within: bool) -> None:
    """A service; ``within`` : the gateway is a thread of it."""
    if within:

        def revive(executor: FleetExecutor) -> None:
            if executor.__dict__.setdefault("carrier", None) is None:
                executor.__dict__["carrier"] = thread = threading.Thread(target=carry, args=(executor,), daemon=True)
                thread.start()

        FleetExecutor._revive = revive  # type: ignore[method-assign]
    with running(home, Config(engine="fleet", port=0, allow_root=os.geteuid() == 0, node_lease_s=60.0)):
        sys.stdin.read()


def carry(executor: FleetExecutor) -> None:
    """The gateway's work in this process."""
    settings, fleet = executor.settings, executor.fleet
    gateway = Gateway(
        socket=socket_file(executor.root),
        owner=fleet.owner,
        log_bytes=settings.log_bytes,
        mirror=executor.root / "nodes",
        options=tuple(executor.agent_options()),
        members=Members(fleet.members),
        authority=Authority.open(fleet.authority),
        token_s=fleet.token_s,
    )
    with suppress(OSError, RuntimeError):
        asyncio.run(gateway.run(executor.door))


def load(home: Path, machines: int, rate: float) -> None:
    """Machines that send ``rate`` bytes/s together, and connections that never finish their handshake."""
    with closing(Members(members_file(home))) as members:
        port, tokens = int(members.fact(LISTEN).rpartition(":")[2]), {}
        for n in range(machines):
            members.add_token(str(n), 600.0)
            _, tokens[f"m{n}"] = members.admit(Join(secret=str(n), name=f"m{n}", gpus=1, gpu_type="gpu"), "")
    context, sent = client_context(Authority.open(authority_folder(home)).pem), [0]

    async def machine(name: str, token: str) -> None:
        while True:
            with suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname=SERVER_NAME, ssl_handshake_timeout=60.0
                )
                frames = Frames(reader, writer)
                await frames.say(Present(name=name, token=token, gpus=1, gpu_type="gpu", protocol=PROTOCOL))
                await frames.read_control()
                await frames.send(DATA, line(Hello(node=name, trust="single", protocol=PROTOCOL)))
                sending = asyncio.create_task(send(frames))
                try:
                    while True:
                        kind, data = await frames.read()
                        if kind == CONTROL and isinstance(as_control(data), Ping):
                            await frames.say(Pong())
                finally:
                    sending.cancel()
            await asyncio.sleep(1.0)

    async def send(frames: Frames) -> None:
        piece, renewed, n = LogLines.packed("logs/job1-attempt1/rank-0.log", False, b"x" * PIECE), 0.0, 0
        while True:
            if time.monotonic() > renewed + 10.0:
                renewed, n = time.monotonic(), n + 1
                await frames.send(DATA, line(Renew(sequence=n, heard=n - 1)))
            await frames.send(LOG, piece)
            sent[0] += len(piece)
            await asyncio.sleep(machines * PIECE / rate)

    async def half() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"\x16")
                await reader.read()
                writer.close()
            await asyncio.sleep(1.0)

    async def count() -> None:
        while True:
            (home / "sent").write_text(str(sent[0]))
            await asyncio.sleep(0.2)

    async def all_of() -> None:
        await asyncio.gather(count(), *(machine(*pair) for pair in tokens.items()), *(half() for _ in range(HALF)))

    asyncio.run(all_of())


def line(message: Message) -> bytes:
    """A message as agents send it."""
    return json.dumps(encode(message)).encode() + b"\n"


def cpu_s(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(within: bool, machines: int, rate: float, seconds: float) -> dict[str, float]:
    """One round."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        home, me = Path(folder) / "home", [sys.executable, __file__]
        service = subprocess.Popen(
            [*me, "--role", "within" if within else "apart", "--home", str(home)], stdin=subprocess.PIPE
        )
        loader = None
        try:
            wait(lambda: (home / "endpoint.json").exists())
            loader = subprocess.Popen(
                [*me, "--role", "load", "--home", str(home), "--machines", str(machines), "--mib", str(rate / 2**20)]
            )
            calls: list[float] = []
            with Client(home) as client:
                wait(lambda: sum(node.state == "up" for node in client.nodes()) == machines)
                began, before, bytes_before = time.monotonic(), cpu_s(service.pid), sent_of(home)
                while time.monotonic() < began + seconds:
                    at = time.monotonic()
                    client.queue()
                    calls.append(1000 * (time.monotonic() - at))
                    time.sleep(0.02)
                took = time.monotonic() - began
                used, carried = (cpu_s(service.pid) - before) / took, (sent_of(home) - bytes_before) / took / 2**20
                up = sum(node.state == "up" for node in client.nodes())
        finally:
            for process in filter(None, (loader, service)):
                process.kill()
                process.wait()
    calls.sort()
    return {
        "p50 ms": statistics.median(calls),
        "p99 ms": calls[int(0.99 * len(calls))],
        "calls": len(calls),
        "CPU s/s": used,
        "MiB/s": carried,
        "up": up,
    }


def sent_of(home: Path) -> int:
    """Bytes that the machines have sent."""
    with suppress(OSError, ValueError):
        return int((home / "sent").read_text())
    return 0


def wait(there: Callable[[], bool]) -> None:
    """Wait until it is so, for two minutes at most."""
    end = time.monotonic() + 120.0
    while time.monotonic() < end:
        with suppress(ThemisError, OSError):
            if there():
                return
        time.sleep(0.2)
    raise TimeoutError


def main() -> None:
    """Rounds in turns; a line each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--role", choices=["all", "apart", "within", "load"], default="all")
    parser.add_argument("--home", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--mib", type=float, default=20.0, help="MiB/s of all machines together")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a round")
    given = parser.parse_args()
    rate = given.mib * 2**20
    if given.role == "load":
        load(given.home, given.machines, rate)
    elif given.role != "all":
        serve(given.home, within=given.role == "within")
    else:
        for n in range(given.rounds):
            for within in (bool(n % 2), not n % 2):
                found = measure(within, given.machines, rate, given.seconds)
                print(
                    "within" if within else "apart ", {key: round(value, 3) for key, value in found.items()}, flush=True
                )


if __name__ == "__main__":
    socket.setdefaulttimeout(60.0)
    main()
