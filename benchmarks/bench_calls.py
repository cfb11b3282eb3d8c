"""Calls of the API on a large cluster: how long queue, show, submit and /metrics take their callers. Asserts no seconds.

    python benchmarks/bench_calls.py [--apps 1000] [--gpus 10000] [--calls 200] [--alone] [--before PYTHON [--pairs 2] [--rounds]]

A second process calls over HTTP, by plain connections and by the client, one call after the other, all kinds in turn, so that each
kind meets the same load of the machine. Meanwhile, unless ``--alone``, GPUs fall free ten times a second and the policy decides on
them. The executor does nothing. Wall times depend on what else the machine does: compare them with ``info``, which does next to
nothing, in the same run.

``--before`` : the interpreter of another checkout's environment, such as one of fcc95fc, the last with gRPC. The scripts of both
run in turns (before, now, now, before); the table has the mean over each one's runs, and a round in which 100 agents are asked
(``--rounds``: only that).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench_service import ME, _let_go, app_request, arbiter, memory_mb
from themis.client.client import Client
from themis.schema import messages as schema
from themis.schema.wire import as_dict
from themis.service.api.access import Access
from themis.service.api.http_server import serve_http
from themis.service.api.methods import Api
from themis.service.api.submission import submit
from write_tables import tables

TOKEN = "token"
Kinds = dict[str, Callable[[int], object]]


def request(n: int, name: str) -> schema.SubmitRequest:
    made = app_request(n, 4, np.random.default_rng(n))
    made.name = f"{name}{n}"
    for job in made.jobs:
        job.gpus_min = job.gpus_max = 3
    return made


def kinds_http(port: int) -> Kinds:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call(method: str, path: str, body: Any = None) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, headers)
        try:
            answer = connection.getresponse()
        except http.client.RemoteDisconnected:  # the other kinds took longer than the service keeps it
            connection.close()
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
        assert answer.read()
        assert answer.status < 300, answer.status

    return {
        "info, HTTP": lambda n: call("GET", "/v1/info"),
        "queue, HTTP": lambda n: call("GET", "/v1/apps"),
        "show, HTTP": lambda n: call("GET", f"/v1/apps/{n}"),
        "submit, HTTP": lambda n: call("POST", "/v1/apps", as_dict(request(n, "h"))),
        "/metrics": lambda n: call("GET", "/metrics"),
    }


def kinds_client(port: int) -> Kinds:
    client = Client(Path(tempfile.gettempdir()), address=f"127.0.0.1:{port}", token=TOKEN)
    return {
        "info, client": lambda n: client.info(),
        "queue, client": lambda n: client.queue(),
        "show, client": lambda n: client.show(n),
        "submit, client": lambda n: client.submit(request(n, "g")),
    }


def caller(port: int, calls: int) -> None:
    """Call each kind in turn; writes the seconds of each, and the CPU seconds of the service, as JSON."""
    kinds = {**kinds_http(port), **kinds_client(port)}
    out: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for n in range(-5, calls):
        for name, call in kinds.items():
            cpu, began = cpu_s(os.getppid()), time.perf_counter()
            call(abs(n))
            if n >= 0:
                out[name].append((time.perf_counter() - began, cpu_s(os.getppid()) - cpu))
    print(json.dumps(out))


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, in nanoseconds' steps; threads that ended are left out."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def measure(apps: int, gpus: int, calls: int, *, alone: bool) -> None:
    with arbiter(gpus // 8, apart=True, max_apps=10**6, max_apps_per_user=10**6) as a:
        for n in range(apps):
            a.ask(lambda n=n: submit(a, request(n, "a"), ME))
        home = Path(tempfile.mkdtemp())
        api = Api(a, home, Access(home, TOKEN, "me"))
        web = serve_http(api, "127.0.0.1", 0)
        end = threading.Event()
        churn = threading.Thread(target=_churn, args=(a, end), daemon=True)
        if not alone:
            churn.start()
        began_cpu, began, before = time.process_time(), time.perf_counter(), a.ask(lambda: a.state.round)
        command = [sys.executable, __file__, "--call", str(web.port), "--calls", str(calls)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        cpu, wall = time.process_time() - began_cpu, time.perf_counter() - began
        decisions = a.ask(lambda: a.state.round) - before
        end.set()
        if not alone:
            churn.join()
        print(
            f"\n{apps} apps of 4 jobs of 3 GPUs, {gpus} GPUs; {calls} calls of each kind in turn, {decisions} decisions "
            f"meanwhile; the arbiter's process used {cpu:.0f} CPU s in {wall:.0f} s and {memory_mb():.0f} MB\n"
        )
        print(
            "| call | median, ms | 99 % | longest | median over that of info | CPU ms of the service: median | 99 % |"
        )
        print("|---|---|---|---|---|---|---|")
        for name, rows in found.items():
            wall_ms, cpu_ms = 1000 * np.array(rows).T
            q, c = np.percentile(wall_ms, [50, 99, 100]), np.percentile(cpu_ms, [50, 99])
            base = 1000 * np.median(np.array(found[f"info, {'client' if 'client' in name else 'HTTP'}"])[:, 0])
            cells = f"{q[0]:.1f} | {q[1]:.1f} | {q[2]:.0f} | {q[0] / base:.1f} | {c[0]:.1f} | {c[1]:.1f}"
            print(f"| {name} | {cells} |", flush=True)
        api.ending.set()
        web.close()


def _churn(a: Any, end: threading.Event) -> None:
    while not end.wait(0.1):
        _let_go(a, 2)


AGENTS = "import bench_service; bench_service.agents(100)"
FOLDER = "import pathlib, themis; print(pathlib.Path(themis.__file__).parents[2] / 'benchmarks')"


def figures(python: str, options: list[str]) -> dict[str, list[float]]:
    """Figures of each call, unless there are no options, and of a round with agents, by the scripts of that interpreter's checkout:
    name -> columns.
    """
    env = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}

    def said(*command: str, folder: str = ".") -> str:
        return subprocess.run(
            [python, *command], cwd=folder, env=env, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    folder, out = said("-c", FOLDER).strip(), dict[str, list[float]]()
    calls = [said("bench_calls.py", *options, folder=folder)] if options else []
    for text in (*calls, said("-c", AGENTS, folder=folder)):
        for rows in tables(text).values():
            for row in rows:
                name, *cells = row.strip("| ").split(" | ")
                name = name.replace("gRPC", "client") if not name.isdecimal() else f"a round with {name} agents"
                out[name] = [float(cell) for cell in cells]
    return out


def compare(before: str, options: list[str], pairs: int) -> None:
    """Print the figures of both checkouts side by side: medians and 99 % (for agents: worst) of the caller's milliseconds."""
    found: dict[str, list[dict[str, list[float]]]] = {before: [], sys.executable: []}
    for pair in range(pairs):
        for python in list(found)[:: -1 if pair % 2 else 1]:
            found[python].append(figures(python, options))
    print("| call | median, ms: before | now | 99 %: before | now | CPU ms of the service: before | now |")
    print("|---|---|---|---|---|---|---|")
    for name in found[sys.executable][0]:
        kinds = (0, 1, 3 if name.endswith("agents") else 4)
        means = [
            np.mean([run[name][kind] for run in runs]) * (1000 if kind == 3 else 1)
            for kind in kinds
            for runs in found.values()
        ]
        print(f"| {name} | {' | '.join(f'{mean:.1f}' for mean in means)} |")


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--apps", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--alone", action="store_true", help="no decisions meanwhile")
    parser.add_argument("--before", metavar="PYTHON", help="compare with the checkout of this interpreter")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--rounds", action="store_true", help="compare only rounds in which agents are asked")
    parser.add_argument("--call", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.call:
        caller(given.call, given.calls)
    elif given.before:
        sizes = {"--apps": given.apps, "--gpus": given.gpus, "--calls": given.calls}
        options = [str(part) for pair in sizes.items() for part in pair] + ["--alone"] * given.alone
        options = [] if given.rounds else options
        compare(given.before, options, given.pairs)
    else:
        measure(given.apps, given.gpus, given.calls, alone=given.alone)


if __name__ == "__main__":
    main()
