"""App schedulers and the bids that their agents make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.core.phases import revise
from themis.core.tables import Status
from themis.core.take_snapshot import take
from themis.fairness.finish_time import FinishTime, list_schedule
from themis.model.answers import Ask
from themis.model.snapshot import Snapshot
from themis.model.workload import CurveStopping, Halving, Hyperband, LossCurve, Rung
from themis.policies.themis import Themis
from themis.policies.tuning.app_agent import Agents, answer_ask
from themis.policies.tuning.bid_rows import ExclusiveRow
from themis.policies.tuning.split import choose_job
from themis.testing.builders import app, job, machines, random_simulation, snapshot_of, state_at
from themis.testing.policies import sample_snapshots


def rows_of(snapshot: Snapshot, a: int = 0) -> list[ExclusiveRow]:
    agents = Agents(snapshot, FinishTime(snapshot))
    return agents.rows(a, snapshot.free, [int(snapshot.free.sum())])


def test_warm_jobs_come_first_then_the_most_work_left_then_the_lower_id() -> None:
    ids, left = np.array([4, 5, 6, 7]), np.array([10.0, 30.0, 30.0, 99.0])
    yes, no = np.ones(4, dtype=bool), np.zeros(4, dtype=bool)
    assert choose_job(ids, left, np.array([True, False, False, False]), yes) == 4
    assert choose_job(ids, left, no, np.array([True, True, True, False])) == 5
    assert choose_job(ids, left, no, no) == -1


def test_insensitive_models_bid_for_the_widest_span_only() -> None:
    assert {row.span for row in rows_of(snapshot_of(machines(4, 4), [app("a", [job(100.0, 2)])]))} == {3}


def test_sensitive_models_price_every_span_by_its_slowdown() -> None:
    rows = rows_of(snapshot_of(machines(4, 4), [app("a", [job(120.0, 2, model="chatty")])]))
    assert {row.span: row.left for row in rows} == pytest.approx({1: 60.0, 2: 78.0, 3: 96.0})


def test_elastic_bag_bids_for_more_jobs_first_and_then_for_larger_gangs() -> None:
    rows = rows_of(snapshot_of(machines(8), [app("a", [job(100.0, (1, 2)), job(100.0, (1, 2))])]))
    # The gang of two alone leaves one job waiting: both GPUs are then one job's, which ends no sooner.
    assert {row.gangs: row.left for row in rows} == pytest.approx(
        {((1, 1),): 200.0, ((1, 2),): 100.0, ((1, 1), (2, 1)): 200 / 3, ((2, 2),): 50.0, ((2, 1),): 100.0}
    )


def test_running_elastic_job_bids_to_grow_where_it_is_and_pays_its_restart() -> None:
    snapshot = snapshot_of(machines(4, 4), [app("a", [job(4000.0, (1, 4), model="chatty")])], held=[(0, (0, 1), 600.0)])
    rows = rows_of(snapshot)
    assert {row.anchor for row in rows if row.span == 1} == {0}
    grown = next(row for row in rows if row.span == 1 and row.gpus == 2)
    assert grown.left == pytest.approx(7.5 + 1000.0)


def test_a_bid_has_at_most_64_rows_and_each_lowers_rho() -> None:
    apps = [app("a", [job(float(100 + i), (1, 8), model="chatty") for i in range(90)]), app("b", [job(500.0)] * 90)]
    snapshot = snapshot_of(machines(*[8] * 40), apps)
    bids = answer_ask(snapshot, Ask(column="bids", apps=np.array([0, 1]), offer=snapshot.free))
    assert np.bincount(bids.row_bidder).max() <= 64
    assert (bids.row_value > bids.base[bids.row_bidder]).all()


def test_more_gpus_of_one_span_never_leave_more_time() -> None:
    for snapshot in sample_snapshots(lambda: Themis(), seed=5):
        agents = Agents(snapshot, FinishTime(snapshot))
        offered = [int(snapshot.free.sum())]
        for a in range(snapshot.apps):
            by_span: dict[int, list[ExclusiveRow]] = {}
            for row in agents.rows(a, snapshot.free, offered):
                by_span.setdefault(row.span, []).append(row)
            for rows in by_span.values():
                # One gang for each waiting job comes before larger gangs: compare splits of equal gang size.
                for size in {row.gangs[0][0] for row in rows if len(row.gangs) == 1}:
                    left = [
                        r.left
                        for r in sorted(rows, key=lambda r: r.gpus)
                        if len(r.gangs) == 1 and r.gangs[0][0] == size
                    ]
                    assert left == sorted(left, reverse=True)


def test_single_jobs_bid_the_same_in_arrays_as_one_by_one() -> None:
    apps = [app(f"a{i}", [job(100.0 * (i + 1), (1, 1 + i % 3), model="chatty")]) for i in range(6)]
    snapshot = snapshot_of(machines(4, 2), apps)
    bids = answer_ask(snapshot, Ask(column="bids", apps=np.arange(6), offer=snapshot.free))
    finish = FinishTime(snapshot)
    for a in range(6):
        mine = bids.row_bidder == a
        in_arrays = sorted(
            zip(bids.gpus[mine].tolist(), bids.row_span[mine].tolist(), np.exp(-bids.row_value[mine]).tolist())
        )
        alone = sorted(
            (r.gpus, r.span, float(finish.rho_of(np.array([r.left]), np.array([a]))[0])) for r in rows_of(snapshot, a)
        )
        assert [x[:2] for x in in_arrays] == [x[:2] for x in alone]
        np.testing.assert_allclose([x[2] for x in in_arrays], [x[2] for x in alone])


def test_hyperband_bids_for_its_brackets_together() -> None:
    brackets = tuple(
        Halving(rungs=tuple(Rung(jobs=n, steps=s) for n, s in rungs))
        for rungs in (((4, 100.0), (2, 100.0), (1, 300.0)), ((2, 50.0), (1, 200.0)))
    )
    jobs = [job(500.0, name=f"j{i}") for i in range(4)] + [job(250.0, name=f"k{i}") for i in range(2)]
    rows = rows_of(snapshot_of(machines(8), [app("a", jobs, tuner=Hyperband(brackets=brackets))]))
    # 1200 s of work on g GPUs, until the first bracket binds: 400 / g, at least 100, then 100, then 300 s.
    assert {row.gpus: row.left for row in rows} == pytest.approx(
        {1: 1200.0, 2: 600.0, 3: 400 / 3 + 400, 4: 500.0, 5: 500.0, 6: 500.0}
    )


def test_curve_stopping_bids_a_list_schedule_of_what_its_jobs_are_forecast_to_run() -> None:
    """All by hand: jobs of 400, 300, 300 and 200 s, of which the third is given up and the first has run 100 s."""
    works = (400.0, 300.0, 300.0, 200.0)
    jobs = [job(w, name=f"j{i}", loss=LossCurve(a=1, b=0.1, c=0.1)) for i, w in enumerate(works)]
    spec = app("a", jobs, tuner=CurveStopping(check_steps=10.0))
    state = state_at(machines(8), [spec, app("b", [job(1.0)])], held=[(0, (0,), 600.0)], now=100.0)
    state.jobs.status[2] = Status.ENDED
    revise(state, 0)
    snapshot = take(state)
    # B = attained + forecast: the stopped job had done nothing.
    assert (snapshot.app_budget[0], snapshot.app_longest[0]) == (900.0, 400.0)
    agents = Agents(snapshot, FinishTime(snapshot))
    # Held: the first job's GPU, free in 300 s; two more GPUs run the others beside it, one runs them in turn.
    assert agents.without[0] == list_schedule([(300.0, 1.0)], [300.0, 200.0]) == 800.0
    assert {row.gpus: row.left for row in rows_of(snapshot)} == {1: 500.0, 2: 300.0}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1, 1000), min_size=2, max_size=6), st.integers(1, 6))
def test_a_rigid_app_under_curve_stopping_bids_what_a_bag_of_its_jobs_would(works: list[float], gpus: int) -> None:
    """Brute force over the splits that list scheduling makes: longest first onto the gang that is free first."""
    jobs = [job(w, name=f"j{i}") for i, w in enumerate(works)]
    spec = app("a", jobs, tuner=CurveStopping(check_steps=max(works)))
    for row in rows_of(snapshot_of(machines(gpus), [spec, app("b", [job(1.0)])])):
        free = [0.0] * row.gpus
        for work in sorted(works, reverse=True):
            free[free.index(min(free))] += work
        assert row.left == pytest.approx(max(free))


def test_random_simulations_of_the_kit_contain_every_kind_of_app() -> None:
    for seed in range(3):
        kinds = {type(a.tuner).__name__ for a in random_simulation(Themis(), seed).workload.apps}
        assert kinds >= {"Bag", "Hyperband", "CurveStopping"}
    assert "Halving" in kinds


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_single_jobs_bid_and_take_together_as_one_by_one(seed: int, elastic: bool) -> None:
    rng = np.random.default_rng(seed)
    apps = []
    for i in range(12):
        low = int(rng.choice([1, 1, 2, 4, 6]))
        work, model = float(rng.integers(50, 5000)), str(rng.choice(["flat", "chatty"]))
        apps.append(
            app(f"a{i}", [job(work, (low, low + int(elastic and rng.integers(3))), model=model)], arrival=float(i))
        )
    apps.append(app("runs", [job(900.0, 2)], arrival=20.0))
    s = snapshot_of(machines(4, 2, 1), apps, held=[(12, (4, 5), 600.0)], now=60.0)
    agents = Agents(s, FinishTime(s))
    bids = answer_ask(s, Ask(column="bids", apps=np.arange(s.apps), offer=s.free))
    for a in range(s.apps):
        mine = np.flatnonzero(bids.row_bidder == a)
        told = {(tuple(bids.gangs(r).items()), int(bids.row_span[r])): float(bids.row_value[r]) for r in mine.tolist()}
        rows = agents.rows(a, s.free, [int(s.free.sum())])
        if s.app_held[a] == 0:
            worth = -np.log(agents.finish.rho_of(np.array([row.left for row in rows]), np.full(len(rows), a)))
            assert told == pytest.approx({(row.gangs, int(row.span)): v for row, v in zip(rows, worth.tolist())})
        for left in (s.free, np.array([1, 1, 1]), np.array([0, 0, 0])):
            best = agents.best(a, left)
            if s.app_held[a] == 0:
                assert agents.would_take(a, left) == (best.sizes if best else [])
            else:
                assert agents.would_take(a, left) is None
