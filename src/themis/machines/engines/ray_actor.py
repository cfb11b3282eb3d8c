"""Relay that Ray runs on each node, in a worker that is no nicer than the raylet where possible."""

from __future__ import annotations

import contextlib
import os

from themis.machines.agent.relay import Relay

CHOSEN = "RAY_worker_niceness"
"""Ray's variable; where it is set, workers have the niceness that the user who started Ray chose."""


class NodeActor(Relay):
    """A relay in a worker of Ray, whose niceness by default exceeds all else on the node; children inherit it.

    Whose jobs hold all GPUs of a node should not come last there, and a relay that gets no processor loses its node's lease.
    Only those who may (root, CAP_SYS_NICE, RLIMIT_NICE) can take niceness back; ``themis doctor`` reports the others.
    """

    def __init__(self, node: str, root: str, owner: str, gpus: int = 0, options: tuple[str, ...] = ()) -> None:
        if CHOSEN not in os.environ:
            no_nicer_than(os.getppid())
        super().__init__(node, root, owner, gpus, options)


def no_nicer_than(pid: int) -> int:
    """Lower this process's niceness to that of another, if permitted; returns the result."""
    with contextlib.suppress(OSError):
        theirs = os.getpriority(os.PRIO_PROCESS, pid)
        # On Linux each thread has its own.
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(ProcessLookupError):  # the process has ended in the meantime
                if os.getpriority(os.PRIO_PROCESS, thread) > theirs:
                    os.setpriority(os.PRIO_PROCESS, thread, theirs)
    return os.getpriority(os.PRIO_PROCESS, 0)
