"""Figures in documents: measured tables with their command and commit, and quotes of their cells.

A comment above a measured table names it, the command that prints it and the commit that ran::

    <!-- table philly: python reproduction/fair_finish.py --grounds philly; 702681b -->

A figure that is quoted elsewhere is followed by a comment with its cell, ``name[row; ...; column]``, or with arithmetic on cells::

    22 %<!-- = 100 * (1 - over-1[drf; mean JCT]) -->

The keys of a row are the texts of cells that only one row has. A cell's value is its first number. Tables of one name state one
quantity: where they share a row and a column, their values agree to the digits that both have.
"""

from __future__ import annotations

import ast
import operator
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = re.compile(r"<!-- table ([\w-]+): (python [^;]+); ([^;\n]+) -->")
QUOTE = re.compile(r"(?P<quoted>-?\d[\d,]*(?:\.\d+)?)(?P<unit>[^\d<>\n]*)<!-- = (?P<cells>[^\n]+?) -->")
CELL = re.compile(r"([\w-]+)\[([^\]]*)\]")
NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?")
COMMAND = re.compile(r"\bpython ((?:reproduction|benchmarks|website)/\w+\.py)([^`;\n]*)")
COMMIT = re.compile(r"(?<![\w/.-])(?=\w*[a-f])(?=\w*\d)([0-9a-f]{7,8}|[0-9a-f]{40})(?![\w-]|\]\()(?::([\w./-]+\w))?")
CLAIM = re.compile(r"\d(?: %| times\b)(?!\]?<!-- = )")
STRICT = ("README.md", "docs/which-policy.md")
"""Pages of claims alone: each per cent and each factor on them is a quote."""
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@dataclass(frozen=True, slots=True)
class Table:
    """A measured table: where it stands, its column titles and the texts of its rows' cells."""

    where: str
    columns: list[str]
    rows: list[list[str]]


def wrong_figures(root: Path, pages: Sequence[Path]) -> Iterator[str]:
    """All findings of the pages, each with its place."""
    texts = {page.relative_to(root).as_posix(): page.read_text(encoding="utf-8") for page in pages}
    tables = tables_of(root, pages)
    for name, same in tables.items():
        yield from (
            f"{table.where}: no table stands below the comment that names {name}" for table in same if not table.rows
        )
        yield from _contradictions(name, same)
    for name, text in texts.items():
        yield from wrong_sources(root, name, text)
        yield from _wrong_quotes(name, text, tables)
        if name in STRICT:
            yield from _without_source(name, text)


def tables_of(root: Path, pages: Iterable[Path]) -> dict[str, list[Table]]:
    """The measured tables of pages, by name."""
    tables: dict[str, list[Table]] = {}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for found in TABLE.finditer(text):
            where = f"{page.relative_to(root).as_posix()}:{_line(text, found.start())}"
            tables.setdefault(found[1], []).append(_table(where, text[found.end() :]))
    return tables


def wrong_sources(root: Path, name: str, text: str) -> Iterator[str]:
    """Commands whose script or option is not there, and commits that are neither this one nor an ancestor of it."""
    for found in COMMAND.finditer(text):
        where, script = f"{name}:{_line(text, found.start())}", root / found[1]
        if not script.is_file():
            yield f"{where}: {found[1]} is not there"
            continue
        source = _with_imports(script)
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", found[2]):
            if option != "--help" and f'"{option}"' not in source:
                yield f"{where}: {found[1]} has no option {option}"
    commits = _commits(root)
    for found in COMMIT.finditer(text):
        if commits is None or (found[1] in commits and (not found[2] or _has(root, found[0]))):
            continue
        yield f"{name}:{_line(text, found.start())}: this commit and its ancestors have no {found[0]}"


