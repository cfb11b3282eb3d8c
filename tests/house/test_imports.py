"""Costs of importing; directions are a step of `make lint`."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "scipy", "polars", "matplotlib", "highspy", "pydantic")


def _loaded(code: str) -> set[str]:
    """Top-level packages loaded after running this code in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(' '.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


HELP = "from themis.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"


@pytest.mark.parametrize("code", ["import themis", "import themis.errors", "import themis.cli", HELP])
def test_nothing_heavy_is_imported_by(code: str) -> None:
    assert not _loaded(code) & set(HEAVY)
