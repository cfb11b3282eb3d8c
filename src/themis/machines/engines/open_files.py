"""Limit of open files: above a login's usual 1,024. Jobs keep 1,024, because some programs cannot have more."""

from __future__ import annotations

import contextlib
import resource

ENOUGH = 8192
"""Files of a service: connections of callers and of machines."""
_given: list[tuple[int, int]] = []
"""The limit that the service was started with, while it has another one."""


def take_more(most: int = ENOUGH) -> None:
    """Raise this process's limit of open files to this many, or to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if not _given and soft != resource.RLIM_INFINITY and soft < wanted:
        _given.append((soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def as_given(pid: int) -> None:
    """Let a process that this one has just started, and what that starts, open as many files as this one before ``take_more``."""
    if _given:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _given[0])
