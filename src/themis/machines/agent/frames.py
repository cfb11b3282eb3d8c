"""Protocol between a machine and the service over TLS: frames, and the messages about the connection itself.

    machine -> service    Join | Present, then Pong
    service -> machine    Joined, Welcome, Refused, Ping, NextToken, EndAgent

A frame is a byte for its kind, four for its length (big-endian), and the payload. ``DATA`` carries what node agent and
arbiter send each other (``messages``) and is not read here; ``LOG`` carries what ranks wrote; ``CONTROL`` carries one of the
messages below as JSON. A connection begins with a message of the machine, and carries one conversation of its agent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
import typing
from dataclasses import dataclass
from typing import TypeAlias

from themis.limits import shown
from themis.machines.agent.messages import PROTOCOL, Count, Gpus, Name, ProtocolError, Uuids, build, parsed

CONTROL, DATA, LOG = b"c", b"d", b"l"
LONGEST = 1 << 20
"""Bytes of a frame. ``FIRST`` : of a frame of someone who is not known yet."""
FIRST = 1 << 16
_HEAD = struct.Struct(">cI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """I want to be a machine of the cluster.

    Attributes
    ----------
    secret : of the join token. ``name`` : of the machine. ``devices`` : UUIDs of its GPUs, empty where they are mere slots.
    slot : GPUs joined by NVLink, 0 for all. ``rack`` : as the machine's operator labels it; the token's label comes first.
    """

    secret: Name
    name: Name
    gpus: Gpus
    gpu_type: Name
    devices: Uuids = ()
    slot: Gpus = 0
    rack: Name = ""
    protocol: Count = PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """You are; ``owner`` : id of the service. ``token`` : of this machine, to show on each connection."""

    owner: str
    rack: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """This machine is here, with its token and these GPUs."""

    name: Name
    token: Name
    gpus: Gpus
    gpu_type: Name
    devices: Uuids = ()
    protocol: Count = PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Your agent may talk to the arbiter. ``options`` : of ``python -m themis.machines.agent``."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """You may not, and why, in a sentence; ``final`` : trying again does not help."""

    reason: str
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Probe of a connection, answered by ``Pong``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """I am."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextToken:
    """Your next token; connect again with it, which ends the one before."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAgent:
    """The service ends: your agent may end too."""


Control: TypeAlias = Join | Joined | Present | Welcome | Refused | Ping | Pong | NextToken | EndAgent
_KINDS: dict[str, type] = {kind.__name__: kind for kind in typing.get_args(Control)}


class Frames:
    """The frames of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self, most: int = LONGEST) -> tuple[bytes, bytes]:
        """The next frame: its kind and its content.

        Raises
        ------
        ProtocolError : it is longer than ``most``. OSError, EOFError : the connection is over.
        """
        kind, length = _HEAD.unpack(await self.reader.readexactly(_HEAD.size))
        if kind not in (CONTROL, DATA, LOG) or length > most:
            raise ProtocolError(f"a frame of kind {kind!r} has {length} bytes, expected c, d or l and at most {most}.")
        return kind, await self.reader.readexactly(length)

    async def read_control(self, most: int = FIRST) -> Control:
        """The next frame, which must be a message."""
        kind, data = await self.read(most)
        if kind != CONTROL:
            raise ProtocolError(f"a frame is of kind {kind!r}, expected a message about the connection.")
        return as_control(data)

    async def send(self, kind: bytes, data: bytes) -> None:
        """Send bytes in as many frames as they need, and wait until the connection took them."""
        for at in range(0, len(data), LONGEST):
            part = data[at : at + LONGEST]
            self.writer.write(_HEAD.pack(kind, len(part)) + part)
        await self.writer.drain()

    async def say(self, message: Control) -> None:
        """Send a message."""
        text = {"kind": type(message).__name__, **dataclasses.asdict(message)}
        await self.send(CONTROL, json.dumps(text).encode())


def as_control(data: bytes) -> Control:
    """The message of a frame.

    Raises
    ------
    ProtocolError : it is not a valid frame.
    """
    found = parsed(data)
    kind = found.get("kind") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(kind, str) or kind not in _KINDS:
        raise ProtocolError(f"a message is {shown(found)}, expected one of {', '.join(_KINDS)}.")
    message: Control = build(_KINDS[kind], found)
    return message
