"""docs/tutorial.md: its files and its commands work for a new user, in their order."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from themis.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
PATIENCE_S = 150.0
FASTER = {
    "lease=10s --set tick=5s": "lease=4s --set tick=2s --port 0",
    "python train.py --steps 150": "python train.py --steps 30",
    "-- python train.py": "-- python train.py --steps 30",
    "--seeds 0-2": "--seeds 0-1",
}
"""What the test changes in commands, so that it takes seconds."""


def commands() -> list[str]:
    """Every command of the page, in order."""
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def faster(line: str) -> str:
    for old, new in FASTER.items():
        if old in line:
            return line.replace(old, new)
    return line


class Terminal:
    """Where a new user types: a folder with the page's files, and a home.

    Lines run in this process, as a process each costs a second; the scheduler and its jobs are processes.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capfd = folder, capfd
        for name, text in re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', PAGE, re.DOTALL):
            (folder / name).write_text(text, encoding="utf-8")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("THEMIS_HOME", str(folder / "home"))
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("COLUMNS", "200")

    def types(self, line: str) -> str:
        """Type a line; what it prints."""
        self.capfd.readouterr()
        command, *words = shlex.split(line)
        assert command == "themis"
        code: object = 0
        try:
            main(words)
        except SystemExit as end:
            code = end.code or 0
        said = self.capfd.readouterr()
        assert code == 0, f"{line}\n{said.out}{said.err}"
        return said.out + said.err

    def page(self, begin: str) -> str:
        """Type the page's command that begins so."""
        return self.types(faster(next(line for line in commands() if line.startswith(begin))))

    def poll(self, line: str, holds: Callable[[Any], object]) -> Any:
        """Type a line that prints JSON until something holds of it."""
        until = time.monotonic() + PATIENCE_S
        while not holds(found := json.loads(self.types(line))):
            assert time.monotonic() < until, f"{line} still prints {found}"
            time.sleep(0.5)
        return found


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, monkeypatch, capfd)
    line = faster(next(line for line in commands() if line.startswith("themis up")))
    root = ["--allow-root"] if os.getuid() == 0 else []
    with (tmp_path / "up.log").open("w") as log:
        service = subprocess.Popen([*shlex.split(line), *root], stdout=log, stderr=log, cwd=tmp_path)
    try:
        until = time.monotonic() + PATIENCE_S
        while "Themis schedules 8 GPUs" not in (said := (tmp_path / "up.log").read_text()):
            assert service.poll() is None, said
            assert time.monotonic() < until, said
            time.sleep(0.1)
        yield terminal
    finally:
        service.send_signal(signal.SIGTERM)
        try:
            service.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()


@pytest.mark.slow
def test_the_first_nine_minutes(terminal: Terminal) -> None:
    """Run, sweep, a second app that takes GPUs, a trial that goes on from its checkpoint, cancel."""
    assert "In another terminal: themis run" in (terminal.folder / "up.log").read_text()
    assert "No apps are waiting or running" in terminal.page("themis queue")
    first = terminal.page("themis run --gpus 2")
    assert "rank 0 of 1, step 0" in first
    assert "completed" in first
    assert "sweep.yaml is valid" in terminal.page("themis check")
    assert "lr-search" in terminal.page("themis submit")
    terminal.poll("themis queue -o json", lambda apps: apps and apps[0]["gpus"] == 8)
    assert "lr-search" in terminal.page("themis queue")
    # So late that each trial has a step to save.
    terminal.poll("themis show lr-search -o json", lambda app: sum((j.get("steps") or 0) > 0 for j in app["jobs"]) == 8)
    terminal.page("themis run --gpus 4")
    assert "shared between users" in terminal.page("themis why")
    assert "completed" in terminal.page("themis wait")

    def again(app: Any) -> list[Any]:
        return [j for j in app["jobs"] if j["attempt"] > 1 and j["attempts"][0]["ending"] == "stopped"]

    found = terminal.poll("themis show lr-search -o json", again)
    assert "lr-search" in terminal.page("themis show")
    assert "stopped (143)" in terminal.types("themis show lr-search --verbose")
    number = found["jobs"].index(again(found)[0])
    logs = faster(next(line for line in commands() if line.startswith("themis logs"))).rsplit(" ", 1)[0]
    until = time.monotonic() + PATIENCE_S
    steps: list[int] = []
    saved: list[str] = []
    while not (saved and steps and steps[-1] > int(saved[0])):
        assert time.monotonic() < until, "no step after the preemption"
        written = terminal.types(f"{logs} {number}")
        saved = re.findall(r"checkpoint saved at step (\d+)", written)
        steps = [int(n) for n in re.findall(r"rank 0 of 1, step (\d+)", written)]
        time.sleep(0.5)
    assert steps == list(range(0, steps[-1] + 1, 50)), "each step once: nothing lost, nothing twice"
    assert "fair share" in terminal.page("themis share")
    assert "cancelled" in terminal.page("themis cancel")
    assert "first" in terminal.page("themis history")


@pytest.mark.slow
def test_the_tenth_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Two policies, simulated and compared."""
    terminal = Terminal(tmp_path, monkeypatch, capfd)
    terminal.page("themis simulate")
    compared = terminal.page("themis compare")
    assert "Difference to drf" in compared
    assert "JCT mean h" in compared


def test_every_command_of_the_page_is_known() -> None:
    """A verb that is renamed must be renamed here too; every shown output belongs to a command."""
    from themis.cli.root import app

    verbs = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    typed = {line.split()[1] for line in commands() if line.startswith("themis ")}
    assert typed >= {"up", "run", "submit", "queue", "why", "show", "share", "logs", "cancel", "simulate", "compare"}
    assert typed <= verbs
