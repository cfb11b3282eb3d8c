"""Golden numbers of Themis §3 and §4.3, and the arithmetic behind rho."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from themis.core import take_snapshot as snapshots
from themis.core.app_lifecycle import finish_app
from themis.fairness.finish_time import (
    FinishTime,
    Form,
    list_schedule,
    phase_seconds,
    side_by_side,
    t_id_exact,
    t_id_paper,
)
from themis.model.answers import Ask
from themis.model.cluster import Cluster, Machine
from themis.model.events import SpeedMeasured
from themis.model.snapshot import Snapshot
from themis.model.workload import App, Halving, Hyperband, Rung
from themis.policies.tuning.app_agent import Agents, answer_ask
from themis.testing.builders import app, job, machines, snapshot_of, state_at

SERIAL = (80.0, 100.0, 100.0, 120.0)
TWO_TYPES = Cluster(
    name="two", machines=tuple(Machine(name=kind, gpus=2, rack="r", gpu_type=kind) for kind in ("gpu", "fast"))
)


def paper_sweep() -> App:
    """§4.3.3: four jobs, phases of 4/2/1 jobs and 8/16/36 iterations, gpus_max 8."""
    rungs = tuple(Rung(jobs=n, steps=s) for n, s in ((4, 8.0), (2, 16.0), (1, 36.0)))
    return app(
        "sweep",
        [job(60, (1, 8), name=f"j{s}{i}", step_scale=s) for i, s in enumerate(SERIAL)],
        tuner=Halving(rungs=rungs),
    )


def sweep_among_four() -> Snapshot:
    others = [app(f"other{i}", [job(1000.0)]) for i in range(3)]
    return snapshot_of(machines(8, 8), [paper_sweep(), *others])


@pytest.mark.parametrize("form", list(Form))
def test_section_4_3_3_independent_finish_time_is_2500_s_in_both_forms(form: Form) -> None:
    assert FinishTime(sweep_among_four(), form).t_id[0] == pytest.approx(2500.0)


@pytest.mark.parametrize(("gpus", "rho"), [(1, 4.0), (2, 2.0), (4, 1.0), (8, 0.5), (16, 0.34)])
def test_section_4_3_3_table_3_with_the_optimal_split(gpus: int, rho: float) -> None:
    finish = FinishTime(sweep_among_four())
    left = finish.left_on(np.array([float(gpus)]), np.array([8.0]), 0)
    assert finish.rho_of(left, np.array([0])) == pytest.approx(rho)


def even_split(works: list[float], gpus: int, gang_max: int) -> float:
    """Seconds of a phase if each job gets gpus // jobs GPUs, longest first when jobs outnumber GPUs: another reading of §4.3.3."""
    if gpus < len(works):
        return list_schedule([(0.0, 1.0)] * gpus, sorted(works, reverse=True))
    return max(works) / min(gpus // len(works), gang_max)


@pytest.mark.parametrize(("gpus", "rho"), [(1, 4.0), (2, 2.0), (4, 1.064), (8, 0.532), (16, 0.356)])
def test_section_4_3_3_with_an_even_static_split(gpus: int, rho: float) -> None:
    phases = [[s * 8 for s in SERIAL], [100.0 * 16] * 2, [100.0 * 36]]
    assert sum(even_split(works, gpus, 8) for works in phases) / 2500 == pytest.approx(rho)


def test_section_4_3_3_erratum_the_second_phase_on_two_gpus_takes_1920_s_not_3200() -> None:
    assert even_split([120.0 * 16, 100.0 * 16], 2, 8) == 1920.0


def test_bids_of_section_4_3_3_are_table_3() -> None:
    snapshot = sweep_among_four()
    bids = answer_ask(snapshot, Ask(column="bids", apps=np.array([0]), offer=snapshot.free))
    best = {g: float(np.exp(-bids.row_value[bids.gpus == g]).min()) for g in set(bids.gpus.tolist())}
    assert {g: best[g] for g in (1, 2, 4, 8, 16)} == pytest.approx({1: 4.0, 2: 2.0, 4: 1.0, 8: 0.5, 16: 0.34})


def test_table_2_two_gpus_halve_the_rho_of_one() -> None:
    snapshot = snapshot_of(
        machines(1, 1), [app("a", [job(200.0, (1, 2))]), *(app(f"o{i}", [job(9.0)]) for i in range(3))]
    )
    finish = FinishTime(snapshot)
    assert finish.t_id[0] == 400.0
    left = finish.left_on(np.array([1.0, 2.0]), np.array([2.0, 2.0]), 0)
    np.testing.assert_allclose(finish.rho_of(left, np.array([0, 0])), [200 / 400, 100 / 400])


def test_paper_form_overstates_t_id_when_a_job_cannot_use_its_share() -> None:
    finish = {
        form: FinishTime(snapshot_of(machines(8), [app("a", [job(800.0)]), app("b", [job(1.0)])]), form)
        for form in Form
    }
    assert finish[Form.PAPER].t_id[0] == 1600.0
    assert finish[Form.EXACT].t_id[0] == 800.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1e3), st.integers(1, 8)), min_size=1, max_size=6), st.integers(1, 9))
