"""Variables of the submitter's shell that a job gets, by name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence

from themis.errors import InputError

NAMES = (
    "PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYTHONPATH",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TORCH_HOME",
    "WANDB_PROJECT",
    "WANDB_ENTITY",
    "WANDB_MODE",
    "OMP_NUM_THREADS",
)
"""Exported without ``--export`` where jobs run on this machine."""
CONTAINERS = ("apptainer:", "docker:")
"""Launchers whose jobs have the environment of their image."""
SECRET = re.compile("KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)
"""Names that may hold a secret: exported variables are in the journal."""
MOST_CODE = 4 << 20
"""Bytes of a script whose digest is taken at most."""
MOST_SCRIPTS = 16
"""Scripts of one submission whose digests are taken at most."""
_CREDENTIALS = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_SESSION = re.compile(
    r"(HOME|USER|LOGNAME|SHELL|TMPDIR|PWD|OLDPWD|SHLVL|TERM|DISPLAY|MAIL|_|RANK|WORLD_SIZE|CUDA_VISIBLE_DEVICES|"
    r"(SSH|XDG|DBUS|THEMIS|SLURM|LOCAL|MASTER|PET)_.*)"
)


def exported(text: str, environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Variables that ``--export`` names, and the names that ``ALL`` leaves out because they may hold a secret.

    Parameters
    ----------
    text : ``NONE``, ``ALL``, names with commas between them, or empty for those of ``NAMES`` that are set and whose path exists.

    Raises
    ------
    InputError : a name that may hold a secret, that the job's environment reserves, or that is not set.
    """
    if text == "NONE":
        return {}, []
    if not text:
        found = {name: environ[name] for name in NAMES if name in environ}
        return {name: value for name, value in found.items() if not is_path(value) or os.path.exists(value)}, []
    if text == "ALL":
        names = sorted(name for name in environ if _NAME.fullmatch(name) and not _SESSION.fullmatch(name))
        secret = [name for name in names if SECRET.search(name) or _CREDENTIALS.search(environ[name])]
        return {name: environ[name] for name in names if name not in secret}, secret
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _NAME.fullmatch(name) or _SESSION.fullmatch(name):
            raise InputError(
                f"--export names {name[:60]!r}, expected NONE, ALL or names of variables that Themis does not set."
            )
        if SECRET.search(name):
            raise InputError(
                f"--export names {name[:60]}, which may hold a secret; put it into the file of secrets: --secret {name[:60]}."
            )
        if name not in environ:
            raise InputError(f"--export names {name[:60]}, which is not set in this shell.")
    return {name: environ[name] for name in names}, []


def is_path(value: str) -> bool:
    """True for an absolute path: it must exist on the job's machine."""
    return value.startswith("/") and ":" not in value


def code_of(command: Sequence[str], folder: str, known: dict[str, str] | None = None) -> dict[str, str]:
    """``THEMIS_CODE``: digest and path of the script that a command names, so that a rank notices a later change; else empty.

    The script is the first word that is a file ``.py`` or ``.sh`` of at most 4 MiB. ``known`` : digests of scripts that were read
    before; of at most 16.
    """
    known = {} if known is None else known
    for word in command:
        path = os.path.join(folder, word)
        if not word.endswith((".py", ".sh")) or not os.path.isfile(path) or os.path.getsize(path) > MOST_CODE:
            continue
        if path not in known:
            if len(known) >= MOST_SCRIPTS:
                return {}
            with contextlib.suppress(OSError), open(path, "rb") as file:
                known[path] = hashlib.sha256(file.read()).hexdigest()
        return {"THEMIS_CODE": f"{known[path]} {word}"} if path in known else {}
    return {}
