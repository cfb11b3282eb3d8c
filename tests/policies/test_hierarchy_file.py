"""Hierarchies in YAML, and the policy that reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from themis.errors import InputError
from themis.model.answers import TimeShare
from themis.policies.api import Workbench, make_policy
from themis.policies.gavel.hierarchy_file import jobs_of, read_plan
from themis.testing.builders import app, job, machines, snapshot_of
from themis.testing.policies import check_policy

FIGURE_6 = """
policy: fairness
members:
  - {name: product, policy: fairness, users: [ann]}
  - {name: research, policy: fifo, users: ["*"]}
"""

NESTED = """
members:
  - name: labs
    weight: 3
    members:
      - {name: vision, policy: finish_time_fairness, users: [u0]}
      - {name: speech, policy: fifo, weight: 0.5, users: [u1]}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "entities.yaml"
    path.write_text(text)
    return path


def test_figure_6_from_a_file_through_the_policy(tmp_path: Path) -> None:
    """Two GPUs: the product team's jobs share one, research's first job has the other."""
    apps = [
        app("p", [job(100.0), job(100.0), job(100.0)], user="ann"),
        app("r", [job(100.0), job(200.0), job(300.0)], user="bob"),
    ]
    policy = make_policy("hierarchical", {"file": str(write(tmp_path, FIGURE_6))})
    answer = policy(snapshot_of(machines(2), apps), Workbench()).answer
    assert isinstance(answer, TimeShare)
    assert answer.x.ravel() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0, 0.0, 0.0], abs=1e-8)


def test_users_that_nobody_lists_are_an_entity_of_their_own(tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, NESTED))
    assert [leaf.name for leaf in plan.leaves()] == ["vision", "speech", "others"]
    rows = jobs_of(plan, ["u1", "u9", "u0", "u1"], np.array([3, 2, 1, 0]))
    assert {name: at.tolist() for name, at in rows.items()} == {"speech": [3, 0], "vision": [2], "others": [1]}


@pytest.mark.slow
def test_the_policy_conforms_with_nested_entities(tmp_path: Path) -> None:
    path = write(tmp_path, NESTED)
    check_policy(lambda: make_policy("hierarchical", {"file": str(path)}), seeds=(1,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "expected name, weight, policy"),
        ("{policy: fairness}", "either members or users"),
        ("{users: [a], polcy: fifo}", "Did you mean 'policy'"),
        ("{users: [a], policy: fiffo}", "Did you mean 'fifo'"),
        ("{users: [a], weight: -1}", "weight -1, expected a number above 0"),
        ("{members: [{users: [a]}, {users: [a]}]}", "user 'a' is there twice"),
        ("{members: [{users: [a]}], policy: finish_time_fairness}", "for users' jobs only"),
        ("{users: [", "line 1: it is not valid YAML"),
        (
            "members:\n  - {name: a, users: [b]}\n  - {name: c, weight: 0, users: [d]}",
            "line 3: entity 'c' has weight 0",
        ),
        ("{users: [a], weight: .nan}", "weight nan, expected a number above 0"),
        ("{users: [a], weight: .inf}", "weight inf, expected a number above 0"),
        ("{users: [a], weight: true}", "weight True, expected a number above 0"),
        ("{users: [a], weight: 2, weight: 5}", "duplicate key 'weight'"),
        ("members: &m\n  - {name: a, members: *m}", "within itself"),
        ("{members: [" * 200 + "{users: [a]}" + "]}" * 200, "nested deeper than 40 levels"),
        ("{users: [a]}\n---\n{users: [b]}", "line [23]: a second document begins here"),
        ("{users: [~]}", "a user of entity 'root' is None, expected a name"),
        ("{users: [{name: ann}]}", "a user of entity 'root' is {'name': 'ann'}"),
        ("{users: [a], name: }", "name of entity 'root' is None"),
        ("{users: [a, a]}", "user 'a' is there twice"),
        ("members: [{name: x, users: [a]}, {members: [{name: x, users: [b]}]}]", "entity 'x' is there twice"),
        ("", "entity 'root' is None"),
    ],
)
def test_faulty_files_are_refused_in_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_plan(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_names_are_as_they_were_written(tmp_path: Path) -> None:
    """YAML takes some names for numbers, older YAML ``no`` and ``yes`` for truth."""
    plan = read_plan(write(tmp_path, "members: [{name: 1, users: [007, no, true, 1e3, 2026-01-01]}]"))
    leaf = next(plan.leaves())
    assert (leaf.name, leaf.users) == ("1", ("007", "no", "true", "1e3", "2026-01-01"))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match="cannot read hierarchy 'nowhere"):
        make_policy("hierarchical:file=nowhere.yaml")
