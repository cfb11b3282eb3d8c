"""Step times of an adaptive job, for tests of several folders."""

from __future__ import annotations

from themis.model.goodput import StepTimes

TIMES = StepTimes(
    grad_s=0.02,
    grad_example_s=0.001,
    network_s=0.12,
    network_gpu_s=0.003,
    machine_s=0.03,
    machine_gpu_s=0.001,
    overlap=2.0,
)
