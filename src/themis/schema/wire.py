"""Messages as JSON: written, read with one sentence for what is wrong, and described as JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from themis.errors import InputError
from themis.faults import faults_of, keys_of, place, unknown
from themis.limits import check_json, shown
from themis.schema import messages
from themis.schema.messages import Message

M = TypeVar("M", bound=Message)
Schema = dict[str, Any]
MOST_DIGITS = 1000
"""Digits of a whole number; the largest float has 309."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PLACE = "#/components/schemas/{model}"


def kind(name: str) -> type[Message]:
    """The message of that name."""
    found: type[Message] = getattr(messages, name)
    return found


def as_dict(message: Message) -> dict[str, Any]:
    """A message as JSON has it: every field that is not None."""
    found: dict[str, Any] = json.loads(as_json(message))
    return found


def as_json(value: Any) -> bytes:
    """A message, a list of messages or a plain value as JSON."""
    return to_json(value, exclude_none=True, by_alias=True, inf_nan_mode="strings")


def changed(message: M, **fields: Any) -> M:
    """A copy with other values of some fields, which are not checked; what it holds is shared."""
    return message.model_copy(update=fields)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object of a body; an empty body is an empty object.

    Raises
    ------
    InputError : it is not UTF-8, not JSON, not an object, too large or too deep, or has a key twice.
    """
    if not data.strip():
        return {}
    try:
        value = json.loads(
            check_json(data).decode(),
            object_pairs_hook=_each_once,
            parse_constant=_no_constant,
            parse_int=_short_enough,
        )
    except UnicodeDecodeError as error:
        raise InputError(f"the body is not UTF-8 at byte {error.start}, expected a JSON object.") from None
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}. Expected a JSON object.") from None
    if not isinstance(value, dict):
        raise InputError(f"the body is {shown(value)}, expected a JSON object.")
    if _SURROGATE.search(data) and (where := _half_of_a_pair(value, ())):
        raise InputError(f"{where} has half of a surrogate pair, expected text that UTF-8 can carry.")
    return value


def _half_of_a_pair(value: Any, at: tuple[int | str, ...]) -> str:
    """Place of the first text that is not UTF-8; empty if there is none."""
    if isinstance(value, str):
        return "" if value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value) else place(at)
    if isinstance(value, dict):
        if any(_half_of_a_pair(name, ("key",)) for name in value):
            return f"a key of {place(at)}"
        value = value.items()
    elif isinstance(value, list):
        value = enumerate(value)
    else:
        return ""
    return next((found for key, part in value if (found := _half_of_a_pair(part, (*at, key)))), "")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"duplicate key {twice[:100]!r} in the body.")
    return out


def _short_enough(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise InputError(f"the body has a number of {len(digits)} digits, expected at most {MOST_DIGITS}.")
    return int(digits)


def _no_constant(name: str) -> float:
    raise ValueError(f'{name} is not a JSON number; write "{name}"')


def read(model: type[M], values: Mapping[str, Any], without: Container[str] = ()) -> M:
    """A message from the values of its fields; ``without`` : fields that are given elsewhere.

    Raises
    ------
    InputError : a field is unknown, of another type or out of its range; names its place.
    """
    if (twice := next((name for name in values if name in without), None)) is not None:
        raise InputError(unknown(twice, keys_of(model, without)))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(next(faults_of(error, model, without=without))[1]) from None


@contextmanager
def told(source: str) -> Iterator[None]:
    """Messages are made here; InputError with ``source`` names the first value that one cannot have."""
    try:
        yield
    except ValidationError as error:
        raise InputError(f"{source}: {next(faults_of(error, Message))[1]}") from None


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The messages that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in models_in(inner)]


# ---- schemas ---------------------------------------------------------------------------------------------------------


@cache
def given_schema(model: type[BaseModel]) -> Schema:
    """JSON Schema of a message in a request: unknown fields are refused. Parts are in ``$defs``."""
    made: Schema = _plain(model.model_json_schema(ref_template=_PLACE, mode="validation"))
    return made


@cache
def reply_schema(model: type[BaseModel]) -> Schema:
    """JSON Schema of a message in a reply: every field that cannot be None is required."""
    out: Schema = _plain(model.model_json_schema(ref_template=_PLACE, mode="serialization"))
    for part, kind_ in [(out, model), *((made, kind(name)) for name, made in out.get("$defs", {}).items())]:
        part["required"] = [
            f.alias or n for n, f in kind_.model_fields.items() if type(None) not in get_args(f.annotation)
        ]
    return out


def _plain(made: Any) -> Any:
    """The schema without titles, defaults and nulls: what is None is left out."""
    if isinstance(made, list):
        return [_plain(one) for one in made]
    if not isinstance(made, dict):
        return made
    out = {key: _plain(value) for key, value in made.items() if key not in ("title", "default")}
    several = out.get("anyOf")
    if isinstance(several, list) and {"type": "null"} in several:
        left = [one for one in several if one != {"type": "null"}]
        del out["anyOf"]
        return {**out, **(left[0] if len(left) == 1 else {"anyOf": left})}
    return out


def reference(model: type[BaseModel]) -> Schema:
    """A message's schema, by its name."""
    return {"$ref": _PLACE.format(model=model.__name__)}
