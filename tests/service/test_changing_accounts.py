"""Prices, budgets, idle limits and the time zone of a running service change; every setting says whether it can."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import World, world
from test_arbiter import enter
from test_budgets import HOUR, LEASE, row, run_for
from test_changing import put, whole

from audit import near
from themis.errors import InputError
from themis.machines.engines.program import GangIdle
from themis.model.events import AccountingSet, SettingsChanged
from themis.service.api import prometheus
from themis.service.api import setting_calls as rows
from themis.service.engine.config import SETTINGS, Budget, Config, GroupSettings, Notify, UserSettings
from themis.service.engine.setting_changes import LIVE, RESTART, values_of, with_values
from themis.service.operations.changing import changed


def cost(w: World) -> dict[str, float]:
    """By currency."""
    out: dict[str, float] = {}
    for _, payer, amounts in w.ask(lambda a: a.engine.books.totals(a.instant, "0001-01-01", "9999-12-31")):
        out[payer.currency] = out.get(payer.currency, 0.0) + amounts.cost
    return out


def set_all(w: World, texts: dict[str, object]) -> list[str]:
    """As ``themis set``, by names that are no names of Python."""
    return put(w, "ann", **texts)


def test_every_setting_can_change_or_is_read_at_a_start() -> None:
    assert {*LIVE} | {*RESTART} == {*SETTINGS}
    for key in SETTINGS:
        with pytest.raises(InputError) as error:
            changed(Config(gpus=2), {key: "[?]"})
        assert "unknown setting" not in str(error.value) or key in ("users", "groups", "others"), error.value
    whole_config = Config(
        cluster=None,
        gpus=3,
        users={"a.b": UserSettings(weight=2.0, group="g", gpus=1, budget=Budget(hard=1.0, per="day"))},
        groups={"g": GroupSettings(weight=3.0, gpus=2, budget=Budget(soft=2.0, of="cost"))},
        others=GroupSettings(budget=Budget(hard=0.0)),
        prices={"H200": 3.5, "*": 1.0},
        currency="EUR",
        time_zone="Asia/Tokyo",
        idle_warn_s=60.0,
        idle_cancel_s=120.0,
    )
    assert with_values(Config(), values_of(whole_config)) == whole_config


def test_a_new_price_counts_from_then_on_within_a_lease_that_runs(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock, prices={"*": 2.0}, currency="EUR", **LEASE) as w:
        enter(w, steps=1e6)
        w.turn(HOUR)
        before = cost(w)["EUR"]
        assert set_all(w, {"price.*": 6, "price.gpu": 4}) == ["price.*: 2 -> 6", "price.gpu: none -> 4"]
        w.turn(HOUR)
        assert cost(w)["EUR"] - before == pytest.approx(4.0, rel=1e-3)
        put(w, currency="USD", time_zone="Asia/Tokyo", price__gpu="none")
        w.turn(HOUR)
        assert cost(w)["USD"] == pytest.approx(6.0, rel=1e-3)
        records = [r for _, r in w.arbiter.journal.records()]
        assert [r.prices for r in records if isinstance(r, AccountingSet)] == [
            (("*", 2.0),),
            (("*", 6.0), ("gpu", 4.0)),
            (("*", 6.0),),
        ]
        assert w.arbiter.engine.books.accounts is not None
        assert w.arbiter.engine.books.accounts.tariff.zone == "Asia/Tokyo"
        paid = cost(w)
        assert put(w, currency="none") == ["currency: USD -> none"]
        assert put(w, currency="USD") == ["currency: none -> USD"]
    with world(tmp_path, 2, clock=clock, prices={"*": 2.0}, currency="EUR", **LEASE) as w:
        w.turn(0.1)
        assert (w.arbiter.config.prices, w.arbiter.config.currency) == ({"*": 6.0}, "USD"), "set outlives a start"
        assert near(cost(w)["EUR"], paid["EUR"])
    with world(tmp_path, 2, clock=clock, prices={"*": 9.0}, currency="EUR", **LEASE) as w:
        w.turn(0.1)
        assert w.arbiter.config.prices == {"*": 9.0}, "what is given anew wins"
        assert w.arbiter.engine.books.accounts is not None
        assert w.arbiter.engine.books.accounts.tariff.prices == (("*", 9.0),)
    whole(tmp_path)


def test_a_group_that_a_user_joins_pays_from_then_on(tmp_path: Path) -> None:
    with world(tmp_path, 2, prices={"*": 1.0}, **LEASE) as w:
        enter(w, steps=1e6)
        w.turn(HOUR)
        put(w, groups__ml__weight=1)
        put(w, users__u__group="ml")
        w.turn(HOUR)
        totals = w.ask(lambda a: a.engine.books.totals(a.instant, "0001-01-01", "9999-12-31"))
        hours = {payer.group: amounts.leased / HOUR for _, payer, amounts in totals}
        assert hours == {"": pytest.approx(1.0, rel=1e-3), "ml": pytest.approx(1.0, rel=1e-3)}
    whole(tmp_path)


def test_budgets_are_given_raised_and_removed_while_apps_run(tmp_path: Path) -> None:
    with world(tmp_path, 2, **LEASE) as w:
        enter(w, steps=1e6)
        run_for(w, HOUR / 2)
        said = put(w, users__u__budget__hard=0.25, users__u__budget__per="day", users__u__budget__soft=0.1)
        assert "users.u.budget.hard: none -> 0.25" in said
        run_for(w, 180.0)
        assert (row(w).state, row(w).waits) == ("waiting", "budget")
        figures = {name: dict(found) for _, name, _, _, found in w.ask(prometheus._of_state)}
        assert figures["themis_apps_waiting"]["budget",] == 1.0
        put(w, users__u__budget__hard=100)
        run_for(w, 120.0)
        assert (row(w).state, w.arbiter.state.quotas) == ("running", {})
        assert "(soft limit) today" in row(w).warning
        put(w, users__u__budget__hard=0)
        run_for(w, 180.0)
        assert row(w).waits == "budget"
        put(w, users__u__budget="none", others__budget__soft=0.1)
        run_for(w, 120.0)
        assert (row(w).state, row(w).warning, w.arbiter.state.quotas) == ("running", "", {})
        assert all(user.budget is None for user in w.arbiter.config.users.values())
        put(w, users__u="none", others__budget="none", groups__g__weight=1, groups__g__budget__hard=1)
        assert w.arbiter.config.others.budget is None
        assert w.arbiter.config.groups == {"g": GroupSettings(budget=Budget(hard=1.0))}
        assert put(w, groups__g__budget__hard="none", groups__g__budget__per="none") == [
            "groups.g.budget.hard: 1 -> none"
        ]
        w.turn(1.0)
        assert w.arbiter.housekeeping.due is None
    whole(tmp_path)


def test_idle_limits_hold_for_gangs_that_are_idle_already(tmp_path: Path) -> None:
    with world(tmp_path, 1, idle_warn_s=60.0, **LEASE) as w:
        enter(w, steps=1e6)
        w.turn(1.0)

        def idle(seconds: float) -> None:
            w.say(GangIdle(app=0, job=0, attempt=1, gpu_seconds=0.0, idle_s=seconds, by="nvml"))

        idle(90.0)
        assert "did nothing" in w.arbiter.housekeeping.warnings(w.arbiter.instant)[0][0]
        put(w, idle_warn="5m")
        assert not w.arbiter.housekeeping.warnings(w.arbiter.instant)
        put(w, idle_warn="1m", idle_cancel="2m")
        idle(130.0)
        assert not w.arbiter.state.apps.active[0]
    whole(tmp_path)


def test_gpus_that_a_machine_gets_are_charged_by_its_type_also_after_a_start(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, gpus=1, clock=clock, prices={"*": 1.0}, **LEASE) as w:
        put(w, gpus=3)
        for name in "abc":
            enter(w, name, steps=1e6)
        w.turn(60.0)
        assert len(w.held()) == 3
        put(w, gpus=2)
        put(w, gpus=4, checkpoint_every="5s")
    with world(tmp_path, gpus=1, clock=clock, prices={"*": 1.0}, **LEASE) as w:
        enter(w, "d", steps=1e6)
        w.turn(60.0)
        assert len(w.held()) == 4
        assert w.arbiter.engine.books.accounts is not None
        assert len(w.arbiter.engine.books.accounts.leases.machines.machine_of) == 4
        assert w.arbiter.engine.books.accounts.leases.checkpoint_every_s == 5.0
    whole(tmp_path)


def test_addresses_of_notifications_are_neither_listed_nor_recorded(tmp_path: Path) -> None:
    secret = Notify(admins=("mailto://u:password@example.org",), users={"ann": ("slack://token",)})
    with world(tmp_path, 1, notify=secret) as w:
        found = w.ask(rows.settings)
        (notify,) = [r for r in found.settings if r.name == "notify"]
        assert (notify.value, notify.restart) == ("2 recipients", True)
        said = w.ask(lambda a: a.live.reload(Config(gpus=0, notify=Notify()), "ann", a.instant))
        assert "notify changes when the service starts again" in said
        assert not [
            r for _, r in w.arbiter.journal.records() if isinstance(r, SettingsChanged) and "notify" in r.values
        ]
    assert b"password" not in (tmp_path / "journal.db").read_bytes()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("price", "3", "price is a setting for each GPU type; expected `price.H200=3.5`"),
        ("price.gpu", "x", "gpu is 'x', expected a number"),
        ("price.gpu", "-1", "gpu is -1"),
        ("price.gpu", "nan", "gpu is 'nan'"),
        ("price.gpu", "none", "unknown price 'gpu'"),
        ("prise.gpu", "1", "unknown setting 'prise.gpu'"),
        ("currency", "12", "a currency of at most 10 letters"),
        ("time_zone", "Mars/One", "a time zone of the IANA database"),
        ("idle_cancel", "30s", "idle_cancel is 30 s, below idle_warn, 60 s"),
        ("users.u.budget", "5", "expected `users.u.budget.hard=50`"),
        ("users.u.budget", "none", "users.u has no budget"),
        ("users.u.budget.hart", "5", "unknown setting 'users.u.budget.hart'. Did you mean 'hard'"),
        ("users.u.budget.per", "year", "users.u.budget.per"),
        ("others.budget.of", "money", "others.budget.of"),
        ("notify.events", "[idle]", "notify.events changes only when the service starts: set it in config.yaml."),
    ],
)
def test_wrong_settings_of_accounts_are_one_sentence(name: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        changed(Config(gpus=2, idle_warn_s=60.0), {name: text})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
