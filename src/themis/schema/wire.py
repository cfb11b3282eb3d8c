"""Messages as JSON: written, read with one sentence for what is wrong, and described as JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from themis.errors import InputError, closest
from themis.limits import check_json
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
        raise InputError(f"the body is {_short(value)}, expected a JSON object.")
    if _SURROGATE.search(data) and (place := _half_of_a_pair(value, ())):
        raise InputError(f"{place} has half of a surrogate pair, expected text that UTF-8 can carry.")
    return value


def _half_of_a_pair(value: Any, at: tuple[int | str, ...]) -> str:
    """Place of the first text that is not UTF-8; empty if there is none."""
    if isinstance(value, str):
        return "" if value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value) else _place(at)
    if isinstance(value, dict):
        if any(_half_of_a_pair(name, ("key",)) for name in value):
            return f"a key of {_place(at) or 'the body'}"
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
        raise InputError(_unknown(model, twice, "", without))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(_sentence_of(error, model, without)) from None


def _sentence_of(error: ValidationError, model: type[Message], without: Container[str] = ()) -> str:
    """The first problem of values that are no such message."""
    found = error.errors(include_url=False)[0]
    loc, how, given = found["loc"], found["type"], found["input"]
    if how == "extra_forbidden":
        place = _place(loc[:-1]) if len(loc) > 1 else ""
        return _unknown(_model_at(model, loc[:-1]), str(loc[-1]), place, without)
    if how == "value_error":
        return str(found["ctx"]["error"])
    if given is None:
        return f"{_place(loc)} is null, expected {_expected(model, loc)}."
    if how == "string_unicode":
        return f"{_place(loc)} is {_short(given)}, which has half of a surrogate pair."
    if how == "literal_error":
        known = [word.strip("'") for word in found["ctx"]["expected"].replace(" or ", ", ").split(", ") if word != "''"]
        return f"{_place(loc)} is {str(given)[:100]!r}, expected one of {', '.join(known)}.{closest(str(given)[:100], known)}"
    return f"{_place(loc)} is {_short(given)}, expected {_expected(model, loc)}."


def _unknown(model: type[BaseModel], name: str, place: str, without: Container[str]) -> str:
    known = [field for field in model.model_fields if place or field not in without]
    has = f"It has {', '.join(known)}." if known else "It has none."
    where = f" in {place}" if place else ""
    return f"unknown field {name[:100]!r}{where}.{closest(name[:100], known)} {has}"


def _place(loc: tuple[int | str, ...]) -> str:
    out = ""
    for part in loc:
        if part == "[key]":
            return f"a key of {out.rpartition('.')[0]}"
        out += f"[{part}]" if isinstance(part, int) else f".{part[:100]}" if out else part[:100]
    return out or "the body"


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The message at a place within a message of that kind."""
    for part in loc:
        if isinstance(part, str) and part in model.model_fields:
            model = next(iter(models_in(model.model_fields[part].annotation)), model)
    return model


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The messages that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in models_in(inner)]


def _expected(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """Words for the values that a place may have."""
    at = _model_at(model, loc[:-1])
    names = [part for part in loc if isinstance(part, str) and part in at.model_fields]
    if not names:
        return "a string" if loc else "an object"
    one: Schema = given_schema(at)["properties"][names[-1]]
    one = next(
        (part for part in one.get("anyOf", ()) if (part.get("type") != "null" and "type" in part) or "$ref" in part),
        one,
    )
    if isinstance(loc[-1], int):
        one = one.get("items", one)
        one = next((part for part in one.get("anyOf", ()) if "type" in part), one)
    elif loc[-1] != names[-1]:  # a value of a map
        one = one.get("additionalProperties", one)
    match one.get("type"):
        case "string":
            return "a string"
        case "boolean":
            return "true or false"
        case "integer":
            least, most = one["minimum"], one["maximum"]
            if least == -most - 1:
                return f"a whole number of {most.bit_length() + 1} bits"
            return f"a whole number from {least} to {most}"
        case "number":
            if "minimum" in one:
                return f"a number from {one['minimum']:.12g} to {one['maximum']:.12g}"
            return "a number"
        case "array":
            return "a list"
        case "object" if "additionalProperties" in one and "properties" not in one:
            return "an object of strings"
    return "an object"


def _short(value: Any) -> str:
    text = json.dumps(value[:101] if isinstance(value, (str, list)) else value, default=repr)
    return text if len(text) <= 100 else f"{text[:100]}..."


# ---- schemas ---------------------------------------------------------------------------------------------------------


@cache
def given_schema(model: type[BaseModel]) -> Schema:
    """JSON Schema of a message in a request: every field is optional, unknown fields are refused. Parts are in ``$defs``."""
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
