"""What-if forward from logs: a finished log gives itself again, changes act, errors of the past correct intervals."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from themis.errors import InputError, UnknownName
from themis.model.events import MachineJoined, MachineResized
from themis.model.log import LogWriter
from themis.model.settings import Settings
from themis.model.workload import App, Bag, Job, Regime, Workload
from themis.policies.api import make_policy
from themis.sim import dump
from themis.sim.forward import question
from themis.sim.forward.answer import answer, short, signed
from themis.sim.forward.arrivals import Arrival, draw
from themis.sim.forward.past import Correction, Forecast, corrected, correction, spread
from themis.sim.forward.present_state import Present, of_dump, of_log
from themis.sim.forward.question import Question
from themis.sim.forward.what_if_run import simulate
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

ONE = Question(seeds=(0,), arrivals=False)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen apps on 32 GPUs under fifo."""
    path = tmp_path_factory.mktemp("forward") / "fifo.jsonl"
    write(path, load_workload("demo"))
    return path


def write(path: Path, workload: Workload, policy: str = "fifo") -> None:
    simulation = Simulation(
        workload=workload,
        cluster=load_cluster("demo-32"),
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(),
    )
    with LogWriter(path) as writer:
        simulation.run(writer)


@pytest.fixture(scope="module")
def middle(log: Path) -> Present:
    """The state after the last arrival."""
    return of_log(log, at=of_log(log).coming[-1].time + 1.0)


def test_a_finished_log_simulated_again_is_itself(log: Path) -> None:
    whole = of_log(log)
    found = simulate(whole, ONE)
    assert len(whole.coming) == len(found.apps) == 16
    assert [found.ends[0, 0, i] for i in range(16)] == [whole.ended[a].time for a in found.apps]


def test_from_a_state_in_the_middle_without_errors_apps_end_when_they_did(log: Path, middle: Present) -> None:
    found = simulate(middle, ONE)
    assert 2 <= len(found.apps) < 16
    for i, a in enumerate(found.apps):
        # A gang that was starting has started: within the cost of one start, after which ticks are the same.
        assert found.ends[0, 0, i] == pytest.approx(middle.ended[a].time, abs=120.0)


def test_more_gpus_let_apps_finish_sooner_and_fewer_later(middle: Present) -> None:
    def sums(**changes: object) -> tuple[int, int]:
        (summary,) = answer(middle, replace(ONE, **changes), learn_s=0).summaries  # type: ignore[arg-type]
        return summary.sooner, summary.later

    sooner, later = sums(add=("64",))
    assert sooner > 0
    assert later == 0
    sooner, later = sums(remove=("24",))
    assert later > sooner


def test_an_app_that_is_left_out_has_no_end_and_the_others_do_not_lose(middle: Present) -> None:
    state = middle.core().state
    name = state.app_specs[int(np.flatnonzero(state.apps.active[: state.apps.size])[0])].name
    found = answer(middle, replace(ONE, without=(name,)), learn_s=0)
    row = next(row for row in found.apps if row.name == name)
    assert math.isfinite(row.times[0].median)
    assert math.isnan(row.times[1].median)
    summary = found.summaries[0]
    assert summary.compared == len(found.apps) - 1
    assert f"without {name}" in summary.sentence
    assert found.to_dict()["apps"][0]["forecasts"][1]["median_s"] is None


def test_cases_share_arrivals_and_errors_so_that_equal_policies_do_not_differ(middle: Present) -> None:
    asked = Question(policies=("current", "fifo"), seeds=range(3), horizon_s=40 * 3600.0)
    found = simulate(middle, asked)
    assert found.ends.shape == (3, 2, len(found.apps))
    assert np.array_equal(found.ends[:, 0], found.ends[:, 1], equal_nan=True)
    assert not np.array_equal(found.ends[0], found.ends[1]), "seeds differ"
    again = simulate(middle, asked, processes=2)
    assert np.array_equal(found.ends, again.ends), "processes change nothing"


def test_beyond_the_horizon_is_later(middle: Present) -> None:
    found = answer(middle, replace(ONE, horizon_s=60.0), learn_s=0)
    assert any(math.isinf(row.times[0].median) for row in found.apps)
    assert found.to_dict()["apps"][-1]["forecasts"][0]["later"]


