"""Archives of what a job saved, one of each machine of its gang: together they are a copy, with which the next attempt begins.

    URL/copy-0003-12-1.tar    checkpoints of attempt 3, archive 12 of its machine 1
    TASK/copy.tar             for the service: checkpoints/, unless they go to a URL, and outputs/
    TASK/packed-12            what archive 12 has, as JSON: the SHA-256 and bytes of both, or a problem

Which archives belong together only the service knows; an archive that it does not name is never restored. Run as a script: ``save``
is started by the agent and takes on the job's user, ``restore`` is run by ``prepare``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import pwd
import re
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from themis.machines.agent.prepare import DEEPEST, MOST_MEMBERS, NEW, RESTORED, Failed, move, unpack

NAME = re.compile(r"copy-(\d{1,9})-(\d{1,18})-(\d{1,7})\.tar")
TRIES = 3
THROUGH_SERVICE = "themis://"
"""Same as in ``messages``, which this script does not import."""
PACKED, PACKED_AS, BEGAN = "copy.tar", "packed", "began"
"""Files in a task's folder: the archive for the service, what was packed, and one that was made before the ranks began."""
CHECKPOINTS, OUTPUTS = "checkpoints", "outputs"
"""Folders in an archive."""
MOST_NAMED = 20
"""Sentences about what was left out of one archive."""


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive; without ``sha256`` there is none, because there was nothing to pack. ``left`` : what was left out, and why."""

    sha256: str = ""
    bytes: int = 0
    left: tuple[str, ...] = ()


class Place:
    """The folder of one job's archives. ``url`` : of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            import fsspec  # type: ignore[import-untyped]
        except ImportError:
            raise Failed(
                "copies of checkpoints need fsspec on this machine: pip install 'themis-scheduler[storage]', and the package of "
                f"{url.partition(':')[0]}"
            ) from None
        try:
            self.fs, self.path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise Failed(f"{url}: {error}") from None

    @contextlib.contextmanager
    def opened(self, name: str, mode: str) -> Iterator[IO[bytes]]:
        """A file as a stream."""
        if mode == "wb":
            self.fs.makedirs(self.path, exist_ok=True)
        with self.fs.open(f"{self.path}/{name}", mode) as file:
            yield file

    def names(self) -> list[str]:
        """The names of all files in the folder."""
        self.fs.invalidate_cache()
        try:
            return [str(name).rpartition("/")[2] for name in self.fs.ls(self.path, detail=False)]
        except FileNotFoundError:
            return []

    def trim(self, attempt: int, number: int, machine: int) -> None:
        """Remove what an archive replaces, once it is in a whole copy: those of its machine before, and of earlier attempts."""
        for name in self.names() if number else ():
            if found := NAME.fullmatch(name):
                then, before, of = map(int, found.groups())
                if (then == attempt and of == machine and before < number) or (then < attempt and not machine):
                    with contextlib.suppress(OSError):
                        self.fs.rm_file(f"{self.path}/{name}")


def name_of(attempt: int, number: int, machine: int) -> str:
    """Name of an archive at a URL."""
    return f"copy-{attempt:04d}-{number}-{machine}.tar"


