"""Version of this program: the number of the release, the commit that it was built from, and Python's version.

A wheel or an sdist carries the commit in ``commit.txt`` (``hatch_build.py`` writes it). In a git checkout, git is asked
when the version is printed; nothing else pays for it.
"""

from __future__ import annotations

import os
from pathlib import Path

__version__ = "0.1.0"

PACKAGE = Path(__file__).parent


def commit(package: Path = PACKAGE) -> str:
    """The commit as ``g1a2b3c4``, with ``.dirty`` for uncommitted changes; empty if it is not known."""
    try:
        return (package / "commit.txt").read_text(encoding="ascii").strip()
    except OSError:
        return git_commit(package.parents[1])


def git_commit(checkout: Path) -> str:
    """The commit of a checkout of this project; empty if the folder is not one, or git is not installed."""
    if not (checkout / ".git").exists() or not (checkout / "src" / "themis").is_dir():
        return ""
    import subprocess  # an installed release prints its version without it

    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=7", "--dirty=.dirty", "--exclude=*"]
    try:
        # Without the optional lock, a read-only checkout and a git command at the same time do not disturb this.
        env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=env)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"g{found.stdout.strip()}"


def whole_version() -> str:
    """The version as PEP 440 writes it: ``0.1.0+g1a2b3c4.dirty``, or ``0.1.0`` where the commit is not known."""
    known = commit()
    return f"{__version__}+{known}" if known else __version__


def sentence() -> str:
    """One line: name, version, Python."""
    import platform

    return f"themis {whole_version()} (Python {platform.python_version()})"
