"""Commands and programs of the README run."""

from __future__ import annotations

import collections
import csv
import re
import shlex
import shutil
import statistics
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
    """In order, in one folder: later commands read what earlier ones wrote.

    The figures in the caption of the README's picture, which ``make picture`` draws, are those of this run.
    """
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for command in README_COMMANDS:
        if command.startswith("themis "):
            assert _exit_code(command) == 0, f"{command}\n{capfd.readouterr()}"
    (caption,) = re.findall(r"!\[(.*?)\]\(docs/img/demo\.png\)", README)
    worst = collections.defaultdict[str, list[float]](list)
    with open("out/demo/results.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            worst[row["policy"]].append(float(row["rho_reference_max"]))
    quoted = re.findall(r"([0-9.]+)[a-z ]* under (\w+)", caption)
    assert quoted == [(f"{statistics.mean(worst[policy]):.2f}", policy) for _, policy in quoted]
    assert len(quoted) == 2


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
