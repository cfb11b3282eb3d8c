"""Checkpoints that are there whole or not at all: written to a new folder, flushed to disk, renamed into place.

FOLDER/step-000000001200/    themis.json (where training stands)    state (what ``save`` wrote, a file or a folder)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Save = Callable[[Path], object]
SIZES = "sizes"
"""Key of the record's bytes by file; another machine may see a file shorter than it is for a while, not longer."""


class Checkpoints:
    """The checkpoints of one job, of which the newest ``keep`` stay."""

    def __init__(self, folder: Path | str, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1 checkpoint to stay.")
        self.folder, self.keep = Path(folder), keep

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """Path of the newest state and the position of training, or None. One that lacks a part of what was written is skipped."""
        for path in reversed(self._all()):
            with contextlib.suppress(OSError, ValueError):
                position, state = json.loads((path / "themis.json").read_text()), path / "state"
                if isinstance(position, dict):
                    sizes = position.pop(SIZES, {})
                    if all((state / name).stat().st_size >= size for name, size in sizes.items()):
                        return state, position
        return None

    def draft(self, step: int) -> Path:
        """Path of a checkpoint before it counts, the same on every rank."""
        return self.folder / f".step-{step:012d}.draft"

    def begin(self, step: int) -> Path:
        """Make the draft's folder (the first rank of each folder); drafts that a killed attempt left go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".step-*.draft"):
            shutil.rmtree(left, ignore_errors=True)
        self.draft(step).mkdir()
        return self.draft(step)

    def commit(self, step: int, position: Mapping[str, Any]) -> Path:
        """The draft becomes the newest checkpoint in one step (the first rank of each folder); older ones than ``keep`` go."""
        draft, final = self.draft(step), self.folder / f"step-{step:012d}"
        state = draft / "state"
        written = [state] if state.is_file() else [path for path in state.rglob("*") if path.is_file()]
        sizes = {path.relative_to(state).as_posix(): path.stat().st_size for path in written}
        (draft / "themis.json").write_text(json.dumps({**position, SIZES: sizes}))
        _flush_all(draft)
        if final.exists():
            shutil.rmtree(final)
        draft.rename(final)
        _flush(self.folder)
        for old in self._all()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def write(self, step: int, save: Save, position: Mapping[str, Any]) -> Path:
        """All of it, for one process."""
        save(self.begin(step) / "state")
        return self.commit(step, position)

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))


def replace(draft: Path, final: Path) -> None:
    """Put a file or a folder in the place of an older one, flushed; ``newest`` finds one of the two at any moment."""
    _flush_all(draft)
    if not draft.is_dir() and not final.is_dir():
        os.replace(draft, final)
    else:
        # No folder takes another's place in one step.
        old = _older(final)
        if final.exists():
            _remove(old)
            final.rename(old)
        draft.rename(final)
        _remove(old)
    _flush(final.parent)


def newest(final: Path) -> Path | None:
    """The path that ``replace`` wrote last, even if it was killed midway; None if it never wrote one."""
    return next((path for path in (final, _older(final)) if path.exists()), None)


def _older(final: Path) -> Path:
    return final.with_name(f".{final.name}.old")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush_all(path: Path) -> None:
    """A file, or a folder with all that is below it."""
    for base, _, names in os.walk(path):
        for name in names:
            _flush(Path(base, name))
        _flush(Path(base))
    if not path.is_dir():
        _flush(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
