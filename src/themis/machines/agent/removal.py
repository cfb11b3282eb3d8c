"""Removing folders that jobs wrote: of any depth and any size, links not followed, and without holding up who asks.

``shutil.rmtree`` recurses, so a job's deep folder could kill the process that removes it. Here each folder that is
found below is moved to the top before it is emptied: two open files and no recursion, however deep it was.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

GONE = ".gone-"
"""Begins the name of a folder that is being removed."""


def remove(path: str | Path, *, dir_fd: int | None = None) -> None:
    """Remove a folder with all that is in it; what cannot be removed stays. ``dir_fd`` : open folder that it is in."""
    with contextlib.suppress(OSError):
        top = _open(path, dir_fd)
        try:
            while sum(_empty(top, entry) for entry in _folders(top)):
                pass
        finally:
            os.close(top)
    with contextlib.suppress(OSError):
        os.rmdir(path, dir_fd=dir_fd)


def remove_later(path: Path) -> None:
    """Same as ``remove``, in a thread: a large folder takes longer than a machine's lease. Its name is free now."""
    gone = path if path.name.startswith(GONE) else path.with_name(f"{GONE}{secrets.token_hex(8)}")
    if gone != path:
        try:
            path.rename(gone)
        except OSError:
            return  # the folder is gone, or stays until the agent's next start
    _Remover.put(gone)


class _Remover:
    """One thread, which lives while there is something to remove."""

    lock = threading.Lock()
    queue: SimpleQueue[Path] = SimpleQueue()
    thread: threading.Thread | None = None

    @classmethod
    def put(cls, path: Path) -> None:
        with cls.lock:
            cls.queue.put(path)
            if cls.thread is None:
                cls.thread = threading.Thread(target=cls._run, name="themis-remove", daemon=True)
                cls.thread.start()

    @classmethod
    def _run(cls) -> None:
        while True:
            with cls.lock:
                if cls.queue.empty():
                    cls.thread = None
                    return
                path = cls.queue.get()
            remove(path)


def _open(path: str | Path, dir_fd: int | None) -> int:
    """A folder, made writable for its owner: package caches have some that are not."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.fstat(opened).st_mode)
        if mode & 0o700 != 0o700:
            os.fchmod(opened, mode | 0o700)
    return opened


def _folders(folder: int) -> Iterator[str]:
    """Remove the files of a folder; gives the folders in it."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            yield name
            continue
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _empty(top: int, name: str) -> bool:
    """Move the folders of a folder to the top, and remove it; whether that changed anything."""
    changed = False
    with contextlib.suppress(OSError):
        here = _open(name, top)
        try:
            for below in _folders(here):
                with contextlib.suppress(OSError):
                    os.rename(below, secrets.token_hex(16), src_dir_fd=here, dst_dir_fd=top)
                    changed = True
        finally:
            os.close(here)
        os.rmdir(name, dir_fd=top)
        changed = True
    return changed
