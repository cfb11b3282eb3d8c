"""The agent's side of checkpoint copies: when a copy is made, and until when its task is kept. The copying is ``copies.py``.

While a gang runs, its first machine copies the checkpoint folder from time to time, if it changed; once the ranks have ended, and
their GPUs are free, a last time. A copy that an agent before this one began goes on; a final one that did not end is made again.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from themis.node import copies
from themis.node.keeper import newest
from themis.node.messages import TaskState
from themis.node.system import Child, System
from themis.node.tasks import Task


@dataclass(slots=True)
class _Saved:
    """Of one task: the process that copies, whether it is the final copy, and how many there were."""

    next_at: float
    seen: tuple[int, int] = (0, 0)
    process: Child | None = None
    final: bool = False
    count: int = 0


class Saving:
    """Copies of the checkpoints of the tasks on this machine."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._saved: dict[str, _Saved] = {}

    def look(self, tasks: Mapping[str, Task], states: Mapping[str, TaskState]) -> None:
        """Begin copies that are due, and collect those that ended."""
        for name in self._saved.keys() - tasks.keys():
            del self._saved[name]
        for name, task in tasks.items():
            if copied_here(task) and name in states:
                self._look(task, states[name])

    def busy(self, task: Task) -> bool:
        """Whether the task's folder is still needed, because its final copy is not over."""
        return copied_here(task) and not (task.folder / "copied").exists()

    def _look(self, task: Task, state: TaskState) -> None:
        now, spec = self.system.clock(), task.spec
        saved = self._saved.setdefault(task.name, _Saved(next_at=now + spec.copy_every_s))
        if saved.process is not None and saved.process.poll() is None:
            if state.phase != "ended" or saved.final:
                return
            # The final copy has all that this one has. It must have begun before the agent ends.
            with contextlib.suppress(ProcessLookupError):
                self.system.kill(saved.process.pid, signal.SIGKILL)
        saved.process = None
        if state.phase == "ended":
            if self.busy(task):
                self._begin(task, saved, final=True)
        elif state.phase == "running" and now >= saved.next_at:
            saved.next_at = now + spec.copy_every_s
            found = newest(spec.checkpoint_dir)
            if found != saved.seen:
                saved.seen = found
                self._begin(task, saved, final=False)

    def _begin(self, task: Task, saved: _Saved, *, final: bool) -> None:
        # Numbers grow also over agents: one that was started again does not know how many there were.
        saved.count = max(saved.count + 1, int(self.system.clock()))
        kind = "final" if final else "periodic"
        command = [sys.executable, "-I", copies.__file__, "save", str(task.folder), str(saved.count), kind]
        with open(Path(task.folder) / "copies.log", "ab") as errors:
            saved.process = self.system.start(command, errors, ())
        saved.final = final


def copied_here(task: Task) -> bool:
    """Whether this machine copies the checkpoints of a task: the first of its gang does."""
    return bool(task.spec.checkpoint_url) and task.spec.machine == 0
