"""The state is a function of the journal's records alone: live, folded from the beginning or from a snapshot, to the last bit."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from fake import World, request, world
from late import LateSolver, answer, change_something, something

from audit import as_written, audit, engine_over, what_counts
from themis.cli.report import replay_home
from themis.errors import InputError
from themis.policies.api import make_policy
from themis.service.api.submission import submit
from themis.service.engine import integrity, state_snapshots
from themis.service.engine.folding import fold
from themis.service.engine.journal import Journal

SEEDS = int(os.environ.get("THEMIS_FOLDS", "2"))
POLICIES = ("themis", "max_min_fairness", "shockwave", "tiresias")
"""Of them ``themis`` asks for bids; the others cover time shares, plans of rounds and plain grants."""


def late(w: World, policy: str) -> None:
    w.arbiter.journal.db.execute("PRAGMA synchronous = OFF")  # a busy disk is no part of these tests
    w.arbiter.engine.solver = LateSolver(make_policy(policy))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_live_state_is_that_of_its_records_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, policy: str
) -> None:
    monkeypatch.setattr(state_snapshots.maybe_take, "__kwdefaults__", {"every": 40})
    rng = np.random.default_rng([seed, POLICIES.index(policy)])
    clock = [1000.0]
    for life in range(3):
        with world(tmp_path, 2, 2, policy=policy, clock=clock) as w:
            late(w, policy)
            for _ in range(50):
                something(w, rng)
            journal, live = w.arbiter.journal, what_counts(w.arbiter.engine)
            for whole in (False, True):
                engine = engine_over(journal)
                fold(engine, whole=whole)
                assert what_counts(engine) == live, f"life {life}, {'whole' if whole else 'from the last snapshot'}"
            if life == 1:
                w.arbiter.close()
        clock[0] += float(rng.uniform(0, 30))
    assert audit(tmp_path / "journal.db").pictures > 0
    assert replay_home(tmp_path, None).difference is None


@pytest.mark.parametrize("seed", range(2 * SEEDS))
def test_the_live_state_is_that_of_its_records_across_changes_of_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Policies, leases, weights, quotas, units of fairness and machines change at random, while decisions are under way."""
    monkeypatch.setattr(state_snapshots.maybe_take, "__kwdefaults__", {"every": 40})
    rng = np.random.default_rng([seed, 25])
    clock = [1000.0]
    for life in range(3):
        with world(tmp_path, 2, 2, clock=clock) as w:
            late(w, w.arbiter.config.policy)
            for _ in range(60):
                (change_something if rng.random() < 0.2 else something)(w, rng)
            journal, live = w.arbiter.journal, what_counts(w.arbiter.engine)
            for whole in (False, True):
                engine = engine_over(journal)
                fold(engine, whole=whole)
                assert what_counts(engine) == live, f"life {life}, {'whole' if whole else 'from the last snapshot'}"
                assert engine.policy == w.arbiter.engine.policy
            if life == 1:
                w.arbiter.close()
        clock[0] += float(rng.uniform(0, 30))
    assert audit(tmp_path / "journal.db").pictures > 0
    assert replay_home(tmp_path, None).difference is None


def test_an_answer_that_comes_late_does_not_keep_the_journal_from_being_opened(tmp_path: Path) -> None:
    """As it was found: apps of weight 0.37, a policy in a process of its own, the arbiter killed."""
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock) as w:
        late(w, "themis")
        for n in range(12):
            w.ask(lambda a, n=n: submit(a, request(f"a{n}", weight=0.37)))
            for _ in range(3):
                clock[0] += 0.083
                answer(w)
            for job in sorted(w.held()):
                clock[0] += 0.0137
                w.finish(job)
        assert "AppFinished" in {type(r).__name__ for _, r in w.arbiter.journal.records()}
    with world(tmp_path, 2, clock=clock) as w:
        assert w.arbiter.recovered > 0


def test_the_trace_of_a_journal_is_read_as_it_was_written_or_not_at_all() -> None:
    text = integrity.spell(7, b"\x01\x02")
    assert integrity.read_spelled(text) == (7, b"\x01\x02")
    assert [integrity.read_spelled(damaged) for damaged in ("", text[1:], text[:-1], f"{text} 0")] == [None] * 4


@pytest.mark.unfoldable
def test_a_record_that_is_off_in_its_last_digits_is_refused(tmp_path: Path) -> None:
    """What is compared is compared to the last bit: the tests above cannot pass by tolerance."""
    _small(tmp_path)
    _nudge(tmp_path / "journal.db", 1e-12)
    with pytest.raises(InputError, match="a AppFinished does not follow from the records before it"):
        audit(tmp_path / "journal.db")


def test_a_home_of_an_older_version_is_opened_within_a_tolerance_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = _small(tmp_path)
    _nudge(tmp_path / "journal.db", 1e-12, older=True)
    with caplog.at_level(logging.WARNING), world(tmp_path, 2, clock=clock):
        assert "1 commands differ from what they are now in the last digits of numbers" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), world(tmp_path, 2, clock=clock):
        assert "1 commands differ" in caplog.text, "the old records are still there"
    assert audit(tmp_path / "journal.db").near == 1
    assert replay_home(tmp_path, None).difference is None


@pytest.mark.unfoldable
def test_a_home_of_an_older_version_that_is_far_off_is_refused(tmp_path: Path) -> None:
    clock = _small(tmp_path)
    _nudge(tmp_path / "journal.db", 1e-8, older=True)
    with pytest.raises(InputError, match="does not follow"), world(tmp_path, 2, clock=clock):
        pass


def _small(home: Path) -> list[float]:
    """A journal with one app that ended, its records without a snapshot."""
    clock = [1000.0]
    with world(home, 2, clock=clock) as w:
        w.ask(lambda a: submit(a, request("a", weight=0.37)))
        w.turn(3.1)
        w.finish(0)
    return clock


def _nudge(path: Path, relative: float, *, older: bool = False) -> None:
    """Change rho_paper of the one AppFinished by so much."""
    journal = Journal(path)
    number, line = journal.db.execute("SELECT number, line FROM records WHERE kind = 'AppFinished'").fetchone()
    fields: dict[str, Any] = orjson.loads(line)
    fields["rho_paper"] *= 1 + relative
    with journal.transaction():
        journal.write("UPDATE records SET line = ? WHERE number = ?", (orjson.dumps(fields), number))
        if older:
            journal.write("DELETE FROM meta WHERE name = 'arithmetic'")
    as_written(journal)
    journal.close()
