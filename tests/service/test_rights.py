"""Whose rights jobs have is said when a service starts and where users are added, exactly as it is."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from themis.cli import main
from themis.client.client import user_name
from themis.service.engine.config import Config
from themis.service.operations.rights import explained
from themis.service.operations.up import running

ROOT = os.geteuid() == 0
TOKEN = "can read the administrator's token in the data directory, and with it do all that administrators can"


@pytest.mark.parametrize(
    ("uid", "settings", "words"),
    [
        (1000, {}, f"jobs run as {user_name()}, the account of this service, so a job of any user {TOKEN}"),
        (1000, {"engine": "ray"}, f"jobs on this machine run as {user_name()}"),
        (
            0,
            {"single_trust": True, "allow_root": True},
            f"jobs run as root (single_trust, allow_root), so a job of any user {TOKEN}",
        ),
        (
            0,
            {"single_trust": True},
            "every job is refused. Start the service as another user, or without single_trust.",
        ),
        (0, {"allow_root": True}, "run as root (allow_root): an administrator's token controls the machine"),
        (0, {}, "this service runs as root: jobs run as their submitters' system users, and those of root are refused"),
    ],
)
def test_what_a_start_says_of_rights_is_what_holds(
    monkeypatch: pytest.MonkeyPatch, uid: int, settings: dict[str, object], words: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    assert words in explained(Config(**settings), 0)  # type: ignore[arg-type]


def test_users_with_tokens_are_counted_where_tokens_do_not_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "2 users have a token of their own: tokens protect users from mistakes, not from each other" in explained(
        Config(), 2
    )


@pytest.mark.slow
def test_a_service_says_so_when_it_starts_and_again_where_a_user_is_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(gpus=1, port=0, allow_root=ROOT, single_trust=True, node_renew_s=1)
    with caplog.at_level(logging.WARNING), running(tmp_path, config) as up:
        assert TOKEN in caplog.text
        monkeypatch.setattr(up.arbiter.executor, "trust", lambda machine: "single")
        main(["user", "add", "bob", "--home", str(tmp_path)])
    assert TOKEN in " ".join(capfd.readouterr().err.split())
