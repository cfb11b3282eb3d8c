"""Where columns show that all gangs stay, placing them one by one gives the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from themis.model.answers import GpuGrant, Renewal, Solved
from themis.model.events import Allocated, Header, Renew
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.model.workload import Workload
from themis.policies.api import Workbench
from themis.policies.fair_finish import FairFinish
from themis.policies.placement.best_first import best_first
from themis.policies.placement.grants import Allocator, lease_end
from themis.policies.placement.ordered import fill
from themis.policies.placement.standing import all_stay
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, app, job, machines
from themis.testing.policies import decide

SIZES = (1, 2, 4, 8, 3, 12, 1, 6, 16)


def _crowded(seed: int) -> Workload:
    """Single rigid jobs and small sets, more than fit, some wider than a machine."""
    rng = np.random.default_rng(seed)
    apps = []
    for i in range(40):
        jobs = 3 if i % 7 == 3 else 1
        gpus = int(rng.choice(SIZES))
        steps = float(rng.integers(300, 6000))
        model = ("flat", "chatty")[int(rng.integers(2))]
        apps.append(
            app(
                f"a{i}",
                [job(steps, gpus, model=model, name=f"j{k}") for k in range(jobs)],
                float(rng.uniform(0, 9000)),
                weight=float(rng.choice([0.37, 1 / 3, 1.0])),
            )
        )
    return Workload(name="crowded", apps=tuple(sorted(apps, key=lambda a: a.arrival)), source="test")


def _simulation(policy: FairFinish, seed: int) -> Simulation:
    return Simulation(
        workload=_crowded(seed),
        cluster=machines(8, 8, 8, 4, 2, per_rack=2),
        book=BOOK,
        policy_name="fair_finish",
        policy=policy,
        settings=Settings(lease_s=300.0, tick_s=60.0, seed=seed),
    )


class _Watched(FairFinish):
    """``fair_finish``, each snapshot of which is shown to ``look``."""

    look: Callable[[Snapshot], None]

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        type(self).look(snapshot)
        return FairFinish.__call__(self, snapshot, bench)


@pytest.mark.parametrize("seed", range(6))
def test_what_columns_say_of_gangs_that_stay_is_what_placing_them_gives(seed: int) -> None:
    rng, seen = np.random.default_rng(seed), {True: 0, False: 0}

    def look(s: Snapshot) -> None:
        if not (s.job_expiring > 0).any():
            return
        for _ in range(3):
            order, h = rng.permutation(s.apps), int(rng.integers(0, s.apps + 1))
            rank, young_s = (
                rng.choice([0.0, 7.3, 1e4, 3e4], s.apps) * rng.uniform(0.5, 1.5),
                float(rng.choice([0, 700])),
            )
            # Gangs that stand come first more often than by chance.
            if rng.random() < 0.7:
                stands = np.bincount(s.job_app, weights=s.job_expiring, minlength=s.apps) > 0
                order, rank = order[np.argsort(~stands[order], kind="stable")], np.where(stands, 0.1 * rank, rank + 1)
            said = all_stay(s, order[:h], order[h:], rank, young_s)
            seen[said] += 1
            if not said:
                continue
            allocator = Allocator(s)
            standing = sorted((a, counts) for a, gangs in allocator.standing.items() for _, counts in gangs)
            best_first(allocator, order[h:], rank, fill(allocator, order[:h]), young_s=young_s)
            grant = allocator.grant()
            assert isinstance(grant, GpuGrant)
            gangs: dict[int, tuple[int, list[tuple[int, int]]]] = {}
            for gang, a, n, c in zip(
                grant.gang.tolist(), grant.app.tolist(), grant.machine.tolist(), grant.gpus.tolist()
            ):
                gangs.setdefault(gang, (int(np.searchsorted(s.app_id, a)), []))[1].append((n, c))
            assert sorted((a, tuple(sorted(counts))) for a, counts in gangs.values()) == standing
            assert not len(grant.until) or set(grant.until.tolist()) == {lease_end(s)}

    policy = type("Watched", (_Watched,), {"look": staticmethod(look)})()
    _simulation(policy, seed).run()
    assert seen[True] > 20
    assert seen[False] > 20


class _Granting(FairFinish):
    """``fair_finish`` that grants each gang that it renews."""

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        return decide(FairFinish(), snapshot, bench)


def _records(simulation: Simulation) -> tuple[list[tuple[Seconds, str]], int]:
    """All records but answers, and the number of answers that renew."""
    log: list[tuple[Seconds, Record]] = []
    simulation.run(lambda time, record: log.append((time, record)))
    renewals = sum(isinstance(r, Allocated) and isinstance(r.solved.answer, Renewal) for _, r in log)
    log = [(t, replace(r, jobs=tuple(sorted(r.jobs))) if isinstance(r, Renew) else r) for t, r in log]
    return [(t, repr(r)) for t, r in log if not isinstance(r, Allocated | Header)], renewals


@pytest.mark.parametrize("seed", range(3))
def test_a_renewal_of_all_gangs_does_what_a_grant_of_each_would_do(seed: int) -> None:
    mine, renewals = _records(_simulation(FairFinish(), seed))
    granted, fewer = _records(_simulation(_Granting(), seed))
    assert mine == granted
    assert renewals > fewer + 20
