"""Faults of values, a sentence each: place, value, what was expected, "did you mean".

Job files, settings, JSON bodies, messages from Python and cluster files are pydantic models; here pydantic's errors become
sentences, so that the same value is refused in the same words whichever way it comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import PydanticCustomError

from themis.errors import closest
from themis.limits import shown
from themis.sizes import Unreadable

Path: TypeAlias = tuple[int | str, ...]
"""Keys and positions that lead to a value."""

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


def reads(function: Callable[[Any], Any]) -> BeforeValidator:
    """A reader of ``themis.sizes`` as a Pydantic validator."""

    def read(value: Any) -> Any:
        try:
            return function(value)
        except Unreadable as error:
            raise PydanticCustomError("limit", "{problem}", {"problem": is_not(value, str(error))}) from None

    return BeforeValidator(read)


def is_not(value: object, expected: str) -> str:
    """The predicate of a sentence about a value that is not as expected."""
    return f"is {shown(value)}, expected {expected}"


def ended(sentence: str) -> str:
    """The sentence with its full stop."""
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."


def faults_of(
    error: ValidationError, model: type[BaseModel], at: Path = (), without: Container[str] = ()
) -> Iterator[tuple[Path, str]]:
    """All faults of values that are no such model: the place, and a sentence.

    Parameters
    ----------
    at : place of the model in the whole. ``without`` : fields of the model that are given elsewhere.
    """
    entries = error.errors(include_url=False)
    # A misspelled ``comand`` is one fault, not also a missing command.
    meant = {
        (*entry["loc"][:-1], named(did_you_mean(str(entry["loc"][-1]), keys_of(model_at(model, entry["loc"][:-1])))))
        for entry in entries
        if _unknown(entry)
    }
    for entry in entries:
        loc, how = entry["loc"], entry["type"]
        where = (*at, *loc)
        if _unknown(entry):
            loc = tuple(part for part in loc if part != "[key]")
            yield (
                (*at, *loc),
                unknown(loc[-1], keys_of(model_at(model, loc[:-1]), () if loc[:-1] else without), (*at, *loc[:-1])),
            )
        elif how == "missing":
            if loc not in meant:
                yield where[:-1], f"missing key {loc[-1]!r}{_inside(where[:-1])}."
        elif how == "value_error":
            yield where, str(entry["ctx"]["error"])
        else:
            yield tuple(part for part in where if part != "[key]"), ended(f"{place(where)} {_problem(entry)}")


def unknown(name: object, known: Iterable[str], inside: Path = (), what: str = "key") -> str:
    """The sentence about a key that is none."""
    names = list(known)
    has = f"Known: {', '.join(sorted(names))}." if names else "None is known here."
    return f"unknown {what} {shown(name)}{_inside(inside)}.{did_you_mean(str(name)[:100], names)} {has}"


def place(path: Path) -> str:
    """Words for a place: ``jobs[0].program.env``; ``the whole`` for all."""
    out = ""
    for part in path:
        if part == "[key]":
            return f"a key of {out.rpartition('.')[0]}"
        out += f"[{part}]" if isinstance(part, int) else f".{_bare(part)}" if out else _bare(part)
    return out or "the whole"


def _inside(path: Path) -> str:
    return f" in {place(path)}" if path else ""


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", key) else shown(key)


def _unknown(entry: Any) -> bool:
    return entry["type"] in ("extra_forbidden", "invalid_key")


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


def keys_of(model: type[BaseModel], without: Container[str] = ()) -> list[str]:
    """The keys that a model has."""
    return [field.alias or name for name, field in model.model_fields.items() if name not in without]


def model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    """The innermost model that contains the value with this path."""
    kind: Any = model
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            model = kind
            fields = {field.alias or name: field for name, field in kind.model_fields.items()}
            kind = _bare_type(fields[str(part)].annotation) if str(part) in fields else None
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
    "string_unicode": "text that UTF-8 can carry",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "list_type": "a list",
    "finite_number": "a finite number",
    "string_too_short": "a non-empty text",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "string_pattern_mismatch": "text of the form {pattern}",
}
"""Words for values that a field may have, by the type of pydantic's error."""


def _problem(entry: Any) -> str:
    """The predicate of the sentence about a wrong value."""
    kind, context, value = entry["type"], entry.get("ctx", {}), entry["input"]
    match kind:
        case "limit":
            return str(context["problem"])
        case "too_short":
            return is_not(value, f"at least {context['min_length']} entries")
        case "literal_error":
            known = [w.strip("'") for w in context["expected"].replace(" or ", ", ").split(", ") if w != "''"]
            hint = closest(str(value)[:100], known)
            return is_not(value, f"one of {', '.join(known)}{'.' * bool(hint)}{hint}")
    text: str = entry["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return is_not(value, _TYPES[kind].format(**context) if kind in _TYPES else text)
