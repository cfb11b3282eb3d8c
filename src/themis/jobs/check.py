"""All that is wrong with files, before they are submitted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from themis.errors import InputError
from themis.jobs.read import parse, read_text


def check(paths: Iterable[Path], *, folder: Path | None = None) -> list[str]:
    """Every fault of these job files: a sentence each, by file and line.

    Apps of the same file may be waited for (``after``), and so may apps that were submitted before: a name that nobody
    here has is no fault.
    """
    base = str((folder or Path()).absolute())
    out: list[str] = []
    for path in paths:
        try:
            text = read_text(path)
            faults = parse(text, source=str(path), folder=base).faults
        except InputError as error:
            out.append(str(error))
        else:
            out += map(str, faults)
    return out
