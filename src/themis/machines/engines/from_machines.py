"""What machines of a fleet send is checked here before the gateway passes it on: names and counts, the first line, logs."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from themis.machines.agent.frames import Join
from themis.machines.agent.joining import LABEL, NAME
from themis.machines.agent.logfile import LogLines
from themis.machines.agent.messages import Hello, ProtocolError, decode
from themis.machines.engines.members import NotAllowed

MOST_GPUS = 1024
"""Of one machine that joins."""
LOG_BYTES = 256 << 20
"""Of copies of one rank's log; the machine bounds the log itself."""


def own_hello(name: str, begin: bytes) -> Hello:
    """The ``Hello`` that a conversation begins with, which must be of the machine that the certificate is of.

    Raises
    ------
    NotAllowed : it is another's. ProtocolError : it is no ``Hello``.
    """
    try:
        hello = decode(json.loads(begin.partition(b"\n")[0]))
    except ValueError as error:
        raise ProtocolError(f"machine {name} sends a line that is not JSON: {error}.") from error
    if not isinstance(hello, Hello):
        raise ProtocolError(f"machine {name} begins with {type(hello).__name__}, expected Hello.")
    if hello.node != name:
        raise NotAllowed(f"the agent of machine {name} speaks for machine {hello.node!r}, which it may not.")
    return hello


def checked(join: Join) -> None:
    """What a caller says of itself is in bounds.

    Raises
    ------
    NotAllowed : it is not.
    """
    if not NAME.fullmatch(join.name):
        raise NotAllowed(
            f"the machine's name is {join.name[:80]!r}, expected letters, digits, dots, _ and -, at most 60."
        )
    for what, value in (("GPU type", join.gpu_type), ("rack", join.rack or "rack0")):
        if not LABEL.fullmatch(value):
            raise NotAllowed(f"the {what} is {value[:80]!r}, expected letters, digits, dots, _ and -.")
    if not 1 <= join.gpus <= MOST_GPUS or not 0 <= join.slot <= join.gpus:
        raise NotAllowed(f"the machine has {join.gpus} GPUs in slots of {join.slot}, expected 1 to {MOST_GPUS} GPUs.")
    if join.devices and (len(set(join.devices)) != join.gpus or any("\n" in device for device in join.devices)):
        raise NotAllowed(f"the machine has {join.gpus} GPUs and names {len(set(join.devices))}; they must agree.")


def copy_log(mirror: Path, name: str, frame: bytes) -> None:
    """Add what a rank of a machine wrote to the copy of its log below ``mirror``; ProtocolError if it may not be written there."""
    try:
        text, anew, data = LogLines.unpacked(frame)
    except ValueError as error:
        raise ProtocolError(f"machine {name}: {error}.") from error
    path = PurePosixPath(text)
    if len(path.parts) != 3 or path.parts[0] != "logs" or ".." in path.parts:
        raise ProtocolError(f"machine {name} sends a log {text[:100]!r}, expected logs/TASK/FILE.")
    copy = mirror / name / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    if copy.is_symlink() or any(folder.is_symlink() for folder in (copy.parent, copy.parent.parent)):
        raise ProtocolError(f"{copy} is a link; the log of machine {name} is not written there.")
    if anew and copy.exists():
        copy.replace(copy.with_name(copy.name + ".1"))
    with open(copy, "ab") as file:
        if file.tell() + len(data) <= LOG_BYTES:
            file.write(data)
