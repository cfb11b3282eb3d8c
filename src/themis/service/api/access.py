"""Authentication of callers: the token of the data directory, which may do everything, and users' tokens, each of which
acts as its user.

Tokens of users are shown once, when they are made; the data directory keeps their hashes, in ``users.json`` (mode 600).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from themis.client.home import write_private
from themis.errors import InputError, ThemisError, UnknownName
from themis.jobs.readers import NAMED

NAME = NAMED
"""Pattern for names of users, apps and jobs: characters that suit file names, tables and a shell."""
WORDS = "1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit"


class Forbidden(InputError):
    """The caller may not do this."""


class NoToken(ThemisError):
    """The caller has no valid token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user of a token; administrators may act on all users' apps, drain machines and add users.

    ``method`` : how the user signed in, ``token`` or ``oidc``. ``address`` : of the other end of the connection; empty within
    the process.
    """

    user: str
    admin: bool
    method: str = field(default="token", compare=False)
    address: str = field(default="", compare=False)

    def may_see(self, user: str, what: str) -> str:
        """The user whose accounts are shown in answer to a request for those of ``user``; empty: all users'.

        Raises
        ------
        Forbidden : another user's, and the caller is no administrator.
        """
        if self.admin:
            return user
        if user not in ("", self.user):
            raise Forbidden(
                f"Permission denied: only {user} and administrators may see the {what} of {user}, and you are {self.user}."
            )
        return self.user


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user with a token; ``added`` in seconds since 1970."""

    token: str
    """SHA-256 of it, so that a reader of the file cannot call."""
    admin: bool
    added: float


class SignedIn(Protocol):
    """Users with a temporary token, who signed in elsewhere."""

    def holder(self, given: str) -> Caller | None:
        """The caller whose token has this hash and is valid now, or None."""


class Access:
    """The accounts of a data directory; for any thread. ``signed_in`` : further holders of tokens, if any.

    Parameters
    ----------
    token : the data directory's own, of ``owner``, who runs the arbiter.

    Raises
    ------
    InputError : ``users.json`` cannot be read, or others than its owner can.
    """

    def __init__(self, home: Path, token: str, owner: str) -> None:
        self.path, self.owner = home / "users.json", Caller(user=owner, admin=True)
        self._own = hash_of(token)
        self._lock = threading.Lock()
        self._accounts = _read(self.path)
        self.signed_in: SignedIn | None = None

    def caller(self, authorization: str, address: str = "") -> Caller | None:
        """The caller that ``Bearer TOKEN`` authenticates, or None. ``address`` : where the call comes from."""
        kind, _, token = authorization.partition(" ")
        found = self.holder(hash_of(token)) if kind == "Bearer" else None
        return replace(found, address=address) if found is not None else None

    def holder(self, given: str) -> Caller | None:
        """The caller whose token has this hash, or None."""
        if hmac.compare_digest(given, self._own):
            return self.owner
        for name, account in list(self._accounts.items()):
            if hmac.compare_digest(given, account.token):
                return Caller(user=name, admin=account.admin)
        return self.signed_in.holder(given) if self.signed_in is not None else None

    def add(self, name: str, *, admin: bool) -> str:
        """A token for a user; one that the user had before is no longer valid."""
        if not NAME.fullmatch(name):
            raise InputError(f"the name of the user is {name[:100]!r}, expected {WORDS}.")
        if name == self.owner.user:
            raise InputError(f"{name!r} runs this service and has the token of its data directory; add other users.")
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._write({**self._accounts, name: Account(token=hash_of(token), admin=admin, added=time.time())})
        return token

    def remove(self, name: str) -> Account:
        """Remove a user's token; the user's apps continue."""
        with self._lock:
            if name not in self._accounts:
                raise UnknownName("user", name[:100], self._accounts)
            account = self._accounts[name]
            self._write({n: a for n, a in self._accounts.items() if n != name})
        return account

    def accounts(self) -> dict[str, Account]:
        """All users with a token, by name."""
        return dict(sorted(self._accounts.items()))

    def _write(self, accounts: dict[str, Account]) -> None:
        write_private(self.path, json.dumps({name: asdict(a) for name, a in sorted(accounts.items())}, indent=1))
        self._accounts = accounts


def _read(path: Path) -> dict[str, Account]:
    if not path.exists():
        return {}
    if mode := path.stat().st_mode & 0o077:
        raise InputError(f"{path} can be read or written by others (mode {mode:o} beyond its owner); chmod 600 {path}.")
    try:
        return {str(name): Account(**account) for name, account in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); restore it, or move it away and add the users again."
        ) from None


def hash_of(token: str) -> str:
    """SHA-256 of a token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
