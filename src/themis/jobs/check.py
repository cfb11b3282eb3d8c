"""All that is wrong with files, before they are submitted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from themis.errors import InputError
from themis.jobs.faults import Fault
from themis.jobs.read import parse, read_text
from themis.jobs.settings import is_settings, settings_faults


def check(paths: Iterable[Path], *, folder: Path | None = None) -> list[str]:
    """Every fault of these files, of jobs or of the service's settings: a sentence each, by file and line.

    Apps of the same file may be waited for (``after``), and so may apps that were submitted before: a name that nobody
    here has is no fault.
    """
    base = str((folder or Path()).absolute())
    out: list[str] = []
    for path in paths:
        try:
            text = read_text(path)
            faults = settings_faults(text, path) if is_settings(text) else _job_faults(text, path, base)
        except InputError as error:
            out.append(str(error))
        else:
            out += map(str, faults)
    return out


def _job_faults(text: str, path: Path, folder: str) -> list[Fault]:
    return list(parse(text, source=str(path), folder=folder).faults)
