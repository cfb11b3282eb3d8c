"""CPU seconds of a start until the first machine's lease is renewed, and until the service answers.

    python benchmarks/bench_start.py [--apps 9000] [--quick] [--keep FOLDER]

``themis up`` is started over a fresh data directory, over one whose journal has no app, and over one whose service was killed after
``--apps`` apps, the last of which still run. This program takes the place of the node agent that outlived the service: it dials
the service's socket and asks for a renewal. CPU seconds are those of the service and of its children. The journal is made by the
real engine under the default policy, on 64 GPUs, with 20 apps at a time; ``--keep`` : keeps it there, or starts over the one that
is there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_growth import AT_ONCE, GAP_S, batch, turn
from bench_service import Nothing
from themis.machines.agent.channel import ChannelClosed, SocketChannel, connect
from themis.machines.agent.messages import PROTOCOL, Hello, Lease, Renew
from themis.machines.agent.node_agent import hold
from themis.machines.agent.system import SYSTEM
from themis.machines.engines.renewer import note_lease, socket_file
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.journal import Journal
from themis.service.engine.machine_changes import find_hosts
from themis.service.operations.service_settings import load

MACHINES = "1x64"
PATIENCE_S = 600.0
TICKS = os.sysconf("SC_CLK_TCK")


def make_journal(home: Path, apps: int) -> int:
    """The journal of a service that was killed while the last apps ran; returns its records."""
    clock = [time.time() - GAP_S * (apps / AT_ONCE + 2)]
    config = load(None, {"machines": MACHINES, "max_submissions": "1000000"})
    home.mkdir(parents=True, exist_ok=True)
    journal = Journal(home / "journal.db")
    arbiter = Arbiter(
        config,
        find_hosts(config),
        journal,
        lambda programs, heard, book: Nothing(heard),
        wall=lambda: clock[0],
        steady=lambda: clock[0],
    )
    journal.db.execute("PRAGMA synchronous = OFF")
    turn(arbiter)
    for first in range(0, apps, AT_ONCE):
        batch(arbiter, clock, first, ends=first + AT_ONCE < apps)
    journal.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    records = journal.last()[0]
    journal.close()
    socket_file(home / "run").parent.mkdir(parents=True, exist_ok=True)
    note_lease(home / "run", config.node_lease_s)
    return records


def cpu_s(pid: int) -> float:
    """Of a process and its children, also of those that ended."""
    total = 0.0
    for one in {pid} | SYSTEM.descendants(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / TICKS
    return total


@contextmanager
def service(home: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "themis", "up", "--data-dir", str(home), "--machines", MACHINES]
    command += ["--set", "max_submissions=1000000", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def renewed(home: Path, node: str, process: subprocess.Popen[str]) -> float:
    """CPU seconds of the service when the first lease arrives."""
    end, number = time.monotonic() + PATIENCE_S, 0
    channel: SocketChannel | None = None
    while time.monotonic() < end and process.poll() is None:
        try:
            if channel is None and (channel := dial(home)) is not None:
                number += 1
                channel.send(Hello(node=node, trust="single", tasks=(), protocol=PROTOCOL))
                channel.send(Renew(sequence=number))
            if channel is None:
                time.sleep(0.02)
            elif any(isinstance(message, Lease) for message in channel.receive(0.02)):
                found = cpu_s(process.pid)
                channel.close()
                return found
        except ChannelClosed:
            channel = None
    raise RuntimeError(f"no lease was renewed: {process.stdout.read() if process.stdout else ''}")


def dial(home: Path) -> SocketChannel | None:
    try:
        return connect(socket_file(home / "run"))
    except OSError:
        return None


def measure(home: Path) -> tuple[float, float, float]:
    """CPU seconds to the first renewal and to the first answer, seconds to the latter."""
    node = find_hosts(load(None, {"machines": MACHINES}))[0].machine.name
    lock = hold(home / "run" / "nodes" / node)
    began = time.monotonic()
    try:
        with service(home) as process:
            first = renewed(home, node, process)
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("Themis schedules"):
                    return first, cpu_s(process.pid), time.monotonic() - began
            raise RuntimeError("the service ended")
    finally:
        os.close(lock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apps", type=int, default=9000)
    parser.add_argument("--quick", action="store_true", help="40 apps")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    apps = 40 if given.quick else given.apps
    print(
        "| data directory | records | CPU s to the first renewal | CPU s to the first answer | s to the first answer |"
    )
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        empty, used = Path(folder) / "empty", given.keep or Path(folder) / "used"
        rows = [("fresh", empty, 0), ("no app, killed", empty, 0)]
        records = 0 if (used / "journal.db").exists() else make_journal(used, apps)
        rows += [(f"{apps:,} apps, killed", used, records), (f"{apps:,} apps, killed again", used, records)]
        for name, home, records in rows:
            first, answered, took = measure(home)
            print(f"| {name} | {records:,} | {first:.2f} | {answered:.2f} | {took:.1f} |", flush=True)


if __name__ == "__main__":
    main()
