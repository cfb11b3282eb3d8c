"""Old logs and checkpoints: ranks' logs of finished apps are deleted after some time and, where asked for, their checkpoints.

    DATA_DIR/run/nodes/NODE/logs/jobJ-attemptA    DATA_DIR/run/checkpoints/appA

Files that jobs were sent with (``DATA_DIR/bundles``) and copies of their checkpoints and outputs (``DATA_DIR/copies``) are deleted
when they were not used for some time. Nothing else is touched:
not what a running app has, nor a checkpoint folder that a job named itself, nor other machines' disks. What lies there belongs to
users, so no link is followed, neither on the way nor below.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from themis.core.state import State
from themis.machines.agent.removal import remove
from themis.model.units import Seconds
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Config
from themis.service.engine.journal import Journal

EVERY_S: Seconds = 3600.0
"""Seconds between two sweeps."""

_LOGS = re.compile(r"job(\d{1,18})-attempt\d+")
_CHECKPOINTS = re.compile(r"app(\d{1,18})")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

log = logging.getLogger("themis.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Jobs with expired logs, and apps with expired checkpoints."""

    jobs: frozenset[int]
    apps: frozenset[int]


def due(state: State, journal: Journal, config: Config, now: Seconds) -> Due:
    """Jobs and apps whose files expire by ``now`` under the settings; called in the arbiter's thread."""
    logs, checkpoints = config.logs_keep_s, config.checkpoints_keep_s
    oldest = now - min(logs, logs if checkpoints is None else checkpoints)
    stopping = {int(state.jobs.app[job]) for job in state.occupied}
    over = [
        (app, ended, outcome)
        for app, ended, outcome in journal.over(oldest)
        if app not in stopping and not state.apps.active[app]
    ]
    return Due(
        jobs=frozenset(j for app, ended, _ in over if ended <= now - logs for j in state.app_jobs(app).tolist()),
        apps=frozenset(
            app
            for app, ended, outcome in over
            if checkpoints is not None and ended <= now - checkpoints and outcome == "completed"
        ),
    )


@dataclass(slots=True)
class Sweeper:
    """Deletes what has expired, in a separate thread each time: large checkpoints may take long.

    Attributes
    ----------
    find : called in the arbiter's thread with the time; returns what the separate one is to do. ``at`` : when to begin next.
    """

    find: Callable[[Seconds], Callable[[], object]]
    at: Seconds
    thread: threading.Thread = field(default_factory=threading.Thread)

    def run(self, now: Seconds) -> None:
        """Begin if it is time."""
        if now < self.at or self.thread.is_alive():
            return
        self.at = now + EVERY_S
        self.thread = threading.Thread(target=self.find(now), name="themis-sweep", daemon=True)
        self.thread.start()


def keep_swept(arbiter: Arbiter) -> Sweeper:
    """Let an arbiter that was not started yet delete old logs and checkpoints, below ``run`` in its data directory, and files that
    jobs were sent with and copies of finished apps that were not used for long; returns the first's sweeper.
    """
    root = arbiter.journal.path.parent / "run"

    def trim() -> None:
        arbiter.bundles.trim(arbiter.config.bundles_keep_s)
        if arbiter.copies is not None:
            arbiter.copies.trim(arbiter.config.copies_keep_s)

    sweeper = Sweeper(
        lambda now: partial(sweep, root, due(arbiter.state, arbiter.journal, arbiter.config, now)),
        arbiter.now() + EVERY_S,
    )
    arbiter.housekeeping.chores += [sweeper.run, Sweeper(lambda now: trim, sweeper.at).run]
    return sweeper


def sweep(root: Path, gone: Due) -> int:
    """Delete these logs and checkpoints below an executor's folder; returns the number of folders deleted."""
    count = 0
    with contextlib.suppress(OSError), _opened(str(root)) as run:
        with contextlib.suppress(OSError), _opened("nodes", run) as nodes:
            for node in os.listdir(nodes):
                with contextlib.suppress(OSError), _opened(node, nodes) as own, _opened("logs", own) as logs:
                    count += _drop(logs, _LOGS, gone.jobs)
        with contextlib.suppress(OSError), _opened("checkpoints", run) as checkpoints:
            count += _drop(checkpoints, _CHECKPOINTS, gone.apps)
    if count:
        log.info("deleted %d folders of logs and checkpoints of finished apps", count)
    return count


@contextlib.contextmanager
def _opened(name: str, folder: int | None = None) -> Iterator[int]:
    """A folder that is no link, by its descriptor: what others rename meanwhile leads nowhere else."""
    found = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield found
    finally:
        os.close(found)


def _drop(folder: int, pattern: re.Pattern[str], numbers: frozenset[int]) -> int:
    count = 0
    for name in os.listdir(folder):
        match = pattern.fullmatch(name)
        if match and int(match[1]) in numbers:
            remove(name, dir_fd=folder)
            if name in os.listdir(folder):
                log.warning("%s is too old to be kept, but not all of it can be deleted", name)
            count += 1
    return count
