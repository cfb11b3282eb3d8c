"""``python -m themis.machines.engines.gateway``: the arbiter's server for a fleet's machines, in a separate process.

Machines dial the API's port over TLS, and their connections are handed over to this process (``door``). It checks that a machine
has joined and shows its own token, and that its agent speaks for no other, and then carries bytes between the machine and the
arbiter's socket, so that the arbiter talks to node agents as if they were here. On one more connection to the arbiter it reports
which machines there are. A machine joins with a token of one use. The gateway ends with the arbiter; machines dial again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import ssl
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from themis.errors import InputError, ThemisError
from themis.machines.agent.channel import Rate
from themis.machines.agent.frames import (
    CONTROL,
    DATA,
    FIRST,
    LOG,
    EndAgent,
    Frames,
    Join,
    Joined,
    NextToken,
    Ping,
    Pong,
    Present,
    Refused,
    Welcome,
    as_control,
)
from themis.machines.agent.identity import SERVER_NAME
from themis.machines.agent.messages import (
    PROTOCOL,
    EndNodes,
    NodeFound,
    NodeLeaves,
    NodeLies,
    NodeReleased,
    ProtocolError,
    decode,
)
from themis.machines.agent.relay import CHUNK
from themis.machines.agent.remote import first_of
from themis.machines.engines.carrier import Carrier, serve
from themis.machines.engines.door import open_door
from themis.machines.engines.from_machines import Beginning, LogCopies, checked
from themis.machines.engines.members import LEAVING, REMOVED, Member, Members, NotAllowed
from themis.trust.authority.ca import Authority
from themis.trust.authority.contexts import server_context
from themis.trust.authority.entrance import Entrance

POLL_S, HEARD_S = 1.0, 10.0
"""Between two looks at the file of members, and between two notes there of which machines are connected."""
PING_S, SILENT_S = 4.0, 15.0
FIRST_S = 10.0
"""A caller says who it is within this time."""
ALIVE_S = 3.0
"""A machine that is connected answers within this time; otherwise its next connection takes its place."""
MOST_CALLERS = 2000
MOST_STRANGERS = 256
"""Callers after their handshake that have not said who they are; for one more, the oldest is closed."""
log = logging.getLogger("themis.gateway")


@dataclass(eq=False, slots=True)
class Link:
    """A machine that is connected."""

    member: Member
    frames: Frames
    address: str
    heard: float = field(default_factory=time.monotonic)
    pong: asyncio.Event = field(default_factory=asyncio.Event)
    renewed: bool = False
    """It was given its next token."""


@dataclass(slots=True, kw_only=True)
class Gateway(Carrier):
    """Connections between one arbiter and its machines; ``token_s`` : seconds after which a machine is given its next token."""

    members: Members
    authority: Authority
    token_s: float
    context: ssl.SSLContext = field(init=False)
    links: dict[str, Link] = field(default_factory=dict)
    callers: int = 0
    strangers: dict[asyncio.StreamWriter, None] = field(default_factory=dict)
    """Connections that have not said who they are, the oldest first."""

    async def run(self, door: Path) -> None:
        """Serve the connections that are handed over at ``door`` until the arbiter disconnects."""
        reader = await self.attend()
        self.certify()
        entrance = Entrance(open_door(door), lambda: self.context, self._protocol, handshake_s=FIRST_S)
        entrance.start()
        try:
            await first_of(self._obey(reader), self._watch())
        finally:
            await entrance.close()

    def certify(self) -> None:
        """Show a certificate that was renewed if it was due."""
        self.context = server_context(self.authority.server([SERVER_NAME], file="agents.pem"))

    def _protocol(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._called)

    async def _obey(self, reader: asyncio.StreamReader) -> None:
        """Execute the requests of the arbiter."""
        while line := await reader.readline():
            match decode(json.loads(line)):
                case EndNodes():
                    for link in list(self.links.values()):
                        with contextlib.suppress(OSError):
                            await asyncio.wait_for(link.frames.say(EndAgent()), 2.0)
                    return
                case NodeReleased(node=name):
                    self.members.remove(name)
                case _:
                    pass

    async def _watch(self) -> None:
        """Watch machines that are to leave, tokens that are old, and connections that went silent."""
        renewed = noted = time.monotonic()
        while True:
            members = {member.name: member for member in self.members.all()}
            for member in members.values():
                if member.state == LEAVING:
                    self.report(NodeLeaves(node=member.name, dead=False))
            for name, link in list(self.links.items()):
                if name not in members or members[name].state == REMOVED:
                    await self._end(link, f"machine {name} was removed from the service.", final=True)
                elif time.monotonic() > link.heard + SILENT_S:
                    log.warning("machine %s: silent for %.0f s; the connection is closed", name, SILENT_S)
                    link.frames.writer.transport.abort()
            await asyncio.gather(*map(self._keep, list(self.links.values())))
            if self.links and time.monotonic() > noted + HEARD_S:
                noted = time.monotonic()
                self.members.heard(list(self.links))
            if time.monotonic() > renewed + 3600.0:
                renewed = time.monotonic()
                self.certify()
            await asyncio.sleep(POLL_S)

    async def _keep(self, link: Link) -> None:
        """Ask whether a machine is there; give it its next token where it is time."""
        with contextlib.suppress(OSError, TimeoutError):
            if time.monotonic() > link.heard + PING_S:
                await asyncio.wait_for(link.frames.say(Ping()), 1.0)
            if not link.renewed and self.members.clock() >= link.member.made + self.token_s:
                link.renewed = True
                await link.frames.say(NextToken(token=self.members.next_token(link.member.name)))
                log.warning("machine %s: another token", link.member.name)

    # ---- callers --------------------------------------------------------------------------------------------------

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its handshake on."""
        frames = Frames(reader, writer)
        address = str((writer.get_extra_info("peername") or ("?",))[0])
        self.callers += 1
        self.strangers[writer] = None
        try:
            if self.callers > MOST_CALLERS:
                raise InputError(f"{MOST_CALLERS} machines are connected, which is the most that the service takes.")
            if len(self.strangers) > MOST_STRANGERS:
                oldest = next(iter(self.strangers))
                del self.strangers[oldest]
                oldest.transport.abort()
            await self._serve(frames, address)
        except ThemisError as error:
            log.warning("%s: %s", address, error)
            await self._refuse(frames, str(error), final=isinstance(error, NotAllowed))
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            self.callers -= 1
            self.strangers.pop(writer, None)
            writer.transport.abort()

    async def _serve(self, frames: Frames, address: str) -> None:
        first = await asyncio.wait_for(frames.read_control(FIRST), FIRST_S)
        self.strangers.pop(frames.writer, None)
        if not isinstance(first, Join | Present):
            raise ProtocolError(f"a connection begins with {type(first).__name__}, expected Join or Present.")
        if first.protocol != PROTOCOL:
            raise NotAllowed(
                f"the machine speaks protocol {first.protocol}, the service {PROTOCOL}; install the same Themis."
            )
        if isinstance(first, Join):
            await self._join(first, frames, address)
        else:
            await self._present(first, frames, address)

    async def _join(self, join: Join, frames: Frames, address: str) -> None:
        checked(join)
        member, token = self.members.admit(join, address)
        log.warning("machine %s joined from %s with %d GPUs %s", member.name, address, member.gpus, member.gpu_type)
        await frames.say(Joined(owner=self.owner, rack=member.rack, token=token))
        frames.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(frames.writer.wait_closed(), FIRST_S)

    async def _present(self, there: Present, frames: Frames, address: str) -> None:
        # Before anything else: a caller without the token learns nothing and disturbs nobody.
        member = self.members.entering(there.name, there.token, address)
        name = member.name
        await self._alone(name)
        # Of GPUs that are missing, the agent says which; of mere slots, there are fewer.
        other = (there.gpu_type, there.devices) != (member.gpu_type, member.devices)
        if other or not 1 <= there.gpus <= member.gpus:
            raise InputError(
                f"machine {name} joined with {member.gpus} GPUs {member.gpu_type}, and its agent reports {there.gpus} "
                f"{there.gpu_type}{'' if there.devices == member.devices else ' with other UUIDs'}; repair it, or remove it and "
                "join it again."
            )
        link = self.links[name] = Link(member, frames, address)
        try:
            await frames.say(Welcome(options=self.options))
            if member.state != LEAVING:
                self.report(
                    NodeFound(
                        node=member.name,
                        gpus=member.gpus if member.devices else there.gpus,
                        gpu_type=member.gpu_type,
                        rack=member.rack,
                        address=address,
                        devices=member.devices,
                        gpus_per_slot=member.slot,
                    )
                )
            await self._converse(link)
        except (ProtocolError, NotAllowed) as error:
            self.report(NodeLies(node=member.name, reason=str(error)))
            raise
        finally:
            if self.links.get(name) is link:
                del self.links[name]

    async def _alone(self, name: str) -> None:
        """Limit a token to one agent at a time; a connection whose machine is gone gives way.

        Raises
        ------
        NotAllowed : the other one is alive.
        """
        link = self.links.get(name)
        if link is None:
            return
        link.pong.clear()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(link.frames.say(Ping()), ALIVE_S)
            await asyncio.wait_for(link.pong.wait(), ALIVE_S)
        if link.pong.is_set() and self.links.get(name) is link:
            raise NotAllowed(
                f"machine {name} is connected already, from {link.address}: its token serves one agent only. Join "
                "each machine with a token of its own."
            )
        link.frames.writer.transport.abort()

    async def _refuse(self, frames: Frames, reason: str, *, final: bool) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(frames.say(Refused(reason=reason, final=final)), 2.0)
            frames.writer.close()
            await asyncio.wait_for(frames.writer.wait_closed(), 2.0)

    async def _end(self, link: Link, reason: str, *, final: bool) -> None:
        await self._refuse(link.frames, reason, final=final)
        link.frames.writer.transport.abort()

    # ---- one machine ----------------------------------------------------------------------------------------------

    async def _converse(self, link: Link) -> None:
        reader, writer = await self.dial()
        try:
            await first_of(self._up(link, writer), self._down(link, reader))
        finally:
            writer.close()

    async def _up(self, link: Link, writer: asyncio.StreamWriter) -> None:
        """Forward from the machine to the arbiter; the first line must be this machine's own."""
        assert self.mirror is not None
        begin, rate = Beginning(link.member.name), Rate(time.monotonic)
        logs = LogCopies(self.mirror / link.member.name, self.log_bytes)
        while True:
            kind, data = await link.frames.read()
            rate.take(len(data), 1)
            link.heard = time.monotonic()
            link.pong.set()
            if kind == LOG:
                await asyncio.to_thread(logs.add_frame, data)
            elif kind == CONTROL:
                if not isinstance(as_control(data), Pong):
                    raise ProtocolError(f"machine {link.member.name} sends what is no answer.")
            elif data := begin.passed(data):
                if begin.hello is not None and begin.hello.protocol < PROTOCOL:
                    # It outlived an upgrade of its machine, which starts another one now.
                    await link.frames.say(EndAgent())
                    raise InputError(f"machine {link.member.name}: its node agent is older than its Themis.")
                writer.write(data)
                await writer.drain()

    async def _down(self, link: Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await link.frames.send(DATA, data)


def main(arguments: list[str] | None = None) -> int:
    """Run until the arbiter disconnects; exit code 2 and a sentence where the address cannot be served."""
    parser = argparse.ArgumentParser(
        prog="python -m themis.machines.engines.gateway", description="Serve machines over TLS."
    )
    parser.add_argument("--door", required=True, type=Path, help="where connections of machines are handed over")
    parser.add_argument("--members", required=True, type=Path, help="file of the machines that joined")
    parser.add_argument("--authority", required=True, type=Path, help="folder of the certificate authority")
    parser.add_argument("--token-s", type=float, required=True, help="seconds until a machine gets its next token")

    async def work(given: argparse.Namespace, common: dict[str, Any]) -> None:
        with contextlib.closing(Members(given.members)) as members:
            authority = Authority.open(given.authority)
            gateway = Gateway(**common, members=members, authority=authority, token_s=given.token_s)
            await gateway.run(given.door)

    logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr)
    return serve(arguments, parser, work)


if __name__ == "__main__":
    sys.exit(main())
