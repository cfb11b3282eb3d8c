"""Tiers of the tests: what a test needs, and what a whole tier may cost.

A marker ``pure``, ``simulated``, ``contract``, ``process`` or ``long`` on a test or its module names its tier.
Without one, the groups of `LONG_GROUPS` are long, and the folder decides (`FOLDERS`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUDGETS_S = {"pure": 1000.0, "simulated": 150.0, "contract": 200.0, "process": 800.0, "long": 1250.0}
"""Tier -> budget in CPU seconds, lint and collection left out. The first four are `make test`."""
FOLDERS = {
    "simulation": ("simulated", "simulated"),
    "service": ("contract", "process"),
    "web": ("contract", "process"),
    "trust": ("contract", "process"),
    "machines": ("contract", "process"),
    "fleet": ("contract", "process"),
    "client": ("contract", "process"),
    "docs": ("pure", "long"),
    "house": ("pure", "long"),
    "release": ("pure", "long"),
}
"""Folder -> tier of its tests, and of those marked ``slow``; all other folders are pure."""
LONG_GROUPS = {"ray", "netns"}
"""Groups of pytest-xdist that share a Ray cluster, or machines with a network of their own."""
UNSTEADY = ROOT / "tests" / "unsteady.txt"
MOST_UNSTEADY = 3
_LINE = re.compile(r"(?P<path>tests/\S+\.py)::(?P<test>\w+)\s+(?P<date>\d{4}-\d\d-\d\d)\s+(?P<cause>\S.*)")


def seeds(few: int, many: int) -> range:
    """Seeds of a law: few of them for every landing, many where ``THEMIS_SEEDS=all``, as in `make soak`."""
    return range(many if os.environ.get("THEMIS_SEEDS") == "all" else few)


def tier_of(item: pytest.Item) -> str:
    """The tier of a test."""
    for mark in item.iter_markers():
        if mark.name in BUDGETS_S:
            return mark.name
    group = item.get_closest_marker("xdist_group")
    if group is not None and group.args[0] in LONG_GROUPS:
        return "long"
    folder = item.path.parent.name
    steady, slow = FOLDERS.get(folder, ("pure", "pure"))
    return slow if item.get_closest_marker("slow") else steady


def unsteady(text: str | None = None) -> set[str]:
    """Names of the tests that may run a second time, without the parameters of a case.

    Raises `ValueError` for a line without name, date and cause, for an unknown test, and for more than `MOST_UNSTEADY` of them.
    """
    names = set()
    for number, line in enumerate((UNSTEADY.read_text(encoding="utf-8") if text is None else text).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{UNSTEADY.relative_to(ROOT)}:{number}"
        if not (found := _LINE.fullmatch(line.strip())):
            raise ValueError(f"{where}: {line!r} is not 'tests/FOLDER/FILE.py::TEST YYYY-MM-DD CAUSE'")
        path = ROOT / found["path"]
        if not path.is_file() or f"def {found['test']}(" not in path.read_text(encoding="utf-8"):
            raise ValueError(f"{where}: there is no test {found['path']}::{found['test']}")
        names.add(f"{found['path']}::{found['test']}")
    if len(names) > MOST_UNSTEADY:
        raise ValueError(f"{UNSTEADY.relative_to(ROOT)} names {len(names)} tests; at most {MOST_UNSTEADY} are allowed")
    return names
