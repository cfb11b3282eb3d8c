"""Accounts of a journal over restarts, retention, repair and changes of prices; what users may see; the verbs."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from fake import World, world
from test_arbiter import enter

from audit import near
from processes import PATIENCE_S
from themis.cli import main
from themis.client.client import Client
from themis.errors import InputError
from themis.machines.engines.hosts import Host
from themis.model.cluster import Machine
from themis.schema import messages as schema
from themis.schema.wire import read
from themis.service.api import accounts
from themis.service.engine import state_snapshots
from themis.service.engine.books import Books
from themis.service.engine.config import Config
from themis.service.engine.journal import Journal
from themis.service.engine.repair import repair
from themis.service.operations.up import running
from themis.traces.profiles.models import DEFAULT_BOOK

DAY = 86400.0


def used(w: World, *by: str, **more: object) -> dict[tuple[str, ...], float]:
    """GPU hours by these names."""
    request = schema.UsageRequest(by=by, **more)  # type: ignore[arg-type]
    rows = w.ask(lambda a: accounts.usage(a, request)).users
    return {tuple(getattr(row, name) for name in by): row.gpu_hours for row in rows}


def test_gpu_hours_are_added_up_by_day_user_group_and_type(tmp_path: Path) -> None:
    with world(tmp_path, 2, clock=[DAY - 10.0], time_zone="UTC") as w:
        enter(w, "mine", gpus=(2, 2), steps=1e6)
        w.turn(30.0)
        days = used(w, "day", utc=True)
        assert days["1970-01-01",] == pytest.approx(20 / 3600, rel=1e-3)
        assert days["1970-01-02",] == pytest.approx(40 / 3600, rel=1e-3)
        w.finish(0, 1e6)
        assert used(w, "user", "gpu_type").keys() == {("u", "gpu")}
        both = used(w, "user", utc=True)
        assert near(both["u",], sum(used(w, "day").values()))
        only = used(w, "day", since=DAY + 5.0, until=DAY + 5.0)
        assert list(only) == [("1970-01-02",)]
        row = w.ask(lambda a: accounts.usage(a, schema.UsageRequest())).users[0]
        assert (row.apps, row.completed) == (1, 1)
        with pytest.raises(InputError, match=r"^by\[0\] is 'days', expected one of .*\. Did you mean 'day'\?$"):
            read(schema.UsageRequest, {"by": ["days"]})


def test_what_retention_drops_leaves_the_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_snapshots.maybe_take, "__kwdefaults__", {"every": 1})
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock, journal_keep_s=50.0, prices={"*": 3.6}, currency="EUR") as w:
        enter(w, "mine", steps=1e6)
        w.turn(20.0)
        w.finish(0, 1e6)
        before = w.ask(
            lambda a: (accounts.usage(a, schema.UsageRequest(by=["day"])), accounts.history(a, schema.HistoryRequest()))
        )
        for _ in range(5):
            w.turn(30.0)
            w.ask(lambda a: a.engine.feed(a.config.fairness(), a.instant))
        assert any(kind == "Compacted" for kind in kinds(w.arbiter.journal))
        after = w.ask(
            lambda a: (accounts.usage(a, schema.UsageRequest(by=["day"])), accounts.history(a, schema.HistoryRequest()))
        )
        assert after == before
        assert after[0].users[0].cost == pytest.approx(20 * 3.6 / 3600, rel=1e-3)
        assert (after[1].apps[0].currency, after[1].apps[0].attempts[0].cause) == ("EUR", "finished")
    with world(tmp_path, 2, clock=clock, journal_keep_s=50.0, prices={"*": 3.6}, currency="EUR") as w:
        assert w.ask(lambda a: accounts.usage(a, schema.UsageRequest(by=["day"]))) == before[0]


def kinds(journal: Journal) -> list[str]:
    return [kind for (kind,) in journal.db.execute("SELECT kind FROM records")]


def test_an_older_journal_of_which_records_were_dropped_keeps_its_gpu_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(state_snapshots.maybe_take, "__kwdefaults__", {"every": 1})
    monkeypatch.setattr(Books, "open", lambda *args: None)
    with world(tmp_path, 2, clock=clock, journal_keep_s=50.0) as w:
        enter(w, "over", steps=1e6)
        w.turn(20.0)
        w.finish(0, 1e6)
        enter(w, "runs", steps=1e6)
        for _ in range(5):
            w.turn(30.0)
            w.ask(lambda a: a.engine.feed(a.config.fairness(), a.instant))
        assert "Compacted" in kinds(w.arbiter.journal)
        attained = w.arbiter.state.apps_attained().tolist()
    monkeypatch.undo()
    with world(tmp_path, 2, clock=clock, journal_keep_s=50.0) as w:
        w.turn(1.0)
        found = used(w, "gpu_type")
        assert found["unknown",] >= attained[0] / 3600 * (1 - 1e-9)
        assert sum(found.values()) * 3600 == pytest.approx(sum(attained) + 1.0, abs=1e-3)


@pytest.mark.parametrize("table", ["leases", "usage"])
def test_damaged_accounts_are_made_again_from_the_records(tmp_path: Path, table: str) -> None:
    with world(tmp_path, 2) as w:
        enter(w, "mine", steps=1e6)
        w.turn(20.0)
        w.finish(0, 1e6)
        before = used(w, "user")
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute(f"UPDATE {table} SET user = 'mallory'")
    db.close()
    said: list[str] = []
    hosts = [Host(machine=Machine(name="m0", gpus=2))]
    assert repair(tmp_path / "journal.db", DEFAULT_BOOK, said.append, [host.machine for host in hosts])
    assert f"of the table {table}" in said[0]
    with world(tmp_path, 2) as w:
        assert used(w, "user") == before


# ---- over the API and the command line ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a service in which one app completed and one failed."""
    folder = tmp_path_factory.mktemp("accounts")
    config = Config(
        gpus=2,
        port=0,
        gather_s=0.0,
        retries=0,
        policy="fifo",
        allow_root=True,
        single_trust=True,
        prices={"*": 3600.0},
        currency="EUR",
    )
    with running(folder, config):
        with Client(folder) as client:
            client.wait(client.run(["sleep", "0.3"], name="good").app, timeout_s=PATIENCE_S)
            client.wait(client.run(["sh", "-c", "exit 3"], name="bad").app, timeout_s=PATIENCE_S)
        yield folder


