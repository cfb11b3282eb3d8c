"""Goodput formulas by hand, and their fit to iterations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad

from step_time_cases import TIMES
from themis.model.goodput import Adaptive, Goodput, StepTimes, efficiency
from themis.optimize import step_times
from themis.optimize.step_times import Iterations, fit


def iterations(times: StepTimes, noise: float = 0.0) -> Iterations:
    rng = np.random.default_rng(0)
    gpus, machines = np.array([(1, 1), (2, 1), (4, 1), (2, 2), (8, 2), (16, 4), (64, 16)], dtype=float).T
    local = np.array([32.0, 64.0, 128.0])
    k, n, m = np.repeat(gpus, 3), np.repeat(machines, 3), np.tile(local, len(gpus))
    off = np.exp(noise * rng.normal(size=(2, len(k))))
    return Iterations(
        gpus=k, machines=n, local=m, grad_s=times.grad(m) * off[0], iteration_s=times.iteration(k, n, m, 0.0) * off[1]
    )


def test_an_iteration_takes_its_accumulations_and_the_overlap_of_gradient_and_network() -> None:
    grad = 0.02 + 0.001 * 100
    assert float(TIMES.iteration(1, 1, np.array(100.0), 1)) == pytest.approx(2 * grad)
    sync = 0.12 + 0.003 * 6
    assert float(TIMES.iteration(8, 2, np.array(100.0), 2)) == pytest.approx(2 * grad + np.hypot(grad, sync))
    assert float(efficiency(np.array(300.0), 100.0, 500.0)) == pytest.approx(600 / 800)


def test_the_best_batch_is_never_below_the_base_nor_above_the_limit_and_grows_with_the_noise() -> None:
    goodput = Goodput(batches=Adaptive(base=128, most=4096, local=(32, 512)), times=(("*", TIMES),))
    calm, noisy = goodput.best("T4", 50.0, 64), goodput.best("T4", 50_000.0, 64)
    gpus = np.arange(65)
    for best in (calm, noisy):
        batch = gpus * best.local * (best.accumulations + 1)
        assert best.rate[0] == 0
        assert (batch[1:] >= 128).all()
        assert (batch[1:] <= 4096 + gpus[1:] * (best.accumulations[1:] + 1)).all()
        assert (best.local <= 512).all()
    assert (noisy.rate[1:] > calm.rate[1:]).all()
    # One GPU takes a batch beyond the base in two parts at least.
    assert noisy.accumulations[1] >= 1
    each = calm.local[8] * 8 * (calm.accumulations[8] + 1)
    rate = each / TIMES.iteration(8, 2, calm.local[8], calm.accumulations[8]) * (50 + 128) / (50 + each) / 128
    assert calm.rate[8] == pytest.approx(float(rate))


def test_the_gradient_of_the_fit_is_that_of_its_loss() -> None:
    seen, free = iterations(TIMES, 0.1), np.ones(7, dtype=bool)
    x = np.log(TIMES.array() * 1.3)
    off = check_grad(lambda p: step_times._loss(p, seen, free)[0], lambda p: step_times._loss(p, seen, free)[1], x)
    assert off < 1e-5


def test_a_fit_foretells_gangs_that_were_not_measured() -> None:
    seen = iterations(TIMES, 0.02)
    found = fit(seen.of(np.flatnonzero(seen.gpus <= 16)))
    wide = seen.of(np.flatnonzero(seen.gpus > 16))
    off = found.iteration(wide.gpus, wide.machines, wide.local, 0.0) / wide.iteration_s - 1
    assert np.abs(off).mean() < 0.08


def test_parameters_that_no_gang_showed_come_from_the_prior() -> None:
    seen = iterations(TIMES)
    one = seen.of(np.flatnonzero(seen.gpus == 1))
    assert fit(one).network_s < 1e-6
    assert fit(one, TIMES).network_s == pytest.approx(TIMES.network_s)


def test_what_a_further_gpu_costs_is_not_foretold_from_one_gang_size() -> None:
    """A job that ran on 1, 2, 3, 4 and 8 GPUs, and on a bus that is slower with each GPU, may find 64 GPUs faster than 8."""
    slow_bus = StepTimes(
        grad_s=0.02,
        grad_example_s=0.001,
        network_s=0.3,
        network_gpu_s=0.0,
        machine_s=0.03,
        machine_gpu_s=0.06,
        overlap=1.5,
    )
    gpus, machines, local = np.array([1.0, 2, 3, 4, 8]), np.array([1.0, 1, 1, 1, 2]), np.array([128.0, 64, 48, 32, 32])
    found = fit(
        Iterations(
            gpus=gpus,
            machines=machines,
            local=local,
            grad_s=slow_bus.grad(local),
            iteration_s=slow_bus.iteration(gpus, machines, local, 0.0),
        )
    )
    assert found.network_gpu_s < 1e-6
    times = Goodput(batches=Adaptive(base=128, most=4096, local=(8, 512)), times=(("*", found),))
    rate = times.best("T4", 50_000.0, 64).rate
    assert rate[64] > rate[8]
