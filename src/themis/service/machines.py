"""The machines of an arbiter: virtual ones as told, or this machine's GPUs as NVML finds them."""

from __future__ import annotations

import re
import socket

from themis.errors import InputError
from themis.executors.hosts import Host
from themis.model.cluster import Machine
from themis.service.config import Config

_BARE = re.compile(r"[^A-Za-z0-9.-]+")


def find_hosts(config: Config) -> tuple[Host, ...]:
    """Every machine of the configuration, each with an agent on this one.

    Raises
    ------
    InputError : nothing was asked for and NVML finds no GPU.
    """
    if config.cluster:
        return tuple(Host(machine=machine) for machine in config.cluster.machines)
    if config.gpus:
        return (Host(machine=Machine(name=host_name(), gpus=config.gpus)),)
    found = nvml_gpus()
    types = {kind for _, kind in found}
    if len(types) > 1:
        # One machine has one type in the core's model; each type becomes a machine of its own at the same address.
        return tuple(_host(f"{host_name()}-{kind}", [g for g in found if g[1] == kind]) for kind in sorted(types))
    return (_host(host_name(), found),)


def _host(name: str, gpus: list[tuple[str, str]]) -> Host:
    return Host(
        machine=Machine(name=name, gpus=len(gpus), gpu_type=gpus[0][1]), devices=tuple(uuid for uuid, _ in gpus)
    )  # fmt: skip


def nvml_gpus() -> list[tuple[str, str]]:
    """(UUID, type) of this machine's GPUs, in the order of their PCI addresses.

    Raises
    ------
    InputError : no driver, or no GPU; says how to go on without.
    """
    instead = "Say --gpus N for N virtual GPUs, on which jobs run without any."
    try:
        import pynvml
    except ImportError:
        raise InputError(f"the package nvidia-ml-py is not installed, so no GPU can be found. {instead}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise InputError(f"NVML finds no NVIDIA driver on this machine ({error}). {instead}") from None
    try:
        found = []
        for i in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(i)
            bus = _text(pynvml.nvmlDeviceGetPciInfo(gpu).busId)
            found.append((bus, _text(pynvml.nvmlDeviceGetUUID(gpu)), gpu_type(_text(pynvml.nvmlDeviceGetName(gpu)))))
    except pynvml.NVMLError as error:
        raise InputError(f"NVML cannot tell the GPUs of this machine ({error}). {instead}") from None
    finally:
        pynvml.nvmlShutdown()
    if not found:
        raise InputError(f"NVML finds no GPU on this machine. {instead}")
    return [(uuid, kind) for _, uuid, kind in sorted(found)]


def gpu_type(name: str) -> str:
    """``NVIDIA H200`` -> ``H200``, ``Tesla V100-SXM2-16GB`` -> ``V100-SXM2-16GB``."""
    words = [w for w in _BARE.split(name) if w and w not in ("NVIDIA", "Tesla", "GeForce", "Quadro")]
    return "-".join(words) or "gpu"


def host_name() -> str:
    """This machine's, as a name of a node."""
    return _BARE.sub("-", socket.gethostname().partition(".")[0]).strip("-.") or "node0"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
