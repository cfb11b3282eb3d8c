"""The agent's side of copies of checkpoints and outputs: when archives are made, their way to the service, how long tasks stay.

While a gang runs, each of its machines packs from time to time what changed; once the ranks have ended, and their GPUs are free, a
last time. The packing is a process, ``checkpoint_copies.py``. An archive for the service is then sent in pieces, one at a time as
in ``job_files``; the answer says from where to go on, so nothing here outlives the agent: one that comes next makes a final archive
again that did not arrive.

An archive that is there stays part of a copy as long as the folder does not change: in a gang of several machines, each says so
every few seconds, so that the service finds a moment at which the archives of all show the folders of all.
"""

from __future__ import annotations

import contextlib
import json
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
from themis.machines.agent.messages import PIECE, TaskState, Upload, Uploaded
from themis.machines.agent.system import Child, System
from themis.machines.agent.tasks import Task

COPIED = "copied"
"""In a task's folder: 0 once the final archive is in its place, 1 where that failed."""
STILL_S = 5.0
"""Between two looks whether a folder is still as it was packed."""


@dataclass(slots=True)
class _Sending:
    """An archive on its way to the service, or ``there``."""

    number: int
    final: bool
    size: int = 0
    sha256: str = ""
    url_sha256: str = ""
    url_bytes: int = 0
    problem: str = ""
    offset: int = 0
    asked_at: float = -math.inf
    there: bool = False
    seen: float = 0.0


@dataclass(slots=True)
class _Saved:
    """Archives of one task: the process that packs, whether it is the final one, number of archives, and the last one.

    ``state`` : of the checkpoint folder, from before it was packed. ``whole`` : number of the last archive in a whole copy.
    """

    next_at: float
    seen: tuple[int, int] = (0, 0)
    process: Child | None = None
    final: bool = False
    count: int = 0
    sending: _Sending | None = None
    state: int = 0
    whole: int = 0


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
        return bool(self._nothing) or any(s.sending and not s.sending.there for s in self._saved.values())

    def look(self, tasks: Mapping[str, Task], states: Mapping[str, TaskState]) -> None:
        """Begin copies that are due, and collect those that ended."""
        self._tasks = tasks
        for name in self._saved.keys() - tasks.keys():
            del self._saved[name]
        for name, task in tasks.items():
            if task.spec.copied and name in states:
                self._look(task, states[name])

    def busy(self, task: Task) -> bool:
        """True if the task's folder is still needed, because its final copy is not over."""
        return task.spec.copied and not (task.folder / COPIED).exists()

    def working(self, task: Task) -> bool:
        """True if the agent may not end before a copy is made; a copy that only has to be sent can wait for the next agent."""
        saved = self._saved.get(task.name)
        made = saved is not None and saved.sending is not None and saved.sending.final
        return self.busy(task) and not made

    def nothing(self, task: str) -> None:
        """Report a task that was refused before it began: the next attempt need not wait for its copy."""
        self._nothing[task] = _Sending(int(self.system.clock()), True, 0)

    def question(self) -> Upload | None:
        """The next piece to send, final archives first; None while an answer is awaited, and where nothing is to be said."""
        now = self.system.clock()
        on_way = [(name, saved.sending) for name, saved in self._saved.items() if saved.sending is not None]
        on_way += self._nothing.items()
        for name, sending in sorted(on_way, key=lambda item: (item[1].there, not item[1].final, item[0])):
            if now < sending.asked_at + (STILL_S if sending.there else ANSWER_S):
                if sending.there:
                    continue
                return None
            if sending.there and self._saved[name].state != state_of(self._tasks[name]):
                self._saved[name].sending = None
                continue
            sending.asked_at, data = now, b""
            if sending.size > sending.offset:
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
                sha256=sending.sha256,
                url_sha256=sending.url_sha256,
                url_bytes=sending.url_bytes,
                data=data,
                problem=sending.problem,
                seen=sending.seen,
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
        sending, saved.whole = saved.sending, max(saved.whole, answer.whole)
        if not answer.over:
            sending.offset, sending.asked_at = min(max(answer.offset, 0), sending.size), -math.inf
            return
        problem = sending.problem or answer.problem
        saved.sending = None
        if problem and not sending.final:
            saved.seen = (0, 0)  # it is packed again, also where nothing changes
        elif task.spec.machines > 1 and not sending.final:
            saved.sending, sending.there, sending.seen, sending.offset = sending, True, answer.at, sending.size
        with contextlib.suppress(OSError):
            (task.folder / checkpoint_copies.PACKED).unlink(missing_ok=True)
            if answer.problem and not sending.problem:
                note(task, f"checkpoints and outputs were not copied: {answer.problem}")
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
            saved.sending = self._packed(task, saved)
        if state.phase == "ended":
            if self.busy(task) and not (saved.sending is not None and saved.sending.final):
                saved.sending = None
                self._begin(task, saved, final=True)
        elif state.phase == "running" and now >= saved.next_at and (saved.sending is None or saved.sending.there):
            saved.next_at = now + spec.copy_every_s
            found = changed(task)
            if found != saved.seen:
                saved.seen = found
                self._begin(task, saved, final=False)

    def _packed(self, task: Task, saved: _Saved) -> _Sending | None:
        """The upload of an archive; None if it must be packed again, or if one that is not final failed."""
        path = task.folder / f"{checkpoint_copies.PACKED_AS}-{saved.count}"
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_text())
            path.unlink()
            if saved.final or not found["problem"]:
                return _Sending(
                    saved.count,
                    saved.final,
                    int(found.get("bytes", 0)),
                    str(found.get("sha256", "")),
                    str(found.get("url_sha256", "")),
                    int(found.get("url_bytes", 0)),
                    str(found["problem"]),
                )
        return None

    def _begin(self, task: Task, saved: _Saved, *, final: bool) -> None:
        # Numbers grow also over agents: one that was started again does not know how many there were.
        saved.count, saved.sending = max(saved.count + 1, int(self.system.clock())), None
        if final and empty(task):
            saved.sending = _Sending(saved.count, True)
            return
        saved.state = state_of(task)
        words = ["save", str(task.folder), str(saved.count), str(saved.whole)]
        with open(Path(task.folder) / "copies.log", "ab") as errors:
            saved.process = self.system.start([sys.executable, "-I", checkpoint_copies.__file__, *words], errors, ())
        saved.final = final


def state_of(task: Task) -> int:
    """A number that changes with the checkpoint folder of a gang of several machines."""
    return hash(tuple(checkpoint_copies.state(Path(task.spec.checkpoint_dir)))) if task.spec.machines > 1 else 0


def changed(task: Task) -> tuple[int, int]:
    """Time of the last change of any copied file, in ns, and number of files."""
    found = [newest(task.spec.checkpoint_dir)] if task.spec.checkpoint_url else []
    found += [newest(str(path)) for path in outputs_of(task)]
    return max((latest for latest, _ in found), default=0), sum(count for _, count in found)


def empty(task: Task) -> bool:
    """True if there is nothing to copy."""
    if any(os.path.lexists(path) for path in outputs_of(task)):
        return False
    try:
        return not task.spec.checkpoint_url or not any(os.scandir(task.spec.checkpoint_dir))
    except OSError:
        return False  # packing says what is wrong


def outputs_of(task: Task) -> list[Path]:
    """Folder of the task's outputs, which may not exist yet."""
    return [task.cwd / name for name in task.spec.outputs]


def note(task: Task, sentence: str) -> None:
    """A line in the log of the task's first rank."""
    with open(task.log, "ab") as log:
        log.write(f"themis: {sentence}\n".encode())
