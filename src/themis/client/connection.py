"""Code that both clients share: address, token, retry time, and errors as sentences. It does not use the network."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from themis.client import themis_pb2 as pb
from themis.client.home import read_token
from themis.client.trust import Diagnosis, Trust, Where, locate
from themis.data_dir import default_home
from themis.errors import InputError, ThemisError
from themis.trust.authority.contexts import Untrusted

if TYPE_CHECKING:
    from themis.client.sending import Sender

OVER = ("completed", "cancelled", "failed")
STUCK = "cannot be written"
"""Part of the message of an arbiter whose disk is full."""
RETRY_S = 0.2
LONG_S = {"WhatIf": 240.0}
"""Seconds of calls that take longer than others, by method."""
FOLLOW_S = 600.0
"""Seconds that a call which follows or waits tolerates an unavailable arbiter, for a restart or an upgrade."""
CERTAIN_S = 1.0
"""Seconds after which a fault of TLS ends a call: while an arbiter restarts, its certificate may be older than its address."""
BROKEN = ("andshake", "erification check", "Socket closed")
"""Parts of gRPC's messages about connections that TLS may have ended."""
CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.enable_http_proxy", 0),
    # By default gRPC waits up to two minutes between attempts to reconnect.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class Unavailable(ThemisError):
    """The arbiter does not answer."""


class StillActive(Unavailable, TimeoutError):
    """An app has not ended within the timeout of ``wait``."""


class Connection:
    """Address of an arbiter and time limits of waiting callers; ``Client`` and ``AsyncClient`` document parameters."""

    def __init__(
        self,
        home: Path | str | None = None,
        *,
        address: str = "",
        token: str = "",
        cacert: Path | str | None = None,
        trust: Trust | None = None,
        timeout_s: float = 30.0,
        patience_s: float | None = None,
        on_wait: Callable[[str], object] = lambda sentence: None,
    ) -> None:
        self.home = Path(home).expanduser() if home else default_home()
        self._given = address
        self._cacert = cacert
        self._closed = self._said_away = False
        """True once the client is closed; true once the user was notified that the arbiter is unavailable."""
        self._trust = trust
        self._where = self._locate()
        self._diagnosis = Diagnosis()
        self.timeout_s, self.patience_s, self.on_wait = timeout_s, patience_s, on_wait
        self._metadata = (("authorization", f"Bearer {token or read_token(self.home)}"),)
        self._begin()

    def _begin(self) -> None:
        """The end of the constructor."""

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the arbiter."""
        return self._where.address

    @property
    def trust(self) -> Trust:
        """The authorities that verify the certificate of the service."""
        return self._where.trust

    def _moved(self) -> bool:
        """True if the arbiter has another address or certificate than before: a restart may change it."""
        with suppress(InputError):
            before, self._where = self._where, self._locate()
            return self._where != before
        return False

    def _locate(self) -> Where:
        if self._trust is not None:
            return Where(self._given, self._trust)
        return locate(self.home, self._given, self._cacert)

    def _channel_options(self) -> tuple[tuple[str, Any], ...]:
        name = self.trust.name
        return (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name)) if name else CHANNEL_OPTIONS

    def _credentials(self) -> grpc.ChannelCredentials | None:
        """Credentials of the channel; None without TLS."""
        return grpc.ssl_channel_credentials(self.trust.roots()) if self.trust.source else None

    def _tls_cause(self, error: grpc.RpcError) -> ThemisError | None:
        """Why TLS does not let the call through, if that is the cause; asks the arbiter's port by a handshake."""
        details = str(error.details())
        silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and bool(self.trust.source)
        if silent or any(word in details for word in BROKEN):
            return self._diagnosis.cause(self._where)
        return None

    def _sender(self, info: pb.InfoReply) -> Sender:
        """The sender of folders to this service."""
        from themis.client.sending import Sender

        if self._given:
            raise InputError(
                "files are sent with the login of a data directory, and this client has an address; `themis login` makes one."
            )
        return Sender(self.home, info.max_bundle, http_port=info.http_port)

    def _files_home(self) -> Path:
        """The data directory whose login fetches files over HTTP."""
        if self._given:
            raise InputError(
                "files are fetched with the login of a data directory, and this client has an address; `themis login` makes one."
            )
        return self.home

    def _in_words(self, error: grpc.RpcError, cause: ThemisError | None) -> ThemisError:
        """The error as a sentence; ``cause`` : of ``_tls_cause``."""
        code = grpc.StatusCode
        match error.code():
            case code.UNAVAILABLE if reason := stuck(error):
                return Unavailable(f"message of the arbiter at {self.address}: {reason}")
            # A stream is cancelled when the arbiter ends, and by close().
            case code.UNAVAILABLE | code.DEADLINE_EXCEEDED | code.CANCELLED:
                if cause is not None:
                    return cause if isinstance(cause, Untrusted) else Unavailable(str(cause))
                own = (self.home / "journal.db").exists()
                what = (
                    f"start it with `themis up --data-dir {self.home}`" if own else "check that `themis up` runs there"
                )
                return Unavailable(f"the arbiter at {self.address} does not answer; {what}.")
            case code.INTERNAL | code.UNKNOWN:
                return ThemisError(f"the arbiter at {self.address} failed: {error.details()}")
            case code.RESOURCE_EXHAUSTED if "larger than max" in str(error.details()):
                return InputError(
                    f"the message is too large for the arbiter ({error.details()}); move data to files, or "
                    "increase max_message."
                )
            case _:
                return InputError(str(error.details()))


