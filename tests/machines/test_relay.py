"""The relay without any engine: a real agent behind it, its caller here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import left_of, wait_until
from themis.errors import InputError
from themis.machines.agent.channel import ChannelClosed
from themis.machines.agent.gpus import Claim, claim_all, release
from themis.machines.agent.messages import Hello, Lease, Message, Renew, decode, encode
from themis.machines.agent.relay import Relay, not_planted
from themis.machines.engines import ray_actor
from themis.machines.engines.ray_nodes import as_node

slow = pytest.mark.slow


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    """A relay whose agent is gone when the test is over."""
    made = Relay("m0", str(tmp_path / "m0"), "me", 0, ("--renew-s", "0.2", "--allow-root"))
    yield made
    made.close()
    for pid in left_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


def talk(relay: Relay, session: int, until: type[Message]) -> list[Message]:  # type: ignore[type-arg]
    """What the agent says up to a message of this kind; its lease is renewed, so that it stays."""
    heard: list[Message] = []
    data = b""

    def came() -> bool:
        nonlocal data
        data += relay.receive(session, 0.2)
        *lines, data = data.split(b"\n")
        for message in (decode(json.loads(line)) for line in lines):
            heard.append(message)
            if isinstance(message, Renew):
                lease = Lease(sequence=message.sequence, lease_s=60.0)
                relay.send(session, json.dumps(encode(lease)).encode() + b"\n")
        return any(isinstance(message, until) for message in heard)

    wait_until(came, lambda: f"a {until.__name__} came; heard {heard}")
    return heard


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of others")
def test_folders_that_another_user_planted_are_refused(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    for folder in (shared / "themis", shared / "mine"):
        (folder / "m0").mkdir(parents=True)
    os.chown(shared / "themis", 65534, 65534)
    with pytest.raises(InputError, match="themis is another user's"):
        not_planted(shared / "themis" / "m0")
    not_planted(shared / "mine" / "m0")
    (shared / "link").symlink_to(shared / "mine")
    with pytest.raises(InputError, match="another user's"):
        not_planted(shared / "link" / "m0")


@slow
def test_a_conversation_begins_with_the_agents_hello_also_the_second_time(relay: Relay) -> None:
    for _ in range(2):
        session = relay.open("me")
        heard = talk(relay, session, Renew)
        assert isinstance(heard[0], Hello)
        assert heard[0].node == "m0"
        time.sleep(0.3)  # the agent takes its lease in
    assert relay.spawns == 1
    relay.end()
    wait_until(lambda: not relay.kept(), "the agent ended")


@slow
def test_the_agent_is_no_child_of_the_relay(relay: Relay) -> None:
    talk(relay, relay.open("me"), Hello)
    (agent,) = left_of(relay.root)
    assert int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1]) != os.getpid()
    assert not [n for n in Path(f"/proc/{agent}/environ").read_bytes().split(b"\0") if n.startswith(b"RAY_")]


@slow
def test_a_later_relay_of_the_folder_gets_the_agent_even_if_nobody_calls_the_first(relay: Relay) -> None:
    old = relay.open("me")
    talk(relay, old, Renew)
    time.sleep(0.3)  # the agent takes its lease in
    later = Relay("m0", str(relay.root), "me", 0, relay.options)
    assert isinstance(talk(later, later.open("me"), Hello)[0], Hello)
    assert later.spawns == 0
    with pytest.raises(ChannelClosed, match="another relay"):
        relay.receive(old)
    later.close()


def test_an_earlier_conversation_is_over_when_another_begins_and_strangers_are_refused(relay: Relay) -> None:
    first = relay.open("me")
    relay.open("me")
    with pytest.raises(ChannelClosed, match="another conversation"):
        relay.receive(first)
    with pytest.raises(ChannelClosed, match="no agent"):
        relay.send(first, b"")
    with pytest.raises(ChannelClosed, match="kept by another service"):
        relay.open("somebody")


def test_logs_are_read_once_and_to_their_end_also_when_they_begin_anew(relay: Relay) -> None:
    log = relay.root / "logs" / "t" / "rank-0.log"
    log.parent.mkdir(parents=True)
    (relay.root / "tasks" / "t").mkdir(parents=True)
    log.write_bytes(b"one ")
    assert relay.logs() == [("logs/t/rank-0.log", True, b"one ")]
    with open(log, "ab") as file:
        file.write(b"two ")
    assert relay.logs() == [("logs/t/rank-0.log", False, b"two ")]
    log.rename(log.with_name("rank-0.log.1"))
    log.write_bytes(b"three")
    (relay.root / "tasks" / "t").rmdir()
    assert relay.logs() == [("logs/t/rank-0.log", True, b"three")]
    assert relay.logs() == []
    assert relay.read == {}


NICER = """
import os
import subprocess
import sys
from themis.machines.engines.ray_actor import no_nicer_than
print(no_nicer_than(os.getppid()), subprocess.run(["nice"], capture_output=True, text=True).stdout)
"""


def test_what_an_engine_made_nicer_is_as_nice_as_its_parent_again_where_that_is_allowed() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    out = subprocess.run(
        ["nice", "-n", "5", sys.executable, "-c", NICER], capture_output=True, text=True, check=True
    ).stdout
    assert os.geteuid() != 0 or list(map(int, out.split())) == [own, own]
    assert len({int(word) for word in out.split()}) == 1, "what it starts is as nice as it"


def test_nodes_are_named_by_label_or_id_and_never_by_address() -> None:
    entry = {
        "NodeID": "ab" * 28,
        "Alive": True,
        "NodeManagerAddress": "10.0.0.7",
        "NodeName": "10.0.0.7",
        "Resources": {"GPU": 4.0, "accelerator_type:A100": 1.0, "node:10.0.0.7": 1.0},
        "Labels": {"ray.io/node-id": "ab" * 28, "ray.io/availability-zone": "z 1"},
    }
    node = as_node(entry)
    assert node is not None
    assert (node.name, node.gpus, node.gpu_type, node.rack) == ("ray-abababababab", 4, "A100", "z-1")
    more = {"themis-node": "big1", "themis-rack": "r7", "ray.io/accelerator-type": "H200"}
    named = as_node(entry | {"Labels": entry["Labels"] | more})  # type: ignore[operator]
    assert named is not None
    assert (named.name, named.gpu_type, named.rack, named.address) == ("big1", "H200", "r7", "10.0.0.7")
    assert as_node(entry | {"Alive": False}) is None
    assert as_node(entry | {"Resources": {"GPU": 0.5}}) is None
    assert as_node(entry | {"Resources": {"CPU": 8.0}}) is None


def test_relays_of_one_machine_claim_different_gpus_the_engines_choice_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("themis.machines.agent.relay.nvml_gpus", lambda: [(f"GPU-{i}", "X") for i in range(4)])
    monkeypatch.setattr("themis.machines.agent.gpus.claim.__defaults__", (tmp_path / "claims",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    relays = [Relay(f"m{n}", str(tmp_path / f"m{n}"), "me", gpus) for n, gpus in enumerate((1, 2, 2, 8))]
    assert [relays[n].describe()["devices"] for n in (0, 1)] == [["GPU-2"], ["GPU-3", "GPU-0"]]
    with pytest.raises(InputError, match="1 of 4 GPUs of this machine are free, 2 are wanted"):
        relays[2].describe()
    assert relays[3].describe()["devices"] == [], "the engine counts more than there are: slots"
    relays[1].close()
    assert relays[2].describe()["devices"] == ["GPU-3", "GPU-0"]
    for relay in (relays[0], *relays[2:]):
        relay.close()


@slow
def test_gpus_stay_claimed_as_long_as_the_agent_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("themis.machines.agent.relay.nvml_gpus", lambda: [("GPU-0", "X")])
    monkeypatch.setattr("themis.machines.agent.gpus.claim.__defaults__", (tmp_path / "claims",))
    first, other = (Relay(n, str(tmp_path / n), "me", 1, ("--renew-s", "0.2", "--allow-root")) for n in ("m0", "m1"))
    assert first.describe()["devices"] == ["GPU-0"]
    talk(first, first.open("me"), Renew)
    time.sleep(0.3)  # the agent takes its lease in
    first.close()
    with pytest.raises(InputError, match="0 of 1 GPUs"):
        other.describe()
    again = Relay("m0", str(tmp_path / "m0"), "me", 1)
    assert again.describe()["devices"] == ["GPU-0"], "those of its agent"
    again.end()
    wait_until(lambda: not left_of(tmp_path), "the agent ended")
    assert other.describe()["devices"] == ["GPU-0"]
    again.close()
    other.close()


HOLDER = """
import sys
from pathlib import Path
from themis.machines.agent.node_agent import hold
hold(Path(sys.argv[1]))
print(flush=True)
input()
"""


def test_two_homes_of_one_machine_never_have_the_same_gpu_but_one_home_finds_its_jobs_again(tmp_path: Path) -> None:
    devices, folder = ["GPU-0", "GPU-1"], tmp_path / "claims"

    def start(home: str, devices: list[str] = devices) -> list[Claim]:
        return claim_all(devices, tmp_path / home, [tmp_path / home / "m0"], folder)

    first = start("one")
    with pytest.raises(InputError, match="0 of 2 GPUs"):
        start("two")
    agent = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "one" / "m0")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[held.lock for held in first],
    )
    assert agent.stdout is not None
    agent.stdout.readline()
    release(first)  # the arbiter was killed; its agent lives
    with pytest.raises(InputError, match="0 of 2 GPUs"):
        start("two")
    again = start("one")
    agent.communicate(b"\n")
    with pytest.raises(InputError, match="0 of 1 GPUs"):
        start("two", ["GPU-1"])
    release(again)
    other = start("two", ["GPU-1"])
    with pytest.raises(InputError, match="1 of 2 GPUs"):
        start("one")
    release(other)
    (own,) = (tmp_path / "claims").iterdir()
    assert own.stat().st_mode & 0o7777 == 0o711
    assert {path.stat().st_mode & 0o7777 for path in own.iterdir()} == {0o600}


def test_a_thread_that_ends_meanwhile_keeps_no_other_nice(monkeypatch: pytest.MonkeyPatch) -> None:
    nice = {0: 15, 7: 0, 12: 15}

    def of(which: int, who: int) -> int:
        if who not in nice:
            raise ProcessLookupError
        return nice[who]

    monkeypatch.setattr(os, "listdir", lambda path: ["11", "12"])
    monkeypatch.setattr(os, "getpriority", of)
    monkeypatch.setattr(os, "setpriority", lambda which, who, to: nice.update({who: to}))
    ray_actor.no_nicer_than(7)
    assert nice[12] == 0
