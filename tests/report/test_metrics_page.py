"""The page on metrics and the definitions in the code are one."""

from __future__ import annotations

import re
from pathlib import Path

from themis.report.definitions import DEFINITIONS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_defines_what_the_code_defines_in_the_same_words() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(rows) == sorted((re.sub("^(app|user)_", "", name), text) for name, text in DEFINITIONS.items())
