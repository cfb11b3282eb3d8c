"""Metrics are what the hand says, and what an independent count of the log says."""

from __future__ import annotations

import csv
import io
import json
import math
import pickle
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from report_cases import HEADER, MINI, Log, app, auction, finished, fold, grant, revoke, write

from themis.errors import InputError
from themis.model import events as e
from themis.model.cluster import Machine
from themis.model.log import LogWriter, Record
from themis.model.settings import Settings
from themis.model.workload import Halving, Hyperband, Rung, Tuner
from themis.policies.api import make_policy
from themis.report.metrics import (
    DEFINITIONS,
    AppRow,
    Fold,
    RunMetrics,
    apps_to_csv,
    metrics_of,
    to_csv,
    to_json,
)
from themis.report.numbers import RHO_FORMS, RHO_STATS, SCALARS
from themis.report.rho import rho_stats
from themis.report.users import UserRow, by_user
from themis.sim.runner import Outage, Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster


@pytest.fixture(scope="module")
def mini() -> RunMetrics:
    return fold(MINI)


def test_the_mini_log_has_the_metrics_computed_by_hand(mini: RunMetrics) -> None:
    assert mini.makespan == 300.0
    assert (mini.jct_mean, mini.jct_median, mini.jct_p99) == (200.0, 200.0, 200.0)
    assert (mini.wait_mean, mini.wait_median, mini.wait_max) == (5.0, 5.0, 10.0)
    assert mini.wait_p99 == pytest.approx(9.9)
    # 4 x 200 + 2 x 80 + 2 x 20 + 2 x 50: the two jobs that share two GPUs count once.
    assert mini.gpu_seconds == 1100.0
    # In service: 6 GPUs for 190 s, 4 for 50 s while one machine was down, 6 for 60 s.
    assert mini.utilisation == pytest.approx(1100 / 1700)
    # Grant to start: 4 x 35, 2 x 35, 2 x 20 (never started), 2 x 30, 2 x 10.
    assert mini.restart_seconds == 330.0
    # 45 s of training, checkpoints every 30 s, 2 GPUs.
    assert mini.crash_seconds == pytest.approx(30.0)
    assert mini.useful == pytest.approx(1 - 360 / 1200)
    assert mini.placement == pytest.approx((800 + 80 + 40 + 100 + 100) / 1200)
    assert mini.lost_seconds == pytest.approx(360.0)
    assert (mini.restarts, mini.failures) == (2, 1)


def test_contention_is_demand_over_capacity(mini: RunMetrics) -> None:
    # A's job could use one GPU for 200 s, B's two jobs two for 200 s; 1700 GPU-seconds were in service.
    assert mini.gpus_wanted.area == pytest.approx(600.0)
    assert mini.contention == pytest.approx(600 / 1700)
    # All three jobs were there while a machine was down, from 200 to 210 s.
    assert mini.contention_max == pytest.approx(3 / 4)
    assert (mini.apps_mean, mini.apps_max) == (pytest.approx(400 / 300), 2)


def sweep(tuner: Tuner) -> Log:
    """Four jobs of 2 GPUs, all of them running from the start."""
    four = app("S", 0.0, 4)
    jobs = tuple(replace(job, gpus_max=2) for job in four.app.jobs)
    return [
        (0.0, HEADER),
        (0.0, e.MachineJoined(machine=Machine(name="m", gpus=8))),
        (0.0, replace(four, app=replace(four.app, jobs=jobs, tuner=tuner))),
        *((0.0, grant(0, j, 1, (2 * j, 2 * j + 1))) for j in range(4)),
    ]


def reached(time: float, job: int, attempt: int = 1) -> tuple[float, Record]:
    return time, e.JobReached(job=job, attempt=attempt, steps=1.0, loss=0.1)


def ended(time: float, job: int, outcome: str) -> tuple[float, Record]:
    return time, e.JobEnded(app=0, job=job, outcome=outcome, steps=1.0)


