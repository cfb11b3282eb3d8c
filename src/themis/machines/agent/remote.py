"""A machine of a fleet: it dials the service over TLS, and carries bytes between the arbiter there and its node agent.

    arbiter --- gateway ===TLS=== Remote --- Relay --- node agent --- supervisors --- ranks

The service never dials a machine, so only the service needs an open port. A connection is one conversation of the agent: when
either ends, the other does, and the machine dials again after a random wait. Jobs do not notice: their supervisors hold the lease.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import ssl
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from themis.errors import InputError, ThemisError
from themis.machines.agent.channel import ChannelClosed
from themis.machines.agent.frames import (
    CONTROL,
    DATA,
    LOG,
    EndAgent,
    Frames,
    NextToken,
    Ping,
    Pong,
    Present,
    Refused,
    Welcome,
    as_control,
)
from themis.machines.agent.identity import SERVER_NAME, load, renew, token_of
from themis.machines.agent.logfile import LogLines
from themis.machines.agent.relay import Relay, physical
from themis.machines.agent.system import UMASK
from themis.trust.authority.contexts import client_context, in_words

FIRST_WAIT_S, MOST_WAIT_S = 0.2, 10.0
"""Seconds between two attempts; doubled after each failure, then randomised between half and all of it."""
HANDSHAKE_S = 10.0
SILENT_S = 15.0
"""Seconds of silence after which the service counts as gone; it sends something at least every few seconds."""
ENDED = b'"ended"'
"""Part of an agent's message about a task that ended."""
LOOK_S = 0.1
"""Between two looks whether the agent of a machine that leaves has ended."""
LOGS_S = 1.0
"""Between two looks at what ranks wrote."""


class Turned(Exception):
    """The connection is to be made again, and nothing is wrong."""


class Denied(InputError):
    """The service refuses this machine, and will refuse it again."""


