"""An arbiter's data directory, as its clients see it: its address, and the token that authenticates calls."""

from __future__ import annotations

import getpass
import json
import os
from pathlib import Path
from typing import NamedTuple

from themis.data_dir import DATA_DIR
from themis.errors import InputError


def user_name() -> str:
    """The system's name of the current user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid{os.getuid()}"


class Endpoint(NamedTuple):
    """Addresses of an arbiter.

    Attributes
    ----------
    http : of the API and the console, ``http://HOST:PORT`` or ``https://HOST:PORT``.
    cacert : certificate that clients verify the arbiter against, a file in the data directory or an absolute path; ``system`` for
        the system's authorities, empty for connections without TLS.
    name : that the arbiter's certificate has, if not the host's of ``http``.
    public : ``HOST:PORT`` as other machines may reach it.
    """

    http: str
    pid: int
    cacert: str = ""
    name: str = ""
    public: str = ""

    @property
    def address(self) -> str:
        """``HOST:PORT``."""
        return self.http.rpartition("://")[2]


def joined(host: str, port: int) -> str:
    """``HOST:PORT``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_endpoint(home: Path) -> Endpoint:
    """The address of a data directory's service; InputError if none was started."""
    path = home / "endpoint.json"
    try:
        return Endpoint(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(
            f"no service was started with the data directory {home}; run `themis up`, `themis login HOST:PORT` for a "
            f"service elsewhere, or set {DATA_DIR}."
        ) from None
    except NotADirectoryError:
        raise InputError(
            f"{home} is a file, expected a data directory; choose one with --data-dir, or with {DATA_DIR}."
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"cannot read {path} ({error}); restart the service, or log in again.") from None


def public_address(home: Path, address: str) -> str:
    """``HOST:PORT`` for users on other machines: what a service in this data directory says, else ``address``."""
    own = read_endpoint(home)
    return own.public if own.public and own.address == address else address


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, also across a power failure; only its owner may read it."""
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
    """Write the arbiter's addresses, atomically."""
    draft = home / ".endpoint.json"
    known = {key: value for key, value in endpoint._asdict().items() if value or key == "pid"}
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(known) + "\n")
        os.fchmod(
            file.fileno(), 0o644
        )  # an address is no secret, and other accounts' clients may have tokens of their own
    draft.replace(home / "endpoint.json")


def check_log_in(home: Path) -> None:
    """Refuse, with InputError, the data directory of an arbiter as the place for a login elsewhere."""
    if (home / "journal.db").exists():
        raise InputError(
            f"{home} is the data directory of your own service; choose another one with --data-dir, or with {DATA_DIR}."
        )


def log_in(home: Path, address: str, token: str, cacert: str = "", pem: str = "") -> None:
    """Store the address and token of another user's arbiter in a data directory.

    cacert : ``system``, or a name in the data directory for the certificate ``pem`` that the arbiter is verified against; empty
    for connections without TLS.

    Raises
    ------
    InputError : the directory belongs to an arbiter.
    """
    check_log_in(home)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    home.chmod(0o700)
    write_private(home / "token", token + "\n")
    if pem:
        write_private(home / cacert, pem)
    write_endpoint(home, Endpoint(http=f"http{'s' * bool(cacert)}://{address}", pid=0, cacert=cacert))


def read_token(home: Path) -> str:
    """The token in a data directory.

    Raises
    ------
    InputError : it is missing, empty, or readable by other users.
    """
    path = home / "token"
    try:
        mode, token = path.stat().st_mode, path.read_text().strip()
    except OSError as error:
        raise InputError(f"cannot read the token {path}: {error.strerror}.") from None
    if mode & 0o077:
        raise InputError(
            f"{path} has mode {mode & 0o777:o}, so other users can access it; create a new token, with mode 600."
        )
    if not token:
        # With an empty token, an arbiter would accept calls without one.
        raise InputError(f"{path} is empty; remove it, and `themis up` or `themis login` creates a new one.")
    return token


def make_token(home: Path) -> str:
    """The token in a data directory; creates it if it is missing."""
    import secrets

    path = home / "token"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32) + "\n")
    return read_token(home)


def owner_of(home: Path) -> str:
    """The id of the arbiter of a data directory, created once: the next arbiter with this id takes over its nodes.

    It has the machine and the path, for people, and a random part, which separates equal paths on two machines.

    Raises
    ------
    InputError : the file is empty, or cannot be read or created.
    """
    import secrets
    import socket

    path = home / "arbiter.id"
    try:
        if not path.exists():
            write_private(path, f"{socket.gethostname()}:{home}:{secrets.token_hex(16)}\n")
        owner = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read or create {path}, the id of the service: {error}.") from None
    if not owner:
        raise InputError(f"{path}, the id of the service, is empty; remove it, and `themis up` creates a new one.")
    return owner
