"""``themis set``: change the service's settings while it runs, or list them; and options of ``themis up`` for settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from themis.cli.options import option
from themis.cli.output import out
from themis.cli.table_columns import Columns, Home, Output, clock, connect, dump, show_rows
from themis.errors import InputError

SETTINGS: Columns = {
    "setting": lambda r: r["name"],
    "value": lambda r: r.get("value", ""),
    "since": lambda r: clock(r["since"]) if r.get("since") else "",
    "changed by": lambda r: r.get("user", ""),
    "changes": lambda r: "at the next start" if r.get("restart") else "",
}


def setting_options(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with an option for each setting that has one, in place of ``**options``: those that are not given are None."""
    from themis.service.engine.config import SETTINGS
    from themis.setting import Setting

    def parameter(found: Setting) -> inspect.Parameter:
        kind: Any = int if found.kind.number else bool if found.default is False else str
        text = re.sub(r"\[[^]]*\]\(([^)#]*)[^)]*\)", r"docs/\1", found.meaning)
        declared = option(
            *found.option.split(),
            help=f"{text[0].upper()}{text[1:]}.",
            metavar="|".join(found.kind.choices) if kind is str and found.kind.choices else None,
        )
        return inspect.Parameter(
            found.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, declared]
        )

    own = inspect.signature(verb, eval_str=True)
    left = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [parameter(found) for found in SETTINGS.values() if found.option]
    verb.__signature__ = own.replace(parameters=[*more, *(p.replace(kind=more[0].kind) for p in left)])  # type: ignore[attr-defined]
    return verb


def set_(
    values: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Settings, as in docs/settings.md.")
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Read the service's settings file again, and apply what changed in it.")
    ] = False,
    output: Output = "table",
    home: Home = None,
) -> None:
    """Change settings of the running service, all of them or none; without arguments, list them (changes: administrators only).

    A new policy decides immediately; running jobs keep their leases. A removed machine is drained first.

    Example: [cyan]themis set policy=themis:f=0.4 lease=5m users.ann.weight=2[/cyan]
    """
    from themis.schema.wire import as_dict

    if values and reload:
        raise InputError("--reload cannot be combined with KEY=VALUE; use two commands.")
    given: dict[str, str] = {}
    for text in values or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"got {text!r}, expected KEY=VALUE, such as lease=5m. `themis set` lists the settings.")
        if name.strip() in given:
            raise InputError(
                f"{name.strip()} is given twice ({given[name.strip()]} and {value.strip()}); give it once."
            )
        given[name.strip()] = value.strip()
    with connect(home) as client:
        if not given and not reload:
            show_rows([as_dict(row) for row in client.settings()], output, SETTINGS)
            return
        changes = client.set(given, reload=reload)
    if output != "table":
        dump(changes, output)
        return
    for line in changes or ["Nothing changed."]:
        out.print(line, markup=False, highlight=False, soft_wrap=True)