class _Hashing:
    """A stream that hashes what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        self.file.write(data)
        return len(data)


# ---- saving -----------------------------------------------------------------------------------------------------------


def state(folder: Path) -> list[tuple[str, int, int]]:
    """Names, times and sizes of the files of a folder: equal while nothing in it changes."""
    out = []
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(base, name))
                out.append((os.path.join(base, name), found.st_mtime_ns, found.st_size))
    return sorted(out)


def roots(checkpoints: Path | None, work: Path, outputs: Sequence[str]) -> list[tuple[Path, str]]:
    """Folders and files to pack, each with its name in the archive; ``outputs`` : relative to ``work``."""
    outputs = [name for name in dict.fromkeys(outputs) if not any(name.startswith(f"{other}/") for other in outputs)]
    found = [(checkpoints, CHECKPOINTS)] if checkpoints is not None and any(os.scandir(checkpoints)) else []
    return found + [(work / name, f"{OUTPUTS}/{name}") for name in outputs if os.path.lexists(work / name)]


def pack(
    opened: Callable[[], AbstractContextManager[IO[bytes]]],
    roots: Sequence[tuple[Path, str]],
    machine: int = 0,
    since: int = 0,
) -> Packed:
    """Write an archive of one moment of the checkpoints.

    Parameters
    ----------
    opened : the file to write, anew for each try. ``machine`` : position in its gang.
    since : change times (ctime, ns) before this are of files that this attempt began with, as all machines of the gang did. They
        are in the archive of machine 0 alone, marked: a file of another machine's archive replaces such a one. 0 for one machine.

    Raises
    ------
    Failed : files changed while they were read, each time, or they are too many or too deep to be unpacked again.
    OSError : a folder, or the place.
    """
    watched = [path for path, name in roots if name == CHECKPOINTS]
    for tries in range(TRIES):
        left, files, before = list[str](), [0, 0], [state(path) for path in watched]
        # A file that is missing was replaced by the job meanwhile.
        with contextlib.suppress(FileNotFoundError, tarfile.TarError), opened() as file:
            writer = _Hashing(file)
            with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 18) as archive:  # type: ignore[call-overload]
                for path, name in roots:
                    archive.add(path, name, filter=_member(archive, path, name, left, files, machine, since))
            if [state(path) for path in watched] == before:
                found = (writer.digest.hexdigest(), writer.size) if files[1] else ("", 0)
                return Packed(*found, tuple(left))
        time.sleep(1.0 + tries)
    raise Failed(f"files changed while they were copied, {TRIES} times")


def _member(
    archive: tarfile.TarFile, path: Path, name: str, left: list[str], count: list[int], machine: int, since: int
) -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
    """Filter of the members of an archive: files, folders and links within the folder, without owners.

    Absolute links in it become relative. ``count`` : of members, and of those that are no folders.
    """
    top = os.path.realpath(path) if not path.is_symlink() else str(path)

    def member(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
        # Else the second name of a file is a link in the archive, and of no use.
        archive.inodes.clear()  # type: ignore[attr-defined]
        found.uid = found.gid = 0
        found.uname = found.gname = ""
        if found.name.count("/") >= DEEPEST:
            raise Failed(f"{found.name[:100]}... is more than {DEEPEST} folders deep")
        if not (found.isfile() or found.isdir() or found.issym()):
            left.append(f"{found.name} was not copied: it is no file, folder or link")
            return None
        if found.issym():
            target, below = found.linkname, posixpath.relpath(posixpath.dirname(found.name) or ".", name)
            if target.startswith(f"{top}/"):
                target = posixpath.relpath(target[len(top) + 1 :], below)
            inside = posixpath.normpath(posixpath.join(below, target))
            if target.startswith("/") or inside == ".." or inside.startswith("../"):
                left.append(f"{found.name} was not copied: it is a link to {target!r}, out of its folder")
                return None
            found.linkname = target
        if not found.isdir():
            if os.lstat(f"{path}{found.name[len(name) :]}").st_ctime_ns < since:
                if machine:
                    return None
                found.pax_headers = {RESTORED: "1"}
            count[1] += 1
        count[0] += 1
        if count[0] > MOST_MEMBERS:
            raise Failed(f"there are more than {MOST_MEMBERS} files, folders and links")
        return found

    return member


# ---- restoring --------------------------------------------------------------------------------------------------------


def restore(place: Place, folder: Path, parts: Sequence[tuple[str, str]]) -> None:
    """Bring archives, as (name, SHA-256), into the folder. Until all is there, the folder has one of the name ``NEW``.

    Without any it only finds out whether the place can be used.

    Raises
    ------
    Failed : one is not there, or damaged. OSError : the place cannot be read.
    """
    place.fs.makedirs(place.path, exist_ok=True)
    new = folder / NEW
    shutil.rmtree(new, ignore_errors=True)
    (new / "files").mkdir(parents=True)
    for name, sha256 in parts:
        try:
            with place.opened(name, "rb") as source, open(new / "archive", "w+b") as file:
                shutil.copyfileobj(source, file, 1 << 20)
                file.flush()
                unpack(file.fileno(), str(new / "files"), sha256, over=True)
        except (Failed, FileNotFoundError) as error:
            raise Failed(
                f"{name} at {place.url} is missing or damaged ({error}); put it back, or submit the job again to start from nothing"
            ) from None
    move(str(new / "files" / CHECKPOINTS), str(folder))
    shutil.rmtree(new)


# ---- as a script ------------------------------------------------------------------------------------------------------


def _line(sentence: str) -> bytes:
    """One line of a log: names of files may have line feeds, control characters and bytes that are no UTF-8."""
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in sentence)
    return shown.encode()


def succeeded(task: Path) -> bool:
    """True if the final archive of this task is where it belongs."""
    with contextlib.suppress(OSError):
        return (task / "copied").read_text() == "0"
    return False


def _save_for(task: Path, number: int, whole: int) -> int:
    """Started by the agent, maybe as root: a child takes on the job's user. ``whole`` : its last archive in a whole copy."""
    raw = json.loads((task / "task.json").read_text())
    spec = raw["spec"]
    log = open(raw["logs"][0], "ab", buffering=0)  # noqa: SIM115
    packed, since = None, 0
    if spec["machines"] > 1:
        with contextlib.suppress(OSError):
            since = os.stat(task / BEGAN).st_ctime_ns
    if spec.get("outputs") or spec["checkpoint_url"] == THROUGH_SERVICE:
        # Another file: what wrote the last one may have been killed, and its child not.
        (task / PACKED).unlink(missing_ok=True)
        packed = open(os.open(task / PACKED, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b")  # noqa: SIM115
    answer, report = os.pipe()
    child = os.fork()
    if child == 0:
        _as_user(raw, number, whole, since, log, packed, report)
    os.close(report)
    deadline, done = time.monotonic() + spec["copy_s"], 0
    while not done:
        done, _ = os.waitpid(child, os.WNOHANG)
        if not done and time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            log.write(f"themis: checkpoints were not copied within {spec['copy_s']:g} s\n".encode())
            deadline = float("inf")
        elif not done:
            time.sleep(0.05)
    found = os.read(answer, 1 << 16).decode() or json.dumps({"problem": "they could not be packed, as its log says"})
    (task / f"{PACKED_AS}-{number}").write_text(found)
    return 0


def _as_user(
    raw: dict[str, Any], number: int, whole: int, since: int, log: IO[bytes], packed: IO[bytes] | None, report: int
) -> NoReturn:
    spec, said = raw["spec"], list[str]()
    attempt, machine, url = spec["attempt"], spec["machine"], spec["checkpoint_url"]
    found: dict[str, Any] = {"problem": ""}
    what = f"checkpoints were not copied to {url}" if packed is None else "checkpoints and outputs were not copied"
    try:
        os.environ.clear()
        os.environ.update(raw["ranks"][0])
        if raw["user"]:
            user = pwd.getpwnam(raw["user"])
            os.initgroups(raw["user"], user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        checkpoints = Path(raw["checkpoint_dir"])
        if not os.path.lexists(Path(raw.get("setup", {}).get("draft", checkpoints), NEW)):  # else it did not run here
            if url not in ("", THROUGH_SERVICE):
                place, name = Place(url), name_of(attempt, number, machine)
                place.trim(attempt, whole, machine)
                made = pack(lambda: place.opened(name, "wb"), roots(checkpoints, Path(), ()), machine, since)
                found |= {"url_sha256": made.sha256, "url_bytes": made.bytes}
                said += made.left
            if packed is not None:
                kept = roots(checkpoints if url == THROUGH_SERVICE else None, Path(raw["cwd"]), spec["outputs"])
                made = pack(lambda: _anew(packed), kept, machine, since)
                found |= {"sha256": made.sha256, "bytes": made.bytes}
                said += made.left
    except BaseException as error:
        found = {"problem": f"{what}: {error}"}
        said.append(found["problem"])
    if len(said) > MOST_NAMED:
        said[MOST_NAMED:] = [f"{len(said) - MOST_NAMED} more were not copied"]
    with contextlib.suppress(OSError):
        log.write(b"".join(b"themis: %s\n" % _line(sentence) for sentence in said))
    os.write(report, json.dumps({**found, "problem": found["problem"][:500]}).encode())
    os._exit(0)


@contextlib.contextmanager
def _anew(file: IO[bytes]) -> Iterator[IO[bytes]]:
    file.seek(0)
    file.truncate()
    yield file
    file.flush()


def main(words: list[str]) -> int:
    """``save TASK-FOLDER NUMBER NUMBER-OF-THE-LAST-WHOLE`` or ``restore URL FOLDER NAME SHA256...``."""
    if words[0] == "save":
        return _save_for(Path(words[1]), int(words[2]), int(words[3]))
    url, folder, *parts = words[1:]
    try:
        restore(Place(url), Path(folder), [*zip(parts[::2], parts[1::2])])
    except Exception as error:
        kind = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
        print(f"themis: checkpoints cannot be restored from {url}: {kind}{error}", flush=True)
        return 1
    if parts:
        print("themis: checkpoints of the attempts before were restored", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
