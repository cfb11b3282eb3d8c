"""Verbs for typer: what ``options`` declares becomes typer's parameters, which know help, completion and wrong input."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from themis.cli.options import Declared


class Verbs(typer.Typer):
    """A group of verbs; their parameters may be declared in typer's way, or by ``options``."""

    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        """Same as typer's."""

        def register(verb: Callable[..., None]) -> Callable[..., None]:
            settings = more
            if "whole_rest" in verb.__dict__:
                settings = {"context_settings": {"allow_interspersed_args": False}, **more}
            super(Verbs, self).command(name, **settings)(_for_typer(verb))
            return verb

        return register


def _for_typer(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with typer's annotations."""
    signature = inspect.signature(verb, eval_str=True)

    @wraps(verb)
    def call(**values: Any) -> None:
        verb(**values)

    parameters = [p.replace(annotation=_annotation(p.annotation)) for p in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    del call.__wrapped__
    return call


def _annotation(hint: Any) -> Any:
    declared = next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Declared)), None)
    if declared is None:
        return hint
    limits: dict[str, Any] = {} if declared.least is None else {"min": declared.least}
    make: Callable[..., Any] = typer.Argument if declared.argument else typer.Option
    return Annotated[hint.__origin__, make(*declared.names, help=declared.help, metavar=declared.metavar, **limits)]
