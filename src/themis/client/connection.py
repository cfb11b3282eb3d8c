"""Code that both clients share: address, token, retry time, and errors as sentences. It does not use the network."""

from __future__ import annotations

import json
import math
import random
import ssl
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import httpx
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from themis.client.home import read_token
from themis.client.trust import Diagnosis, Trust, Where, locate
from themis.data_dir import default_home
from themis.errors import InputError, ThemisError
from themis.schema import messages as schema
from themis.schema.messages import Message
from themis.schema.routes import CALLS, EVENTS, JSON, Route
from themis.schema.wire import as_json, kind
from themis.trust.authority.contexts import Untrusted, client_context

if TYPE_CHECKING:
    from themis.client.sending import Sender

T = TypeVar("T")
Step: TypeAlias = dict[str, Any] | Callable[[], Any] | float
"""What a call needs next: a request, as httpx has its parameters; work that takes time or reads files; or seconds to wait, after
which the arbiter may have another address."""
Answer: TypeAlias = Generator[Step, Any, T]
"""A call under way; its result is the answer."""

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
MOST_CALLS = 8
"""Calls of a client that are under way at a time, of the 12 that the service answers to one user; others wait for one to end. Each
stream has an HTTP client of its own: httpx looks at all open connections for each call, and keeps none where many are open."""
CALM_S = 5.0
"""A refused call is repeated by itself where the service says that it may come again within these seconds."""
STREAM_S = 60.0
"""Seconds without a word after which a stream of events has ended; the service says something every 15 s."""


class Unavailable(ThemisError):
    """The arbiter does not answer."""


class Busy(InputError):
    """The service has as many calls as it takes; ``retry_s`` : seconds after which it may take this one."""

    def __init__(self, sentence: str, retry_s: float) -> None:
        super().__init__(sentence)
        self.retry_s = retry_s


