"""Check job files before submission."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from themis.errors import InputError
from themis.jobs.read import parse
from themis.jobs.runnable import doubts
from themis.limits import read_text
from themis.model.speed import ProfileBook
from themis.traces.profiles.models import DEFAULT_BOOK


def check(paths: Iterable[Path], *, folder: Path | None = None, book: ProfileBook = DEFAULT_BOOK) -> list[str]:
    """Every fault of these job files: a sentence each, by file and line.

    An unknown name in ``after`` is not a fault: the app may have been submitted before.
    """
    base = str((folder or Path()).absolute())
    out: list[str] = []
    for path in paths:
        try:
            text = read_text(path)
            faults = parse(text, source=str(path), folder=base, book=book).faults
        except InputError as error:
            out.append(str(error))
        else:
            out += map(str, faults)
    return out


def warnings_of(
    paths: Iterable[Path],
    *,
    folder: Path | None = None,
    book: ProfileBook = DEFAULT_BOOK,
    gpu_types: Collection[str] = (),
    here: bool = True,
) -> list[str]:
    """Warnings about valid job files; see ``jobs.runnable.doubts``."""
    base = str((folder or Path()).absolute())
    out: list[str] = []
    for path in paths:
        with suppress(InputError):
            for spec in parse(read_text(path), source=str(path), folder=base, book=book).submissions:
                out += (f"{spec.source}: {doubt}" for doubt in doubts(spec, gpu_types, here=here))
    return out
