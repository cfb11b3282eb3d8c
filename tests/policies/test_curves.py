"""Curve stopping: the extrapolation against brute force and the truth, the rule by hand, the dry run against the core."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from themis.model.events import CurveStopped, JobEnded
from themis.model.units import Float, Int
from themis.model.workload import App, CurveStopping, LossCurve, Workload
from themis.policies.fifo import Fifo
from themis.policies.tuning.curves import (
    DONE,
    MISFIT,
    SLOW,
    dry_run,
    floor_of,
    forecast,
    observation_noise,
    poor_jobs,
    shapes,
)
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, NO_OVERHEAD, app, job, machines

TUNER = CurveStopping(check_steps=50.0, noise=0.0)


def curve(steps: Float, a: float, b: float, c: float) -> Float:
    return np.asarray(a / (b * steps + 1.0) + c)


@pytest.mark.parametrize("rate", SLOW[4:12:3, 0])
@pytest.mark.parametrize("reports", [4, 12])
def test_a_noiseless_curve_is_extrapolated_to_its_end_within_its_deviation(rate: float, reports: int) -> None:
    steps, end = 50.0 * np.arange(1, reports + 1), 1000.0
    mean, deviation = forecast(steps, curve(steps, 3.0, rate / end, 0.7)[None, :], end)
    truth = float(curve(np.array(end), 3.0, rate / end, 0.7))
    assert abs(mean[0] - truth) < 2 * deviation[0]
    if reports == 12:
        assert deviation[0] < 0.1


@pytest.mark.parametrize("floor", [0.0, 0.6])
def test_the_forecast_is_bounded_least_squares_for_each_shape_weighted_by_likelihood(floor: float) -> None:
    """Brute force: one bounded least-squares problem per shape, its textbook variance, and the mixture of them all."""
    rng = np.random.default_rng(3)
    steps, end, n = 50.0 * np.arange(1, 9), 1000.0, 8
    loss = curve(steps, 2.0, 0.01, 0.4) * (1 + 0.02 * rng.standard_normal(n))
    values, variances, of_fits = [], [], []
    for g, last in zip(shapes(steps / end), shapes(np.ones(1))[:, 0]):
        # loss = value + a (g - last), so that both bounds are of one variable each.
        x, at = np.stack([g - last, np.ones(n)], axis=1), np.array([0.0, 1.0])
        fit = lsq_linear(x, loss, ([0.0, floor], np.inf), method="bvls", tol=1e-14).x
        values.append(at @ fit)
        variances.append(((loss - x @ fit) ** 2).sum() / (n - 3) + (MISFIT * loss.std()) ** 2)
        of_fits.append(variances[-1] * at @ np.linalg.inv(x.T @ x) @ at)
    assert min(values) == floor
    weight = np.array(variances) ** -2.5
    weight /= weight.sum()
    expected = weight @ values
    spread = np.sqrt(weight @ (np.array(of_fits) + (np.array(values) - expected) ** 2))
    mean, deviation = forecast(steps, loss[None, :], end, floor)
    assert (mean[0], deviation[0]) == (pytest.approx(expected, rel=1e-6), pytest.approx(spread, rel=1e-4))


def test_losses_are_bounded_by_zero_or_as_declared_or_by_the_range_once_one_is_below_zero() -> None:
    assert floor_of(0.0, 3.0, None) == 0.0
    assert floor_of(-1.0, 3.0, None) == -5.0
    assert floor_of(0.7, 3.0, 0.5) == 0.5
    assert floor_of(0.2, 3.0, 0.5) == 0.2


def test_the_truth_lies_within_two_deviations_of_most_forecasts_and_these_shrink_with_reports() -> None:
    steps, end = 50.0 * np.arange(1, 21), 1000.0
    noise = np.stack([observation_noise(5, j, 20) for j in range(400)])
    truth = curve(np.array(end), 2.0, 0.02, 0.5)
    loss = curve(steps, 2.0, 0.02, 0.5) * (1 + 0.01 * noise)
    widths = []
    for reports in (5, 10, 19):
        mean, deviation = forecast(steps[:reports], loss[:, :reports], end)
        assert float((np.abs(mean - truth) <= 2 * deviation).mean()) > 0.85
        widths.append(float(np.median(deviation)))
    assert widths == sorted(widths, reverse=True)


def test_a_rising_curve_is_extrapolated_as_flat_and_a_constant_one_as_itself() -> None:
    steps = np.arange(1.0, 7.0)
    mean, _ = forecast(steps, np.stack([0.1 * steps, np.full(6, 3.0)]), 100.0)
    assert mean == pytest.approx([0.35, 3.0])


def test_jobs_are_extrapolated_together_as_alone() -> None:
    steps, rng = np.arange(1.0, 9.0), np.random.default_rng(0)
    loss = rng.uniform(1, 2, (5, 8))
    together = forecast(steps, loss, 30.0)
    alone = [forecast(steps, row[None, :], 30.0) for row in loss]
    np.testing.assert_allclose(together[0], [m[0] for m, _ in alone])
    np.testing.assert_allclose(together[1], [d[0] for _, d in alone])


def verdicts(
    mean: list[float], deviation: list[float], unfinished: list[bool] | None = None, **more: float
) -> list[int]:
    tuner = CurveStopping(check_steps=1.0, **more)  # type: ignore[arg-type]
    going = np.array(unfinished or [True] * len(mean))
    return [
        v.row for v in poor_jobs(np.array(mean), np.array(deviation), many(len(mean)), np.array(mean), going, tuner)
    ]


def many(jobs: int) -> Int:
    """So many reports that Student's distribution is the normal one."""
    return np.full(jobs, DONE)


