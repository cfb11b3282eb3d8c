"""Common part of the processes that carry bytes between node agents and the arbiter: the bridge to Ray, the gateway of a fleet.

    arbiter --- Unix socket --- Carrier === Ray's actors, or TLS === machines: node agents --> supervisors --> ranks

To the arbiter, each node agent is a connection that begins with ``Hello``. On one more connection, the carrier reports which
machines there are. It ends with the arbiter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from themis.errors import ThemisError
from themis.machines.agent.channel import short
from themis.machines.agent.messages import Message, encode
from themis.machines.agent.relay import CHUNK


@dataclass(slots=True, kw_only=True)
class Carrier:
    """Connections to one arbiter.

    Parameters
    ----------
    socket : where the arbiter listens. ``owner`` : its id. ``options`` : of node agents.
    mirror : folder for copies of ranks' logs, by machine; None where machines share their folder with the arbiter.
    log_bytes : bound of each rank's log.
    """

    socket: Path
    owner: str
    log_bytes: int
    mirror: Path | None = None
    options: tuple[str, ...] = ()
    control: asyncio.StreamWriter | None = None

    async def attend(self) -> asyncio.StreamReader:
        """Connect for reports; the arbiter's requests come on the result."""
        reader, self.control = await self.dial()
        return reader

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Another connection to the arbiter."""
        with short(self.socket) as name:
            return await asyncio.open_unix_connection(name, limit=CHUNK * 4)

    def report(self, message: Message) -> None:
        """Send a message about machines."""
        assert self.control is not None
        self.control.write(json.dumps(encode(message)).encode() + b"\n")


def serve(
    arguments: Sequence[str] | None,
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace, dict[str, Any]], Coroutine[Any, Any, None]],
) -> int:
    """Run ``work(arguments, fields of the carrier)`` until the arbiter disconnects; exit code 2 and a sentence for an error."""
    parser.add_argument("--connect", required=True, type=Path, help="the arbiter's socket")
    parser.add_argument("--owner", required=True, help="id of the arbiter")
    parser.add_argument("--mirror", type=Path, help="folder for copies of ranks' logs")
    parser.add_argument("--log-bytes", type=int, required=True, help="bound of each rank's log")
    parser.add_argument("option", nargs="*", help="for the agents")
    given = parser.parse_args(arguments)
    common = {
        "socket": given.connect,
        "owner": given.owner,
        "mirror": given.mirror,
        "log_bytes": given.log_bytes,
        "options": tuple(given.option),
    }
    try:
        asyncio.run(work(given, common))
    except ThemisError as error:
        print(f"themis: {error}", file=sys.stderr, flush=True)
        return 2
    except (ConnectionError, FileNotFoundError):
        # The arbiter is gone.
        return 0
    return 0
