"""Messages to systemd about the state of the service (``sd_notify(3)``); without systemd, nothing happens."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

READY, STOPPING = "READY=1", "STOPPING=1"


def report_state(state: str) -> bool:
    """Send a state to the socket that ``$NOTIFY_SOCKET`` names; returns whether it was sent.

    A unit with ``Type=notify`` counts as started once the service answers, and other units may wait for that.
    """
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return False
    # A leading @ means the zero byte of an abstract address.
    address = f"\0{name[1:]}" if name.startswith("@") else name
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
        door.sendto(state.encode(), address)
        return True
    return False
