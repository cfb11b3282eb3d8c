"""The protocol of node agents: every message survives its way, and nothing else gets through."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from themis.errors import InputError
from themis.machines.agent.cells import Cell
from themis.machines.agent.channel import ChannelClosed, SocketChannel, connect, listen
from themis.machines.agent.environment import rank_env
from themis.machines.agent.messages import (
    PIECE,
    DiskUse,
    Forget,
    Go,
    Hello,
    Lease,
    Message,
    Piece,
    Prepare,
    ProtocolError,
    Renew,
    Stop,
    TaskReport,
    TaskSpec,
    TaskState,
    TaskUse,
    Tell,
    Upload,
    decode,
    encode,
    packed,
)
from themis.machines.agent.node_agent import AgentSettings, NodeAgent, of_machine
from themis.machines.agent.tasks import READ_AT_MOST, Task, _make_for, as_report
from themis.machines.engines.program import Ending, ending_of

SPEC = TaskSpec(
    task="t",
    app=1,
    job=2,
    attempt=3,
    argv=("a", "b"),
    cwd="/",
    env={"K": "v"},
    user="",
    ranks=(2, 3),
    world_size=4,
    devices=("0", "GPU-1"),
    gpus=4,
    machine=1,
    machines=2,
    per_machine=False,
    grace_s=60.0,
    stop_signal="SIGTERM",
    checkpoint_dir="/c",
    make_checkpoint_dir=True,
    target=1e6,
    log_bytes=1000,
)
MESSAGES: tuple[Message, ...] = (
    Hello(
        node="m",
        trust="single",
        tasks=(TaskState(task="t", phase="ended", codes=(0, -9), first=-9),),
        reports=(TaskReport(task="t", steps=1.0, saved=0.0),),
    ),
    Renew(sequence=4),
    TaskState(task="t", phase="running", port=20000),
    TaskReport(task="t", steps=5.0, saved=0.0, loss=None),
    Lease(sequence=4, lease_s=30.0),
    Prepare(spec=SPEC),
    Go(task="t", env={"MASTER_PORT": "1"}),
    Stop(task="t", cause="expired", grace_s=1.5),
    DiskUse(disk="d", free=1, size=2, tasks=(TaskUse(task="t", bytes=1, grew=0, seconds=1.0),)),
    Tell(task="t", message="m"),
    Forget(task="t"),
    Piece(bundle="b", offset=5, size=300, data=bytes(range(256)) + b"\n{\n"),
    Upload(task="t", number=1, offset=0, size=3, final=True, data=b"\n\n\n"),
    Upload(task="t", number=1, offset=0, size=0, final=True),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_survives_its_encoding(message: Message) -> None:
    left, right = socket.socketpair()
    SocketChannel(left).send(message)
    channel = SocketChannel(right)
    assert channel.receive(1.0) == [message]
    for end in (left, right):
        end.close()


@pytest.mark.parametrize("count", [PIECE + 1, -1, True, 1.0, "3", None])
def test_bytes_that_a_message_may_not_announce_are_refused_before_they_come(count: object) -> None:
    line = {**encode(Upload(task="t", number=1, offset=0, size=3, final=False)), "data": count}
    left, right = socket.socketpair()
    left.sendall(json.dumps(line).encode() + b"\n")
    with pytest.raises(ProtocolError, match=r"announces .* bytes, expected at most"):
        SocketChannel(right).receive(1.0)
    for end in (left, right):
        end.close()


def test_bytes_behind_a_message_that_has_none_are_the_next_line() -> None:
    left, right = socket.socketpair()
    left.sendall(b'{"kind": "Renew", "sequence": 1, "data": 5}\n{"kind": "Renew", "sequence": 2}\n')
    assert SocketChannel(right).receive(1.0) == [Renew(sequence=1), Renew(sequence=2)]
    for end in (left, right):
        end.close()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "expected an object"),
        ({"kind": "Launch"}, "kind is one of Hello"),
        ({"kind": "Stop", "task": "t"}, "lacks fields"),
        ({"kind": "Renew", "sequence": "4"}, r"Renew.sequence is '4'"),
        ({"kind": "Renew", "sequence": True}, r"Renew.sequence is true"),
    ],
)
def test_what_is_not_in_the_protocol_is_named(data: object, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode(data)


def test_a_newer_side_may_say_more() -> None:
    assert decode({"kind": "Renew", "sequence": 1, "load": 0.5}) == Renew(sequence=1)


def test_messages_arrive_whole_and_in_order_however_they_are_cut() -> None:
    left, right = socket.socketpair()
    channel = SocketChannel(right)
    wire = b"".join(map(packed, MESSAGES))
    got: list[Message] = []
    for i in range(0, len(wire), 7):
        left.sendall(wire[i : i + 7])
        got += channel.receive(1.0)
    assert tuple(got) == MESSAGES
    left.close()
    with pytest.raises(ChannelClosed):
        channel.receive(1.0)
    channel.close()


def test_sockets_work_in_folders_deeper_than_their_names_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / ("deep" * 30) / "agents.sock"
    assert connect(path) is None
    server = listen(path)
    client = connect(path)
    assert client is not None
    accepted = SocketChannel(server.accept()[0])
    client.send(Renew(sequence=1))
    assert accepted.receive(1.0) == [Renew(sequence=1)]
    assert path.stat().st_mode & 0o077 == 0, "only its owner may connect"
    for thing in (client, accepted, server):
        thing.close()


def test_a_process_with_a_thousand_files_open_still_hears_its_agents() -> None:
    left, right = socket.socketpair()
    try:
        far = fcntl.fcntl(right, fcntl.F_DUPFD_CLOEXEC, 1100)
    except OSError:
        pytest.skip("this process may not have so many")
    channel = SocketChannel(socket.socket(fileno=far))
    left.sendall(b'{"kind": "Renew", "sequence": 1}\n')
    assert channel.receive(1.0) == [Renew(sequence=1)]
    for thing in (channel, left, right):
        thing.close()


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from(["steps", "saved", "loss", "step_s", "reached"]), json_values))
def test_whatever_a_job_writes_its_report_holds_finite_numbers(said: dict[str, object]) -> None:
    report = as_report("t", said)
    assert 0 <= report.steps < float("inf")
    assert 0 <= report.saved < float("inf")
    assert 0 <= report.step_s < float("inf")
    assert decode(json.loads(json.dumps(encode(report)))) == report


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"steps": 1' + "0" * 400 + "}", '{"loss": -1' + "0" * 400 + "}", "1" * 5000]
)
def test_no_line_that_a_job_writes_ends_the_agent(tmp_path: Path, line: str) -> None:
    task = _task(tmp_path, line, '{"steps": 7}')
    report = task.report()
    assert report is not None
    assert (report.steps, report.loss) == (7.0, None)


def test_half_a_report_waits_for_its_other_half_and_all_of_it_can_be_said_again(tmp_path: Path) -> None:
    task = _task(tmp_path, '{"steps": 5, "saved": 4, "step_s": 0.5}')
    file = task.folder / "reports" / "reports.jsonl"
    assert task.report() == TaskReport(task="t", steps=5.0, saved=4.0, step_s=0.5)
    for part, expected in (('{"rea', None), ('ched": true}\n', True)):
        with file.open("a") as out:
            out.write(part)
        found = task.report()
        assert (found and found.reached) == expected
    again = TaskReport(task="t", steps=5.0, saved=4.0, reached=True)
    assert task.whole_report() == again
    assert Task(tmp_path, "t").whole_report() == again, "by an agent that starts anew"


def test_an_agent_that_starts_beside_a_job_of_weeks_reads_what_it_said_last(tmp_path: Path) -> None:
    task = _task(tmp_path, *[f'{{"steps": {i}}}' for i in range(100_000)])
    assert (task.folder / "reports" / "reports.jsonl").stat().st_size > READ_AT_MOST
    report = task.whole_report()
    assert report is not None
    assert report.steps == 99_999.0


def test_an_agent_starts_beside_a_folder_that_a_loss_of_power_cut_short_and_says_all_it_knows(tmp_path: Path) -> None:
    task = _task(tmp_path, '{"steps": 9, "saved": 8, "step_s": 0.1}')
    (task.folder / "status.json").write_text('{"phase": "ended", "began": 1, "ended": 3, "codes": [0]}')
    cut = tmp_path / "tasks" / "job7-attempt1"
    cut.mkdir()
    (cut / "task.json").touch()
    heard: list[Message] = []

    class Recorder:
        send = staticmethod(heard.append)

    agent = NodeAgent(settings=AgentSettings(node="m", root=tmp_path), dial=lambda: Recorder())  # type: ignore[arg-type, return-value]
    agent.adopt()
    assert not cut.exists()
    agent._connect()
    (hello,) = heard
    assert isinstance(hello, Hello)
    assert [(state.task, state.phase) for state in hello.tasks] == [("t", "ended")]
    assert hello.reports == (TaskReport(task="t", steps=9.0, saved=8.0),)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "machine"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "machine"),
        (OSError(errno.EMFILE, "Too many open files"), "machine"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "machine"),
        (OSError(errno.EROFS, "Read-only file system"), "machine"),
        (PermissionError(errno.EACCES, "Permission denied"), "not_started"),
        (InputError("user 'x' does not exist on this machine."), "not_started"),
    ],
)
def test_what_a_machine_lacks_is_not_the_jobs_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, cause: str
) -> None:
    def fails(*_: object, **__: object) -> Task:
        raise error

    monkeypatch.setattr(Task, "prepare", fails)
    agent = NodeAgent(settings=AgentSettings(node="m", root=tmp_path), dial=lambda: None, deadline=1e12)
    agent.handle(Prepare(spec=SPEC))
    assert [(state.phase, state.cause, state.message) for state in agent.states()] == [("ended", cause, str(error))]
    ending = Ending.NODE_LOST if cause == "machine" else Ending.NOT_STARTED
    assert ending_of(asked=False, cause=cause, code=None) is ending


def test_a_full_disk_below_the_checkpoints_is_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(InputError, match="No space left") as caught:
        _make_for(tmp_path / "app0" / "job0", SPEC)
    assert of_machine(caught.value)


def _task(root: Path, *lines: str) -> Task:
    """A task's folder with what its rank 0 wrote."""
    folder = root / "tasks" / "t"
    (folder / "reports").mkdir(parents=True)
    ranks = [{"THEMIS_RUN_DIR": str(folder)}]
    raw = {"spec": dataclasses.asdict(SPEC), "port": 1, "ranks": ranks, "cwd": "/", "logs": [str(folder / "rank0.log")]}
    raw["cell"] = dataclasses.asdict(Cell())
    (folder / "task.json").write_text(json.dumps(raw))
    (folder / "reports" / "reports.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return Task(root, "t")


def test_names_of_slurm_and_of_the_agent_itself_do_not_reach_a_job() -> None:
    outer = {"PATH": "/bin", "SLURM_JOB_ID": "1", "SECRET": "s", "HOME": "/h"}
    env = rank_env(SPEC, 1, "/run", outer)
    assert (env["PATH"], env["HOME"], env["K"]) == ("/bin", "/h", "v")
    assert not {"SLURM_JOB_ID", "SECRET"} & set(env)
    assert (env["RANK"], env["LOCAL_RANK"], env["CUDA_VISIBLE_DEVICES"]) == ("3", "1", "0,GPU-1")
