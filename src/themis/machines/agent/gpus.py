"""This machine's GPUs as NVML finds them, and claims on them, so that no two agents of one machine deal out the same.

A claim is a lock on a file that only its account can open. Every process with the file open holds the lock: arbiter,
agent and the supervisors that it started, but not their ranks, which could release it. So a GPU is free for another
agent once no supervisor of the last one is left, however that ended.

    /var/tmp/themis-gpus-UID/     mode 711, of the account
        GPU-...                   mode 600

Accounts see each other's claims in ``/proc/locks`` and cannot hold them. An ordinary account is refused what another one has
claimed. Root is only warned of ordinary accounts' claims, so that no user of the machine keeps GPUs from its service.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import pwd
import re
import stat
import struct
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from themis.errors import InputError
from themis.machines.agent.fence import Node
from themis.machines.agent.locks import inhabited

CLAIMS = Path("/var/tmp")
DEVICES = Path("/dev")
LOCKS = Path("/proc/locks")
"""All locks of this machine, by device and inode; those of other PID namespaces are not shown where they have an owner."""
MOST_FOLDERS = 100
_BARE = re.compile(r"[^A-Za-z0-9.-]+")

log = logging.getLogger("themis.machines.agent")


@dataclass(frozen=True, slots=True)
class Claim:
    """A GPU by its UUID, and the open file whose lock makes it ours."""

    device: str
    lock: int


def claim(devices: Sequence[str], count: int, base: Path = CLAIMS, *, ours: Set[str] = frozenset()) -> list[Claim]:
    """Claim this many of these GPUs, in this order; all or none.

    Parameters
    ----------
    base : where each account has a folder of its own.
    ours : those that something which this data directory's arbiter started still has claimed; they are shared with it.

    Raises
    ------
    InputError : fewer are free; another agent of this machine, or jobs that it left, have the others.
    """
    folder = _own_folder(base)
    got: list[Claim] = []
    others: dict[str, str] = {}
    elsewhere = _elsewhere(base, devices)
    for device in devices:
        if len(got) == count:
            break
        who = elsewhere.get(device, [])
        if who and (os.geteuid() != 0 or 0 in who):
            others[device] = _account(who[0])
            continue
        if who:
            log.warning(
                "account %s has a claim on %s, which this service of root does not respect: end what runs there.",
                _account(who[0]),
                device,
            )
        lock = _open(folder / device)
        try:
            if device not in ours:
                _lock(lock, fcntl.F_WRLCK)
            # Shared from here on, so no other service gets it alone; a service that claimed it in between keeps it.
            _lock(lock, fcntl.F_RDLCK)
        except BlockingIOError:
            os.close(lock)
        else:
            got.append(Claim(device, lock))
    if len(got) < count:
        release(got)
        theirs = "".join(f" Account {who} has {device}." for device, who in sorted(others.items())[:3])
        raise InputError(
            f"{len(got)} of {len(devices)} GPUs of this machine are free, {count} are wanted; another node agent, or jobs "
            f"that it left, have the others.{theirs}"
        )
    return got


def _own_folder(base: Path) -> Path:
    """This account's folder; others can neither open nor make files there. A name that another account took is left to it."""
    base.mkdir(parents=True, exist_ok=True)
    uid = os.geteuid()
    for number in range(MOST_FOLDERS):
        path = base / f"themis-gpus-{uid}{f'.{number}' if number else ''}"
        try:
            path.mkdir(mode=0o700)
            path.chmod(0o711)
        except FileExistsError:
            pass
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; GPUs of this machine are claimed there.") from None
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == uid:
            if found.st_mode & 0o022:
                raise InputError(f"{path} can be written by others, who could claim GPUs there; chmod 711 {path}.")
            return path
    raise InputError(f"{MOST_FOLDERS} names such as {path} are other accounts' files; remove them as root.")


