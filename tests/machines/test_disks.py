"""Who fills a machine's disk is told, stopped and named; nobody else is."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from live import grant
from test_gangs import PROGRAM, said

from themis.machines.agent import usage
from themis.machines.agent.messages import (
    DiskUse,
    Hello,
    ProtocolError,
    Renew,
    Stop,
    TaskState,
    TaskUse,
    Tell,
    decode,
)
from themis.machines.agent.system import SYSTEM, System
from themis.machines.agent.tasks import Task
from themis.machines.agent.usage import Usage, bytes_below, disk_id
from themis.machines.engines.disks import GRACE_S, limit_of
from themis.machines.engines.gangs import Gangs, Out, Send
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.program import DISK, AttemptEnded, DiskWarning, Ending
from themis.model.cluster import Machine
from themis.model.events import Revoke
from themis.testing.builders import app, job

GIB = 1 << 30


def running(quota: float = 0.5, machines: int = 1) -> Gangs:
    """Two jobs on each machine, of ann and of eve: jobs 0 and 1, 2 and 3, ..."""
    hosts = [Host(machine=Machine(name=f"m{n}", gpus=2), address=f"10.0.0.{n}") for n in range(machines)]
    settings = NodeSettings(user_disk=quota, disk_reserve=GIB)
    book = Gangs(hosts, lambda app, index: PROGRAM, settings, now=0.0, checkpoints="/ckpt")
    for n in range(machines):
        book.handle_message(n, Hello(node=f"m{n}", trust="single"), 0.0)
        book.handle_message(n, Renew(sequence=1), 0.0)
        for k, user in enumerate(("ann", "eve")):
            number = 2 * n + k
            book.admit(number, app(f"{user}{n}", [job(100.0, (1, 1))], user=user))
            book.command(grant(1, (number,), job=number), 0.0)
            for phase in ("prepared", "running"):
                book.handle_message(n, TaskState(task=f"job{number}-attempt1", phase=phase, port=1), 0.0)
    return book


def use(free: float, *tasks: tuple[int, float, float], disk: str = "d", size: int = 100) -> DiskUse:
    """Free GiB of 100; of jobs: GiB, and growth in the last 10 s."""
    parts = [
        TaskUse(task=f"job{n}-attempt1", bytes=int(have * GIB), grew=int(grew * GIB), seconds=10.0)
        for n, have, grew in tasks
    ]
    return DiskUse(disk=disk, free=int(free * GIB), size=size * GIB, tasks=tuple(parts))


def stopped(out: list[Out]) -> list[str]:
    """Tasks that are stopped because of the disk, none for another reason."""
    stops = [o.message for o in out if isinstance(o, Send) and isinstance(o.message, Stop)]
    assert all(stop.cause == DISK for stop in stops)
    return [stop.task for stop in stops]


def test_who_fills_the_disk_is_stopped_and_named_before_it_is_full_and_others_go_on() -> None:
    book = running(quota=0.0)
    assert stopped(book.handle_message(0, use(40.0, (0, 1.0, 0.5), (1, 50.0, 9.0)), 1.0)) == []
    # 25 GiB in 10 s: within two seconds the reserve of 1 GiB is touched.
    out = book.handle_message(0, use(5.9, (0, 1.0, 0.5), (1, 75.0, 25.0)), 2.0)
    assert stopped(out) == ["job1-attempt1"]
    ended = TaskState(task="job1-attempt1", phase="ended", cause=DISK, first=-15, codes=(-15,), seconds=3.0)
    assert stopped(book.handle_message(0, use(0.0, (0, 1.0, 0.1), (1, 80.0, 5.0)), 3.0)) == [], "one at a time"
    end = next(o for o in book.handle_message(0, ended, 4.0) if isinstance(o, AttemptEnded))
    assert (end.ending, end.cause) == (Ending.STOPPED, DISK), "it costs the job no retry"
    assert "user eve fills the disk of m0: this job wrote 25 GiB, to /ckpt/" in end.message
    assert "5.9 GiB of 100 GiB are free, with a reserve of 1 GiB (disk_reserve)" in end.message


def test_a_full_disk_on_which_nobody_writes_stops_nobody() -> None:
    book = running()
    assert book.handle_message(0, use(0.0, (0, 1.0, 0.0), (1, 20.0, 0.0)), 1.0) == []


def test_a_user_over_the_quota_is_told_first_and_only_what_still_writes_is_stopped() -> None:
    book = running()
    full = use(40.0, (0, 1.0, 0.0), (1, 51.0, 1.0))
    out = book.handle_message(0, full, 1.0)
    (warning,) = [o for o in out if isinstance(o, DiskWarning)]
    assert warning.job == 1
    assert "user eve has 51 GiB on the disk of m0, over the quota of 50 GiB (user_disk)" in warning.sentence
    assert said(out, Tell) == [0]
    assert stopped(out) == []
    assert book.handle_message(0, full, GRACE_S) == []
    still = use(40.0, (0, 1.0, 0.0), (1, 51.0, 0.0))
    assert book.handle_message(0, still, 2 * GRACE_S) == [], "it does not write"
    assert stopped(book.handle_message(0, full, 2 * GRACE_S)) == ["job1-attempt1"]


def test_who_makes_room_is_not_stopped_and_is_told_so() -> None:
    book = running()
    book.handle_message(0, use(40.0, (1, 51.0, 1.0)), 1.0)
    out = book.handle_message(0, use(60.0, (1, 30.0, 1.0)), 2 * GRACE_S)
    assert [o.sentence for o in out if isinstance(o, DiskWarning)] == [""]
    assert stopped(out) == []
    assert [
        o.sentence != "" for o in book.handle_message(0, use(40.0, (1, 51.0, 1.0)), 900.0) if isinstance(o, DiskWarning)
    ] == [True]


def test_machines_of_one_host_share_its_disk_and_what_lies_there_counts() -> None:
    book = running(machines=2)
    book.disks.one_host = True
    book.handle_message(0, use(40.0, (1, 30.0, 0.0)), 1.0)
    out = book.handle_message(1, use(40.0, (3, 30.0, 1.0)), 1.0)
    assert sorted(o.job for o in out if isinstance(o, DiskWarning)) == [1, 3]
    book = running()
    book.disks.one_host, book.disks.at_rest = True, lambda: ("d", {"eve": 40 * GIB})
    out = book.handle_message(0, use(40.0, (1, 11.0, 0.0)), 1.0)
    assert "user eve has 51 GiB" in next(o.sentence for o in out if isinstance(o, DiskWarning))


def test_a_machine_of_a_fleet_cannot_say_that_it_shares_the_disk_of_another() -> None:
    book = running(machines=2)
    assert book.handle_message(0, use(40.0, (1, 30.0, 0.0)), 1.0) == []
    assert book.handle_message(1, use(0.0, (1, 90.0, 90.0), (3, 30.0, 0.0)), 1.0) == [], "job 1 is not on it"


def test_a_gang_that_is_stopped_for_another_reason_is_left_to_save() -> None:
    book = running(quota=0.0)
    book.command(Revoke(app=0, job=1, attempt=1, cause="expired"), 1.0)
    assert book.handle_message(0, use(0.5, (0, 1.0, 0.0), (1, 20.0, 10.0)), 2.0) == []


@pytest.mark.parametrize("wrong", [{"bytes": -1}, {"grew": 10**30}, {"seconds": -1.0}])
def test_what_no_disk_can_have_is_not_accepted(wrong: dict[str, float]) -> None:
    one = {"task": "job1-attempt1", "bytes": 1, "grew": 1, "seconds": 1.0, **wrong}
    with pytest.raises(ProtocolError):
        decode({"kind": "DiskUse", "disk": "d", "free": 0, "size": 1, "tasks": [one]})


@pytest.mark.parametrize(("quota", "limit"), [(0.0, 0), (0.5, 50), (1.0, 100), (7.0, 7)])
def test_a_quota_is_bytes_or_a_share(quota: float, limit: int) -> None:
    assert limit_of(quota, 100) == limit


def test_files_count_once_links_are_not_followed_and_files_without_a_name_count(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "other").write_bytes(b"x" * 100_000)
    folder = tmp_path / "folder"
    (folder / "deep" / "er").mkdir(parents=True)
    empty = sum(bytes_below(folder))
    (folder / "deep" / "er" / "file").write_bytes(b"x" * 40_960)
    os.link(folder / "deep" / "er" / "file", folder / "again")
    (folder / "link").symlink_to("../far")
    assert sum(bytes_below(folder)) == empty + 40_960
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", 1 << 30)
    assert sum(bytes_below(folder)) == empty + 40_960
    assert sum(bytes_below(tmp_path / "none")) == 0
    with open(tmp_path / "gone", "wb") as file:
        file.write(b"x" * 81_920)
        file.flush()
        os.unlink(tmp_path / "gone")
        assert SYSTEM.unlinked([os.getpid()], tmp_path) >= 81_920


class Machine5(System):
    """A machine whose clock and disk are set."""

    now, free = 0.0, 90 * GIB

    def clock(self) -> float:
        return self.now

    def disk(self, path: Path) -> tuple[int, int, int | None]:
        return self.free, 100 * GIB, None

    def unlinked(self, pids: object, path: Path) -> int:
        return 0


def test_folders_are_read_when_a_task_is_new_and_when_the_disk_fills_a_few_entries_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "ENTRIES", 10)
    machine = Machine5()
    for name in ("tasks/t", "logs/t", "work/t", "saved"):
        (tmp_path / name).mkdir(parents=True)
    for n in range(35):
        (tmp_path / "saved" / str(n)).write_bytes(b"x" * 4096)
    spec = SimpleNamespace(checkpoint_dir=str(tmp_path / "saved"), make_checkpoint_dir=True)
    task = SimpleNamespace(name="t", folder=tmp_path / "tasks" / "t", spec=spec, processes=lambda: set())
    found, tasks = Usage(tmp_path, machine), {"t": cast(Task, task)}
    assert [found.look(tasks, ["t"]) for _ in range(3)] == [None] * 3
    first = found.look(tasks, ["t"])
    assert first is not None
    assert (first.disk, first.tasks[0].grew) == (disk_id(tmp_path), 0)
    assert first.tasks[0].bytes >= 35 * 4096
    machine.now = 1.0
    assert found.look(tasks, ["t"]) is None, "nothing happens on the disk"
    (tmp_path / "saved" / "more").write_bytes(b"x" * 409_600)
    machine.now, machine.free = 2.0, 60 * GIB
    looks = [found.look(tasks, ["t"]) for _ in range(5)]
    (second,) = [look for look in looks if look is not None]
    assert (second.tasks[0].grew, second.tasks[0].seconds) == (409_600, 2.0)
    assert found.look({}, []) is None
