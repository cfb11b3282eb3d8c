"""Budgets: a soft limit warns, a hard one lets leases run out until the period ends; the journal folds to the same state."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from fake import World, world
from test_arbiter import enter

from themis.schema import messages as schema
from themis.service.api import views
from themis.service.engine.budgets import period
from themis.service.engine.config import Budget, GroupSettings, UserSettings

HOUR = 3600.0
LEASE: dict[str, Any] = {
    "lease_s": 60.0,
    "tick_s": 60.0,
    "time_zone": "UTC",
    "validate": False,
}


def row(w: World, app: int = 0) -> schema.App:
    found = w.ask(lambda a: views.apps(a, schema.AppsRequest()))
    one: schema.App = next(row for row in found.apps if row.id == app)
    return one


def run_for(w: World, seconds: float, step: float = 60.0) -> None:
    for _ in range(round(seconds / step)):
        w.turn(step)


def test_a_hard_limit_ends_leases_and_the_next_day_renews_the_budget(tmp_path: Path) -> None:
    users = {"u": UserSettings(budget=Budget(hard=1.0, per="day"))}
    with world(tmp_path, 3, users=users, **LEASE) as w:
        enter(w, "mine", gpus=(2, 2), steps=1e6)
        enter(w, "other", user="v", steps=1e6)
        run_for(w, HOUR / 4)
        assert (row(w).state, row(w).gpus) == ("running", 2)
        run_for(w, HOUR / 2, 20.0)
        found = row(w)
        assert (found.state, found.waits) == ("waiting", "budget")
        assert found.reason.startswith("user u has used 1.0 of 1 GPU hours today; the budget is renewed on 1970-01-02")
        assert row(w, 1).state == "running", "other users have what the budget left"
        reason = w.ask(lambda a: views.why(a, "mine")[2])
        assert (reason.code, reason.sentence) == ("budget", f"{found.reason}.")
        spent = w.ask(lambda a: a.engine.books.totals(a.instant, "1970-01-01", "1970-01-01", user="u"))
        assert sum(amounts.leased for _, _, amounts in spent) <= HOUR + 2 * (60.0 + 20.0), "at most a lease more"
        w.turn(86400.0 - w.clock[0] - 1.0)
        assert row(w).waits == "budget"
        w.turn(2.0)
        run_for(w, 120.0, 1.0)
        assert not w.arbiter.state.quotas
        assert row(w).state == "running"


def test_a_soft_limit_only_warns(tmp_path: Path) -> None:
    with world(tmp_path, 1, others=GroupSettings(budget=Budget(hard=5.0, soft=0.5)), **LEASE) as w:
        enter(w, steps=1e6)
        run_for(w, HOUR / 4)
        assert row(w).warning == ""
        run_for(w, HOUR / 2)
        found = row(w)
        assert (found.state, found.waits) == ("running", "")
        assert found.warning.startswith(
            "user u has used 0.8 of 0.5 GPU hours (soft limit) this month; the budget is renewed"
        )
        assert w.ask(lambda a: views.why(a, "0")[2]).warning == found.warning


def test_a_group_shares_a_budget_of_cost_and_it_holds_over_a_restart(tmp_path: Path) -> None:
    more = {
        "users": {"u": UserSettings(group="g"), "v": UserSettings(group="g")},
        "groups": {"g": GroupSettings(budget=Budget(hard=10.0, of="cost", per="total"))},
        "prices": {"gpu": 10.0},
        "currency": "EUR",
        **LEASE,
    }
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock, **more) as w:
        enter(w, "a", steps=1e6)
        enter(w, "b", user="v", steps=1e6)
        run_for(w, HOUR * 0.6)
        assert [row(w, n).reason for n in (0, 1)] == ["group g has used 10.7 of 10 EUR in total"] * 2
        quotas = dict(w.arbiter.state.quotas)
    with world(tmp_path, 2, clock=clock, **more) as w:
        w.turn(1.0)
        assert w.arbiter.state.quotas == quotas == {"budget group g": (("u", "v"), 0)}
        assert row(w).waits == "budget"
    more["groups"] = {"g": GroupSettings(budget=Budget(hard=50.0, of="cost", per="total"))}
    with world(tmp_path, 2, clock=clock, **more) as w:
        run_for(w, 120.0)
        assert not w.arbiter.state.quotas
        assert row(w).state == "running"


@pytest.mark.parametrize(
    ("per", "begin", "end"),
    [
        ("day", "2026-12-31", "2027-01-01"),
        ("week", "2026-12-28", "2027-01-04"),
        ("month", "2026-12-01", "2027-01-01"),
        ("total", "0001-01-01", None),
    ],
)
def test_periods_begin_and_end_at_midnight(per: str, begin: str, end: str | None) -> None:
    found = period(date(2026, 12, 31), per)
    assert (found[0].isoformat(), found[1] and found[1].isoformat()) == (begin, end)
