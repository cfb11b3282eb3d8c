"""The service as a process: a job over its memory, a child that hides, everything killed together; then `themis up` again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from processes import end_all, left_of, wait_until
from themis.cli.table_columns import NODES
from themis.machines.agent import means
from themis.machines.agent.system import SYSTEM
from themis.schema import messages as schema
from themis.schema.wire import as_dict
from themis.service.operations.doctor import examine

pytestmark = pytest.mark.slow

HIDES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(1000)", sys.argv[1]], {})
    os._exit(0)
while True: time.sleep(1)
"""


def request(name: str, *argv: str, memory: int = 0) -> schema.SubmitRequest:
    program = schema.Program(argv=argv, cwd="/")
    return schema.SubmitRequest(
        name=name,
        jobs=[schema.Job(name="job", gpus_min=1, regimes=[schema.Regime(steps=1000)], program=program, memory=memory)],
    )


def hidden(mark: str) -> list[int]:
    """Processes with this argument and no environment."""
    found = []
    for pid, _, state in SYSTEM.processes():
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes()
            if state not in "ZX" and mark.encode() in text and not Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def test_a_job_over_its_memory_fails_and_show_says_why(tmp_path: Path) -> None:
    if "memory" not in means.find().limits:
        pytest.skip("this machine has no memory controller that this user may use")
    with daemon(tmp_path / "home") as service, service.client() as client:
        greedy = "held = bytearray(300 << 20)\nfor i in range(0, len(held), 4096): held[i] = 1"
        app = client.submit(request("greedy", sys.executable, "-I", "-S", "-c", greedy, memory=64 << 20)).app
        wait_until(lambda: client.show(str(app)).app.state == "failed", lambda: f"it failed: {client.show(str(app))}")
        shown = client.show(str(app))
        assert shown.jobs[0].attempts[0].cause == "memory"
        assert "exceeded its memory, 64 MiB on this machine, and was killed" in shown.app.reason
        kind = means.find().containment
        assert {node.containment for node in client.nodes()} == {kind}
        (said,) = [check for check in examine(service.home) if check["check"] == "containment"]
        assert "memory and cpus of jobs are limited" in said["finding"]


@pytest.mark.parametrize("wanted", ["auto", "none"])
def test_after_everything_was_killed_the_next_start_ends_what_hid(tmp_path: Path, wanted: str) -> None:
    mark = f"hidden-{os.getpid()}-{wanted}"
    settings = (*QUICK, f"containment={wanted}")
    try:
        with daemon(tmp_path / "home", settings=settings) as service:
            with service.client() as client:
                client.submit(request("a", sys.executable, "-I", "-S", "-c", HIDES, mark))
            wait_until(lambda: hidden(mark) != [], "the child hid")
            task = next(iter(service.home.glob("run/nodes/*/tasks/*")))
            record = task / "members.json"
            wait_until(
                lambda: (
                    wanted == "auto" or (record.exists() and all(f'"{p}"' in record.read_text() for p in hidden(mark)))
                ),
                "the supervisor wrote it down",
            )
            (child,) = hidden(mark)
            service.kill()
            for pid in left_of(service.home):
                os.kill(pid, signal.SIGKILL)
            service.up()
            wait_until(lambda: not Path(f"/proc/{child}").exists() or child not in hidden(mark), "it was ended")
            with service.client() as client:
                rows = [as_dict(node) for node in client.nodes()]
                assert [NODES["withheld"](row) for row in rows] == ["", ""]
                client.cancel("a")
                wait_until(lambda: hidden(mark) == [], "nothing is left")
    finally:
        for pid in hidden(mark):
            os.kill(pid, signal.SIGKILL)
        end_all(tmp_path / "home")
