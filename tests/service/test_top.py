"""The live console with a real service."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon import QUICK, Daemon, daemon

from processes import PATIENCE_S
from themis.cli import top

pytest.importorskip("textual")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("home"), options=("--machines", "2x2"), settings=QUICK) as there:
        yield there


@pytest.mark.slow
def test_the_console_shows_sorts_and_cancels(service: Daemon) -> None:
    with service.client() as client:
        apps = [client.run(["sleep", "1000"], name=name).app for name in ("one", "two")]
    asyncio.run(_use(service))
    with service.client() as client:
        assert client.wait(apps[0], timeout_s=PATIENCE_S).state == "cancelled"
        client.cancel(apps[1])


def test_without_a_service_the_screen_is_not_taken(tmp_path: Path) -> None:
    own, its = pty.openpty()
    words = [sys.executable, "-m", "themis", "top", "--data-dir", str(tmp_path)]
    done = subprocess.run(
        words, stdin=its, stdout=its, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False
    )
    os.close(own)
    os.close(its)
    assert done.returncode == 2
    assert "no service was started" in done.stderr.replace("\n", " ")


async def _use(service: Daemon) -> None:
    from textual.widgets import DataTable, Static

    console: Any = top.console(service.home)
    async with console.run_test(size=(100, 30)) as pilot:

        async def until(true: Callable[[], bool]) -> None:
            for _ in range(int(PATIENCE_S / 0.05)):
                if true():
                    return
                await pilot.pause(0.05)
            raise AssertionError("the console did not change")

        queue = console.query_one("#queue", DataTable)
        await until(lambda: queue.row_count == 2 and console.query_one("#nodes", DataTable).row_count == 2)
        assert "of 4 GPUs leased; 2 apps" in str(console.query_one("#total", Static).render())
        await pilot.press("s")
        await until(lambda: "sorted by user" in str(console.query_one("#total", Static).render()))
        await pilot.press("enter")
        await until(lambda: len(console.screen_stack) == 2)
        assert console.screen.text.startswith("App 0, one, of ")
        await pilot.press("escape")
        await until(lambda: len(console.screen_stack) == 1)
        await pilot.press("c")
        await until(lambda: len(console.screen_stack) == 2)
        await pilot.press("y")
        await until(lambda: queue.row_count == 1)
        await pilot.press("q")
