"""A command line read by a verb's own declarations (``options``), with the standard library alone.

Only what is plainly right is read. For everything else (``--help``, an unknown option, a missing argument, text where a number is
expected) the answer is None, and typer reads the line again and says what is wrong.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from themis.cli.options import Declared


class Kind(NamedTuple):
    """Type of one value, whether there may be several, and the declaration."""

    of: type
    several: bool
    declared: Declared

    def names(self, name: str) -> tuple[str, ...]:
        """Names of the option of this parameter."""
        if self.declared.argument:
            return ()
        return self.declared.names or (f"--{name.replace('_', '-')}",)


def arguments(verb: Callable[..., None], words: Sequence[str]) -> dict[str, Any] | None:
    """The values of the verb's parameters, without those that are not given; None if typer must read the line."""
    try:
        kinds = kinds_of(verb)
    except NotPlain:
        return None
    by_name = {text: name for name, kind in kinds.items() for text in kind.names(name)}
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


class NotPlain(Exception):
    """A parameter is declared in a way that only typer reads."""


def kinds_of(verb: Callable[..., None]) -> dict[str, Kind]:
    """The verb's parameters.

    Raises
    ------
    NotPlain : one has no declaration.
    """
    if "__signature__" in verb.__dict__:
        hints = {p.name: p.annotation for p in verb.__dict__["__signature__"].parameters.values()}
    else:
        hints = typing.get_type_hints(verb, include_extras=True)
    return {name: _kind(hint) for name, hint in hints.items() if name != "return"}


def _kind(hint: Any) -> Kind:
    """The type and declaration of an ``Annotated`` parameter."""
    if not hasattr(hint, "__metadata__"):
        raise NotPlain
    kind, found = hint.__origin__, hint.__metadata__[0]
    if isinstance(kind, types.UnionType):
        (kind,) = (part for part in kind.__args__ if part is not types.NoneType)
    several = typing.get_origin(kind) is list
    declared = found if isinstance(found, Declared) else _of_typer(found)
    return Kind(kind.__args__[0] if several else kind, several, declared)


def _of_typer(found: Any) -> Declared:
    """The declaration of ``typer.Option`` or ``typer.Argument``."""
    # Within ``Annotated``, typer's first name stands where its default would.
    names = (found.default, *(found.param_decls or ()))
    return Declared(
        *(name for name in names if isinstance(name, str)),
        help=found.help or "",
        metavar=found.metavar,
        least=found.min,
        most=found.max,
        reads=found.parser,
        shown=found.show_default if isinstance(found.show_default, str) else "",
        argument=type(found).__name__ == "ArgumentInfo",
    )


def _option(
    word: str, left: list[str], by_name: dict[str, str], kinds: dict[str, Kind], values: dict[str, Any]
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
    if declared.reads is not None:
        return declared.reads(text)
    if kind in (str, Path):
        return kind(text)
    try:
        value = kind(text)
    except ValueError:
        return None
    low, high = declared.least, declared.most
    return None if (low is not None and value < low) or (high is not None and value > high) else value


def _place(verb: Callable[..., None], places: list[str], kinds: dict[str, Kind], values: dict[str, Any]) -> bool:
    """Give the arguments their names; returns whether there are as many as expected, and every required option."""
    defaults = verb.__defaults__ or ()
    code = verb.__code__
    required = code.co_varnames[: code.co_argcount - len(defaults)]
    for name, (kind, several, declared) in kinds.items():
        if not declared.argument:
            continue
        if several:
            if places:
                values[name] = [_value(place, kind, declared) for place in places]
            places = []
        elif places:
            values[name] = _value(places.pop(0), kind, declared)
        if values.get(name, "") is None:
            return False
    return not places and values.keys() >= set(required)
