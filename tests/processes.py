"""Looking after the real processes of a test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from themis.machines.agent.keeper import as_cell
from themis.machines.agent.system import SYSTEM

PATIENCE_S = 150.0
"""How long something that surely comes may take on a busy machine."""


def left_of(root: Path) -> list[int]:
    """Processes that have to do with this folder: agents and keepers by their arguments, ranks by their environment."""
    inside, itself = f"{root}/".encode(), f"{root}\0".encode()
    return [pid for pid, text in _texts() if inside in text or itself in text]


def kill_all(root: Path) -> None:
    """SIGKILL to all of them that have not ended by themselves."""
    for pid in left_of(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_all(root: Path) -> None:
    """SIGKILL to all of them; the cgroups of their tasks, which keepers that are killed cannot drop, go too."""
    kill_all(root)
    for path in root.rglob("task.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            cell = as_cell(json.loads(path.read_text()))
            cell.kill()
            wait_until(cell.empty, f"nothing is in {cell.group}")
            cell.remove()


def ranks_of(root: Path) -> list[int]:
    """Those of them that are jobs' own processes."""
    return [pid for pid, text in _texts() if f"THEMIS_RUN_DIR={root}/".encode() in text]


def _texts() -> Iterator[tuple[int, bytes]]:
    for pid, _, state in SYSTEM.processes():
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/environ").read_bytes() + b"\0" + Path(f"/proc/{pid}/cmdline").read_bytes()
            if pid != os.getpid() and state not in "ZX":
                yield pid, text


def wait_until(holds: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """Poll until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"it never held that {what if isinstance(what, str) else what()}"
        time.sleep(0.05)


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that is over after the block, however the block ends: Popen's own waits for ever for one that hangs."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
