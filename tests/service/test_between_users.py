"""The live service shares between users by default: weights, what callers see, and a restart with another unit."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import World, request, world

from themis.cli.table_columns import why_now
from themis.model.events import FairnessSet
from themis.service.api import views
from themis.service.api.submission import submit
from themis.service.engine.config import GroupSettings, UserSettings

TEAM = {
    "users": {
        "ada": UserSettings(group="vision"),
        "bob": UserSettings(weight=2.0, group="vision"),
        "eve": UserSettings(weight=0.37),
    },
    "groups": {"vision": GroupSettings(weight=3.0)},
}


def enter(w: World, name: str, user: str) -> int:
    return int(w.ask(lambda a: submit(a, request(name, user=user))).app)


def weights(w: World) -> list[float]:
    found: list[float] = w.ask(lambda a: a.state.apps.weight[: a.state.apps.size].tolist())
    return found


def units(w: World) -> list[str]:
    return [record.between for _, record in w.arbiter.journal.records() if isinstance(record, FairnessSet)]


def test_users_share_alike_however_many_apps_they_have(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        for i in range(3):
            enter(w, f"a{i}", "ada")
        enter(w, "b", "bob")
        assert weights(w) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0])
        rows = w.ask(views.share).users
        assert {row.user: row.fair for row in rows} == pytest.approx({"ada": 0.5, "bob": 0.5})
        assert {row.between for row in rows} == {"users"}
        reply = w.ask(lambda a: views.why(a, "0"))[2]
        assert (reply.between, reply.weight, reply.fair) == ("users", pytest.approx(1 / 3), pytest.approx(1 / 6))
        assert "Fair share: 17% of the cluster (weight 0.333; shared between users)." in why_now(reply)
        w.ask(lambda a: a.cancel(0))
        assert weights(w)[1:] == pytest.approx([0.5, 0.5, 1.0])


def test_groups_share_by_their_weights_and_users_within_them(tmp_path: Path) -> None:
    with world(tmp_path, 2, between="groups", **TEAM) as w:
        for name, user in (("a", "ada"), ("b", "bob"), ("c", "bob"), ("e", "eve"), ("f", "nobody")):
            enter(w, name, user)
        assert weights(w) == pytest.approx([1.0, 1.0, 1.0, 0.37, 1.0])


def test_a_restart_with_another_unit_says_so_in_the_journal(tmp_path: Path) -> None:
    with world(tmp_path, 2, between="apps", **TEAM) as w:
        enter(w, "a", "ada"), enter(w, "b", "ada"), enter(w, "c", "eve")
        assert weights(w) == [3.0, 3.0, 0.37]
        assert units(w) == []
    for between, expected in (("users", [1.5, 1.5, 0.37]), ("users", [1.5, 1.5, 0.37]), ("groups", [1.5, 1.5, 0.37])):
        with world(tmp_path, 2, between=between, **TEAM) as w:
            assert weights(w) == pytest.approx(expected)
    with world(tmp_path, 2, between="apps", **TEAM) as w:
        assert weights(w) == [3.0, 3.0, 0.37]
        assert units(w) == ["users", "groups", "apps"]
