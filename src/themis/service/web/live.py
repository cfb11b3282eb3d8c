"""Content of the page Now, computed once for all open consoles, and sent to them as server-sent events.

Nothing is computed while no console is open. The arbiter's thread spends at most ``PART`` of its time on it, and only
when the journal has grown or ``REST_S`` have passed. All consoles get the same bytes: the full page once, then changes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from themis.errors import ThemisError
from themis.service.api.access import Caller
from themis.service.api.call_limits import CallLimit
from themis.service.api.methods import Api
from themis.service.api.overview import Day, Overview
from themis.service.api.submission import Limit
from themis.service.web import now_parts
from themis.service.web.render import Renderer

EVERY_S, REST_S, DAY_S = 1.0, 10.0, 60.0
"""Seconds between two looks at least; where the journal has not grown; and at most between two looks at the last day."""
PART = 0.02
"""Maximum fraction of the arbiter's time."""
BEAT_S, YOUNG_S = 15.0, 30.0
"""Seconds between two signs of life of a silent stream; age of a look with which a page begins."""
MOST_FOLLOWERS, FOLLOWERS_OF_USER, FOLLOWERS_KEPT = 256, 24, 16
"""Limits of concurrent consoles: in total, of one user, and of the total for administrators only."""

log = logging.getLogger("themis.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The parts of the page at one instant. ``version`` : grows with each change."""

    version: int
    parts: dict[str, Any]
    whole: bytes
    change: bytes


class Live:
    """One for each service; ``follow`` runs in the event loop, ``latest`` in any thread."""

    def __init__(self, api: Api, render: Renderer) -> None:
        self.api, self.render = api, render
        self.looks = 0
        """Number of full queries to the arbiter."""
        self._lock = threading.Lock()
        self._look: Look | None = None
        self._overview: Overview | None = None
        self._day: tuple[float, Day] | None = None
        self._at, self.cost_s = 0.0, 0.0
        self._followers: set[asyncio.Event] = set()
        self._places = CallLimit(
            MOST_FOLLOWERS, FOLLOWERS_OF_USER, FOLLOWERS_KEPT, "follow the page Now", "close one of its windows"
        )
        self._task: asyncio.Task[None] | None = None

    def latest(self) -> Look:
        """The page's parts, not older than the limits above allow; for any thread."""
        with self._lock:
            now = time.monotonic()
            if self._look is None or now - self._at >= max(EVERY_S, self.cost_s / PART):
                self._renew(now)
            assert self._look is not None
            return self._look

    def at_hand(self) -> Look:
        """The last look if it is young, else a new one: a page waits for no busy arbiter, and the stream brings what is newer."""
        look = self._look
        return look if look is not None and time.monotonic() - self._at < YOUNG_S else self.latest()

    def _renew(self, now: float) -> None:
        rests = self._look is not None and now - self._at < REST_S
        if rests and self._overview is not None and self.api.last_record() == self._overview.record:
            return
        self._overview, self.cost_s = self.api.overview()
        self._at, self.looks = now, self.looks + 1
        if self._day is None or now - self._day[0] >= min(max(self._day[1].width, 5.0), DAY_S):
            self._day = now, self.api.last_day()
        parts = now_parts.parts(self._overview, self._day[1], self.render)
        before = self._look.parts if self._look is not None else None
        change = parts if before is None else now_parts.difference(before, parts)
        if before is not None and not change:
            return
        version = self._look.version + 1 if self._look is not None else 1
        self._look = Look(
            version=version,
            parts=parts,
            whole=_event(version, "whole", parts),
            change=_event(version, "change", change),
        )

    async def follow(self, caller: Caller, alive: Callable[[], bool]) -> AsyncIterator[bytes]:
        """The whole, then each change, until ``alive`` says no. A reader that is too slow for each change gets the whole again."""
        async with AsyncExitStack() as place:
            try:
                place.enter_context(self._places.take(caller))
            except Limit as error:
                yield b"event: full\nretry: 60000\ndata: %s\n\n" % orjson.dumps(str(error))
                return
            pieces = await place.enter_async_context(aclosing(self._pieces(alive)))
            async for piece in pieces:
                yield piece

    async def _pieces(self, alive: Callable[[], bool]) -> AsyncGenerator[bytes]:
        news = asyncio.Event()
        self._followers.add(news)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        sent = 0
        try:
            yield b"retry: 2000\n\n"
            while alive() and not self.api.ending.is_set():
                look = self._look
                if look is not None and look.version != sent:
                    yield look.change if sent and look.version == sent + 1 else look.whole
                    sent = look.version
                    continue
                news.clear()
                try:
                    await asyncio.wait_for(news.wait(), BEAT_S)
                except TimeoutError:
                    yield b": nothing new\n\n"
        finally:
            self._followers.discard(news)

    async def _watch(self) -> None:
        """Look again and again while a console follows."""
        loop = asyncio.get_running_loop()
        before = self._look.version if self._look is not None else 0
        while self._followers and not self.api.ending.is_set():
            try:
                look = await loop.run_in_executor(None, self.latest)
            except (ThemisError, OSError):  # it ends, or its disk is full
                await asyncio.sleep(EVERY_S)
                continue
            except Exception as error:  # a fault in one look must not leave all consoles with the last one for good
                log.error("the page Now cannot be computed", exc_info=error)
                await asyncio.sleep(REST_S)
                continue
            if look.version != before:
                before = look.version
                for news in self._followers:
                    news.set()
            await asyncio.sleep(EVERY_S)
        for news in self._followers:
            news.set()


def _event(version: int, kind: str, parts: dict[str, Any]) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (
        kind.encode(),
        version,
        orjson.dumps(parts, option=orjson.OPT_NON_STR_KEYS),
    )
