"""Copies of a job's checkpoint folder at a URL of fsspec, so that its next attempt resumes on a machine without that folder.

    URL/began-0003.json         attempt 3 begins; its final copy will come
    URL/copy-0003-0001.tar      a copy of attempt 3, and its marker, written after it: size and SHA-256
    URL/copy-0003-0001.json
    URL/copying-0003.json       its ranks have ended, and the final copy is being written
    URL/ended-0003.json         the final copy is there, or has failed

A copy without its marker does not exist, so half of one is never restored. Run as a script, ``python copies.py save|restore``,
with the arguments as JSON; ``save`` is started by the agent and takes on the job's user, ``restore`` is run by ``prepare``.

What the service keeps is packed here into ``copy.tar`` in the task's folder, which the agent sends; ``prepare`` unpacks it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
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
from pathlib import Path
from typing import IO, Any, NoReturn

SIGN_S = 30.0
"""An attempt that ended shows within this time that its final copy is being written; otherwise its machine is gone."""
KEPT = 2
"""Complete copies that are kept."""
NEW = ".themis-restore"
"""In a checkpoint folder, the mark of an unfinished restore: the job did not run there, and nothing of it is copied."""
MARKER = re.compile(r"copy-(\d{1,9})-(\d{1,9})\.json")
TRIES = 3
THROUGH_SERVICE = "themis://"
"""Same as in ``messages``, which this script does not import."""
PACKED, PACKED_CODE = "copy.tar", "packed"
"""Files in a task's folder: the archive for the service, and the exit code of the process that wrote the final one."""
CHECKPOINTS, OUTPUTS = "checkpoints", "outputs"
"""Folders in that archive."""
MOST_MEMBERS, DEEPEST = 200_000, 200
"""Same as in ``prepare``, which unpacks no more."""
MOST_NAMED = 20
"""Sentences about what was left out of one copy."""
FILTER: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
"""Python 3.11.4 has it first; the archive is the job's own, and unpacked with its rights."""


class Failed(Exception):
    """A sentence for the job's owner."""


class Place:
    """The folder of one job's copies. ``url`` : of it."""

    def __init__(self, url: str) -> None:
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

    def names(self) -> list[str]:
        """The names of all files in the folder."""
        self.fs.invalidate_cache()
        try:
            return [str(name).rpartition("/")[2] for name in self.fs.ls(self.path, detail=False)]
        except FileNotFoundError:
            return []

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write a marker."""
        self.fs.makedirs(self.path, exist_ok=True)
        self.fs.pipe_file(f"{self.path}/{name}", json.dumps(value).encode())

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a marker; None if it is missing or incomplete."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self.fs.cat_file(f"{self.path}/{name}"))
            return found if isinstance(found, dict) else None
        return None

    @contextlib.contextmanager
    def opened(self, name: str, mode: str) -> Iterator[IO[bytes]]:
        """A file as a stream."""
        with self.fs.open(f"{self.path}/{name}", mode) as file:
            yield file

    def copies(self) -> list[tuple[int, int]]:
        """(attempt, number) of each copy that has a marker, the oldest first."""
        return sorted((int(m[1]), int(m[2])) for name in self.names() if (m := MARKER.fullmatch(name)))

    def remove(self, name: str) -> None:
        """Remove a file that may not be there."""
        with contextlib.suppress(OSError):
            self.fs.rm_file(f"{self.path}/{name}")


class _Hashing:
    """A stream that hashes what passes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self._count(data)
        self.file.write(data)
        return len(data)

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self._count(data)
        return data

    def _count(self, data: bytes) -> None:
        self.digest.update(data)
        self.size += len(data)


# ---- saving -----------------------------------------------------------------------------------------------------------


