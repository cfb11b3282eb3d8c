"""Tokens of people who signed in with OIDC: each has an end, and several of one user are valid together.

``sign-ins.json`` (mode 600) has their hashes, never the tokens. A refresh token of the provider is sealed with the token itself, so
that a reader of the file can use neither. The first account of the provider that takes a name keeps it: a name there may be changed
by its user, the subject may not.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from themis.client.home import write_private
from themis.errors import InputError
from themis.service.api.access import Caller, hash_of
from themis.trust.oidc.seal import Broken, key_of, seal, unseal
from themis.trust.oidc.tokens import Identity, SignInRefused

MOST_OF_USER, MOST = 20, 10_000
"""Valid sign-ins of one user, and of all; for one more, the oldest ends."""
RENEWABLE_S = 30 * 86400.0
"""Seconds after its end in which a sign-in may be renewed, as far as the provider agrees."""
METHOD = "oidc"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """A token. Times in seconds since 1970. ``refresh`` : the provider's refresh token, sealed; empty for browsers."""

    token: str
    user: str
    subject: str
    issuer: str
    admin: bool
    began: float
    ends: float
    refresh: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Owner of a user name at the provider. ``group`` : group of the settings that a sign-in gave the user; empty:
    none."""

    issuer: str
    subject: str
    group: str = ""
    since: float = 0.0


class SignIns:
    """All of one issuer; for any thread. ``clock`` : seconds since 1970.

    Raises
    ------
    InputError : the file cannot be read, or others than its owner can.
    """

    def __init__(self, home: Path, issuer: str, session_s: float, clock: Callable[[], float] = time.time) -> None:
        self.path, self.issuer, self.session_s, self.clock = home / "sign-ins.json", issuer, session_s, clock
        self._lock = threading.Lock()
        self._names, self._tokens = _read(self.path)

    def holder(self, given: str) -> Caller | None:
        """The caller whose token has this hash and is valid now, or None."""
        found = self._tokens.get(given)
        if found is None or found.ends <= self.clock() or found.issuer != self.issuer:
            return None
        return Caller(user=found.user, admin=found.admin, method=METHOD)

    def begin(self, who: Identity, *, refresh: str = "") -> tuple[str, float]:
        """A token for a user, and its end.

        Raises
        ------
        SignInRefused : the name belongs to another account of the provider.
        """
        token, now = secrets.token_urlsafe(32), self.clock()
        sealed = seal(key_of(token, "refresh"), "refresh", {"refresh": refresh}) if refresh else ""
        entry = SignIn(
            token=hash_of(token),
            user=who.user,
            subject=who.subject,
            issuer=who.issuer,
            admin=who.admin,
            began=now,
            ends=now + self.session_s,
            refresh=sealed,
        )
        with self._lock:
            self._check_name(who)
            kept = self._pruned(now, who.user)
            names = dict(self._names)
            names.setdefault(who.user, Owner(issuer=who.issuer, subject=who.subject, since=now))
            self._write(names, {**kept, entry.token: entry})
        return token, entry.ends

    def _check_name(self, who: Identity) -> None:
        owner = self._names.get(who.user)
        if owner is not None and (owner.issuer, owner.subject) != (who.issuer, who.subject):
            raise SignInRefused(
                f"the name {who.user} belongs to another account of the provider; an administrator frees it with "
                f"`themis user remove {who.user}`."
            )

    def _pruned(self, now: float, user: str) -> dict[str, SignIn]:
        """Sign-ins that may still be used or renewed, with room for one more of the user."""
        kept = [s for s in self._tokens.values() if now < s.ends + (RENEWABLE_S if s.refresh else 0.0)]
        own = sorted((s for s in kept if s.user == user), key=lambda s: s.began)[: -(MOST_OF_USER - 1)]
        gone = {s.token for s in own}
        kept = [s for s in kept if s.token not in gone]
        return {s.token: s for s in sorted(kept, key=lambda s: s.began)[-(MOST - 1) :]}

    def refresh_of(self, token: str) -> tuple[SignIn, str]:
        """A sign-in, valid or just ended, and the provider's refresh token of it.

        Raises
        ------
        SignInRefused : it cannot be renewed.
        """
        found = self._tokens.get(hash_of(token))
        there = found is not None and found.issuer == self.issuer and self.clock() < found.ends + RENEWABLE_S
        if found is None or not there or not found.refresh:
            raise SignInRefused("this sign-in cannot be renewed; sign in again.")
        try:
            return found, str(unseal(key_of(token, "refresh"), "refresh", found.refresh)["refresh"])
        except (Broken, KeyError):
            raise SignInRefused("this sign-in cannot be renewed; sign in again.") from None

    def end(self, given: str) -> None:
        """End the sign-in whose token has this hash, if there is one."""
        with self._lock:
            if given in self._tokens:
                self._write(self._names, {t: s for t, s in self._tokens.items() if t != given})

    def remove(self, user: str) -> SignIn | None:
        """End all sign-ins of a user and free the name; the newest one, or None if the user never signed in."""
        with self._lock:
            if user not in self._names:
                return None
            newest = max((s for s in self._tokens.values() if s.user == user), key=lambda s: s.began, default=None)
            since = self._names[user]
            self._write(
                {n: o for n, o in self._names.items() if n != user},
                {t: s for t, s in self._tokens.items() if s.user != user},
            )
        return newest or SignIn(
            token="",
            user=user,
            subject=since.subject,
            issuer=since.issuer,
            admin=False,
            began=since.since,
            ends=since.since,
        )

    def group(self, user: str) -> str:
        """The group that sign-ins gave a user, or empty."""
        owner = self._names.get(user)
        return owner.group if owner is not None else ""

    def set_group(self, user: str, group: str) -> None:
        """Remember it."""
        with self._lock:
            if user in self._names and self._names[user].group != group:
                self._write({**self._names, user: replace(self._names[user], group=group)}, self._tokens)

    def newest(self) -> dict[str, SignIn]:
        """The newest valid sign-in of each user."""
        now = self.clock()
        valid = (s for s in list(self._tokens.values()) if s.ends > now and s.issuer == self.issuer)
        return {s.user: s for s in sorted(valid, key=lambda s: s.began)}

    def _write(self, names: dict[str, Owner], tokens: dict[str, SignIn]) -> None:
        data = {
            "names": {n: asdict(o) for n, o in sorted(names.items())},
            "tokens": [asdict(s) for s in tokens.values()],
        }
        write_private(self.path, json.dumps(data, indent=1))
        self._names, self._tokens = names, tokens


def _read(path: Path) -> tuple[dict[str, Owner], dict[str, SignIn]]:
    if not path.exists():
        return {}, {}
    if mode := path.stat().st_mode & 0o077:
        raise InputError(f"{path} can be read or written by others (mode {mode:o} beyond its owner); chmod 600 {path}.")
    try:
        data = json.loads(path.read_text())
        entries = [SignIn(**entry) for entry in data["tokens"]]
        return {str(n): Owner(**o) for n, o in data["names"].items()}, {entry.token: entry for entry in entries}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); restore it, or move it away: people then sign in again."
        ) from None
