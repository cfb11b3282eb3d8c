"""Preparation before a gang's ranks start: unpacks its files and installs its packages. It runs in a process of the
job's user.

    ENVIRONMENTS/<key>/        an environment: a venv or a conda prefix, with ``.themis.json`` once it is whole
    ENVIRONMENTS/<key>.lock    held exclusively by who makes it, and by the tools that do, and shared by the supervisors of gangs
                               that use it

An environment is made once for each content of its description, interpreter and user. Half of one, which a crash left, is made
again. Standard library alone, and no other file of this package: the supervisor of a gang (``keeper.py``) loads it by its path.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import posixpath
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

WHOLE = ".themis.json"
"""Marker of a complete environment: its size in bytes."""
KEY = re.compile(r"[0-9a-f]{64}")
NEW = ".themis-restore"
"""Marker in a checkpoint folder while it is being filled."""
RESTORED = "THEMIS.restored"
"""Marks a file of an archive with which its attempt began: a file of that name in another archive of the copy is newer."""
MOST_DESCRIPTION = 64 << 20
MOST_MEMBERS, DEEPEST = 200_000, 200
"""Maximum number of files, links and folders in a bundle, and maximum depth of its folders."""
MODULES = """
if ! type module >/dev/null 2>&1; then
  for f in "$MODULESHOME/init/bash" "$LMOD_PKG/init/bash" /etc/profile.d/lmod.sh /etc/profile.d/modules.sh \\
      /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash; do
    if [ -r "$f" ]; then . "$f"; break; fi
  done
fi
if ! type module >/dev/null 2>&1; then
  echo "themis: there is no command 'module' on this machine" >&2; exit 1
fi
while [ "$1" != "--" ]; do
  module load "$1" || { echo "themis: module load $1 failed" >&2; exit 1; }
  shift
done
shift
if [ -n "$THEMIS_ENVIRONMENT" ]; then PATH="$THEMIS_ENVIRONMENT/bin:$PATH"; fi
exec "$@"
"""


class Failed(Exception):
    """A requirement of the job cannot be prepared; the message is a sentence for its owner."""


class Unfit(Failed):
    """Files that a job is sent with and that no machine can use."""


class Damaged(Failed):
    """The archive of the job's files was damaged on this machine's disk."""


def prepare(setup: Mapping[str, Any], env: Mapping[str, str], archive: int, *copies: int) -> dict[str, str]:
    """Prepare a gang's machine; returns ``key`` and ``prefix`` of its environment, empty without one.

    Parameters
    ----------
    setup : ``work``, ``cwd``, ``packages``, ``environments`` and ``modules``, as ``Task.prepare`` writes them.
    env : of the ranks. ``archive``, ``copies`` : open files of the bundle, below 0 for none, and of the archives with which the
        attempt begins.

    Raises
    ------
    Failed : with the reason. OSError : the machine has no room.
    """
    if archive >= 0:
        unpack(archive, setup["work"], setup["bundle"])
    try:
        os.chdir(setup["cwd"])
    except OSError as error:
        raise Unfit(f"folder {setup['cwd']!r} to run in: {error.strerror}") from None
    if copies:
        names = [copy["sha256"] for copy in setup["copies"]]
        restore([*zip(copies, names)], setup["draft"], setup["checkpoints"], setup["cwd"])
        print("themis: checkpoints and outputs of the attempts before were restored", flush=True)
    key = prefix = ""
    if setup["packages"]:
        key, prefix = environment(setup["packages"], setup["environments"], env)
    if setup.get("restore"):
        _run(setup["restore"], env, "checkpoints cannot be restored")
    if setup["modules"]:
        _run([*with_modules(setup["modules"]), "true"], env)
    return {"key": key, "prefix": prefix}


def with_modules(names: Sequence[str]) -> tuple[str, ...]:
    """Command prefix that loads these modules; empty without modules."""
    return ("bash", "-c", MODULES, "bash", *names, "--") if names else ()


def with_environment(env: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The variables of ranks that use an environment."""
    if not prefix:
        return dict(env)
    kind = "CONDA_PREFIX" if os.path.isdir(f"{prefix}/conda-meta") else "VIRTUAL_ENV"
    path = f"{prefix}/bin:{env.get('PATH', os.defpath)}"
    return {**env, "PATH": path, kind: prefix, "THEMIS_ENVIRONMENT": prefix}


# ---- files ------------------------------------------------------------------------------------------------------------


