"""Rows of delimited files with their line numbers, for all readers and their error messages.

Python's own csv module is used, not a data-frame library: line numbers must be exact for quoted cells that span
lines and for blank lines, and traces of 100,000 rows still load in a second.
"""

from __future__ import annotations

import csv
import gzip
import math
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn, TextIO, TypeAlias, cast

from themis.errors import InputError, TraceError, closest
from themis.model.units import Seconds

OnFault: TypeAlias = Callable[[TraceError], None]
"""Handler of a faulty row: raises, or notes the fault while the rows after it are read."""

_EPOCH = datetime(1970, 1, 1)


def raise_fault(error: TraceError) -> None:
    """The first fault ends the reading."""
    raise error


@dataclass(frozen=True, slots=True)
class TableRow:
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

    def wall_clock(self, column: str) -> Seconds:
        """A date and time as seconds since 1970 on the same clock; a time zone is not applied."""
        try:
            moment = datetime.fromisoformat(self.text(column))
        except ValueError:
            self.fail(column, "a date and time like 2017-10-07 01:12:09")
        return (moment.replace(tzinfo=None) - _EPOCH).total_seconds()

    def fail(self, column: str, expected: str) -> NoReturn:
        """Complain about one cell."""
        value = self.cells.get(column, "")
        raise TraceError(file=self.file, line=self.line, column=column, value=value, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Format of a file that is not plain CSV.

    Attributes
    ----------
    delimiter : between cells.
    quoted : whether quotation marks protect a delimiter; where not, they are text.
    columns : the columns' names where the file has no header of its own.
    """

    delimiter: str = ","
    quoted: bool = True
    columns: tuple[str, ...] = ()


CSV = Dialect()


def read_header(path: Path) -> tuple[str, ...]:
    """The column names of a CSV file, gzipped where the name ends in ``.gz``."""
    with opened(path) as file:
        return next(_records(file, str(path), CSV))[1]


def read_rows(
    path: Path,
    known: Sequence[str] = (),
    required: Sequence[str] = (),
    *,
    dialect: Dialect = CSV,
    on_fault: OnFault = raise_fault,
) -> Iterator[TableRow]:
    """Yield the rows of a file; see ``rows_of``.

    Raises
    ------
    InputError : the file cannot be read.
    """
    with opened(path) as file:
        yield from rows_of(file, str(path), known, required, dialect=dialect, on_fault=on_fault)


def rows_of(
    file: Iterable[str],
    name: str,
    known: Sequence[str] = (),
    required: Sequence[str] = (),
    *,
    dialect: Dialect = CSV,
    on_fault: OnFault = raise_fault,
) -> Iterator[TableRow]:
    """Yield the rows of an open file; blank lines are skipped.

    Parameters
    ----------
    name : of the file, for complaints.
    known : the columns allowed; empty allows any.
    required : columns that must be there.
    on_fault : what becomes of rows with more or fewer cells than the header; they are not yielded.

    Raises
    ------
    InputError : the file is empty, or a column is unknown (with "did you mean"), missing or named twice.
    """
    records = _records(file, name, dialect)
    header = dialect.columns
    if not header:
        line, header = next(records)
        _check_columns(f"{name}, line {line}", header, known, required)
    for line, cells in records:
        if len(cells) == len(header):
            yield TableRow(name, line, dict(zip(header, cells)))
        else:
            on_fault(_wrong_length(name, line, cells, header))


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """A text file, unpacked where its name ends in ``.gz``; what cannot be read is an InputError."""
    with legible(path):
        # utf-8-sig: spreadsheets put a byte-order mark before the first column's name.
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield cast(TextIO, file)


@contextmanager
def legible(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading a file into one sentence."""
    try:
        yield
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8, or a damaged gzip or tar file"
        raise InputError(f"cannot read trace {str(path)!r}: {why}.") from None


def _records(file: Iterable[str], name: str, dialect: Dialect) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (first line, cells), the header first."""
    if dialect.quoted:
        reader = csv.reader(file, strict=True, delimiter=dialect.delimiter)
    else:
        reader = csv.reader(file, strict=True, delimiter=dialect.delimiter, quoting=csv.QUOTE_NONE)
    start, seen = 1, False
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield start, tuple(cells) if seen else tuple(cell.strip() for cell in cells)
                seen = True
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: not valid CSV ({error}).") from None
    if not seen:
        expected = f"rows of {len(dialect.columns)} cells" if dialect.columns else "a header with column names"
        raise InputError(f"trace {name!r} is empty, expected {expected}.")


def _wrong_length(name: str, line: int, cells: Sequence[str], header: Sequence[str]) -> TraceError:
    expected = f"{len(header)} cells as in the header"
    if len(cells) < len(header):
        return TraceError(
            file=name,
            line=line,
            column=header[len(cells)],
            value="",
            expected=f"{expected}, the row has {len(cells)}",
        )
    return TraceError(
        file=name, line=line, column=f"number {len(header) + 1}", value=cells[len(header)], expected=expected
    )


def _check_columns(where: str, header: Sequence[str], known: Sequence[str], required: Sequence[str]) -> None:
    for column in header:
        if header.count(column) > 1:
            raise InputError(f"{where}: column {column!r} appears twice, expected each column once.")
        if known and column not in known:
            raise InputError(f"{where}: unknown column {column!r}.{closest(column, known)} Known: {', '.join(known)}.")
    for column in required:
        if column not in header:
            raise InputError(f"{where}: column {column!r} is missing; the file has {', '.join(header)}.")
