"""kill -9 while files, packages, modules and checkpoints of jobs are on their way to machines of a fleet.

What a job finds on its machine is whole each time, no step that it saved is lost, no GPU has two jobs, and all jobs complete
without a retry. Kills are aimed at what is under way, a moment later that the seed draws. ``THEMIS_TRAVEL_KILLS`` : how many.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sqlite3
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from daemon import PROGRAMS, QUICK, Daemon, daemon
from test_faults import check_home

from fleetmachines import Machines, free_port, machines
from processes import PATIENCE_S, left_of, wait_until
from themis.client.home import read_endpoint, read_token
from themis.machines.bundles.pack import pack

pytest.importorskip("fsspec")
pytestmark = [pytest.mark.slow, pytest.mark.long]
KILLS = int(os.environ.get("THEMIS_TRAVEL_KILLS", "4"))
BATCH = 4
"""Kills in one home."""
PHASES = ("fetch", "set-up", "restore", "copy")
VICTIMS = ("keeper", "agent", "arbiter", "keeper and agent", "arbiter and agent", "connection")
PACKAGES = 12
SOON_S = 20.0
"""For something to be under way."""
UV = """#!/bin/sh
if [ "$1" = venv ]; then mkdir -p "$2/bin"; exit 0; fi
prefix=${4%/bin/python}; n=0
while [ $n -lt COUNT ]; do echo $$ > "$prefix/package-$n"; n=$((n + 1)); sleep 0.05; done
""".replace("COUNT", str(PACKAGES))
MODULE = 'module() { sleep 0.3; export LOADED="$2"; }\n'


@dataclass
class Lab:
    """A service with two machines, and what its jobs bring."""

    folder: Path
    service: Daemon
    fleet: Machines
    rng: np.random.Generator
    struck: int = 0

    def submit(self, trial: int) -> list[int]:
        """Two jobs with the same files and packages."""
        code = self.folder / f"code-{trial}"
        code.mkdir()
        for n in range(30):
            (code / f"file-{n}").write_bytes(self.rng.bytes(100_000))
        (code / "requirements.txt").write_text(f"# {trial}\n")
        manifest = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in code.iterdir()}
        (code / "manifest.json").write_text(json.dumps(manifest))
        program, apps = PROGRAMS / "traveller.py", []
        for copy in range(2):
            steps = int(self.rng.integers(20, 50))
            with self.service.client() as client:
                reply = client.run(
                    [sys.executable, "-I", "-S", str(program), str(self.witness), str(steps), "0.05", str(PACKAGES)],
                    gpus=(1, int(self.rng.integers(1, 4))),
                    hours=steps / 72000,
                    send=code,
                    env={"PATH": f"{self.folder / 'tools'}:/usr/bin:/bin", "MODULESHOME": str(self.folder / "modules")},
                    packages="requirements.txt",
                    modules=["cuda/12.4"],
                    checkpoint_url=f"file://{self.folder}/bucket/{trial}-{copy}",
                )
            apps.append(reply.app)
        return apps

    @property
    def witness(self) -> Path:
        return self.folder / "witness"

    # ---- what is under way -----------------------------------------------------------------------------------------

    def under_way(self, phase: str) -> bool:
        match phase:
            case "fetch":
                return any(any((self.fleet.tasks(m) / "cache" / "bundles").glob(".*.part")) for m in ("m0", "m1"))
            case "set-up":
                return self._called(f"{self.folder}/tools/uv".encode())
            case "restore":
                return self._called(b"copies.py\0restore\0")
            case _:
                return self._called(b"copies.py\0save\0")

    def _called(self, words: bytes) -> bool:
        for pid in left_of(self.folder):
            with suppress(OSError):
                if words in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return True
        return False

    def await_phase(self, phase: str) -> None:
        """Until it is under way, and a moment longer; attempts are ended so that there are checkpoints to copy and restore."""
        end = time.monotonic() + SOON_S
        ended_at = 0.0
        while not self.under_way(phase) and time.monotonic() < end:
            if phase in ("restore", "copy") and self.saved() and time.monotonic() > ended_at + 3.0:
                self.kill("keeper")
                ended_at = time.monotonic()
            time.sleep(0.005)
        self.struck += self.under_way(phase)
        time.sleep(float(self.rng.choice([0.0, 0.1, 0.6])) * float(self.rng.random()))

    def saved(self) -> bool:
        """Whether a job that runs has saved something."""
        path = Path(f"{self.witness}.steps")
        return path.exists() and " saved " in path.read_text()

    # ---- kills -----------------------------------------------------------------------------------------------------

    def keepers(self) -> list[int]:
        """Supervisors that live, by the files that they hold."""
        found = []
        for path in sorted(self.fleet.home.glob("run/on-nodes/*/tasks/*/lock")):
            with suppress(OSError, ValueError):
                pid = int(path.read_text())
                if b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def kill(self, victim: str) -> None:
        """kill -9 of one; what is started by hand is started again."""
        if "keeper" in victim:
            _kill(self.keepers(), self.rng)
        if "agent" in victim:
            _kill(self.service.agents(), self.rng)
        if victim == "connection":
            name = str(self.rng.choice(["m0", "m1"]))
            if self.rng.random() < 0.5:
                _kill(self.fleet.gateways(), self.rng)
            else:
                self.fleet.agents[name].kill()
                self.fleet.agents[name].wait()
                self.fleet.start(name)
        if "arbiter" in victim:
            self.service.kill()
            time.sleep(float(self.rng.uniform(0.0, 0.5)))
            self.service.up()


def _kill(pids: list[int], rng: np.random.Generator) -> None:
    if pids:
        with suppress(ProcessLookupError):
            os.kill(int(rng.choice(pids)), signal.SIGKILL)


@pytest.mark.parametrize("seed", range(-(-KILLS // BATCH)))
def test_what_travels_is_whole_or_not_there_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # All pairs in an order that is the same for all seeds, so that the batches together cover them.
    pairs = np.random.default_rng(0).permutation([*product(PHASES, VICTIMS)]).tolist()
    _write(tmp_path / "tools" / "uv", UV).chmod(0o755)
    _write(tmp_path / "modules" / "init" / "bash", MODULE)
    options = ("--engine", "fleet", "--port", str(free_port()))
    with (
        daemon(tmp_path / "home", options=options, settings=(*QUICK, "backoff=0.5", "lease=8")) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        lab = Lab(tmp_path, service, fleet, rng)
        for name in ("m0", "m1"):
            fleet.add(name, 2)
        wait_until(lambda: service.client().info().gpus == 4, "both machines serve")
        apps: list[int] = []
        count = min(BATCH, KILLS - seed * BATCH)
        for trial in range(count):
            phase, victim = pairs[(seed * BATCH + trial) % len(pairs)]
            apps += lab.submit(trial)
            lab.await_phase(phase)
            lab.kill(victim)
        with service.client() as client:
            states = {app: client.wait(app, timeout_s=PATIENCE_S).state for app in apps}
        assert set(states.values()) == {"completed"}, f"{states}\n{_endings(service.home)}\n{service.said()}"
        assert service.down() == 0, service.said()
        wait_until(lambda: not left_of(service.home / "run"), "no process is left")
        check_home(service.home, lab.witness, len(apps))
        _no_step_is_lost(Path(f"{lab.witness}.steps"))
        print(f"{count} kills, {lab.struck} of them at what they were aimed at; {_endings(service.home)}")
        assert lab.struck >= count / 2


def test_files_that_were_half_sent_when_the_service_was_killed_are_not_there(tmp_path: Path) -> None:
    code = tmp_path / "code"
    _write(code / "large", "x" * 24_000_000)
    packed = pack(code, 1 << 30)
    data = packed.path.read_bytes()
    packed.path.unlink()
    with daemon(tmp_path / "home", options=("--gpus", "1")) as service:
        host, port = read_endpoint(service.home).http.removeprefix("http://").split(":")
        bundles = service.home / "bundles"
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as caller:
            head = f"PUT /v1/bundles/{packed.sha256} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(data)}\r\n"
            head += (
                f"Authorization: Bearer {read_token(service.home)}\r\nContent-Type: application/octet-stream\r\n\r\n"
            )
            caller.sendall(head.encode() + data[: len(data) // 2])
            caller.setblocking(False)

            def half_there() -> bool:
                with suppress(BlockingIOError):
                    raise AssertionError(f"the service answered before it had all: {caller.recv(4096)!r}")
                return any(path.stat().st_size for path in bundles.glob(".*.part"))

            wait_until(half_there, "half of it is there")
            service.kill()
        service.up()
        assert [*bundles.iterdir()] == []
        with service.client() as client:
            app = client.run(["test", "-e", "large"], send=code).app
            assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
        assert [path.name for path in bundles.iterdir()] == [packed.sha256]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _endings(home: Path) -> list[tuple[object, ...]]:
    """How attempts ended, and how many of each."""
    with closing(sqlite3.connect(home / "journal.db")) as db:
        return db.execute("SELECT ending, cause, message, count(*) FROM attempts GROUP BY 1, 2, 3").fetchall()


def _no_step_is_lost(said: Path) -> None:
    """No machine was lost, so each attempt begins with all that those before it saved."""
    lines = [line.split() for line in said.read_text().splitlines()]
    attempts: dict[int, dict[int, dict[str, int]]] = {}
    for task, what, step in lines:
        job, _, attempt = task.removeprefix("job").partition("-attempt")
        found = attempts.setdefault(int(job), {}).setdefault(int(attempt), {})
        found[what] = max(found.get(what, 0), int(step))
    for job, each in attempts.items():
        last = 0
        for attempt, found in sorted(each.items()):
            assert found["began"] >= last, (
                f"job {job}, attempt {attempt} began with {found['began']}, saved were {last}"
            )
            last = max(last, found.get("saved", 0))


def test_the_check_sees_a_step_that_is_lost(tmp_path: Path) -> None:
    said = _write(tmp_path / "s", "job0-attempt1 began 0\njob0-attempt1 saved 5\njob0-attempt3 began 4\n")
    with pytest.raises(AssertionError, match="attempt 3 began with 4, saved were 5"):
        _no_step_is_lost(said)