def test_a_dump_has_the_same_future_as_the_log(tmp_path: Path, middle: Present) -> None:
    path = tmp_path / "state.json.gz"
    path.write_bytes(dump.write(middle.core(), middle.dump.policy))
    of_file = of_dump(path)
    assert of_file.history
    assert np.array_equal(simulate(replace(of_file, now=middle.now), ONE).ends, simulate(middle, ONE).ends)


def test_what_does_not_fit_the_state_is_refused_in_words(middle: Present) -> None:
    state = middle.core().state
    with pytest.raises(UnknownName, match="Did you mean 'fair_finish'"):
        question.check_policies(state, ["fair_finsh"])
    with pytest.raises(UnknownName, match="Did you mean 'current'"):
        question.check_policies(state, ["curent"])
    for asked, words in (
        (Question(add=("0",)), r"GPUs to add are '0', expected a number"),
        (Question(add=("8@A1000",)), "unknown GPU type 'A1000'"),
        (Question(remove=("nowhere",)), "unknown machine 'nowhere'"),
        (Question(remove=("33",)), "33 GPUs of type gpu cannot be removed; there are 32"),
        (Question(remove=("32",)), "no GPU would be left"),
        (Question(without=("nobody",)), "unknown app 'nobody'"),
        (Question(without=("0",)), r"app 0 .* has ended|unknown app"),
    ):
        with pytest.raises(InputError, match=words):
            question.changes(state, asked)
    with pytest.raises(InputError, match="the horizon is 0"):
        Question(horizon_s=0.0)
    with pytest.raises(InputError, match="0 simulations"):
        Question(seeds=())


def test_machines_that_join_are_as_large_as_those_there_and_the_idlest_leave_first(middle: Present) -> None:
    state = middle.core().state
    size = max(state.machine_size.tolist())
    joined = [e for e in question.changes(state, Question(add=(f"{2 * size + 1}",))) if isinstance(e, MachineJoined)]
    assert [e.machine.gpus for e in joined] == [size, size, 1]
    gone = [e for e in question.changes(state, Question(remove=("1", "1"))) if isinstance(e, MachineResized)]
    assert [e.gpus for e in gone] == [size - 1, size - 2] or len({e.machine for e in gone}) == 2


def one(user: str, time: float, name: str = "") -> Arrival:
    job = Job(name="j", model="generic", regimes=(Regime(steps=1.0),))
    return Arrival(
        time=time,
        app=App(name=name or f"{user}{time:g}", user=user, arrival=time, jobs=(job,), tuner=Bag()),
        weight=2.0,
    )


def test_drawn_arrivals_have_the_rate_and_the_users_of_the_history() -> None:
    history = [one("ada", float(t)) for t in range(0, 1000, 100)] + [one("ben", 500.0)]
    rng = np.random.default_rng(0)
    drawn = list(islice(draw(history, 0.0, 1000.0, rng), 11_000))
    times = [a.time for a in drawn]
    assert times == sorted(times)
    assert times[0] > 1000.0
    assert (times[-1] - 1000.0) / len(drawn) == pytest.approx(1000.0 / 11, rel=0.05)
    users = Counter(a.app.user for a in drawn)
    assert users["ada"] / users["ben"] == pytest.approx(10.0, rel=0.15)
    assert len({a.app.name for a in drawn}) == len(drawn)
    assert {a.weight for a in drawn} == {2.0}


def test_nothing_is_drawn_from_a_history_that_says_nothing() -> None:
    rng = np.random.default_rng(0)
    assert not list(draw([], 0.0, 1e6, rng))
    assert not list(draw([one("ada", 1.0)], 0.0, 10.0, rng))


def test_intervals_that_were_too_narrow_are_widened_and_held_by_nine_ends_of_ten() -> None:
    rng = np.random.default_rng(1)
    truth = np.exp(rng.normal(0.3, 0.8, 400)) * 100.0
    past = [Forecast(90.0, 100.0, 110.0, float(actual), True) for actual in truth[:200]]
    by = correction(past)
    assert by.learned
    assert by.ended == 200
    assert by.held < 60
    ahead = corrected(np.array([[90.0], [100.0], [110.0]]), by)
    later = truth[200:]
    assert 0.72 <= float(((later >= ahead[0]) & (later <= ahead[2])).mean()) <= 0.88
    assert 1.1 < by.middle < 1.7, "the median was too early by a factor of e^0.3"


