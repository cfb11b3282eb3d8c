"""Sweeps in the core: Hyperband's brackets, curve stopping, and what both leave in the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from themis.core import take_snapshot as snapshots
from themis.core.app_lifecycle import add_app
from themis.core.state import State
from themis.model.cluster import Cluster
from themis.model.events import AppFinished, CurveStopped, Grant, JobEnded, LossReported, Revoke
from themis.model.log import LogWriter, encode, is_record
from themis.model.workload import App, CurveStopping, Halving, Hyperband, LossCurve, Regime, Rung, Workload
from themis.policies.api import make_policy
from themis.policies.themis import Themis
from themis.sim.replay import replay_records
from themis.sim.runner import Outage, Record, Simulation
from themis.testing.builders import BOOK, NO_OVERHEAD, app, job, leased_twice, machines, random_simulation

Log = list[tuple[float, Record]]
EXACT = CurveStopping(check_steps=50.0, noise=0.0)


def simulation(cluster: Cluster, apps: list[App], policy: str = "fifo", outages: tuple[Outage, ...] = ()) -> Simulation:
    return Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=cluster,
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=NO_OVERHEAD,
        outages=outages,
    )


def run(cluster: Cluster, apps: list[App], policy: str = "fifo", outages: tuple[Outage, ...] = ()) -> Log:
    return logged(simulation(cluster, apps, policy, outages))


def logged(sim: Simulation) -> Log:
    log: Log = []
    sim.run(lambda time, record: log.append((time, record)))
    assert not leased_twice(log)
    return log


def ends(log: Log) -> dict[int, tuple[float, str, float]]:
    return {r.job: (t, r.outcome, r.steps) for t, r in log if isinstance(r, JobEnded)}


def halving(*rungs: tuple[int, float]) -> Halving:
    return Halving(rungs=tuple(Rung(jobs=n, steps=s) for n, s in rungs))


# ---- Hyperband ------------------------------------------------------------------------------------------------------

LOSSES = (0.4, 0.1, 0.3, 0.2, 0.9, 0.8)
TWO = Hyperband(brackets=(halving((4, 10.0), (2, 20.0), (1, 30.0)), halving((2, 25.0), (1, 40.0))))


def hyperband(tuner: Hyperband = TWO, losses: tuple[float, ...] = LOSSES) -> App:
    total = [b.steps for b in tuner.brackets for _ in range(b.rungs[0].jobs)]
    jobs = [job(s, name=f"j{i}", loss=LossCurve(a=1, b=1, c=c)) for i, (s, c) in enumerate(zip(total, losses))]
    return app("sweep", jobs, tuner=tuner)


def test_survivors_are_chosen_within_their_bracket() -> None:
    ended = ends(run(machines(6), [hyperband()]))
    # Jobs 4 and 5 are the worst of all, but one of them survives: they compete with each other alone.
    assert {j: (outcome, steps) for j, (_, outcome, steps) in ended.items()} == {
        0: ("stopped", 10.0),
        2: ("stopped", 10.0),
        3: ("stopped", 30.0),
        1: ("completed", 60.0),
        4: ("stopped", 25.0),
        5: ("completed", 65.0),
    }


def test_brackets_run_beside_each_other_and_the_app_ends_with_the_last() -> None:
    log = run(machines(6), [hyperband()])
    # Each promotion restarts its job, which costs the checkpoint's 7.5 s: two in the first bracket, one in the second.
    ended = ends(log)
    assert (ended[1][0], ended[5][0]) == (60 + 2 * 7.5, 65 + 7.5)
    assert [t for t, r in log if isinstance(r, AppFinished)] == [75.0]


def test_a_bracket_goes_on_while_another_waits_for_gpus() -> None:
    ended = ends(run(machines(2), [hyperband()]))
    assert [outcome for _, outcome, _ in ended.values()].count("completed") == 2
    assert ended[1][1] == ended[5][1] == "completed"


@pytest.mark.parametrize("policy", ["fifo", "themis", "tiresias", "isolated"])
def test_one_bracket_is_successive_halving(policy: str) -> None:
    others = [app("o", [job(40.0, (1, 2))], 5.0), app("p", [job(90.0), job(30.0)], 12.0)]
    logs = []
    for tuner in (TWO.brackets[0], Hyperband(brackets=TWO.brackets[:1])):
        jobs = [job(60.0, (1, 2), name=f"j{i}", loss=LossCurve(a=1, b=1, c=c)) for i, c in enumerate(LOSSES[:4])]
        log = run(machines(2, 1), [app("sweep", jobs, tuner=tuner), *others], policy)
        logs.append([encode(t, r) for t, r in log if is_record(r) and type(r).__name__ != "AppSubmitted"])
    assert logs[0] == logs[1]


def test_a_job_of_more_steps_than_its_rungs_ends_with_the_last_rung() -> None:
    jobs = [job(1000.0, name=f"j{i}", loss=LossCurve(a=1, b=1, c=c)) for i, c in enumerate((0.2, 0.1))]
    ended = ends(run(machines(2), [app("a", jobs, tuner=halving((2, 10.0), (1, 10.0)))]))
    assert ended[1][1:] == ("completed", 20.0)
    assert ended[0][1:] == ("stopped", 10.0)


# ---- curve stopping -------------------------------------------------------------------------------------------------


def curves(floors: tuple[float, ...], tuner: CurveStopping = EXACT, name: str = "sweep", **more: object) -> App:
    jobs = [
        job(1000.0, name=f"j{i}", loss=LossCurve(a=2.0, b=0.02, c=c), **more)  # type: ignore[arg-type]
        for i, c in enumerate(floors)
    ]
    return app(name, jobs, tuner=tuner)


def test_a_stopped_jobs_gpus_go_at_once_to_its_apps_next_job_and_their_lease_goes_on() -> None:
    log = run(machines(2), [curves((0.3, 0.9, 0.5)), app("late", [job(10.0)], 1.0)])
    # Job 1 is given up at its sixth report (300 s); job 2 takes its GPU and, at its own seventh, leaves it to `late`.
    assert ends(log) == {
        1: (300.0, "stopped", 300.0),
        2: (650.0, "stopped", 350.0),
        3: (660.0, "completed", 10.0),
        0: (1000.0, "completed", 1000.0),
    }
    assert [(t, r.job, r.until) for t, r in log if isinstance(r, Grant) and t in (300.0, 650.0)] == [
        (300.0, 2, 360.0),
        (650.0, 3, 660.0),
    ]
    assert [(t, r.job) for t, r in log if isinstance(r, Revoke) and r.cause == "stopped"] == [(300.0, 1), (650.0, 2)]


def test_the_log_says_why_a_job_was_stopped() -> None:
    log = run(machines(2), [curves((0.3, 0.9))])
    (why,) = [r for _, r in log if isinstance(r, CurveStopped)]
    truth = [2 / 21 + c for c in (0.3, 0.9)]
    assert (why.job, why.steps) == (1, 300.0)
    assert (why.forecast, why.standard) == (pytest.approx(truth[1], abs=0.1), pytest.approx(truth[0], abs=0.1))
    assert why.chance < 0.05
    assert len([r for _, r in log if isinstance(r, LossReported) and r.job == 1]) == 6


def test_the_finished_apps_budget_is_the_work_that_was_realised() -> None:
    log = run(machines(4), [curves((0.3, 0.9, 0.5, 0.6))])
    (end,) = [r for _, r in log if isinstance(r, AppFinished)]
    # 1000 s and up to 400 s of each of three over 4 GPUs is less than the longest job's 1000 s.
    assert (end.t_id_paper, end.t_id_exact, end.rho_paper) == (1000.0, 1000.0, 1.0)
    log = run(machines(1), [curves((0.3, 0.9, 0.5, 0.6))])
    (end,) = [r for _, r in log if isinstance(r, AppFinished)]
    assert (end.t_id_paper, end.t_id_exact) == (2000.0, 2000.0)
    assert end.jct == end.gpu_seconds >= 2000.0


def test_the_budget_is_what_was_done_and_what_is_forecast_until_the_best_job_ends() -> None:
    budgets: list[tuple[float, float]] = []

    class Watch(Themis):
        def __call__(self, snapshot, bench):  # type: ignore[no-untyped-def]
            budgets.append((snapshot.now, float(snapshot.app_budget[0])))
            return Themis.__call__(self, snapshot, bench)

    spec = simulation(machines(1), [curves((0.3, 0.9, 0.5, 0.6))])
    replace(spec, policy=Watch()).run()
    assert budgets[0] == (0.0, 4000.0)
    # One GPU: job 0 runs to its end, then job 1 until its sixth report and job 2 until its seventh.
    assert dict(budgets)[1800.0] == 2650.0


def test_a_stopped_job_of_several_regimes_counts_with_the_work_that_it_did() -> None:
    slow_then_fast = (Regime(steps=100.0), Regime(steps=900.0, batch=64))
    spec = curves((0.3, 0.9))
    spec = replace(spec, jobs=tuple(replace(j, regimes=slow_then_fast) for j in spec.jobs))
    log = run(machines(1), [spec])
    (end,) = [r for _, r in log if isinstance(r, AppFinished)]
    assert end.t_id_exact == 1300.0


def test_a_lone_job_and_the_best_k_never_stop() -> None:
    log = run(machines(3), [curves((0.9,)), curves((0.3, 0.9), replace(EXACT, keep=2), "pair")])
    assert not [r for _, r in log if isinstance(r, CurveStopped)]
    assert {outcome for _, outcome, _ in ends(log).values()} == {"completed"}


def test_reports_repeated_after_a_crash_count_once() -> None:
    """The machine fails at 180 s and takes all work with it: what was reported by then is known already."""
    log = run(machines(2), [curves((0.3, 0.9))], outages=(Outage(time=180.0, machine=0, lasts=10.0),))
    reports = [r.steps for _, r in log if isinstance(r, LossReported) and r.job == 1]
    assert reports == [50.0, 100.0, 150.0, 50.0, 100.0, 150.0, 200.0, 250.0, 300.0]
    assert ends(log)[1][1:] == ("stopped", 300.0)


def test_a_waiting_job_can_be_given_up_without_running_again() -> None:
    """Three reports and more are in when its lease ends; the others' reports then settle it."""
    noisy = CurveStopping(check_steps=100.0, noise=0.02)
    jobs = [
        job(4000.0, name=f"j{i}", loss=LossCurve(a=2.0, b=0.005, c=c)) for i, c in enumerate((0.31, 0.3, 0.32, 0.9))
    ]
    for seed in range(4):
        spec = app("s", jobs, tuner=noisy)
        sim = simulation(machines(2), [spec, app("o", [job(3000.0)] * 2, 5.0)], "tiresias")
        log = logged(replace(sim, settings=replace(sim.settings, seed=seed)))
        held = {r.job for _, r in log if isinstance(r, Revoke) and r.cause == "stopped"}
        stopped = {r.job for _, r in log if isinstance(r, CurveStopped)}
        assert held <= stopped
        if held < stopped:
            return
    pytest.fail("no job was given up while it waited; make the world tighter")


