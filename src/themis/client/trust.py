"""Authentication of the service by its client: use of TLS, and the CA certificate for verification.

Standard library alone, for quick verbs.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from themis.client.home import Endpoint, read_endpoint
from themis.errors import InputError, ThemisError

if TYPE_CHECKING:
    import ssl

CACERT = "THEMIS_CACERT"
"""Environment variable: a file with the certificate to verify against, or ``system``; wins over the data directory."""
SYSTEM = "system"
"""The authorities that the system trusts."""
PROBE_S = 2.0
"""Seconds to find out why a connection fails."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Authorities and name that a client verifies the service against.

    Attributes
    ----------
    source : ``system``, the file that ``pem`` is from, or empty for a connection without TLS.
    pem : trusted authorities or certificates; empty for those of the system.
    name : name in the certificate of the service, if it differs from the host.
    """

    source: str = ""
    pem: str = ""
    name: str = ""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the pinned authority; empty if none is pinned."""
        from themis.trust.authority.contexts import fingerprint_of

        return fingerprint_of(self.pem) if self.pem else ""

    def context(self) -> ssl.SSLContext:
        """TLS context for connections with the standard library."""
        from themis.trust.authority.contexts import client_context

        return client_context(self.pem)


@dataclass(frozen=True, slots=True)
class Where:
    """A service's address ``HOST:PORT``, and its clients' trust settings."""

    address: str
    trust: Trust


def locate(home: Path, address: str = "", cacert: str | Path | None = None) -> Where:
    """Find the address of a service.

    Parameters
    ----------
    home : the data directory, which says so, unless an ``address`` is given: ``HOST:PORT``, or with ``https://`` or ``http://``.
    cacert : a file, or ``system``; None for the one that ``$THEMIS_CACERT`` names, else the data directory's.

    An address without a scheme that is not the data directory's stands for TLS, unless it is of this machine's loopback.

    Raises
    ------
    InputError : there is no service, or the file cannot be read.
    """
    wanted = str(cacert) if cacert is not None else os.environ.get(CACERT, "")
    if not address:
        return _stored(home, read_endpoint(home), wanted)
    scheme, plain = split(address)
    if scheme == "http":
        return Where(plain, Trust())
    own = _endpoint(home)
    if own is not None and own.address == plain and not (scheme and not own.cacert):
        return _stored(home, own, wanted)
    if scheme or cacert is not None or not is_local(plain):
        return Where(plain, _trust(home, wanted or SYSTEM))
    return Where(plain, Trust())


def split(address: str) -> tuple[str, str]:
    """Scheme (``https``, ``http`` or empty) and ``HOST:PORT`` of an address."""
    scheme, found, rest = address.partition("://")
    if not found:
        return "", address
    if scheme not in ("https", "http"):
        raise InputError(f"address is {address!r}, expected HOST:PORT, or https://HOST:PORT.")
    return scheme, rest.rstrip("/")


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of ``HOST:PORT``; InputError for other text."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"address is {address!r}, expected HOST:PORT, such as gpu1.example.org:7433.")
    return host, int(port)


def is_local(address: str) -> bool:
    """True if ``HOST:PORT`` names this machine's loopback; nothing is looked up."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return host in ("localhost", "::1") or host.startswith("127.")


def _endpoint(home: Path) -> Endpoint | None:
    try:
        return read_endpoint(home)
    except InputError:
        return None


def _stored(home: Path, own: Endpoint, wanted: str) -> Where:
    """The endpoint with the data directory's CA certificate; ``wanted`` : another certificate to use instead."""
    return Where(own.address, _trust(home, (wanted or own.cacert) if own.cacert else "", own.name))


def _trust(home: Path, cacert: str, name: str = "") -> Trust:
    if not cacert:
        return Trust()
    if cacert == SYSTEM:
        return Trust(SYSTEM, "", name)
    path = home / cacert if not Path(cacert).is_absolute() else Path(cacert)
    return Trust(str(path), read_cacert(path), name)


def read_cacert(path: Path) -> str:
    """A file of certificates to verify against; InputError if it cannot be read, or has none."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InputError(
            f"cannot read {path}, the certificate to verify the service against: {why}; log in again, or set {CACERT}."
        ) from None
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise InputError(f"{path} holds no certificate in PEM form, as `-----BEGIN CERTIFICATE-----` begins it.")
    return text


class Diagnosis:
    """Why connections to a service fail, as far as TLS has to do with it; asks by a handshake, seldom."""

    def __init__(self) -> None:
        self._asked = -math.inf
        self._where: Where | None = None
        self._found: ThemisError | None = None

    def cause(self, where: Where) -> ThemisError | None:
        """The reason as an error in one sentence; None if it is not TLS."""
        if where != self._where or time.monotonic() - self._asked > PROBE_S:
            self._found = _probe(where)
            self._where, self._asked = where, time.monotonic()
        return self._found


def _probe(where: Where) -> ThemisError | None:
    from themis.trust.authority.contexts import TlsError, client_context, connect

    try:
        host, port = host_and_port(where.address)
        context = where.trust.context() if where.trust.source else client_context(verify=False)
        connect(host, port, context, name=where.trust.name, timeout_s=PROBE_S).close()
    except (OSError, InputError):
        return None
    except TlsError as error:
        return error if where.trust.source else None
    if where.trust.source:
        return None
    return TlsError(
        f"{where.address} speaks TLS, and this login does not: log in again with `themis login {where.address}`."
    )
