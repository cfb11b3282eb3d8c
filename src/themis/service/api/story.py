"""An app's story from a service's journal, written by a separate process: on a long journal it takes seconds.

As a program: the journal and the app's name as arguments, JSON on standard output; exit code 2 and a sentence on standard
error if no such story exists.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from themis.errors import InputError, ThemisError
from themis.model.units import Seconds
from themis.report.explain import explain
from themis.service.engine.journal import export

NICENESS = 5
"""The service and its jobs come first."""
LONGEST_S = 600.0


def story(journal: Path, name: str, now: Seconds) -> str:
    """An app's rounds, bids and leases as JSON, by a separate process, as of ``now``; ``own_share`` computes its own share.

    Raises
    ------
    InputError : the journal has no story of this app, or it takes too long.
    """
    command = [sys.executable, "-P", "-m", "themis.service.api.story", str(journal), name, str(now)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"the story of app {name!r} took longer than {LONGEST_S:g} s; the journal is too long."
        ) from None
    if done.returncode == 2:
        raise InputError(done.stderr.strip())
    if done.returncode != 0:
        raise RuntimeError(f"the story of app {name!r} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def main(journal: str, name: str, now: str) -> int:
    """Print the story."""
    os.nice(NICENESS)
    try:
        with tempfile.TemporaryDirectory(prefix="themis-") as folder:
            log = Path(folder) / "journal.jsonl"
            export(Path(journal), log)
            print(explain(log, name, reference=False, now=float(now)).to_json())
    except ThemisError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
