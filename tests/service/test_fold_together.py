"""Units of fairness, odd weights, quotas, drains and withheld GPUs together, under each policy: records alone give the state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake import World, world
from late import LateSolver, something

from audit import audit, engine_over, same
from themis.cli.report import replay_home
from themis.model.events import GpusWithheld
from themis.policies.api import make_policy
from themis.service.api import views
from themis.service.engine import state_snapshots
from themis.service.engine.config import GroupSettings, UserSettings
from themis.service.engine.folding import fold

SEEDS = int(os.environ.get("THEMIS_FOLDS", "1"))
POLICIES = tuple(
    os.environ.get("THEMIS_FOLD_POLICIES", "themis fair_finish drf max_min_fairness shockwave gandiva_fair").split()
)
BETWEEN = ("users", "apps", "groups", "users")


def odd(w: World, rng: np.random.Generator) -> None:
    """What operators and machines do, beyond what happens to jobs."""
    n = int(rng.integers(2))
    match int(rng.integers(8)):
        case 0:
            w.ask(lambda a: a.drain(n, True, float(rng.choice([0.0, 3.0]))))
        case 1 | 2:
            w.ask(lambda a: a.drain(n, False))
        case 3:
            gpus = tuple(int(g) for g in np.flatnonzero(w.arbiter.state.gpu_machine == n)[: int(rng.integers(3))])
            w.say(GpusWithheld(machine=n, gpus=gpus, pids=(4711,) if gpus else (), reason="left" if gpus else ""))
        case 4:
            w.ask(views.nodes)
            w.ask(lambda a: views.share(a, ""))
        case _:
            size = w.arbiter.state.apps.size
            if size:
                app = str(int(rng.integers(size)))
                _, _, reply, _ = w.ask(lambda a: views.why(a, app))
                assert reply.code
                assert reply.sentence.endswith(".")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_meets_in_one_home_folds_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, policy: str
) -> None:
    monkeypatch.setattr(state_snapshots.maybe_take, "__kwdefaults__", {"every": 40})
    rng = np.random.default_rng([7, seed, POLICIES.index(policy)])
    clock = [1000.0]
    for life, between in enumerate(BETWEEN):
        settings: dict[str, Any] = {
            "between": between,
            "users": {"u0": UserSettings(weight=0.37, group="g"), "u1": UserSettings(weight=1 / 3, gpus=life)},
            "groups": {"g": GroupSettings(weight=float(rng.choice([7.0, 1e-6, 1e6])))},
            "lease_s": 4.0,
            "step_s": 2.0,
        }
        with world(tmp_path, 2, 3, policy=policy, clock=clock, **settings) as w:
            w.arbiter.journal.db.execute("PRAGMA synchronous = OFF")
            w.arbiter.engine.solver = LateSolver(make_policy(policy))
            for _ in range(40):
                something(w, rng)
                if rng.random() < 0.4:
                    odd(w, rng)
            for whole in (False, True):
                engine = engine_over(w.arbiter.journal)
                fold(engine, whole=whole)
                same(engine, w.arbiter.engine, f"life {life}, {'whole' if whole else 'from the last snapshot'}")
            if life == 1:
                w.arbiter.close()
        clock[0] += float(rng.uniform(0, 30))
    assert audit(tmp_path / "journal.db").pictures > 0
    assert replay_home(tmp_path, None).difference is None
