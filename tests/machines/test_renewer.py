"""Leases of machines are renewed while the service starts: as long as one lease, by the socket that the executor takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from live import LONG, grant, live, script

from processes import wait_until
from themis.machines.agent.channel import ChannelClosed, SocketChannel, connect
from themis.machines.agent.messages import Hello, Lease, Renew, TaskState
from themis.machines.engines.gangs import Gangs
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.program import Program
from themis.machines.engines.renewer import Renewer, before, note_lease, renewing, socket_file
from themis.model.cluster import Machine
from themis.model.events import JobProgress, JobReached, JobStopped, MachineFailed

LEASE_S = 30.0
Dial = Callable[[Path], SocketChannel]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a service that gave leases, and was killed."""
    socket_file(tmp_path).parent.mkdir()
    note_lease(tmp_path, LEASE_S)
    return tmp_path


@contextmanager
def renewer(root: Path, now: Callable[[], float]) -> Iterator[Renewer]:
    one = Renewer(root, now)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def dial() -> Iterator[Dial]:
    """Connects as the agent of m0, on which a gang runs."""
    opened: list[SocketChannel] = []

    def connected(root: Path) -> SocketChannel:
        channel = connect(socket_file(root))
        assert channel is not None
        opened.append(channel)
        channel.send(Hello(node="m0", trust="single", tasks=(TaskState(task="job0-attempt1", phase="running"),)))
        return channel

    yield connected
    for channel in opened:
        channel.close()


def answers(channel: SocketChannel, sequence: int, seconds: float = 10.0) -> list[Lease]:
    """The leases that come for a renewal, waiting for the first."""
    channel.send(Renew(sequence=sequence))
    while messages := channel.receive(seconds):
        if leases := [message for message in messages if isinstance(message, Lease)]:
            return leases
    return []


def test_an_agent_has_its_lease_renewed_before_there_is_an_executor(root: Path, dial: Dial) -> None:
    with renewing(root) as one:
        assert one is not None
        assert answers(dial(root), 7) == [Lease(sequence=7, lease_s=LEASE_S)]
    assert connect(socket_file(root)) is None, "nobody answers once the start is given up"


def test_where_no_service_ran_nothing_is_renewed(tmp_path: Path) -> None:
    with renewing(tmp_path / "run") as one:
        assert one is None
    assert list(tmp_path.iterdir()) == []


def test_all_starts_together_renew_for_one_lease_and_a_service_that_ran_begins_again(root: Path, dial: Dial) -> None:
    now = [1000.0]
    with renewer(root, lambda: now[0]):
        assert answers(dial(root), 1)
        now[0] += LEASE_S - 1
        assert answers(dial(root), 2)
    with renewer(root, lambda: now[0]):  # the service was killed, and starts again
        channel = dial(root)
        assert answers(channel, 3)
        now[0] += 1
        assert answers(channel, 4, 0.3) == []
    with renewer(root, lambda: now[0]):
        assert answers(dial(root), 5, 0.3) == []
    note_lease(root, LEASE_S)
    with renewer(root, lambda: now[0]):
        assert answers(dial(root), 6)


def test_a_start_that_nobody_asked_for_a_renewal_uses_none_of_the_time(root: Path, dial: Dial) -> None:
    now = [1000.0]
    with renewer(root, lambda: now[0]):
        now[0] += LEASE_S + 1
    with renewer(root, lambda: now[0]):
        assert answers(dial(root), 1)


def test_a_start_of_before_a_reboot_is_no_start_of_now(root: Path, dial: Dial) -> None:
    with renewer(root, lambda: 1000.0):
        assert answers(dial(root), 1)
    with renewer(root, lambda: 5.0):
        assert answers(dial(root), 1)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"lease_s": "x"}', '{"other": 1}', '{"lease_s": 3, "starting_since": []}']
)
def test_a_damaged_note_is_as_none(root: Path, text: str) -> None:
    (root / "arbiter" / "lease.json").write_text(text)
    assert before(root).lease_s == 0.0


def test_the_executor_takes_over_the_socket_and_agents_dial_again(root: Path, dial: Dial) -> None:
    with renewing(root) as one:
        channel = dial(root)
        assert answers(channel, 1)
        hosts = [Host(machine=Machine(name="m0", gpus=1))]
        executor = LocalExecutor(root, hosts, lambda app, index: Program(argv=("true",)), print, renewer=one)
        assert answers(channel, 2), "until it is started"
        executor.respawn = False
        executor._start_agents = lambda: None  # type: ignore[method-assign]
        executor.start()
        try:
            with pytest.raises(ChannelClosed):
                channel.receive(10.0)
            assert answers(dial(root), 1)[0].lease_s == executor.settings.lease_s
            assert before(root).lease_s == executor.settings.lease_s
        finally:
            executor.close()


def test_a_lease_of_the_service_before_is_waited_for_though_leases_are_shorter_now() -> None:
    hosts = [Host(machine=Machine(name="m0", gpus=1))]
    short = NodeSettings(lease_s=10.0, renew_s=3.0)
    gangs = Gangs(
        hosts, lambda app, index: Program(argv=("true",)), short, now=0.0, checkpoints="", lease_before_s=60.0
    )
    gangs.handle_message(0, Hello(node="m0", trust="single"), 1.0)
    gangs.handle_message(0, Renew(sequence=1), 1.0)
    assert not [event for event in gangs.tick(59.0) if isinstance(event, MachineFailed)]
    assert [event for event in gangs.tick(60.0) if isinstance(event, MachineFailed)]


@pytest.mark.slow
def test_agents_of_jobs_that_are_left_stay_and_serve_the_next_executor(tmp_path: Path) -> None:
    program = script("steps.py", 100, 0.05)
    with live(tmp_path, program, sweep=False, settings=LONG) as first:
        first.executor.submit(grant(1, (0, 1), target=100))
        first.until(JobProgress)
        agent = first.executor.agents[0].pid
        first.executor.close(stop_jobs=False)
        assert Path(f"/proc/{agent}").exists()
    with live(tmp_path, program, restored=[(grant(1, (0, 1), target=100), 0.0)], settings=LONG) as second:
        assert second.until(JobReached).steps == 100
        assert not [e for e in second.heard if isinstance(e, MachineFailed | JobStopped)]
        assert second.executor.agents == {}, "the one that was left serves"


@pytest.mark.slow
def test_an_agent_that_is_left_is_replaced_where_agents_are_to_run_otherwise(tmp_path: Path) -> None:
    program = script("steps.py", 200, 0.05)
    with live(tmp_path, program, sweep=False, settings=LONG) as first:
        first.executor.submit(grant(1, (0, 1), target=200))
        first.until(JobProgress)
        agent = first.executor.agents[0].pid
        first.executor.close(stop_jobs=False)
    other = replace(LONG, renew_s=1.0)
    with live(tmp_path, program, restored=[(grant(1, (0, 1), target=200), 0.0)], settings=other) as second:
        wait_until(lambda: not _lives(agent), "the agent that was left ended")
        assert second.until(JobReached).steps == 200
        assert not [e for e in second.heard if isinstance(e, MachineFailed | JobStopped)]
        assert 0 in second.executor.agents


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
