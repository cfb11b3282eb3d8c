"""Checks of data from machines before a bridge passes it on: names and counts, the first line, logs."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from themis.limits import MACHINE_GPUS
from themis.machines.agent.channel import LONGEST
from themis.machines.agent.frames import Join
from themis.machines.agent.joining import LABEL, NAME
from themis.machines.agent.logfile import LogLines
from themis.machines.agent.messages import Hello, ProtocolError, TaskSpec, decode, parsed
from themis.machines.engines.hosts import TASK
from themis.machines.engines.members import NotAllowed

STRAYS = 10_000
"""Pieces of logs of tasks that a machine was not given, on one connection; gangs of a journal that was put back write some."""
LOG = re.compile(rf"logs/{TASK.pattern}/rank-\d{{1,7}}\.log")


class Beginning:
    """Data from a machine up to the end of its first line, which must be the ``Hello`` of that same machine."""

    def __init__(self, name: str) -> None:
        self.name, self.held = name, b""
        self.hello: Hello | None = None
        """The agent's greeting, once received."""

    def passed(self, data: bytes) -> bytes:
        """The data that may be passed on to the arbiter; empty until the first line is complete.

        Raises
        ------
        NotAllowed : the ``Hello`` names another machine. ProtocolError : the first line is not a ``Hello``.
        """
        if self.hello is not None:
            return data
        self.held += data
        line, end, _ = self.held.partition(b"\n")
        if not end:
            if len(self.held) > LONGEST:
                raise ProtocolError(f"machine {self.name} sends no Hello.")
            return b""
        self.hello = own_hello(self.name, line)
        data, self.held = self.held, b""
        return data


def own_hello(name: str, line: bytes) -> Hello:
    """The first line of a conversation.

    Raises
    ------
    NotAllowed : it is another machine's. ProtocolError : it is no ``Hello``.
    """
    hello = decode(parsed(line))
    if not isinstance(hello, Hello):
        raise ProtocolError(f"machine {name} begins with {type(hello).__name__}, expected Hello.")
    if hello.node != name:
        raise NotAllowed(f"the agent of machine {name} speaks for machine {hello.node!r}, which it may not.")
    return hello


def checked(join: Join) -> None:
    """Check that the description in a join request is within bounds.

    Raises
    ------
    NotAllowed : a value is out of bounds.
    """
    if not NAME.fullmatch(join.name):
        raise NotAllowed(
            f"the machine's name is {join.name[:80]!r}, expected letters, digits, dots, _ and -, at most 60."
        )
    for what, value in (("GPU type", join.gpu_type), ("rack", join.rack or "rack0")):
        if not LABEL.fullmatch(value):
            raise NotAllowed(f"the {what} is {value[:80]!r}, expected letters, digits, dots, _ and -.")
    if not 1 <= join.gpus <= MACHINE_GPUS.most or not 0 <= join.slot <= join.gpus:
        raise NotAllowed(
            f"the machine has {join.gpus} GPUs in slots of {join.slot}, expected 1 to {MACHINE_GPUS.most:g} GPUs."
        )
    if join.devices and (len(set(join.devices)) != join.gpus or any("\n" in device for device in join.devices)):
        raise NotAllowed(f"the machine has {join.gpus} GPUs and names {len(set(join.devices))}; they must agree.")


class LogCopies:
    """Copies of the output of one machine's ranks.

    Only ranks that the arbiter gave to the machine have one: it makes an empty file for each (``make_place``).

    Parameters
    ----------
    folder : of the machine. ``most`` : bytes of a rank's log and of the one before it, as machines bound them themselves.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self.strays = 0
        """Pieces of logs that are no rank's of this machine."""

    def add(self, text: str, anew: bool, data: bytes) -> None:
        """Append a rank's output; ``anew`` : its file was truncated. A full disk loses output rather than the machine.

        Raises
        ------
        ProtocolError : it may not be written there, or too much came that is no rank's of this machine.
        """
        if not LOG.fullmatch(text):
            raise ProtocolError(f"it sends a log {text[:100]!r}, expected logs/TASK/rank-NUMBER.log.")
        copy = self.folder / text
        if copy.is_symlink() or any(folder.is_symlink() for folder in (copy.parent, copy.parent.parent)):
            raise ProtocolError(f"{copy} is a link; its log is not written there.")
        if not copy.exists():
            self.strays += 1
            if self.strays > STRAYS:
                raise ProtocolError(f"it sent {STRAYS} pieces of logs of tasks that it was never given.")
            return
        with contextlib.suppress(OSError):
            if anew and copy.stat().st_size:
                copy.replace(copy.with_name(copy.name + ".1"))
            with open(copy, "ab") as file:
                file.write(data[: max(self.most - file.tell(), 0)])

    def add_frame(self, frame: bytes) -> None:
        """Same as ``add``, for a frame; ProtocolError for a malformed one."""
        try:
            piece = LogLines.unpacked(frame)
        except ValueError as error:
            raise ProtocolError(f"it sends a log that cannot be read: {error}.") from error
        self.add(*piece)


def make_place(folder: Path, spec: TaskSpec) -> None:
    """Let the machine of this folder send the output of a task's ranks."""
    logs = folder / "logs" / spec.task
    logs.mkdir(parents=True, exist_ok=True)
    for rank in spec.ranks:
        (logs / f"rank-{rank}.log").touch()