def save(place: Place, folder: Path, attempt: int, number: int, *, final: bool) -> bool:
    """Copy a folder; returns True if it held anything that a job can resume from.

    Raises
    ------
    Failed : files changed while they were read, each time. OSError : the place, or the folder.
    """
    if final:
        place.write(f"copying-{attempt:04d}.json", {"time": time.time()})
    if not any(folder.iterdir()) or (folder / NEW).exists():
        return False
    name = f"copy-{attempt:04d}-{number:04d}"
    for tries in range(TRIES):
        before = _state(folder)
        place.fs.makedirs(place.path, exist_ok=True)
        try:
            with place.opened(f"{name}.tar", "wb") as file:
                writer = _Hashing(file)
                with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
                    archive.add(folder, arcname=".", filter=_own(archive))
            if final or _state(folder) == before:
                break
        except (FileNotFoundError, tarfile.TarError):
            pass  # the job replaced a file meanwhile
        time.sleep(1.0 + tries)
    else:
        place.remove(f"{name}.tar")
        raise Failed(f"checkpoints in {folder} changed while they were copied, {TRIES} times")
    place.write(f"{name}.json", {"sha256": writer.digest.hexdigest(), "bytes": writer.size, "time": time.time()})
    for old in place.copies()[:-KEPT]:
        for kind in ("json", "tar"):
            place.remove(f"copy-{old[0]:04d}-{old[1]:04d}.{kind}")
    return True


def _own(archive: tarfile.TarFile) -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
    """Filter of the archive members of a folder: files, folders and links, without owners."""

    def member(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
        # Else the second name of a file is a link in the archive, and of no use.
        archive.inodes.clear()  # type: ignore[attr-defined]
        found.uid = found.gid = 0
        found.uname = found.gname = ""
        return found if found.isfile() or found.isdir() or found.issym() else None

    return member


def _state(folder: Path) -> list[tuple[str, int, int]]:
    out = []
    for base, _, names in os.walk(folder):
        for name in sorted(names):
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(base, name))
                out.append((os.path.join(base, name), found.st_mtime_ns, found.st_size))
    return sorted(out)


def pack(file: IO[bytes], checkpoints: Path | None, work: Path, outputs: Sequence[str]) -> list[str]:
    """Write the archive for the service; returns sentences about what was left out. An empty folder gives no archive.

    Parameters
    ----------
    checkpoints : folder, None if the service keeps none. ``work`` : that ``outputs`` are relative to.

    Raises
    ------
    Failed : files changed while they were read, each time, or they are too many or too deep to be unpacked again.
    OSError : a folder, or the disk of this machine.
    """
    outputs = [name for name in dict.fromkeys(outputs) if not any(name.startswith(f"{other}/") for other in outputs)]
    roots = [(checkpoints, CHECKPOINTS)] if checkpoints is not None and any(checkpoints.iterdir()) else []
    roots += [(work / name, f"{OUTPUTS}/{name}") for name in outputs if os.path.lexists(work / name)]
    for tries in range(TRIES):
        file.seek(0)
        file.truncate()
        if not roots:
            return []
        left: list[str] = []
        count = itertools.count(1)
        before = _state(checkpoints) if checkpoints is not None else []
        with contextlib.suppress(FileNotFoundError, tarfile.TarError):  # the job replaced a file meanwhile
            with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for path, name in roots:
                    archive.add(path, arcname=name, filter=_within(archive, path, name, left, count))
            if checkpoints is None or _state(checkpoints) == before:
                file.flush()
                return left
        time.sleep(1.0 + tries)
    raise Failed(f"files changed while they were copied, {TRIES} times")


