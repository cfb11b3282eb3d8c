"""Files named by their SHA-256, with a quota: what the arbiter keeps of its users, and what a node keeps of the arbiter.

    FOLDER/<sha256>       whole and verified
    FOLDER/.<name>.part   being written; removed when the store is opened

A file gets its name in one step, after its data is on disk, so a crash leaves a whole file or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from types import TracebackType

from themis.errors import InputError

NAME = re.compile(r"[0-9a-f]{64}")
RECENT_S = 3600.0
"""A file that was used within this time is not removed for room: it may be of a submission that is on its way."""
ROOM = 64 << 20
"""Bytes that stay free on the disk: the journal is often on the same."""


class NoRoomInStore(InputError):
    """The store's quota is used up by files that are needed, or its disk is full."""


def check_name(name: str) -> str:
    """The name, if it is a SHA-256.

    Raises
    ------
    InputError : it is not.
    """
    if not NAME.fullmatch(name):
        raise InputError(f"{name[:100]!r} is not the name of a bundle, expected a SHA-256 of 64 hexadecimal digits.")
    return name


def nothing() -> Collection[str]:
    """No file is needed."""
    return ()


class Store:
    """A folder of such files.

    Parameters
    ----------
    folder : where they are; made with mode 700. ``quota`` : bytes of all files together.
    needed : names of the files that must not be removed; may be called from any thread.
    setting, called : the names of the quota and of the store, for messages. ``recent_s`` : a file that was used within this time is
        not removed for room.
    """

    def __init__(
        self,
        folder: Path,
        quota: int,
        needed: Callable[[], Collection[str]] = nothing,
        *,
        setting: str = "bundles_quota",
        called: str = "the store of bundles",
        recent_s: float = RECENT_S,
    ) -> None:
        self.folder, self.quota, self.needed = folder, quota, needed
        self.setting, self.called, self.recent_s = setting, called, recent_s
        self._lock = Lock()
        self._reserved = 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in folder.glob(".*.part"):
            part.unlink(missing_ok=True)

    def size(self, name: str) -> int | None:
        """Bytes of a file, None if it is not here; it counts as used now."""
        with contextlib.suppress(FileNotFoundError):
            path = self.folder / check_name(name)
            os.utime(path)
            return path.stat().st_size
        return None

    def path(self, name: str) -> Path:
        """Path of the file, which may not exist."""
        return self.folder / check_name(name)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """A part of a file; empty after its end. Raises FileNotFoundError."""
        with open(self.path(name), "rb") as file:
            return os.pread(file.fileno(), size, offset)

    def receive(self, size: int) -> Incoming:
        """Begin to write a file of at most ``size`` bytes.

        Raises
        ------
        NoRoomInStore : it does not fit.
        """
        with self._lock:
            self._make_room(size)
            self._reserved += size
        return Incoming(self, size)

    def used(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self._files())

    def trim(self, keep_s: float, now: float | None = None) -> list[str]:
        """Remove files without a user that were not used for ``keep_s``; returns their names."""
        now = time.time() if now is None else now
        needed, gone = set(self.needed()), []
        with self._lock:
            for used, _, name in self._files():
                if name not in needed and used < now - max(keep_s, RECENT_S):
                    self.path(name).unlink(missing_ok=True)
                    gone.append(name)
        return gone

    def _files(self) -> list[tuple[float, int, str]]:
        """(last use, bytes, name) of each file, the least recently used first."""
        out = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if NAME.fullmatch(entry.name):
                        found = entry.stat(follow_symlinks=False)
                        out.append((found.st_mtime, found.st_size, entry.name))
        return sorted(out)

    def _make_room(self, size: int) -> None:
        files, now = self._files(), time.time()
        there = sum(n for _, n, _ in files) + self._reserved
        if there + size > self.quota:
            needed = set(self.needed())
            for used, n, name in files:
                if there + size > self.quota and name not in needed and used < now - self.recent_s:
                    self.path(name).unlink(missing_ok=True)
                    there -= n
        if there + size > self.quota:
            raise NoRoomInStore(
                f"{self.called} has {there / 2**20:.0f} MiB that jobs need or that was used within the last hour, of "
                f"{self.quota / 2**20:.0f} MiB; {size / 2**20:.1f} MiB more do not fit. Send less, wait for jobs to end, or "
                f"increase {self.setting}."
            )
        disk = os.statvfs(self.folder)
        if disk.f_bavail * disk.f_frsize < size + self._reserved + ROOM:
            raise NoRoomInStore(
                f"the disk of {self.folder} has no room for {size / 2**20:.1f} MiB; free some of it, or send less."
            )

    def released(self, size: int) -> None:
        """A file that was being written is whole, or was given up."""
        with self._lock:
            self._reserved -= size


class Incoming:
    """A file that is being written; ``finish`` or ``abort`` ends it, as does leaving a ``with`` block."""

    def __init__(self, store: Store, most: int) -> None:
        self.store, self.most, self.size = store, most, 0
        self._digest = hashlib.sha256()
        self._path = store.folder / f".{secrets.token_hex(8)}.part"
        self._file: int | None = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abort()

    def write(self, data: bytes) -> None:
        """Append.

        Raises
        ------
        InputError : there is more than was announced. OSError : the disk is full.
        """
        assert self._file is not None
        self.size += len(data)
        if self.size > self.most:
            raise InputError(f"the bundle has more than the {self.most} bytes that were announced or allowed.")
        self._digest.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def finish(self, name: str = "", *, durable: bool = True) -> str:
        """Give the file its name, once all of it is on disk; the same content again changes nothing.

        ``durable`` : wait for the disk, so that the file is whole also after a power failure.

        Raises
        ------
        InputError : its SHA-256 is not ``name``.
        """
        assert self._file is not None
        found = self._digest.hexdigest()
        if name and found != name:
            self.abort()
            raise InputError(f"the bundle was damaged on its way: its SHA-256 is {found}, not {name}; send it again.")
        if durable:
            os.fsync(self._file)
        os.close(self._file)
        self._file = None
        self._path.replace(self.store.folder / found)
        if durable:
            folder = os.open(self.store.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self.store.released(self.most)
        return found

    def abort(self) -> None:
        """Drop what was written; may be called twice, and after ``finish``."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._path.unlink(missing_ok=True)
            self.store.released(self.most)
