"""The agent's side of copies of checkpoints and outputs: when one is made, its way to the service, and until when its task is kept.

While a gang runs, its first machine copies from time to time what changed; once the ranks have ended, and their GPUs are free, a
last time. The copying, or for the service the packing, is a process, ``copies.py``. A copy for the service is then sent in pieces,
one at a time as in ``arrivals``; the answer says from where to go on, so nothing here outlives the agent: one that comes next makes
a final copy again that did not arrive.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from themis.machines.agent import checkpoint_copies
from themis.machines.agent.job_files import ANSWER_S
from themis.machines.agent.keeper import newest
from themis.machines.agent.messages import PIECE, THROUGH_SERVICE, TaskState, Upload, Uploaded
from themis.machines.agent.system import Child, System
from themis.machines.agent.tasks import Task

COPIED = "copied"
"""In a task's folder: exit code of the final copy; 0: the copy is in its place."""


@dataclass(slots=True)
class _Sending:
    """A copy on its way to the service."""

    number: int
    final: bool
    size: int
    problem: str = ""
    offset: int = 0
    asked_at: float = -math.inf


@dataclass(slots=True)
class _Saved:
    """Copies of one task: the process that copies, whether it is the final copy, number of copies, and the upload in
    progress."""

    next_at: float
    seen: tuple[int, int] = (0, 0)
    process: Child | None = None
    final: bool = False
    count: int = 0
    sending: _Sending | None = None


