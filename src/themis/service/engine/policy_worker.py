"""The process that runs the policy: tasks in on standard input, replies out (``solving``).

Its parent is the only one who writes to it, so what it reads is trusted. It ends when its input does, that is at the
latest when its parent is gone, and leaves Ctrl-C to the parent.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from dataclasses import replace

from themis.model.snapshot import Snapshot
from themis.policies.api import Workbench
from themis.service.engine.solving import Task, decide, send


def main() -> None:
    """Answer tasks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a policy prints must not get between the replies.
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        policy, seconds = pickle.load(source)
        bench, snapshot = Workbench(seconds=seconds), None
        while True:
            task: Task = pickle.load(source)
            snapshot = task.snapshot or snapshot
            assert isinstance(snapshot, Snapshot)
            given = snapshot if task.bids is None else replace(snapshot, bids=task.bids)
            send(sink, decide(policy, given, task.version, bench))
    except (EOFError, BrokenPipeError):
        pass


if __name__ == "__main__":
    main()
