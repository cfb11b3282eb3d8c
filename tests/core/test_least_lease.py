"""Leases are no shorter than a start and a few steps, as measured of the job, where the setting asks for it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from themis.core import checkpoint, least_lease
from themis.core.least_lease import LONGEST_S, Start
from themis.core.scheduler import Scheduler
from themis.core.state import State
from themis.errors import InputError
from themis.model.events import Grant, JobEnded, LeastLease, Revoke
from themis.model.settings import Settings
from themis.model.workload import App, Workload
from themis.policies.api import make_policy
from themis.sim.replay import replay_records
from themis.sim.runner import Record, Simulation
from themis.sim.simulated_executor import SimulatedExecutor
from themis.testing.builders import BOOK, app, job, machines

Log = list[tuple[float, Record]]
LEASE_S, START_S, HOURS = 8.0, 20.0, 6 * 3600.0


def simulation(least_steps: int) -> Simulation:
    """Two users' jobs on one GPU, whose starts take 20 s and whose leases are of 8 s."""
    apps: tuple[App, ...] = tuple(app(f"a{i}", [job(90.0)], user=f"u{i}") for i in range(2))
    return Simulation(
        workload=Workload(name="w", apps=apps),
        cluster=machines(1),
        book=BOOK,
        policy_name="tiresias",
        policy=make_policy("tiresias"),
        settings=Settings(
            validate=True, lease_s=LEASE_S, tick_s=1.0, container_s=START_S, least_steps=least_steps, renew_idle=True
        ),
    )


def logged(least_steps: int) -> Log:
    log: Log = []
    simulation(least_steps).run(lambda time, record: log.append((time, record)))
    return log


def test_jobs_whose_start_is_longer_than_a_lease_complete() -> None:
    log = logged(1)
    assert [r.outcome for _, r in log if isinstance(r, JobEnded)] == ["completed", "completed"]
    leases = [r for _, r in log if isinstance(r, LeastLease)]
    assert {r.job for r in leases} == {0, 1}
    longest = max(r.least_s for r in leases)
    assert START_S < longest <= 2 * (START_S + LEASE_S), "a lease grows by doubling, so to at most twice what is needed"


def test_a_log_with_least_leases_replays_to_the_same_records() -> None:
    log = logged(1)
    assert any(isinstance(r, LeastLease) for _, r in log)
    assert replay_records(log, book=BOOK).difference is None


def test_every_lease_after_an_announcement_is_long_enough() -> None:
    least: dict[int, float] = {}
    granted: dict[int, float] = {}
    for time, record in logged(1):
        match record:
            case LeastLease():
                least[record.job] = record.least_s
            case Grant():
                granted[record.job] = time
                assert record.until - time >= least.get(record.job, 0.0) - 1e-6
            case Revoke(cause="expired"):
                assert time - granted[record.job] >= min(least.get(record.job, 0.0), LEASE_S) - 1e-6


def test_it_is_off_by_default() -> None:
    assert Settings().least_steps == 0
    state = State(book=BOOK, settings=Settings())
    least_lease.granted(state, 0)
    assert state.starts == {}
    with pytest.raises(InputError, match="least_steps is -1, expected 0 or more"):
        Settings(least_steps=-1)


def state_with(start: Start, *, now: float, least_steps: int = 10) -> State:
    """A state that knows this of job 0."""
    state = State(book=BOOK, settings=Settings(lease_s=60.0, least_steps=least_steps))
    state.now = now
    state.starts[0] = start
    return state


def test_a_start_lasts_from_the_grant_to_the_first_new_step_and_a_step_from_there_on() -> None:
    state = state_with(Start(granted=100.0, base=50.0), now=121.0)
    assert least_lease.reported(state, 0, 50.0) == [], "what its checkpoint holds is no new step"
    (first,) = least_lease.reported(state, 0, 51.0)
    assert (first.start_s, first.step_s, first.least_s) == (21.0, 0.0, 21.0)
    state.now = 141.0
    (second,) = least_lease.reported(state, 0, 91.0)
    assert (second.start_s, second.step_s, second.least_s) == (21.0, 0.5, 26.0)
    state.now = 151.0
    assert least_lease.reported(state, 0, 111.0) == [], "as measured before"


