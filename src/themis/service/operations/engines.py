"""The executor of each engine, made from the settings, and the wait until it has machines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from themis import __version__
from themis.client.home import owner_of
from themis.errors import InputError
from themis.machines.agent.gpus import claim_all
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.program import Programs
from themis.model.speed import ProfileBook
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.arbiter_queue import LiveExecutor, Message, estimated_pace
from themis.service.engine.config import Config

if TYPE_CHECKING:
    from themis.machines.engines.fleet import FleetExecutor
    from themis.machines.engines.ray import RayExecutor

log = logging.getLogger("themis.service")

IDLE_AFTER_S = 60.0
"""Seconds without a report of new steps after which a job that reports steps is idle, where NVML measures nothing."""
NODES_S = 60.0
"""Seconds to wait for the first node of an engine."""

Executors = Callable[[Programs, Callable[[Message], None], Callable[[], ProfileBook]], LiveExecutor]


def executors(home: Path, config: Config, hosts: Sequence[Host], **more: Any) -> Executors:
    """Claim this machine's GPUs; return what makes the executor. ``more`` : arguments that all executors take.

    Raises
    ------
    InputError : another service has the GPUs.
    """
    # A service with another data directory must not lease the same GPUs.
    claims = claim_all(
        [device for host in hosts for device in host.devices],
        home / "run",
        [home / "run" / "nodes" / host.machine.name for host in hosts],
    )
    settings = node_settings(config)

    def executor(
        programs: Programs, report: Callable[[Message], None], book: Callable[[], ProfileBook]
    ) -> LiveExecutor:
        how: dict[str, Any] = {
            "settings": settings,
            "pace": estimated_pace(book),
            "allow_root": config.allow_root,
            "containment": config.containment,
            **more,
        }
        if config.engine == "ray":
            from themis.machines.engines.ray import NODE_ROOT, RayExecutor, RaySettings

            ray = RaySettings(address=config.address, owner=owner_of(home), node_root=config.node_root or NODE_ROOT)
            return RayExecutor(home / "run", programs, report, report, ray=ray, **how)
        if config.engine == "fleet":
            from themis.machines.engines.fleet import FleetExecutor, FleetSettings
            from themis.machines.engines.members import authority_folder, members_file

            fleet = FleetSettings(
                owner=owner_of(home),
                members=members_file(home),
                authority=authority_folder(home),
                token_s=config.node_token_s,
            )
            return FleetExecutor(home / "run", programs, report, report, fleet=fleet, **how)
        return LocalExecutor(home / "run", (), programs, report, report, claims=claims, version=__version__, **how)

    return executor


def node_settings(config: Config) -> NodeSettings:
    """The settings of the machines' agents."""
    limits = [limit for limit in (config.idle_warn_s, config.idle_cancel_s) if limit > 0]
    return NodeSettings(
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


def await_machines(arbiter: Arbiter, address: str) -> None:
    """Wait until the engine can have machines. ``address`` : HOST:PORT of the API.

    Raises
    ------
    InputError : no Ray cluster is there, or machines cannot be served.
    """
    if arbiter.config.engine == "ray":
        _await_nodes(arbiter, cast("RayExecutor", arbiter.executor))
    elif arbiter.config.engine == "fleet":
        _await_gateway(arbiter, cast("FleetExecutor", arbiter.executor), address)


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


def _await_gateway(arbiter: Arbiter, executor: FleetExecutor, address: str) -> None:
    """Wait until machines can be served; those that joined before reconnect by themselves.

    Raises
    ------
    InputError : the gateway does not start.
    """
    end = time.monotonic() + NODES_S
    while not executor.refused and not executor.door.exists() and time.monotonic() < end:
        time.sleep(0.1)
    if not executor.door.exists():
        arbiter.close()
        raise InputError(executor.refused or executor.reason() or executor.nobody)
    executor.serve_at(address)
    log.info("machines are served on %s; `themis agent token` prints the command with which one joins", address)


def no_nodes(reason: str) -> str:
    """Why a service on a Ray cluster has no GPUs yet, and what helps; ``reason`` : the bridge's last words, or none."""
    return (
        f"no node of the Ray cluster has joined yet, so there are 0 GPUs: {reason or 'none of its nodes has GPUs'}. `ray status` "
        "lists them. A node that Ray finds no GPUs on is started with `ray start --num-gpus N`. If the cluster was started with "
        "--node-ip-address 127.0.0.1, no other machine can join it: `ray stop`, then `ray start --head --node-ip-address ADDRESS` "
        "with this machine's own address, and `themis up --engine ray --address ADDRESS:6379`."
    )
