"""What an app would have on its own share, in ``share`` and ``why`` of a service: as in the report of its journal."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake import World, request, world
from test_arbiter import enter
from test_budgets import HOUR, LEASE, run_for
from test_fairness_over_time import api_of

from themis.cli.table_columns import delivered_now, why_now
from themis.model.log import read_log
from themis.report.metrics import Fold
from themis.report.outlook import ExpectedTimes, Outlook
from themis.schema import messages as schema
from themis.service.api import accounts, own_share
from themis.service.api.submission import submit
from themis.service.engine import state_snapshots
from themis.service.engine.journal import export


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[World]:
    """ann's app of 3 GPUs came first and holds them all; bob's and eve's wait for leases to end."""
    with world(tmp_path, 3, **{**LEASE, "between": "users"}) as w:
        enter(w, "first", user="ann", gpus=(3, 3), steps=40000.0)
        w.turn(1.0)
        enter(w, "second", user="bob", gpus=(3, 3), steps=40000.0)
        enter(w, "third", user="eve", gpus=(3, 3), steps=40000.0)
        run_for(w, HOUR / 20)
        yield w


def reported(tmp_path: Path) -> Fold:
    """By the journal as it is, from the start."""
    log, fold = tmp_path / "whole.jsonl", Fold()
    export(tmp_path / "journal.db", log)
    for time, record in read_log(log):
        fold.add(time, record)
    return fold


def test_share_has_the_references_of_the_report(lent: World, tmp_path: Path) -> None:
    api = api_of(lent, tmp_path)
    for _ in range(3):
        rows = {row.user: row for row in api.Share(schema.UsersRequest()).users}
        at = lent.ask(api._present)
        fold = reported(tmp_path)
        lasted = fold.reference.lasted()
        assert rows.keys() == {"ann", "bob", "eve"}
        for a, user in at.users.items():
            life = fold.outlook.of(a, at.now).ends - fold.reference.apps[a].arrival
            assert rows[user].rho_reference_worst == pytest.approx(life / lasted[a], rel=1e-3)
            assert rows[user].sooner_worst_s == pytest.approx(lasted[a] - life, abs=1e-3 * life)
            assert rows[user].rho_reference_median == rows[user].rho_reference_worst
            assert rows[user].rho_attainable_worst <= rows[user].rho_reference_worst
            in_time = life <= max(1.1 * lasted[a], lasted[a] + 300.0)
            assert (rows[user].promise_known, rows[user].promise_kept) == (1, in_time)
        run_for(lent, HOUR / 20)


def test_why_says_what_an_app_lent_and_when_it_gets_that_back(lent: World, tmp_path: Path) -> None:
    api = api_of(lent, tmp_path)
    replies = {name: api.Why(schema.WhyRequest(app=name)) for name in ("first", "second", "third")}
    now = lent.ask(lambda a: a.now())
    reference = reported(tmp_path).reference
    got = reference.received(now)
    for a, (name, reply) in enumerate(replies.items()):
        attained = lent.ask(lambda s, a=a: float(s.state.at(s.now()).apps_attained()[a]))
        assert reply.lent_gpu_hours * 3600 == pytest.approx(got[a] - attained, abs=0.02 * now)
        ends = lent.ask(lambda s: s.epoch) + reference.apps[a].arrival + reference.lasted()[a]
        assert reply.reference_end == pytest.approx(ends, abs=1e-3)
        text = " ".join(why_now(reply, verbose=True))
        assert f"{abs(reply.lent_gpu_hours):.1f} GPU hours" in text or abs(reply.lent_gpu_hours) < 0.05, name
        assert "n its own share of the cluster it would end at" in text
        assert reply.end_low <= reply.expected_end <= reply.end_high
        assert reply.start_median is None or reply.start_median <= reply.expected_end
        assert reply.sooner_s == pytest.approx(reply.reference_end - reply.expected_end)
        assert reply.lent_back is None or now < reply.lent_back <= reply.expected_end + 1e-6
    hours = [reply.lent_gpu_hours for reply in replies.values()]
    assert max(hours) > 0 > min(hours)


