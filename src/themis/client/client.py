"""``themis.Client``: the arbiter's API as Python. Answers are the messages of ``themis.schema.messages``, whose fields are typed.

with Client() as client:
    app = client.run(["python", "train.py"], gpus=2)
    client.wait(app.app)
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar, cast

import httpx

from themis.client.calls import Calls
from themis.client.connection import (
    OVER,
    RETRY_S,
    Answer,
    Busy,
    PlainRefused,
    Step,
    StillActive,
    Stream,
    Unavailable,
    Waiting,
)
from themis.client.home import user_name
from themis.schema import messages as schema

T = TypeVar("T")


class Client(Calls, Waiting):
    """A connection to an arbiter.

    Parameters
    ----------
    home : its data directory, which has its address and the token; by default ``$THEMIS_DATA_DIR`` or ``~/.themis``.
    address, token : instead of those in the data directory; an address that is not of this machine's loopback is called over TLS,
        unless it begins with ``http://``.
    cacert : file of the certificate that the arbiter is verified against, or ``system`` for the system's authorities; by default
        ``$THEMIS_CACERT``, or the one that ``themis login`` stored. ``trust`` : instead, for an ``address`` as ``HOST:PORT``.
    timeout_s : timeout of a call that returns one answer, in seconds.
    patience_s : seconds to retry while the arbiter is unavailable, as during a restart; by default ``timeout_s``.
    on_wait : called once, with a sentence, when the first retry begins.

    Raises
    ------
    InputError : no service was started, its token is missing or readable by others, or a call was wrong.
    Unavailable : the arbiter does not answer. Untrusted : its certificate is not accepted.
    """

    def _begin(self) -> None:
        self._http = httpx.Client(**self._options())
        self._streams: set[httpx.Response] = set()
        self.unsent: deque[tuple[schema.AgentAnswer, Future[str]]] = deque()
        self.sending = threading.Lock()
        """Answers of agents that the next request has, and the lock of who sends them."""

    def _dial_again(self) -> None:
        """Reconnect: a restarted arbiter may have another address."""
        if self._moved():
            before, self._http = self._http, httpx.Client(**self._options())
            before.close()

    def close(self) -> None:
        """Close the connection; streams that other threads read end with Unavailable."""
        self._closed = True
        for reply in list(self._streams):
            link = reply.extensions["network_stream"].get_extra_info("socket")
            with suppress(OSError):  # it has ended already
                socket.socket.shutdown(link, socket.SHUT_RDWR)
        self._http.close()

    def __del__(self) -> None:
        """Close the connection of a client that nobody holds any more, as Python does for files."""
        with suppress(Exception):  # its constructor may have failed
            self.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what calls need -------------------------------------------------------------------------------------------

    def _answer(self, answer: Answer[T]) -> T:
        try:
            step = next(answer)
            while True:
                try:
                    found = self._take(step)
                except Exception as error:
                    step = answer.throw(error)
                else:
                    step = answer.send(found)
        except StopIteration as end:
            return cast(T, end.value)

    def _take(self, step: Step) -> Any:
        if isinstance(step, dict):
            return self._http.request(**step)
        if callable(step):
            return step()
        time.sleep(step)
        return self._dial_again()

    def _pieces(self, stream: Stream[T]) -> Iterator[T]:
        while True:
            stream.begin()
            try:
                for piece in self._received(stream):
                    yield from stream.new(piece)
                return
            except Unavailable as error:
                stream.interrupted(error)
            self._take(RETRY_S)

    def _received(self, stream: Stream[Any]) -> Iterator[bytes | str]:
        """Lines of a stream of events, or pieces of another stream."""
        try:
            with httpx.Client(**self._options()) as http, http.stream(**stream.request()) as reply:
                if reply.status_code != 200:
                    reply.read()
                    raise self._refusal(reply)
                self._streams.add(reply)
                try:
                    yield from reply.iter_lines() if stream.events else reply.iter_raw()
                finally:
                    self._streams.discard(reply)
        except (httpx.TransportError, Busy, PlainRefused) as error:
            raise self._in_words(error, self._tls_cause(error)) from None


__all__ = ["OVER", "Client", "StillActive", "Unavailable", "user_name"]
