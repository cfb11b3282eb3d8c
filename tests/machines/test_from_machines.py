"""What machines send is bounded where it comes in: how much, to which files, and what waits for a machine that reads nothing."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_messages import SPEC

from extremes import EXTREMES
from themis.limits import IDS, REASON
from themis.machines.agent.channel import (
    LONGEST,
    MESSAGES_S,
    UNREAD_S,
    WINDOW_S,
    ChannelClosed,
    Rate,
    ServedChannel,
    SocketChannel,
)
from themis.machines.agent.messages import (
    Fetch,
    Message,
    NodeFound,
    NodeLies,
    Occupied,
    Piece,
    Prepare,
    ProtocolError,
    Renew,
    TaskReport,
    build,
    decode,
    encode,
    parsed,
)
from themis.machines.agent.tasks import as_report
from themis.machines.engines.bridged import BridgedExecutor
from themis.machines.engines.depot import MOST_WAITING, Depot
from themis.machines.engines.from_machines import STRAYS, LogCopies, make_place
from themis.machines.engines.gangs import REJECTIONS, Gangs
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.program import MachineRejected, Program
from themis.model.cluster import Machine
from themis.model.events import Event, MachineFailed, MachineJoined

TASK = "job2-attempt3"


# ---- texts, and what jobs have a say in -----------------------------------------------------------------------------------


def test_a_reason_is_cut_and_made_printable_and_the_message_stands() -> None:
    said = f"\x1b[31mred\x00{'x' * 10**6}"
    found = build(Occupied, {"gpus": [0], "pids": [7], "reason": said})
    assert len(found.reason) == REASON.longest
    assert found.reason.startswith("\ufffd[31mred\ufffdxxx")


def test_no_report_of_a_job_makes_its_machine_send_what_is_refused() -> None:
    fields = ("steps", "saved", "step_s", "loss", "epochs", "saved_epochs", "batch", "unsaved", "reached")
    for field, text in product(fields, EXTREMES.values()):
        try:
            values = json.loads(f'{{"steps": 5, "{field}": {text}}}')
        except (ValueError, RecursionError):
            continue  # the agent skips such lines
        report = as_report("t", values)
        assert decode(parsed(json.dumps(encode(report)).encode())) == report


def test_good_messages_before_a_bad_one_are_taken_in_first() -> None:
    left, right = socket.socketpair()
    channel = SocketChannel(right)
    left.sendall(
        b'{"kind": "Renew", "sequence": 1}\n{"kind": "Renew", "sequence": -1}\n{"kind": "Renew", "sequence": 2}\n'
    )
    assert channel.receive(1.0) == [Renew(sequence=1)]
    assert channel.wrong is not None
    with pytest.raises(ProtocolError, match=r"Renew.sequence is -1"):
        channel.receive(0.0)
    left.close()
    channel.close()


# ---- how much -------------------------------------------------------------------------------------------------------------


def test_a_machine_that_sends_too_much_within_a_window_is_refused_and_one_that_pauses_is_not() -> None:
    now = 0.0
    rate, most = Rate(lambda: now), int(MESSAGES_S * WINDOW_S)
    rate.take(100, most)
    now = WINDOW_S
    rate.take(100, most)
    with pytest.raises(ProtocolError, match=r"more than 50000 messages came within 10 s"):
        rate.take(100, 1)
    with pytest.raises(ProtocolError, match=r"bytes came within 10 s"):
        Rate(lambda: now).take(1 << 40, 1)


def test_a_line_without_an_end_is_refused() -> None:
    left, right = socket.socketpair()
    channel = ServedChannel(right, lambda: 0.0)
    while len(channel.buffer) < LONGEST:
        left.sendall(b"x" * (1 << 16))
        assert channel.receive(1.0) == []
    left.sendall(b"x")
    with pytest.raises(ProtocolError, match=f"a message has more than {LONGEST} bytes"):
        channel.receive(1.0)
    left.close()
    channel.close()


def test_a_machine_that_reads_nothing_makes_nobody_wait_and_is_hung_up_on() -> None:
    now = 0.0
    left, right = socket.socketpair()
    channel = ServedChannel(right, lambda: now)
    sent: list[Message] = [Prepare(spec=replace(SPEC, task=f"t{n}", cwd="/" * 50_000)) for n in range(40)]
    for message in sent:
        channel.send(message)
    assert channel.unsent
    now = UNREAD_S / 2
    reader, got = SocketChannel(left), list[Message]()
    while len(got) < len(sent):
        got += reader.receive(1.0)
        channel.flush()
    assert got == sent
    assert not channel.unsent
    for message in sent:
        channel.send(message)
    now += UNREAD_S
    with pytest.raises(ChannelClosed, match="reads nothing"):
        channel.flush()
    for end in (reader, channel):
        end.close()


def test_questions_of_a_machine_that_are_not_answered_yet_do_not_pile_up() -> None:
    go, answers = threading.Event(), list[tuple[int, Message]]()

    def answer(machine: int, message: Message) -> None:
        go.wait(60.0)
        answers.append((machine, message))

    depot = Depot(None, None, answer)
    spec = replace(SPEC, bundle="b" * 64)
    for n in range(100):
        depot.fetch(0, Fetch(bundle=spec.bundle, offset=n), [spec])
    depot.fetch(1, Fetch(bundle=spec.bundle, offset=0), [spec])
    go.set()
    depot._reader.shutdown(wait=True)
    assert [machine for machine, _ in answers] == [0] * MOST_WAITING + [1]
    assert all(isinstance(message, Piece) for _, message in answers)


# ---- logs -----------------------------------------------------------------------------------------------------------------


def test_output_of_tasks_that_a_machine_was_not_given_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    logs = LogCopies(tmp_path / "m0", most=1000)
    for n in range(STRAYS):
        logs.add(f"logs/job{n}-attempt1/rank-0.log", False, b"x" * 1000)
    assert not [*tmp_path.rglob("*")]
    with pytest.raises(ProtocolError, match=f"it sent {STRAYS} pieces of logs of tasks that it was never given"):
        logs.add("logs/job0-attempt1/rank-0.log", False, b"x")


def test_output_of_a_task_is_kept_within_its_bound_for_the_ranks_of_that_machine(tmp_path: Path) -> None:
    make_place(tmp_path / "m0", replace(SPEC, task=TASK, ranks=(2, 3)))
    logs = LogCopies(tmp_path / "m0", most=1000)
    for rank in (1, 2):
        for _ in range(5):
            logs.add(f"logs/{TASK}/rank-{rank}.log", False, b"y" * 300)
    logs.add(f"logs/{TASK}/rank-3.log", True, b"first")
    logs.add(f"logs/{TASK}/rank-3.log", True, b"again")
    there = {path.name: path.stat().st_size for path in (tmp_path / "m0" / "logs" / TASK).iterdir()}
    assert there == {"rank-2.log": 1000, "rank-3.log": 5, "rank-3.log.1": 5}
    assert logs.strays == 5
    for path in (
        f"logs/{TASK}/../x",
        f"logs/{TASK}/rank-x.log",
        f"logs/{TASK}/rank-2.log\x00",
        "logs/job1-attemptX/rank-0.log",
    ):
        with pytest.raises(ProtocolError, match=r"expected logs/TASK/rank-NUMBER\.log"):
            logs.add(path, False, b"x")
    with pytest.raises(ProtocolError, match="it sends a log that cannot be read"):
        logs.add_frame(b"")


# ---- machines of a bridge -------------------------------------------------------------------------------------------------


def bridged(tmp_path: Path, events: list[Event], *machines: Machine) -> BridgedExecutor:
    """An executor whose bridge never starts."""
    made = BridgedExecutor(tmp_path, lambda app, index: Program(argv=("true",)), events.append)
    for machine in machines:
        made._join(machine)
    return made


def test_what_a_bridge_refuses_counts_against_the_machine(tmp_path: Path) -> None:
    events: list[Event] = []
    with closing(bridged(tmp_path, events, Machine(name="m0", gpus=2), Machine(name="m1", gpus=2))) as executor:
        executor._obey([NodeLies(node="m1", reason="it sends a log '../x'."), NodeLies(node="m9", reason="x")])
        assert events == [MachineFailed(machine=1, reason="it sends a log '../x'.")]
        assert (executor.rejected(0), executor.rejected(1)) == ("", "it sends a log '../x'.")


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_node_that_cannot_be_is_left_out_and_the_others_join(tmp_path: Path, gpus: int) -> None:
    """Ray's nodes name their devices themselves."""
    events: list[Event] = []
    found = NodeFound(node="bad", gpus=gpus, gpu_type="H100", rack="r", address="10.0.0.1", devices=("GPU-a",))
    with closing(bridged(tmp_path, events)) as executor:
        executor._obey([found, replace(found, node="good", gpus=1)])
        assert [event.machine.name for event in events if isinstance(event, MachineJoined)] == ["good"]


