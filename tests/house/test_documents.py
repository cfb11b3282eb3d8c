"""Commands and programs of the README run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from lint import commands

from themis.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
README_COMMANDS = [command for _, command in commands(README)]


def test_the_readme_shows_commands() -> None:
    assert any(command.startswith("themis simulate") for command in README_COMMANDS)
    assert "make demo" in README_COMMANDS


@pytest.mark.slow
def test_every_themis_command_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In order, in one folder: later commands read what earlier ones wrote."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for command in README_COMMANDS:
        if command.startswith("themis "):
            assert _exit_code(command) == 0, f"{command}\n{capfd.readouterr()}"


def _exit_code(command: str) -> object:
    try:
        main(shlex.split(command)[1:])
    except SystemExit as end:
        return end.code or 0
    return 0


def test_python_blocks_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