def test_exact_t_id_lets_no_job_use_more_gpus_than_it_can(jobs: list[tuple[float, int]], others: int) -> None:
    """The definition, job by job: max(work / s, longest of work_j / min(s, its own most GPUs))."""
    bag = app("bag", [job(work, (1, most), name=f"j{i}") for i, (work, most) in enumerate(jobs)])
    snapshot = snapshot_of(machines(8, 4), [bag, *(app(f"o{i}", [job(9.0)]) for i in range(others))])
    share = 12 / (1 + others)
    expected = max(sum(work for work, _ in jobs) / share, *(work / min(share, most) for work, most in jobs), 0.0)
    assert FinishTime(snapshot, Form.EXACT).t_id[0] == pytest.approx(expected)


def test_a_thin_job_beside_a_wide_one_takes_as_long_as_it_takes() -> None:
    bag = app("bag", [job(100.0, 1, name="thin"), job(40.0, (1, 4), name="wide")])
    finish = FinishTime(snapshot_of(machines(8, 8), [bag, app("other", [job(9.0)])]), Form.EXACT)
    assert finish.t_id[0] == 100.0


def test_time_left_lets_no_job_use_more_gpus_than_it_can() -> None:
    """A job of one GPU needs its 100 s, whatever the app wins for the job beside it; waiting, holding, or after others."""
    bag = app("bag", [job(100.0, 1, name="thin"), job(40.0, (1, 4), name="wide")])
    snapshot = snapshot_of(machines(8), [bag, app("other", [job(9.0)])])
    finish = FinishTime(snapshot)
    left = [float(finish.left_on(np.array([gpus]), np.array([4.0]), 0)[0]) for gpus in (1.0, 2.0, 4.0, 8.0)]
    assert left == [140.0, 100.0, 100.0, 100.0]
    assert finish.left_waiting[0] == snapshot.lease_s + max(100.0, finish.left_worst[0])
    held = snapshots.take(state_at(machines(8), [bag], held=[(0, (0,), 1e9), (1, (1,), 1e9)]))
    assert held.app_left_held[0] == 100.0
    later = snapshot_of(machines(8), [replace(bag, at_once=1)])
    assert FinishTime(later).left_on(np.array([8.0]), np.array([4.0]), 0)[0] == 110.0


def test_one_app_alone_on_its_best_gang_has_rho_one() -> None:
    state = state_at(machines(4), [app("a", [job(400.0, 4)])], held=[(0, (0, 1, 2, 3), 1e9)], now=40.0)
    finish = FinishTime(snapshots.take(state))
    assert finish.rho[0] == pytest.approx(1.0)


def test_slowdown_of_table_1_multiplies_the_time_left() -> None:
    state = state_at(machines(2, 2), [app("a", [job(400.0, 4, model="chatty")])], held=[(0, (0, 1, 2, 3), 1e9)])
    assert FinishTime(snapshots.take(state)).rho[0] == pytest.approx(1.3)