class PlainRefused(ThemisError):
    """A service with TLS refused a call without."""


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
        self._headers = {"Authorization": f"Bearer {token or read_token(self.home)}", "User-Agent": "themis"}
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

    def _options(self) -> dict[str, Any]:
        """Parameters of the HTTP client; proxies of the environment are left out of account."""
        tls = bool(self.trust.source)
        # Without TLS a context is not used; httpx would load all authorities of the system for it.
        context = client_context(self.trust.pem) if tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        base = f"http{'s' * tls}://{self.address}"
        limits = httpx.Limits(max_connections=MOST_CALLS, max_keepalive_connections=MOST_CALLS)
        return {"base_url": base, "headers": self._headers, "verify": context, "trust_env": False, "limits": limits}

    def _asked(self, route: Route, request: Message, timeout_s: float) -> dict[str, Any]:
        """Parameters of a request; InputError where a part of its path is missing, or a text is not UTF-8."""
        fields = request.model_dump(mode="json", exclude_none=True, exclude_unset=route.method == "GET", by_alias=True)
        for name, value in fields.items():
            try:
                as_json(value)
            except PydanticSerializationError:
                raise InputError(f"the call cannot be sent: {name} has text that is not UTF-8.") from None
        out: dict[str, Any] = {"method": route.method, "url": route.filled(fields)}
        rest = {name: value for name, value in fields.items() if name not in route.inside}
        if route.method == "GET":
            out["params"] = {k: "true" if v is True else "false" if v is False else v for k, v in rest.items()}
        elif route.method != "DELETE":
            out["content"], out["headers"] = as_json(rest), {"Content-Type": JSON}
        silent_s = timeout_s if not route.stream else STREAM_S if route.media == EVENTS else None
        out["timeout"] = httpx.Timeout(timeout_s, read=silent_s)
        out["extensions"] = {"sni_hostname": self.trust.name} if self.trust.name else {}
        return out

    def _tls_cause(self, error: Exception) -> ThemisError | None:
        """Why TLS does not let the call through, if that is the cause; asks the arbiter's port by a handshake."""
        if isinstance(error, PlainRefused) or (self.trust.source and isinstance(error, httpx.TransportError)):
            return self._diagnosis.cause(self._where)
        return None

    def _reply(self, route: Route, reply: httpx.Response) -> Any:
        """The message of a reply that was read whole, or its bytes.

        Raises
        ------
        ThemisError : it is a refusal, or no reply of the API.
        """
        if reply.status_code not in (200, 201):
            raise self._refusal(reply)
        if not route.reply:
            return reply.content
        body = b'{"%s":%s}' % (route.part.encode(), reply.content) if route.part else reply.content
        try:
            return kind(route.reply).model_validate_json(body)
        except ValidationError:
            raise self._foreign() from None

    def _call(self, method: str, request: Message) -> Answer[Any]:
        """One call, retried while the arbiter is unavailable or busy."""
        route, retries = CALLS[method], Retries(self, method)
        while True:
            try:
                return self._reply(route, (yield self._asked(route, request, retries.left_s)))
            except (httpx.TransportError, ThemisError) as error:
                yield retries.failed(error, (yield partial(self._tls_cause, error)))

    def _foreign(self) -> ThemisError:
        return ThemisError(
            f"what answers at {self.address} is not a Themis service of this version; check the address."
        )

    def _refusal(self, reply: httpx.Response) -> ThemisError:
        """The error of a reply with another status than success."""
        try:
            sentence = str(json.loads(reply.content)["error"])
        except (ValueError, TypeError, KeyError):
            # A proxy without its service, or a service that ends, has no sentence of the API.
            return self._away() if reply.status_code >= 500 else self._foreign()
        return self._refused(reply.status_code, sentence, reply.headers.get("retry-after", ""))

    def _refused(self, status: int, sentence: str, wait: str = "") -> ThemisError:
        match status:
            case 400 if not self.trust.source and "speaks TLS" in sentence:
                return PlainRefused(sentence)
            case 503:
                return self._away(sentence)
            case 429 if wait.isdecimal() and int(wait) <= CALM_S:
                return Busy(sentence, float(wait))
            case 500:
                return ThemisError(f"the service at {self.address} failed: {sentence}")
        return InputError(sentence)

    def _away(self, sentence: str = "") -> Unavailable:
        """The arbiter does not answer; ``sentence`` : its own words."""
        if STUCK in sentence:
            return Unavailable(f"message of the service at {self.address}: {sentence}")
        own = (self.home / "journal.db").exists()
        what = f"start it with `themis up --data-dir {self.home}`" if own else "check that `themis up` runs there"
        return Unavailable(f"the service at {self.address} does not answer; {what}.")

    def _in_words(self, error: Exception, cause: ThemisError | None) -> ThemisError:
        """The error as a sentence; ``cause`` : of ``_tls_cause``."""
        if cause is not None:
            return cause if isinstance(cause, Untrusted) else Unavailable(str(cause))
        return error if isinstance(error, ThemisError) else self._away()

    def _sender(self, info: schema.InfoReply) -> Sender:
        """The sender of folders to this service."""
        from themis.client.sending import Sender

        if self._given:
            raise InputError(
                "files are sent with the login of a data directory, and this client has an address; `themis login` makes one."
            )
        return Sender(self.home, info.max_bundle)

    def _files_home(self) -> Path:
        """The data directory whose login fetches files over HTTP."""
        if self._given:
            raise InputError(
                "files are fetched with the login of a data directory, and this client has an address; `themis login` makes one."
            )
        return self.home


class Waiting:
    """A client whose methods wait for the answer."""


class Awaited:
    """A client whose methods are awaited."""


