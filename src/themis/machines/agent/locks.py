"""Lock files that show that a process lives: the kernel releases the lock when the process ends, in any way."""

from __future__ import annotations

from pathlib import Path

from themis.machines.agent.system import SYSTEM


def locked(path: Path) -> bool:
    """True if another process holds the lock on this file."""
    return SYSTEM.locked(path)


def inhabited(root: Path) -> bool:
    """True if an agent, or a supervisor that one left, lives in this machine's folder."""
    return locked(root / "agent.lock") or any(locked(path) for path in root.glob("tasks/*/lock"))