def test_a_quick_answer_has_the_same_end_and_no_simulations(lent: World, tmp_path: Path) -> None:
    api = api_of(lent, tmp_path)
    quick = api.Why(schema.WhyRequest(app="first", quick=True))
    whole = api.Why(schema.WhyRequest(app="first"))
    assert (quick.story, quick.simulations) == ("", 0)
    assert quick.expected_end == pytest.approx(whole.expected_end, abs=1.0)
    row = next(row for row in api.Apps(schema.AppsRequest()).apps if row.name == "first")
    assert row.sooner_s == pytest.approx(quick.sooner_s, abs=1.0), "one number for one app"
    assert row.rho == pytest.approx(quick.rho_reference, rel=1e-3)


def test_what_is_told_of_one_app_forecasts_that_app_alone_and_the_queue_is_looked_through_once(
    lent: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,000 apps, `show` took as long as the whole queue, and the queue looked at each app once for each that waits."""
    api, asked = api_of(lent, tmp_path), Counter[str]()
    api.Apps(schema.AppsRequest())  # the fold of the journal asks too
    for name in ("end_of", "_blind"):
        monkeypatch.setattr(Outlook, name, counted(asked, name))
    assert api.Show(schema.AppRef(app="first")).app.sooner_s is not None
    assert asked == {"end_of": 1, "_blind": 1}
    asked.clear()
    waiting = [row for row in api.Apps(schema.AppsRequest()).apps if row.state == "waiting"]
    assert len(waiting) > 0
    assert asked == {"end_of": 3, "_blind": 1}


def counted(asked: Counter[str], name: str) -> Any:
    """A method of forecasts that counts its calls."""
    method = getattr(Outlook, name)

    def call(*args: Any) -> Any:
        asked[name] += 1
        return method(*args)

    return call


def test_an_app_that_holds_all_gpus_received_what_it_was_entitled_to_also_by_its_first_lease(tmp_path: Path) -> None:
    with world(tmp_path, 4, **{**LEASE, "lease_s": HOUR, "tick_s": HOUR}) as w:
        enter(w, "only", gpus=(4, 4), steps=40000.0)
        run_for(w, HOUR / 10)
        story = json.loads(api_of(w, tmp_path).Why(schema.WhyRequest(app="only", quick=False)).story)
    (line,) = delivered_now(story)
    assert line.startswith("It received 0.4 of the 0.4 GPU hours that it was entitled to (100%)")


def test_a_start_by_simulations_is_never_after_the_end() -> None:
    reply = schema.WhyReply(start_median=100.0 + 50.0, start_earliest=100.0 + 20.0)
    forecast = ExpectedTimes(starts=5.0, ends=60.0, ends_low=30.0, ends_high=70.0)
    refined = own_share._refined(reply, forecast, 40.0, 100.0)
    assert refined.ends == 90.0
    assert refined.ends_low <= refined.ends <= refined.ends_high


def test_a_journal_without_its_beginning_has_no_references(lent: World, tmp_path: Path) -> None:
    for _ in range(3):
        run_for(lent, HOUR / 20)
        lent.ask(lambda a: state_snapshots.maybe_take(a.engine, a.now(), 0.0, every=1))
    assert all(row.rho_reference_worst is None for row in api_of(lent, tmp_path).Share(schema.UsersRequest()).users)
    assert api_of(lent, tmp_path).Why(schema.WhyRequest(app="first")).rho_reference is None


def test_how_much_sooner_an_app_of_unknown_work_ended_is_unknown(tmp_path: Path) -> None:
    """It was believed to need an hour; that it ended after a minute says nothing of its own share."""
    with world(tmp_path, 3) as w:
        asked = request("a", steps=3600.0)
        asked.jobs[0].program.work_unknown = asked.jobs[0].program.work_is_time = True
        w.ask(lambda a: submit(a, asked))
        enter(w, "b", steps=100.0)
        api = api_of(w, tmp_path)
        w.turn(30.0)
        active = {row.name: row for row in api.Apps(schema.AppsRequest()).apps}
        assert active["a"].rho is None
        w.turn(30.0)
        w.finish(0, 3600.0)
        w.finish(1, 100.0)
        rows = {row.name: row for row in api.Apps(schema.AppsRequest(ended=True)).apps}
        assert (rows["a"].sooner_s, rows["a"].rho) == (None, None)
        assert rows["b"].sooner_s is not None
        assert rows["b"].rho is not None
        past = {app.name: app.rho for app in w.ask(lambda a: accounts.history(a, schema.HistoryRequest())).apps}
        assert past["a"] is None
        assert past["b"] is not None
        run = reported(tmp_path).result()
        assert [math.isnan(row.sooner_s) for row in run.apps] == [True, False]
