"""``themis.client.aio.AsyncClient``: the same methods as ``themis.Client``, for asyncio.

async with AsyncClient() as client:
    app = await client.run(["python", "train.py"], gpus=2)
    await client.wait(app.app)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar, cast

import httpx

from themis.client.calls import Calls
from themis.client.connection import (
    RETRY_S,
    Answer,
    Awaited,
    Busy,
    PlainRefused,
    Step,
    StillActive,
    Stream,
    Unavailable,
)

T = TypeVar("T")


class AsyncClient(Calls, Awaited):
    """A connection to an arbiter for one event loop; parameters and methods are those of ``themis.Client``, which describes them.

    Methods are coroutines; ``logs``, ``events`` and ``stream`` are asynchronous iterators.

    Raises
    ------
    InputError : no service was started, its token is missing or readable by others, or a call was wrong.
    Unavailable : the arbiter does not answer.
    """

    _http: httpx.AsyncClient | None = None
    """Created by the first call, in whose event loop it then runs."""

    def _dial(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = httpx.AsyncClient(**self._options())
        return self._http

    async def _dial_again(self) -> None:
        """Reconnect: a restarted arbiter may have another address."""
        if self._moved():
            await self._hang_up()

    async def _hang_up(self) -> None:
        before, self._http = self._http, None
        if before is not None:
            await before.aclose()

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        await self._hang_up()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- what calls need -------------------------------------------------------------------------------------------

    async def _answer(self, answer: Answer[T]) -> T:
        try:
            step = next(answer)
            while True:
                try:
                    found = await self._take(step)
                except Exception as error:
                    step = answer.throw(error)
                else:
                    step = answer.send(found)
        except StopIteration as end:
            return cast(T, end.value)

    async def _take(self, step: Step) -> Any:
        if isinstance(step, dict):
            return await self._dial().request(**step)
        if callable(step):
            return await asyncio.to_thread(step)
        await asyncio.sleep(step)
        return await self._dial_again()

    async def _pieces(self, stream: Stream[T]) -> AsyncIterator[T]:
        while True:
            stream.begin()
            try:
                async for piece in self._received(stream):
                    for found in stream.new(piece):
                        yield found
                return
            except Unavailable as error:
                stream.interrupted(error)
            await self._take(RETRY_S)

    async def _received(self, stream: Stream[Any]) -> AsyncIterator[bytes | str]:
        """Lines of a stream of events, or pieces of another stream."""
        try:
            async with httpx.AsyncClient(**self._options()) as http, http.stream(**stream.request()) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    raise self._refusal(reply)
                async for piece in reply.aiter_lines() if stream.events else reply.aiter_raw():
                    yield piece
        except (httpx.TransportError, Busy, PlainRefused) as error:
            raise self._in_words(error, await asyncio.to_thread(self._tls_cause, error)) from None


__all__ = ["AsyncClient", "StillActive", "Unavailable"]