def wanted_at(log: Log, *times: int) -> list[float]:
    wanted = fold(log).gpus_wanted
    assert wanted.width == 1.0
    values: list[float] = wanted.value[list(times)].tolist()
    return values


def test_a_job_that_waits_for_its_rung_wants_nothing() -> None:
    """The rung is over when the last one is there, and the tuner ends two of them."""
    log = [
        *sweep(Halving(rungs=(Rung(jobs=4, steps=1.0), Rung(jobs=2, steps=1.0)))),
        reached(10.0, 0),
        reached(20.0, 1),
        reached(25.0, 2, attempt=7),
        reached(30.0, 2),
        reached(40.0, 3),
        ended(40.0, 1, "stopped"),
        ended(40.0, 3, "stopped"),
        reached(50.0, 2),
        ended(50.0, 2, "completed"),
        reached(60.0, 0),
        ended(60.0, 0, "completed"),
        (60.0, finished(0, 60.0, 1.0, 1.0, 0.0)),
    ]
    assert wanted_at(log, 5, 15, 26, 35, 45, 55) == [8.0, 6.0, 4.0, 2.0, 4.0, 2.0]


def test_a_job_that_goes_on_early_wants_its_gpus_again() -> None:
    rungs = Halving(rungs=(Rung(jobs=4, steps=1.0), Rung(jobs=2, steps=1.0)))
    log = [
        *sweep(rungs),
        reached(10.0, 0),
        reached(20.0, 1),
        (20.0, grant(0, 0, 2, (0, 1))),
        reached(22.0, 0, attempt=2),
    ]
    assert wanted_at(log, 15, 20) == [6.0, 6.0]


def test_jobs_wait_for_their_own_bracket_only() -> None:
    two = Halving(rungs=(Rung(jobs=2, steps=1.0), Rung(jobs=1, steps=1.0)))
    log = [
        *sweep(Hyperband(brackets=(two, two))),
        reached(10.0, 0),
        reached(20.0, 2),
        reached(30.0, 1),
        ended(30.0, 0, "stopped"),
        reached(40.0, 1),
    ]
    # After 30 s the first bracket goes on with job 1, while job 2 still waits for job 3.
    assert wanted_at(log, 5, 15, 25, 35) == [8.0, 6.0, 4.0, 4.0]


def test_placement_is_told_by_score_and_by_locality(mini: RunMetrics) -> None:
    assert mini.placements == ((0.5, 160.0), (1.0, 1040.0))
    assert mini.localities == (1200.0, 0.0, 0.0, 0.0)
    assert [a.placement for a in mini.apps] == [1.0, pytest.approx(0.8)]


def test_each_job_has_its_row(mini: RunMetrics) -> None:
    jobs = mini.jobs
    assert jobs.name == ("A-0", "B-0", "B-1")
    assert (jobs.app.tolist(), jobs.gpus_max.tolist(), jobs.restarts.tolist()) == ([0, 1, 1], [1, 1, 1], [0, 2, 0])
    assert jobs.gpu_seconds.tolist() == [800.0, 300.0, 100.0]
    assert jobs.lost_seconds.tolist() == [140.0, pytest.approx(200.0), 20.0]
    assert (jobs.first_grant.tolist(), jobs.outcome[0], jobs.finish[0]) == ([10.0, 120.0, 260.0], "completed", 210.0)


def test_unlike_inputs_have_unlike_fingerprints(mini: RunMetrics) -> None:
    later: Log = [(t, app("B", t, 3, "bob") if isinstance(r, e.AppSubmitted) and t > 50 else r) for t, r in MINI]
    assert fold(later[:8]).inputs.apps != fold(MINI[:8]).inputs.apps
    assert fold(later[:8]).inputs.machines == mini.inputs.machines
    assert mini.inputs.outages == ((200.0, 1),)


