"""The machines of an arbiter: virtual ones from the settings, or this machine's GPUs as NVML finds them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from themis.core.state import State
from themis.errors import UnknownName
from themis.machines.agent.gpus import nvml_gpus
from themis.machines.engines.hosts import Host
from themis.model.cluster import UNNAMED, Machine
from themis.model.speed import ANY_TYPE
from themis.service.engine.config import Config
from themis.traces.profiles.presets import from_shorthand

_BARE = re.compile(r"[^A-Za-z0-9.-]+")


def find_hosts(config: Config) -> tuple[Host, ...]:
    """All machines of the configuration, each with an agent on this one.

    Raises
    ------
    InputError : nothing was asked for and NVML finds no GPU. UnknownName : a type has another name that is not found.
    """
    if config.cluster:
        return tuple(Host(machine=machine) for machine in config.cluster.machines)
    if config.gpus:
        return (Host(machine=Machine(name=host_name(), gpus=config.gpus)),)
    found = nvml_gpus()
    for name in config.gpu_names:
        if name not in (there := {kind for _, kind in found}):
            raise UnknownName("GPU type in gpu_names", name, there)
    found = [(device, config.gpu_names.get(kind, kind)) for device, kind in found]
    types = {kind for _, kind in found}
    if len(types) > 1:
        # One machine has one type in the core's model; each type becomes a separate machine at the same address.
        return tuple(_host(f"{host_name()}-{kind}", [g for g in found if g[1] == kind]) for kind in sorted(types))
    return (_host(host_name(), found),)


def _host(name: str, gpus: list[tuple[str, str]]) -> Host:
    return Host(
        machine=Machine(name=name, gpus=len(gpus), gpu_type=gpus[0][1]), devices=tuple(uuid for uuid, _ in gpus)
    )


def expected(config: Config, state: State) -> tuple[Machine, ...] | None:
    """Machines that may be there one day, besides those that are; None: anything, for nothing is known.

    The setting ``expected``; else, of an engine whose machines come and go, those that ever joined, at their largest.
    """
    if config.expected:
        return _written(config.expected)
    if config.engine == "local":
        return ()
    return tuple(replace(m, gpus=len(state.gpus_of[n])) for n, m in enumerate(state.machines)) or None


@cache
def _written(text: str) -> tuple[Machine, ...]:
    found = from_shorthand(text).machines
    return tuple(replace(m, gpu_type=ANY_TYPE) if m.gpu_type == UNNAMED else m for m in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerGpu:
    """Resources that a job may request per GPU: an even part of this machine's CPU cores, and of its memory in
    bytes."""

    cpus: float
    memory: float


def per_gpu(config: Config, state: State) -> PerGpu | None:
    """Resources per GPU of this machine, which virtual machines share; None if an engine provides the machines, whose
    resources are unknown."""
    gpus = int(state.machine_size.sum())
    if config.engine != "local" or not gpus:
        return None
    cpus = config.cpus or len(os.sched_getaffinity(0))
    memory = config.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return PerGpu(cpus=cpus / gpus, memory=memory / gpus)


def in_place(found: Sequence[str], before: Sequence[str]) -> tuple[str, ...]:
    """A machine's GPUs by UUID, each where it was before: no position comes to mean another GPU while gangs may be there.

    New ones follow. One that is missing keeps its place, unless it was among the last.
    """
    out = [*before, *(device for device in found if device not in before)]
    while out and out[-1] not in found:
        out.pop()
    return tuple(out)


def host_name() -> str:
    """This machine's, as a name of a node."""
    return _BARE.sub("-", socket.gethostname().partition(".")[0]).strip("-.") or "node0"
