"""The machines that gangs run on, and which ranks of a gang each of them gets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from themis.errors import InputError
from themis.machines.agent.messages import TaskSpec
from themis.machines.engines.program import Program
from themis.model.cluster import Machine
from themis.model.events import Grant
from themis.model.units import Seconds

NO_TARGET = 1e18
"""Steps that no program does; finite, so that every text form of a message can hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Leases of machines, and what jobs get.

    Attributes
    ----------
    lease_s : how long a machine may continue without renewal; it renews every ``renew_s``.
    margin_s : added to lease and grace before a silent machine's GPUs count as free: signals and reaping take time.
    prepare_s : a gang that is not ready by then is given up.
    progress_s : minimum interval between two progress events of a job, seconds.
    idle_after_s : a job that reported steps and then no new one for this long is idle. ``idle_every_s`` : minimum
        interval between two reports of idle GPUs of a gang.
    log_bytes : bound of each rank's log.
    setup_s : for fetching a job's files, and again for preparing its environment.
    copy_every_s : between two copies of a running job's checkpoints. ``copy_s`` : for one.
    cache_bytes : of the bundles and environments on each machine.
    processes : most processes and threads of a gang, for each of its GPUs on a machine. ``inherits`` : variables that jobs get from
        the agents' environment, besides those that every job gets.
    user_disk : of what a user's jobs have on one disk: bytes, or up to 1 a share of the disk; 0: no quota. ``disk_reserve`` : bytes
        of each disk that are to stay free; 0: none.
    """

    lease_s: Seconds = 30.0
    renew_s: Seconds = 10.0
    margin_s: Seconds = 5.0
    prepare_s: Seconds = 60.0
    progress_s: Seconds = 30.0
    idle_after_s: Seconds = 60.0
    idle_every_s: Seconds = 30.0
    log_bytes: int = 64 << 20
    setup_s: Seconds = 900.0
    copy_every_s: Seconds = 600.0
    copy_s: Seconds = 600.0
    cache_bytes: int = 50 << 30
    processes: int = 4096
    inherits: tuple[str, ...] = ()
    user_disk: float = 0.0
    disk_reserve: int = 0

    def __post_init__(self) -> None:
        for name in ("lease_s", "renew_s", "prepare_s", "log_bytes"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}, expected more than 0.")
        if self.renew_s >= self.lease_s:
            raise InputError(
                f"renew_s is {self.renew_s}, not below the machine's lease_s {self.lease_s}; a third of it is usual."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine of the cluster with its agent.

    Attributes
    ----------
    address : where ranks on other machines reach it.
    devices : its GPUs as CUDA_VISIBLE_DEVICES names them, in the order of their ids; empty where they are mere slots.
    """

    machine: Machine
    address: str = "127.0.0.1"
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.devices and len(self.devices) != self.machine.gpus:
            raise InputError(
                f"machine {self.machine.name!r} has {self.machine.gpus} GPUs but {len(self.devices)} device names; they must agree."
            )


TASK = re.compile(r"job(\d{1,18})-attempt(\d{1,9})")
"""Names of attempts, as ``task_name`` makes them."""


def task_name(job: int, attempt: int) -> str:
    """Name of an attempt's task, the same on each of its machines."""
    return f"job{job}-attempt{attempt}"


def task_specs(
    grant: Grant,
    program: Program,
    hosts: Sequence[Host],
    checkpoints: str,
    log_bytes: int,
    places: Sequence[tuple[int, int]] = (),
    settings: NodeSettings = NodeSettings(),
) -> dict[int, TaskSpec]:
    """The gang's ranks on each of its machines, by machine; machines in the order of their ids, GPUs as they are on each.

    ``places`` : machine of each GPU, and its position there; if empty, the machines' GPUs are numbered consecutively.
    """
    places = places or [(n, i) for n, host in enumerate(hosts) for i in range(host.machine.gpus)]
    where: dict[int, list[int]] = {}
    for n, i in sorted(places[gpu] for gpu in grant.gpus):
        where.setdefault(n, []).append(i)
    per_machine = program.launch != "gpu"
    ranks, specs = 0, {}
    for position, (n, local) in enumerate(where.items()):
        count = 1 if per_machine else len(local)
        devices = hosts[n].devices
        specs[n] = TaskSpec(
            task=task_name(grant.job, grant.attempt),
            app=grant.app,
            job=grant.job,
            attempt=grant.attempt,
            argv=program.argv,
            cwd=program.cwd,
            env={
                **program.env,
                "THEMIS_GPU_TYPE": hosts[n].machine.gpu_type,
                "THEMIS_LOCALITY": str(int(grant.locality)),
            },
            user=program.user,
            ranks=tuple(range(ranks, ranks + count)),
            world_size=len(where) if per_machine else len(grant.gpus),
            devices=tuple(devices[i] if devices else "" for i in local),
            gpus=len(grant.gpus),
            machine=position,
            machines=len(where),
            per_machine=per_machine,
            grace_s=program.grace_s,
            stop_signal=program.stop_signal,
            checkpoint_dir=program.checkpoint_dir or f"{checkpoints}/app{grant.app}/job{grant.job}",
            make_checkpoint_dir=not program.checkpoint_dir,
            target=grant.target if program.own_steps else NO_TARGET,
            log_bytes=log_bytes,
            slots=tuple(local),
            cpus=program.cpus * len(local),
            memory=program.memory * len(local),
            processes=settings.processes * len(local),
            inherits=settings.inherits,
            bundle=program.bundle,
            packages=program.packages,
            modules=program.modules,
            launcher=program.launcher,
            setup_s=settings.setup_s if program.needs_setup else 0.0,
            checkpoint_url=program.checkpoint_url,
            copy_every_s=settings.copy_every_s,
            copy_s=settings.copy_s,
            outputs=program.outputs,
            exports=program.exports,
            secrets=program.secrets,
        )
        ranks += count
    return specs