def test_waiting_app_is_finite_and_worse_than_its_worst_useful_grant() -> None:
    snapshot = snapshot_of(
        machines(4, 4), [app(f"a{i}", [job(600.0, (1, 4), model="chatty")]) for i in range(6)], now=50.0
    )
    finish = FinishTime(snapshot)
    assert np.isfinite(finish.rho).all()
    assert (finish.left_waiting >= finish.left_worst + snapshot.lease_s).all()


def test_rho_of_a_waiting_app_is_the_same_however_fast_the_reference_was_believed_to_be() -> None:
    """Measured ten times as fast as believed, it needs a tenth of the time, alone as beside others."""
    apps = [app("a", [job(6000.0, (1, 4))]), app("b", [job(6000.0)])]
    state = state_at(machines(4), apps)
    before = FinishTime(snapshots.take(state))
    state.learn_speed(SpeedMeasured(model="flat", gpu_type="gpu", gpus=1, locality=0, steps_per_s=10.0))
    after, lease = FinishTime(snapshots.take(state)), state.settings.lease_s
    assert after.t_id == pytest.approx(before.t_id / 10)
    assert after.left_waiting - lease == pytest.approx((before.left_waiting - lease) / 10)


def test_worst_useful_grant_is_the_smallest_gang_spread_over_racks_on_the_slowest_type() -> None:
    gang = app("gang", [job(600.0, (2, 4), model="chatty"), job(300.0, (2, 4), model="chatty")])
    finish = FinishTime(snapshot_of(TWO_TYPES, [gang, app("one", [job(90.0, model="two_speeds")])]))
    assert finish.left_worst == pytest.approx([900 / 2 * 1.6, 90.0])


@pytest.mark.parametrize("form", list(Form))
def test_independent_finish_time_is_that_of_the_mean_gpu_in_service(form: Form) -> None:
    """Two GPUs of the reference and two of three times its speed: twice as fast on the mean, in the report as well."""
    state = state_at(TWO_TYPES, [app("a", [job(120.0, model="two_speeds")])])
    assert FinishTime(snapshots.take(state), form).t_id[0] == 120 / 2
    state.advance(50.0)
    end = finish_app(state, 0, "completed")
    assert (end.t_id_paper, end.t_id_exact, end.rho_paper) == (60.0, 60.0, 50 / 60)


def test_contention_is_the_time_weighted_mean_number_of_apps_from_arrival() -> None:
    apps = [app("a", [job(1e6)]), app("b", [job(1e6)], arrival=100.0), app("c", [job(1e6)], arrival=300.0)]
    snapshot = snapshots.take(state_at(machines(4), apps, now=400.0))
    np.testing.assert_allclose(
        snapshot.app_contention, [(1 * 100 + 2 * 200 + 3 * 100) / 400, (2 * 200 + 3 * 100) / 300, 3.0]
    )


def test_contention_of_an_app_that_just_arrived_is_the_count_of_that_instant() -> None:
    apps = [app("a", [job(1e6)]), app("b", [job(1e6)], arrival=100.0)]
    assert snapshots.take(state_at(machines(4), apps, now=100.0)).app_contention[1] == 2.0


def test_weights_count_as_so_many_apps() -> None:
    snapshot = snapshot_of(machines(6), [app("a", [job(60.0)], weight=2.0), app("b", [job(60.0)], weight=1.0)])
    np.testing.assert_allclose(snapshot.app_contention, [1.5, 3.0])


def test_bag_runs_longest_first_on_the_gangs_it_has() -> None:
    bag = app("bag", [job(float(w), name=f"j{w}") for w in (30, 20, 20, 10)])
    snapshot = snapshot_of(machines(4), [bag, app("other", [job(1.0)])])
    rows = Agents(snapshot, FinishTime(snapshot)).rows(0, snapshot.free, [4])
    assert [(row.gpus, row.left) for row in rows] == [(1, 80.0), (2, 40.0), (3, 30.0)]


