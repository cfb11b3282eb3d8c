"""Scripts with ``#SBATCH`` headers -> a job file's document; what is not understood is named.

The script is copied when it is submitted, as by Slurm: later changes to the file do not change the job.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from themis.errors import InputError

SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
SHORT: Final[Mapping[str, str]] = {
    "J": "job-name",
    "G": "gpus",
    "N": "nodes",
    "n": "ntasks",
    "a": "array",
    "t": "time",
    "c": "cpus-per-task",
    "D": "chdir",
    "o": "output",
    "e": "error",
    "d": "dependency",
    "p": "partition",
    "A": "account",
    "q": "qos",
    "C": "constraint",
    "w": "nodelist",
    "x": "exclude",
}
UNDERSTOOD = (
    "job-name", "gpus", "gres", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "array", "time", "mem", "mem-per-gpu",
    "mem-per-cpu", "cpus-per-task", "cpus-per-gpu", "chdir", "output", "error", "export", "dependency", "signal",
)  # fmt: skip
_PLACE = re.compile(r"\$\{[^}]*\}|\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""Same as in ``themis.jobs.placeholders``, which is not imported here."""
_PATTERNS = {"j": "$THEMIS_APP_ID", "A": "$THEMIS_APP_ID", "a": "$THEMIS_INDEX", "u": "$USER", "%": "%", "t": "$RANK"}


def is_script(text: str, path: Path) -> bool:
    """Whether a file is a script rather than a job file."""
    return text.startswith("#!") or path.suffix in (".sh", ".sbatch", ".slurm") or text.lstrip().startswith("#SBATCH")


def document(text: str, path: Path, words: Sequence[str] = ()) -> tuple[str, list[str]]:
    """A job file of a script, as JSON, which is YAML too; and notes.

    Parameters
    ----------
    words : arguments of the script.

    Raises
    ------
    InputError : the script has no ``#!`` line, or a value is wrong; names the line.
    """
    script = _Script(text, path)
    out, notes = script.job(), script.notes()
    out["command"] = script.command([*map(str, words)], several="array" in out)
    return json.dumps(out), notes


class _Script:
    def __init__(self, text: str, path: Path) -> None:
        self.text, self.path = text, path
        if not text.startswith("#!"):
            raise InputError(f"{path} has no first line such as #!/bin/bash, so it is unknown what runs it; add one.")
        self.shell = shlex.split(text.splitlines()[0][2:]) or ["/bin/sh"]
        self.given: dict[str, tuple[str, int]] = {}
        self.unknown: dict[str, int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("#SBATCH"):
                self._read(line.removeprefix("#SBATCH"), number)
            elif line.strip() and not line.startswith("#"):
                break  # as Slurm: headers end at the first command

    def _read(self, line: str, number: int) -> None:
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise InputError(f"{self.path}, line {number}: cannot read the header ({error}).") from None
        while words:
            word = words.pop(0)
            if not word.startswith("-"):
                self.unknown[word] = number
                continue
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
            else:
                name, value = SHORT.get(word[1:2], word[:2].lstrip("-") or word), word[2:].removeprefix("=")
                equals = value
            if not equals and words and not words[0].startswith("-"):
                value = words.pop(0)
            if name in UNDERSTOOD:
                self.given[name] = value, number
            else:
                self.unknown[f"--{name}" if len(name) > 1 else f"-{name}"] = number

    def notes(self) -> list[str]:
        """Sentences on directives without effect."""
        out = []
        if self.unknown:
            named = ", ".join(f"{name} (line {line})" for name, line in self.unknown.items())
            out.append(f"{self.path}: not understood, without effect: {named}.")
        if "output" in self.given:
            out.append(f"{self.path}: the output goes to {self.given['output'][0]}; `themis logs` does not show it.")
        return out

    def _value(self, name: str, read: Callable[[str], Any], expected: str) -> Any:
        """The value of an option, None if it is not given."""
        if name not in self.given:
            return None
        text, line = self.given[name]
        try:
            return read(text)
        except (ValueError, IndexError, KeyError):
            raise InputError(f"{self.path}, line {line}: --{name} is {text!r}, expected {expected}.") from None

    def job(self) -> dict[str, Any]:
        """The keys of a job file, without ``command``."""
        name = self.given.get("job-name", (self.path.stem, 0))[0]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:60] or "job"
        out: dict[str, Any] = {"name": f"job-{name}" if name.isdecimal() else name}
        tasks = self._value("ntasks", _count, "a number") or 1
        nodes = self._value("nodes", lambda t: _count(t.split("-")[-1]), "a number of machines") or 1
        gpus, kind = self._gpus(tasks, nodes)
        out["gpus"], out["launch"] = gpus, "machine" if nodes > 1 else "once"
        if kind:
            out["gpu_types"] = [kind]
        out |= self._resources(gpus, tasks, nodes)
        if "array" in self.given:
            out["array"] = self.given["array"][0]
        if seconds := self._value("time", minutes, "a time such as 90, 2:30:00 or 1-12:00:00"):
            out["walltime"] = f"{seconds}s"
        if "chdir" in self.given:
            out["workdir"] = self.given["chdir"][0]
        if after := self._value("dependency", _after, "such as afterok:12 or afterany:12:13"):
            out["after"] = after
        if env := self._value("export", _export, "such as NAME=VALUE,OTHER"):
            out["env"] = env
        if "signal" in self.given:
            name, grace = self._value("signal", _signal, "such as B:USR1@120")
            out |= {"stop_signal": name, "grace": f"{grace}s"}
        return out

    def _gpus(self, tasks: int, nodes: int) -> tuple[int, str]:
        form = "such as 4, a100:4 or gpu:a100:4"
        for name, times in (("gpus", 1), ("gres", nodes), ("gpus-per-node", nodes), ("gpus-per-task", tasks)):
            if found := self._value(name, _gpus, form):
                return found[0] * times, found[1]
        return 1, ""

    def _resources(self, gpus: int, tasks: int, nodes: int) -> dict[str, Any]:
        """CPUs and memory of each GPU."""
        cpus = self._value("cpus-per-gpu", _count, "a number")
        per_task = self._value("cpus-per-task", _count, "a number")
        cpus = cpus or (per_task * tasks / gpus if per_task else None)
        size = "memory such as 16G or 500M"
        memory = self._value("mem-per-gpu", _bytes, size)
        if whole := self._value("mem", _bytes, size):
            memory = whole * nodes // gpus
        if (each := self._value("mem-per-cpu", _bytes, size)) and cpus:
            memory = int(each * cpus)
        return ({"cpus": cpus} if cpus else {}) | ({"memory": f"{memory} B"} if memory else {})

    def command(self, words: list[str], *, several: bool) -> list[str]:
        """The interpreter with the script's text; other interpreters than shells get the file."""
        if os.path.basename(self.shell[0]) == "env" and len(self.shell) > 1:
            self.shell = self.shell[1:]
        if os.path.basename(self.shell[0]) not in SHELLS:
            return [*self.shell, str(self.path.absolute()), *words]
        _, _, rest = self.text.partition("\n")
        text = f"{self._prelude(several)}\n{rest}"
        if several:
            text, words = _literal(text), [_literal(word) for word in words]
        return [*self.shell, "-c", text, str(self.path), *words]

    def _prelude(self, several: bool) -> str:
        """Lines that replace the first line: variables that scripts expect of Slurm, and the redirection of the output."""
        job = "SLURM_JOB_ID=$THEMIS_JOB_ID"
        array = " SLURM_ARRAY_TASK_ID=$THEMIS_INDEX SLURM_ARRAY_JOB_ID=$THEMIS_APP_ID" if several else ""
        out = f"export {job}{array} SLURM_SUBMIT_DIR={shlex.quote(str(Path.cwd()))}"
        for name, stream in (("output", ">"), ("error", "2>")):
            if name in self.given:
                out += f"; exec {stream}{_file(self.given[name][0], self.job_name)}"
                out += " 2>&1" if name == "output" and "error" not in self.given else ""
                out += " || exit 1"
        return out

    @property
    def job_name(self) -> str:
        return self.given.get("job-name", (self.path.stem, 0))[0]