def test_a_job_is_poor_below_a_chance_of_five_percent_to_end_below_the_best() -> None:
    # Phi(-1.7) = 4.5 %, Phi(-1.6) = 5.5 %; both deviations count: sqrt(0.6^2 + 0.8^2) = 1.
    assert verdicts([0.0, 1.7, 1.6], [0.6, 0.8, 0.8]) == [1]
    (only,) = poor_jobs(
        np.array([0.0, 1.7]), np.array([0.6, 0.8]), many(2), np.array([0.0, 1.7]), np.array([True, True]), TUNER
    )
    assert (only.forecast, only.deviation, only.standard) == (1.7, 0.8, 0.0)
    assert only.chance == pytest.approx(0.04457, abs=1e-5)


@pytest.mark.parametrize(("reports", "quantile"), [(4, 6.314), (5, 2.920), (8, 2.015), (DONE, 1.645)])
def test_few_reports_need_a_wider_gap_as_students_distribution_says(reports: int, quantile: float) -> None:
    """Textbook quantiles of 95 % for 1, 2, 5 and infinitely many degrees of freedom; the less observed job decides."""
    counts = np.array([DONE, reports])
    for gap, stopped in ((quantile * 0.99, 0), (quantile * 1.01, 1)):
        for order in (counts, counts[::-1]):
            mean = np.array([0.0, gap])
            found = poor_jobs(mean, np.array([0.0, 1.0]), order, mean, np.array([True, True]), TUNER)
            assert len(found) == stopped


def test_confidence_moves_the_threshold() -> None:
    assert verdicts([0.0, 1.7, 1.6], [0.6, 0.8, 0.8], confidence=0.94) == [1, 2]
    assert verdicts([0.0, 1.7, 1.6], [0.6, 0.8, 0.8], confidence=0.96) == []


def test_the_kth_best_sets_the_standard_and_is_never_stopped() -> None:
    assert verdicts([3.0, 0.0, 1.0, 9.0], [0.0] * 4, keep=2) == [0, 3]
    assert verdicts([3.0, 0.0, 1.0, 9.0], [0.0] * 4, keep=4) == []


def test_the_jobs_with_the_lowest_reported_losses_are_never_stopped_whatever_is_forecast() -> None:
    mean, deviation, observed = np.array([1.0, 0.0, 2.0, 3.0]), np.zeros(4), np.array([0.9, 1.5, 0.7, 0.8])
    for keep, stopped in ((1, [0, 3]), (2, [])):
        tuner = CurveStopping(check_steps=1.0, keep=keep)
        found = poor_jobs(mean, deviation, many(4), observed, np.ones(4, dtype=bool), tuner)
        assert [v.row for v in found] == stopped


