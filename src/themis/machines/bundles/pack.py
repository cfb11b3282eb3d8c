"""A folder -> an archive that is the same for the same files: git's files, or all but those that ignore files name.

In a git work tree these are tracked files and untracked ones that git does not ignore; elsewhere, those that no ``.gitignore``
excludes. ``.themisignore``, in the same syntax, excludes more in both. The archive is a plain tar in the order of names,
without owners and times, with the modes 644 and 755 as git has them, so that equal files have an equal SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from themis.errors import InputError, counted

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".themisignore")
MOST_FILES = 100_000
LARGEST = 5
"""Files that a message names."""
MTIME = 315_532_800
"""1 January 1980: zip files, and so wheels, know no earlier time."""
GIT_S = 60.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """An archive.

    Attributes
    ----------
    path : a temporary file, which the caller removes. ``sha256`` : its name in a store. ``bytes`` : its size.
    files : number of files. ``skipped`` : sockets, pipes and devices that were left out.
    """

    path: Path
    sha256: str
    bytes: int
    files: int
    skipped: tuple[str, ...] = ()


def pack(folder: Path, most_bytes: int) -> Packed:
    """The archive of a folder, in a temporary file.

    Raises
    ------
    InputError : it is no folder, has too much, or has a link that leads out of it; names the files.
    """
    folder = folder.absolute()
    names, skipped = _chosen(folder)
    _check(folder, names, most_bytes)
    descriptor, path = tempfile.mkstemp(prefix="themis-bundle-")
    try:
        with open(descriptor, "wb") as file:
            writer = _Hashing(file)
            with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
                for name in names:
                    _add(archive, folder, name)
        return Packed(
            path=Path(path), sha256=writer.digest.hexdigest(), bytes=writer.size, files=len(names), skipped=skipped
        )
    except BaseException:
        os.unlink(path)
        raise


class _Hashing:
    """A file that hashes what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.file.write(data)


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    path = folder / name
    entry = tarfile.TarInfo(name)
    entry.mtime = MTIME
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            entry.type, entry.mode, entry.linkname = tarfile.SYMTYPE, 0o777, os.readlink(path)
            archive.addfile(entry)
            return
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            entry.mode, entry.size = 0o755 if found.st_mode & stat.S_IXUSR else 0o644, found.st_size
            archive.addfile(entry, file)
    except (OSError, tarfile.TarError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it changed while it was read; try again"
        raise InputError(f"cannot send {str(path)!r}: {why}.") from None


def _check(folder: Path, names: Sequence[str], most_bytes: int) -> None:
    """Refuse what is too much, and links that would lead nowhere on another machine."""
    sizes = []
    for name in names:
        path = folder / name
        try:
            found = path.lstat()
        except OSError as error:
            raise InputError(f"cannot send {str(path)!r}: {error.strerror}.") from None
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(path)
            inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
            if target.startswith("/") or inside == ".." or inside.startswith("../"):
                raise InputError(
                    f"{str(path)!r} is a link to {target!r}, out of the folder that is sent, which other machines do not have. Add "
                    f"{name!r} to .themisignore, or replace it by what it leads to."
                )
        else:
            sizes.append((found.st_size, name))
    total = sum(size for size, _ in sizes)
    if len(names) <= MOST_FILES and total <= most_bytes:
        return
    largest = ", ".join(f"{name} ({size / MIB:.1f} MiB)" for size, name in sorted(sizes, reverse=True)[:LARGEST])
    much = f"{total / MIB:.1f} MiB in {counted(len(names), 'file')}"
    limits = f"{most_bytes / MIB:.1f} MiB (max_bundle) and {MOST_FILES} files"
    raise InputError(
        f"the folder {str(folder)!r} has {much}, more than {limits}. The largest: {largest}. Name what the job does not need in "
        ".themisignore, or put data where all machines find it."
    )


def _chosen(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """Names of the files and links to send, in order, and of those that cannot be sent."""
    if not folder.is_dir():
        raise InputError(f"the folder to send, {str(folder)!r}, does not exist, or is not a folder.")
    found = _of_git(folder)
    rules = _Rules(folder, (".themisignore",)) if found is not None else _Rules(folder, IGNORE_FILES)
    names: list[str] = []
    skipped: list[str] = []
    for name in found if found is not None else _walked(folder, "", rules):
        if found is not None and rules.ignores(name):
            continue
        try:
            kind = (folder / name).lstat().st_mode
        except FileNotFoundError:
            continue  # tracked, and deleted
        (names if stat.S_ISREG(kind) or stat.S_ISLNK(kind) else skipped).append(name)
        if len(names) > 10 * MOST_FILES:
            raise InputError(f"the folder {str(folder)!r} has more than {10 * MOST_FILES} files; send a smaller one.")
    return sorted(set(names)), tuple(sorted(skipped))


def _of_git(folder: Path) -> list[str] | None:
    """Tracked files and untracked ones that are not ignored, submodules' included; None where it is no work tree of git."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        reply = subprocess.run(command, capture_output=True, timeout=GIT_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if reply.returncode != 0:
        return None
    out = []
    for name in map(os.fsdecode, filter(None, reply.stdout.split(b"\0"))):
        path = folder / name
        if path.is_dir() and not path.is_symlink():  # a submodule, or a work tree within this one
            inside = _of_git(path) if (path / ".git").exists() else None
            out += [posixpath.join(name.rstrip("/"), below) for below in inside or ()]
        else:
            out.append(name)
    return out


def _walked(folder: Path, below: str, rules: _Rules) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            f"cannot read {str(folder / below)!r}: {error.strerror}. Name it in .themisignore to leave it out."
        ) from None
    for entry in entries:
        name = posixpath.join(below, entry.name)
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name == ".git" or rules.ignores(f"{name}/" if is_folder else name):
            continue
        if is_folder:
            yield from _walked(folder, name, rules)
        else:
            yield name


class _Rules:
    """The ignore files of a folder and of those below; the last rule that matches decides, a deeper file over a higher one."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        self.folder, self.files = folder, files
        self._specs: dict[str, GitIgnoreSpec | None] = {}

    def ignores(self, name: str) -> bool:
        """True if a file is left out, or a folder, whose name ends with a slash, with all its content."""
        parts = name.rstrip("/").split("/")
        for end in range(1, len(parts) + 1):
            is_folder = end < len(parts) or name.endswith("/")
            if self._matches("/".join(parts[:end]) + ("/" if is_folder else ""), end):
                return True
        return False

    def _matches(self, name: str, depth: int) -> bool:
        parts = name.split("/")
        for level in range(depth - 1, -1, -1):
            spec = self._spec("/".join(parts[:level]))
            found = spec.check_file("/".join(parts[level:])).include if spec is not None else None
            if found is not None:
                return found
        return False

    def _spec(self, below: str) -> GitIgnoreSpec | None:
        if below not in self._specs:
            self._specs[below] = self._read(below)
        return self._specs[below]

    def _read(self, below: str) -> GitIgnoreSpec | None:
        from pathspec import GitIgnoreSpec

        lines: list[str] = []
        for file in self.files:
            path = self.folder / below / file
            try:
                lines += path.read_text(encoding="utf-8").splitlines()
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                raise InputError(f"cannot read {str(path)!r}: {error}.") from None
        try:
            return GitIgnoreSpec.from_lines(lines) if lines else None
        except ValueError as error:
            raise InputError(f"an ignore file in {str(self.folder / below)!r} has a wrong line: {error}.") from None
