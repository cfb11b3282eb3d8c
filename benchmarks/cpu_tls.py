"""Latency of calls with and without TLS, on loopback: over an open channel, and with a new connection.

    python benchmarks/cpu_tls.py [ROUNDS]

Starts two services, and interleaves their calls, so that other load on the machine counts for both. Medians in milliseconds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from themis.client.client import Client
from themis.client.light import Service


def main() -> None:
    """Print a table: what is called, milliseconds without and with TLS, their ratio."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory(prefix="themis-") as folder:
        homes = {tls: Path(folder) / tls for tls in ("off", "on")}
        services = [_start(home, tls) for tls, home in homes.items()]
        try:
            for home in homes.values():
                while not (home / "endpoint.json").exists():
                    time.sleep(0.1)
            clients = {tls: Client(home) for tls, home in homes.items()}
            ways: dict[str, Callable[[str], object]] = {
                "client, open connection": lambda tls: clients[tls].info(),
                "client, new connection": lambda tls: _by_client(homes[tls]),
                "quick verb, new connection": lambda tls: _quickly(homes[tls]),
            }
            print("| call of `Info` | without TLS, ms | with TLS, ms | ratio |\n|---|---|---|---|")
            for name, way in ways.items():
                seen: dict[str, list[float]] = {tls: [] for tls in homes}
                for _ in range(10 * rounds):
                    for tls, times in seen.items():
                        begin = time.perf_counter()
                        way(tls)
                        times.append(1000 * (time.perf_counter() - begin))
                plain, secure = (statistics.median(seen[tls]) for tls in ("off", "on"))
                print(f"| {name} | {plain:.2f} | {secure:.2f} | {secure / plain:.1f} |", flush=True)
            for client in clients.values():
                client.close()
        finally:
            for service in services:
                service.terminate()
                service.wait()


def _start(home: Path, tls: str) -> subprocess.Popen[bytes]:
    options = ["--gpus", "1", "--port", "0", "--set", f"tls={tls}"]
    if os.geteuid() == 0:
        options.append("--allow-root")
    words = [sys.executable, "-m", "themis", "up", "--data-dir", str(home), *options]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _by_client(home: Path) -> None:
    with Client(home) as client:
        client.info()


def _quickly(home: Path) -> None:
    with Service(home) as service:
        service.call("Info")


if __name__ == "__main__":
    main()
