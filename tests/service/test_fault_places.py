"""Errors at 200 places of a service's life: each ends at its owner, or turns decisions off; the next start completes all apps.

``make test`` tries three places of each function, ``make soak`` all (``THEMIS_SEEDS=all``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fake import World, world
from fault_places import MACHINES, OWNED, UNOWNED, Injected, complete, failing, life

from themis.model.events import Revoke
from themis.service.engine.quarantine import quarantines
from tiers import seeds

PLACES = len(seeds(3, 100))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each error is logged with its traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_the_tables_have_a_hundred_places_with_an_owner_and_a_hundred_without() -> None:
    for table in (OWNED, UNOWNED):
        assert sum(len(ordinals) for ordinals, _ in table.values()) == 100
        assert all(len(ordinals) == len(ends.split()) for ordinals, ends in table.values())


@pytest.mark.parametrize("function", OWNED)
def test_an_error_ends_at_its_owner(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(function, *OWNED[function], tmp_path, monkeypatch, places=1)


@pytest.mark.parametrize("function", UNOWNED)
def test_an_error_without_an_owner_turns_decisions_off(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(function, *UNOWNED[function], tmp_path, monkeypatch, places=1)


@pytest.mark.slow
@pytest.mark.parametrize("function", OWNED)
def test_more_errors_end_at_their_owners(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(function, *OWNED[function], tmp_path, monkeypatch, places=PLACES)


@pytest.mark.slow
@pytest.mark.parametrize("function", UNOWNED)
def test_more_errors_without_an_owner_turn_decisions_off(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(function, *UNOWNED[function], tmp_path, monkeypatch, places=PLACES)


def inject(
    function: str, ordinals: Sequence[int], ends: str, home: Path, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    """Let calls of a function fail, each in a life of its own; ``places`` : how many of them, from the middle on."""
    pairs = [*zip(ordinals, ends.split(), strict=True)]
    found = [
        (ordinal, end, one(function, ordinal, home / str(ordinal), monkeypatch))
        for ordinal, end in (pairs[len(pairs) // 2 :] + pairs[: len(pairs) // 2])[:places]
    ]
    assert [(ordinal, end) for ordinal, _, end in found] == [(ordinal, end) for ordinal, end, _ in found]


def target(function: str) -> tuple[Any, str]:
    """The object that holds a function, and its name there."""
    module, _, path = function.partition(":")
    *outer, name = path.split(".")
    there: Any = import_module(module)
    for part in outer:
        there = getattr(there, part)
    return there, name


def one(function: str, ordinal: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The end of one place, as the tables have it; all that every place promises is checked."""
    clock, calls = [1000.0], list[float]()
    where, name = target(function)
    with world(home, *MACHINES, clock=clock, faulty=True, policy="fifo") as w:
        w.turn(0.1)
        with monkeypatch.context() as patch:
            patch.setattr(where, name, failing(getattr(where, name), ordinal, calls, w.arbiter.now))
            errors = [type(error) for error in life(w) if error is not None]
        assert len(calls) >= ordinal, f"{function} is called {len(calls)} times only"
        end = ending(w, errors)
        out = {record.app for _, record in quarantines(w.arbiter.journal)}
        if "off" in end:
            # Nothing was taken from a job because time passed.
            later = [record for at, record in w.arbiter.journal.records() if at > calls[ordinal - 1] + 0.1]
            causes = {record.cause for record in later if isinstance(record, Revoke)}
            assert causes.isdisjoint({"expired", "moved"}), causes
        else:
            others = [entry for entry in w.arbiter.journal.apps() if entry.app not in out]
            assert all(entry.outcome in ("completed", "cancelled") for entry in others)
    with world(home, *MACHINES, clock=clock, policy="fifo") as w:
        w.turn(1.0)
        for app in sorted(w.arbiter.state.quarantined_apps):
            w.ask(lambda a, app=app: a.resume(app))
        for machine in sorted(w.arbiter.state.quarantined_machines):
            w.ask(lambda a, machine=machine: a.drain(machine, False))
        complete(w)
        assert all(entry.outcome in ("completed", "cancelled") for entry in w.arbiter.journal.apps())
        assert not w.arbiter.state.occupied
    return end


def ending(w: World, errors: list[type[BaseException]]) -> str:
    """As the tables have it."""
    records = [record for _, record in quarantines(w.arbiter.journal)]
    out = [f"m{record.machine}" if record.app is None else str(record.app) for record in records]
    out += ["off"] if w.arbiter.quarantine.off else []
    out += ["c"] if Injected in errors else []
    out += ["p"] if w.arbiter.engine.tallies.decisions["fallback"] else []
    assert set(errors) <= {Injected}
    return "+".join(out) or "-"