class Saving:
    """Copies of the checkpoints and outputs of the tasks on this machine."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._saved: dict[str, _Saved] = {}
        self._tasks: Mapping[str, Task] = {}
        self._nothing: dict[str, _Sending] = {}
        """Tasks that could not start here: the service gets a message that no copy of them comes."""

    @property
    def sending(self) -> bool:
        """True if a copy is on its way."""
        return bool(self._nothing) or any(saved.sending for saved in self._saved.values())

    def look(self, tasks: Mapping[str, Task], states: Mapping[str, TaskState]) -> None:
        """Begin copies that are due, and collect those that ended."""
        self._tasks = tasks
        for name in self._saved.keys() - tasks.keys():
            del self._saved[name]
        for name, task in tasks.items():
            if copied_here(task) and name in states:
                self._look(task, states[name])

    def busy(self, task: Task) -> bool:
        """True if the task's folder is still needed, because its final copy is not over."""
        return copied_here(task) and not (task.folder / COPIED).exists()

    def working(self, task: Task) -> bool:
        """True if the agent may not end before a copy is made; a copy that only has to be sent can wait for the next agent."""
        saved = self._saved.get(task.name)
        made = saved is not None and saved.sending is not None and saved.sending.final
        return self.busy(task) and not made

    def nothing(self, task: str) -> None:
        """Report a task that was refused before it began: the next attempt need not wait for its copy."""
        self._nothing[task] = _Sending(int(self.system.clock()), True, 0)

    def question(self) -> Upload | None:
        """The next piece to send, final copies first; None while an answer is awaited, and where nothing is to be sent."""
        now = self.system.clock()
        on_way = [(name, saved.sending) for name, saved in self._saved.items() if saved.sending is not None]
        on_way += self._nothing.items()
        for name, sending in sorted(on_way, key=lambda item: (not item[1].final, item[0]))[:1]:
            if now < sending.asked_at + ANSWER_S:
                return None
            sending.asked_at, data = now, b""
            if sending.size:
                try:
                    with open(self._tasks[name].folder / checkpoint_copies.PACKED, "rb") as file:
                        data = os.pread(file.fileno(), PIECE, sending.offset)
                except OSError as error:
                    sending.size, sending.problem = 0, f"the copy cannot be read: {error.strerror}"
            return Upload(
                task=name,
                number=sending.number,
                offset=sending.offset,
                size=sending.size,
                final=sending.final,
                data=data,
                problem=sending.problem,
            )
        return None

    def interrupted(self) -> None:
        """The connection was lost, and with it an answer."""
        for sending in (*self._nothing.values(), *(saved.sending for saved in self._saved.values())):
            if sending is not None:
                sending.asked_at = -math.inf

    def take(self, answer: Uploaded) -> None:
        """A piece arrived; an answer that was not asked for last changes nothing."""
        self._nothing.pop(answer.task, None)
        saved, task = self._saved.get(answer.task), self._tasks.get(answer.task)
        if saved is None or task is None or saved.sending is None or saved.sending.number != answer.number:
            return
        sending = saved.sending
        if not answer.over:
            sending.offset, sending.asked_at = min(max(answer.offset, 0), sending.size), -math.inf
            return
        saved.sending = None
        problem = sending.problem or answer.problem
        with contextlib.suppress(OSError):
            (task.folder / checkpoint_copies.PACKED).unlink(missing_ok=True)
            if answer.problem and not sending.problem:
                note(task, f"checkpoints and outputs were not copied to the service: {answer.problem}")
            if sending.final:
                (task.folder / COPIED).write_text("1" if problem else "0")

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
        if saved.process is not None:
            saved.process = None
            if spec.through_service:
                saved.sending = self._packed(task, saved)
        if state.phase == "ended":
            if self.busy(task) and not (saved.sending is not None and saved.sending.final):
                saved.sending = None
                self._begin(task, saved, final=True)
        elif state.phase == "running" and now >= saved.next_at and saved.sending is None:
            saved.next_at = now + spec.copy_every_s
            found = changed(task)
            if found != saved.seen:
                saved.seen = found
                self._begin(task, saved, final=False)

    def _packed(self, task: Task, saved: _Saved) -> _Sending | None:
        """The upload of a packed copy; None if it must be packed again, or if a copy that is not final failed."""
        code, size = "", 0
        with contextlib.suppress(OSError):
            code = (task.folder / f"{checkpoint_copies.PACKED_CODE}-{saved.count}").read_text()
            size = (task.folder / checkpoint_copies.PACKED).stat().st_size
            (task.folder / f"{checkpoint_copies.PACKED_CODE}-{saved.count}").unlink()
        if code == "0" and (size or saved.final):
            return _Sending(saved.count, saved.final, size)
        if code and saved.final:
            return _Sending(saved.count, True, 0, "they could not be packed, as its log says")
        return None

    def _begin(self, task: Task, saved: _Saved, *, final: bool) -> None:
        # Numbers grow also over agents: one that was started again does not know how many there were.
        saved.count = max(saved.count + 1, int(self.system.clock()))
        if final and task.spec.through_service and task.spec.checkpoint_url in ("", THROUGH_SERVICE) and empty(task):
            saved.sending = _Sending(saved.count, True, 0)
            return
        kind = "final" if final else "periodic"
        command = [sys.executable, "-I", checkpoint_copies.__file__, "save", str(task.folder), str(saved.count), kind]
        with open(Path(task.folder) / "copies.log", "ab") as errors:
            saved.process = self.system.start(command, errors, ())
        saved.final = final


def copied_here(task: Task) -> bool:
    """True if this machine copies the checkpoints or outputs of a task: the first of its gang does."""
    return bool(task.spec.checkpoint_url or task.spec.outputs) and task.spec.machine == 0


def changed(task: Task) -> tuple[int, int]:
    """Time of the last change of any copied file, in ns, and number of files."""
    found = [newest(task.spec.checkpoint_dir)] if task.spec.checkpoint_url else []
    found += [newest(str(path)) for path in outputs_of(task)]
    return max((latest for latest, _ in found), default=0), sum(count for _, count in found)


def empty(task: Task) -> bool:
    """True if there is nothing to copy."""
    if any(os.path.lexists(path) for path in outputs_of(task)):
        return False
    with contextlib.suppress(OSError):
        return not task.spec.checkpoint_url or not any(os.scandir(task.spec.checkpoint_dir))
    return True


def outputs_of(task: Task) -> list[Path]:
    """Folder of the task's outputs, which may not exist yet."""
    return [task.cwd / name for name in task.spec.outputs]


def note(task: Task, sentence: str) -> None:
    """A line in the log of the task's first rank."""
    with open(task.log, "ab") as log:
        log.write(f"themis: {sentence}\n".encode())
