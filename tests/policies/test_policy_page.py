"""docs/which-policy.md has a row for each policy, a row for each parameter with the code's default, and a readable example."""

from __future__ import annotations

import re
from pathlib import Path

from themis.policies.api import params, policy_class
from themis.policies.builtin import BUILT_IN
from themis.policies.gavel.hierarchy_file import read_plan

PAGE = (Path(__file__).parents[2] / "docs" / "which-policy.md").read_text(encoding="utf-8")


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of each row of the table under this head."""
    table = page[page.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in table]


def documented(page: str) -> list[tuple[str, str, str]]:
    """(policy, parameter, default) of each row of the table of parameters."""
    return [
        (policy, parameter.strip("`"), "" if default == "empty" else default.strip("`"))
        for parameter, default, of, _ in rows(page, "| parameter | default |")
        for policy in re.findall(r"`(\w+)`", of)
    ]


def in_code() -> list[tuple[str, str, str]]:
    """The same, as the classes say."""
    return [
        (policy, name, as_written(value))
        for policy in BUILT_IN
        for name, value in params(policy_class(policy)()).items()
    ]


def as_written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def test_each_policy_has_one_row_of_its_own_that_says_what_it_does() -> None:
    described = rows(PAGE, "| name | who gets free GPUs |")
    assert sorted(row[0] for row in described) == sorted(f"`{name}`" for name in BUILT_IN)
    assert [row[0] for row in described if len(row[1]) < 5] == []


def test_each_parameter_of_each_policy_is_documented_once_with_the_default_of_the_code() -> None:
    assert sorted(documented(PAGE)) == sorted(in_code())
    assert [row[0] for row in rows(PAGE, "| parameter | default |") if len(row[3]) < 10] == []


def test_a_name_elsewhere_on_the_page_or_another_default_does_not_count() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| `makespan` | shares"))
    without = PAGE.replace(row + "\n", "")
    assert "`makespan`" in without
    assert "`makespan`" not in [cells[0] for cells in rows(without, "| name | who gets free GPUs |")]
    assert sorted(documented(PAGE.replace("| `f` | `0.8` |", "| `f` | `0.7` |"))) != sorted(in_code())


def test_the_example_of_entities_is_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    path = tmp_path / "plan.yaml"
    path.write_text(example)
    assert [(member.name, member.weight) for member in read_plan(path).members] == [("product", 2.0), ("research", 1.0)]
