"""Writes the commit into wheels and sdists, as ``themis/commit.txt`` (``themis.version`` reads it)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WRITTEN = Path("src", "themis", "commit.txt")


class CommitHook(BuildHookInterface[Any]):
    """Adds the commit of the checkout. A build from an sdist finds the file of the sdist among the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the build. An editable install asks git itself."""
        self.folder = tempfile.TemporaryDirectory(prefix="themis-build-")
        root = Path(self.root)
        if version == "editable" or (root / WRITTEN).exists():
            return
        sys.path.insert(0, str(root / "src"))
        from themis.version import git_commit

        commit = git_commit(root)
        if commit:
            file = Path(self.folder.name, "commit.txt")
            file.write_text(f"{commit}\n", encoding="ascii")
            target = WRITTEN if self.target_name == "sdist" else WRITTEN.relative_to("src")
            build_data["force_include"][str(file)] = str(target)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called after the build."""
        self.folder.cleanup()
