"""The id by which an arbiter finds its nodes again, and leaves those of others alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from processes import left_of
from themis.client.home import owner_of
from themis.errors import InputError
from themis.machines.agent.channel import ChannelClosed
from themis.machines.agent.relay import Relay


def test_an_id_is_drawn_once_for_each_home_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    first = owner_of(tmp_path)
    assert owner_of(tmp_path) == first, "the next arbiter there is the same owner"
    path = tmp_path / "arbiter.id"
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    second = owner_of(tmp_path)
    assert second != first, "as on another machine, where the path is the same"
    assert second.rpartition(":")[0] == first.rpartition(":")[0]


def test_an_id_that_was_lost_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "arbiter.id").touch(mode=0o600)
    with pytest.raises(InputError, match="is empty; remove it"):
        owner_of(tmp_path)
    with pytest.raises(InputError, match="cannot read or create"):
        owner_of(tmp_path / "absent")


def test_nodes_are_found_again_by_the_same_home_alone(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    relay = Relay("n0", str(tmp_path / "n0"), owner_of(home))
    try:
        assert relay.open(owner_of(home)) < relay.open(owner_of(home))
        with pytest.raises(ChannelClosed, match="another service"):
            relay.open(owner_of(other))
    finally:
        relay.close()
        for pid in left_of(tmp_path):
            os.kill(pid, signal.SIGKILL)
