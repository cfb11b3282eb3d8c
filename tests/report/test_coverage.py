"""80 % intervals of starts and finishes hold about four times of five, under every policy; before a history there are none."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from themis.cli.rows import planned_now
from themis.model.events import AppSubmitted
from themis.model.log import LogWriter, decode, encode
from themis.model.settings import Settings
from themis.model.units import Seconds
from themis.policies.api import make_policy
from themis.profiles.measured import gavel_book
from themis.profiles.presets import load_cluster
from themis.report.calibrated import FEWEST, Calibrated, quantiles
from themis.report.explain import explain
from themis.report.explain_tables import expected_text
from themis.report.export import to_dict
from themis.report.html import render
from themis.report.metrics import Fold, RunMetrics, metrics_of
from themis.report.outlook import HISTORY, RECENT, Followed, Outlook
from themis.sim.runner import Simulation
from themis.testing.builders import app, job
from themis.traces.api import load_workload

POLICIES = ("shockwave", "themis", "drf", "max_min_fairness")
SEEDS = int(os.environ.get("THEMIS_COVERAGE_SEEDS", "1"))


def simulated(policy: str, seed: int = 0, jobs: int = 200, log: Path | None = None) -> RunMetrics:
    fold = Fold()
    sinks = [fold.add] if log is None else [fold.add, LogWriter(log)]

    def sink(time: Seconds, record: object) -> None:
        for one in sinks:
            one(time, record)  # type: ignore[arg-type]

    Simulation(
        workload=load_workload("shockwave_jobs", seed=seed, jobs=jobs, gpus=16, load=1.1, scale=0.05),
        cluster=load_cluster("1x16@V100"),
        book=gavel_book(),
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(lease_s=600.0, seed=seed),
    ).run(sink)
    if log is not None:
        sinks[1].close()  # type: ignore[attr-defined]
    return fold.result()


# ---- one kind of forecast ------------------------------------------------------------------------------------------


def test_there_is_no_interval_before_there_is_a_history() -> None:
    known = Calibrated()
    for i in range(FEWEST - 1):
        known.end(known.add(float(i), 10.0, "a"), i + 10.0)
    assert math.isnan(known.interval(100.0, 10.0, "a")[0])
    known.end(known.add(90.0, 10.0, "a"), 100.0)
    assert known.interval(100.0, 10.0, "a") == pytest.approx((110.0, 110.0), abs=2.0)
    assert math.isnan(known.interval(100.0, 10.0, "b")[1])


def test_quantiles_without_open_forecasts_are_those_of_the_sample() -> None:
    ratios = np.random.default_rng(0).lognormal(size=2000)
    low, high = quantiles(ratios, np.zeros(0))
    assert (low, high) == pytest.approx(tuple(np.quantile(ratios, [0.1, 0.9])), rel=0.02)


def test_what_is_still_open_counts_as_longer_than_it_has_been() -> None:
    """Forecasts of an hour made all along: after two hours those that ended are the short ones."""
    truth = np.random.default_rng(1).exponential(size=4000)
    age = np.linspace(0.0, 2.0, 4000)
    over = truth <= age
    _, naive = quantiles(truth[over], np.zeros(0))
    _, found = quantiles(truth[over], age[~over])
    assert naive < 0.75 * np.quantile(truth, 0.9)
    assert found == pytest.approx(min(np.quantile(truth, 0.9), 2.0), rel=0.15)


@pytest.mark.parametrize("drift", [0.0, 1.5])
def test_intervals_hold_four_times_of_five_also_where_things_change(drift: float) -> None:
    rng, known, held, made, ends = np.random.default_rng(2), Calibrated(), 0, 0, []
    for i in range(1500):
        now = 20.0 * i
        for end, number in [one for one in ends if one[0] <= now]:
            known.end(number, end)
        ends = [one for one in ends if one[0] > now]
        base = float(rng.uniform(50, 500))
        end = now + base * float(rng.lognormal(drift * math.sin(i / 240), 0.5))
        low, high = known.interval(now, base, "a")
        ends.append((end, known.add(now, base, "a")))
        ends.sort()
        if i > 100:
            made, held = made + 1, held + (low <= end <= high)
    assert 0.75 <= held / made <= 0.85


# ---- apps under any policy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_intervals_of_apps_hold_under_every_policy(policy: str) -> None:
    found = [simulated(policy, seed).coverage for seed in range(SEEDS)]
    made, held = sum(c.finishes for c in found), sum(c.finishes_held for c in found)
    assert made > 300 * SEEDS
    assert 0.74 <= held / made <= 0.86
    starts = sum(c.starts for c in found)
    assert starts > 30 * SEEDS
    assert 0.6 <= sum(c.starts_held for c in found) / starts <= 0.95


def test_reports_explanations_and_why_show_them(tmp_path: Path) -> None:
    whole, cut = tmp_path / "run.jsonl", tmp_path / "cut.jsonl"
    run = simulated("drf", jobs=60, log=whole)
    assert metrics_of(whole).coverage == run.coverage
    assert to_dict(run)["coverage"]["finishes"] == run.coverage.finishes
    assert f"{run.coverage.of_finishes:.0%} of {run.coverage.finishes} finishes held" in render([run])
    lines = whole.read_bytes().splitlines()
    cut.write_bytes(b"\n".join(lines[: len(lines) * 7 // 10]) + b"\n")
    followed = Followed()
    for line in cut.read_bytes().splitlines():
        followed.add(*decode(line))
    active = [
        number for number in followed.outlook.apps if not math.isnan(followed.outlook.of(number, followed.now).ends_low)
    ]
    name = run.apps[active[-1]].name
    story = explain(cut, name)
    assert repr(story.expected) == repr(followed.outlook.of(active[-1], followed.now))
    assert story.expected.ends_low < story.expected.ends_high
    assert "80 %: " in expected_text(story)
    assert "80 % interval" in planned_now(json.loads(story.to_json()))[-1]
    first = explain_first(lines, tmp_path)
    assert "no interval yet" in planned_now(json.loads(first))[-1]


def explain_first(lines: list[bytes], folder: Path) -> str:
    at = next(i for i, line in enumerate(lines) if b'"AppSubmitted"' in line)
    path = folder / "first.jsonl"
    path.write_bytes(b"\n".join(lines[: at + 1]) + b"\n")
    _, record = decode(lines[at])
    assert isinstance(record, AppSubmitted)
    return explain(path, record.app.name).to_json()


def test_logs_from_before_have_no_forecasts() -> None:
    outlook = Outlook()
    outlook.service(4)
    old = AppSubmitted(app=app("a", [job(100.0)], 0.0))
    assert b"alone" not in encode(0.0, old)
    outlook.submit(0.0, old)
    assert math.isnan(outlook.of(0, 0.0).ends)


def test_apps_to_come_at_the_recent_rate_make_a_finish_later() -> None:
    ends = []
    for gap in (1000.0, 40.0):
        outlook = Outlook()
        outlook.service(4)
        for i in range(12):
            outlook.submit(gap * i, AppSubmitted(app=app(f"a{i}", [job(100.0, 4)]), alone=(400.0, 100.0)))
            if i < 11:
                outlook.finish(gap * i + 30.0, i, "completed")
        ends.append(outlook.of(11, gap * 11).ends - gap * 11)
    assert ends[0] == pytest.approx(100.0)
    assert ends[1] > 120.0


def submitted(outlook: Outlook, now: Seconds, gpus: int, work_s: Seconds) -> int:
    """An app of one job comes; returns its number."""
    event = AppSubmitted(app=app(f"a{outlook.count}", [job(work_s, gpus)]), alone=(work_s * gpus, work_s))
    outlook.submit(now, event)
    return outlook.count - 1


def test_a_burst_of_minutes_is_not_taken_to_last_for_hours() -> None:
    """A day with an app of 60 s each 10 minutes, then 100 of them within 100 s: an app of 4 h is not foretold to take days."""
    outlook = Outlook()
    outlook.service(8)
    for i in range(144):
        number = submitted(outlook, 600.0 * i, 1, 60.0)
        outlook.finish(600.0 * i + 60.0, number, "completed")
    for i in range(100):
        submitted(outlook, 86_400.0 + i, 1, 60.0)
    hours = 4 * 3600.0
    long = submitted(outlook, 86_500.0, 1, hours)
    ends = outlook.of(long, 86_500.0).ends - 86_500.0
    assert hours <= ends < 2 * hours
    # What they want at once does slow those that are as short as the burst.
    short = submitted(outlook, 86_501.0, 1, 60.0)
    assert outlook.of(short, 86_501.0).ends - 86_501.0 > 5 * 60.0


@pytest.mark.parametrize("apps", [5, 300, HISTORY + 700])
def test_the_rate_of_arrivals_is_that_of_as_long_before_as_is_looked_ahead(apps: int) -> None:
    rng, outlook = np.random.default_rng(apps), Outlook()
    outlook.service(16)
    at = np.cumsum(rng.exponential(rng.choice([1.0, 100.0], size=apps)))
    wanted = rng.integers(1, 9, size=apps)
    for now, gpus in zip(at.tolist(), wanted.tolist()):
        outlook.finish(now, submitted(outlook, now, gpus, 10.0), "completed")
    kept = len(outlook.arrivals)
    assert kept == apps if apps <= HISTORY else HISTORY // 2 <= kept <= HISTORY
    now = float(at[-1]) + 5.0
    for ahead in (1.0, 500.0, 20_000.0, 1e7):
        window = max(ahead, now - float(at[-min(RECENT, apps)]))
        first = apps - kept
        if first and window > now - at[first]:
            window = now - float(at[first])
        counted = (at > now - window) & (np.arange(apps) > first)
        assert outlook._coming(now, ahead) == pytest.approx(float(wanted[counted].sum()) / window)
