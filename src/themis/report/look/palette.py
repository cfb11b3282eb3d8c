"""Colours that tell policies, apps and users apart, safe for colour-blind readers (Okabe and Ito; Tol's muted set)."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

POLICY_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c")
DARK_COLOURS = ("#4ba3dc", "#f0803c", "#2cc295", "#e39ac4", "#f2b53c", "#8ccbf0", "#a8a8a8")
APP_COLOURS = (
    "#4a3bb0",
    "#88ccee",
    "#44aa99",
    "#ddcc77",
    "#cc6677",
    "#117733",
    "#aa4499",
    "#999933",
    "#882255",
    "#6699cc",
    "#ee8866",
    "#bbcc33",
    "#77aadd",
    "#994455",
    "#aaaa00",
    "#ee99aa",
)
DARK_APP_COLOURS = (
    "#8f83ea",
    "#88ccee",
    "#44aa99",
    "#ddcc77",
    "#dd7788",
    "#3fa565",
    "#cc6fbe",
    "#aaaa44",
    "#c05a8e",
    "#6699cc",
    "#ee8866",
    "#bbcc33",
    "#77aadd",
    "#c06a7d",
    "#b8b81e",
    "#ee99aa",
)
"""The same hues on a dark page; lighter where contrast would be low."""


def colour_number(name: str) -> int:
    """Number in ``APP_COLOURS`` of a user or app, by name: the same in every page, on every day."""
    return crc32(name.encode()) % len(APP_COLOURS)


def colour_numbers(names: Iterable[str]) -> dict[str, int]:
    """Same as ``colour_number``, but a name whose colour is taken gets the next free one, while there is one."""
    found: dict[str, int] = {}
    for name in names:
        wanted = colour_number(name)
        free = [n for i in range(len(APP_COLOURS)) if (n := (wanted + i) % len(APP_COLOURS)) not in found.values()]
        found[name] = free[0] if free else wanted
    return found
