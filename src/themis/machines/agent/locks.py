"""Files whose lock says that a process lives: the kernel drops it with the process, however that ends."""

from __future__ import annotations

from pathlib import Path

from themis.machines.agent.system import SYSTEM


def locked(path: Path) -> bool:
    """Whether another process holds the lock on this file."""
    return SYSTEM.locked(path)


def inhabited(root: Path) -> bool:
    """Whether an agent, or a supervisor that one left, lives in this machine's folder."""
    return locked(root / "agent.lock") or any(locked(path) for path in root.glob("tasks/*/lock"))
