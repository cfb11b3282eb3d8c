"""Dynamic jobs: batch sizes change by events, and the core knows nothing of what has not happened yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from themis.core import regimes
from themis.model.dynamic import Dynamic, Mode
from themis.model.events import AppFinished, AppSubmitted, BatchChanged, JobProgress
from themis.model.log import encode, is_record
from themis.model.settings import Settings
from themis.model.speed import Curve, Profile, ProfileBook
from themis.model.units import Seconds
from themis.model.workload import Job, Regime, Workload
from themis.policies.api import make_policy
from themis.sim.runner import Outage, Record, Simulation
from themis.testing.builders import app, machines, state_at

BOOK = ProfileBook.of(
    [
        Profile(
            name="net",
            curves={("*", b): Curve(gpus=(1,), rate=(r,)) for b, r in ((0, 1.0), (32, 1.0), (64, 0.8), (128, 0.5))},
            checkpoint_s=0.0,
        )
    ]
)
"""An epoch of 1,280 examples takes 40 s at batch size 32, 25 s at 64 and 20 s at 128."""
SIZES = ((32, 40.0), (64, 20.0), (128, 10.0))


def dynamic_job(*epochs: tuple[float, int], mode: Mode = Mode.GNS, gpus: int = 1) -> Job:
    return Job(
        name="j",
        model="net",
        regimes=tuple(Regime(steps=e, batch=b) for e, b in epochs),
        gpus_min=gpus,
        gpus_max=gpus,
        dynamic=Dynamic(mode=mode, epoch_steps=SIZES),
    )


def run(
    jobs: list[Job], policy: str = "fifo", outages: tuple[Outage, ...] = (), arrival: Seconds = 0.0, **settings: float
) -> list[tuple[Seconds, Record]]:
    log: list[tuple[Seconds, Record]] = []
    Simulation(
        workload=Workload(name="w", apps=tuple(app(f"a{i}", [j], arrival=i * arrival) for i, j in enumerate(jobs))),
        cluster=machines(1),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        outages=outages,
        settings=Settings(validate=True, **{"container_s": 0.0, **settings}),  # type: ignore[arg-type]
    ).run(lambda t, r: log.append((t, r)))
    return log


def test_epochs_take_their_batch_sizes_time_and_every_change_is_an_event() -> None:
    log = run([dynamic_job((3, 32), (2, 64), (5, 128))])
    assert [(t, r.steps, r.batch) for t, r in log if isinstance(r, BatchChanged)] == [
        (pytest.approx(120.0), 3, 64),
        (pytest.approx(170.0), 5, 128),
    ]
    assert [t for t, r in log if isinstance(r, AppFinished)] == [pytest.approx(120 + 50 + 100)]
    assert not any(isinstance(r, JobProgress) for _, r in log)


def test_an_app_is_judged_by_the_work_that_it_turned_out_to_be() -> None:
    (done,) = [r for _, r in run([dynamic_job((3, 32), (7, 128))]) if isinstance(r, AppFinished)]
    assert done.t_id_exact == pytest.approx(3 * 40 + 7 * 20)
    assert done.rho_exact == pytest.approx(1.0)


def test_a_declared_schedule_is_known_from_the_start() -> None:
    job = dynamic_job((3, 32), (7, 128), mode=Mode.DECLARED)
    state = state_at(machines(1), [app("a", [job])], book=BOOK)
    assert state.jobs.serial[0] * 3 + state.jobs.later[0] == pytest.approx(3 * 40 + 7 * 20)


def test_what_is_left_is_believed_to_go_on_at_the_present_batch_size() -> None:
    state = state_at(machines(1), [app("a", [dynamic_job((3, 32), (7, 128))])], book=BOOK, held=[(0, (0,), 1e9)])
    assert state.work_left(state.app_jobs(0))[0] == pytest.approx(10 * 40)
    state.advance(100.0)
    assert regimes.batch_changed(state, 0, 2.5, 64)
    assert state.work_left(state.app_jobs(0))[0] == pytest.approx(7.5 * 25)
    state.advance(125.0)
    assert state.steps_now(state.app_jobs(0))[0] == pytest.approx(3.5)
    assert not regimes.batch_changed(state, 0, 3.5, 64)
    assert [(r.steps, r.batch) for r in state.regimes[0]] == [(2.5, 32), (7.5, 64)]


def test_a_regime_that_never_was_leaves_no_trace() -> None:
    state = state_at(machines(1), [app("a", [dynamic_job((10, 32))])], book=BOOK, held=[(0, (0,), 1e9)])
    assert regimes.batch_changed(state, 0, 0.0, 64)
    assert [(r.steps, r.batch) for r in state.regimes[0]] == [(10.0, 64)]
    assert regimes.batch_changed(state, 0, 4.0, 128)
    assert regimes.batch_changed(state, 0, 4.0, 64)
    assert [(r.steps, r.batch) for r in state.regimes[0]] == [(10.0, 64)]


def test_a_batch_size_that_nobody_measured_counts_as_the_nearest_declared_one() -> None:
    bare = ProfileBook.of([replace(BOOK.get("net"), curves={k: c for k, c in BOOK.get("net").curves.items() if k[1]})])
    state = state_at(machines(1), [app("a", [dynamic_job((10, 32))])], book=bare, held=[(0, (0,), 1e9)])
    assert regimes.batch_changed(state, 0, 4.0, 100)
    assert state.regimes[0][-1].batch == 128


def test_a_crash_undoes_changes_of_batch_size_after_the_last_checkpoint() -> None:
    # At 199 s the job has done 3 epochs at 32 and 3.16 at 64; its checkpoint is from 100 s, 2.5 epochs in.
    outage = Outage(time=199.0, machine=0, lasts=51.0)
    log = run([dynamic_job((3, 32), (7, 64))], outages=(outage,), checkpoint_every_s=100.0)
    assert [(r.attempt, r.steps, r.batch) for _, r in log if isinstance(r, BatchChanged)] == [
        (1, 3, 64),
        (2, 2.5, 32),
        (2, 3, 64),
    ]
    assert [t for t, r in log if isinstance(r, AppFinished)] == [pytest.approx(250 + 0.5 * 40 + 7 * 25)]


@pytest.mark.parametrize("policy", ["themis", "srtf", "max_min_fairness", "tiresias"])
def test_nothing_that_is_decided_depends_on_batch_sizes_that_are_still_to_come(policy: str) -> None:
    """Two worlds that differ only after 20 epochs of one job have the same log until that job gets there."""

    def world(*rest: tuple[float, int]) -> tuple[list[bytes], Seconds]:
        jobs = [dynamic_job((20, 32), *rest), dynamic_job((2, 64), (9, 128)), dynamic_job((9, 32), (1, 128))]
        log = run(jobs, policy, arrival=30.0, lease_s=60.0, tick_s=60.0)
        parts = min(t for t, r in log if isinstance(r, BatchChanged) and r.job == 0 and r.steps >= 20)
        return [encode(t, r) for t, r in log if is_record(r) and not isinstance(r, AppSubmitted) and t < parts], parts

    one, other = world((6, 64)), world((1, 64), (5, 128))
    assert len(one[0]) > 10
    assert one == other
