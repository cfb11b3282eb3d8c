"""The faults of a file: file, line, key, value, what was expected, "did you mean".

Pydantic finds all faults of a document; here they become sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from themis.errors import InputError, closest
from themis.sizes import Unreadable
from themis.yaml_text import Document, Path

M = TypeVar("M", bound=BaseModel)

SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "cmd": "command",
        "script": "command",
        "run": "command",
        "args": "command",
        "entrypoint": "command",
        "cwd": "workdir",
        "dir": "workdir",
        "working_directory": "workdir",
        "working_dir": "workdir",
        "chdir": "workdir",
        "environment": "env",
        "environ": "env",
        "variables": "env",
        "time": "walltime",
        "timeout": "walltime",
        "time_limit": "walltime",
        "gpu": "gpus",
        "num_gpus": "gpus",
        "gpu_type": "gpu_types",
        "gres": "gpus",
        "accelerator": "gpu_types",
        "accelerators": "gpu_types",
        "any_of": "gpu_types",
        "cpu": "cpus",
        "mem": "memory",
        "ram": "memory",
        "dependency": "after",
        "dependencies": "after",
        "depends_on": "after",
        "needs": "after",
        "max_retries": "retries",
        "restarts": "retries",
        "checkpoint": "checkpoint_dir",
        "checkpoints": "checkpoint_dir",
        "steps": "work",
        "epochs": "work",
        "grace_period": "grace",
        "signal": "stop_signal",
        "throughput": "speed",
        "rate": "speed",
        "batch_size": "batch",
        "search_space": "parameters",
        "params": "parameters",
        "space": "parameters",
        "samples": "trials",
        "num_samples": "trials",
        "max_work": "budget",
        "scheduler": "tuner",
        "priority": "weight",
        "quota": "gpus",
        "gpu_quota": "gpus",
        "nodes": "machines",
        "hosts": "machines",
        "weights": "users",
        "quotas": "users",
        "address": "host",
    }
)
"""Names of our keys in other systems, for "did you mean"."""


class Written(BaseModel):
    """Base class of all models of YAML files."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


def reads(function: Callable[[Any], Any]) -> BeforeValidator:
    """A reader of ``themis.sizes`` as a Pydantic validator."""

    def read(value: Any) -> Any:
        try:
            return function(value)
        except Unreadable as error:
            raise PydanticCustomError("expected", "{expected}", {"expected": str(error)}) from None

    return BeforeValidator(read)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; its text is the whole sentence."""

    source: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.source}{f', line {self.line}' if self.line else ''}: {self.problem}"


@dataclass(slots=True)
class Findings:
    """Collects the faults of one document."""

    source: str
    document: Document
    faults: list[Fault] = field(default_factory=list)

    def add(self, path: Path, problem: str) -> None:
        """Add a fault at the value with this path."""
        fault = Fault(self.source, self.document.line(path), problem)
        if fault not in self.faults:
            self.faults.append(fault)

    def expected(self, path: Path, value: object, expected: str) -> None:
        """Add a fault: a value that is not as expected."""
        self.add(
            path, f"{_key(path)}: got {short(value)}, expected {expected}{'' if expected.endswith(('?', '.')) else '.'}"
        )

    def valid(self, model: type[M], data: object, path: Path = ()) -> M | None:
        """Validate the data; returns None and adds the faults if there are any."""
        if not isinstance(data, dict):
            names = ", ".join(keys_of(model))
            self.add(path, f"{_key(path)}: got {short(data)}, expected a mapping with keys from: {names}.")
            return None
        try:
            return model.model_validate(data)
        except ValidationError as error:
            entries = error.errors(include_url=False)
            # A misspelled ``comand`` is one fault, not also a missing command.
            meant = {(*entry["loc"][:-1], _meant(model, entry["loc"])) for entry in entries if _unknown(entry)}
            for entry in entries:
                if entry["type"] != "missing" or entry["loc"] not in meant:
                    self._complain(model, entry, path)
            return None

    def _complain(self, model: type[BaseModel], entry: Any, path: Path) -> None:
        inner = tuple(part for part in entry["loc"] if part != "[key]")
        where: Path = (*path, *inner)
        if _unknown(entry):
            known = keys_of(_model_at(model, inner[:-1]))
            hint = did_you_mean(str(inner[-1]), known)
            self.add(where, f"unknown key {short(inner[-1])}{_inside(where)}.{hint} Known: {', '.join(sorted(known))}.")
        elif entry["type"] == "missing":
            self.add(where[:-1], f"missing key {inner[-1]!r}{_inside(where)}.")
        else:
            self.expected(where, entry["input"], _expected(entry))


def _unknown(entry: Any) -> bool:
    return entry["type"] in ("extra_forbidden", "invalid_key")


def _meant(model: type[BaseModel], path: Path) -> str:
    return named(did_you_mean(str(path[-1]), keys_of(_model_at(model, path[:-1]))))


def named(hint: str) -> str:
    """The name in a hint of ``did_you_mean``; empty if it is empty."""
    return hint.partition("'")[2].partition("'")[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'gpus'?``: the key that another system calls so, else the closest name; empty if there is none."""
    names = sorted(known)
    plain = name.lower().replace("-", "_").replace(" ", "_")
    if plain not in names:
        # Values of time have their unit: ``lease: 10m``, not ``lease_s``.
        plain = plain.removesuffix("_s").removesuffix("_seconds")
    synonym = plain if plain in names else SYNONYMS.get(plain)
    return f" Did you mean {synonym!r}?" if synonym in names else closest(plain, names)