def stuck(error: grpc.RpcError) -> str:
    """The message of an arbiter whose disk is full; empty otherwise."""
    details = str(error.details())
    return details if STUCK in details else ""


class Retries:
    """One call with one answer, retried while the arbiter is unavailable; every method of the API is idempotent."""

    def __init__(self, connection: Connection, method: str = "") -> None:
        self.connection, self.began, self.waiting = connection, time.monotonic(), False
        timeout_s, patience_s = max(connection.timeout_s, LONG_S.get(method, 0.0)), connection.patience_s
        self.end = self.began + timeout_s
        self.patient_s = connection.timeout_s if patience_s is None else min(patience_s, timeout_s)

    @property
    def left_s(self) -> float:
        """Timeout of the next attempt, in seconds."""
        return max(self.end - time.monotonic(), 0.1)

    def failed(self, error: grpc.RpcError, cause: ThemisError | None) -> None:
        """Return if the call may be tried again after ``RETRY_S``; raises otherwise. ``cause`` : why TLS fails, if it does."""
        at = self.connection
        away = error.code() is grpc.StatusCode.UNAVAILABLE
        if away and cause is not None and time.monotonic() > self.began + CERTAIN_S:
            raise cause
        if not away or time.monotonic() + RETRY_S > self.began + self.patient_s:
            raise at._in_words(error, cause) from None
        reason = stuck(error)
        problem = f"Message of the arbiter: {reason}" if reason else f"The arbiter at {at.address} does not answer."
        if not self.waiting and not at._said_away:
            at.on_wait(f"{problem} Retrying for up to {self.patient_s:g} s.")
        self.waiting = True


class Absence:
    """Time for which the arbiter has been unavailable during a call that follows or waits."""

    def __init__(self, connection: Connection, end: float = math.inf) -> None:
        self.connection, self.end, self.since = connection, end, math.inf

    def over(self) -> None:
        """The arbiter answered."""
        self.since, self.connection._said_away = math.inf, False

    def goes_on(self, error: Unavailable) -> None:
        """Notify the user the first time; raises the error after ``FOLLOW_S``, or after the end."""
        at = self.connection
        if not at._said_away:
            at._said_away = True
            at.on_wait(f"{error} Retrying for up to {FOLLOW_S:g} s.")
        self.since = min(self.since, time.monotonic())
        if time.monotonic() > min(self.since + FOLLOW_S, self.end):
            raise error


class Wait:
    """The rules of ``wait``: until an app has ended, a timeout, or an absence of ``FOLLOW_S``."""

    def __init__(self, connection: Connection, app: int | str, timeout_s: float) -> None:
        self.app, self.timeout_s, self.end = app, timeout_s, time.monotonic() + timeout_s
        self.absence = Absence(connection, self.end)

    def ended(self, found: pb.App) -> bool:
        """True if it has ended; raises StillActive after the timeout."""
        self.absence.over()
        if found.state in OVER:
            return True
        if time.monotonic() > self.end:
            raise StillActive(f"app {self.app} is still {found.state} after {self.timeout_s:g} s.")
        return False


class LogCopy:
    """The output of a rank through interruptions: what was read before is skipped afterwards."""

    def __init__(self, connection: Connection, *, follow: bool) -> None:
        self.connection, self.follow, self.absence = connection, follow, Absence(connection)
        self.at: dict[int, int] = {}
        """Bytes read so far, by attempt."""
        self.skip: dict[int, int] = {}

    def begin(self) -> None:
        """A stream begins, from the first byte."""
        self.skip = dict(self.at)

    def new(self, chunk: Any) -> bytes:
        """The part of a chunk that was not read before; may be empty."""
        self.absence.over()
        known = min(self.skip.get(chunk.attempt, 0), len(chunk.data))
        self.skip[chunk.attempt] = self.skip.get(chunk.attempt, 0) - known
        data: bytes = chunk.data[known:]
        self.at[chunk.attempt] = self.at.get(chunk.attempt, 0) + len(data)
        return data

    def interrupted(self, error: Unavailable) -> None:
        """Return if the stream may begin again; raises the error otherwise."""
        if not self.follow or self.connection._closed:
            raise error
        self.absence.goes_on(error)
