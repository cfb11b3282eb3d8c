"""HTTP connections: how long one may take for its headers and for taking an answer, and how many may wait.

A connection without a whole request holds neither a thread nor a call of the limit. It has ``HEADERS_S`` for its headers, however
slowly they come, and of more than ``MOST_WAITING`` such connections the oldest is closed. One that takes nothing of an answer for
``ANSWER_S`` is closed too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 5.0
"""Seconds from the connection, or from the last answer, to the end of a request's headers."""
ANSWER_S = 10.0
"""Seconds in which a connection must take 48 KiB of an answer, or what is left of it."""
MOST_WAITING = 256
MOST_BYTES = 1 << 16
"""Maximum bytes of a request line and its headers."""


class Connection(H11Protocol):
    """A connection of the HTTP API."""

    waiting: dict[Connection, None]
    """Connections without a whole request, the oldest first; of one server."""
    _headers_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._watch()
        if len(self.waiting) > MOST_WAITING:
            next(iter(self.waiting)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # From here on, wait for the rest of the answer, for the rest of an unread body, and for the next headers.
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_timer = self.loop.call_later(ANSWER_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request in the form of all else; called where h11's error is handled."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        # What h11 quotes may be a header with a token.
        why = str(error).partition(": bytearray(")[0][:200]
        body = json.dumps({"error": f"the request cannot be read: {why}."}).encode() + b"\n"
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        answer = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """Wait for whole headers, unless a request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self not in self.waiting:
            self.waiting[self] = None
            self._headers_timer = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None