def keys_of(model: type[BaseModel]) -> list[str]:
    """The allowed keys."""
    return list(model.model_fields)


def raise_first(faults: Iterable[Fault]) -> None:
    """Raise an InputError with the first fault and the number of others."""
    found = list(faults)
    if found:
        more = f" ({len(found) - 1} more; `themis check` lists all.)" if len(found) > 1 else ""
        raise InputError(f"{found[0]}{more}")


def short(value: object) -> str:
    """A value for a message: one line of at most 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print an integer with thousands of digits
        text = "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."


def _key(path: Path) -> str:
    if not path:
        return "the document"
    *_, last = path
    return f"{f'entry {last}' if isinstance(last, int) else f'key {last!r}'}{_inside(path)}"


def _inside(path: Path) -> str:
    parents = path[:-1]
    inside = "".join(f"[{p}]" if isinstance(p, int) else f"{'.' if i else ''}{_bare(p)}" for i, p in enumerate(parents))
    return f" in {inside}" if inside else ""


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", key) else short(key)


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    """The innermost model that contains the value with this path."""
    kind: Any = model
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            model = kind
            kind = _bare_type(kind.model_fields[str(part)].annotation) if str(part) in kind.model_fields else None
        else:
            kind = _bare_type(get_args(kind)[-1]) if get_args(kind) else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else model


def _bare_type(kind: Any) -> Any:
    """Without ``Annotated`` and ``| None``."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = next(k for k in get_args(kind) if k is not NoneType)
    return kind


_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "list_type": "a list",
    "finite_number": "a finite number",
    "string_too_short": "a non-empty text",
}


def _expected(entry: Any) -> str:
    kind, context = entry["type"], entry.get("ctx", {})
    if kind in _TYPES:
        return _TYPES[kind]
    match kind:
        case "expected":
            return str(context["expected"])
        case "greater_than":
            return f"a number above {context['gt']:g}"
        case "greater_than_equal":
            return f"a number of at least {context['ge']:g}"
        case "less_than":
            return f"a number below {context['lt']:g}"
        case "less_than_equal":
            return f"a number of at most {context['le']:g}"
        case "too_short":
            least = context["min_length"]
            return f"at least {least} {'entry' if least == 1 else 'entries'}"
        case "literal_error":
            return f"one of {str(context['expected']).replace(' or ', ', ')}"
    text: str = entry["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return text