def restore(copies: Sequence[tuple[int, str]], folder: str, checkpoints: str, work: str) -> None:
    """Restore what the last attempt saved, checkpoints and outputs, in place of the job's own files.

    Parameters
    ----------
    copies : open archive and SHA-256 for each machine of that attempt; a file of a later one replaces those of its name.
    folder : where ``NEW`` is until all is restored. A folder in which it stays is never copied.

    Raises
    ------
    Failed : as ``unpack``.
    """
    draft = os.path.join(folder, NEW)
    shutil.rmtree(draft, ignore_errors=True)
    os.mkdir(draft, 0o700)
    for copy, name in copies:
        unpack(copy, draft, name, over=True)
    move(os.path.join(draft, "checkpoints"), checkpoints)
    move(os.path.join(draft, "outputs"), work)
    shutil.rmtree(draft)


def move(source: str, target: str) -> None:
    """Move what is in a folder into another one, which may be on another disk and have folders of the same names."""
    if not os.path.isdir(source):
        return
    for name in os.listdir(source):
        old, new = os.path.join(source, name), os.path.join(target, name)
        there = os.lstat(new).st_mode if os.path.lexists(new) else 0
        if stat.S_ISDIR(there) and stat.S_ISDIR(os.lstat(old).st_mode):
            move(old, new)
            continue
        if there:
            shutil.rmtree(new) if stat.S_ISDIR(there) else os.unlink(new)
        shutil.move(old, new)


def unpack(archive: int, folder: str, name: str, *, over: bool = False) -> None:
    """Write the files of a bundle into a folder, once its SHA-256 was checked.

    The folder is empty, or with ``over`` has files of other archives of the same copy. Only files, folders and links within the
    folder are taken; nothing is written through a link.

    Raises
    ------
    Failed : the archive is damaged, or has what a bundle may not have.
    """
    digest = hashlib.sha256()
    os.lseek(archive, 0, os.SEEK_SET)
    while data := os.read(archive, 1 << 20):
        digest.update(data)
    if digest.hexdigest() != name:
        raise Damaged(
            f"the copy of bundle {name[:12]} on this machine is damaged; it is fetched again for the next attempt"
        )
    os.lseek(archive, 0, os.SEEK_SET)
    try:
        with open(archive, "rb", closefd=False) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for number, member in enumerate(tar):
                if number >= MOST_MEMBERS:
                    raise Unfit(f"bundle {name[:12]} has more than {MOST_MEMBERS} files")
                _extract(tar, member, folder, over)
                tar.members.clear()  # type: ignore[attr-defined]  # else all of them stay in memory
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL):
            raise Unfit(f"bundle {name[:12]} has a name twice, or one that is too long: {error}") from None
        raise
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise Unfit(f"bundle {name[:12]} is no tar archive: {error}") from None


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: str, over: bool) -> None:
    parts = member.name.split("/")
    if member.name.startswith("/") or not all(part not in ("", ".", "..") for part in parts):
        raise Unfit(f"the bundle has {member.name[:200]!r}, which is not a path within its folder")
    if len(parts) > DEEPEST:
        raise Unfit(f"the bundle has {member.name[:200]!r}..., which is more than {DEEPEST} folders deep")
    parent = folder
    for part in parts[:-1]:
        parent = os.path.join(parent, part)
        if over and os.path.lexists(parent) and not stat.S_ISDIR(os.lstat(parent).st_mode):
            if RESTORED in member.pax_headers:
                return
            os.unlink(parent)
        if not os.path.lexists(parent):
            os.mkdir(parent, 0o755)
        elif not stat.S_ISDIR(os.lstat(parent).st_mode):
            raise Unfit(f"the bundle has {member.name!r}, which is below something that is no folder")
    path = os.path.join(parent, parts[-1])
    if over and os.path.lexists(path):
        if RESTORED in member.pax_headers or (member.isdir() and stat.S_ISDIR(os.lstat(path).st_mode)):
            return
        shutil.rmtree(path) if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)
    if member.isdir():
        os.mkdir(path, 0o755)
    elif member.issym():
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname))
        if member.linkname.startswith("/") or inside == ".." or inside.startswith("../"):
            raise Unfit(f"the bundle has the link {member.name!r} to {member.linkname!r}, out of its folder")
        os.symlink(member.linkname, path)
    elif member.isreg() and not member.issparse():
        mode = 0o755 if member.mode & 0o100 else 0o644
        content = tar.extractfile(member)
        assert content is not None
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        if over:
            os.utime(path, (member.mtime, member.mtime))
    else:
        raise Unfit(f"the bundle has {member.name!r}, which is no file, folder or link")


# ---- packages ---------------------------------------------------------------------------------------------------------


