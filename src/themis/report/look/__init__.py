"""Appearance of pages: the report and the console share colours, styles and scripts.

The texts work inlined into one file (the report) and served one by one (the console): no script depends on another, none
is inline HTML, none speaks to another host. ``tables.js`` sorts tables, ``figures.js`` makes drawn figures interactive,
``base.css`` holds the components of a page, ``tokens()`` the colours of light and dark pages as CSS variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from themis.report.look.palette import APP_COLOURS, DARK_APP_COLOURS, DARK_COLOURS, POLICY_COLOURS

FILES = ("base.css", "figures.js", "tables.js")
_LIGHT = {
    "paper": "#ffffff",
    "ground": "#f4f5f7",
    "ink": "#1d2430",
    "soft": "#5b6675",
    "rule": "#dfe3e8",
    "best": "#0a7d4b",
    "best-ground": "#e5f5ec",
    "bad": "#b3261e",
    "bad-ground": "#fdeceb",
    "accent": "#2f5bd0",
    "badge": "#fff1d6",
    "badge-ink": "#7a4b00",
}
_DARK = {
    "paper": "#181c22",
    "ground": "#101317",
    "ink": "#e4e8ee",
    "soft": "#98a3b1",
    "rule": "#2d343d",
    "best": "#5fd39a",
    "best-ground": "#14301f",
    "bad": "#ff8f86",
    "bad-ground": "#3a1a18",
    "accent": "#86a8ff",
    "badge": "#3c2e10",
    "badge-ink": "#ffd78a",
}
_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "DejaVu Sans", sans-serif'


@cache
def text(name: str) -> str:
    """A style sheet or script of ``FILES``, as it is inlined or served.

    Raises
    ------
    KeyError : no such file.
    """
    if name not in FILES:
        raise KeyError(name)
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


@cache
def tokens() -> str:
    """CSS variables: ``--paper``, ``--ink`` and their like, ``--p0`` on by policy, ``--a0`` on by app or user."""
    light = _variables(_LIGHT, POLICY_COLOURS, APP_COLOURS)
    dark = _variables(_DARK, DARK_COLOURS, DARK_APP_COLOURS)
    return (
        f":root {{ --font: {_FONT}; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )


def _variables(named: dict[str, str], policies: Sequence[str], apps: Sequence[str]) -> str:
    numbered = {f"{letter}{i}": c for letter, row in (("p", policies), ("a", apps)) for i, c in enumerate(row)}
    return " ".join(f"--{name}: {colour};" for name, colour in {**named, **numbered}.items())
