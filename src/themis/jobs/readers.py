"""Readers of single values of job files and settings: YAML value -> result, or ``Unreadable``."""

from __future__ import annotations

import posixpath
import re
import shlex
import signal
from typing import Any, TypeGuard

from themis import limits, sizes
from themis.errors import InputError
from themis.faults import did_you_mean
from themis.jobs.spec import After, When
from themis.limits import shown
from themis.machines.agent.messages import NEARLY_URL
from themis.machines.engines.program import LAUNCHES, MODULE, URL, check_launcher, check_outputs, check_packages
from themis.sizes import Unreadable

LONGEST_NAME = 64
NAME = (
    f"a name of letters, digits, '.', '_' and '-' that begins with a letter or digit, at most {LONGEST_NAME} characters"
)
NAMED = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
"""Pattern for names of apps, users and groups, in files and in the API."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
RESERVED = ("index", "name")
"""Placeholders that are not parameters."""


def name(value: object) -> str:
    """A name of an app, user or group."""
    if not isinstance(value, str) or not NAMED.fullmatch(value):
        raise Unreadable(NAME)
    return value


def app_name(value: object) -> str:
    """A name of an app: not of digits alone, which name an app by its number."""
    if name(value).isdecimal():
        raise Unreadable(f"{NAME}, not all digits")
    return str(value)


def plain(value: object) -> TypeGuard[str]:
    """True if it is text that can be passed to a process."""
    return isinstance(value, str) and "\0" not in value and _encodes(value)


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def text(value: object) -> str:
    """Non-empty text that can be passed to a process."""
    if not plain(value) or not value.strip():
        raise Unreadable("a non-empty text")
    return value


def command(value: object) -> tuple[str, ...]:
    """A command line, split as a shell would without running one, or a list of words."""
    expected = "a program and its arguments, as one line or as a list of words"
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError:
        raise Unreadable(f"{expected}, with closed quotes") from None
    if not isinstance(words, list) or not words or not all(map(plain, words)):
        raise Unreadable(expected)
    if not words[0].strip():
        raise Unreadable(expected)
    return tuple(words)


def folder(value: object) -> str:
    """A path, absolute or relative."""
    if not limits.PATH.holds(text(value)):
        raise Unreadable(f"a path of printable characters, at most {limits.PATH.longest}")
    if text(value).startswith("~"):
        raise Unreadable("a path without '~', which other machines would resolve differently")
    return posixpath.normpath(text(value))


def folder_or_url(value: object) -> str:
    """A path, or a URL."""
    if URL.match(text(value)):
        return text(value)
    if NEARLY_URL.match(text(value)):
        raise Unreadable("a folder, or a URL with two slashes, such as s3://bucket/path or themis://")
    return folder(value)


def sent_folder(value: object) -> str:
    """A path; ``true`` stands for the folder of the submission."""
    if value is True:
        return "."
    if not isinstance(value, str):
        raise Unreadable("a folder, or true for the folder of the submission")
    return folder(value)


def packages(value: object) -> str:
    """A file that describes packages."""
    try:
        check_packages(text(value))
    except InputError:
        raise Unreadable(
            "uv.lock, a requirements file such as requirements.txt, or a conda file such as environment.yml, below the workdir"
        ) from None
    return text(value)


def outputs(value: object) -> tuple[str, ...]:
    """Paths below the working directory, one or a list."""
    paths = [value] if isinstance(value, str) else value
    wanted = "files or folders below the workdir, such as results, or [results, metrics.csv]"
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise Unreadable(wanted)
    found = tuple(path.removeprefix("./").rstrip("/") for path in paths)
    try:
        check_outputs(found)
    except InputError:
        raise Unreadable(wanted) from None
    return found


def modules(value: object) -> tuple[str, ...]:
    """Names of modules, one or a list."""
    names = [value] if isinstance(value, str) else value
    if (
        not isinstance(names, list)
        or len(names) > limits.MODULES.most
        or not all(isinstance(name, str) and MODULE.fullmatch(name) for name in names)
    ):
        raise Unreadable("names of modules, such as [cuda/12.4]")
    return tuple(names)


def launcher(value: object) -> str:
    """The launcher that wraps the command."""
    try:
        check_launcher(text(value))
    except InputError:
        raise Unreadable("bwrap, apptainer:IMAGE or docker:IMAGE") from None
    return text(value)


def gpu_types(value: object) -> tuple[str, ...]:
    """One GPU type, a list, or a list under ``any_of``, as in other systems."""
    if isinstance(value, dict) and set(value) == {"any_of"}:
        value = value["any_of"]
    types = [value] if isinstance(value, str) else value
    if not isinstance(types, list) or not 0 < len(types) <= limits.GPU_TYPES.most:
        raise Unreadable("a GPU type such as A100, or a list of acceptable ones")
    if not all(plain(t) and t.strip() and limits.WORD.holds(t) for t in types):
        raise Unreadable("a GPU type such as A100, or a list of acceptable ones")
    return tuple(dict.fromkeys(types))


def variables(value: object) -> dict[str, str]:
    """Environment variables."""
    if not isinstance(value, dict):
        raise Unreadable("a mapping of variable names to values")
    for key, given in value.items():
        if not isinstance(key, str) or not _VARIABLE.fullmatch(key):
            raise Unreadable(f"names of letters, digits and '_', not {shown(key)}")
        if key.startswith(("THEMIS_", "SLURM_")):
            raise Unreadable(f"no names that begin with THEMIS_ or SLURM_, such as {shown(key)}")
        if not plain(given):
            raise Unreadable(f"a plain value for {shown(key)}")
    return value


def after(value: object) -> tuple[After, ...]:
    """An app's name, a list of them, or a mapping of names to ok, any or failed."""
    expected = "an app's name, a list of names, or a mapping of names to ok, any or failed"
    given = {value: "ok"} if isinstance(value, str) else value
    if isinstance(given, list) and all(isinstance(entry, str) for entry in given):
        given = dict.fromkeys(given, "ok")
    if not isinstance(given, dict) or not 0 < len(given) <= limits.AFTER.most:
        raise Unreadable(f"{expected}, at most {limits.AFTER.most}")
    out: list[After] = []
    for other, when in given.items():
        if when not in list(When):
            raise Unreadable(
                f"{expected}, not {shown(when)}.{did_you_mean(str(when), [when.value for when in When])}".rstrip(".")
            )
        out.append(After(name=name(other), when=When(when)))
    return tuple(out)


