"""All that is wrong with files, before they are submitted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from themis.errors import InputError
from themis.jobs.faults import Fault
from themis.jobs.read import parse, read_text


def check(paths: Iterable[Path], *, folder: Path | None = None) -> list[str]:
    """Every fault of these files, a sentence each, in order of file and line; empty if there is none.

    Apps of one file or of earlier files may be waited for (``after``), and so may apps that were submitted before: a
    name that nobody here has is no fault.
    """
    base = str((folder or Path()).absolute())
    out: list[str] = []
    for path in paths:
        try:
            faults: tuple[Fault, ...] = parse(read_text(path), source=str(path), folder=base).faults
        except InputError as error:
            out.append(str(error))
        else:
            out += map(str, faults)
    return out
