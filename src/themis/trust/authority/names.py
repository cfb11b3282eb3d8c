"""Names and addresses that a certificate of this machine's service is for."""

from __future__ import annotations

import ipaddress
import itertools
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

EVERYWHERE = ("0.0.0.0", "::", "")
"""Addresses of a service that listens on all interfaces."""


def names_of(host: str, more: Sequence[str]) -> Callable[[], tuple[str, ...]]:
    """Names and addresses that a service which listens on ``host`` is reached by, and ``more``; looked up at each call.

    Those of this machine's loopback are among them, for tunnels.
    """
    own = {socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1", "::1"}
    fixed = {name.lower() for name in own if _nameable(name)} | set(more)

    def names() -> tuple[str, ...]:
        at = addresses() if host in EVERYWHERE else {host}
        return tuple(sorted(fixed | at))

    return names


def _nameable(name: str) -> bool:
    return bool(name) and name.isascii() and all(part and len(part) < 64 for part in name.split("."))


def addresses() -> set[str]:
    """IP addresses of this machine's interfaces, as the kernel lists them; link-local ones, which need an interface, left out."""
    found: set[str] = set()
    lines = Path("/proc/net/fib_trie").read_text().splitlines() if Path("/proc/net/fib_trie").exists() else []
    for before, line in itertools.pairwise(lines):
        if "/32 host LOCAL" in line:
            found.add(before.split()[-1])
    if Path("/proc/net/if_inet6").exists():
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found.add(str(ipaddress.IPv6Address(int(line.split()[0], 16))))
    return {one for one in found if not ipaddress.ip_address(one).is_link_local}
