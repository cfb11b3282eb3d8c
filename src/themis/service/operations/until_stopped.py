"""A service that runs until it is stopped: signals, reload and the last words."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from themis.errors import InputError, counted
from themis.machines.engines.open_files import take_more
from themis.machines.engines.renewer import Renewer
from themis.service.engine.config import Config
from themis.service.engine.machine_changes import find_hosts
from themis.service.engine.pending_calls import Closed
from themis.service.engine.repair import repair
from themis.service.operations.systemd import READY, STOPPING, report_state
from themis.service.operations.up import Service, start
from themis.traces.profiles.library import load_book

log = logging.getLogger("themis.service")


def farewell(grace_s: float, jobs: int, *, leave_jobs: bool) -> str:
    """The message of a service that stops. ``grace_s`` : the longest of the jobs that run."""
    if not jobs:
        return "stopping; no job runs."
    these, one = counted(jobs, "job"), jobs == 1
    if leave_jobs:
        return f"stopping; {these} run{'s' * one} on until the next `themis up`, or until the machine's lease ends."
    return (
        f"stopping; {these} save{'s' * one} and stop{'s' * one}, which takes up to {grace_s:.0f} s. The next `themis up` continues "
        "from there."
    )


def _say_farewell(service: Service, *, leave_jobs: bool) -> None:
    report_state(STOPPING)
    state, programs = service.arbiter.state, service.arbiter.programs
    grace_s, jobs = 0.0, 0
    with suppress(RuntimeError, KeyError, IndexError):  # the arbiter's thread may change them meanwhile
        for job in list(state.occupied):
            app = int(state.jobs.app[job])
            program = programs[state.app_specs[app].name][job - int(state.apps.first_job[app])]
            grace_s, jobs = max(grace_s, program.grace_s), jobs + 1
    log.info("%s", farewell(grace_s, jobs, leave_jobs=leave_jobs))


def serve_until_stopped(
    home: Path,
    config: Config,
    say: Callable[[Service], None],
    *,
    leave_jobs: bool = False,
    repairs: Callable[[str], None] | None = None,
    reload: Callable[[], Config] | None = None,
    safe: bool = False,
    without: Sequence[str] = (),
    renewer: Renewer | None = None,
) -> None:
    """Run until SIGTERM or SIGINT, or until the arbiter breaks; then its error is raised. SIGHUP reloads the settings.

    The data directory is locked already. ``repairs`` : repair a damaged journal first; called with each sentence about what is
    lost. ``reload``, ``safe``, ``without``, ``renewer`` : as for ``start``.
    """
    stop, hung_up = threading.Event(), threading.Event()
    take_more()
    if repairs is not None:
        machines = [host.machine for host in find_hosts(config)] if config.engine == "local" else []
        repair(home / "journal.db", load_book(config.profiles, home / "profiles"), repairs, machines)
    service = start(home, config, reload, safe=safe, without=without, renewer=renewer)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: hung_up.set())
    try:
        say(service)
        report_state(READY)
        while not stop.wait(0.5) and service.arbiter.broken is None:
            if hung_up.is_set():
                hung_up.clear()
                _reload(service, reload or (lambda: config))
        if stop.is_set():
            _say_farewell(service, leave_jobs=leave_jobs)
    finally:
        broken = service.arbiter.broken
        # What cannot decide any more should not stop jobs either: the next arbiter finds them running.
        service.close(stop_jobs=not leave_jobs and broken is None)
        for number, handler in before.items():
            signal.signal(number, handler)
    if broken is not None:
        raise broken


def _reload(service: Service, reload: Callable[[], Config]) -> None:
    """SIGHUP: take on what changed in the settings file; what cannot be read changes nothing."""
    arbiter = service.arbiter
    try:
        if service.certificates is not None:
            service.certificates.refresh()
        given = reload()
        lines = arbiter.ask(lambda: arbiter.live.reload(given, service.api.access.owner.user, arbiter.instant))
    except (InputError, Closed) as error:
        log.error("the settings stay as they are: %s", error)
        return
    for line in lines or ["the settings file changes nothing"]:
        log.info("%s", line)
