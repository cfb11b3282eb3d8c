"""What each test costs, as a plugin of pytest: ``THEMIS_TEST_COSTS=FILE pytest -p costs``, then ``python tests/costs.py FILE...``.

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
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_GROUP = Path(f"/sys/fs/cgroup/cpuacct/themis-tests-{os.getpid()}")
_FILE = os.environ.get("THEMIS_TEST_COSTS", "")


def pytest_configure(config: pytest.Config) -> None:
    """Enter a cgroup; the controller of pytest-xdist runs no tests and stays where it is."""
    if _FILE and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        with suppress(OSError):
            _GROUP.mkdir()
            (_GROUP / "cgroup.procs").write_text(str(os.getpid()))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Measure a test with its fixtures."""
    before, started = _cpu(), time.monotonic()
    try:
        return (yield)
    finally:
        _write(item.nodeid, before, started)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Measure the collection, which every worker makes."""
    before, started = _cpu(), time.monotonic()
    try:
        return (yield)
    finally:
        _write("collection", before, started)


def _cpu() -> tuple[float, float]:
    """CPU seconds of this process, and of all that it started."""
    t = os.times()
    own = t.user + t.system
    with suppress(OSError):
        return own, int((_GROUP / "cpuacct.usage").read_text()) / 1e9
    return own, own + t.children_user + t.children_system


def _write(name: str, before: tuple[float, float], started: float) -> None:
    if _FILE:
        own, everything = (now - then for now, then in zip(_cpu(), before))
        row = {"test": name, "cpu_s": everything, "own_s": own, "wall_s": time.monotonic() - started}
        with open(_FILE, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")


def main() -> None:
    """Print sums of the folders, then the dearest tests by CPU seconds and by seconds."""
    rows = [json.loads(line) for name in sys.argv[1:] for line in Path(name).read_text(encoding="utf-8").splitlines()]
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0])
    for row in rows:
        for name in (row["test"].split("::")[0].removeprefix("tests/").split("/")[0], "sum"):
            sums[name] = [a + b for a, b in zip(sums[name], (row["cpu_s"], row["own_s"], row["wall_s"], 1))]
    print(f"{'folder':12} {'tests':>6} {'CPU s':>8} {'own':>8} {'wall s':>8}")
    for name, (cpu, own, wall, count) in sums.items():
        print(f"{name:12} {count:6.0f} {cpu:8.1f} {own:8.1f} {wall:8.1f}")
    for key in ("cpu_s", "wall_s"):
        print(f"\n{'CPU s':>8} {'own':>8} {'wall s':>8}  by {key}")
        for row in sorted(rows, key=lambda row: -row[key])[:60]:
            print(f"{row['cpu_s']:8.1f} {row['own_s']:8.1f} {row['wall_s']:8.1f}  {row['test']}")


if __name__ == "__main__":
    main()
