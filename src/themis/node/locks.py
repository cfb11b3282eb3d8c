"""Files whose lock says that a process lives: the kernel drops it with the process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path


def locked(path: Path) -> bool:
    """Whether another process holds the lock on this file."""
    with contextlib.suppress(OSError), open(path, "rb+") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def inhabited(root: Path) -> bool:
    """Whether an agent, or a supervisor that one left, lives in this machine's folder."""
    return locked(root / "agent.lock") or any(locked(path) for path in root.glob("tasks/*/lock"))
