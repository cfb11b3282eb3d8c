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
from themis.cli.table_columns import STEPS, Reply, expected_now, span, steps_columns, why_now
from themis.errors import InputError
from themis.report.sentences import delivered
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


def story(starts: float | None, ends: float | None, half: float | None = None) -> dict[str, Any]:
    expected: dict[str, float | None] = {"starts": starts, "ends": ends}
    for name, value in (("starts", starts), ("ends", ends)):
        expected[f"{name}_low"] = None if half is None or value is None else value - half
        expected[f"{name}_high"] = None if half is None or value is None else value + half
    return {"arrival": 1000.0, "expected": expected}


def test_a_forecast_that_cannot_be_right_is_left_out() -> None:
    assert expected_now(story(1060.0, 1267.0)) == [
        "Expected to start 60 s after it was submitted (no interval yet).",
        "Expected to end 4.5 min after it was submitted (no interval yet).",
    ]
    absurd = expected_now(story(None, 185069595176.0))
    assert absurd == ["Cannot forecast its end yet: too few jobs have ended (no interval yet)."]
    backwards = expected_now(story(1267.0, 1044.0))
    assert [line.startswith("Cannot forecast") for line in backwards] == [True, True]
    measured = expected_now(story(None, 1000.0 + 40 * 86400.0, half=86400.0))
    assert measured == ["Expected to end 40.0 d after it was submitted (80 % interval 39.0 d to 41.0 d)."]


def test_why_gives_one_estimate_of_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulations expect GPUs at 09:00; that the start cannot be forecast would contradict it."""
    later = {**story(1267.0, 1044.0), "steps": [], "jct": None, "entitled": 0.0, "received": 0.0, "missing": {}}
    reply = schema.WhyReply(code="all_leased", sentence="all 8 GPUs are leased.", json=json.dumps(later))

    def printed() -> str:
        service = SimpleNamespace(call=lambda method, app: as_dict(reply))
        monkeypatch.setattr(ask, "service_of", lambda home: nullcontext(service))
        main(["why", "urgent"])
        return capsys.readouterr().out

    assert "Cannot forecast its start" in printed()
    reply.simulations, reply.start_earliest, reply.start_median, reply.start_latest = 9, 1e9, 1e9, 1e9
    assert "Next GPUs expected at" in printed()
    assert "forecast its start" not in printed()
    assert "Cannot forecast its end" in printed()
    measured = story(1060.0, 1267.0, half=10.0)
    assert expected_now(measured, simulated=True) == expected_now(measured), "an interval is shown in any case"


def test_the_only_app_is_not_ranked() -> None:
    alone = schema.WhyReply(code="partly_running", sentence="it runs.", position=1, of=1, rho=1.35)
    assert why_now(alone)[1] == "It is the only app that wants GPUs."
    assert why_now(alone, verbose=True)[2] == "It is the only app that wants GPUs, 1.35x of fair share."
    worst = Reply.of({"code": "all_leased", "sentence": "x.", "of": 1, "position": 1, "rho": "Infinity"})
    assert why_now(worst, verbose=True)[2] == "It is the only app that wants GPUs, infx of fair share."
    second = schema.WhyReply(code="all_leased", sentence="x.", position=2, of=3, rho=math.nan)
    assert why_now(second)[1].startswith("Position 2 of 3 apps that want GPUs (apps without GPUs first")


def test_little_gpu_time_is_in_minutes() -> None:
    assert "0.0" not in delivered(90.0, 30.0, {})
    assert "0.5 of the 1.5 GPU minutes" in delivered(90.0, 30.0, {})
    assert "1.0 of the 2.0 GPU hours" in delivered(7200.0, 3600.0, {})


def test_a_cause_that_would_be_printed_as_zero_is_left_out() -> None:
    said = delivered(6.0, 0.0, {"restarts": 1.0, "policy": 5.0})
    assert said.endswith("(0%); missing by cause: policy +0.1.")
    assert delivered(1.0, 0.0, {"policy": 1.0}).endswith("(0%).")


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
