"""Pictures of the state in the journal: a start from the last one gives what all records give; old records may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake import World, request, world

from audit import as_written
from themis.core.checkpoint import save
from themis.core.scheduler import Scheduler
from themis.errors import InputError
from themis.model.events import Compacted, JobProgress, JobStopped, MachineFailed, MachineReturned
from themis.policies.api import make_policy
from themis.report.explain import explain
from themis.service.api.submission import submit
from themis.service.engine import state_snapshots
from themis.service.engine.engine import Engine
from themis.service.engine.folding import fold
from themis.service.engine.journal import Journal, export
from themis.sim.replay import replay


def enter(w: World, name: str = "a", **more: object) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


def something(w: World, rng: np.random.Generator) -> None:
    """One of the things that happen to a service."""
    state = w.arbiter.state
    running = sorted(state.job_gpus)
    match int(rng.integers(8)):
        case 0 | 1:
            enter(w, "app", gpus=(1, int(rng.integers(1, 4))), jobs=int(rng.integers(1, 4)))
        case 2 if running:
            w.finish(int(rng.choice(running)))
        case 3 if running:
            j = int(rng.choice(running))
            w.say(JobProgress(job=j, attempt=int(state.jobs.attempt[j]), steps=float(rng.uniform(0, 90))))
        case 4 if running:
            j = int(rng.choice(running))
            w.say(JobStopped(job=j, attempt=int(state.jobs.attempt[j]), steps=float(rng.uniform(0, 90))))
        case 5:
            n = int(rng.integers(2))
            w.say(MachineFailed(machine=n) if state.machine_up[n] else MachineReturned(machine=n))
        case 6:
            active = np.flatnonzero(state.apps.active[: state.apps.size])
            if len(active):
                a = int(rng.choice(active))
                w.ask(lambda arbiter: [arbiter.cancel, arbiter.hold, arbiter.resume][int(rng.integers(3))](a))
        case _:
            w.turn(float(rng.uniform(0, 3)))


def folded(w: World, *, whole: bool) -> Engine:
    """A fresh engine over the same journal."""
    old = w.arbiter.engine
    core = Scheduler(w.arbiter.book, w.arbiter.settings, old.policy.pace, old.policy.needs)
    engine = Engine(w.arbiter.journal, core, make_policy(w.arbiter.config.policy))
    fold(engine, whole=whole)
    return engine


def what_counts(engine: Engine) -> tuple[Any, ...]:
    here = engine.core.state.occupied.keys()
    return (
        save(engine.core),
        sorted(engine.wakes),
        {j: engine.grants[j] for j in sorted(here)},
        {j: engine.revokes[j] for j in sorted(engine.core.stopping)},
        engine.started & set(here),
        engine.held(),
    )


@pytest.mark.parametrize("policy", ["themis", "max_min_fairness"])
@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_and_the_records_after_it_give_the_state_that_all_records_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, policy: str
) -> None:
    monkeypatch.setattr(state_snapshots, "EVERY", 15)
    monkeypatch.setattr(state_snapshots.maybe_take, "__kwdefaults__", {"every": 15})
    rng = np.random.default_rng(seed)
    with world(tmp_path, 2, 2, policy=policy) as w:
        for _ in range(50):
            something(w, rng)
        assert w.arbiter.journal.snapshot_number() > 15
        live, short, long = w.arbiter.engine, folded(w, whole=False), folded(w, whole=True)
        assert what_counts(short) == what_counts(long) == what_counts(live)
        assert all(short.saved[j] == long.saved.get(j) for j in short.saved)


@pytest.mark.unfoldable
def test_a_clean_end_leaves_a_snapshot_so_that_an_upgrade_need_not_agree_with_the_records(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock) as w:
        for name in "abc":
            enter(w, name)
        w.arbiter.close()
    journal = Journal(tmp_path / "journal.db")
    assert journal.snapshot_number() == journal.last()[0]
    # A version whose decisions differ: none of the old records would follow for it.
    with journal.transaction():
        journal.db.execute(
            """UPDATE records SET line = replace(line, '"gpus":[0]', '"gpus":[1]') WHERE kind = 'Grant'"""
        )
    as_written(journal)
    journal.close()
    with world(tmp_path, 2, clock=clock) as w:
        assert w.held() == {0: (0,), 1: (1,)}
        assert {g.job: g.gpus for g, _, _ in w.executor.restored} == w.held()
        w.finish(0)
        assert set(w.held()) == {1, 2}


def test_old_records_go_once_two_snapshots_cover_them_and_the_rest_can_be_read(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock) as w:
        engine, journal = w.arbiter.engine, w.arbiter.journal

        def snapshot(keep: float) -> None:
            with journal.transaction():
                assert state_snapshots.maybe_take(engine, w.arbiter.state.now, keep, every=1)

        for name in "abc":
            enter(w, name)
            w.turn(5.0)
        before = journal.last()[0]
        snapshot(0.0)
        assert not any(isinstance(r, Compacted) for _, r in journal.records())
        w.turn(5.0)
        snapshot(1e9)
        w.turn(5.0)
        snapshot(0.0)
        w.finish(0)
        kinds = [type(r).__name__ for _, r in journal.records()]
        assert kinds.count("Compacted") == 1
        assert kinds.count("AppSubmitted") == 3
        assert len(kinds) < before
        dropped = next(r.records for _, r in journal.records() if isinstance(r, Compacted))
        w.turn(5.0)
        snapshot(0.0)
        assert next(r.records for _, r in journal.records() if isinstance(r, Compacted)) > dropped
        held = w.held()
        with pytest.raises(InputError, match=r"lacks \d+ records and a snapshot of the state after them"):
            folded(w, whole=True)
        export(journal.path, tmp_path / "log.jsonl")
        with pytest.raises(InputError, match="only a whole log can be replayed"):
            replay(tmp_path / "log.jsonl")
        assert explain(tmp_path / "log.jsonl", "a").steps[-1].note == "completed"
    with world(tmp_path, 2, clock=clock) as w:
        assert w.held() == held
        assert w.executor.admitted == [(1, "b"), (2, "c")], "what is over needs no executor"


@pytest.mark.unfoldable
def test_a_damaged_snapshot_is_said_to_be_one(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        enter(w)
        w.arbiter.journal.add_snapshot(w.arbiter.journal.last()[0], 0.0, b"nothing")
    with pytest.raises(InputError, match="a snapshot of the state is damaged"), world(tmp_path, 2):
        pass
