"""True if a service encrypts its APIs, with which certificate, and where its clients find it."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from themis.client.home import Endpoint, joined
from themis.service.api.listening import is_loopback
from themis.service.engine.config import Config
from themis.trust.authority.contexts import ServerFiles
from themis.trust.authority.names import names_of

if TYPE_CHECKING:
    from themis.service.api.certificate_calls import Certificates

FOLDER = "authority"
"""Name in the data directory."""
PLAIN = (
    "%s can be reached from other machines, and tls is off: everyone on the network can read tokens and programs. Remove tls from "
    "the settings, or listen on 127.0.0.1."
)


def encrypts(config: Config) -> bool:
    """True if the API uses TLS; ``auto`` means TLS unless the host is loopback."""
    return config.tls == "on" or (config.tls == "auto" and not is_loopback(config.host))


def certificates(home: Path, config: Config) -> Certificates | None:
    """The certificate of a service, renewed from here on; None if it does not encrypt.

    Raises
    ------
    InputError : there is no usable certificate.
    """
    if not encrypts(config):
        return None
    from themis.service.api.certificate_calls import Certificates

    own = None
    if config.tls_certificate:
        own = ServerFiles(Path(config.tls_certificate), Path(config.tls_key or config.tls_certificate))
    more = [name for name in config.tls_names.split(", ") if name]
    return Certificates(home / FOLDER, names_of(config.host, more), own)


def endpoint(home: Path, config: Config, port: int, tls: Certificates | None, pid: int) -> Endpoint:
    """Addresses for the clients of this data directory, and for others."""
    host = config.host
    wild = _is_wildcard(host)
    near = ("::1" if ":" in host else "127.0.0.1") if wild and tls else host
    public = "" if is_loopback(host) else joined(_public(host, tls), port)
    cacert = name = ""
    if tls is not None:
        cacert = str(tls.cacert.relative_to(home) if tls.cacert.is_relative_to(home) else tls.cacert)
        name = "" if near in tls.facts.names else _first(tls.facts.names)
    return Endpoint(
        http=f"http{'s' * bool(tls)}://{joined(near, port)}",
        pid=pid,
        cacert=cacert,
        name=name,
        public=public if public != joined(near, port) else "",
    )


def _public(host: str, tls: Certificates | None) -> str:
    """The host as other machines know it: what the certificate says, or this machine's name."""
    if tls is not None and tls.authority is None:
        return host if host in tls.facts.names else _first(tls.facts.names)
    return socket.getfqdn() if _is_wildcard(host) else host


def _first(names: tuple[str, ...]) -> str:
    """A name that a connection may request; for a wildcard, one that it covers."""
    return names[0].replace("*", "themis", 1)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
