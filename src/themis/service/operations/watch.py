"""Supervision, by ssh, of the agents on a service's hosts."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from themis.errors import ThemisError
from themis.service.operations.fleet_hosts import TOGETHER, Fleet, recent
from themis.service.operations.ssh_hosts import Host

log = logging.getLogger("themis.service")

LOOK_S = 10.0
"""Between two looks for machines that are silent."""
FIRST_AGAIN_S, MOST_AGAIN_S = 30.0, 600.0
"""Between two attempts to bring back a host; doubled each time."""


class Watch:
    """Brings the hosts of a service when it starts, and those that are silent later. ``stop`` ends it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.ending = fleet, threading.Event()
        self.pool = ThreadPoolExecutor(TOGETHER, thread_name_prefix="themis-fleet")
        self.waits: dict[str, tuple[float, float]] = {}
        """For each host: the earliest time of the next attempt (monotonic), and the wait after it, in seconds."""
        self.busy: set[str] = set()
        self.said: dict[str, str] = {}
        self.thread = threading.Thread(target=self._run, name="themis-fleet-watch", daemon=True)

    def start(self) -> Watch:
        """Begin."""
        self.thread.start()
        return self

    def stop(self) -> None:
        """End it; a call that is under way ends by itself."""
        self.ending.set()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        known: set[str] | None = None
        while not self.ending.is_set():
            try:
                hosts = self.fleet.hosts()
                members = self.fleet.members() if hosts else {}
                for host in hosts:
                    member = members.get(host.name)
                    if known is not None and host.name not in known:
                        # `themis fleet add` put it into the list, and is about to bring it.
                        self.waits.setdefault(host.name, (time.monotonic() + 2 * FIRST_AGAIN_S, FIRST_AGAIN_S))
                    elif host.name not in self.busy and (known is None or member is None or not recent(member)):
                        self._bring(host)
                known = {host.name for host in hosts}
            except (ThemisError, OSError) as error:
                log.error("the hosts cannot be looked at: %s", error)
            self.ending.wait(LOOK_S)

    def _bring(self, host: Host) -> None:
        at, wait_s = self.waits.get(host.name, (0.0, FIRST_AGAIN_S))
        if time.monotonic() < at:
            return
        self.waits[host.name] = (time.monotonic() + wait_s, min(2 * wait_s, MOST_AGAIN_S))
        self.busy.add(host.name)

        def work() -> None:
            try:
                report = self.fleet.bring(host)
                if report.state == "joined":
                    self.waits.pop(host.name, None)
                if self.said.get(host.name) != report.sentence:
                    log.log(logging.INFO if report.state == "joined" else logging.WARNING, "%s", report.sentence)
                self.said[host.name] = report.sentence
            finally:
                self.busy.discard(host.name)

        with suppress(RuntimeError):  # it is ending
            self.pool.submit(work)
