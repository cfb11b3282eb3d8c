"""Launchers: what wraps a job's command so that it runs in a sandbox or a container.

    bwrap             a view of this machine that can be read; written are only the job's own folders and a /tmp of its own
    apptainer:IMAGE   ``apptainer exec``, with the job's folders and GPUs
    docker:IMAGE      ``docker run``, likewise, as the job's user

bwrap passes no signal on, so its supervisor signals what it started (``signals_children``). Containers of docker are no children
of the client that started them: ``cleanup`` removes them when the gang has ended.
"""

from __future__ import annotations

import glob
import os
import pwd
from collections.abc import Mapping, Sequence

from themis.errors import InputError

BWRAP, APPTAINER, DOCKER = "bwrap", "apptainer", "docker"
GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-caps")
LATE = ("MASTER_ADDR", "MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT")
"""Variables that are known only when all machines are prepared."""
OF_THE_MACHINE = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "SSL_CERT_FILE")
)
"""Variables that mean another thing in a container."""


def wrapped(
    launcher: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: str,
    folders: Sequence[str],
    readable: Sequence[str] = (),
    name: str,
    user: str = "",
    devices: Sequence[str] = (),
    root: str = "/",
) -> tuple[str, ...]:
    """The command line of one rank.

    Parameters
    ----------
    env : of the rank; what a container gets of it is named on the command line, without values, which others could read.
    folders : that the job may write to, at the same paths inside. ``readable`` : that it may read. ``cwd`` : where it runs.
    name : of the rank on this machine, for a container. ``user`` : system user, empty for the agent's own.
    devices : its GPUs by UUID. ``root`` : where device files are looked for, for tests.

    Raises
    ------
    InputError : an unknown launcher.
    """
    kind, _, image = launcher.partition(":")
    match kind:
        case "":
            return tuple(argv)
        case "bwrap":
            return _bwrap(argv, cwd, folders, readable, root)
        case "apptainer":
            return _apptainer(argv, cwd, (*readable, *folders), image, devices)
        case "docker":
            return _docker(argv, env, cwd, (*readable, *folders), image, name, user, devices)
        case _:
            raise InputError(
                f"launcher {launcher[:100]!r} is unknown, expected bwrap, apptainer:IMAGE or docker:IMAGE."
            )


def signals_children(launcher: str) -> bool:
    """True if a signal has to be sent to what the launcher started, because it does not pass it on."""
    return launcher == BWRAP


def cleanup(launcher: str, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Commands that end what is left of these ranks where no process of theirs is on this machine's table as a child."""
    if launcher.partition(":")[0] != DOCKER:
        return ()
    return (("docker", "rm", "--force", *names),)


def _bwrap(
    argv: Sequence[str], cwd: str, folders: Sequence[str], readable: Sequence[str], root: str
) -> tuple[str, ...]:
    words = ["bwrap", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    numbered = sorted(glob.glob(os.path.join(root, "dev/nvidia[0-9]*")))
    for path in (*GPU_FILES, *(f"/{os.path.relpath(found, root)}" for found in numbered)):
        if os.path.exists(os.path.join(root, path.lstrip("/"))):
            words += ["--dev-bind", path, path]
    words += ["--bind-try", "/dev/shm", "/dev/shm"]
    for folder in dict.fromkeys((cwd, *readable)):
        words += ["--ro-bind", folder, folder] if folder != "/" else []
    for folder in dict.fromkeys(folders):
        words += ["--bind", folder, folder]
    return (*words, "--chdir", cwd, "--", *argv)


def _apptainer(
    argv: Sequence[str], cwd: str, folders: Sequence[str], image: str, devices: Sequence[str]
) -> tuple[str, ...]:
    binds = ",".join(f"{folder}:{folder}" for folder in dict.fromkeys((cwd, *folders)))
    gpus = ("--nv",) if any(devices) else ()
    return ("apptainer", "exec", *gpus, "--bind", binds, "--pwd", cwd, image, *argv)


def _docker(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    folders: Sequence[str],
    image: str,
    name: str,
    user: str,
    devices: Sequence[str],
) -> tuple[str, ...]:
    words = ["docker", "run", "--rm", "--init", "--name", name, "--network", "host", "--ipc", "host"]
    entry = pwd.getpwnam(user) if user else None
    uid, gid = (entry.pw_uid, entry.pw_gid) if entry else (os.getuid(), os.getgid())
    words += ["--user", f"{uid}:{gid}"]
    shown = [device for device in devices if device]
    if shown:
        words += ["--gpus", f'"device={",".join(shown)}"']
    # CUDA counts from 0 in a container that sees only its own GPUs.
    hidden = OF_THE_MACHINE | ({"CUDA_VISIBLE_DEVICES"} if shown else set())
    for variable in sorted({*env, *LATE} - hidden):
        words += ["--env", variable]
    for folder in dict.fromkeys((cwd, *folders)):
        words += ["--volume", f"{folder}:{folder}"]
    return (*words, "--workdir", cwd, image, *argv)
