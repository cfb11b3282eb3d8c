"""True if an address can be listened on, and who reaches it; known before the servers are imported."""

from __future__ import annotations

import errno
import ipaddress
import socket

from themis.client.home import joined
from themis.errors import InputError


def try_address(host: str, port: int, key: str) -> None:
    """Listen there for a moment: the servers themselves say less of why they cannot, or say it to standard error.

    ``key`` : the setting that the port is from.

    Raises
    ------
    InputError : it cannot be listened on; names the setting to change.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"host is {host!r}, which cannot be listened on: {why}. 127.0.0.1 is usual.") from None
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE:
                say = f"another program listens there. Choose another {key}, or any free one: --{key} 0"
            case errno.EACCES:
                say = f"it needs the rights of root. Choose another {key}, above 1023"
            case errno.EADDRNOTAVAIL:
                say = "no interface of this machine has that address. Choose another host; 127.0.0.1 is usual"
            case _:
                say = f"{error.strerror}. Choose another host or {key}"
        raise InputError(f"cannot listen on {joined(host, port)}: {say}.") from None


def is_loopback(host: str) -> bool:
    """True if only this machine can reach what listens there."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