def test_bag_does_not_bid_for_gpus_that_cannot_end_it_sooner() -> None:
    bag = app("bag", [job(100.0, name="long"), *(job(10.0, name=f"s{i}") for i in range(8))])
    snapshot = snapshot_of(machines(8), [bag])
    assert max(row.gpus for row in Agents(snapshot, FinishTime(snapshot)).rows(0, snapshot.free, [8])) == 2


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=20), st.integers(1, 8))
def test_list_schedule_lies_between_the_fluid_bound_and_twice_it(works: list[float], gangs: int) -> None:
    seconds = list_schedule([(0.0, 1.0)] * gangs, sorted(works, reverse=True))
    fluid = max(sum(works) / gangs, max(works))
    assert fluid * (1 - 1e-9) <= seconds <= fluid * (2 - 1 / gangs) * (1 + 1e-9)


@given(st.floats(1, 1e6), st.floats(1, 64), st.floats(1, 64), st.floats(1, 50))
def test_exact_t_id_never_exceeds_the_papers_form(work: float, gang: float, capacity: float, contention: float) -> None:
    def one(x: float) -> np.ndarray:
        return np.array([x])

    exact = t_id_exact(one(work)[:, None], one(work)[:, None], one(gang), one(capacity), one(contention))
    paper = t_id_paper(one(work), one(0.0), one(gang), one(capacity), one(contention))
    assert exact[0] <= paper[0] * (1 + 1e-9)


@given(st.floats(1, 1e6), st.floats(0.01, 1), st.floats(0.1, 64), st.floats(1, 64))
def test_more_gpus_never_make_a_phase_longer(work: float, share: float, gpus: float, gang: float) -> None:
    def seconds(g: float) -> float:
        return float(phase_seconds(np.array(work), np.array(work * share), np.array(g), np.array(gang)))

    assert seconds(2 * gpus) <= seconds(gpus)


# ---- Hyperband: brackets of phases beside each other ----------------------------------------------------------------

BRACKETS = ((4, 8.0), (2, 16.0), (1, 36.0)), ((2, 20.0), (1, 50.0))


def hyperband(brackets: tuple[tuple[tuple[int, float], ...], ...] = BRACKETS, gpus: tuple[int, int] = (1, 8)) -> App:
    """§4.3.3's sweep with a second bracket of two jobs of 100 s a step."""
    tuners = tuple(Halving(rungs=tuple(Rung(jobs=n, steps=s) for n, s in rungs)) for rungs in brackets)
    scales = [*SERIAL, 100.0, 100.0][: sum(t.rungs[0].jobs for t in tuners)]
    jobs = [job(70, gpus, name=f"j{i}", step_scale=s) for i, s in enumerate(scales)]
    return app("sweep", jobs, tuner=Hyperband(brackets=tuners))


def among_four(sweep: App) -> Snapshot:
    return snapshot_of(machines(8, 8), [sweep, *(app(f"other{i}", [job(1000.0)]) for i in range(3))])


def test_hyperbands_budget_is_that_of_all_brackets_and_its_demand_that_of_their_widest_rungs() -> None:
    snapshot = among_four(hyperband())
    # 10,000 GPU-s of §4.3.3 and 2 x 20 x 100 + 50 x 100; at first 4 + 2 jobs of up to 8 GPUs run at once.
    assert (snapshot.app_budget[0], snapshot.app_demand[0]) == (19_000.0, 48)
    assert FinishTime(snapshot).t_id[0] == 19_000 / 16 * 4


def test_hyperbands_exact_independent_finish_time_is_its_longest_bracket_or_all_its_work() -> None:
    # On a share of 4 GPUs every phase is bound by its work: 19,000 / 4.
    assert FinishTime(among_four(hyperband()), Form.EXACT).t_id[0] == 4750.0
    # With jobs of one GPU the second bracket's chain binds: 20 x 100 + 50 x 100 s whatever the share.
    assert FinishTime(among_four(hyperband(gpus=(1, 1))), Form.EXACT).t_id[0] == 7000.0


@pytest.mark.parametrize(
    ("gpus", "seconds"), [(1, 19_000.0), (2, 9500.0), (4, 4750.0), (8, 2375.0), (16, 1187.5), (64, 875.0)]
)
def test_hyperbands_brackets_are_priced_together(gpus: int, seconds: float) -> None:
    """Bound by all the work up to 16 GPUs; on 64 by the longer bracket, (20 x 100 + 50 x 100) / 8."""
    finish = FinishTime(among_four(hyperband()))
    assert finish.left_on(np.array([float(gpus)]), np.array([8.0]), 0)[0] == pytest.approx(seconds)


