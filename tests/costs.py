"""Costs of each test.

``THEMIS_TEST_COSTS=FILE pytest ...`` writes them and prints the sums of the tiers.
``python tests/costs.py FILE...`` prints the sums of the folders, and the tests that cost most.

CPU seconds are those of all processes that a test starts, also of those that leave its process tree (Ray's, supervisors'): each
pytest process enters a cgroup of its own (version 1, ``cpuacct``). Where that is not allowed, of its children that it waited for.
Background processes that outlive a test are counted to whichever test runs then; sums of folders are exact.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tiers import BUDGETS_S, tier_of

_GROUPS = Path("/sys/fs/cgroup/cpuacct")
_GROUP = _GROUPS / f"themis-tests-{os.getpid()}"
_FILE = os.environ.get("THEMIS_TEST_COSTS", "")


def measure(config: pytest.Config) -> None:
    """Measure the tests of this process; the controller of pytest-xdist runs none and prints the sums."""
    if not _FILE or config.getoption("collectonly"):
        return
    worker = hasattr(config, "workerinput")
    if worker or not config.getoption("numprocesses", None):
        with suppress(OSError):
            _GROUP.mkdir()
            (_GROUP / "cgroup.procs").write_text(str(os.getpid()))
        config.pluginmanager.register(Meter())
    if not worker:
        config.pluginmanager.register(Sums())


class Meter:
    """Writes a line for each test of this process."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure a test with its fixtures."""
        before, started = _cpu(), time.monotonic()
        try:
            return (yield)
        finally:
            _write(item.nodeid, tier_of(item), before, started)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        """Measure the collection, which every worker makes."""
        before, started = _cpu(), time.monotonic()
        try:
            return (yield)
        finally:
            _write("collection", "collection", before, started)


class Sums:
    """Prints, in the end, what each tier cost and may cost."""

    def pytest_sessionstart(self) -> None:
        """Begin with an empty file; a fresh clone has no folder for it."""
        Path(_FILE).parent.mkdir(parents=True, exist_ok=True)
        Path(_FILE).write_text("", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        with suppress(FileNotFoundError):
            for line in table(read(_FILE), "tier"):
                terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """Leave the cgroup, if this process entered one, and remove those that are empty."""
        with suppress(OSError):
            (_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        for group in _GROUPS.glob("themis-tests-*"):
            with suppress(OSError):
                group.rmdir()


def _cpu() -> tuple[float, float]:
    """CPU seconds of this process, and of all that it started."""
    t = os.times()
    own = t.user + t.system
    with suppress(OSError):
        return own, int((_GROUP / "cpuacct.usage").read_text()) / 1e9
    return own, own + t.children_user + t.children_system


def _write(name: str, tier: str, before: tuple[float, float], started: float) -> None:
    own, everything = (now - then for now, then in zip(_cpu(), before))
    wall = time.monotonic() - started
    row = {"test": name, "tier": tier, "cpu_s": everything, "own_s": own, "wall_s": wall}
    with open(_FILE, "a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def read(*files: str) -> list[dict[str, Any]]:
    """The lines that tests wrote, with the folder of each."""
    rows = [json.loads(line) for name in files for line in Path(name).read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["folder"] = row["test"].split("::")[0].removeprefix("tests/").split("/")[0]
    return rows


def table(rows: list[dict[str, Any]], by: str) -> list[str]:
    """Sums by ``folder`` or by ``tier``; tiers with their budgets."""
    sums: Mapping[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0])
    for row in rows:
        for name in (row.get(by, ""), "sum"):
            for n, add in enumerate((row["cpu_s"], row["own_s"], row["wall_s"], 1)):
                sums[name][n] += add
    lines = [f"{by:12} {'tests':>6} {'CPU s':>8} {'own':>8} {'wall s':>8}" + f" {'budget':>8}" * (by == "tier")]
    for name in sorted(sums, key=lambda name: (name == "sum", -sums[name][0])):
        cpu, own, wall, count = sums[name]
        budget = f" {BUDGETS_S[name]:8.0f}" if name in BUDGETS_S else ""
        lines.append(f"{name:12} {count:6.0f} {cpu:8.1f} {own:8.1f} {wall:8.1f}{budget}")
    return lines


def main() -> None:
    """Print sums of tiers and folders, then the dearest tests by CPU seconds and by seconds."""
    rows = read(*sys.argv[1:])
    print("\n".join([*table(rows, "tier"), "", *table(rows, "folder")]))
    for key in ("cpu_s", "wall_s"):
        print(f"\n{'CPU s':>8} {'own':>8} {'wall s':>8}  by {key}")
        for row in sorted(rows, key=lambda row: -row[key])[:60]:
            print(f"{row['cpu_s']:8.1f} {row['own_s']:8.1f} {row['wall_s']:8.1f}  {row['test']}")


if __name__ == "__main__":
    main()
