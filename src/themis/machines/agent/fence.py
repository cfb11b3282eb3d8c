"""A fence around a cgroup: device nodes that no process in it can open, by either version of the kernel's device control.

    v1    the ``devices`` hierarchy: each node is a line written to ``devices.deny``
    v2    an eBPF program of the kind BPF_PROG_TYPE_CGROUP_DEVICE, which the kernel runs at each open and ``mknod``

The kernel allows the access where every group of the process does, so a fence needs no list of what a job may open.
Linux man page bpf(2); the kernel's admin-guide/cgroup-v1/devices, and include/uapi/linux/bpf.h for the numbers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DENY = "devices.deny"
_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
"""Number of the system call bpf(2), which the C library has no function for."""
_LOAD, _ATTACH, _DEVICE_PROGRAM, _DEVICE_HOOK, _ALLOW_MULTI = 5, 8, 15, 6, 2
_CHAR = 2
"""BPF_DEVCG_DEV_CHAR, in the low half of the first word of the program's input; major and minor are the other words."""
_ATTRIBUTES = 128
"""Bytes of the call's argument: room for the fields of both commands."""


@dataclass(frozen=True, order=True, slots=True)
class Node:
    """A character device, by its numbers."""

    major: int
    minor: int

    @classmethod
    def of(cls, path: Path) -> Node:
        """The device of this file. Raises OSError if it is missing."""
        number = path.stat().st_rdev
        return cls(os.major(number), os.minor(number))


def deny(folder: str, nodes: Iterable[Node]) -> None:
    """Let no process of this cgroup open these devices, nor make files of them.

    Raises
    ------
    OSError : the kernel, or the machine's settings, do not allow it.
    """
    if os.path.exists(f"{folder}/{DENY}"):
        for node in sorted(nodes):
            Path(folder, DENY).write_text(f"c {node.major}:{node.minor} rwm")
        return
    program = _load(_program(sorted(nodes)))
    try:
        group = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # The cgroup holds the program from here on; a program of its parent, such as systemd's, is asked as well.
            _bpf(_ATTACH, struct.pack("=IIII", group, program, _DEVICE_HOOK, _ALLOW_MULTI))
        finally:
            os.close(group)
    finally:
        os.close(program)


def _program(nodes: Iterable[Node]) -> bytes:
    """Instructions that return 0 (refuse) for character devices with these numbers, and 1 for all others."""
    code = [
        _instruction(0x61, 2, source=1, offset=0),  # r2 = kind and access
        _instruction(0x54, 2, value=0xFFFF),  # r2 &= the kind
        _instruction(0x61, 3, source=1, offset=4),  # r3 = major
        _instruction(0x61, 4, source=1, offset=8),  # r4 = minor
        _instruction(0xB7, 0, value=1),  # r0 = 1
        _instruction(0x15, 2, offset=1, value=_CHAR),  # a character device: continue
        _instruction(0x95),  # return r0
    ]
    for node in nodes:
        code += [
            _instruction(0x55, 3, offset=3, value=node.major),  # another major: the next node
            _instruction(0x55, 4, offset=2, value=node.minor),
            _instruction(0xB7, 0, value=0),
            _instruction(0x95),
        ]
    return b"".join((*code, _instruction(0x95)))


def _instruction(code: int, target: int = 0, *, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | target, offset, value)


def _load(code: bytes) -> int:
    text, terms = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")
    fields = (_DEVICE_PROGRAM, len(code) // 8, ctypes.addressof(text), ctypes.addressof(terms))
    return _bpf(_LOAD, struct.pack("=IIQQ", *fields))


def _bpf(command: int, attributes: bytes) -> int:
    number = _CALL.get(platform.machine())
    if number is None:
        raise OSError(f"the number of bpf(2) on {platform.machine()} is not known")
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(number, command, ctypes.create_string_buffer(attributes, _ATTRIBUTES), _ATTRIBUTES)
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"bpf: {os.strerror(error)}")
    return int(found)
