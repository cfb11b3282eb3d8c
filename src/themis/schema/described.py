"""Descriptions of fields: the comments beside them in ``messages``, which OpenAPI and the reference page show."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections import ChainMap
from collections.abc import Mapping
from functools import cache
from typing import Any

from themis.schema import messages
from themis.schema.messages import Message


def described(message: type[Message], fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schemas of a message's fields, with descriptions."""
    found = ChainMap(*(_comments().get(kind.__name__, {}) for kind in message.__mro__))
    return {name: {**one, "description": found[name]} if name in found else one for name, one in fields.items()}


@cache
def _comments() -> Mapping[str, dict[str, str]]:
    """Message -> field -> its comment: at the end of its line, or in the lines above it."""
    source = inspect.getsource(messages)
    beside: dict[int, str] = {}
    above: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            (above if alone else beside)[token.start[0]] = token.string.removeprefix("#").strip()

    def comment(field: ast.AnnAssign) -> str:
        first = field.lineno
        while first - 1 in above:
            first -= 1
        lines = range(first, (field.end_lineno or field.lineno) + 1)
        return " ".join(text for line in lines if (text := above.get(line) or beside.get(line)))

    return {
        kind.name: {
            str(field.target.id): text
            for field in kind.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and (text := comment(field))
        }
        for kind in ast.parse(source).body
        if isinstance(kind, ast.ClassDef)
    }
