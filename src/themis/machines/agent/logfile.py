"""Logs of our own processes, rotated at ``MOST`` bytes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MOST = 16 << 20
"""Bytes; with the one before it twice as many are kept."""


def turned(path: Path) -> Path:
    """The log to append to; one that is long becomes ``NAME.1`` before, in place of the last of that name."""
    with contextlib.suppress(OSError):
        if path.lstat().st_size > MOST:
            os.replace(path, f"{path}.1")
    return path


class LogLines:
    """A piece of a rank's log as bytes: whether the file began again, the length of its path, the path, what was written."""

    @staticmethod
    def packed(path: str, anew: bool, data: bytes) -> bytes:
        """The entry in its wire form."""
        name = path.encode()
        return bytes([anew]) + len(name).to_bytes(2, "big") + name + data

    @staticmethod
    def unpacked(frame: bytes) -> tuple[str, bool, bytes]:
        """The inverse of ``packed``; ValueError for other text."""
        end = 3 + int.from_bytes(frame[1:3], "big")
        if len(frame) < end:
            raise ValueError("a piece of a log is too short")
        return frame[3:end].decode(), bool(frame[0]), frame[end:]
