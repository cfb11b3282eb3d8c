"""The lint step for texts finds a fault of each kind, at its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from circles import circles
from lint import (
    assigned_statuses,
    broken_links,
    changed_quote,
    commands,
    kinds_of_answers,
    silent_modules,
    unknown_targets,
    wrong_openings,
)

from tiers import unsteady


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="utf-8")


def test_links_to_files_and_headings_that_are_not_there_are_found(tmp_path: Path) -> None:
    write(tmp_path, "README.md", "# Top\n\n[a](docs/page.md#a-head) [b](docs/none.md)\n[c](#top) [d](https://x.y/z)\n")
    write(tmp_path, "docs/page.md", "## A head\n\n[e](../README.md#bottom)\n")
    assert list(broken_links(tmp_path)) == [
        "README.md:3: docs/none.md is not there",
        "docs/page.md:3: ../README.md#bottom: there is no such heading",
    ]


def test_commands_of_a_page_are_its_lines_of_shell_with_continued_lines_joined() -> None:
    assert list(commands("x\n```sh\nmake a  # why\n\ngo \\\n  on\n```\n```text\nmake b\n```\n")) == [
        (3, "make a"),
        (6, "go on"),
    ]


def test_a_target_that_the_makefile_lacks_is_found(tmp_path: Path) -> None:
    write(tmp_path, "Makefile", "all: ## All\n\ttrue\n")
    write(tmp_path, "README.md", "```sh\nmake all X=1\nmake -n some\n```\n")
    assert list(unknown_targets(tmp_path)) == ["README.md:3: make has no target some"]


def test_a_module_without_a_docstring_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.py", "X = 1\n")
    write(tmp_path, "b.py", '"""Documented."""\n')
    write(tmp_path, "c.py", "")
    assert list(silent_modules(tmp_path)) == ["a.py:1: the module has no docstring"]


def test_a_docstring_that_begins_with_a_clause_or_the_third_person_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.py", '"""Where it is."""\ndef f():\n    """Keeps a file."""\ndef g():\n    """What-if run."""\n')
    assert [line.partition(": ")[0] for line in wrong_openings(tmp_path)] == ["a.py:1", "a.py:2"]


def test_a_decision_that_architecture_quotes_otherwise_is_found(tmp_path: Path) -> None:
    write(tmp_path, "src/themis/core/decision.py", "class Decider:\n    def decide(self):\n        pass\n")
    write(tmp_path, "ARCHITECTURE.md", "```python\ndef decide(self):\n    pass\n```\n")
    assert list(changed_quote(tmp_path)) == []
    write(tmp_path, "ARCHITECTURE.md", "```python\ndef decide(self):\n    return\n```\n")
    assert [line.partition(": ")[0] for line in changed_quote(tmp_path)] == ["src/themis/core/decision.py:2"]


def test_a_module_that_asks_for_the_kind_of_an_answer_is_found(tmp_path: Path) -> None:
    asks = "if isinstance(a, int | TimeShare):\n    pass\nmatch a:\n    case m.Ask() | GpuGrant():\n        pass\n"
    write(tmp_path, "core/intend.py", asks)
    write(tmp_path, "report/a.py", asks)
    write(tmp_path, "report/b.py", "def f(a: GpuGrant) -> bool:\n    return isinstance(a, Ask)\n")
    assert [line.partition(": ")[0] for line in kinds_of_answers(tmp_path)] == ["report/a.py:1", "report/a.py:4"]


def test_an_assignment_to_a_status_outside_of_the_table_is_found(tmp_path: Path) -> None:
    write(tmp_path, "core/job_lifecycle.py", "status[j] = t.status[j] = 1\n")
    write(tmp_path, "core/state.py", "x = t.status[j]\nt.status[j], t.gpus[j] = 1, 0\ns.jobs.status[s.x == 1] = 2\n")
    assert [line.partition(": ")[0] for line in assigned_statuses(tmp_path)] == ["core/state.py:2", "core/state.py:3"]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}, "e": {"b", "d"}}) == [{"b", "c"}, {"d"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    "text",
    [
        "tests/house/test_lint.py::test_circles_are_found a busy machine",
        "tests/house/test_lint.py::test_squares_are_found 2026-11-24 a busy machine",
        "".join(
            f"tests/house/test_lint.py::{name} 2026-11-24 a busy machine\n"
            for name in (
                "test_circles_are_found",
                "test_a_module_without_a_docstring_is_found",
                "test_a_target_that_the_makefile_lacks_is_found",
                "test_more_or_other_unsteady_tests_than_allowed_are_refused",
            )
        ),
    ],
    ids=["no date", "no such test", "too many"],
)
def test_more_or_other_unsteady_tests_than_allowed_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^tests/unsteady.txt"):
        unsteady(text)


def test_an_unsteady_test_is_read_with_its_date_and_cause() -> None:
    name = "tests/house/test_lint.py::test_circles_are_found"
    assert unsteady(f"# a comment\n\n{name} 2026-11-24 a busy machine\n") == {name}