def speed(value: object) -> dict[str, dict[int, float]]:
    """Steps/s of one GPU, by GPU type, or by GPU type and number of GPUs."""
    expected = "steps per second above 0: a number for one GPU, numbers by GPU type, or {A100: {1: 2.5, 4: 9.0}}"
    given: dict[Any, Any] = value if isinstance(value, dict) else {"*": value}
    out: dict[str, dict[int, float]] = {}
    for kind, rates in given.items():
        by_gpus = rates if isinstance(rates, dict) else {1: rates}
        if not plain(kind) or not kind or not by_gpus:
            raise Unreadable(expected)
        if not all(map(limits.GPUS.holds, by_gpus)) or not all(map(limits.SPEED.holds, by_gpus.values())):
            raise Unreadable(expected)
        if len(by_gpus) > limits.SPEED_POINTS.most or len(given) > limits.GPU_TYPES.most:
            raise Unreadable(
                f"{expected}; at most {limits.GPU_TYPES.most} GPU types and {limits.SPEED_POINTS.most} numbers of GPUs"
            )
        out[kind] = {count: float(by_gpus[count]) for count in sorted(by_gpus)}
    if not out:
        raise Unreadable(expected)
    return out


def slowdown(value: object) -> tuple[float, float, float, float]:
    """Divisors of the speed, by locality."""
    expected = "four ascending numbers from 1 on: within a slot, a machine, a rack, and across racks"
    if not isinstance(value, list) or len(value) != 4:
        raise Unreadable(expected)
    if not all(map(limits.SLOWDOWN.holds, value)) or sorted(value) != value:
        raise Unreadable(expected)
    a, b, c, d = map(float, value)
    return a, b, c, d


def stop_signal(value: object) -> str:
    """The name of a signal that a job can handle."""
    if not isinstance(value, str) or value not in signal.Signals.__members__ or value in ("SIGKILL", "SIGSTOP"):
        raise Unreadable("a signal that the job can handle, such as SIGTERM or SIGUSR1")
    return str(value)


def launch(value: object) -> str:
    """One process, one rank per GPU, or one process per machine."""
    if value not in LAUNCHES:
        raise Unreadable(f"one of {', '.join(LAUNCHES)}")
    return str(value)


def parameter_name(value: object) -> str:
    """A name for a placeholder and an environment variable."""
    if not isinstance(value, str) or not _PARAMETER.fullmatch(value):
        raise Unreadable("a parameter name of letters, digits and '_'")
    if value in RESERVED:
        raise Unreadable(f"another parameter name: {{{value}}} is reserved")
    return value


def zero_or_more(value: object) -> float:
    """A duration that may be 0."""
    return sizes.duration(value, zero=True)