@pytest.mark.slow
def test_history_selects_by_time_state_and_reason(home: Path) -> None:
    now = time.time()
    with Client(home) as client:
        assert [app.name for app in client.history()] == ["good", "bad"]
        assert [app.name for app in client.history(state=["failed"])] == ["bad"]
        assert [app.name for app in client.history(reason="failed")] == ["bad"]
        assert client.history(since=now + 60) == client.history(until=now - 3600) == client.history("nobody") == []
        good, bad = client.history(since=now - 3600)
        assert good.cost == pytest.approx(good.gpu_hours * 3600)
        assert good.gpu_hours == pytest.approx(good.useful_hours + good.restart_hours)
        (attempt,) = bad.attempts
        assert (attempt.ending, attempt.code, attempt.gpus, attempt.gpu_type) == ("failed", 3, 1, "gpu")
        with pytest.raises(
            InputError,
            match=r"state\[0\] is 'fail', expected one of completed, cancelled, failed. Did you mean 'failed'\?",
        ):
            client.history(state=["fail"])


@pytest.mark.slow
def test_users_see_their_own_accounts_and_administrators_all(home: Path) -> None:
    with Client(home) as client:
        token, address = client.add_user("eve"), client.address
        owner = client.history()[0].user
        assert client.usage(owner)
    with Client(home, address=address, token=token) as eve:
        assert eve.history() == eve.usage() == []
        for ask in (eve.history, eve.usage):
            with pytest.raises(InputError, match=f"Permission denied: only {owner} and administrators may see the"):
                ask(owner)


@pytest.mark.slow
def test_the_verbs_write_tables_json_csv_and_parquet(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        capfd.readouterr()
        code: object = 0
        try:
            main([*words, "--data-dir", str(home)])
        except SystemExit as end:
            code = end.code
        assert not code
        return capfd.readouterr().out

    assert "3600" not in run("usage", "--by", "user,gpu_type")
    assert run("usage", "--since", "7d").splitlines()[0].split()[:2] == ["user", "apps"]
    rows = list(csv.DictReader(io.StringIO(run("history", "--format", "csv"))))
    assert [row["name"] for row in rows] == ["good", "bad"]
    assert rows[0]["ended"].endswith("Z")
    assert json.loads(run("history", "-o", "json"))[1]["attempts"][0]["code"] == 3
    assert "failed (3)" in run("history", "--attempts")
    file = tmp_path / "bill.parquet"
    assert run("usage", "--by", "day,user", "-o", str(file)).startswith(f"{file}: 1 rows")
    frame = pl.read_parquet(file)
    assert frame["currency"].to_list() == ["EUR"]
    assert frame["cost"].sum() == pytest.approx(frame["gpu_hours"].sum() * 3600)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("usage", "-o", "bill.xls"),
            "'bill.xls', whose ending names no format; expected .csv, .json, .yaml or .parquet",
        ),
        (("history", "-o", "jsn"), "unknown output 'jsn'. Did you mean 'json'?"),
        (("history", "--format", "parquet"), "Parquet is not text, so it needs a file; add -o FILE.parquet."),
        (("usage", "--since", "lately"), "--since is 'lately', expected an age such as 7d"),
    ],
)
@pytest.mark.slow
def test_wrong_options_are_told_in_one_sentence(
    home: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*words, "--data-dir", str(home)])
    assert end.value.code == 2
    assert said in " ".join(capfd.readouterr().err.split())
