"""The core through its only door: events in, commands out, in small worlds that can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from themis.core.app_lifecycle import add_app
from themis.core.job_lifecycle import END, GRANT, TRANSITIONS, move
from themis.core.tables import Growing, Status
from themis.errors import ClusterError
from themis.model.cluster import Cluster
from themis.model.events import Allocated, AppFinished, Grant, JobEnded, JobStarted, Renew, Revoke
from themis.model.settings import Settings
from themis.model.workload import App, Halving, LossCurve, Regime, Rung, Workload
from themis.policies.api import make_policy
from themis.sim.runner import Outage, Record, Simulation
from themis.testing.builders import BOOK, app, job, leased_twice, machines, state_at

Log = list[tuple[float, Record]]


def run(
    cluster: Cluster, apps: Sequence[App], policy: str = "fifo", outages: Sequence[Outage] = (), **settings: float
) -> Log:
    given = {"container_s": 0.0, "lease_s": 600.0, **settings}
    simulation = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=cluster,
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(validate=True, **given),
        outages=outages,  # type: ignore[arg-type]
    )
    log: Log = []
    simulation.run(lambda time, record: log.append((time, record)))
    assert not leased_twice(log)
    return log


def times(log: Log, kind: type) -> list[float]:
    return [t for t, r in log if isinstance(r, kind)]


def test_a_job_alone_runs_at_once_and_renews_without_restarting() -> None:
    log = run(machines(1), [app("a", [job(1500.0)])])
    assert times(log, Grant) == [0.0]
    assert times(log, Renew) == [60.0 * i for i in range(1, 25)]
    assert times(log, AppFinished) == [1500.0]


def test_container_and_checkpoint_costs_are_paid_on_a_real_change_of_gpus_only() -> None:
    apps = [app("a", [job(700.0)]), app("b", [job(100.0)], arrival=10.0)]
    log = run(machines(1), apps, policy="tiresias", container_s=35.0)
    # a trains 35-600, b 635-735, a again (checkpoint 7.5 s) from 742.5 + 35 with 135 s to go.
    assert times(log, AppFinished) == [735.0, pytest.approx(735 + 42.5 + 135)]


def test_a_gang_starts_together_or_not_at_all() -> None:
    log = run(machines(2, 1), [app("small", [job(300.0)]), app("gang", [job(300.0, 3)], arrival=1.0)])
    grants = [(t, r) for t, r in log if isinstance(r, Grant)]
    assert [(t, len(r.gpus)) for t, r in grants] == [(0.0, 1), (300.0, 3)]


def test_a_gang_across_machines_runs_slower_by_the_models_slowdown() -> None:
    log = run(machines(2, 2), [app("a", [job(400.0, 4, model="chatty")])])
    assert times(log, AppFinished) == [pytest.approx(100 * 1.3)]


def test_locality_is_slot_machine_rack_and_cross_rack() -> None:
    cluster = Cluster(
        name="c", machines=tuple(replace(m, gpus_per_slot=2) for m in machines(4, 4, 4, per_rack=2).machines)
    )
    log = run(cluster, [app(f"a{n}", [job(10.0, n)], arrival=20.0 * n) for n in (2, 4, 6, 12)])
    assert [r.locality for _, r in log if isinstance(r, Grant)] == [0, 1, 2, 3]


def test_a_finished_jobs_gpus_go_to_its_apps_next_job_within_the_lease() -> None:
    log = run(
        machines(1), [app("bag", [job(100.0, name="x"), job(200.0, name="y")]), app("late", [job(50.0)], arrival=1.0)]
    )
    order = [(t, r.job) for t, r in log if isinstance(r, Grant)]
    assert order == [(0.0, 1), (200.0, 0), (300.0, 2)]


def test_machine_failure_costs_the_work_since_the_last_checkpoint_and_the_job_comes_back() -> None:
    log = run(
        machines(1),
        [app("a", [job(1000.0)])],
        outages=[Outage(time=450.0, machine=0, lasts=50.0)],
        checkpoint_every_s=100.0,
    )
    assert [r.cause for _, r in log if isinstance(r, Revoke)] == ["failed", "finished"]
    # 400 s are safe; the machine is back at 500, the checkpoint takes 7.5 s to read.
    assert times(log, AppFinished) == [pytest.approx(500 + 7.5 + 600)]


def test_a_gang_loses_all_its_gpus_when_one_of_its_machines_fails() -> None:
    log = run(machines(2, 2), [app("a", [job(4000.0, 4)])], outages=[Outage(time=100.0, machine=1, lasts=700.0)])
    assert [(t, len(r.gpus)) for t, r in log if isinstance(r, Grant)] == [(0.0, 4), (800.0, 4)]


def test_successive_halving_keeps_the_best_jobs_of_each_rung() -> None:
    rungs = (Rung(jobs=4, steps=10.0), Rung(jobs=2, steps=20.0), Rung(jobs=1, steps=30.0))
    losses = (0.4, 0.1, 0.3, 0.2)
    jobs = [job(60.0, name=f"j{i}", loss=LossCurve(a=1, b=1, c=c)) for i, c in enumerate(losses)]
    log = run(machines(4), [app("sweep", jobs, tuner=Halving(rungs=rungs))])
    ended = {r.job: (t, r.outcome, r.steps) for t, r in log if isinstance(r, JobEnded)}
    assert ended[0][1:] == ended[2][1:] == ("stopped", 10.0)
    assert ended[3][1:] == ("stopped", 30.0)
    assert ended[1][1:] == ("completed", 60.0)
    # Each of the two promotions restarts its jobs, which costs the checkpoint's 7.5 s.
    assert times(log, AppFinished) == [pytest.approx(60.0 + 2 * 7.5)]


def test_regimes_change_speed_at_their_step() -> None:
    slow_then_fast = replace(job(1.0), regimes=(Regime(steps=100.0), Regime(steps=300.0, batch=64)))
    log = run(machines(1), [app("a", [slow_then_fast])])
    assert times(log, AppFinished) == [pytest.approx(400.0)]
    assert [type(r).__name__ for _, r in log].count("JobProgress") == 1


def test_elastic_job_grows_when_its_lease_is_renewed_with_more_gpus() -> None:
    log = run(machines(4), [app("first", [job(1800.0, 3)]), app("elastic", [job(3000.0, (1, 4))], arrival=1.0)])
    assert [len(r.gpus) for _, r in log if isinstance(r, Grant) and r.app == 1] == [1, 4]


def test_leases_end_on_ticks() -> None:
    log = run(machines(1), [app("a", [job(2000.0)], arrival=7.0)], tick_s=50.0, step_s=70.0)
    assert [r.until for _, r in log if isinstance(r, Grant)] == [100.0]


@pytest.mark.parametrize("policy", ["tiresias", "themis", "fifo"])
def test_a_large_gang_is_not_starved_by_small_leases_that_end_at_different_times(policy: str) -> None:
    small = [app(f"s{i}", [job(20_000.0)], arrival=90.0 * i) for i in range(8)]
    first = policy == "fifo"
    large = app("large", [job(80.0, 8)] * (2 if first else 1), arrival=0.0 if first else 800.0)
    log = run(machines(8), [large, *small], policy=policy)
    a = next(r.app for _, r in log if isinstance(r, Grant) and len(r.gpus) == 8)
    started = max(t for t, r in log if isinstance(r, Grant) and r.app == a)
    assert started <= 800 + 2 * 600


def test_weights_shift_shares() -> None:
    apps = [app("heavy", [job(9000.0, (1, 6))], weight=2.0), app("light", [job(9000.0, (1, 6))])]
    log = run(machines(6), apps, policy="drf")
    assert [len(r.gpus) for t, r in log if isinstance(r, Grant) and t == 0.0] == [4, 2]


def test_a_job_that_can_never_fit_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        ClusterError, match=r"app 'a', job 'j' wants at least 9 GPUs; the cluster has 8\. Lower its gpus"
    ):
        run(machines(8), [app("a", [job(1.0, 9)])])


def test_gpu_types_restrict_where_a_job_runs() -> None:
    both = (*machines(1).machines, replace(machines(1).machines[0], name="f", gpu_type="fast"))
    cluster = Cluster(name="two", machines=both)
    log = run(cluster, [app("a", [job(300.0, model="two_speeds", gpu_types=("fast",))])])
    assert [r.gpus for _, r in log if isinstance(r, Grant)] == [(1,)]
    assert times(log, AppFinished) == [pytest.approx(100.0)]


@pytest.mark.parametrize("policy", ["isolated", "round_robin"])
def test_round_policies_give_equal_time_to_jobs_that_share_one_gpu(policy: str) -> None:
    log = run(machines(1), [app(f"a{i}", [job(3600.0)]) for i in range(2)], policy=policy)
    started = {j: [t for t, r in log if isinstance(r, JobStarted) and r.job == j] for j in (0, 1)}
    assert len(started[0]) >= 3
    assert abs(times(log, AppFinished)[0] - times(log, AppFinished)[1]) <= 400


def test_figure_5_instance_1_each_vgg16_gets_a_machine_of_its_own() -> None:
    log = run(machines(4, 4), [app(f"vgg{i}", [job(400.0, 4, model="chatty")]) for i in range(2)], policy="themis:f=0")
    assert {r.gpus for _, r in log if isinstance(r, Grant)} == {(0, 1, 2, 3), (4, 5, 6, 7)}


def test_figure_5_instance_2_the_sensitive_app_gets_the_whole_machine() -> None:
    apps = [app("inception", [job(400.0, 4)]), app("vgg", [job(400.0, 4, model="chatty")])]
    log = run(machines(4, 2, 2), apps, policy="themis:f=0")
    first = {r.app: r.gpus for t, r in log if isinstance(r, Grant) and t == 0.0}
    assert first == {1: (0, 1, 2, 3), 0: (4, 5, 6, 7)}


def test_a_growing_column_is_moved_only_when_its_room_is_used_up() -> None:
    column, moved, before = Growing(np.zeros((0, 2), dtype=np.int64)), 0, np.zeros((0, 2), dtype=np.int64)
    for n in range(1000):
        view = column.extend(np.full((1, 2), n))
        moved += not np.shares_memory(view, before)
        before = view
    assert np.array_equal(before[:, 1], np.arange(1000))
    assert moved <= 12


def test_what_happens_within_the_gathering_time_is_one_decision() -> None:
    apps = [app("a", [job(100.0)]), app("b", [job(100.2)]), app("gang", [job(50.0, 2)], arrival=1.0)]
    apart = run(machines(2), [*apps, app("late", [job(50.0)], arrival=2.0)], policy="tiresias")
    together = run(machines(2), [*apps, app("late", [job(50.0)], arrival=2.0)], policy="tiresias", gather_s=0.5)
    assert [(t, len(r.gpus)) for t, r in apart if isinstance(r, Grant)][2:3] == [(100.0, 1)]
    assert [(t, len(r.gpus)) for t, r in together if isinstance(r, Grant)][:3] == [(0.5, 1), (0.5, 1), (101.0, 2)]
    assert len(times(together, Allocated)) < len(times(apart, Allocated))


def test_gangs_may_take_longer_to_start_than_is_believed_and_some_time_to_stop() -> None:
    apps = [app("a", [job(700.0)]), app("b", [job(100.0)], arrival=10.0)]
    simulation = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=machines(1),
        book=BOOK,
        policy_name="tiresias",
        policy=make_policy("tiresias"),
        settings=Settings(validate=True, container_s=0.0),
        start_s=(35.0,),
        stop_s=(5.0,),
    )
    log: Log = []
    simulation.run(lambda time, record: log.append((time, record)))
    # a trains 35-600 and has let go at 605; b trains 640-740, whose end takes no time; a again, checkpoint 7.5 s.
    assert times(log, Grant) == [0.0, 605.0, 740.0]
    assert times(log, AppFinished) == [740.0, pytest.approx(740 + 42.5 + 135)]


def test_starts_and_ends_have_each_their_own_cost_in_turn_and_begin_anew() -> None:
    apps = [app("bag", [job(100.0), job(100.0), job(100.0)]), app("late", [job(50.0)], arrival=300.0)]
    simulation = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=machines(3),
        book=BOOK,
        policy_name="fifo",
        policy=make_policy("fifo"),
        settings=Settings(validate=True),
        start_s=(1.0, 2.0),
        finish_s=(0.25, 0.5, 4.0),
    )
    log: Log = []
    simulation.run(lambda time, record: log.append((time, record)))
    assert times(log, JobStarted) == [1.0, 1.0, 2.0, 302.0]
    assert times(log, JobEnded) == [101.25, 102.5, 105.0, 352.25]


def test_a_gang_that_is_told_to_stop_before_it_has_said_that_it_is_done_is_not_run_again() -> None:
    """Its lease ends at 60 for the other one; it trains till 58.5, would say so at 63.5 and has let go at 61."""
    apps = [app("a", [job(58.5)]), app("b", [job(100.0)], arrival=1.0)]
    simulation = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=machines(1),
        book=BOOK,
        policy_name="tiresias",
        policy=make_policy("tiresias"),
        settings=Settings(validate=True, container_s=0.0, lease_s=60.0),
        finish_s=(5.0,),
        stop_s=(1.0,),
    )
    log: Log = []
    simulation.run(lambda time, record: log.append((time, record)))
    assert next((t, r.cause) for t, r in log if isinstance(r, Revoke)) == (60.0, "expired")
    assert times(log, JobEnded)[0] == 61.0
    assert [r.job for _, r in log if isinstance(r, Grant)].count(0) == 1


def test_jobs_that_are_present_are_found_however_many_ended_before() -> None:
    state, rng = state_at(machines(4), []), np.random.default_rng(0)
    for step in range(60):
        add_app(state, app(f"a{step}", [job(100.0, name=f"j{k}") for k in range(3)]), 1.0)
        for j in rng.integers(state.jobs.size, size=8).tolist():
            if after := [
                change for (status, change) in TRANSITIONS if status == state.jobs.status[j] and change != GRANT
            ]:
                move(state.jobs, j, after[int(rng.integers(len(after)))], state.now)
        for j in rng.integers(state.jobs.size, size=4).tolist():
            if state.jobs.status[j] != Status.ENDED:
                move(state.jobs, j, END, state.now)
        state.apps.in_reference[: state.apps.size] = rng.random(state.apps.size) < 0.5
        if step % 20 == 13:
            state.drop_caches()
        waits = np.flatnonzero(state.jobs.status[: state.jobs.size] == Status.WAITING).tolist()
        assert state.present().tolist() == sorted(state.jobs.waiting) == waits
        assert state.in_reference().tolist() == np.flatnonzero(state.apps.in_reference[: state.apps.size]).tolist()
    assert len(state.jobs._left._rows) < state.jobs.size / 2
