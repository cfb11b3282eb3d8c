"""What apps were entitled to and received: by hand, by an independent count of the log, and that causes add up."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import HEADER, MINI, Log, app, decision, finished, fold, grant, revoke, write

from themis.model import events as e
from themis.model.answers import RoundPlan, Solved, TimeShare
from themis.model.cluster import Machine
from themis.model.log import Record
from themis.model.settings import Settings
from themis.model.units import NONE, Float
from themis.policies.api import make_policy
from themis.report import delivery
from themis.report.delivery import equal_parts
from themis.report.explain import explain
from themis.report.explain_tables import table
from themis.report.metrics import Fold, RunMetrics
from themis.report.table import summary_table
from themis.sim.runner import Outage, Simulation
from themis.testing.builders import BOOK, machines, random_workload


def answered(answer: TimeShare | RoundPlan) -> e.Allocated:
    return e.Allocated(version=1, solved=Solved(answer=answer))


def test_under_other_policies_apps_are_entitled_to_water_filled_equal_shares() -> None:
    """MINI: A alone on 6 GPUs can use one, B two jobs of one GPU; every job wants one GPU."""
    run = fold(MINI)
    a, b = run.apps
    assert a.entitled == pytest.approx(200.0), "one GPU from 10 to 210 s"
    assert b.received + sum(dataclasses.asdict(b.missing).values()) == pytest.approx(b.entitled)
    # 35 s to start, then 165 s on 4 GPUs.
    assert (a.received, a.missing.restarts) == pytest.approx((660.0, 140.0))
    assert a.missing.policy == pytest.approx(200.0 - 660.0 - 140.0), "it had more GPUs than its share"
    assert b.missing.faults > 0
    assert b.missing.packing > 0, "its first lease has a score of 0.5"


def test_under_time_shares_an_app_is_entitled_to_its_shares_until_its_job_ends() -> None:
    shares = TimeShare(
        combos=np.array([[0, NONE], [1, NONE]]), gpus=np.array([1, 1]), x=np.array([[0.25], [0.75]]), round_s=100.0
    )
    log: Log = [
        (0.0, HEADER),
        (0.0, e.MachineJoined(machine=Machine(name="m", gpus=1))),
        (0.0, app("A", 0.0, 1)),
        (0.0, app("B", 0.0, 1)),
        (0.0, answered(shares)),
        (0.0, grant(1, 1, 1, (0,))),
        (10.0, e.JobStarted(job=1, attempt=1)),
        (410.0, e.JobReached(job=1, attempt=1, steps=1.0, loss=0.1)),
        (410.0, revoke(1, 1, 1, "finished")),
        (410.0, e.JobEnded(app=1, job=1, outcome="completed", steps=1.0)),
        (410.0, finished(1, 410.0, 1.0, 1.0, 410.0)),
        (410.0, grant(0, 0, 1, (0,))),
        (420.0, e.JobStarted(job=0, attempt=1)),
        (520.0, revoke(0, 0, 1, "finished")),
        (520.0, e.JobEnded(app=0, job=0, outcome="completed", steps=1.0)),
        (520.0, finished(0, 520.0, 1.0, 1.0, 110.0)),
    ]
    run = fold(log)
    a, b = run.apps
    assert (a.entitled, a.received) == pytest.approx((0.25 * 520, 100.0))
    assert (b.entitled, b.received) == pytest.approx((0.75 * 410, 400.0))
    assert (a.missing.restarts, a.missing.rounding, a.missing.policy) == pytest.approx((10.0, 20.0, 0.0))
    # B had 102.5 s more: 100 of them are a round, the rest and 10 s of its start it had on top.
    assert (b.missing.restarts, b.missing.rounding, b.missing.policy) == pytest.approx((10.0, -100.0, -2.5))
    assert (run.delivered_worst, run.delivered_mean) == pytest.approx((100 / 130, (100 / 130 + 400 / 307.5) / 2))


def test_under_a_plan_an_app_is_entitled_to_its_planned_rounds() -> None:
    plan = RoundPlan(
        job=np.array([0, 1]),
        gpus=np.array([2, 1]),
        round_s=100.0,
        run=np.array([[True, False, True], [False, True, False]]),
    )
    log: Log = [
        (0.0, HEADER),
        (0.0, e.MachineJoined(machine=Machine(name="m", gpus=2))),
        (0.0, app("A", 0.0, 1)),
        (0.0, app("B", 0.0, 1)),
        (0.0, answered(plan)),
        (250.0, decision()),
    ]
    assert [row.entitled for row in fold([*log[:-1], (50.0, revoke(0, 0, 1, "expired"))]).apps] == [100.0, 0.0]
    assert [row.entitled for row in fold(log).apps] == [2 * 150.0, 100.0]


def test_a_plan_made_in_mid_round_lets_the_round_that_runs_go_on() -> None:
    """A runs from 0 to 100 s. At 40 s a new plan has B from then on, and A in no round."""
    first = RoundPlan(job=np.array([0]), gpus=np.array([1]), round_s=100.0, run=np.array([[True, True]]))
    then = RoundPlan(
        job=np.array([0, 1]), gpus=np.array([1, 1]), round_s=100.0, run=np.array([[False] * 2, [True] * 2])
    )
    log: Log = [
        (0.0, HEADER),
        (0.0, e.MachineJoined(machine=Machine(name="m", gpus=2))),
        (0.0, app("A", 0.0, 1)),
        (0.0, app("B", 0.0, 1)),
        (0.0, answered(first)),
        (40.0, answered(then)),
        (150.0, decision()),
    ]
    assert [row.entitled for row in fold(log).apps] == [100.0, 110.0]


def test_what_an_app_is_promised_while_its_user_holds_it_is_declined() -> None:
    shares = TimeShare(combos=np.array([[0, NONE]]), gpus=np.array([1]), x=np.array([[1.0]]), round_s=10.0)
    log: Log = [
        (0.0, HEADER),
        (0.0, e.MachineJoined(machine=Machine(name="m", gpus=1))),
        (0.0, app("A", 0.0, 1)),
        (0.0, answered(shares)),
        (100.0, e.AppHeld(app=0)),
        (400.0, e.AppResumed(app=0)),
        (500.0, answered(shares)),
    ]
    (a,) = fold(log).apps
    assert (a.entitled, a.missing.declined) == pytest.approx((500.0, 300.0))


def test_equal_shares_are_found_again_where_apps_come_or_end_and_not_at_each_grant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = list[int]()

    def counted(weight: Float, wants: Float, gpus: float) -> Float:
        found.append(len(weight))
        return equal_parts(weight, wants, gpus)

    monkeypatch.setattr(delivery, "equal_parts", counted)
    joined = e.MachineJoined(machine=Machine(name="m", gpus=2))
    apps: Log = [(10.0 * i, app(f"A{i}", 10.0 * i, 1)) for i in range(40)]
    decisions: Log = [(float(t), decision()) for t in range(395, 600)]
    rows = fold([(0.0, HEADER), (0.0, joined), *apps, *decisions]).apps
    assert found == list(range(1, 41))
    assert sum(row.entitled for row in rows) == pytest.approx(10.0 + 2 * (599.0 - 10.0))


@given(
    rows=st.lists(st.tuples(st.floats(0.1, 9.0), st.integers(0, 9)), min_size=1, max_size=9), gpus=st.integers(0, 40)
)
def test_equal_parts_are_filled_as_water_is(rows: list[tuple[float, int]], gpus: int) -> None:
    weight, wants = np.array([w for w, _ in rows]), np.array([float(n) for _, n in rows])
    part = equal_parts(weight, wants, float(gpus))
    assert (part <= wants + 1e-9).all()
    assert part.sum() == pytest.approx(min(gpus, wants.sum()))
    short = part < wants - 1e-6
    if short.any():
        level = (part / weight)[short]
        assert np.ptp(level) <= 1e-6
        assert (part[~short] / weight[~short] <= level.max() + 1e-6).all()


@pytest.mark.parametrize("policy", ["max_min_fairness", "themis", "shockwave", "makespan", "drf"])
def test_entitled_and_received_agree_with_a_count_of_the_log_and_causes_add_up(policy: str) -> None:
    workload = random_workload(3, apps=8, span=2000.0)
    records: list[tuple[float, Record]] = []
    counted = Fold()

    def sink(now: float, record: Record) -> None:
        records.append((now, record))
        counted(now, record)

    Simulation(
        workload=workload,
        cluster=machines(4, 4),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(container_s=5.0, checkpoint_every_s=100.0),
        outages=(Outage(time=700.0, machine=0, lasts=300.0),),
    ).run(sink)
    run = counted.result()
    trained, promised = trained_of(records), promised_of(records)
    for row in run.apps:
        assert row.received + sum(dataclasses.asdict(row.missing).values()) == pytest.approx(row.entitled, abs=1e-6)
        assert row.received + row.missing.faults <= trained[row.app] + 1e-6
        assert row.entitled > 0
        if promised is not None:
            assert row.entitled == pytest.approx(promised[row.app], abs=1e-6)
    assert 0 < run.delivered_worst <= run.delivered_mean
    again = Fold()
    for now, record in records:
        again(now, record)
    assert [row.entitled for row in again.result().apps] == [row.entitled for row in run.apps]


def trained_of(records: list[tuple[float, Record]]) -> dict[int, float]:
    """GPU-seconds from the first step to the end of each lease, by app."""
    out: dict[int, float] = defaultdict(float)
    held: dict[int, tuple[e.Grant, float]] = {}
    for now, record in records:
        if isinstance(record, e.Grant):
            held[record.job] = record, np.inf
        elif isinstance(record, e.JobStarted) and record.job in held and held[record.job][0].attempt == record.attempt:
            held[record.job] = held[record.job][0], min(now, held[record.job][1])
        elif isinstance(record, e.Revoke):
            lease, start = held.pop(record.job)
            out[record.app] += len(lease.gpus) * max(now - start, 0.0)
    return out


def promised_of(records: list[tuple[float, Record]]) -> dict[int, float] | None:
    """Integral of gang x share by app, second decision to second decision; None where the policy gives no shares."""
    out: dict[int, float] = defaultdict(float)
    app_of: list[int] = []
    rate: dict[int, float] = {}
    since, shares, apps = 0.0, False, 0
    for now, record in records:
        for job, gpus in rate.items():
            out[app_of[job]] += gpus * (now - since)
        since = now
        if isinstance(record, e.AppSubmitted):
            app_of += [apps] * len(record.app.jobs)
            apps += 1
        elif isinstance(record, e.Allocated):
            answer = record.solved.answer
            if not isinstance(answer, TimeShare):
                return None
            shares = True
            rate = {int(j): float(n * x.sum()) for (j, _), n, x in zip(answer.combos, answer.gpus, answer.x)}
        elif isinstance(record, e.JobReached | e.JobEnded):
            rate.pop(record.job, None)
    return out if shares else None


def test_explain_and_the_comparison_say_what_was_received(tmp_path: Path) -> None:
    path = write(tmp_path / "events.jsonl", MINI)
    story = explain(path, "A")
    run: RunMetrics = fold(MINI)
    assert (story.entitled, story.received) == pytest.approx((run.apps[0].entitled, run.apps[0].received))
    assert "0.2 of the 0.1 GPU hours that it was entitled to (330%)" in str(table(story).caption)
    compacted: Log = [*MINI[:3], (0.0, e.Compacted(records=3)), *MINI[3:]]
    assert np.isnan(explain(write(tmp_path / "short.jsonl", compacted), "A").entitled)
    assert f"worst {run.delivered_worst:.2f}, mean {run.delivered_mean:.2f}" in str(
        summary_table([run], wide=True).caption
    )