def minutes(text: str) -> int:
    """Seconds of Slurm's ``90``, ``90:30``, ``2:30:00``, ``1-12``, ``1-12:30`` or ``1-12:30:00``; ValueError for other text."""
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if min(parts) < 0 or len(parts) > 3:
        raise ValueError(text)
    if dash:
        hours, mins, secs = [*parts, 0, 0][:3]
    else:
        hours, mins, secs = {1: [0, *parts, 0], 2: [0, *parts], 3: parts}[len(parts)]
    seconds = ((int(days or 0) * 24 + hours) * 60 + mins) * 60 + secs
    if seconds <= 0:
        raise ValueError(text)
    return seconds


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _gpus(text: str) -> tuple[int, str]:
    """``4``, ``a100:4``, ``gpu:4`` or ``gpu:a100:4``."""
    parts = text.split(":")
    parts = parts[1:] if parts[0] == "gpu" else parts
    if len(parts) > 2:
        raise ValueError(text)
    if not parts:
        return 1, ""
    number = parts[-1] if parts[-1].isdecimal() else "1"
    return _count(number), parts[0] if parts[0] != number else ""


def _bytes(text: str) -> int:
    """``16G``, ``500M``, or a number of MiB."""
    unit = text[-1:].upper()
    scale = {"K": 10, "M": 20, "G": 30, "T": 40}
    return int(float(text[:-1] if unit in scale else text) * 2 ** scale.get(unit, 20))


def _after(text: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for part in re.split(r"[,?]", text):
        kind, *names = part.split(":")
        when = {"after": "any", "afterany": "any", "afterok": "ok", "afternotok": "failed"}[kind]
        if not names:
            raise ValueError(text)
        out |= dict.fromkeys((name.partition("_")[0] for name in names), when)
    return out


def _export(text: str) -> dict[str, str]:
    """Variables; ``NAME`` has its value from this shell; ``ALL`` and ``NONE`` add none."""
    out = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals:
            out[name] = value
        elif name not in ("ALL", "NONE", "NIL") and name in os.environ:
            out[name] = os.environ[name]
    return out


def _signal(text: str) -> tuple[str, int]:
    name, _, seconds = text.rpartition(":")[2].partition("@")
    return (f"SIG{name.upper().removeprefix('SIG')}", int(seconds or 60))


def _file(pattern: str, name: str) -> str:
    """A file name of ``--output`` for the shell: ``%j``, ``%A``, ``%a``, ``%x``, ``%u``."""
    values = {**_PATTERNS, "x": shlex.quote(name)}
    parts = re.split(r"%\d*([A-Za-z%])", pattern)
    quoted = (
        values.get(p, shlex.quote(f"%{p}")) if i % 2 else shlex.quote(p) if p else "" for i, p in enumerate(parts)
    )
    return "".join(f'"{part}"' if part.startswith("$") else part for part in quoted)


def _literal(text: str) -> str:
    """The text such that placeholders of an array leave it as it is."""

    def keep(found: re.Match[str]) -> str:
        if found[1]:
            return f"{{{{{found[1]}}}}}"
        return found[0] * 2 if found[0] in ("{{", "}}") else found[0]

    return _PLACE.sub(keep, text)
