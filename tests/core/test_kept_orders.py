"""Orders that events keep up to date are those that the tables say, after every step, and forgetting them changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from themis.core.offer import free_gpus
from themis.core.scheduler import Scheduler
from themis.core.state import EPS, State
from themis.core.tables import RUNNING, WAITING
from themis.model.events import Command, Event
from themis.model.units import NONE, Bool, Seconds
from themis.policies.api import make_policy
from themis.testing.builders import random_simulation


def free_by_seats(s: State, by: Seconds) -> Bool:
    """GPUs of machines in service on neither seat of which is a lease that goes on, or a gang that still stops."""
    leased = (s.gpu_job != NONE) & (s.jobs.until[s.gpu_job] > by + EPS)
    stopping = (s.gpu_occupant != NONE) & (s.gpu_occupant != s.gpu_job)
    open_ = s.open_machines()[s.gpu_machine] & s.gpu_there
    for gpus, _, _ in s.withheld.values():
        open_[list(gpus)] = False
    free: Bool = open_ & ~(leased | stopping).any(axis=1)
    return free


def check(s: State) -> None:
    status, until = s.jobs.status[: s.jobs.size], s.jobs.until
    assert s.present().tolist() == np.flatnonzero(status <= RUNNING).tolist()
    assert s.jobs.waiting == set(np.flatnonzero(status == WAITING).tolist())
    assert s.ends.times == sorted({float(until[j]) for j in s.job_gpus})
    assert {j: end for end, jobs in s.ends.jobs.items() for j in jobs} == {j: float(until[j]) for j in s.job_gpus}
    for later in (0.0, 60.0, 1200.0):
        by = s.now + later
        assert s.ends.by(by) == sorted(j for j in s.job_gpus if until[j] <= by)
        assert s.ends.first(by) == min((float(until[j]) for j in s.job_gpus if until[j] > by), default=np.inf)
        assert free_gpus(s, by).tolist() == free_by_seats(s, by).tolist()


@pytest.mark.parametrize("policy", ["drf", "gandiva", "max_min_fairness"])
def test_orders_are_those_of_the_tables_after_every_step(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bags, sweeps, pairs on a GPU and failing machines; every tenth step begins without anything kept."""
    step, steps = Scheduler.step, 0

    def checked(self: Scheduler, event: Event, now: Seconds) -> list[Command]:
        nonlocal steps
        out, steps = step(self, event, now), steps + 1
        if len(self.state.machines):
            check(self.state)
        if steps % 10 == 0:
            self.drop_caches()
        return out

    monkeypatch.setattr(Scheduler, "step", checked)
    random_simulation(make_policy(policy), 0, name=policy).run()
    assert steps > 100
