"""A command line read by a verb's own declarations (``options``), with the standard library alone.

Only what is plainly right is read. For everything else (``--help``, an unknown option, a missing argument, text where a number is
expected) the answer is None, and typer reads the line again and says what is wrong.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from themis.cli.options import Declared

_Kind = tuple[type, bool, Declared]
"""Type of one value, whether there may be several, declaration."""


def arguments(verb: Callable[..., None], words: Sequence[str]) -> dict[str, Any] | None:
    """The values of the verb's parameters, without those that are not given; None if typer must read the line."""
    kinds = {name: _kind(hint) for name, hint in _hints(verb).items()}
    by_name = {text: name for name, (_, _, declared) in kinds.items() for text in _names(name, declared)}
    values: dict[str, Any] = {}
    places: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            places += left
            break
        if word == "-" or not word.startswith("-"):
            places.append(word)
            if "whole_rest" in verb.__dict__:
                places += left
                break
            continue
        if not _option(word, left, by_name, kinds, values):
            return None
    return values if _place(verb, places, kinds, values) else None


def _hints(verb: Callable[..., None]) -> dict[str, Any]:
    hints = typing.get_type_hints(verb, include_extras=True)
    hints.pop("return", None)
    return hints


def _kind(hint: Any) -> _Kind:
    """The type and declaration of an ``Annotated`` parameter."""
    kind, declared = hint.__origin__, hint.__metadata__[0]
    if isinstance(kind, types.UnionType):
        (kind,) = (part for part in kind.__args__ if part is not types.NoneType)
    several = typing.get_origin(kind) is list
    return (kind.__args__[0] if several else kind), several, declared


def _names(name: str, declared: Declared) -> tuple[str, ...]:
    return () if declared.argument else declared.names or (f"--{name.replace('_', '-')}",)


def _option(
    word: str, left: list[str], by_name: dict[str, str], kinds: dict[str, _Kind], values: dict[str, Any]
) -> bool:
    """Read an option and its value; returns whether that is plain."""
    text, equals, given = word.partition("=")
    if not word.startswith("--"):
        text, equals, given = word[:2], word[2:], word[2:]
    name = by_name.get(text)
    if name is None:
        return False
    kind, several, declared = kinds[name]
    if kind is bool:
        values[name] = True
        if word.startswith("--"):
            return not equals
        return not given or _option(f"-{given}", left, by_name, kinds, values)  # -dv is -d -v
    if not equals:
        if not left:
            return False
        given = left.pop(0)
    value = _value(given, kind, declared)
    if value is None:
        return False
    if several:
        values.setdefault(name, []).append(value)
    else:
        values[name] = value
    return True


def _value(text: str, kind: type, declared: Declared) -> Any:
    """The value, or None if the text is not one."""
    if kind in (str, Path):
        return kind(text)
    try:
        value = kind(text)
    except ValueError:
        return None
    return None if declared.least is not None and value < declared.least else value


def _place(verb: Callable[..., None], places: list[str], kinds: dict[str, _Kind], values: dict[str, Any]) -> bool:
    """Give the arguments their names; returns whether there are as many as expected."""
    defaults = verb.__defaults__ or ()
    code = verb.__code__
    required = code.co_varnames[: code.co_argcount - len(defaults)]
    for name, (kind, several, declared) in kinds.items():
        if not declared.argument:
            continue
        if several:
            if places:
                values[name] = [kind(place) for place in places]
            places = []
        elif places:
            values[name] = kind(places.pop(0))
        if name in required and name not in values:
            return False
    return not places