def test_a_machine_is_read_again_after_a_while_that_doubles_and_after_the_last_time_when_it_is_pardoned() -> None:
    hosts = [Host(machine=Machine(name="m0", gpus=2))]
    book = Gangs(hosts, lambda app, index: Program(argv=("true",)), NodeSettings(), now=0.0, checkpoints="/c")
    node, waits = book.nodes[0], list[float]()
    for n in range(REJECTIONS):
        out = book.reject(0, f"reason {n}", 100.0 * n)
        waits.append(node.barred_until - 100.0 * n)
        assert [type(item) for item in out] == [MachineFailed] * (n == 0) + [MachineRejected] * (n == REJECTIONS - 1)
    assert waits == [10.0, 20.0, float("inf")]
    book.pardon(0)
    assert (node.barred_until, node.rejected) == (float("-inf"), "")
    assert book.reject(0, "again", 400.0) == [], "it has failed already, and counts from one"
    assert node.barred_until == 410.0


@given(st.integers(0, 2 * IDS.most), st.integers(1, 5))
def test_lists_are_bounded(many: int, steps: int) -> None:
    sent = {"kind": "TaskState", "task": "t", "phase": "ended", "codes": [0] * many}
    if many <= IDS.most:
        assert len(decode(sent).codes) == many  # type: ignore[union-attr]
    else:
        with pytest.raises(ProtocolError, match=f"TaskState.codes has {many} entries"):
            decode(sent)
    assert decode({"kind": "TaskReport", "task": "t", "steps": steps, "saved": 0}) == TaskReport(
        task="t", steps=steps, saved=0
    )