def value(expression: str, tables: dict[str, list[Table]]) -> float:
    """Value of arithmetic on cells.

    Raises
    ------
    ValueError : no or several tables, rows or columns are meant, or the expression has anything but numbers and + - * /.
    """
    numbers = CELL.sub(lambda found: f"({text_of(found[0], tables).replace(',', '')})", expression)

    def evaluated(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=float() | int() as number):
                return float(number)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -evaluated(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
                return float(OPERATIONS[type(op)](evaluated(left), evaluated(right)))
        raise ValueError(f"{expression} has more than cells, numbers and + - * /")

    try:
        return evaluated(ast.parse(numbers.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"{expression} is no arithmetic on cells") from None


def agree(one: str, other: str | float) -> bool:
    """True if two figures are the same to the digits that both have."""
    texts = [one, *([other] if isinstance(other, str) else [])]
    digits = min(len(text.partition(".")[2]) for text in texts)
    numbers = [float(str(x).replace(",", "")) for x in (one, other)]
    return abs(numbers[0] - numbers[1]) <= 0.5 * 10.0**-digits + 1e-9


def _table(where: str, text: str) -> Table:
    """The first table of a text, which begins at its third line at the latest."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines[:4]) if line.startswith("|")), len(lines))
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    rows = [[_text(cell) for cell in line.strip().strip("|").split("|")] for line in lines[start:end]]
    return Table(where, rows[0] if rows else [], rows[2:])


def _text(cell: str) -> str:
    """A cell's text without comments, marks and the targets of links."""
    return re.sub(r"<!--.*?-->|\]\([^)]*\)|[`*]", "", cell).strip()


def text_of(cell: str, tables: dict[str, list[Table]]) -> str:
    """The number, as written, of the one cell ``name[row; ...; column]`` that is meant, in the first table that has it.

    Raises
    ------
    ValueError : none or several are meant, or it has no number.
    """
    found = CELL.fullmatch(cell)
    *keys, column = (_text(key) for key in found[2].split(";")) if found else ("",)
    for table in tables.get(found[1], []) if found else ():
        rows = [row for row in table.rows if all(key in row for key in keys)]
        if (
            column in table.columns
            and len(rows) == 1
            and (number := NUMBER.search(rows[0][table.columns.index(column)]))
        ):
            return number[0]
    raise ValueError(f"{cell} names no table, or not one cell with a number")


def _contradictions(name: str, same: Sequence[Table]) -> Iterator[str]:
    """Cells of tables of one name that share a row and a column and differ. A row is known by as few first cells as suffice."""
    first = max((_keys(table) for table in same), default=1)
    seen: dict[tuple[str, ...], tuple[str, str]] = {}
    for table in same:
        for row in table.rows:
            for i in range(first, min(len(row), len(table.columns))):
                column = table.columns[i]
                if not (number := NUMBER.match(row[i])):
                    continue
                key = (*row[:first], column, str(table.columns[:i].count(column)))
                where, before = seen.setdefault(key, (table.where, number[0]))
                if not agree(number[0], before):
                    yield f"{table.where}: {name}, {', '.join(row[:first])}: {column} is {number[0]}, and {before} at {where}"


def _keys(table: Table) -> int:
    """Number of first cells by which all rows differ."""
    sizes = range(1, len(table.columns))
    return next((n for n in sizes if len({tuple(row[:n]) for row in table.rows}) == len(table.rows)), 1)


def _wrong_quotes(name: str, text: str, tables: dict[str, list[Table]]) -> Iterator[str]:
    if text.count("<!-- = ") != len(quotes := list(QUOTE.finditer(text))):
        yield f"{name}:1: a comment `<!-- = ... -->` does not follow a figure on its line"
    for found in quotes:
        where = f"{name}:{_line(text, found.start())}"
        try:
            measured = value(found["cells"], tables)
        except ValueError as wrong:
            yield f"{where}: {wrong}"
            continue
        if not agree(found["quoted"], measured):
            yield f"{where}: {found['quoted']}{found['unit']} is quoted, and {found['cells']} is {measured:.6g}"


def _without_source(name: str, text: str) -> Iterator[str]:
    """Claims without a comment that says which cell they quote."""
    plain = re.sub(r"(?<=<!-- = ).*?(?= -->)|```.*?```|`[^`\n]*`", _blank, text, flags=re.DOTALL)
    for found in CLAIM.finditer(plain):
        yield f"{name}:{_line(text, found.start())}: {plain[found.start() - 4 : found.end()].strip()!r} quotes no table"


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


@cache
def _with_imports(script: Path) -> str:
    """Source of a script and of the modules next to it that it imports."""
    source = script.read_text(encoding="utf-8")
    for module in re.findall(r"^(?:from|import) (\w+)", source, flags=re.MULTILINE):
        if (beside := script.with_name(f"{module}.py")).is_file():
            source += beside.read_text(encoding="utf-8")
    return source


@cache
def _commits(root: Path) -> frozenset[str] | None:
    """Names, long and short, of this commit and its ancestors; None where their history is not there to look at."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    names = _git(root, "rev-list", "HEAD").split()
    return frozenset(name[:length] for name in names for length in (7, 8, 40))


@cache
def _has(root: Path, name: str) -> bool:
    """True if the repository has ``COMMIT:PATH``."""
    return _git(root, "cat-file", "-t", name) == "blob"


def _git(root: Path, *words: str) -> str:
    """What git prints; nothing where it fails."""
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