@pytest.mark.parametrize("form", list(Form))
def test_one_bracket_of_hyperband_is_successive_halving(form: Form) -> None:
    one = FinishTime(among_four(hyperband(BRACKETS[:1])), form)
    # Beside an app of two brackets, the arithmetic of brackets is used for everybody.
    apps = [hyperband(BRACKETS[:1]), app("two", hyperband().jobs, tuner=hyperband().tuner), app("o", [job(1000.0)] * 2)]
    beside = FinishTime(snapshot_of(machines(8, 8), [*apps, app("p", [job(1000.0)])]), form)
    halved = FinishTime(sweep_among_four(), form)
    for gpus in (1.0, 3.0, 4.0, 7.5, 8.0, 16.0, 64.0):
        left = [f.left_on(np.array([gpus]), np.array([8.0]), 0)[0] for f in (halved, one, beside)]
        assert left == pytest.approx([left[0]] * 3)
    assert one.t_id[0] == beside.t_id[0] == halved.t_id[0]
    np.testing.assert_allclose(
        beside.left_on(np.full(4, 5.0), np.full(4, 8.0))[0], halved.left_on(np.array(5.0), np.array(8.0))[0]
    )


def optimum(chains: list[list[tuple[float, float]]], gpus: float) -> float:
    """Least makespan of two chains of divisible phases (work, most GPUs): the best order of their ends, by LPs."""
    sizes = [len(chain) for chain in chains]
    best = np.inf
    for at in combinations(range(sum(sizes)), sizes[0]):
        # Interval e ends with a phase of chain 0 if e is in ``at``, else with one of chain 1.
        owner = [0 if e in at else 1 for e in range(sum(sizes))]
        intervals = len(owner)
        cost = np.concatenate([np.ones(intervals), np.zeros(2 * intervals)])
        upper, equal, works = [], [], []
        now = [0, 0]
        run = [[np.zeros(3 * intervals) for _ in chain] for chain in chains]
        for e in range(intervals):
            total = np.zeros(3 * intervals)
            total[e] = -gpus
            for c in (0, 1):
                column = intervals * (1 + c) + e
                total[column] = 1.0
                cap = np.zeros(3 * intervals)
                if now[c] < sizes[c]:
                    run[c][now[c]][column] = 1.0
                    cap[e] = -chains[c][now[c]][1]
                cap[column] = 1.0
                upper.append(cap)
            upper.append(total)
            now[owner[e]] += 1
        for c in (0, 1):
            equal += run[c]
            works += [work for work, _ in chains[c]]
        found = linprog(cost, np.array(upper), np.zeros(len(upper)), np.array(equal), np.array(works))
        if found.status == 0:
            best = min(best, float(found.fun))
    return best


phases = st.lists(st.tuples(st.floats(1, 20), st.floats(0.1, 1.0)), min_size=1, max_size=2)


@settings(max_examples=30, deadline=None)
@given(phases, phases, st.sampled_from([1.0, 2.0, 5.0, 12.0]), st.sampled_from([1.0, 2.0, 4.0]))
def test_brackets_together_take_at_least_the_bound_and_at_most_twice_it(
    first: list[tuple[float, float]], second: list[tuple[float, float]], gpus: float, gang: float
) -> None:
    """Against the optimum: exact where one job can use all the GPUs, never more than it, never less than half of it."""
    chains = [[(work, share * work) for work, share in chain] for chain in (first, second)]
    alone = [
        sum(float(phase_seconds(np.array(w), np.array(x), np.array(gpus), np.array(gang))) for w, x in c)
        for c in chains
    ]
    together = sum(work for chain in chains for work, _ in chain) / gpus
    bound = float(side_by_side(np.array(alone), np.array(together)))
    # A phase of work w whose longest job has x can use up to w / (x / gang) GPUs at once.
    best = optimum([[(w, gang * w / x) for w, x in chain] for chain in chains], gpus)
    assert bound <= best * (1 + 1e-6)
    assert best <= 2 * bound * (1 + 1e-6)
    if gpus <= gang:
        assert best == pytest.approx(bound, rel=1e-6)
