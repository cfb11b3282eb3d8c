"""Directions of imports, and what importing costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


@pytest.mark.slow
def test_folders_import_downwards_only() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if (text := path.read_text(encoding="utf-8")).strip() and not ast.get_docstring(ast.parse(text))
    ]
    assert silent == []