def test_a_finished_job_sets_the_standard_but_is_not_stopped_and_unknown_ones_do_neither() -> None:
    assert verdicts([0.5, 1.0, 2.0], [0.0, 0.0, 0.0], [False, True, False]) == [1]
    assert verdicts([float("nan"), 1.0, float("nan")], [0.0] * 3) == []


def test_equal_forecasts_without_doubt_are_a_draw() -> None:
    assert verdicts([1.0, 1.0, 1.0], [0.0] * 3) == []


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 1)), min_size=2, max_size=8, unique_by=lambda x: x[0]),
    st.data(),
)
def test_the_rule_does_not_depend_on_the_order_of_the_jobs(
    pairs: list[tuple[float, float]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(pairs))))
    mean, deviation = (list(column) for column in zip(*pairs))
    shuffled = verdicts([mean[i] for i in order], [deviation[i] for i in order])
    assert sorted(order[i] for i in shuffled) == verdicts(mean, deviation)


def sweep(floors: list[float], steps: float = 1000.0, tuner: CurveStopping = TUNER) -> App:
    jobs = [job(steps, name=f"j{i}", loss=LossCurve(a=2.0, b=20 / steps, c=c)) for i, c in enumerate(floors)]
    return app("sweep", jobs, tuner=tuner)


def run(spec: App, gpus: int) -> list[tuple[float, Record]]:
    log: list[tuple[float, Record]] = []
    Simulation(
        workload=Workload(name="w", apps=(spec,)),
        cluster=machines(gpus),
        book=BOOK,
        policy_name="fifo",
        policy=Fifo(),
        settings=NO_OVERHEAD,
    ).run(lambda time, record: log.append((time, record)))
    return log


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("floors", [[0.5, 0.3, 0.9], [0.3, 0.301, 0.302, 0.31, 0.6, 0.29], [1.0, 1.0]])
def test_with_a_gpu_for_each_job_the_core_stops_what_the_dry_run_stops(floors: list[float], keep: int) -> None:
    spec = sweep(floors, tuner=CurveStopping(check_steps=50.0, noise=0.0, keep=keep))
    ended = {r.job: r.steps for _, r in run(spec, len(floors)) if isinstance(r, JobEnded)}
    # Within one instant the core hears the jobs one after another, the dry run all at once: here that is the same.
    assert [ended[j] for j in range(len(floors))] == pytest.approx(dry_run(spec).tolist())


def test_without_noise_all_but_the_best_stop_within_seven_reports() -> None:
    log = run(sweep([0.5, 0.3, 0.9]), 3)
    assert [(t, r.job, r.steps) for t, r in log if isinstance(r, CurveStopped)] == [
        (300.0, 2, 300.0),
        (350.0, 0, 350.0),
    ]
    assert dry_run(sweep([0.5, 0.3, 0.9])).tolist() == [350.0, 1000.0, 300.0]


def test_jobs_of_one_loss_curve_all_run_to_the_end() -> None:
    flat = app("a", [job(100.0, name=f"j{i}") for i in range(4)], tuner=CurveStopping(check_steps=5.0, noise=0.0))
    assert dry_run(flat).tolist() == [100.0] * 4


def test_noise_depends_on_seed_and_job_alone_and_longer_draws_begin_alike() -> None:
    assert observation_noise(1, 2, 9)[:4].tolist() == observation_noise(1, 2, 4).tolist()
    assert observation_noise(1, 2, 4).tolist() != observation_noise(1, 3, 4).tolist()
    assert observation_noise(1, 2, 4).tolist() != observation_noise(2, 2, 4).tolist()


def test_jobs_that_ended_without_a_loss_are_alike_and_behind_all_others() -> None:
    tuner = CurveStopping(check_steps=1.0)
    for losses in ([np.inf, np.inf], [np.inf, 1e30, np.inf]):
        mean, n = np.array(losses), len(losses)
        assert poor_jobs(mean, np.zeros(n), np.full(n, DONE), mean, np.zeros(n, dtype=bool), tuner) == []


def test_reports_next_to_each_other_make_a_finite_forecast() -> None:
    mean, deviation = forecast(np.array([1.0, 2.0, 3.0, 4.0]), np.array([[1e30, 0.0, -1e30, 1.0]]), 1e15)
    assert np.isfinite([mean, deviation]).all()
