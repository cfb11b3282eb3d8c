"""Fairness over time, budgets, the history of settings, the journal and backups, over HTTP: what they say, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake import World, world
from test_arbiter import enter
from test_budgets import HOUR, LEASE, run_for
from test_http_api import TOKEN, Caller, serving

from themis.schema import messages as schema
from themis.service.api import fairness
from themis.service.api.access import Access
from themis.service.api.access import Caller as Who
from themis.service.api.http_server import HttpServer
from themis.service.api.methods import Api
from themis.service.api.setting_calls import Door
from themis.service.engine.config import Budget, Config, UserSettings
from themis.service.operations.backups import back_up_apart
from themis.service.operations.changing import changed


def api_of(w: World, home: Path, user: str = "u", *, admin: bool = True) -> Api:
    """The methods, answered by a world whose clock the test moves."""
    api = Api(w.arbiter, home, Access(home, TOKEN, "u"))
    api._look = w.ask  # type: ignore[method-assign]
    return api.by(Who(user=user, admin=admin))


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[World]:
    """Three users, one of whom holds all three GPUs for an hour."""
    with world(tmp_path, 3, **{**LEASE, "between": "users"}) as w:
        enter(w, "first", user="ann", gpus=(3, 3), steps=1e6)
        w.turn(1.0)
        enter(w, "second", user="bob", gpus=(3, 3), steps=1e6)
        enter(w, "third", user="eve", gpus=(3, 3), steps=1e6)
        run_for(w, HOUR / 60)
        yield w


def test_what_was_lent_is_what_others_had_on_top(shared: World, tmp_path: Path) -> None:
    found = api_of(shared, tmp_path).Fairness(schema.UsersRequest())
    rows = {row.user: row for row in found.users}
    assert rows.keys() == {"ann", "bob", "eve"}
    assert found.whole
    assert found.between == "users"
    held = shared.ask(lambda a: a.now()) / 3600
    assert sum(sum(row.leased) for row in found.users) <= 3 * held + 1e-9
    assert [row.balance for row in found.users] == sorted(row.balance for row in found.users), (
        "the furthest behind first"
    )
    for row in found.users:
        assert len(row.entitled) == len(row.leased)
        assert row.balance == pytest.approx(sum(row.leased) - sum(row.entitled))
    assert found.loans
    for loan in found.loans:
        assert rows[loan.lender].balance < rows[loan.borrower].balance


def test_a_user_sees_themselves_and_the_sum_of_all_others(shared: World, tmp_path: Path) -> None:
    every = api_of(shared, tmp_path).Fairness(schema.UsersRequest())
    found = api_of(shared, tmp_path, "bob", admin=False).Fairness(schema.UsersRequest())
    assert [row.user for row in found.users] == ["bob", ""]
    total = sum(sum(row.leased) for row in every.users)
    assert sum(sum(row.leased) for row in found.users) == pytest.approx(total)
    assert all("bob" in (loan.lender, loan.borrower) for loan in found.loans)
    with pytest.raises(Exception, match="only eve and administrators may see the course of eve"):
        api_of(shared, tmp_path, "bob", admin=False).Fairness(schema.UsersRequest(user="eve"))


def test_a_long_journal_is_read_in_pieces(shared: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = api_of(shared, tmp_path).Fairness(schema.UsersRequest())
    monkeypatch.setattr(fairness, "MOST_RECORDS", 2)
    api, calls = api_of(shared, tmp_path), 0
    while not (found := api.Fairness(schema.UsersRequest())).whole:
        calls += 1
    assert calls >= 3
    assert found == whole


def test_budgets_say_what_is_used_and_only_to_whom_they_apply(tmp_path: Path) -> None:
    users = {"u": UserSettings(budget=Budget(soft=0.5, hard=10.0, per="day"))}
    with world(tmp_path, 3, users=users, **LEASE) as w:
        enter(w, "mine", gpus=(2, 2), steps=1e6)
        run_for(w, HOUR / 2)
        (row,) = api_of(w, tmp_path).Budgets(schema.UsersRequest()).budgets
        assert (row.name, row.of, row.per, row.soft, row.hard) == ("user u", "gpu_hours", "day", 0.5, 10.0)
        assert 0.5 < row.used < 1.1
        assert row.ends is not None
        assert not api_of(w, tmp_path, "eve", admin=False).Budgets(schema.UsersRequest()).budgets


def kept(home: Path) -> Iterator[tuple[World, HttpServer]]:
    with serving(home, door=Door(changed, Config, back_up_apart)) as made:
        yield made


keeping = pytest.fixture(kept, name="keeping")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def test_changes_of_settings_are_listed_the_newest_first(keeping: tuple[World, HttpServer]) -> None:
    call = Caller(keeping[1].port)
    for value in ("5m", "6m"):
        assert call("PUT", "/v1/settings", {"values": {"lease": value}})[0] == 200
    status, found = call("GET", "/v1/settings/history")
    assert status == 200
    assert [row["values"] for row in found] == [{"lease": "6m"}, {"lease": "5m"}]
    assert {row["user"] for row in found} == {"u"}
    assert call("GET", "/v1/settings/history?limit=1")[1] == found[:1]


def test_a_backup_is_made_listed_and_can_be_restored(keeping: tuple[World, HttpServer], home: Path) -> None:
    from themis.service.operations.backups import restore

    call = Caller(keeping[1].port)
    assert call("GET", "/v1/journal")[1]["backups"] == []
    status, made = call("POST", "/v1/backups", {})
    assert status == 201, made
    found = call("GET", "/v1/journal")[1]
    assert [row["name"] for row in found["backups"]] == [made["name"]]
    assert int(found["records"]) > 0
    assert found["bytes"] > 0
    assert restore(home / "backups" / made["name"], home / "again").records > 0


def test_only_administrators_see_the_journal_and_make_backups(keeping: tuple[World, HttpServer]) -> None:
    admin = Caller(keeping[1].port)
    eve = Caller(keeping[1].port, admin("PUT", "/v1/users/eve", {})[1]["token"])
    for method, path in (("GET", "/v1/journal"), ("GET", "/v1/settings/history"), ("POST", "/v1/backups")):
        status, value = eve(method, path)
        assert (status, "only administrators may" in value["error"]) == (403, True), value
    assert eve("GET", "/v1/fairness")[0] == eve("GET", "/v1/budgets")[0] == 200
