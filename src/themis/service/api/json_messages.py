"""Messages of the API as JSON: proto3's JSON mapping under the fields' own names, read, written and described as schemas.

Reading is stricter than the mapping: an unknown field, a key that is given twice, null and a number as a string are refused, so
what is accepted is what the schema describes. 64-bit integers may be numbers or strings, as replies have them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from themis.client.as_json import is_map, several
from themis.errors import InputError, closest
from themis.limits import check_json

Schema = dict[str, Any]

SPECIAL = ("NaN", "Infinity", "-Infinity")
"""JSON has no numbers for them."""
MOST_DIGITS = 1000
"""Digits of a whole number; the largest float has 309."""
INT64_TEXT = "^-?[0-9]{1,19}$"
_WHOLE = {FieldDescriptor.TYPE_INT32: 31, FieldDescriptor.TYPE_INT64: 63}
"""Bits of a whole number, without its sign."""


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
    return value


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


def read_message(kind: Descriptor, value: Mapping[str, Any], place: str = "", without: Container[str] = ()) -> Any:
    """A message of that kind from the values of its fields.

    Parameters
    ----------
    place : of the value in the body, such as ``jobs[0]``. ``without`` : fields that the value may not have.

    Raises
    ------
    InputError : a field is unknown or of another type; names its place.
    """
    out = GetMessageClass(kind)()
    known = {field.name: field for field in kind.fields if field.name not in without}
    chosen: dict[str, str] = {}
    for name, given in value.items():
        if (field := known.get(name)) is None:
            has = f"It has {', '.join(known)}." if known else "It has none."
            where = f" in {place}" if place else ""
            raise InputError(f"unknown field {name[:100]!r}{where}.{closest(name[:100], list(known))} {has}")
        oneof = field.containing_oneof
        if oneof is not None and (other := chosen.setdefault(oneof.name, name)) != name:
            raise InputError(f"{_inside(place, other)} and {_inside(place, name)} are given, expected one of them.")
        _fill(out, field, given, _inside(place, name))
    return out


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _fill(out: Any, field: FieldDescriptor, given: Any, place: str) -> None:
    if is_map(field):
        assert field.message_type is not None
        words = field.message_type.fields_by_name["value"]
        target = getattr(out, field.name)
        for key, text in _of_type(given, dict, "an object of strings", place).items():
            target[_text(key, f"a key of {place}")] = _scalar(words, text, f"{place}.{key[:100]}")
    elif several(field):
        rows = enumerate(_of_type(given, list, "a list", place))
        getattr(out, field.name).extend(_one(field, row, f"{place}[{i}]") for i, row in rows)
    elif field.message_type is not None:
        getattr(out, field.name).CopyFrom(_one(field, given, place))
    else:
        setattr(out, field.name, _scalar(field, given, place))


def _one(field: FieldDescriptor, given: Any, place: str) -> Any:
    if field.message_type is None:
        return _scalar(field, given, place)
    return read_message(field.message_type, _of_type(given, dict, "an object", place), place)


def _of_type(given: Any, kind: type, words: str, place: str) -> Any:
    if not isinstance(given, kind):
        raise InputError(f"{place} is {_short(given)}, expected {words}.")
    return given


def _scalar(field: FieldDescriptor, given: Any, place: str) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return _text(given, place)
        case FieldDescriptor.TYPE_BOOL:
            return _of_type(given, bool, "true or false", place)
        case FieldDescriptor.TYPE_DOUBLE:
            return _number(given, place)
    return _whole(field, given, place)


def _text(given: Any, place: str) -> str:
    text: str = _of_type(given, str, "a string", place)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{place} is {_short(text)}, which has half of a surrogate pair.") from None
    return text


def _number(given: Any, place: str) -> float:
    if given in SPECIAL:
        return float(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InputError(f"{place} is {_short(given)}, expected a number.")
    try:
        return float(given)
    except OverflowError:
        return math.inf if given > 0 else -math.inf


def _whole(field: FieldDescriptor, given: Any, place: str) -> int:
    bits = _WHOLE[field.type]
    number = given
    text = isinstance(given, str) and bits == 63 and re.fullmatch(INT64_TEXT, given)
    if text or (isinstance(given, float) and given.is_integer()):
        number = int(given)
    if isinstance(number, bool) or not isinstance(number, int) or not -(2**bits) <= number < 2**bits:
        raise InputError(f"{place} is {_short(given)}, expected a whole number of {bits + 1} bits.")
    return number


def _short(value: Any) -> str:
    text = json.dumps(value[:101] if isinstance(value, (str, list)) else value)
    return text if len(text) <= 100 else f"{text[:100]}..."


# ---- schemas ---------------------------------------------------------------------------------------------------------

NUMBER: Schema = {"anyOf": [{"type": "number"}, {"enum": list(SPECIAL)}]}
_SCALARS: Mapping[int, Schema] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1},
    # Readers in JavaScript would round it.
    FieldDescriptor.TYPE_INT64: {"type": "string", "pattern": "^-?[0-9]+$"},
    FieldDescriptor.TYPE_DOUBLE: NUMBER,
}
_INT64_GIVEN: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "string", "pattern": INT64_TEXT},
    ]
}


def schema_of(field: FieldDescriptor, *, given: bool = False) -> Schema:
    """A field's schema; ``given`` : in requests."""
    if is_map(field):
        return {"type": "object", "additionalProperties": {"type": "string"}}
    kind = field.message_type
    if kind is not None:
        one = reference(kind)
    else:
        one = _INT64_GIVEN if given and field.type == FieldDescriptor.TYPE_INT64 else _SCALARS[field.type]
    return {"type": "array", "items": one} if several(field) else one


def reference(kind: Descriptor) -> Schema:
    """A message's schema, by its name."""
    return {"$ref": f"#/components/schemas/{kind.name}"}


def body_schema(kind: Descriptor, without: Container[str] = ()) -> Schema:
    """Schema of a message in a request: every field is optional, and unknown fields are refused."""
    fields = [field for field in kind.fields if field.name not in without]
    oneofs = [[f.name for f in oneof.fields] for oneof in kind.oneofs if len(oneof.fields) > 1]
    pairs = [[a, b] for names in oneofs for i, a in enumerate(names) for b in names[i + 1 :]]
    return {
        "type": "object",
        "properties": {field.name: schema_of(field, given=True) for field in fields},
        "additionalProperties": False,
        **({"not": {"anyOf": [{"required": pair} for pair in pairs]}} if pairs else {}),
    }


def reply_schema(kind: Descriptor) -> Schema:
    """Schema of a message in a reply: every field without presence is required."""
    return {
        "type": "object",
        "properties": {field.name: schema_of(field) for field in kind.fields},
        "required": [field.name for field in kind.fields if not field.has_presence],
    }


def parts_of(kinds: Iterable[Descriptor]) -> list[Descriptor]:
    """Messages, and all that they hold, each once."""
    found: dict[str, Descriptor] = {}
    left = list(kinds)
    while left:
        kind = left.pop()
        if kind.name not in found:
            found[kind.name] = kind
            left += [f.message_type for f in kind.fields if f.message_type is not None and not is_map(f)]
    return [kind for _, kind in sorted(found.items())]
