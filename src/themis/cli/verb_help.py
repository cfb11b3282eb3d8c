"""``themis VERB --help``: usage, meaning, arguments and options from the verb's declarations, without typer and rich."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from themis.cli.overview_verb import first_sentence, head, panel
from themis.cli.parse import Kind, kinds_of
from themis.cli.table import GROUPS, VERBS, help_of, verb_of

TYPES = {int: "INTEGER", float: "FLOAT", str: "TEXT"}


def lines(name: str) -> Iterator[str]:
    """The lines of a verb's help, or of a group's."""
    if name in GROUPS:
        yield from head(f"{name} [OPTIONS] COMMAND [ARGS]...", GROUPS[name])
        yield from panel("Options", [HELP])
        below = [verb for verb in VERBS if verb.startswith(f"{name} ")]
        yield from panel("Commands", [(v.removeprefix(f"{name} "), first_sentence(help_of(verb_of(v)))) for v in below])
        return
    verb = verb_of(name)
    given = inspect.signature(verb).parameters
    kinds = {key: (kind, given[key].default) for key, kind in kinds_of(verb).items()}
    places = {key: found for key, found in kinds.items() if found[0].declared.argument}
    words = [_place(key, kind, default) for key, (kind, default) in places.items()]
    yield from head(" ".join([name, "[OPTIONS]", *words]), help_of(verb))
    if places:
        yield from panel("Arguments", [(_place(key, *found), _about(*found)) for key, found in places.items()])
    options = [
        (_option(key, kind), _about(kind, default)) for key, (kind, default) in kinds.items() if key not in places
    ]
    yield from panel("Options", [*options, HELP])


HELP = ("-h, --help", "Show this message and exit.")


def _place(key: str, kind: Kind, default: Any) -> str:
    word = kind.declared.metavar or key.upper()
    return word if default is inspect.Parameter.empty else f"[{word}]"


def _option(key: str, kind: Kind) -> str:
    names = sorted(kind.names(key), key=len)
    shape = kind.declared.metavar or TYPES.get(kind.of, "PATH")
    return ", ".join(names) + ("" if kind.of is bool else f" {shape}")


def _about(kind: Kind, default: Any) -> str:
    text = " ".join(kind.declared.help.split())
    if default is inspect.Parameter.empty:
        return f"{text} [required]" if text else "[required]"
    default = kind.declared.shown or default
    return text if default in (None, False, "", []) else f"{text} [default: {default}]"
