"""Docstrings as Markdown: sections as the project writes them (``name : meaning``) become lists."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Lists(griffe.Extension):
    """Read by mkdocstrings before a page is made."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """A docstring's text with sections as bold titles over lists."""
    lines: list[str] = []
    inside = False
    for line in docstring.replace("``", "`").splitlines():
        if lines and re.fullmatch(r"-{3,}", line.strip()):
            lines[-1] = f"**{lines[-1].strip()}**"
            lines.append("")
            inside = True
        elif inside and (found := re.match(r"([\w, .]+?) : (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        else:
            lines.append(line)
    return "\n".join(lines)