def test_rho_is_told_in_both_forms(mini: RunMetrics) -> None:
    paper = mini.rho_paper
    assert (paper.max, paper.mean, paper.median, paper.above_1) == (2.0, 1.25, 1.25, 0.5)
    assert paper.p99 == pytest.approx(1.985)
    assert paper.jain == pytest.approx(2.5**2 / (2 * 4.25))
    assert (mini.rho_exact.max, mini.rho_exact.above_1) == (2.5, 0.5)


def test_auctions_are_counted(mini: RunMetrics) -> None:
    assert (mini.decisions, mini.auctions) == (4, 3)
    assert mini.bidders == 1.0
    assert mini.offered == pytest.approx(14 / 3)
    assert mini.payment == pytest.approx(0.125)
    assert mini.leftover == pytest.approx(4 / 3)
    assert mini.gap == 0.25


def test_each_app_has_its_row(mini: RunMetrics) -> None:
    a, b = mini.apps
    assert (a.name, a.user, a.jobs, a.arrival, a.finish, a.wait) == ("A", "ann", 1, 10.0, 210.0, 0.0)
    assert (a.gpu_seconds, a.lost_seconds, a.restarts, a.outcome) == (800.0, 140.0, 0, "completed")
    assert (b.user, b.gpu_seconds, b.lost_seconds, b.restarts) == ("bob", 400.0, 220.0, 2)
    assert (b.t_id_paper, b.contention) == (100.0, 1.5)


def test_series_and_intervals_hold_the_same_areas(mini: RunMetrics) -> None:
    assert mini.gpus_in_use.area == pytest.approx(1100.0)
    assert mini.gpus_in_service.area == pytest.approx(1700.0)
    assert mini.gpus_starting.area == pytest.approx(330.0)
    assert mini.active_apps.area == pytest.approx(400.0)
    assert mini.gpus_in_use.start == 10.0
    g = mini.gantt
    assert (g.end - g.start).sum() == pytest.approx(1200.0)
    assert (g.end - g.start)[g.app == 1].sum() == pytest.approx(400.0)


def test_without_a_header_there_is_no_result() -> None:
    with pytest.raises(InputError, match="no Header"):
        fold(MINI[1:])


def test_a_log_that_ends_early_counts_what_is_held_so_far() -> None:
    made = Fold()
    for time, record in MINI:
        if time <= 155.0:
            made.add(time, record)
    for run in (made.result(), made.result()):  # asking changes nothing
        assert run.gpu_seconds == 4 * 145 + 2 * 35
        assert run.makespan == 145.0
        assert [a.outcome for a in run.apps] == ["active", "active"]
        assert [a.gpu_seconds for a in run.apps] == [580.0, 70.0]
        assert math.isnan(run.jct_mean)
        assert math.isnan(run.rho_paper.max)
    for time, record in MINI:
        if time > 155.0:
            made.add(time, record)
    assert to_json([made.result()]) == to_json([fold(MINI)])


def test_a_run_without_apps_has_a_result() -> None:
    run = fold(MINI[:3])
    assert (run.makespan, run.gpu_seconds, run.apps) == (0.0, 0.0, ())
    assert "null" in to_json([run])


def test_what_happens_after_the_last_finish_does_not_dilute_the_utilisation() -> None:
    later: Log = [*MINI, (9000.0, e.MachineFailed(machine=0))]
    assert fold(later).utilisation == fold(MINI).utilisation
    assert fold(later).makespan == 300.0


def test_a_cancelled_app_has_a_row_but_no_part_in_the_statistics() -> None:
    end = replace(finished(1, 200.0, 2.0, 2.5, 400.0), outcome="cancelled")
    run = fold([*MINI[:-1], (310.0, end)])
    assert [a.outcome for a in run.apps] == ["completed", "cancelled"]
    assert run.rho_paper.max == 0.5


