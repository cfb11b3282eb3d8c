"""The file of a fleet's machines: a join token is used once, a machine's next token ends the one before, each change is whole."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from themis.machines.agent.frames import Join
from themis.machines.agent.messages import ProtocolError
from themis.machines.engines.from_machines import Beginning, checked, own_hello
from themis.machines.engines.members import Members, NotAllowed

NOW = 1_000_000.0


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    found = Members(tmp_path / "fleet" / "fleet.db", clock=lambda: NOW)
    yield found
    found.close()


def wish(name: str = "m0", secret: str = "s", **more: object) -> Join:
    return Join(**{"secret": secret, "name": name, "gpus": 2, "gpu_type": "H200", **more})  # type: ignore[arg-type]


def test_a_token_is_used_once_and_its_rack_comes_before_the_machines_own(members: Members) -> None:
    members.add_token("s", 60.0, rack="r1")
    assert members.admit(wish(rack="r2"), "10.0.0.1")[0].rack == "r1"
    with pytest.raises(NotAllowed, match=r"was used at .* by machine m0"):
        members.admit(wish("m1"), "10.0.0.1")
    assert [member.name for member in members.all()] == ["m0"]


def test_a_machine_that_is_refused_uses_up_no_token(members: Members) -> None:
    for secret in ("one", "two"):
        members.add_token(secret, 60.0)
    members.admit(wish("m0", "one", devices=("GPU-a", "GPU-b")), "")
    with pytest.raises(NotAllowed, match="GPU GPU-b is the machine m0's; a GPU joins with one machine only"):
        members.admit(wish("m1", "two", devices=("GPU-c", "GPU-b")), "")
    with pytest.raises(NotAllowed, match="a machine named 'm0' has joined already"):
        members.admit(wish("m0", "two"), "")
    assert members.admit(wish("m1", "two"), "")[0].name == "m1"


def test_a_token_serves_until_the_next_one_is_used_and_removal_ends_all(members: Members) -> None:
    members.add_token("s", 60.0)
    _, first = members.admit(wish(), "")
    members.next_token("m0")  # it was lost on the way
    second = members.next_token("m0")
    assert members.entering("m0", first, "").name == "m0"  # the next one may not have arrived
    members.entering("m0", second, "")
    members.entering("m0", second, "")
    with pytest.raises(NotAllowed, match="the token of machine m0 is not the one that it was given last"):
        members.entering("m0", first, "")  # replayed
    with pytest.raises(NotAllowed, match="machine m9 has not joined this service"):
        members.entering("m9", second, "")
    members.leave("m0")
    members.entering("m0", second, "")  # its jobs end first
    unused = members.next_token("m0")
    members.remove("m0")
    for token in (second, unused, ""):
        with pytest.raises(NotAllowed, match="machine m0 was removed from the service"):
            members.entering("m0", token, "")


def test_the_file_has_no_token_and_a_machine_none_of_anothers(members: Members) -> None:
    tokens = []
    for name in ("m0", "m1"):
        members.add_token(name, 60.0)
        tokens += [members.admit(wish(name, name), "")[1], members.next_token(name)]
    for token in (*tokens[2:], "", "0" * 64):
        with pytest.raises(NotAllowed, match="is not the one that it was given last"):
            members.entering("m0", token, "")
    members.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not any(token.encode() in members.path.read_bytes() for token in tokens)


def test_a_process_that_is_killed_between_leaves_the_token_unused(tmp_path: Path) -> None:
    path = tmp_path / "fleet" / "fleet.db"
    with_token = Members(path)
    with_token.add_token("s", 600.0)
    body = (
        "import os, pathlib, signal, sys\n"
        "from themis.machines.engines.members import Members\n"
        "from themis.machines.agent.frames import Join\n"
        "members = Members(pathlib.Path(sys.argv[1]))\n"
        "members.db.create_function('die', 0, lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "members.db.execute('CREATE TEMP TRIGGER t AFTER INSERT ON members BEGIN SELECT die(); END')\n"
        "members.admit(Join(secret='s', name='m0', gpus=1, gpu_type='gpu'), '')\n"
    )
    done = subprocess.run([sys.executable, "-c", body, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert with_token.all() == []
    assert with_token.admit(wish(), "")[0].name == "m0"
    assert os.stat(path).st_mode & 0o777 == 0o600
    with_token.close()
    with sqlite3.connect(path) as db:
        assert b"s" not in [row[0].encode() for row in db.execute("SELECT hash FROM tokens")]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"name": "../x"}, "the machine's name is '../x'"),
        ({"gpu_type": "a b"}, "the GPU type is 'a b'"),
        ({"rack": "a/b"}, "the rack is 'a/b'"),
        ({"gpus": 0}, "the machine has 0 GPUs"),
        ({"gpus": 10**6}, "the machine has 1000000 GPUs"),
        ({"devices": ("GPU-a",)}, "the machine has 2 GPUs and names 1"),
    ],
)
def test_what_a_machine_says_of_itself_is_checked(more: dict[str, object], said: str) -> None:
    with pytest.raises(NotAllowed, match=said.replace("(", r"\(")):
        checked(wish(**{"name": "m0", **more}))  # type: ignore[arg-type]


def test_an_agent_may_speak_for_its_own_machine_only_and_begins_with_hello() -> None:
    begin, sent = Beginning("m0"), b'{"kind": "Hello", "node": "m0", "trust": "single"}\nmore'
    assert begin.passed(sent[:9]) == b""
    assert begin.passed(sent[9:]) == sent
    assert begin.passed(b" and more") == b" and more"
    with pytest.raises(NotAllowed, match="the agent of machine m0 speaks for machine 'm1', which it may not"):
        own_hello("m0", b'{"kind": "Hello", "node": "m1", "trust": "single"}')
    for line in (b'{"kind": "NodeFound"}', b'{"kind": "Renew", "sequence": 1}', b"x", b"[" * 100_000):
        with pytest.raises(ProtocolError):
            own_hello("m0", line)
