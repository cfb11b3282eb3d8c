"""CSV files as rows that know their line: the ground of every reader, and of every complaint about a row.

Python's own csv module is used, not a data-frame library: line numbers must be exact for quoted cells that span
lines and for blank lines, and traces of 100,000 rows still load in a second.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from themis.errors import InputError, TraceError


@dataclass(frozen=True, slots=True)
class Row:
    """One record: its cells by column, and the line that it starts on."""

    file: str
    line: int
    cells: dict[str, str]

    def text(self, column: str, default: str = "") -> str:
        """The cell without surrounding blanks; ``default`` where it is empty or the column is absent."""
        return self.cells.get(column, "").strip() or default

    def need(self, column: str, expected: str = "a value") -> str:
        """The cell, which may not be empty."""
        return self.text(column) or self.fail(column, expected)

    def number(
        self, column: str, expected: str, *, low: float, above: bool = False, default: float | None = None
    ) -> float:
        """A finite number of at least ``low``, or above it.

        Raises
        ------
        TraceError : it is not, or it is empty and there is no default.
        """
        cell = self.text(column)
        if not cell and default is not None:
            return default
        try:
            value = float(cell)
        except ValueError:
            self.fail(column, expected)
        if not math.isfinite(value) or value < low or (above and value == low):
            self.fail(column, expected)
        return value

    def whole(self, column: str, expected: str, *, low: int, default: int | None = None) -> int:
        """A whole number of at least ``low``; ``4.0`` is one."""
        value = self.number(column, expected, low=low, default=default)
        if value != int(value):
            self.fail(column, expected)
        return int(value)

    def fail(self, column: str, expected: str) -> NoReturn:
        """Complain about one cell."""
        value = self.cells.get(column, "")
        raise TraceError(file=self.file, line=self.line, column=column, value=value, expected=expected)


def read_header(path: Path) -> tuple[str, ...]:
    """The column names of a CSV file, gzipped where the name ends in ``.gz``."""
    return next(_records(path))[1]


def read_rows(path: Path, known: Sequence[str] = (), required: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of a CSV file; blank lines are skipped.

    Parameters
    ----------
    known : the columns allowed; empty allows any.
    required : columns that must be there.

    Raises
    ------
    InputError : the file cannot be read, or a column is unknown (with "did you mean"), missing or named twice.
    TraceError : a row has more or fewer cells than the header.
    """
    records = _records(path)
    line, header = next(records)
    _check_columns(f"{path}, line {line}", header, known, required)
    file = str(path)
    for line, cells in records:
        if len(cells) != len(header):
            row = Row(file, line, dict(zip(header, cells, strict=False)))
            if len(cells) < len(header):
                row.fail(header[len(cells)], f"{len(header)} cells as in the header, the row has {len(cells)}")
            raise TraceError(
                file=file, line=line, column=f"number {len(header) + 1}", value=cells[len(header)],
                expected=f"{len(header)} cells as in the header",
            )  # fmt: skip
        yield Row(file, line, dict(zip(header, cells, strict=True)))


def _check_columns(where: str, header: Sequence[str], known: Sequence[str], required: Sequence[str]) -> None:
    for column in header:
        if header.count(column) > 1:
            raise InputError(f"{where}: column {column!r} appears twice, expected each column once.")
        if known and column not in known:
            close = difflib.get_close_matches(column, known, n=1, cutoff=0.5)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(f"{where}: unknown column {column!r}.{hint} Known: {', '.join(known)}.")
    for column in required:
        if column not in header:
            raise InputError(f"{where}: column {column!r} is missing; the file has {', '.join(header)}.")


def _records(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (first line, cells), the header first."""
    try:
        # utf-8-sig: spreadsheets put a byte-order mark before the first column's name.
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            start, seen = 1, False
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield start, tuple(cells) if seen else tuple(cell.strip() for cell in cells)
                    seen = True
                start = reader.line_num + 1
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8, or a damaged gzip file"
        raise InputError(f"cannot read trace {str(path)!r}: {why}.") from None
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not valid CSV ({error}).") from None
    if not seen:
        raise InputError(f"trace {str(path)!r} is empty, expected a header with column names.")