@pytest.mark.parametrize("policy", ["themis", "tiresias", "gandiva", "isolated"])
@pytest.mark.parametrize("seed", [0, 1])
def test_logs_with_both_tuners_replay_and_equal_seeds_give_equal_bytes(tmp_path: Path, policy: str, seed: int) -> None:
    logs: list[Log] = []
    for i in range(2):
        log: Log = []
        sim = random_simulation(make_policy(policy), seed, name=policy)
        with LogWriter(tmp_path / f"{i}.jsonl.gz") as writer:

            def sink(time: float, record: Record, log: Log = log, writer: LogWriter = writer) -> None:
                log.append((time, record))
                writer(time, record)

            core = sim.run(sink)
        assert not core.state.curves.forecasts, "what is known of finished apps is forgotten"
        logs.append(log)
    assert [r for _, r in logs[0] if isinstance(r, CurveStopped)]
    assert (tmp_path / "0.jsonl.gz").read_bytes() == (tmp_path / "1.jsonl.gz").read_bytes()
    records = [(t, r) for t, r in logs[0] if is_record(r)]
    assert replay_records(records, book=BOOK).difference is None


def test_what_a_sweep_still_needs_is_in_the_snapshot_per_bracket() -> None:
    state = State(BOOK, NO_OVERHEAD)
    for machine in machines(8).machines:
        state.add_machine(machine)
    add_app(state, hyperband(), 1.0)
    s = snapshots.take(state)
    assert s.job_bracket.tolist() == [0, 0, 0, 0, 1, 1]
    assert s.phase_bracket.tolist() == [[0, 0, 0, 1, 1]]
    np.testing.assert_allclose(s.phase_work, [[40, 40, 30, 50, 40]])
    np.testing.assert_allclose(s.future_work, [[0, 40, 30, 0, 40]])
    assert (s.app_budget[0], s.app_demand[0]) == (200.0, 6)