def _within(
    archive: tarfile.TarFile, path: Path, name: str, left: list[str], count: Iterator[int]
) -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
    """Same as ``_own``, but links that lead out of the folder are left out and absolute ones in it become relative."""
    own, top = _own(archive), os.path.realpath(path) if not path.is_symlink() else str(path)

    def member(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if found.name.count("/") >= DEEPEST:
            raise Failed(f"{found.name[:100]}... is more than {DEEPEST} folders deep")
        if (kept := own(found)) is None:
            left.append(f"{found.name} was not copied: it is no file, folder or link")
        elif kept.issym():
            target, below = kept.linkname, posixpath.relpath(posixpath.dirname(kept.name) or ".", name)
            if target.startswith(f"{top}/"):
                target = posixpath.relpath(target[len(top) + 1 :], below)
            inside = posixpath.normpath(posixpath.join(below, target))
            if target.startswith("/") or inside == ".." or inside.startswith("../"):
                left.append(f"{found.name} was not copied: it is a link to {target!r}, out of its folder")
                return None
            kept.linkname = target
        if kept is not None and next(count) > MOST_MEMBERS:
            raise Failed(f"there are more than {MOST_MEMBERS} files, folders and links")
        return kept

    return member


# ---- restoring --------------------------------------------------------------------------------------------------------


def restore(place: Place, folder: Path, attempt: int, *, lead: bool, wait_s: float) -> str:
    """Bring the newest complete copy into the folder, once the attempt before has written its last; says what was done.

    What the folder had is replaced, except where there is no copy. Until it is whole, the folder has one of the name ``NEW``.

    Raises
    ------
    OSError : the place cannot be read.
    """
    (folder / NEW).mkdir(exist_ok=True)
    said = _restored(place, folder, attempt, lead=lead, wait_s=wait_s)
    shutil.rmtree(folder / NEW)
    return said


def _restored(place: Place, folder: Path, attempt: int, *, lead: bool, wait_s: float) -> str:
    notes = _await_last(place, attempt, wait_s)
    if lead:
        place.write(f"began-{attempt:04d}.json", {"time": time.time()})
    for number in reversed([copy for copy in place.copies() if copy[0] < attempt]):
        name = f"copy-{number[0]:04d}-{number[1]:04d}"
        marker = place.read(f"{name}.json")
        if marker is not None and _fetch(place, name, folder, str(marker.get("sha256"))):
            return f"{notes}checkpoints of attempt {number[0]} were restored ({marker.get('bytes', 0)} bytes)"
        notes += f"the copy {name} is damaged and was left out; "
    return f"{notes}no copy of checkpoints is there"


def _await_last(place: Place, attempt: int, wait_s: float) -> str:
    """Wait for the final copy of the attempt before; empty once it is there, else why it was not waited for."""
    began = [int(name[6:10]) for name in place.names() if re.fullmatch(r"began-\d{4}\.json", name)]
    last = max((number for number in began if number < attempt), default=0)
    if not last:
        return ""
    start = time.monotonic()
    while True:
        names = place.names()
        if f"ended-{last:04d}.json" in names:
            problem = (place.read(f"ended-{last:04d}.json") or {}).get("problem", "")
            return f"attempt {last}: {problem}; " if problem else ""
        waited = time.monotonic() - start
        if waited > SIGN_S and f"copying-{last:04d}.json" not in names:
            return f"attempt {last} left no final copy, its machine may be gone; "
        if waited > wait_s:
            return f"the final copy of attempt {last} was not complete after {wait_s:g} s; "
        time.sleep(0.5)


def _fetch(place: Place, name: str, folder: Path, sha256: str) -> bool:
    new = folder / NEW
    for path in new.iterdir():  # of a copy that was damaged
        _remove(path)
    try:
        with place.opened(f"{name}.tar", "rb") as file:
            reader = _Hashing(file)
            with tarfile.open(fileobj=reader, mode="r|") as archive:  # type: ignore[call-overload]
                for member in archive:
                    archive.extract(member, new, **FILTER)
            while reader.read(1 << 20):
                pass
        if reader.digest.hexdigest() != sha256:
            return False
    except (FileNotFoundError, tarfile.TarError):
        return False
    for path in folder.iterdir():
        if path != new:
            _remove(path)
    for path in new.iterdir():
        if path.name != NEW:
            path.rename(folder / path.name)
    return True


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _line(sentence: str) -> bytes:
    """One line of a log: names of files may have line feeds, control characters and bytes that are no UTF-8."""
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in sentence)
    return shown.encode()


