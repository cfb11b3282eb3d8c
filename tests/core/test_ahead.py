"""The snapshot's forecast column: by hand, and against the scalar forecast of the evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from test_dynamic import BOOK, dynamic_job

from themis.core import regimes
from themis.core.forecasting import forecast_jobs, noise_factors
from themis.core.state import State
from themis.fairness.forecasts.evaluate import Trajectory, forecast
from themis.fairness.forecasts.rules import Forecaster, Rule
from themis.model.dynamic import Mode
from themis.model.forecast import Ahead
from themis.testing.builders import app, job, machines, state_at

EPOCH_S = {32: 40.0, 64: 25.0, 128: 20.0}


def world(*jobs: object, rule: Rule = Rule.RESTATEMENT, noise: float = 0.0) -> State:
    state = state_at(machines(4), [app(f"a{i}", [j]) for i, j in enumerate(jobs)], book=BOOK)  # type: ignore[list-item]
    state.forecaster = Forecaster(rule=rule, noise=noise)
    return state


def seen(state: State, done: float, rows: int = 1) -> Ahead:
    return forecast_jobs(state, np.arange(rows), np.full(rows, done))


def test_a_static_job_has_one_stretch_ahead() -> None:
    state = world(job(100.0, 2, model="net"))
    got = seen(state, 25.0)
    assert got.ptr.tolist() == [0, 1]
    assert (got.share[0], got.seconds[0], got.progress[0]) == (0.75, pytest.approx(37.5), 0.25)
    assert got.isolated_s[0] == pytest.approx(50.0)


def test_a_declared_schedule_is_forecast_as_declared() -> None:
    state = world(dynamic_job((3, 32), (2, 64), (5, 128), mode=Mode.DECLARED))
    regimes.report(state, 0, 4.0)
    got = seen(state, 4.0)
    assert got.share == pytest.approx(np.array([0.1, 0.5]))
    assert got.seconds == pytest.approx(np.array([25.0, 100.0]))
    assert got.isolated_s[0] == pytest.approx(120 + 50 + 100)


def test_shockwave_5_a_new_gns_job_climbs_in_equal_parts() -> None:
    got = seen(world(dynamic_job((9, 32))), 0.0)
    assert got.share == pytest.approx(np.full(3, 1 / 3))
    assert got.seconds == pytest.approx(np.array([3 * 40.0, 3 * 25, 3 * 20]))
    assert got.isolated_s[0] == pytest.approx(255.0)


def test_shockwave_5_after_a_change_what_ended_is_as_observed_and_the_rest_is_split() -> None:
    state = world(dynamic_job((100, 32)))
    regimes.batch_changed(state, 0, 10.0, 64)
    got = seen(state, 30.0)
    # S = 90 / 2: 45 epochs at 64, of which 20 are done, then 45 at 128.
    assert got.share == pytest.approx(np.array([0.25, 0.45]))
    assert got.isolated_s[0] == pytest.approx(10 * 40 + 45 * 25 + 45 * 20)
    assert got.left_s[0] == pytest.approx(25 * 25 + 45 * 20)


def test_accordion_alternates_up_to_its_regimes() -> None:
    state = world(dynamic_job((60, 32), mode=Mode.ACCORDION))
    assert seen(state, 0.0).seconds == pytest.approx(np.tile([400.0, 200.0], 3))
    for epochs, batch in ((5.0, 128), (10.0, 32), (15.0, 128), (20.0, 32), (25.0, 128), (30.0, 32)):
        regimes.batch_changed(state, 0, epochs, batch)
    assert seen(state, 30.0).share.tolist() == [0.5]


def test_gns_that_falls_back_is_expected_to_climb_again() -> None:
    state = world(dynamic_job((60, 32)))
    for epochs, batch in ((10.0, 64), (20.0, 128), (30.0, 32)):
        regimes.batch_changed(state, 0, epochs, batch)
    assert seen(state, 30.0).seconds == pytest.approx(np.array([400.0, 250, 200]))


@pytest.mark.parametrize("rule", list(Rule))
def test_all_jobs_at_once_give_what_each_gives_alone(rule: Rule) -> None:
    rng = np.random.default_rng(5)
    jobs, batches = [], [32, 64, 128]
    for _ in range(30):
        mode, total = (Mode.GNS, Mode.ACCORDION)[int(rng.integers(2))], float(rng.integers(5, 200))
        jobs.append(dynamic_job((total, int(rng.choice(batches))), mode=mode))
    jobs.insert(7, job(50.0, model="net"))  # type: ignore[arg-type]
    state = world(*jobs, rule=rule)
    done = np.zeros(len(jobs))
    for j, spec in enumerate(jobs):
        for _ in range(int(rng.integers(0, 4))):
            done[j] += rng.uniform(0, (spec.steps - done[j]) / 2)
            regimes.batch_changed(state, j, float(done[j]), int(rng.choice(batches)))
        done[j] += rng.uniform(0, spec.steps - done[j])
    got = forecast_jobs(state, np.arange(len(jobs)), done)
    assert (np.add.reduceat(got.share, got.ptr[:-1]) + got.progress) == pytest.approx(np.ones(len(jobs)))
    for j, spec in enumerate(jobs):
        if spec.dynamic is None or rule is Rule.BAYES:  # its means are no trajectory from here on
            continue
        known = state.regimes[j]
        before = [r.steps for r in known[:-1]]
        ongoing = Trajectory(tuple(r.batch for r in known), (*before, float(done[j]) - sum(before)))
        guess = forecast(rule, spec.dynamic, spec.steps, ongoing)
        assert got.isolated_s[j] == pytest.approx(guess.seconds(EPOCH_S.__getitem__))
        mine = slice(got.ptr[j], got.ptr[j + 1])
        left = [*guess.epochs[len(before) :]]
        left[0] -= ongoing.epochs[-1]
        assert got.share[mine] * spec.steps == pytest.approx(np.array(left), abs=1e-9)


def test_a_job_is_timed_on_the_fastest_type_in_service_that_it_may_use() -> None:
    state = world(dynamic_job((9, 32)))
    state.set_machine_up(0, False)
    assert seen(state, 0.0).isolated_s[0] == pytest.approx(255.0)


def test_noise_scales_what_is_forecast_and_not_what_was_seen() -> None:
    jobs = [dynamic_job((100, 32)) for _ in range(50)]
    plain, noisy = world(*jobs), world(*jobs, noise=0.5)
    factors = noise_factors(noisy, np.arange(50))
    assert (np.abs(factors - 1) <= 0.5).all()
    assert factors.std() > 0.2
    assert (noise_factors(plain, np.arange(50)) == 1).all()
    assert noise_factors(noisy, np.array([7]))[0] == factors[7]
    one, other = seen(plain, 30.0, 50), seen(noisy, 30.0, 50)
    assert other.left_s == pytest.approx(one.left_s * factors)
    assert other.isolated_s - other.left_s == pytest.approx(np.full(50, 30 * 40.0))
    assert (one.share == other.share).all()


def test_noise_of_a_hundred_percent_leaves_every_job_some_time() -> None:
    state = world(*[dynamic_job((100, 32)) for _ in range(400)], noise=1.0)
    assert (seen(state, 0.0, 400).seconds > 0).all()


def test_shockwave_g_contention_is_the_mean_of_jobs_per_gpu_over_a_jobs_life_and_at_least_one() -> None:
    """Equation 9's N: 3 jobs from the start, 1 more at 100 s, 2 at this instant; on 2 GPUs, and on more than there are jobs."""
    apps = [app("a", [job(1e6)] * 3), app("b", [job(1e6)], 100.0), app("c", [job(1e6)] * 2, 400.0)]
    for gpus, expected in ((2, [(3 * 400 + 300) / 800] * 3 + [4 * 300 / 600] + [3.0] * 2), (64, [1.0] * 6)):
        state = state_at(machines(gpus), apps, now=400.0)
        assert forecast_jobs(state, np.arange(6), np.zeros(6)).contention.tolist() == expected
