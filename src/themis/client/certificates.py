"""Certificates of a service as its clients see them: names, expiry, and the fingerprint to compare.

Standard library alone. A certificate is taken from a verified handshake, not from a file: what counts is what the service shows.
"""

from __future__ import annotations

import ipaddress
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from themis.client.trust import Where, host_and_port, locate
from themis.errors import InputError
from themis.trust.authority.contexts import client_context, connect

SOON_S = 14 * 86400.0
"""A certificate that ends sooner is reported; the service renews its own a month before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """One certificate.

    Attributes
    ----------
    of : ``service`` or ``authority``. ``names`` : host names and addresses that it is for; of an authority, its name.
    expires : seconds since the epoch. ``fingerprint`` : of an authority that is pinned, else empty.
    """

    of: str
    names: tuple[str, ...]
    expires: float
    fingerprint: str = ""

    @property
    def left_s(self) -> float:
        """Seconds until it expires."""
        return self.expires - time.time()


def certificates(home: Path) -> list[Certificate]:
    """Certificates that the service of a data directory presents, and the authority that verifies them; empty without
    TLS.

    Raises
    ------
    InputError : no service is known. OSError : it does not answer. TlsError : it is not accepted.
    """
    where = locate(home)
    if not where.trust.source:
        return []
    out = [_shown("service", where.address, where)]
    for authority in client_context(where.trust.pem).get_ca_certs() if where.trust.pem else ():
        subject = ", ".join(value for part in _parts(authority, "subject") for _, value in part)
        out.append(
            Certificate(of="authority", names=(subject,), expires=_end(authority), fingerprint=where.trust.fingerprint)
        )
    return out


def _shown(of: str, address: str, where: Where) -> Certificate:
    host, port = host_and_port(address)
    with connect(host, port, where.trust.context(), name=where.trust.name) as link:
        found = link.getpeercert()
    if not found:
        raise InputError(f"{address} showed no certificate.")
    return Certificate(of=of, names=tuple(_short(*one) for one in _parts(found, "subjectAltName")), expires=_end(found))


def _short(kind: str, value: str) -> str:
    """An address as it is usually written: ``::1``."""
    return str(ipaddress.ip_address(value)) if kind == "IP Address" else value


def _parts(found: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    return tuple(found.get(key, ()))


def _end(found: Mapping[str, Any]) -> float:
    return float(ssl.cert_time_to_seconds(str(found["notAfter"])))
