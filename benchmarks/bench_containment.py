"""What of a gang outlives it, by way of containment: the supervisor is killed, or the gang is a storm of forks.

For each way that this machine allows: seconds from the last sign of a child that hides (a session of its own, no environment) to
the start of the next job on its GPU, after ``kill -9`` of the gang's supervisor; and seconds from a preemption with a grace of
3 s to the end of a gang whose processes fork and exit without end.

    python benchmarks/bench_containment.py [TRIALS]
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from themis.errors import InputError
from themis.machines.agent import means
from themis.machines.agent.cells import KINDS
from themis.machines.agent.system import SYSTEM
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.program import Program
from themis.model.cluster import Machine
from themis.model.events import Grant, JobStarted, JobStopped, Revoke
from themis.testing.builders import app, job

HIDES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        beat = "import sys, time\\nwhile True:\\n open(sys.argv[1], 'a').write(f'{time.time()}\\\\n'); time.sleep(0.01)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", beat, sys.argv[1]], {})
    os._exit(0)
while True: time.sleep(1)
"""
STORM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(30):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork(): os._exit(0)
open(sys.argv[1], "w").close()
while True: time.sleep(1)
"""
NEXT = "import sys, time; open(sys.argv[1], 'w').write(str(time.time())); time.sleep(1000)"
T = TypeVar("T")


def trial(root: Path, kind: str) -> tuple[float, float, int]:
    """(seconds between the two jobs, seconds to the end of the storm, hidden processes left)."""
    said: queue.SimpleQueue[object] = queue.SimpleQueue()
    files = [root / name for name in ("beats", "next", "storm")]
    programs = [
        Program(argv=(sys.executable, "-I", "-S", "-c", text, str(file)), grace_s=3.0)
        for text, file in zip((HIDES, NEXT, STORM), files)
    ]
    executor = LocalExecutor(
        root / "run",
        [Host(machine=Machine(name="m", gpus=1))],
        lambda app, index: programs[index],
        said.put,
        settings=NodeSettings(lease_s=60.0, renew_s=2.0),
        allow_root=os.geteuid() == 0,
        containment=kind,
    )
    executor.admit(0, app("a", [job(1e6, (1, 1), name=f"j{i}") for i in range(3)]))

    def until(event: type[T], job: int) -> None:
        while not (isinstance(item := said.get(timeout=60.0), event) and getattr(item, "job", None) == job):
            pass

    def start(job: int) -> None:
        executor.submit(
            Grant(app=0, job=job, attempt=1, gpus=(0,), seat=0, until=1e9, locality=1, target=1e6, score=1.0)
        )
        until(JobStarted, job)
        wait(files[job].exists)

    def stop(job: int) -> float:
        before = time.time()
        executor.submit(Revoke(app=0, job=job, attempt=1, cause="expired"))
        until(JobStopped, job)
        return time.time() - before

    with executor:
        start(0)
        os.kill(int((root / "run/nodes/m/tasks/job0-attempt1/lock").read_text()), signal.SIGKILL)
        until(JobStopped, 0)
        start(1)
        wait(lambda: bool(files[1].read_text()))
        time.sleep(0.2)
        gap = float(files[1].read_text()) - float(files[0].read_text().split()[-1])
        stop(1)
        start(2)
        storm = stop(2)
    left = [
        pid for pid, _, state in SYSTEM.processes() if state not in "ZX" and str(files[0]).encode() in arguments(pid)
    ]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return gap, storm, len(left)


def wait(holds: Callable[[], bool]) -> None:
    """Poll."""
    end = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def arguments(pid: int) -> bytes:
    """Of a process, as far as it lives."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def main(trials: int) -> None:
    """A table."""
    print(
        "| containment | trials | hidden processes left | next job after the last sign, least s | storm over after, most s |"
    )
    print("|---|---|---|---|---|")
    for kind in KINDS:
        try:
            means.find(kind)
        except InputError as error:
            print(f"| {kind} | {error} | | | |")
            continue
        rows = []
        for _ in range(trials):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(trial(Path(folder), kind))
        gaps, storms, left = zip(*rows)
        print(f"| {kind} | {trials} | {sum(left)} | {min(gaps):.2f} | {max(storms):.2f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
