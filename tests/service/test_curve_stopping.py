"""Curve stopping in the service: which trials go on, by the losses that their machines report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from fake import World, request, world

from themis.core.tables import Status
from themis.model.events import LossReported
from themis.schema import messages as schema
from themis.service.api.submission import submit

STEPS = 100.0


def reported(w: World, curves: Sequence[Sequence[float]], **more: float) -> list[int]:
    """Trials that go on after the reports of these losses, every five steps."""
    tuner = schema.CurveStopping(check_steps=5.0, keep=1, confidence=0.95, warmup=4, **more)  # type: ignore[arg-type]
    w.ask(lambda a: submit(a, request(jobs=len(curves), steps=STEPS, curve=tuner)))
    w.turn(1.0)
    state = w.arbiter.state
    for check in range(len(curves[0])):
        for job, losses in enumerate(curves):
            if state.jobs.status[job] == Status.RUNNING:
                attempt = int(state.jobs.attempt[job])
                w.say(LossReported(job=job, attempt=attempt, steps=5.0 * (check + 1), loss=losses[check]))
    return [job for job in range(len(curves)) if state.jobs.status[job] == Status.RUNNING]


def test_trials_whose_loss_is_zero_go_on_though_others_fall_steeply(tmp_path: Path) -> None:
    converged = [1e-3, 1e-9, 0.0, 0.0, 0.0, 0.0], [1e-2, 1e-7, 1e-20, 5e-32, 5e-32, 5e-32]
    steep = [1.1 - 0.1 * n for n in range(6)], [1.2 - 0.15 * n for n in range(6)]
    with world(tmp_path, 4) as w:
        assert {0, 1} <= set(reported(w, [*converged, *steep]))


@pytest.mark.parametrize(("floor", "left"), [(None, [1, 2]), (-0.95, [0, 1, 2])])
def test_no_trial_is_forecast_to_end_below_the_declared_floor(
    tmp_path: Path, floor: float | None, left: list[int]
) -> None:
    """The third trial falls steeply; the first stops only if the third may fall below the second."""
    good, better = [-0.88, -0.92] * 5, [-0.93, -0.89] * 5
    steep = [0.1 - 0.08 * n for n in range(10)]
    with world(tmp_path, 3) as w:
        assert reported(w, [good, better, steep], **({} if floor is None else {"floor": floor})) == left


def test_losses_below_zero_lower_the_floor_of_all_trials(tmp_path: Path) -> None:
    """A trial whose own losses are above zero may follow another below it."""
    first = [2.0 - 0.4 * n for n in range(10)]
    second = [2.4 - 0.4 * n for n in range(6)]
    with world(tmp_path, 2) as w:
        assert reported(w, [first, [*second, *first[5:9]]]) == [0, 1]
