"""The composition of a service: data directory, journal, machines, executor, arbiter and servers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from themis.client.home import Endpoint, joined, make_token, user_name, write_endpoint
from themis.machines.agent.means import find
from themis.machines.bundles.store import Store
from themis.machines.engines.copies import Copies
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.renewer import Renewer
from themis.policies.api import check_types, make_policy
from themis.service.api.access import Access
from themis.service.api.listening import is_loopback, try_address
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Config
from themis.service.engine.integrity import check_there
from themis.service.engine.journal import Journal
from themis.service.engine.machine_changes import find_hosts
from themis.service.operations import oidc_setup, rights, tls
from themis.service.operations.engines import await_machines, executors
from themis.service.operations.lock import only_one
from themis.service.operations.notify import Notifier, notifier
from themis.service.operations.retention import keep_swept
from themis.service.operations.ssh_hosts import Host
from themis.traces.profiles.library import load_book

if TYPE_CHECKING:
    from themis.service.api.certificate_calls import Certificates
    from themis.service.api.http_server import HttpServer
    from themis.service.api.methods import Api
    from themis.service.api.oidc import Oidc
    from themis.service.operations.watch import Watch

log = logging.getLogger("themis.service")


@dataclass(slots=True)
class Service:
    """A running service."""

    arbiter: Arbiter
    endpoint: Endpoint
    api: Api
    http: HttpServer
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
    rights.let_pass(home, config)
    check_there(home / "journal.db")
    try_address(config.host, config.port, "port")
    certificates = tls.certificates(home, config)
    access = Access(home, make_token(home), user_name())
    log.warning("%s", rights.explained(config, len(access.accounts())))
    hosts = find_hosts(config) if config.engine == "local" else ()
    if hosts:  # an engine's machines may be of types that are not known yet
        check_types(make_policy(config.policy), sorted({host.machine.gpu_type for host in hosts}))
    bundles = Store(home / "bundles", config.bundles_quota_bytes)
    copies = Copies(home / "copies", config.copies_quota_bytes, config.max_copy_bytes)
    executor = executors(home, config, hosts, bundles=bundles, copies=copies, renewer=renewer)
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
    await_machines(arbiter, joined(config.host, service.http.port))
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
    """Start the server that answers callers of a running arbiter.

    Raises
    ------
    InputError : an address is already in use.
    """
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
    context = (lambda: certificates.context) if certificates else None
    door = getattr(arbiter.executor, "door", None)
    http = serve_http(api, config.host, config.port, context, Console(api, ROUTES), door)
    endpoint = tls.endpoint(home, config, http.port, certificates, os.getpid())
    return Service(arbiter, endpoint, api, http, certificates=certificates)