def _open(path: Path) -> int:
    """A file that this account alone can open."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; GPUs of this machine are claimed there.") from None


def _lock(file: int, kind: int) -> None:
    """Lock the whole file for as long as its description is open anywhere (fcntl(2), open file description locks).

    Raises
    ------
    BlockingIOError : another description has a lock that excludes it.
    """
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))


def _elsewhere(base: Path, devices: Iterable[str]) -> dict[str, list[int]]:
    """Accounts other than this one that have claims, root first, by device."""
    out: dict[str, list[int]] = {}
    locks = None
    for folder in base.glob("themis-gpus-*"):
        with contextlib.suppress(OSError):
            owner = folder.lstat().st_uid
            if owner == os.geteuid():
                continue
            locks = _locks() if locks is None else locks
            for device in devices:
                with contextlib.suppress(OSError):
                    file = (folder / device).lstat()
                    if file.st_uid == owner and (os.major(file.st_dev), os.minor(file.st_dev), file.st_ino) in locks:
                        out.setdefault(device, []).append(owner)
    return {device: sorted(owners) for device, owners in out.items()}


def _locks() -> set[tuple[int, int, int]]:
    """(major, minor, inode) of every locked file that is visible to this process."""
    found = set()
    with contextlib.suppress(OSError):
        for major, minor, inode in re.findall(r" ([0-9a-f]+):([0-9a-f]+):(\d+) ", LOCKS.read_text()):
            found.add((int(major, 16), int(minor, 16), int(inode)))
    return found


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def claim_all(devices: Sequence[str], root: Path, machines: Iterable[Path], base: Path = CLAIMS) -> list[Claim]:
    """Claim these GPUs for the data directory of ``root``; processes that an earlier arbiter left on them may continue.

    ``machines`` : folders of its agents. ``base`` : as of ``claim``.

    Raises
    ------
    InputError : another service, or another node agent, has some of them.
    """
    if not devices:
        return []
    record = root / "devices.json"
    ours: set[str] = set()
    if record.exists() and any(inhabited(machine) for machine in machines):
        ours = set(json.loads(record.read_text()))
    got = claim(devices, len(devices), base, ours=ours)
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
    InputError : no driver, or no GPU; says how to continue without.
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


def device_nodes(devices: Sequence[str]) -> dict[str, Node]:
    """Device node of each GPU that NVML finds here, by UUID, and of the GPU that each of ``devices`` is a part of (MIG).

    Empty without a driver. GPUs without a device node, as in a container that does not have them, are left out.
    """
    found: dict[str, Node] = {}
    with contextlib.suppress(Exception):  # no package, no driver: virtual GPUs
        import pynvml

        pynvml.nvmlInit()
        for i in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(i)
            with contextlib.suppress(OSError):
                found[_text(pynvml.nvmlDeviceGetUUID(gpu))] = _node(pynvml, gpu)
        for device in set(devices) - found.keys():
            with contextlib.suppress(OSError, pynvml.NVMLError):
                part = pynvml.nvmlDeviceGetHandleByUUID(device)
                found[device] = _node(pynvml, pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part))
    return found


def _node(nvml: Any, gpu: Any) -> Node:
    """The device of a GPU, which the driver names by its minor number. Raises OSError if the file is missing."""
    return Node.of(DEVICES / f"nvidia{nvml.nvmlDeviceGetMinorNumber(gpu)}")


def slot_size() -> int:
    """GPUs of one NVLink domain of this machine, by NVML: 0 where all are one, or none has such links."""
    with contextlib.suppress(Exception):
        return _domains()
    return 0


def _domains() -> int:
    """The size of the NVLink domains where all have the same."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        buses = [_text(pynvml.nvmlDeviceGetPciInfo(h).busId) for h in handles]
        linked = [{i} for i in range(len(handles))]
        for i, handle in enumerate(handles):
            for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
                with contextlib.suppress(pynvml.NVMLError):
                    remote = _text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
                    if remote not in buses:
                        return 0  # a switch: all are one domain
                    linked[i].add(buses.index(remote))
    finally:
        pynvml.nvmlShutdown()
    sizes = {len(group) for group in linked}
    size = sizes.pop()
    return size if not sizes and 1 < size < len(handles) else 0


def gpu_type(name: str) -> str:
    """``NVIDIA H200`` -> ``H200``, ``Tesla V100-SXM2-16GB`` -> ``V100-SXM2-16GB``."""
    words = [w for w in _BARE.split(name) if w and w not in ("NVIDIA", "Tesla", "GeForce", "Quadro")]
    return "-".join(words) or "gpu"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