class Remote:
    """The machine of a state folder."""

    def __init__(self, state: Path, notice_s: float = 0.0) -> None:
        self.state, self.machine, self.notice_s = state, load(state), notice_s
        self.relay: Relay | None = None
        self.said = ""
        self.wait_s = FIRST_WAIT_S
        self.copying = asyncio.Lock()

    async def run(self) -> None:
        """Run until cancelled.

        Raises
        ------
        Denied : the service refuses this machine for good. InputError : the machine's own folder, or its GPUs, are not in order.
        """
        at = f"{self.machine.host}:{self.machine.port}"
        while True:
            try:
                await self._connection()
            except Turned:
                self.wait_s = FIRST_WAIT_S
            except Denied:
                raise
            except ThemisError as error:
                self._say(str(error))
            except (OSError, EOFError, ChannelClosed) as error:
                self._say(
                    str(in_words(error, self.machine.host, self.machine.port, SERVER_NAME))
                    if isinstance(error, ssl.SSLError | TimeoutError)
                    else f"the connection to {at} is lost: {getattr(error, 'strerror', None) or error or type(error).__name__}."
                )
            await asyncio.sleep(self.wait_s * random.uniform(0.5, 1.0))
            self.wait_s = min(2 * self.wait_s, MOST_WAIT_S)

    def _say(self, sentence: str) -> None:
        """Write to stderr, each sentence once until a connection is made."""
        if sentence != self.said:
            print(f"themis agent: {sentence}", file=sys.stderr, flush=True)
        self.said = sentence

    async def _connection(self) -> None:
        machine = self.machine
        context = client_context((self.state / "authority.pem").read_text())
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(
                machine.host, machine.port, ssl=context, server_hostname=SERVER_NAME, ssl_handshake_timeout=HANDSHAKE_S
            ),
            2 * HANDSHAKE_S,
        )
        try:
            frames = Frames(reader, writer)
            await frames.say(
                Present(
                    name=machine.name,
                    token=token_of(self.state),
                    gpus=self._gpus(),
                    gpu_type=machine.gpu_type,
                    devices=machine.devices,
                )
            )
            welcome = await asyncio.wait_for(frames.read_control(), SILENT_S)
            if isinstance(welcome, Refused):
                raise (Denied if welcome.final else InputError)(welcome.reason)
            if isinstance(welcome, Welcome):
                await self._converse(frames, welcome)
        finally:
            writer.transport.abort()

    def _gpus(self) -> int:
        """GPUs that are here now, of those that joined."""
        machine = self.machine
        return len(set(physical()) & set(machine.devices)) if machine.devices else machine.gpus

    async def _converse(self, frames: Frames, welcome: Welcome) -> None:
        if self.said:
            self._say(f"connected to {self.machine.host}:{self.machine.port} as {self.machine.name}.")
            self.said = ""
        relay = self._relay(welcome)
        session = relay.open(self.machine.owner)
        # What is sent is queued, for two tasks may not write a frame at the same time, nor wait for each other.
        await first_of(self._up(relay, session, frames), self._down(relay, session, frames), self._logs(relay, frames))

    def _relay(self, welcome: Welcome) -> Relay:
        """The relay, which stays when a connection ends."""
        options = (*welcome.options, "--notice-s", str(self.notice_s))
        if self.relay is None:
            machine = self.machine
            self.relay = Relay(machine.name, machine.root, machine.owner, len(machine.devices), options)
            self.relay.join_with(machine.devices)
        self.relay.options = options
        return self.relay

    async def _up(self, relay: Relay, session: int, frames: Frames) -> None:
        while True:
            if data := await asyncio.to_thread(relay.receive, session):
                if ENDED in data:
                    # A reader of the output stops at the job's end, so the complete output must arrive before that.
                    await self._send_logs(relay, frames)
                await frames.send(DATA, data)

    async def _down(self, relay: Relay, session: int, frames: Frames) -> None:
        while True:
            kind, data = await asyncio.wait_for(frames.read(), SILENT_S)
            self.wait_s = FIRST_WAIT_S
            if kind == DATA:
                await asyncio.to_thread(relay.send, session, data)
            elif kind == CONTROL:
                match as_control(data):
                    case Ping():
                        await frames.say(Pong())
                    case NextToken(token=token):
                        renew(self.state, token)
                        raise Turned
                    case EndAgent():
                        relay.end()
                    case Refused(reason=reason, final=final):
                        raise (Denied if final else InputError)(reason)

    async def _logs(self, relay: Relay, frames: Frames) -> None:
        """Send log output of the ranks to the service, periodically."""
        while True:
            await self._send_logs(relay, frames, rounds=1)
            await asyncio.sleep(LOGS_S)

    async def _send_logs(self, relay: Relay, frames: Frames, rounds: int = 64) -> None:
        """Send what is new, a piece a round."""
        async with self.copying:
            for _ in range(rounds):
                new = await asyncio.to_thread(relay.logs)
                for path, anew, data in new:
                    await frames.send(LOG, LogLines.packed(path, anew, data))
                if not new:
                    return


async def first_of(*work: Coroutine[Any, Any, None]) -> None:
    """Run these until the first ends, then end the others; raises the first one's exception."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def serve(state: Path, notice_s: float = 0.0) -> None:
    """Serve as the machine of this folder until SIGTERM or SIGINT; the agent and its jobs stay.

    ``notice_s`` : after SIGTERM, wait until its jobs saved and the agent ended, at most so many seconds; 0 for no wait.

    Raises
    ------
    InputError : the service refuses this machine, or something of it is not in order.
    """
    os.umask(UMASK)
    remote = Remote(state, notice_s)
    try:
        asyncio.run(_until_stopped(remote))
    finally:
        if remote.relay is not None:
            remote.relay.close()


async def _until_stopped(remote: Remote) -> None:
    task, loop = asyncio.ensure_future(remote.run()), asyncio.get_running_loop()

    async def leave() -> None:
        if remote.notice_s and remote.relay is not None:
            remote.relay.leave()
            while remote.relay.kept():
                await asyncio.sleep(LOOK_S)
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, task.cancel)
    loop.add_signal_handler(signal.SIGTERM, lambda: loop.create_task(leave()))
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(arguments: list[str] | None = None) -> int:
    """``python -m themis.machines.agent.remote --state FOLDER``."""
    parser = argparse.ArgumentParser(
        prog="python -m themis.machines.agent.remote", description="Serve as a machine of a fleet."
    )
    parser.add_argument("--state", required=True, type=Path, help="folder of `themis agent join`")
    parser.add_argument("--notice-s", type=float, default=0.0, help="seconds for jobs to save after SIGTERM")
    given = parser.parse_args(arguments)
    try:
        serve(given.state, given.notice_s)
    except ThemisError as error:
        print(f"themis agent: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
