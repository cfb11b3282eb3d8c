"""All faults of a trace file, not the first alone: for the person who has to repair it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from themis.errors import InputError, TraceError
from themis.model.speed import ProfileBook
from themis.traces.csv_table import OnFault
from themis.traces.formats import Reader
from themis.traces.profiles.models import DEFAULT_BOOK


@runtime_checkable
class Scans(Protocol):
    """A reader that can continue after a fault."""

    def scan(self, path: Path, book: ProfileBook, on_fault: OnFault) -> object:
        """Go through the file, reporting each faulty row."""
        ...


class _Enough(Exception):
    """The requested number of faults is reached."""


def find_faults(path: Path, reader: Reader, *, book: ProfileBook = DEFAULT_BOOK, limit: int = 20) -> list[InputError]:
    """The first ``limit`` faults of a file, in the order found; none for one that can be read.

    A reader that cannot go on after a fault reports the first one.
    """
    found: list[InputError] = []

    def note(error: TraceError) -> None:
        found.append(error)
        if len(found) >= limit:
            raise _Enough

    try:
        if isinstance(reader, Scans):
            reader.scan(path, book, note)
        if not found:
            reader.read(path, seed=0, book=book)
    except _Enough:
        pass
    except InputError as error:
        found.append(error)
    return found
