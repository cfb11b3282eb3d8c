"""Sign-in of the console: a token once, then a cookie. Kept in memory: a restart of the service ends all sessions.

A session keeps the hash of its token, not the token, and asks ``Access`` for its caller at each request, so that a revoked token
ends it. The cookie's value is new at each sign-in and replaced every ``ROTATE_S``; only its hash is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from themis.errors import counted
from themis.model.units import Seconds
from themis.service.api.access import Access, Caller, hash_of
from themis.service.api.submission import Limit

IDLE_S, LONGEST_S = 12 * 3600.0, 7 * 86400.0
"""Seconds without a request after which a session ends; and seconds after which it ends in any case."""
ROTATE_S, OVERLAP_S = 900.0, 60.0
"""Seconds after which a cookie is replaced; the old one still serves requests that are on their way for ``OVERLAP_S``
after the new one was used."""
MOST_SESSIONS, MOST_OF_TOKEN = 1000, 20
"""Sessions in total and of one token; for one more, the one that made no request for the longest ends."""
WRONG_OF_ADDRESS, WRONG_OF_ALL, WINDOW_S = 5, 60, 60.0
"""Wrong tokens within ``WINDOW_S``, from one address and from all, after which sign-in waits."""
MOST_ADDRESSES = 4096


@dataclass(slots=True)
class Session:
    """A browser that signed in; ``token`` : hash of the token. ``csrf`` : secret in its forms."""

    token: str
    began: Seconds
    seen: Seconds
    rotated: Seconds
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    keys: dict[str, Seconds] = field(default_factory=dict)
    """Hashes of its cookies, with the time at which each ends; the last one is the current."""


class Sessions:
    """All sessions of a service; for any thread. ``clock`` : seconds that only grow."""

    def __init__(self, access: Access, clock: Callable[[], Seconds] = time.monotonic) -> None:
        self.access, self._clock = access, clock
        self._by_key: OrderedDict[str, Session] = OrderedDict()
        self._wrong: OrderedDict[str, list[Seconds]] = OrderedDict()
        self._lock = threading.Lock()

    def sign_in(self, token: str, address: str) -> str | None:
        """A cookie for a token, or None where the token is wrong.

        Raises
        ------
        Limit : too many wrong tokens came from this address, or from all, within a minute.
        """
        now, given = self._clock(), hash_of(token)
        with self._lock:
            self._check_wrong(address, now)
            if self.access.holder(given) is None:
                self._wrong.setdefault(address, []).append(now)
                self._wrong.move_to_end(address)
                while len(self._wrong) > MOST_ADDRESSES:
                    self._wrong.popitem(last=False)
                return None
            return self._begin(given, now)

    def begin(self, token: str) -> str:
        """A cookie for a token that the service itself gave to a user who signed in with a provider."""
        with self._lock:
            return self._begin(hash_of(token), self._clock())

    def _begin(self, given: str, now: Seconds) -> str:
        self._prune(now, given)
        return self._new_key(Session(token=given, began=now, seen=now, rotated=now), now)

    def find(self, cookie: str) -> tuple[Session, Caller] | None:
        """The session of a cookie and its caller now, or None where it ended."""
        now, key = self._clock(), hash_of(cookie)
        with self._lock:
            session = self._by_key.get(key)
            if session is None or self._over(session, now) or now > session.keys.get(key, 0.0):
                return None
            session.seen = now
            if key == next(
                reversed(session.keys)
            ):  # the browser has the new cookie, which an answer on its way may lose
                for old in session.keys:
                    if old != key:
                        session.keys[old] = min(session.keys[old], now + OVERLAP_S)
        caller = self.access.holder(session.token)
        return None if caller is None else (session, caller)

    def rotate(self, session: Session) -> str | None:
        """A new cookie where the current one is old."""
        now = self._clock()
        with self._lock:
            if now - session.rotated < ROTATE_S:
                return None
            session.rotated = now
            return self._new_key(session, now)

    def sign_out(self, session: Session) -> None:
        """End a session."""
        with self._lock:
            self._drop(session)

    def alive(self, session: Session) -> bool:
        """True while the session is valid; asked by streams, which are one long request."""
        with self._lock:
            there = any(key in self._by_key for key in session.keys) and self._clock() - session.began < LONGEST_S
        return there and self.access.holder(session.token) is not None

    def _new_key(self, session: Session, now: Seconds) -> str:
        cookie = secrets.token_urlsafe(32)
        key = hash_of(cookie)
        session.keys[key] = session.began + LONGEST_S
        self._by_key[key] = session
        for old, end in list(session.keys.items()):
            if end < now:
                del session.keys[old]
                self._by_key.pop(old, None)
        return cookie

    def _check_wrong(self, address: str, now: Seconds) -> None:
        for name in list(self._wrong):
            self._wrong[name] = [at for at in self._wrong[name] if now - at < WINDOW_S]
            if not self._wrong[name]:
                del self._wrong[name]
        total = sum(len(times) for times in self._wrong.values())
        if len(self._wrong.get(address, ())) >= WRONG_OF_ADDRESS or total >= WRONG_OF_ALL:
            raise Limit(f"Too many wrong tokens; try again in {counted(round(WINDOW_S), 'second')}.")

    def _over(self, session: Session, now: Seconds) -> bool:
        return now - session.seen > IDLE_S or now - session.began > LONGEST_S

    def _prune(self, now: Seconds, token: str) -> None:
        """Make room for one more session of a token: a user who signs in again and again ends only own sessions."""
        for session in self._all():
            if self._over(session, now):
                self._drop(session)
        for most, group in (
            (MOST_OF_TOKEN, [s for s in self._all() if s.token == token]),
            (MOST_SESSIONS, self._all()),
        ):
            if len(group) >= most:
                self._drop(min(group, key=lambda s: s.seen))

    def _all(self) -> list[Session]:
        return list({id(s): s for s in self._by_key.values()}.values())

    def _drop(self, session: Session) -> None:
        for key in session.keys:
            self._by_key.pop(key, None)
        session.keys.clear()


def same(given: str, wanted: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())


def digest(data: bytes) -> str:
    """A short hash of a file, for its address."""
    return hashlib.sha256(data).hexdigest()[:12]
