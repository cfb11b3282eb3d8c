"""A path as the trace files that it holds: one file, a folder of files or a tar archive; and its format.

Readers of headed CSV know their files by the columns. The others look at a ``Glimpse``: the first characters and the
names inside, read once for all of them.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from themis.errors import InputError
from themis.traces.csv_table import legible, opened

_ARCHIVES = (".tar", ".tar.gz", ".tgz")
_GLIMPSE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """First impression of a path, for format detection.

    Attributes
    ----------
    head : the first characters of a file; empty for a folder, an archive, or what cannot be read.
    members : names of the files in a folder or an archive; empty for a file.
    """

    path: Path
    head: str
    members: tuple[str, ...]

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line for line in self.head.splitlines() if line.strip()), "")

    def member(self, pattern: str) -> str | None:
        """The first member whose last part matches."""
        return next((name for name in self.members if fnmatch(name.rpartition("/")[2], pattern)), None)


def glimpse(path: Path) -> Glimpse:
    """Look at a path; an unreadable one looks empty, so that its reader can report the reason."""
    try:
        if is_bundle(path):
            return Glimpse(path=path, head="", members=tuple(members(path)))
        with opened(path) as file:
            return Glimpse(path=path, head=file.read(_GLIMPSE), members=())
    except InputError:
        return Glimpse(path=path, head="", members=())


def is_bundle(path: Path) -> bool:
    """True if the path is a folder or an archive."""
    return path.is_dir() or path.name.endswith(_ARCHIVES)


def stem(name: str) -> str:
    """A file's name without its folder and known endings: ``a/cluster01.csv.gz`` is ``cluster01``."""
    base = name.rpartition("/")[2]
    for ending in (".gz", ".tar", ".tgz", ".csv", ".json", ".trace", ".txt"):
        base = base.removesuffix(ending) or base
    return base


def texts(path: Path, pattern: str) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield (name, lines) of the file, or of every file in the folder or archive that matches, by name.

    Parameters
    ----------
    pattern : of the last part of a member's name, as in ``*.csv``; a single file need not match.

    Raises
    ------
    InputError : something cannot be read, or a folder or archive has no such file.
    """
    if not is_bundle(path):
        with opened(path) as file:
            yield str(path), file
        return
    names = [name for name in members(path) if fnmatch(name.rpartition("/")[2], pattern)]
    if not names:
        raise InputError(f"{path} holds no file {pattern}; expected at least one. Name the file itself.")
    yield from member_texts(path, names)


def member_texts(path: Path, names: Sequence[str]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield (name, lines) of these members of a folder or an archive.

    Raises
    ------
    InputError : one cannot be read.
    """
    if path.is_dir():
        for name in names:
            with opened(path / name) as file:
                yield str(path / name), file
        return
    # A packed archive can only be read forwards: all members first, then in the order asked for.
    content: dict[str, bytes] = {}
    with legible(path), tarfile.open(path) as archive:
        for member in archive:
            binary = archive.extractfile(member) if member.name in names else None
            if binary is not None:
                content[member.name] = binary.read()
    with legible(path):
        for name in names:
            yield f"{path}/{name}", io.TextIOWrapper(io.BytesIO(content[name]), encoding="utf-8-sig", newline="")


def members(path: Path) -> list[str]:
    """Names of the files in a folder or an archive, sorted."""
    with legible(path):
        if path.is_dir():
            return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        with tarfile.open(path) as archive:
            return sorted(member.name for member in archive if member.isfile())
