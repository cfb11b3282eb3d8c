"""A task's own folder of files, and the files, packages and launchers that its supervisor gets.

ROOT/work/TASK/              the files that the job was sent with, unpacked again for each attempt
ROOT/environments/USER/KEY/  packages, shared by a user's gangs (``prepare``)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import posixpath
import pwd
import stat
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from themis.errors import InputError
from themis.machines.agent import checkpoint_copies, launchers
from themis.machines.agent.messages import THROUGH_SERVICE, Part, TaskSpec
from themis.machines.agent.prepare import KEY, WHOLE, with_modules
from themis.machines.agent.removal import GONE, remove, remove_later

ARCHIVE = "bundle.tar"


@dataclass(frozen=True, slots=True)
class Room:
    """The folders of one task. ``work`` : of its files, there only if it was sent with some. ``cwd`` : where its ranks run."""

    root: Path
    work: Path
    cwd: str = "/"

    @classmethod
    def of(cls, root: Path, task: str) -> Room:
        """Room of a task that may have one."""
        return cls(root, root / "work" / task)

    @classmethod
    def make(cls, root: Path, spec: TaskSpec) -> Room:
        """Make what the task needs, owned by its user.

        Raises
        ------
        InputError : it cannot be made.
        """
        work = root / "work" / spec.task
        cwd = posixpath.normpath(f"{work}/{spec.cwd.lstrip('/')}") if spec.bundle else spec.cwd
        try:
            if spec.bundle:
                remove_later(work)
                _own(work, spec.user)
            if spec.packages:
                _own(_environments(root, spec.user), spec.user)
        except OSError as error:
            raise InputError(f"job {spec.job}: cannot make its folder {error.filename}: {error.strerror}.") from error
        return cls(root, work, cwd)

    def link(self, spec: TaskSpec, folder: Path, parts: Sequence[Part] = ()) -> None:
        """Keep the bundle and the copy for the supervisor, whatever the cache drops meanwhile. Raises FileNotFoundError."""
        if spec.bundle:
            os.link(_cached(self.root, spec.bundle), folder / ARCHIVE)
        for part in parts:
            if part.sha256:
                os.link(_cached(self.root, part.sha256), folder / _begins_with(part))

    def written(
        self, spec: TaskSpec, folder: Path, envs: Sequence[Mapping[str, str]], parts: Sequence[Part] = ()
    ) -> dict[str, Any]:
        """Settings of the task that its supervisor reads; ``folder`` : folder of the task. Empty if the task needs
        none."""
        out: dict[str, Any] = {}
        # The first machine's files last: of two that the gang wrote under one name, they stay.
        parts = sorted(parts, key=lambda part: -part.machine)
        url = spec.checkpoint_url if spec.checkpoint_url != THROUGH_SERVICE else ""
        if spec.bundle or spec.packages or spec.modules or url or parts:
            out["setup"] = {
                "bundle": spec.bundle,
                "archive": str(folder / ARCHIVE) if spec.bundle else "",
                "cached": str(_cached(self.root, spec.bundle)) if spec.bundle else "",
                "work": str(self.work),
                "cwd": self.cwd,
                "packages": spec.packages,
                "environments": str(_environments(self.root, spec.user)),
                "modules": spec.modules,
                "seconds": spec.setup_s,
                "copies": [
                    {
                        "sha256": part.sha256,
                        "archive": str(folder / _begins_with(part)),
                        "cached": str(_cached(self.root, part.sha256)),
                    }
                    for part in parts
                    if part.sha256
                ],
                "draft": spec.checkpoint_dir if spec.checkpoint_url else self.cwd,
                "checkpoints": spec.checkpoint_dir,
            }
        if url:
            command = [sys.executable, "-I", checkpoint_copies.__file__, "restore", url, spec.checkpoint_dir]
            for part in parts:
                if part.url_sha256:
                    command += checkpoint_copies.name_of(part.attempt, part.number, part.machine), part.url_sha256
            out["setup"]["restore"] = command
        if spec.launcher or spec.modules:
            names = [f"themis-{spec.task}-rank{rank}" for rank in spec.ranks]
            writable = [str(folder / "reports"), spec.checkpoint_dir, *([str(self.work)] if spec.bundle else ())]
            readable = [str(folder), *([str(_environments(self.root, spec.user))] if spec.packages else ())]
            out["commands"] = [
                (
                    *with_modules(spec.modules),
                    *launchers.wrapped(
                        spec.launcher,
                        spec.argv,
                        env,
                        cwd=self.cwd,
                        folders=writable,
                        readable=readable,
                        name=name,
                        user=spec.user,
                        devices=spec.devices,
                    ),
                )
                for env, name in zip(envs, names)
            ]
            out["cleanup"] = launchers.cleanup(spec.launcher, names)
            out["signals_children"] = launchers.signals_children(spec.launcher)
        return out

    def remove(self) -> None:
        """Drop the files; links in them are not followed."""
        remove_later(self.work)


def sweep_rooms(root: Path, tasks: Collection[str]) -> None:
    """Drop the files of tasks that are no more, and what an agent before was about to remove."""
    for path in (root / "checkpoints").glob(f"{GONE}*"):
        remove_later(path)
    with contextlib.suppress(OSError):
        for path in (root / "work").iterdir():
            if path.name not in tasks:
                remove_later(path)


def trim_environments(root: Path, most_bytes: int) -> threading.Thread:
    """Remove unused environments, least recently used first, until all are at most this many bytes; in a thread."""
    thread = threading.Thread(target=_trim, args=(root, most_bytes), name="themis-trim", daemon=True)
    thread.start()
    return thread


def _trim(root: Path, most_bytes: int) -> None:
    found = []
    for path in (root / "environments").glob("*/*"):
        if not KEY.fullmatch(path.name) or path.is_symlink():
            continue
        found.append((*_used(path / WHOLE), path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most_bytes:
            return
        with contextlib.suppress(OSError):
            lock = os.open(f"{path}.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
                total -= size
            finally:
                os.close(lock)


def _cached(root: Path, bundle: str) -> Path:
    return root / "cache" / "bundles" / bundle


def _begins_with(part: Part) -> str:
    return f"begins-with-{part.machine}.tar"


def _used(marker: Path) -> tuple[float, int]:
    """Last use of an environment, and its bytes; the file is the job's, so its content is not trusted."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        file = os.open(marker, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(file).st_mode):
                return os.fstat(file).st_mtime, max(int(json.loads(os.read(file, 4096))["bytes"]), 0)
        finally:
            os.close(file)
    return 0.0, 0


def _environments(root: Path, user: str) -> Path:
    return root / "environments" / (user or "own")


def _own(path: Path, user: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        if os.geteuid() == 0 and user:
            entry = pwd.getpwnam(user)
            os.chown(path, entry.pw_uid, entry.pw_gid)
