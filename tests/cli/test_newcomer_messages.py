"""Sentences that a first-time user reads: durations, forecasts without ground, figures that would all be 0.0."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from themis.cli import ask, main
from themis.cli.table_columns import JOBS, STEPS, TRIALS, Reply, filled, refined_now, steps_columns, why_now
from themis.errors import InputError
from themis.report.sentences import delivered, span
from themis.schema import messages as schema
from themis.schema.wire import as_dict
from themis.service.operations.service_settings import load
from themis.train import Run


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119.0, "119 s"), (267.0, "4.5 min"), (10701.0, "3.0 h"), (864000.0, "10.0 d")],
)
def test_a_duration_is_in_the_unit_that_reads_best(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_why_prints_its_estimate_before_it_asks_for_simulations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first answer is quick; what simulations add is printed after it, and nothing twice."""
    quick = schema.WhyReply(
        code="all_leased",
        sentence="all 8 GPUs are leased.",
        expected_end=2e9,
        end_low=2e9 - 60,
        end_high=2e9 + 60,
        sooner_s=720.0,
    )
    story = {"arrival": 0.0, "steps": [], "jct": None, "entitled": 0.0, "received": 0.0, "missing": {}}
    whole = quick.model_copy(update={"story": json.dumps(story), "simulations": 9})
    whole.start_earliest = whole.start_median = whole.start_latest = 1e9
    before: list[str] = []

    def call(method: str, **fields: object) -> dict[str, Any]:
        if fields.get("quick"):
            return as_dict(quick)
        before.append(capsys.readouterr().out)
        return as_dict(whole)

    monkeypatch.setattr(ask, "service_of", lambda home: nullcontext(SimpleNamespace(call=call)))
    main(["why", "urgent"])
    assert "12.0 min sooner than on its own share." in before[0]
    after = capsys.readouterr().out
    assert after.startswith("Refined by simulations:\nNext GPUs expected at")
    assert "end" not in after, "one end in one answer"


def test_an_app_that_ends_while_it_is_explained_is_not_refined_by_simulations() -> None:
    running = schema.WhyReply(code="all_leased", sentence="all 8 GPUs are leased.")
    ended = schema.WhyReply(code="ended", sentence="the app is finished.", simulations=9, start_median=1e9)
    assert refined_now(running, ended)[0] == "ended: the app is finished."
    assert "Refined by simulations:" not in refined_now(running, ended)
    assert refined_now(ended, ended.model_copy(update={"simulations": 0})) == []


def test_a_studys_trials_show_parameters_and_what_was_pruned_also_in_best() -> None:
    row = {"job": 0, "outcome": "completed", "parameters": {}, "best_steps": 0.0, "steps": None}
    trial = {**row, "metrics": {"loss": 0.5, "lr": 0.1, "PRUNED": 1.0}}
    assert TRIALS["metrics"](trial) == "lr 0.1, PRUNED"
    assert JOBS["metrics"](trial) == "loss 0.5, lr 0.1, PRUNED"
    assert "metrics" not in filled(TRIALS, [row])
    told = {**trial, "best_loss": 0.5, "steps": 0.0}
    assert (TRIALS["steps"](told), TRIALS["at step"](told)) == ("", ""), "Optuna's trials report no steps of their own"


def test_the_end_of_unknown_work_is_unknown() -> None:
    (_, line) = why_now(schema.WhyReply(code="running", sentence="x."))
    assert line.startswith("When it ends is not known: its work was not given")


def test_the_only_app_is_not_ranked() -> None:
    alone = schema.WhyReply(code="partly_running", sentence="it runs.", position=1, of=1, rho=1.35)
    assert why_now(alone)[1] == "It is the only app that wants GPUs."
    assert why_now(alone, verbose=True)[2] == "It is the only app that wants GPUs, rho 1.35."
    worst = Reply.of({"code": "all_leased", "sentence": "x.", "of": 1, "position": 1, "rho": "Infinity"})
    assert why_now(worst, verbose=True)[2] == "It is the only app that wants GPUs, rho inf."
    second = schema.WhyReply(code="all_leased", sentence="x.", position=2, of=3, rho=math.nan)
    assert why_now(second)[1].startswith("Position 2 of 3 apps that want GPUs (apps without GPUs first")


def test_little_gpu_time_is_in_minutes() -> None:
    assert "0.0" not in delivered(90.0, 30.0, {})
    assert delivered(8.0, 0.0, {}) == "", "0.0 of 0.1 GPU minutes tells nobody anything"
    assert "0.5 of the 1.5 GPU minutes" in delivered(90.0, 30.0, {})
    assert "1.0 of the 2.0 GPU hours" in delivered(7200.0, 3600.0, {})


def test_a_cause_that_would_be_printed_as_zero_is_left_out() -> None:
    said = delivered(60.0, 0.0, {"restarts": 1.0, "policy": 59.0})
    assert said.endswith("(0%); missing by cause: policy +1.0.")
    assert delivered(1.0, 0.0, {"policy": 1.0}) == "", "nor does a share of nothing"


def test_a_lease_below_the_tick_names_both_ways_out() -> None:
    with pytest.raises(InputError, match=r"make the lease at least one tick, or the tick shorter \(--set tick=5s\)"):
        load(None, {"gpus": 8, "lease": "20s"})


def test_a_preempted_script_says_what_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(checkpoints=tmp_path)
    run.step = 30
    with pytest.raises(SystemExit):
        run.exit()
    run.saved(30)
    with pytest.raises(SystemExit):
        run.exit()
    unsaved, saved = capsys.readouterr().err.splitlines()
    assert unsaved == "themis.train: preempted; step 30 is not saved."
    assert saved == "themis.train: preempted; checkpoint saved at step 30."


def test_why_shows_columns_of_auctions_where_a_decision_was_one() -> None:
    nothing = {"offered": 0, "rho": 0.0, "auction": False, "bid": False, "won": 0, "kept": 1.0, "leftover": 0}
    steps = [{"time": float(n), "round": n, **nothing, "granted": 4, "renewed": 0, "revoked": 0} for n in range(2)]
    assert list(steps_columns(steps)) == ["s since submitted", "round", "granted", "renewed", "revoked", "held", ""]
    bids = {"offered": 8, "rho": 1.2, "auction": True, "bid": True}
    assert list(steps_columns([*steps, {**steps[0], **bids}])) == [
        n for n in STEPS if n not in ("won", "kept", "leftover")
    ]
