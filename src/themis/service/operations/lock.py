"""One service for a data directory: the lock that it holds while it runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from themis.errors import InputError
from themis.machines.agent.system import UMASK


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Lock a data directory, which is made where it does not exist; nothing in it is changed before the lock is held.

    Other users may not read or write it. Whether they may pass through it, to folders of their jobs, stays as it was: jobs that
    an earlier service left may run there. The process has the umask of services from then on.

    Raises
    ------
    InputError : a service runs with this data directory.
    """
    os.umask(UMASK)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(home / "arbiter.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"a service already runs with the data directory {home}; use another one, or stop that service."
            ) from None
        home.chmod(home.stat().st_mode & 0o711 | 0o700)
        yield
    finally:
        os.close(lock)
