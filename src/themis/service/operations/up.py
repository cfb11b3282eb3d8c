"""``themis up``: data directory, journal, machines, executor, arbiter and servers put together, until a stop signal."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from themis import __version__
from themis.client.home import Endpoint, make_token, owner_of, user_name, write_endpoint
from themis.errors import InputError, counted
from themis.machines.agent.gpus import claim_all
from themis.machines.agent.means import find
from themis.machines.bundles.copies import Copies
from themis.machines.bundles.store import Store
from themis.machines.engines.hosts import NodeSettings
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.open_files import take_more
from themis.machines.engines.program import Programs
from themis.machines.engines.renewer import Renewer
from themis.model.speed import ProfileBook
from themis.policies.api import check_types, make_policy
from themis.service.api.access import Access
from themis.service.api.listening import is_loopback, try_address
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.arbiter_queue import LiveExecutor, Message, estimated_pace
from themis.service.engine.config import Config
from themis.service.engine.integrity import check_there
from themis.service.engine.journal import Journal
from themis.service.engine.machine_changes import find_hosts
from themis.service.engine.pending_calls import Closed
from themis.service.engine.repair import repair
from themis.service.operations import oidc_setup, rights, tls
from themis.service.operations.lock import only_one
from themis.service.operations.notify import Notifier, notifier
from themis.service.operations.retention import keep_swept
from themis.service.operations.ssh_hosts import Host
from themis.service.operations.systemd import READY, STOPPING, report_state
from themis.traces.profiles.library import load_book

if TYPE_CHECKING:
    import grpc

    from themis.machines.engines.fleet import FleetExecutor
    from themis.machines.engines.ray import RayExecutor
    from themis.service.api.certificate_calls import Certificates
    from themis.service.api.http_server import HttpServer
    from themis.service.api.methods import Api
    from themis.service.api.oidc import Oidc
    from themis.service.operations.watch import Watch

log = logging.getLogger("themis.service")

IDLE_AFTER_S = 60.0
"""Seconds without a report of new steps after which a job that reports steps is idle, where NVML measures nothing."""
NODES_S = 60.0
"""Seconds to wait for the first node of an engine."""


@dataclass(slots=True)
class Service:
    """A running service."""

    arbiter: Arbiter
    endpoint: Endpoint
    api: Api
    server: grpc.Server
    http: HttpServer | None
    notifier: Notifier | None = None
    certificates: Certificates | None = None
    watch: Watch | None = None

    def keep_hosts(self, home: Path, hosts: Sequence[Host]) -> None:
        """Make these hosts machines of the service by ssh, with those of its list, and keep their agents running."""
        if self.arbiter.config.engine == "fleet":
            from themis.service.operations.fleet_hosts import Fleet
            from themis.service.operations.watch import Watch

            fleet = Fleet(home)
            fleet.keep(hosts)
            self.watch = Watch(fleet).start()

    def close(self, *, stop_jobs: bool = True) -> None:
        """Stop it: first the arbiter, so that calls in the meantime are refused with a message."""
        self.api.ending.set()
        if self.watch is not None:
            self.watch.stop()
        try:
            self.arbiter.close(stop_jobs=stop_jobs)
        finally:
            if self.notifier is not None:
                self.notifier.close()
            self.server.stop(grace=1.0).wait()
            if self.http is not None:
                self.http.close()
            if self.certificates is not None:
                self.certificates.close()
            if self.api.oidc is not None:
                self.api.oidc.close()
            self.api.audit.close()
            if self.arbiter.copies is not None:
                self.arbiter.copies.close()


@contextmanager
def running(home: Path, config: Config) -> Iterator[Service]:
    """A service in this process; jobs are preempted when it ends.

    Raises
    ------
    InputError : another service runs with this data directory, it was begun with other settings, or an address is taken.
    """
    with only_one(home):
        service = start(home, config)
        try:
            yield service
        finally:
            service.close()


def start(
    home: Path,
    config: Config,
    reload: Callable[[], Config] | None = None,
    *,
    safe: bool = False,
    without: Sequence[str] = (),
    renewer: Renewer | None = None,
) -> Service:
    """Start a service in a data directory that is locked already: first what keeps jobs running, then what answers callers.

    ``reload`` : reads its settings again. ``safe``, ``without`` : as for ``Arbiter``. ``renewer`` : renews leases of machines until
    the executor does.
    """
    if config.engine == "local":
        find(config.containment)  # refused here rather than by agents
    _let_pass(home, config)
    check_there(home / "journal.db")
    try_address(config.host, config.port, "port")
    if config.http_port >= 0:
        try_address(config.host, config.http_port, "http_port")
    certificates = tls.certificates(home, config)
    access = Access(home, make_token(home), user_name())
    log.warning("%s", rights.explained(config, len(access.accounts())))
    hosts = find_hosts(config) if config.engine == "local" else ()
    if hosts:  # an engine's machines may be of types that are not known yet
        check_types(make_policy(config.policy), sorted({host.machine.gpu_type for host in hosts}))
    # A service with another data directory must not lease the same GPUs.
    claims = claim_all(
        [device for host in hosts for device in host.devices],
        home / "run",
        [home / "run" / "nodes" / host.machine.name for host in hosts],
    )
    limits = [limit for limit in (config.idle_warn_s, config.idle_cancel_s) if limit > 0]
    nodes = NodeSettings(
        idle_after_s=min([IDLE_AFTER_S, *limits]),
        idle_every_s=min([config.progress_s, *limits]),
        lease_s=config.node_lease_s,
        renew_s=config.node_renew_s,
        margin_s=config.node_margin_s,
        progress_s=config.progress_s,
        setup_s=config.setup_s,
        cache_bytes=config.node_cache_bytes,
        processes=config.max_processes,
        inherits=tuple(config.pass_variables.split()),
        user_disk=config.user_disk,
        disk_reserve=config.disk_reserve_bytes,
    )

    bundles = Store(home / "bundles", config.bundles_quota_bytes)
    copies = Copies(home / "copies", config.copies_quota_bytes, config.max_copy_bytes)

    def executor(
        programs: Programs, report: Callable[[Message], None], book: Callable[[], ProfileBook]
    ) -> LiveExecutor:
        how: dict[str, Any] = {
            "settings": nodes,
            "pace": estimated_pace(book),
            "allow_root": config.allow_root,
            "containment": config.containment,
            "bundles": bundles,
            "copies": copies,
            "renewer": renewer,
        }
        if config.engine == "ray":
            from themis.machines.engines.ray import NODE_ROOT, RayExecutor, RaySettings

            ray = RaySettings(address=config.address, owner=owner_of(home), node_root=config.node_root or NODE_ROOT)
            return RayExecutor(home / "run", programs, report, report, ray=ray, **how)
        if config.engine == "fleet":
            from themis.machines.engines.fleet import FleetExecutor, FleetSettings
            from themis.machines.engines.members import authority_folder, members_file

            fleet = FleetSettings(
                listen=config.listen,
                owner=owner_of(home),
                members=members_file(home),
                authority=authority_folder(home),
                days=config.node_certificate_s / 86400.0,
            )
            return FleetExecutor(home / "run", programs, report, report, fleet=fleet, **how)
        return LocalExecutor(home / "run", (), programs, report, report, claims=claims, version=__version__, **how)

    book = load_book(config.profiles, home / "profiles")
    journal = Journal(home / "journal.db")
    journal.reserve = config.journal_reserve_bytes
    arbiter = Arbiter(
        config,
        hosts,
        journal,
        executor,
        book=book,
        apart=True,
        owner=access.owner.user,
        bundles=bundles,
        copies=copies,
        safe=safe,
        without=without,
    )
    keep_swept(arbiter)
    arbiter.housekeeping.chores.append(arbiter.disk.run)
    copies.admit = lambda app, size, instead: arbiter.disk.admit(arbiter.state.app_specs[app].user, size, instead)
    if isinstance(arbiter.executor, LocalExecutor):
        arbiter.executor.gangs.disks.at_rest = arbiter.disk.rest
    signs_in = oidc_setup.sign_ins(home, config.oidc, access, arbiter)
    notifies = notifier(arbiter, config.notify)
    arbiter.start()
    try:
        service = _serve(home, config, arbiter, access, certificates, signs_in, reload)
    except BaseException:
        # No call can be answered any more; running jobs are left to the next start.
        arbiter.close(stop_jobs=False)
        raise
    if certificates is None and not is_loopback(config.host):
        log.warning(tls.PLAIN, config.host)
    if config.engine == "ray":
        _await_nodes(arbiter, cast("RayExecutor", arbiter.executor))
    elif config.engine == "fleet":
        _await_gateway(arbiter, cast("FleetExecutor", arbiter.executor))
    if certificates is not None:
        certificates.start()
    if signs_in is not None:
        signs_in.start()
    write_endpoint(home, service.endpoint)
    service.notifier = notifies.start() if notifies else None
    return service


def _serve(
    home: Path,
    config: Config,
    arbiter: Arbiter,
    access: Access,
    certificates: Certificates | None,
    signs_in: Oidc | None,
    reload: Callable[[], Config] | None,
) -> Service:
    """Start the servers that answer callers of a running arbiter.

    Raises
    ------
    InputError : an address is already in use.
    """
    from themis.service.api.grpc_server import serve
    from themis.service.api.http_server import serve_http
    from themis.service.api.methods import Api
    from themis.service.api.setting_calls import Door
    from themis.service.operations.backups import back_up_apart
    from themis.service.operations.changing import changed
    from themis.service.web.console import Console
    from themis.service.web.routes import ROUTES

    def read_again() -> Config:
        if certificates is not None:
            certificates.refresh()
        return reload() if reload else config

    api = Api(arbiter, home / "run", access, Door(changed, read_again, back_up_apart), certificates, signs_in)
    credentials = certificates.credentials() if certificates else None
    server, port = serve(api, config.host, config.port, config.max_message_bytes, credentials)
    http = None
    if config.http_port >= 0:
        context = certificates.context if certificates else None
        try:
            http = serve_http(api, config.host, config.http_port, context, Console(api, ROUTES))
        except InputError:
            server.stop(grace=None)
            raise
        api.http_port = http.port
    endpoint = tls.endpoint(home, config, port, http.port if http else None, certificates, os.getpid())
    return Service(arbiter, endpoint, api, server, http, certificates=certificates)


def _await_nodes(arbiter: Arbiter, executor: RayExecutor) -> None:
    """Wait until Ray answers, with a first node if there is any.

    Raises
    ------
    InputError : no Ray cluster is there.
    """
    end = time.monotonic() + NODES_S
    while not executor.refused and not arbiter.state.machines and time.monotonic() < end:
        time.sleep(0.1)
    if executor.refused:
        arbiter.close()
        raise InputError(executor.refused)
    if not arbiter.state.machines:
        log.warning("%s", no_nodes(executor.reason()))


def _await_gateway(arbiter: Arbiter, executor: FleetExecutor) -> None:
    """Wait until machines can be served; those that joined before reconnect by themselves.

    Raises
    ------
    InputError : the address cannot be served.
    """
    end = time.monotonic() + NODES_S
    while not executor.refused and not executor.listening() and time.monotonic() < end:
        time.sleep(0.1)
    if not executor.listening():
        arbiter.close()
        raise InputError(executor.refused or executor.reason() or executor.nobody)
    log.info(
        "machines are served on %s; `themis agent token` prints the command with which one joins", executor.listening()
    )


def no_nodes(reason: str) -> str:
    """Why a service on a Ray cluster has no GPUs yet, and what helps; ``reason`` : the bridge's last words, or none."""
    return (
        f"no node of the Ray cluster has joined yet, so there are 0 GPUs: {reason or 'none of its nodes has GPUs'}. `ray status` "
        "lists them. A node that Ray finds no GPUs on is started with `ray start --num-gpus N`. If the cluster was started with "
        "--node-ip-address 127.0.0.1, no other machine can join it: `ray stop`, then `ray start --head --node-ip-address ADDRESS` "
        "with this machine's own address, and `themis up --engine ray --address ADDRESS:6379`."
    )


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


def serve_until_told(
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


def _let_pass(home: Path, config: Config) -> None:
    """Let submitters, as whom jobs run, reach their own jobs' folders but read no folder above."""
    if os.geteuid() != 0 or config.single_trust:
        home.chmod(0o700)
        return
    home.chmod(0o711)
    shut = [folder for folder in home.parents if not folder.stat().st_mode & 0o001]
    if shut:
        log.warning(
            "jobs run as their submitters, who cannot enter %s on the way to their folders in %s; choose another "
            "data directory, such "
            "as /var/lib/themis, or chmod o+x %s.",
            shut[-1],
            home,
            shut[-1],
        )
