"""The name that a caller asks for, read from the first bytes of its handshake before anything answers it."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl

import pytest

from processes import PATIENCE_S
from themis.trust.authority.contexts import client_context
from themis.trust.authority.entrance import Entrance, server_name


def first_message(name: str | None) -> bytes:
    """What OpenSSL sends first."""
    out = ssl.MemoryBIO()
    link = client_context(verify=False).wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        link.do_handshake()
    return out.read()


@pytest.mark.parametrize("name", ["themis-fleet", "gpu1.example.org", "a" * 63 + ".org", None])
def test_the_name_is_read_from_a_whole_message_only(name: str | None) -> None:
    message = first_message(name)
    assert server_name(message) == (name or "")
    assert {server_name(message[:n]) for n in range(len(message))} == {""}
    assert server_name(message + b"more") == (name or "")


def test_damaged_and_made_up_messages_have_a_name_or_none_and_raise_nothing() -> None:
    rng, message = random.Random(0), first_message("themis-fleet")
    for _ in range(3000):
        data = bytearray(message)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        server_name(bytes(data))
        size = rng.randrange(2000)
        server_name(b"\x16\x03\x01" + rng.randrange(65536).to_bytes(2) + rng.randbytes(size))


def test_a_message_in_parts_is_waited_for_without_looking_again_and_again() -> None:
    message = first_message("themis-fleet")

    async def story() -> list[str]:
        asked: list[str] = []

        async def aside(connection: socket.socket, name: str) -> bool:
            assert connection.recv(1 << 14) == message, "nothing was read"
            asked.append(name)
            return True

        listener = socket.create_server(("127.0.0.1", 0))
        entrance = Entrance(listener, None, asyncio.Protocol, aside=aside, handshake_s=PATIENCE_S)
        entrance.start()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for n in range(0, len(message), 100):
            writer.write(message[n : n + 100])
            await writer.drain()
            await asyncio.sleep(0.02)
        assert await reader.read() == b""
        writer.close()
        await entrance.close()
        return asked

    assert asyncio.run(story()) == ["themis-fleet"]