@pytest.mark.parametrize("shift", [0.5, 1e6])
def test_a_later_start_changes_no_metric(shift: float) -> None:
    run, same = fold([(t + shift if t else t, r) for t, r in MINI]), fold(MINI)
    for name in SCALARS:
        assert getattr(run, name) == pytest.approx(getattr(same, name)), name
    assert run.gpus_in_use.value == pytest.approx(same.gpus_in_use.value)


def test_numbers_of_gpus_do_not_matter() -> None:
    swap = {0: 3, 1: 2, 2: 1, 3: 0, 4: 5, 5: 4}
    other: Log = [
        (t, replace(r, gpus=tuple(swap[g] for g in r.gpus)) if isinstance(r, e.Grant) else r) for t, r in MINI
    ]
    assert to_json([fold(other)]) == to_json([fold(MINI)])


@pytest.mark.parametrize(("rho", "jain"), [([1, 1, 1], 1.0), ([3, 0, 0], 1 / 3), ([1, 3], 0.8), ([0, 0], 1.0)])
def test_jains_index(rho: list[float], jain: float) -> None:
    assert rho_stats(rho).jain == pytest.approx(jain)


def test_rounding_is_no_unfairness() -> None:
    assert rho_stats([1.0 + 1e-12, 1.0]).above_1 == 0.0
    assert rho_stats([1.001, 1.0]).above_1 == 0.5


def three_jobs(isolated_s: float) -> Log:
    """One GPU; jobs come at 0, 50 and 100 s and end at 150, 250 and 350 s."""
    log: Log = [(0.0, HEADER), (0.0, e.MachineJoined(machine=Machine(name="m0", gpus=1)))]
    moments: Log = [(50.0 * i, app(f"a{i}", 50.0 * i, 1)) for i in range(3)]
    moments += [(150.0 + 100 * i, done(i, isolated_s)) for i in range(3)]
    moments += [(150.0 + 100 * i, finished(i, 150.0 + 50 * i, 1.0, 1.0, 0.0)) for i in range(3)]
    return log + sorted(moments, key=lambda moment: moment[0])


def done(job: int, isolated_s: float) -> e.JobEnded:
    return e.JobEnded(app=job, job=job, outcome="completed", steps=1.0, isolated_s=isolated_s)


def test_shockwave_8_rho_static_counts_all_jobs_of_the_workload_against_the_gpus() -> None:
    run = fold(three_jobs(100.0))
    assert run.jobs.rho_static == pytest.approx(np.array([150, 200, 250]) / (100 * 3))
    assert run.jobs.isolated_s.tolist() == [100.0] * 3


def test_shockwave_g_rho_contention_counts_the_jobs_that_a_job_met() -> None:
    # Means of the jobs in the system over each life: 300 / 150, 450 / 200 and 450 / 250.
    run = fold(three_jobs(100.0))
    assert run.jobs.rho_contention == pytest.approx(np.array([150 / 200, 200 / 225, 250 / 180]))
    assert run.rho_contention.max == pytest.approx(250 / 180)


def test_contention_below_one_job_a_gpu_counts_as_one() -> None:
    log = three_jobs(100.0)
    log[1] = (0.0, e.MachineJoined(machine=Machine(name="m0", gpus=8)))
    run = fold(log)
    assert run.jobs.rho_static.tolist() == run.jobs.rho_contention.tolist() == [1.5, 2.0, 2.5]


def test_jobs_that_did_not_complete_and_logs_without_isolated_times_have_no_such_rho() -> None:
    old = fold(three_jobs(0.0))
    assert np.isnan(old.jobs.rho_static).all()
    assert math.isnan(old.rho_static.max)
    stopped = [(t, replace(r, outcome="stopped") if isinstance(r, e.JobEnded) else r) for t, r in three_jobs(100.0)]
    assert np.isnan(fold(stopped).jobs.rho_contention).all()


def test_unfair_fractions_are_told_at_three_thresholds() -> None:
    stats = rho_stats([0.9, 1.0, 1.04, 1.05, 1.07, 1.1, 1.2, 1.3])
    assert (stats.above_1, stats.above_1_05, stats.above_1_1) == (6 / 8, 4 / 8, 2 / 8)


