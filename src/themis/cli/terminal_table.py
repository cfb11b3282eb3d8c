"""Tables as plain text, fitted to a terminal: which columns there is room for, and where text is shortened or wrapped."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from themis.cli.output import painted

GAP = 2
LEAST: Mapping[str, int] = {"name": 12, "parameters": 24}
"""Characters that text keeps when it is shortened or wrapped, by the column's title; 8 in all others."""
SHORT = ("app", "name", "user", "nodes", "GPUs", "apps", "parameters", "action")
"""Titles of columns whose text may be shortened on a narrow terminal."""
PROSE = ("finding", "withheld", "attempts ended", "reason", "why stopped", "metrics", "")
"""Titles of columns of sentences, which wrap between words."""
RANKS: Mapping[str, int] = {
    "GPU hours": 9,
    "submitted": 8,
    "rho": 8,
    "vs own share": 3,
    "promise kept": 4,
    "metrics": 4,
    "shared between": 9,
    "fair GPU hours": 10,
    "median rho": 8,
    "median rho reference": 8,
    "worst rho attainable": 8,
    "worst rho": 7,
    "worst rho reference": 7,
    "runs": 8,
    "group": 7,
    "started": 7,
    "began": 7,
    "restart": 10,
    "lost": 10,
    "idle": 10,
    "useful": 10,
    "stopped": 7,
    "why stopped": 6,
    "reason": 6,
    "at step": 5,
    "last loss": 4,
    "attempts ended": 6,
    "lease until": 5,
    "attempt": 4,
    "jobs": 3,
    "progress": 2,
    "nodes": 2,
    "type": 2,
    "withheld": 1,
    "pending reason": 1,
    "outcome": 1,
}
"""Rank in which a narrow terminal drops columns, empty ones before all others, then the highest; those without a rank stay."""


def width_of_terminal() -> int | None:
    """Columns of the terminal on stdout; None if stdout is a file or a pipe, which gets whole lines."""
    try:
        width = os.get_terminal_size(sys.stdout.fileno()).columns
        asked = os.environ.get("COLUMNS", "")
        return int(asked) if asked.isdecimal() and int(asked) else width or None
    except (OSError, ValueError):  # a file, a pipe
        return None


def lines_of(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    changed: Collection[int] = (),
    paint: bool = True,
) -> Iterable[str]:
    """The lines of a table: titles, a rule, a row or more for each row.

    Parameters
    ----------
    width : characters of a line; None: no limit.
    changed : positions of rows that are marked in bold. ``paint`` : whether a terminal gets bold text.
    """
    kept = _kept(titles, rows, width)
    sizes = _sizes(titles, rows, kept, width)
    head = _line([titles[i] for i in kept], sizes)
    bold = "1" if paint else ""
    yield painted(head, bold, to_stdout=True)
    yield "─" * min(sum(sizes) + GAP * (len(sizes) - 1), width or 10_000)
    for number, row in enumerate(rows):
        for line in _row([titles[i] for i in kept], [row[i] for i in kept], sizes):
            yield painted(line, bold, to_stdout=True) if number in changed else line


def _kept(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """The columns for which there is room, all others at their smallest."""
    kept = list(range(len(titles)))
    if width is None:
        return kept

    def least(i: int) -> int:
        whole = _widest(titles, rows, i)
        return min(whole, _least(titles[i])) if titles[i] in (*SHORT, *PROSE) else whole

    while sum(map(least, kept)) + GAP * (len(kept) - 1) > width:
        optional = [i for i in kept if titles[i] in RANKS]
        if not optional:
            break
        kept.remove(max(optional, key=lambda i: (not _filled(rows, i), RANKS[titles[i]])))
    return kept


def _filled(rows: Sequence[Sequence[str]], i: int) -> bool:
    return any(row[i] for row in rows)


def left_out(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Titles of the columns for which there was no room, without those that are empty."""
    kept = _kept(titles, rows, width)
    return [title for i, title in enumerate(titles) if i not in kept and _filled(rows, i)]


def _least(title: str) -> int:
    return max(LEAST.get(title, 8), len(title))


def _widest(titles: Sequence[str], rows: Sequence[Sequence[str]], i: int) -> int:
    return max([size(titles[i]), *(size(row[i]) for row in rows)])


def _sizes(titles: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int], width: int | None) -> list[int]:
    """The width of each column: the widest of those that may be narrower give way first."""
    sizes = [_widest(titles, rows, i) for i in kept]
    if width is None:
        return sizes
    while (over := sum(sizes) + GAP * (len(sizes) - 1) - width) > 0:
        soft = [n for n, i in enumerate(kept) if titles[i] in (*SHORT, *PROSE) and sizes[n] > _least(titles[i])]
        if not soft:
            break
        widest = max(soft, key=lambda n: sizes[n])
        others = [sizes[n] for n in soft if n != widest]
        floor = max([_least(titles[kept[widest]]), *(s for s in others if s < sizes[widest])])
        sizes[widest] -= min(over, max(sizes[widest] - floor, 1))
    return sizes


def _row(titles: Sequence[str], row: Sequence[str], sizes: Sequence[int]) -> Iterable[str]:
    cells = [
        broken(text, room) if title in PROSE else [shortened(text, room)]
        for title, text, room in zip(titles, row, sizes)
    ]
    for n in range(max(map(len, cells))):
        yield _line([cell[n] if n < len(cell) else "" for cell in cells], sizes)


def _line(texts: Sequence[str], sizes: Sequence[int]) -> str:
    return (" " * GAP).join(text + " " * (room - size(text)) for text, room in zip(texts, sizes)).rstrip()


def shortened(text: str, room: int) -> str:
    """The text in at most ``room`` columns; an ellipsis replaces the rest."""
    if size(text) <= room:
        return text
    out = ""
    for letter in text:
        if size(out + letter) > room - 1:
            break
        out += letter
    return out + "…"


def wrapped(text: str, room: int) -> list[str]:
    """The text in lines of at most ``room`` columns, broken between words; a longer word stays whole."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and size(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def broken(text: str, room: int) -> list[str]:
    """The text in lines of at most ``room`` columns; a longer word goes on in the next line."""
    lines = wrapped(text, room)
    while (n := next((n for n, line in enumerate(lines) if size(line) > room), None)) is not None:
        fits = len(shortened(lines[n], room + 1)) - 1
        lines[n : n + 1] = lines[n][:fits], lines[n][fits:]
    return lines


def size(text: str) -> int:
    """Columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1 for c in text
    )
