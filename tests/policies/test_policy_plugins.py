"""Policies are found by name: built-in ones without installing again, others by entry points; what is missing is explained."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from pkgutil import iter_modules
from typing import ClassVar

import pytest

import themis.policies
from themis.errors import InputError, UnknownName
from themis.policies import api
from themis.policies.builtin import BUILT_IN
from themis.policies.drf import Drf


@dataclass(frozen=True)
class Mine(Drf):
    """A policy that another package might register."""

    claims: ClassVar[frozenset[str]] = frozenset()


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Entry points of installed packages; the built-in policies are no entry points."""
    installed: list[EntryPoint] = []
    monkeypatch.setattr(api, "entry_points", lambda group: installed)
    api._points.cache_clear()
    yield installed
    api._points.cache_clear()


def test_built_in_policies_need_no_entry_points(points: list[EntryPoint]) -> None:
    assert set(api.policy_names()) == set(BUILT_IN)
    assert api.policy_class("drf") is Drf


def test_a_package_adds_a_policy_but_cannot_replace_a_built_in_one(points: list[EntryPoint]) -> None:
    points += [EntryPoint(name=n, group=api.GROUP, value=f"{__name__}:Mine") for n in ("mine", "drf")]
    assert isinstance(api.make_policy("mine"), Mine)
    assert type(api.make_policy("drf")) is Drf


def test_every_policy_in_the_folder_is_registered() -> None:
    found = set()
    for module in iter_modules(themis.policies.__path__):
        for name, value in vars(import_module(f"themis.policies.{module.name}")).items():
            own = isinstance(value, type) and value.__module__ == f"themis.policies.{module.name}"
            if own and not name.startswith("_") and name not in ("Baseline", "GangSizes") and is_policy(value):
                found.add(f"{value.__module__}:{name}")
    assert found == set(BUILT_IN.values())


def is_policy(kind: type) -> bool:
    """Whether the class makes a policy; what others derive from mostly cannot be made."""
    try:
        return isinstance(kind(), api.Policy)
    except TypeError:
        return False


def test_a_policy_that_no_installed_package_registers_says_how_it_would_be_found(points: list[EntryPoint]) -> None:
    with pytest.raises(
        UnknownName, match=r"unknown policy 'my_own_one'\..*`pip install -e \.`.*group themis\.policies"
    ):
        api.policy_class("my_own_one")


def test_a_misspelt_name_is_answered_with_the_nearest_and_without_advice_on_packages(points: list[EntryPoint]) -> None:
    with pytest.raises(UnknownName, match=r"Did you mean 'tiresias'\?") as caught:
        api.policy_class("tiresas")
    assert "pip" not in str(caught.value)


def test_a_module_that_is_there_but_not_registered_is_named(
    points: list[EntryPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "newest.py").write_text("class Newest: ...\n")
    monkeypatch.setattr(themis.policies, "__path__", [*themis.policies.__path__, str(tmp_path)])
    with pytest.raises(InputError, match=r"'newest' is not registered.*themis\.policies\.newest exists.*BUILT_IN"):
        api.policy_class("newest")
    assert "themis.policies.newest" not in sys.modules


def test_a_plug_in_that_does_not_load_is_named(points: list[EntryPoint]) -> None:
    points.append(EntryPoint(name="broken", group=api.GROUP, value="no_such_module_anywhere:Thing"))
    with pytest.raises(InputError, match=r"policy 'broken' \(no_such_module_anywhere:Thing\) cannot be loaded"):
        api.policy_class("broken")