def test_an_attempt_that_ended_without_a_step_doubles_its_time_up_to_a_limit() -> None:
    state = state_with(Start(granted=100.0, base=50.0), now=108.0)
    (found,) = least_lease.stopped(state, 0, 50.0)
    assert found.start_s == found.least_s == 16.0
    state.starts[0] = replace_start(state, granted=200.0)
    state.now = 600.0
    (found,) = least_lease.stopped(state, 0, 50.0)
    assert found.least_s == LONGEST_S
    assert least_lease.stopped(replace_state(state, base=40.0), 0, 50.0) == [], "it saved a new step"


def test_a_job_that_had_the_longest_least_lease_without_a_step_has_none_until_it_reports_one() -> None:
    state = state_with(Start(granted=100.0, base=50.0, start_s=480.0), now=100.0 + LONGEST_S)
    (found,) = least_lease.stopped(state, 0, 50.0)
    assert (found.least_s, least_lease.least_s(state, 0)) == (0.0, 0.0)
    state.starts[0] = replace_start(state, granted=2000.0)
    state.now = 2060.0
    assert least_lease.stopped(state, 0, 50.0) == [], "it does not double again"
    (found,) = least_lease.reported(state, 0, 51.0)
    assert found.least_s == 60.0


class Enough(Exception):
    """The end of a simulation that goes on for ever."""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["tiresias", "drf", "max_min_fairness"])
@pytest.mark.parametrize("first_s", [math.inf, 500.0])
def test_a_job_that_hardly_reports_steps_gets_no_more_than_one_that_does(
    policy: str, first_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports none, or one after so many seconds of each attempt.

    Leases of a silent job double only until they are as long as a least lease may be, then they are as long as all others'; one
    that needs 500 s for its first step has long leases, and not more time for it.
    """
    steps_after = SimulatedExecutor._steps_after

    def hardly_any(self: SimulatedExecutor, gang: Any, seconds: float) -> float:
        return gang.done + (seconds >= first_s) if gang.spec.name == "silent" else steps_after(self, gang, seconds)

    monkeypatch.setattr(SimulatedExecutor, "_steps_after", hardly_any)
    jobs = [job(1e5, name=name) for name in ("silent", "b", "c")]
    world = Simulation(
        workload=Workload(name="w", apps=tuple(app(f"a{i}", [one], user=f"u{i}") for i, one in enumerate(jobs))),
        cluster=machines(1),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(lease_s=60.0, tick_s=1.0, container_s=5.0, least_steps=10, renew_idle=True),
    )
    since: dict[int, float] = {}
    held, longest = [0.0, 0.0, 0.0], 0.0

    def count(time: float, record: Record) -> None:
        nonlocal longest
        if isinstance(record, Grant):
            since[record.job] = time
        elif isinstance(record, Revoke) and record.job in since:
            lasted = time - since.pop(record.job)
            held[record.job] += lasted
            longest = max(longest, lasted) if time > HOURS / 2 else longest
        if time > HOURS:
            raise Enough

    with pytest.raises(Enough):
        world.run(count)
    assert sum(held) > HOURS / 2
    assert held[0] <= 1.1 * sum(held) / 3, held
    assert longest < LONGEST_S or first_s < LONGEST_S, "its leases are as those of others again"


def replace_start(state: State, **changes: float) -> Start:
    return Start(*state.starts[0])._replace(**changes)  # type: ignore[arg-type]


def replace_state(state: State, **changes: float) -> State:
    state.starts[0] = replace_start(state, **changes)
    return state


def test_checkpoints_hold_what_is_known_of_starts() -> None:
    core, fresh = (Scheduler(BOOK, Settings(), make_policy("tiresias").pace) for _ in range(2))
    core.state.starts[3] = Start(granted=1.5, base=2.0, first=3.0, steps=4.0, start_s=1.5, step_s=0.1)
    checkpoint.load(checkpoint.save(core), fresh)
    assert fresh.state.starts == core.state.starts
