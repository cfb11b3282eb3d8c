"""A job's status follows one table."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from themis.core.job_lifecycle import TRANSITIONS, JobChange, move
from themis.core.scheduler import Scheduler
from themis.core.tables import Jobs, Status
from themis.errors import InvariantBroken
from themis.model.events import AppCancelled, AppHeld, AppResumed, Command, Event, JobGivenUp
from themis.model.units import Seconds
from themis.policies.api import make_policy
from themis.sim.runner import Simulation
from themis.testing.builders import random_simulation


def in_status(status: Status) -> Jobs:
    jobs = Jobs()
    jobs.extend(1)
    jobs.status[0] = status
    return jobs


@pytest.mark.parametrize(("status", "change"), list(product(Status, JobChange)))
def test_a_change_that_the_table_lacks_is_refused_and_leaves_the_status(status: Status, change: JobChange) -> None:
    jobs = in_status(status)
    if (after := TRANSITIONS.get((status, change))) is not None:
        move(jobs, 0, change, 1.0)
        assert jobs.status[0] == after
        return
    with pytest.raises(InvariantBroken):
        move(jobs, 0, change, 1.0)
    assert jobs.status[0] == status
    assert not jobs.changes


def test_a_refused_change_tells_the_jobs_story() -> None:
    jobs = in_status(Status.WAITING)
    jobs.extend(1)
    jobs.app[0], jobs.done[0], jobs.total[0] = 3, 120.0, 500.0
    move(jobs, 0, JobChange.GRANT, 10.0)
    move(jobs, 1, JobChange.HOLD, 15.0)
    move(jobs, 0, JobChange.END, 50.5)
    with pytest.raises(
        InvariantBroken,
        match=r"^job 0 is ended, so GRANT cannot happen at 60 s; it is of app 3, had 0 attempts and did 120 of 500 steps: "
        r"GRANT at 10 s, END at 50.5 s\.$",
    ):
        move(jobs, 0, JobChange.GRANT, 60.0)


def test_an_ended_job_stays_ended_and_every_other_status_can_end() -> None:
    leads_on = {status for status, _ in TRANSITIONS}
    assert leads_on == set(Status) - {Status.ENDED}
    assert {status for status, change in TRANSITIONS if change is JobChange.END} == leads_on


class Watched(Scheduler):
    """Notes every transition, from the tables before and after each step."""

    seen: set[tuple[Status, JobChange]]

    def step(self, event: Event, now: Seconds) -> list[Command]:
        jobs = self.state.jobs
        status = dict(enumerate(jobs.status[: jobs.size].tolist()))
        jobs.changes.clear()
        out = super().step(event, now)
        for _, j, change in jobs.changes:
            pair = Status(status.get(j, Status.WAITING)), JobChange(change)
            self.seen.add(pair)
            status[j] = TRANSITIONS[pair]
        assert status.items() <= dict(enumerate(jobs.status[: jobs.size].tolist())).items()
        return out


def disturbed(seed: int) -> Simulation:
    """A random run whose users hold, resume and cancel apps, and in which jobs fail for good."""
    rng = np.random.default_rng(seed)
    sim = random_simulation(make_policy("fifo"), seed, name="fifo")
    changes: list[tuple[Seconds, Event]] = []
    first = 0
    for a, spec in enumerate(sorted(sim.workload.apps, key=lambda spec: spec.arrival)):
        at = spec.arrival + rng.uniform(1.0, 400.0)
        changes += [(at, AppHeld(app=a)), (at + 100.0, AppResumed(app=a)), (at + 150.0, AppHeld(app=a))]
        if rng.random() < 0.5:
            changes.append((at + 200.0, JobGivenUp(job=first, cause="failed")))
        changes.append((at + 300.0, AppCancelled(app=a) if rng.random() < 0.2 else AppResumed(app=a)))
        first += len(spec.jobs)
        if rng.random() < 0.3:
            changes.append((spec.arrival + 1.0, JobGivenUp(job=first - 1, cause="failed")))
    return replace(sim, changes=tuple(changes))


def test_runs_with_failures_holds_and_cancels_keep_to_the_table_and_use_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Watched.seen = set[tuple[Status, JobChange]]()
    monkeypatch.setattr("themis.sim.runner.Scheduler", Watched)
    for seed in range(5):
        disturbed(seed).run()
    # ``test_late_ends`` has these: no simulated gang reports its last step after it was asked to stop.
    late = {(Status.WAITING, JobChange.PAUSE), (Status.HELD, JobChange.PAUSE)}
    assert seen | late == set(TRANSITIONS)
