"""A state in a file: what a policy does there, and when an app will get GPUs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from themis.core.scheduler import Scheduler
from themis.errors import InputError, UnknownName
from themis.model.events import AppSubmitted, JobStarted, MachineJoined, Wake
from themis.policies.api import make_policy
from themis.sim.dump import decide, is_dump, parse, read, write
from themis.sim.onward import starts
from themis.testing.builders import NO_OVERHEAD, app, job, machines
from themis.traces.profiles.models import DEFAULT_BOOK


def busy(policy: str = "fifo", *, apps: int = 3, hours: float = 1.0) -> Scheduler:
    """One app on both GPUs for an hour, others waiting, each for as long."""
    rules = make_policy(policy)
    core = Scheduler(DEFAULT_BOOK, NO_OVERHEAD, rules.pace, rules.needs)
    from themis.model.answers import Ask
    from themis.model.events import Allocated, BidsCollected, CollectBids, Command, Event, Forced, Grant, Solve
    from themis.policies.api import Workbench
    from themis.policies.tuning.app_agent import answer_ask

    def feed(event: Event, now: float) -> None:
        for command in core.step(event, now):
            follow(command, now)

    def follow(command: Command, now: float) -> None:
        match command:
            case Solve():
                feed(Allocated(version=command.version, solved=rules(command.snapshot, Workbench())), now)
            case Forced():
                feed(Allocated(version=command.version, solved=command.solved), now)
            case CollectBids():
                assert isinstance(command.ask, Ask)
                feed(BidsCollected(version=command.version, bids=answer_ask(command.snapshot, command.ask)), now)
            case Grant():
                feed(JobStarted(job=command.job, attempt=command.attempt), now)

    for machine in machines(2).machines:
        feed(MachineJoined(machine=machine), 0.0)
    for n in range(apps):
        spec = app(f"a{n}", [job(hours * 3600 * 2, 2, model="generic")], float(n))
        feed(AppSubmitted(app=spec, weight=1.0), float(n))
        feed(Wake(), float(n))
    assert list(core.state.job_gpus) == [0]
    return core


def test_a_state_comes_back_from_its_file_and_any_policy_decides_on_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json.gz"
    path.write_bytes(write(busy(), "fifo"))
    assert is_dump(path)
    unpacked = tmp_path / "unpacked.json"
    unpacked.write_bytes(gzip.decompress(path.read_bytes()))
    assert is_dump(unpacked)
    assert read(unpacked).saved == read(path).saved
    own = decide(read(path))
    assert own.time == 60.0, "when the first leases end"
    assert [(p.job, p.gpus) for p in own.placed] == [(0, (0, 1))]
    other = decide(read(path), "themis")
    assert other.solved.proof.bid.any()
    assert other.solved.proof.bound >= other.solved.proof.objective
    assert len(other.placed) == 1


def test_equal_states_give_equal_files() -> None:
    assert write(busy(), "fifo") == write(busy(), "fifo")


def test_what_is_no_state_is_refused_in_words(tmp_path: Path) -> None:
    for data in (b"", b"nothing", gzip.compress(b"nothing"), gzip.compress(b"[1]"), write(busy(), "fifo")[:300]):
        with pytest.raises(InputError, match="not a state file that `themis dump` wrote"):
            parse(data)
    with pytest.raises(InputError, match=r"cannot read .*absent: No such file"):
        read(tmp_path / "absent")
    (tmp_path / "log").write_bytes(gzip.compress(b'{"t":0,"kind":"Header"}'))
    assert not is_dump(tmp_path / "log")
    assert not is_dump(tmp_path / "absent")
    with pytest.raises(UnknownName, match="policy"):
        decide(parse(write(busy(), "fifo")), "fifi")


def test_a_state_in_which_nobody_wants_anything_says_so() -> None:
    rules = make_policy("fifo")
    core = Scheduler(DEFAULT_BOOK, NO_OVERHEAD, rules.pace, rules.needs)
    core.step(MachineJoined(machine=machines(2).machines[0]), 0.0)
    with pytest.raises(InputError, match="nothing is to be decided"):
        decide(parse(write(core, "fifo")))


def test_apps_start_one_after_the_other_within_the_error_of_what_is_believed() -> None:
    dump = parse(write(busy(apps=3), "fifo"))
    first, second = starts(dump, 1, allowed_s=60.0), starts(dump, 2, allowed_s=60.0)
    assert len(first) == len(second) == 9
    assert 3600 * 0.8 - 3 <= first[0] <= 3598 <= first[-1] <= 3600 * 1.2
    assert first[0] < first[-1]
    assert 7200 * 0.8 - 3 <= second[0] <= 7198 + 1 <= second[-1] + 300 <= 7200 * 1.2 + 300
    assert starts(dump, 1, allowed_s=60.0) == first, "the same draws each time"


def test_what_never_starts_is_said_to_and_no_time_gives_no_estimate() -> None:
    dump = parse(write(busy(apps=3), "fifo"))
    assert starts(dump, 2, runs=1, allowed_s=60.0, horizon_s=10.0) == [float("inf")]
    assert starts(dump, 2, allowed_s=0.0) == []