class Retries:
    """One call with one answer, retried while the arbiter is unavailable; every method of the API is idempotent."""

    def __init__(self, connection: Connection, method: str = "") -> None:
        self.connection, self.began, self.waiting, self.busy_s = connection, time.monotonic(), False, RETRY_S
        timeout_s, patience_s = max(connection.timeout_s, LONG_S.get(method, 0.0)), connection.patience_s
        self.end = self.began + timeout_s
        self.patient_s = connection.timeout_s if patience_s is None else min(patience_s, timeout_s)

    @property
    def left_s(self) -> float:
        """Timeout of the next attempt, in seconds."""
        return max(self.end - time.monotonic(), 0.1)

    def failed(self, error: Exception, cause: ThemisError | None) -> float:
        """Seconds after which the call may be tried again; raises otherwise. ``cause`` : why TLS fails, if it does."""
        at, now = self.connection, time.monotonic()
        if cause is not None and now > self.began + CERTAIN_S:
            raise cause
        late = isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout)
        known = isinstance(error, ThemisError) and not isinstance(error, (Unavailable, Busy, PlainRefused))
        # A busy service is asked less and less often, so that many callers do not keep it busy.
        self.busy_s = min(2 * self.busy_s, CALM_S) if isinstance(error, Busy) else RETRY_S
        wait_s = self.busy_s * random.uniform(0.5, 1.0) if isinstance(error, Busy) else RETRY_S
        if late or known or now + wait_s > self.began + self.patient_s:
            raise at._in_words(error, cause) from None
        if not self.waiting and not at._said_away:
            at.on_wait(f"{self._problem(error)} Retrying for up to {self.patient_s:g} s.")
        self.waiting = True
        return wait_s

    def _problem(self, error: Exception) -> str:
        if isinstance(error, Busy):
            return f"The service refuses the call: {error}"
        reason = str(error) if isinstance(error, Unavailable) and STUCK in str(error) else ""
        where = f"at {self.connection.address}"
        return f"M{reason[1:]}" if reason else f"The service {where} does not answer."


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

    def ended(self, found: schema.App) -> bool:
        """True if it has ended; raises StillActive after the timeout."""
        self.absence.over()
        if found.state in OVER:
            return True
        if time.monotonic() > self.end:
            raise StillActive(f"app {self.app} is still {found.state} after {self.timeout_s:g} s.")
        return False


class Stream(Generic[T]):
    """A reply that is read as it comes: messages, or pieces of bytes; raises the error that ends a stream of events."""

    def __init__(self, connection: Connection, method: str, asked: Message) -> None:
        self.connection, self.route, self.asked = connection, CALLS[method], asked
        self.events = self.route.media == EVENTS
        self.failed = False

    def request(self) -> dict[str, Any]:
        """Parameters of its request."""
        return self.connection._asked(self.route, self.asked, self.connection.timeout_s)

    def begin(self) -> None:
        """The stream begins, from the first byte."""

    def new(self, piece: Any) -> Iterable[T]:
        """Zero or one results in a line of events, or a piece of bytes."""
        if not self.events:
            return [piece]
        if piece == "event: error":
            self.failed = True
        if not piece.startswith("data: "):
            return []
        if self.failed:
            found = json.loads(piece[6:])
            raise self.connection._refused(found["status"], found["error"])
        return [cast(T, kind(self.route.reply).model_validate_json(piece[6:]))]

    def interrupted(self, error: Unavailable) -> None:
        """Return if the stream may begin again; raises the error otherwise."""
        raise error


class LogCopy(Stream[bytes]):
    """The output of a rank through interruptions: what was read before is skipped afterwards.

    An attempt's output is whole before the next one begins, so the number of bytes says the place.
    """

    def __init__(self, connection: Connection, asked: Message, *, follow: bool) -> None:
        super().__init__(connection, "Logs", asked)
        self.follow, self.absence = follow, Absence(connection)
        self.read = self.skip = 0

    def begin(self) -> None:
        self.skip = self.read

    def new(self, piece: Any) -> Iterable[bytes]:
        """The part of a piece that was not read before."""
        self.absence.over()
        known = min(self.skip, len(piece))
        self.skip -= known
        self.read += len(piece) - known
        return [piece[known:]] if known < len(piece) else []

    def interrupted(self, error: Unavailable) -> None:
        if not self.follow or self.connection._closed:
            raise error
        self.absence.goes_on(error)