def succeeded(task: Path) -> bool:
    """True if the final copy of this task is at its URL."""
    with contextlib.suppress(OSError):
        return (task / "copied").read_text() == "0"
    return False


# ---- as a script ------------------------------------------------------------------------------------------------------


def _save_for(task: Path, number: int, final: bool) -> int:
    """Started by the agent, maybe as root: a child takes on the job's user; the file ``copied`` marks the end."""
    raw = json.loads((task / "task.json").read_text())
    spec = raw["spec"]
    log = open(raw["logs"][0], "ab", buffering=0)  # noqa: SIM115
    packed = None
    if spec.get("outputs") or spec["checkpoint_url"] == THROUGH_SERVICE:
        # Another file: what wrote the last one may have been killed, and its child not.
        (task / PACKED).unlink(missing_ok=True)
        packed = open(os.open(task / PACKED, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b")  # noqa: SIM115
    child = os.fork()
    if child == 0:
        _as_user(raw, number, final, log, packed)
    deadline, code = time.monotonic() + spec["copy_s"], None
    while code is None:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            log.write(f"themis: checkpoints were not copied within {spec['copy_s']:g} s\n".encode())
            deadline = float("inf")
        else:
            time.sleep(0.05)
    if packed is not None:
        (task / f"{PACKED_CODE}-{number}").write_text(str(code))
    elif final:
        (task / "copied").write_text(str(code))
    return 0


def _as_user(raw: dict[str, Any], number: int, final: bool, log: IO[bytes], packed: IO[bytes] | None) -> NoReturn:
    spec, problem = raw["spec"], ""
    try:
        os.environ.clear()
        os.environ.update(raw["ranks"][0])
        if raw["user"]:
            user = pwd.getpwnam(raw["user"])
            os.initgroups(raw["user"], user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        if spec["checkpoint_url"] not in ("", THROUGH_SERVICE):
            place = Place(spec["checkpoint_url"])
            try:
                save(place, Path(raw["checkpoint_dir"]), spec["attempt"], number, final=final)
            except Exception as error:
                problem = f"checkpoints were not copied to {spec['checkpoint_url']}: {error}"
            if final:
                place.write(f"ended-{spec['attempt']:04d}.json", {"problem": problem, "time": time.time()})
    except BaseException as error:
        problem = problem or f"checkpoints were not copied to {spec['checkpoint_url']}: {error}"
    said = [problem] if problem else []
    if packed is not None:
        try:
            checkpoints = Path(raw["checkpoint_dir"]) if spec["checkpoint_url"] == THROUGH_SERVICE else None
            said += pack(packed, checkpoints, Path(raw["cwd"]), spec["outputs"])
        except BaseException as error:
            problem = f"checkpoints and outputs were not copied to the service: {error}"
            said.append(problem)
    if len(said) > MOST_NAMED:
        said[MOST_NAMED:] = [f"{len(said) - MOST_NAMED} more were not copied"]
    with contextlib.suppress(OSError):
        log.write(b"".join(b"themis: %s\n" % _line(sentence) for sentence in said))
    os._exit(1 if problem else 0)


def main(words: list[str]) -> int:
    """``save TASK-FOLDER NUMBER final|periodic`` or ``restore ARGUMENTS``."""
    if words[0] == "save":
        return _save_for(Path(words[1]), int(words[2]), words[3] == "final")
    given = json.loads(words[1])
    try:
        said = restore(
            Place(given["url"]), Path(given["folder"]), given["attempt"], lead=given["lead"], wait_s=given["wait_s"]
        )
    except Failed as error:
        print(f"themis: {error}", flush=True)
        return 1
    except Exception as error:
        print(
            f"themis: checkpoints cannot be restored from {given['url']}: {type(error).__name__}: {error}", flush=True
        )
        return 1
    print(f"themis: {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