def test_few_past_forecasts_correct_nothing_and_apps_still_there_count_as_longer() -> None:
    few = [Forecast(90.0, 100.0, 110.0, 300.0, True)] * 9
    assert correction(few) == Correction(ended=9)
    short_ones = [Forecast(90.0, 100.0, 110.0, float(x), True) for x in range(50, 70)]
    open_ones = [Forecast(90.0, 100.0, 110.0, 500.0, False)] * 20
    assert correction(short_ones + open_ones).high > correction(short_ones).high


def test_the_spread_of_twenty_simulations_leaves_one_out_at_each_end() -> None:
    ends = np.arange(1.0, 21.0)[:, None]
    ends[19] = np.inf
    assert spread(ends)[:, 0].tolist() == [2.0, 10.0, 19.0]
    assert spread(np.array([[5.0]]))[:, 0].tolist() == [5.0, 5.0, 5.0]


def test_the_past_of_a_log_corrects_its_intervals(log: Path) -> None:
    jobs = (Job(name="j", model="generic", regimes=(Regime(steps=7200.0),), gpus_min=8, gpus_max=8),)
    apps = tuple(App(name=f"a{i}", user=f"u{i % 3}", arrival=400.0 * i, jobs=jobs, tuner=Bag()) for i in range(40))
    path = log.parent / "steady.jsonl"
    write(path, Workload(name="steady", apps=apps))
    ended = sorted(end.time for end in of_log(path).ended.values())
    present = of_log(path, at=ended[-8])
    found = answer(present, Question(seeds=range(5), arrivals=False), learn_s=300.0)
    assert found.correction.learned
    assert "calibrated by" in found.basis
    assert found.apps
    own = found.of_user("u0")
    assert own.apps
    assert {row.user for row in own.apps} == {"u0"}
    assert own.summaries == found.summaries


def test_times_are_short() -> None:
    assert [short(x) for x in (0.0, 35.2, 360.0, 7200.0, 3e5, math.inf, math.nan)] == [
        "0 s",
        "35 s",
        "6.0 min",
        "2.0 h",
        "3.5 d",
        "later",
        "",
    ]
    assert [signed(x) for x in (7560.0, -35.0, math.inf, math.nan)] == ["+2.1 h", "-35 s", "+later", ""]


def test_the_end_of_unknown_work_is_unknown_and_needs_no_number_of_simulations(middle: Present) -> None:
    state = middle.core().state
    there = [state.app_specs[a].name for a in np.flatnonzero(state.apps.active[: state.apps.size]).tolist()]
    some = answer(replace(middle, unknown=frozenset(there[:1])), Question(seeds=range(2), arrivals=False), learn_s=0)
    (row,) = [row for row in some.apps if row.state == "unknown"]
    assert row.name == there[0]
    assert all(math.isnan(times.median) for times in row.times)
    assert not any(math.isnan(other.times[0].median) for other in some.apps if other is not row)
    assert "Of 1 app the end is unknown: the work was not given" in some.basis
    asked = Question(policies=("current", "drf"), seeds=range(20))
    none = answer(replace(middle, unknown=frozenset(there)), asked, learn_s=1e9)
    assert (none.simulations, none.correction) == (1, Correction()), "and none of the past, which would correct nothing"
    assert none.summaries[0].sentence == "Under drf no end can be compared."
    known = simulate(middle, replace(asked, seeds=asked.seeds[:1], arrivals=False))
    last = [short(float(end)) for end in known.ends[0].max(axis=1) - known.now]
    assert none.basis.endswith(
        f"If each takes what unknown_work assumes, the last ends in {last[0]} today, in {last[1]} under drf."
    )
    assert {row.state for row in none.apps} == {"unknown"}


def test_three_apps_of_a_first_minute_are_no_rate() -> None:
    history = [one("ada", float(t)) for t in (1, 20, 50)]
    assert next(draw(history, 0.0, 70.0, np.random.default_rng(0)), None) is None
