"""An arbiter's home, as callers see it: where it listens, and the token that every call must carry."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from themis.errors import InputError

HOME = "THEMIS_HOME"


def default_home() -> Path:
    """``$THEMIS_HOME``, or ``~/.themis``."""
    return Path(os.environ.get(HOME, "") or Path.home() / ".themis").absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where an arbiter answers; ``http`` is empty where it has no status pages."""

    grpc: str
    http: str
    pid: int


def joined(host: str, port: int) -> str:
    """``HOST:PORT``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_endpoint(home: Path) -> Endpoint:
    """The arbiter of a home; InputError where none was started."""
    path = home / "endpoint.json"
    try:
        return Endpoint(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(f"no arbiter was started with the home {home}; run `themis up`, or set {HOME}.") from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}); start the arbiter anew.") from None


def write_private(path: Path, text: str) -> None:
    """Replace a file that its owner alone may read, in one step that also a loss of power does not cut in two."""
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_endpoint(home: Path, endpoint: Endpoint) -> None:
    """Say where the arbiter answers, in one step."""
    draft = home / ".endpoint.json"
    draft.write_text(json.dumps(asdict(endpoint)) + "\n")
    draft.replace(home / "endpoint.json")


def log_in(home: Path, address: str, token: str) -> None:
    """Keep address and token of somebody else's arbiter in a home of one's own.

    Raises
    ------
    InputError : an arbiter of one's own has that home.
    """
    if (home / "journal.db").exists():
        raise InputError(f"{home} is the home of an arbiter of your own; choose another with --home, or {HOME}.")
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    write_private(home / "token", token + "\n")
    write_endpoint(home, Endpoint(grpc=address, http="", pid=0))


def read_token(home: Path) -> str:
    """The home's token.

    Raises
    ------
    InputError : there is none, others could read it, or it is empty.
    """
    path = home / "token"
    try:
        mode, token = path.stat().st_mode, path.read_text().strip()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; only who may read it may use the arbiter.") from None
    if mode & 0o077:
        raise InputError(f"{path} has mode {mode & 0o777:o}, so others can use it; make a new one, with mode 600.")
    if not token:
        # With an empty token of its own an arbiter would take calls of anybody who sends none.
        raise InputError(f"{path} is empty; remove it, and `themis up` or `themis login` makes a new one.")
    return token


def make_token(home: Path) -> str:
    """The home's token, made where there is none."""
    path = home / "token"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32) + "\n")
    return read_token(home)


def owner_of(home: Path) -> str:
    """The id of a home's arbiter, drawn once and kept there: the next arbiter takes over its nodes, others leave them alone.

    Machine and path are in it for people who read of it; homes of equal paths on two machines are told apart by the rest.

    Raises
    ------
    InputError : the file cannot be read or made, or has nothing in it.
    """
    path = home / "arbiter.id"
    try:
        if not path.exists():
            write_private(path, f"{socket.gethostname()}:{home}:{secrets.token_hex(16)}\n")
        owner = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}, the id of this home's arbiter, cannot be read or made: {error}.") from None
    if not owner:
        raise InputError(f"{path}, the id of this home's arbiter, is empty; remove it, and a new one is drawn.")
    return owner