def test_every_number_is_defined_and_nothing_else() -> None:
    rho = {*RHO_FORMS, *(f"rho_{name}" for name in RHO_STATS), "isolated_s"}
    of_app = {key.removeprefix("app_") for key in DEFINITIONS if key.startswith("app_")}
    of_user = {key.removeprefix("user_") for key in DEFINITIONS if key.startswith("user_")}
    assert {key for key in DEFINITIONS if not key.startswith(("app_", "user_"))} == rho | set(SCALARS)
    assert of_user | {"user"} == {f.name for f in fields(UserRow)}
    assert of_app | {
        "app",
        "name",
        "user",
        "jobs",
        "rho_reference",
        "rho_attainable",
        "rho_paper",
        "rho_exact",
        "restarts",
    } == {f.name for f in fields(AppRow)}


def test_json_and_csv_say_the_same(mini: RunMetrics) -> None:
    run = json.loads(to_json([mini]))["runs"][0]
    assert run["rho_paper"]["max"] == 2.0
    assert run["apps"][1]["name"] == "B"
    assert [(user["user"], user["rho_paper_worst"]) for user in run["users"]] == [("bob", 2.0), ("ann", 0.5)]
    rows = list(csv.DictReader(io.StringIO(to_csv([mini, mini]))))
    assert len(rows) == 2
    assert float(rows[0]["rho_paper_max"]) == run["rho_paper"]["max"]
    assert float(rows[0]["utilisation"]) == run["utilisation"]
    apps = list(csv.DictReader(io.StringIO(apps_to_csv([mini]))))
    assert [a["name"] for a in apps] == ["A", "B"]
    assert float(apps[1]["jct"]) == 200.0


def test_a_result_travels_between_processes(mini: RunMetrics) -> None:
    back = pickle.loads(pickle.dumps(mini))
    assert to_json([back]) == to_json([mini])
    assert (back.gantt.gpu == mini.gantt.gpu).all()


def test_a_users_rho_is_the_worst_and_the_median_of_their_apps(mini: RunMetrics) -> None:
    bob, ann = by_user(mini)
    assert (bob.user, bob.apps, bob.rho_paper_worst, bob.rho_exact_median, bob.gpu_seconds) == ("bob", 1, 2.0, 2.5, 400)
    assert (ann.share, bob.share) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    other = replace(mini.apps[0], name="C", rho_paper=1.5, rho_exact=1.0, jct=400.0)
    ann = by_user(replace(mini, apps=(*mini.apps, other)))[1]
    assert (ann.apps, ann.rho_paper_worst, ann.rho_paper_median, ann.jct_median) == (2, 1.5, 1.0, 300.0)
    gone = replace(mini.apps[0], user="eve", outcome="cancelled", rho_paper=9.0)
    last = by_user(replace(mini, apps=(*mini.apps, gone)))[-1]
    assert (last.user, last.completed) == ("eve", 0)
    assert math.isnan(last.rho_paper_worst)


# ---- simulated runs -------------------------------------------------------------------------------------------------


def simulate(policy: str, tmp_path: Path) -> tuple[RunMetrics, list[tuple[float, Record]], Path]:
    workload = load_workload("demo", seed=1)
    workload = replace(workload, apps=workload.apps[:6])
    path, made, records = tmp_path / "log.jsonl.gz", Fold(), []
    with LogWriter(path) as log:

        def sink(time: float, record: Record) -> None:
            made.add(time, record)
            log(time, record)
            records.append((time, record))

        Simulation(
            workload=workload,
            cluster=load_cluster("demo-32"),
            book=DEFAULT_BOOK,
            policy_name=policy,
            policy=make_policy(policy),
            settings=Settings(),
            outages=(Outage(time=5000.0, machine=0, lasts=3000.0), Outage(time=20000.0, machine=3, lasts=600.0)),
        ).run(sink)
    return made.result(), records, path