def environment(description: str, folder: str, env: Mapping[str, str]) -> tuple[str, str]:
    """The environment of a description in the current folder: its key and where it is, made if it is not there.

    Raises
    ------
    Failed : the description is not there, no tool for it is, or the tool failed.
    """
    key = key_of(description, env)
    prefix = os.path.join(folder, key)
    with open(os.open(f"{prefix}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not os.path.exists(f"{prefix}/{WHOLE}"):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(f"{prefix}/{WHOLE}"):  # no other process made it in the meantime
            shutil.rmtree(prefix, ignore_errors=True)
            try:
                for command, more in _commands(description, prefix, env):
                    print(f"themis: preparing {description}: {' '.join(command)}", flush=True)
                    # A tool that outlives this process, which may be killed, keeps others from the folder as long as it lives.
                    _run(command, {**env, **more}, f"{description} cannot be installed", lock.fileno())
            except BaseException:
                shutil.rmtree(prefix, ignore_errors=True)
                raise
            Path(prefix, WHOLE).write_text(json.dumps({"bytes": _size(prefix), "description": description}))
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(f"{prefix}/{WHOLE}")
    return key, prefix


def key_of(description: str, env: Mapping[str, str]) -> str:
    """SHA-256 of an environment's inputs: its description, the files that this includes, and the interpreter."""
    digest = hashlib.sha256()
    python = shutil.which("python3", path=env.get("PATH", os.defpath)) or ""
    for text in (os.uname().machine, os.path.realpath(python), posixpath.basename(description)):
        digest.update(f"{text}\0".encode())
    for name, data in _described(description):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _described(description: str) -> Iterator[tuple[str, bytes]]:
    """The files of a description, by their paths."""
    todo, seen = [description], set[str]()
    if posixpath.basename(description) == "uv.lock":
        for name in ("pyproject.toml", ".python-version"):
            beside = posixpath.join(posixpath.dirname(description), name)
            todo += [beside] if os.path.exists(beside) else []
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            with open(name, "rb") as file:
                data = file.read(MOST_DESCRIPTION)
        except OSError as error:
            raise Failed(f"packages {name!r}: {error.strerror} in {os.getcwd()}") from None
        yield name, data
        if name.endswith(".txt"):
            for line in data.decode(errors="replace").splitlines():
                if re.match(r"\s*(-e|--editable)\b", line):
                    raise Failed(
                        f"{name} has {line.strip()!r}: an environment is shared by attempts, whose folders differ; set PYTHONPATH "
                        "instead"
                    )
                if found := re.match(r"\s*(?:-r|-c|--requirement|--constraint)[ =]\s*(\S+)", line):
                    todo.append(posixpath.join(posixpath.dirname(name), found[1]))


def _commands(description: str, prefix: str, env: Mapping[str, str]) -> Iterator[tuple[list[str], Mapping[str, str]]]:
    """Commands that make an environment, each with its own variables."""
    path = env.get("PATH", os.defpath)
    uv, name = shutil.which("uv", path=path), posixpath.basename(description)
    if name == "uv.lock":
        if uv is None:
            raise Failed(f"{description} needs uv, which is not on PATH {path!r}")
        project = posixpath.dirname(description) or "."
        yield (
            [uv, "sync", "--frozen", "--no-install-project", "--project", project],
            {"UV_PROJECT_ENVIRONMENT": prefix},
        )
    elif name.endswith(".txt") and uv is not None:
        yield [uv, "venv", prefix], {}
        yield [uv, "pip", "install", "--python", f"{prefix}/bin/python", "-r", description], {}
    elif name.endswith(".txt"):
        python = shutil.which("python3", path=path)
        if python is None:
            raise Failed(f"{description} needs uv or python3, and neither is on PATH {path!r}")
        yield [python, "-m", "venv", prefix], {}
        pip = [f"{prefix}/bin/python", "-m", "pip", "--no-input", "--disable-pip-version-check"]
        yield [*pip, "install", "-r", description], {}
    else:
        conda = next(filter(None, (shutil.which(tool, path=path) for tool in ("micromamba", "mamba", "conda"))), None)
        if conda is None:
            raise Failed(f"{description} needs micromamba, mamba or conda, and none is on PATH {path!r}")
        micro = posixpath.basename(conda) == "micromamba"
        yield [conda, *(["create"] if micro else ["env", "create"]), "--yes", "-p", prefix, "-f", description], {}


def _run(command: Sequence[str], env: Mapping[str, str], what: str = "", keep: int = -1) -> None:
    """Run a command with this process's output, which is the job's log; raises Failed with its last line. ``keep`` : open file."""
    last = b""
    try:
        process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(keep,) if keep >= 0 else (),
        )
    except OSError as error:
        raise Failed(f"{what or command[0]}: {error.strerror}") from None
    assert process.stdout is not None
    for line in process.stdout:
        os.write(1, line)
        last = line.strip() or last
    if process.wait() != 0:
        raise Failed(
            f"{what or 'a step before the start'} (exit code {process.returncode}): {last.decode(errors='replace')[:500]}"
        )


def _size(folder: str) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            total += os.lstat(os.path.join(base, name)).st_blocks * 512
    return total
