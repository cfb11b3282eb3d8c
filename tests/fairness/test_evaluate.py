"""Errors of forecasts, by hand, and figure 5's order on the real jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from themis.errors import InputError
from themis.fairness.forecasts.evaluate import (
    KINDS,
    RULES,
    Trajectory,
    batch_error,
    evaluate,
    forecast,
    regime_error,
)
from themis.fairness.forecasts.rules import Rule
from themis.model.dynamic import Dynamic, Mode
from themis.model.workload import Job, Regime
from themis.report.forecasts import write_errors
from themis.traces.profiles.library import load_book
from themis.traces.shockwave_trace import ShockwaveTrace
from themis.traces.trace_summary import paces

GNS = Dynamic(mode=Mode.GNS, epoch_steps=((32, 4.0), (64, 2.0), (128, 1.0)))
PACE = {32: 4.0, 64: 2.0, 128: 1.0}.__getitem__


def job(*epochs: tuple[float, int]) -> Job:
    return Job(name="j", model="m", regimes=tuple(Regime(steps=e, batch=b) for e, b in epochs), dynamic=GNS)


def test_errors_of_a_forecast_by_hand() -> None:
    truth, guess = Trajectory((32, 64), (40.0, 60.0)), Trajectory((32, 64, 128), (30.0, 40.0, 30.0))
    assert regime_error(truth, guess) == pytest.approx((10 + 20 + 30) / 3 / 100)
    assert batch_error(truth, guess) == pytest.approx((10 + 30) / 100)
    assert guess.seconds(PACE) == 120 + 80 + 30


def test_what_is_seen_ends_with_the_ongoing_regime_and_begins_the_next_at_its_change() -> None:
    truth = Trajectory((32, 64), (40.0, 60.0))
    assert truth.until(30.0) == Trajectory((32,), (30.0,))
    assert truth.until(40.0) == Trajectory((32, 64), (40.0, 0.0))
    assert truth.until(70.0) == Trajectory((32, 64), (40.0, 30.0))


@pytest.mark.parametrize("rule", RULES)
def test_means_add_up_to_all_epochs(rule: Rule) -> None:
    for seen in (
        Trajectory((32,), (0.0,)),
        Trajectory((32, 64), (10.0, 20.0)),
        Trajectory((32, 64, 128), (3.0, 4.0, 9.0)),
    ):
        assert sum(forecast(rule, GNS, 50.0, seen).epochs) == pytest.approx(50.0)


def test_of_a_finished_regime_the_standard_update_keeps_its_posterior_mean() -> None:
    got = forecast(Rule.BAYES, GNS, 90.0, Trajectory((32, 64), (10.0, 20.0)))
    assert got.epochs == pytest.approx((90 * 40 / 120, 90 * 50 / 120, 90 * 30 / 120))
    assert forecast(Rule.RESTATEMENT, GNS, 90.0, Trajectory((32, 64), (10.0, 20.0))).epochs == (10.0, 40.0, 40.0)


def test_errors_of_a_job_at_each_moment() -> None:
    errors = evaluate(
        [(job((50, 32), (50, 64)), PACE), (Job(name="s", model="m", regimes=(Regime(steps=1.0),)), PACE)], 2
    )
    assert (errors.jobs, errors.changes.tolist(), errors.progress.tolist()) == (("j",), [True], [0.0, 0.5])
    # Greedy: all at 32 at first, exact from the change on. 300 s in truth, 400 s if it never changed.
    assert errors.curve(Rule.GREEDY, "run_time") == pytest.approx(np.array([1 / 3, 0.0]))
    # Restatement: thirds of 33.3 epochs, then 50 + 25 + 25.
    assert errors.curve(Rule.RESTATEMENT, "regimes")[1] == pytest.approx((0 + 25 + 25) / 3 / 100)


def test_without_dynamic_jobs_there_is_nothing_to_forecast() -> None:
    with pytest.raises(InputError, match="no dynamic job"):
        evaluate([])
    with pytest.raises(InputError, match="points is 0"):
        evaluate([], 0)


def test_the_same_errors_give_the_same_figure(tmp_path: Path) -> None:
    errors = evaluate([(job((5, 32), (5, 64)), PACE)], 4)
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        write_errors(tmp_path / name, errors, title="t")
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    with pytest.raises(InputError, match=r"expected .png or .svg"):
        write_errors(tmp_path / "a.gif", errors, title="t")


def test_shockwave_figure_5_restatement_is_closest_for_real_jobs_that_change(shared_data: Path) -> None:
    root = shared_data / "shockwave"
    book = load_book(str(root / "throughputs" / "tacc_throughputs.json"))
    reader = ShockwaveTrace(schedules=str(root / "bs_schedules" / "dynamic_120jobs_32gpu.json"))
    errors = evaluate(paces(reader.read(root / "traces" / "dynamic_120jobs_32gpu.trace", book=book), book))
    assert (len(errors.jobs), int(errors.changes.sum())) == (116, 67)
    for kind in KINDS:
        restated, *others = (errors.mean(rule, kind, changing=True) for rule in RULES)
        assert restated < min(others), kind
    assert 1 - errors.mean(Rule.RESTATEMENT, "run_time", changing=True) > 0.84