@pytest.mark.parametrize("policy", ["fifo", "themis"])
def test_a_simulated_run_comes_to_what_an_independent_count_says(policy: str, tmp_path: Path) -> None:
    run, records, path = simulate(policy, tmp_path)
    ends = {r.app: r for _, r in records if isinstance(r, e.AppFinished)}
    held: dict[int, float] = dict.fromkeys(ends, 0.0)
    since: dict[int, tuple[float, e.Grant]] = {}
    for time, r in records:
        if isinstance(r, e.Grant):
            since[r.job] = time, r
        elif isinstance(r, e.Revoke):
            start, lease = since.pop(r.job)
            held[r.app] += (time - start) * len(lease.gpus)
    assert not since
    for row in run.apps:
        assert row.gpu_seconds == pytest.approx(ends[row.app].gpu_seconds, abs=1e-6, rel=1e-9)
        assert row.gpu_seconds == pytest.approx(held[row.app])
        assert row.jct == pytest.approx(row.finish - row.arrival)
        assert row.rho_paper == ends[row.app].rho_paper
    total = sum(held.values())
    first, last = run.apps[0].arrival, max(row.finish for row in run.apps)
    machines = load_cluster("demo-32").machine_gpus
    in_service = 32 * (last - first) - machines[0] * 3000.0 - machines[3] * 600.0
    assert run.makespan == pytest.approx(last - first)
    assert run.gpu_seconds == pytest.approx(total)
    assert run.utilisation == pytest.approx(total / in_service)
    assert run.gpus_in_use.area == pytest.approx(total)
    assert run.active_apps.area == pytest.approx(sum(row.jct for row in run.apps))
    assert (run.gantt.end - run.gantt.start).sum() == pytest.approx(total)
    assert sum(run.localities) == pytest.approx(sum(seconds for _, seconds in run.placements)) == pytest.approx(total)
    assert run.jobs.gpu_seconds.sum() == pytest.approx(total)
    assert run.jobs.lost_seconds.sum() == pytest.approx(run.lost_seconds)
    assert set(run.jobs.outcome) <= {"completed", "stopped"}
    # Nobody holds more than can be used, and with nobody left nobody wants anything.
    assert (run.gpus_wanted.value >= run.gpus_in_use.value - 1e-6).all()
    assert run.contention == pytest.approx(run.gpus_wanted.area / in_service)
    assert run.restart_seconds + run.crash_seconds == pytest.approx(sum(row.lost_seconds for row in run.apps))
    assert run.failures == sum(isinstance(r, e.Revoke) and r.cause == "failed" for _, r in records) > 0
    assert run.crash_seconds > 0
    assert to_json([metrics_of(path)]) == to_json([run])


def test_a_crash_loses_what_the_simulated_gang_lost() -> None:
    """The gang's own loss: steps at the failure, had it gone on, less the steps of its checkpoint."""
    log: Log = [
        (0.0, HEADER),
        (0.0, e.MachineJoined(machine=Machine(name="m", gpus=2))),
        (0.0, app("A", 0.0, 1)),
        (0.0, grant(0, 0, 1, (0, 1))),
        (35.0, e.JobStarted(job=0, attempt=1)),
        (135.0, revoke(0, 0, 1, "failed")),
    ]
    assert fold(log).crash_seconds == pytest.approx(2 * 10.0)


def test_an_auction_nobody_won_pays_nothing() -> None:
    run = fold([(0.0, HEADER), (0.0, auction(1, [0], [1.0], [True], [0], [1.0], [0]))])
    assert math.isnan(run.payment)
    assert run.bidders == 1.0
    assert np.isclose(run.gap, 0.25)


def test_a_file_gives_the_same_metrics_as_the_records(tmp_path: Path) -> None:
    assert to_json([metrics_of(write(tmp_path / "x.jsonl", MINI))]) == to_json([fold(MINI)])
