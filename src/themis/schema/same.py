"""Fields copied by name from one shape of a job to the next, so that a field that all have is not named on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any


def same(to: Any, source: object, /, **given: Any) -> dict[str, Any]:
    """Values for ``to``: those given, and the source's of every other field that both have, by name.

    None is left out, so that it stands for the default of ``to``; lists become tuples for a dataclass, which is frozen.
    """
    kind: Any = type(source)
    shared = _names(to) & _names(kind) - given.keys()
    found = {name: value for name in shared if (value := getattr(source, name)) is not None}
    return (_frozen(found) if is_dataclass(to) else found) | given


@cache
def _names(kind: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind)) if is_dataclass(kind) else frozenset(kind.model_fields)


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
