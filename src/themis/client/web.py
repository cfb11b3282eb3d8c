"""A connection to a service's HTTP API, over TLS where the service speaks it, with the standard library alone."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path


def connection_to(home: Path, address: str, timeout_s: float) -> HTTPConnection:
    """Connect to ``http://HOST:PORT`` or ``https://HOST:PORT``, verified by the data directory ``home``.

    Raises
    ------
    Untrusted, InputError : what it is verified against cannot be read.
    """
    host = address.rpartition("://")[2].rstrip("/")
    if not address.startswith("https://"):
        return HTTPConnection(host, timeout=timeout_s)
    from themis.client.trust import locate
    from themis.trust.authority.contexts import client_context

    trust = locate(home).trust
    context = client_context(trust.pem)

    class Verified(HTTPSConnection):
        def connect(self) -> None:
            HTTPConnection.connect(self)
            self.sock = context.wrap_socket(self.sock, server_hostname=trust.name or self.host)

    return Verified(host, timeout=timeout_s, context=context)
