"""docs/which-policy.md has every policy and every parameter, and its example of entities is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from themis.gavel.hierarchy_file import read_plan
from themis.policies.api import params, policy_class, policy_names

PAGE = (Path(__file__).parents[2] / "docs" / "which-policy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("policy", policy_names())
def test_the_page_names_every_policy_and_its_parameters(policy: str) -> None:
    assert f"`{policy}`" in PAGE
    table = PAGE[PAGE.index("| parameter |") :]
    assert [name for name in params(policy_class(policy)()) if f"`{name}`" not in table] == []


def test_the_example_of_entities_is_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    path = tmp_path / "plan.yaml"
    path.write_text(example)
    assert [(member.name, member.weight) for member in read_plan(path).members] == [("product", 2.0), ("research", 1.0)]
