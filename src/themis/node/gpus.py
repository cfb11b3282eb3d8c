"""This machine's GPUs as NVML finds them, and claims on them, so that no two agents of one machine deal out the same.

A claim is a lock on a file of the machine, held by whoever has it open: the agent and, because they inherit it, the keepers
and ranks that it started. So a GPU is free for another agent once nothing of the last one is left, however that ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from themis.errors import InputError
from themis.node.locks import inhabited

CLAIMS = Path("/var/tmp/themis-gpus")
_BARE = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, slots=True)
class Claim:
    """A GPU by its UUID, and the open file whose lock makes it ours."""

    device: str
    lock: int


def claim(devices: Sequence[str], count: int, folder: Path = CLAIMS, *, ours: Set[str] = frozenset()) -> list[Claim]:
    """Claim so many of these GPUs, in this order; all or none.

    Parameters
    ----------
    ours : those that something which this home started still has claimed; they are shared with it.

    Raises
    ------
    InputError : fewer are free; another agent of this machine, or jobs that it left, have the others.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(0o1777)  # every user of the machine claims here
    got: list[Claim] = []
    for device in devices:
        if len(got) == count:
            break
        lock = _open(folder / device)
        try:
            if device not in ours:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Held by many from here on, but nobody else gets it alone; whoever did so in between has it.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            got.append(Claim(device, lock))
    if len(got) < count:
        release(got)
        raise InputError(
            f"{len(got)} of {len(devices)} GPUs of this machine are free, {count} are wanted; another node agent, or jobs "
            "that it left, have the others."
        )
    return got


def _open(path: Path) -> int:
    """A lock needs no right to write; the file may be another user's, and a link in its place is none of ours."""
    try:
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            made = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.fchmod(made, 0o644)
            return made
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; GPUs of this machine are claimed there.") from None


def claim_all(devices: Sequence[str], root: Path, machines: Iterable[Path], folder: Path = CLAIMS) -> list[Claim]:
    """Claim these GPUs for the home of ``root``; what an arbiter before this one left on them may go on.

    ``machines`` : folders of its agents.

    Raises
    ------
    InputError : another home, or another node agent, has some of them.
    """
    if not devices:
        return []
    record = root / "devices.json"
    ours: set[str] = set()
    if record.exists() and any(inhabited(machine) for machine in machines):
        ours = set(json.loads(record.read_text()))
    got = claim(devices, len(devices), folder, ours=ours)
    root.mkdir(parents=True, exist_ok=True)
    draft = record.with_name(".devices.json")
    draft.write_text(json.dumps([held.device for held in got]))
    draft.replace(record)
    return got


def release(claims: Sequence[Claim]) -> None:
    """Give GPUs back, as far as this process holds them."""
    for held in claims:
        os.close(held.lock)


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


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
