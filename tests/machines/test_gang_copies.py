"""Copies of gangs: the archives of all machines are one copy, of one moment, or none."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from live import LONG, Live, grant, live, revoke, shell

from archives import upload
from processes import kill_all, left_of, wait_until
from themis.errors import InputError
from themis.machines.agent.messages import THROUGH_SERVICE, Upload, Uploaded
from themis.machines.bundles import store
from themis.machines.engines.copies import Copies
from themis.machines.engines.program import AttemptEnded
from themis.model.events import JobReached, JobStopped

MIB = 1 << 20


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Copies]:
    with closing(Copies(tmp_path / "c", MIB, 1000)) as copies:
        yield copies


def begin(kept: Copies, attempt: int = 1, machines: int = 2) -> None:
    """An attempt of job 0 of app 0 on machines m0, m1 and so on."""
    for machine in range(machines):
        kept.begin(0, 0, attempt, machine, machines, f"m{machine}")


def send(kept: Copies, machine: int, data: bytes = b"", attempt: int = 1, **more: object) -> Uploaded:
    return kept.take(f"m{machine}", 0, attempt, upload(data, **more))  # type: ignore[arg-type]


def there(kept: Copies) -> list[bytes]:
    """What the newest copy has, by machine."""
    return [kept.store.path(copy.sha256).read_bytes() if copy.sha256 else b"" for copy in kept.newest(0)]


def test_a_copy_of_a_gang_is_there_once_the_last_archives_of_all_its_machines_are(kept: Copies) -> None:
    begin(kept)
    assert not send(kept, 0, b"zero").problem
    assert there(kept) == []
    assert kept.awaited(0, 2) == ["m1"]
    assert not send(kept, 1, b"one").problem
    assert there(kept) == [b"zero", b"one"]
    assert kept.awaited(0, 2) == []


def test_a_machine_that_wrote_nothing_has_an_empty_part_and_one_whose_part_failed_has_none(kept: Copies) -> None:
    begin(kept)
    send(kept, 0, b"zero")
    send(kept, 1)
    assert there(kept) == [b"zero", b""]
    begin(kept, 2)
    send(kept, 0, b"later", attempt=2)
    send(kept, 1, attempt=2, problem="its disk is broken")
    assert there(kept) == [b"zero", b""], "half of a copy does not replace the one before"
    begin(kept, 3)
    send(kept, 0, attempt=3)
    send(kept, 1, attempt=3)
    assert there(kept) == [b"zero", b""], "nor do machines on which it never ran"


def test_archives_of_different_moments_are_no_copy(tmp_path: Path) -> None:
    now = [100.0]
    with closing(Copies(tmp_path / "c", MIB, 1000, clock=lambda: now[0])) as kept:
        begin(kept)
        zero = send(kept, 0, b"zero", final=False)
        now[0] = 110.0
        one = send(kept, 1, b"one", final=False)
        assert there(kept) == []
        still = {"final": False, "offset": 4, "size": 4, "sha256": hashlib.sha256(b"zero").hexdigest()}
        now[0] = 120.0
        again = send(kept, 0, seen=zero.at, **still)
        assert there(kept) == [], "that it had not changed until 100 says nothing of 110"
        send(kept, 0, seen=again.at, **still)
        assert there(kept) == [], "nothing is known yet of m1 after it came"
        send(kept, 1, final=False, seen=one.at, offset=3, size=3, sha256=hashlib.sha256(b"one").hexdigest())
        assert there(kept) == [b"zero", b"one"]
        assert send(kept, 1, final=False, number=9, seen=1.0, size=3).problem, "an archive that it does not have"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_order_a_copy_shows_the_folders_of_all_machines_at_one_moment(tmp_path: Path, seed: int) -> None:
    """Folders are numbers that grow; words take a while and answers too; some machines end, and the service starts again."""
    rng, now = np.random.default_rng(seed), [0.0]
    machines = int(rng.integers(2, 5))
    kept = Copies(tmp_path / "c", MIB, 1000, clock=lambda: now[0])
    begin(kept, machines=machines)
    version, history = [0] * machines, [[0] * machines]
    packed: list[Upload | None] = [None] * machines
    words: list[tuple[float, int, Upload]] = []
    ended, number, found = set[int](), 0, 0
    for _ in range(600):
        now[0] += float(rng.exponential(1.0))
        m = int(rng.integers(machines))
        match int(rng.integers(12)):
            case 0 if m not in ended:
                version[m] += 1
                history.append([*version])
                packed[m] = None
            case 1 | 2 | 3 if packed[m] is None and m not in ended:
                number += 1
                packed[m] = upload(b"%d" % version[m], number=number, final=False)
                words.append((now[0] + float(rng.exponential(3.0)), m, packed[m]))  # type: ignore[arg-type]
            case 4 if seed % 4 == 0 and rng.random() < 0.1:
                kept.close()
                kept, words, packed = Copies(tmp_path / "c", MIB, 1000, clock=lambda: now[0]), [], [None] * machines
            case 5 if rng.random() < 0.02:
                ended.add(m)
                number += 1
                words.append((now[0] + float(rng.exponential(3.0)), m, upload(b"%d" % version[m], number=number)))
        for word in [word for word in words if word[0] <= now[0]]:
            words.remove(word)
            answer = kept.take(f"m{word[1]}", 0, 1, word[2])
            last = packed[word[1]]
            if last is not None and last.number == word[2].number and answer.over and not answer.problem:
                # It looks at its folder when it has the answer, and says so a while later.
                heard = now[0] + float(rng.exponential(1.0))
                words.append((heard, word[1], replace(last, data=b"", offset=last.size, seen=answer.at)))
        parts = [int(data) for data in there(kept)]
        assert not parts or parts in history, f"{parts} was never there"
        found = max(found, sum(parts) + 1 if parts else 0)
    kept.close()
    assert found or seed % 4 == 0


def many(tmp_path: Path) -> None:
    for seed in range(1, 20):
        (tmp_path / str(seed)).mkdir()
        test_whatever_the_order_a_copy_shows_the_folders_of_all_machines_at_one_moment(tmp_path / str(seed), seed)


def test_the_order_of_this_test_finds_copies_that_show_no_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check bites: with parts that count whenever they are there, some copy shows a state that never was."""
    blind = lambda *given: -1.0 if len(given) == 1 else max(given)  # noqa: E731
    monkeypatch.setattr("themis.machines.engines.copies.max", blind, raising=False)
    with pytest.raises(AssertionError, match="was never there"):
        many(tmp_path)


def test_final_archives_survive_a_restart_and_others_are_sent_again(tmp_path: Path) -> None:
    kept = Copies(tmp_path / "c", MIB, 1000)
    begin(kept, machines=3)
    send(kept, 0, b"zero")
    one = send(kept, 1, b"one", final=False)
    kept.close()
    with closing(Copies(tmp_path / "c", MIB, 1000)) as kept:
        answer = send(kept, 1, final=False, seen=one.at, size=3, offset=3)
        assert "does not know the archive any more" in answer.problem
        assert len([*(tmp_path / "c" / "files").iterdir()]) == 1
        send(kept, 2, b"two")
        send(kept, 1, b"later", number=2)
        assert there(kept) == [b"zero", b"later", b"two"]


def test_an_attempt_that_begins_closes_those_before_so_that_all_its_machines_begin_with_the_same(kept: Copies) -> None:
    begin(kept)
    send(kept, 0, b"zero")
    send(kept, 1, b"one")
    begin(kept, 2)
    send(kept, 0, b"second", attempt=2)
    kept.begin(0, 0, 3, 0, 2, "m2")
    before = there(kept)
    answer = send(kept, 1, b"late", attempt=2)
    assert "attempt 3 of the job has begun without them" in answer.problem
    kept.begin(0, 0, 3, 1, 2, "m3")
    assert there(kept) == before == [b"zero", b"one"]


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"sha256": "0" * 64}, "damaged on its way"),
        ({"sha256": ""}, "expected the SHA-256 of some bytes"),
        ({"size": 2}, "more than the 2 bytes"),
        ({"size": 1001}, "max_copy"),
        ({"url_sha256": "../../etc/passwd"}, "not the name of a bundle"),
        ({"size": 0}, "expected the SHA-256 of some bytes"),
    ],
)
def test_a_machine_that_lies_about_its_archive_makes_no_copy(kept: Copies, lie: dict[str, object], words: str) -> None:
    begin(kept)
    send(kept, 0, b"zero")
    send(kept, 1, b"one")
    begin(kept, 2)
    send(kept, 0, b"new", attempt=2)
    assert words in send(kept, 1, b"lies", attempt=2, **lie).problem
    assert there(kept) == [b"zero", b"one"]


def test_a_machine_cannot_name_the_file_of_another_job_as_its_own(kept: Copies) -> None:
    kept.begin(1, 7, 1, 0, 1, "m9")
    secret = upload(b"secret")
    kept.take("m9", 7, 1, secret)
    kept.begin(0, 0, 1, 0, 1, "m0")
    assert send(kept, 0, size=0, sha256=secret.sha256).problem
    assert kept.newest(0) == []
    kept.begin(0, 0, 2, 0, 2, "m0")
    assert "does not expect" in kept.take("m9", 0, 2, upload(b"x")).problem


def test_a_time_in_the_future_is_no_proof(tmp_path: Path) -> None:
    now = [100.0]
    with closing(Copies(tmp_path / "c", MIB, 1000, clock=lambda: now[0])) as kept:
        begin(kept)
        send(kept, 0, b"zero", final=False)
        send(kept, 0, final=False, seen=1e9, size=4, offset=4)
        now[0] = 200.0
        send(kept, 1, b"one")
        assert there(kept) == []


def test_a_full_disk_refuses_the_archive_and_keeps_the_copy_before(
    kept: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(kept, machines=1)
    send(kept, 0, b"first")
    begin(kept, 2, machines=1)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "write", full)
    assert "No space left on device" in send(kept, 0, b"second", attempt=2).problem
    monkeypatch.undo()
    assert there(kept) == [b"first"]
    assert len([*(kept.store.folder).iterdir()]) == 1


FOREVER = """
import sys
sys.path[:0] = {path!r}
from themis.machines.engines.copies import Copies
from archives import upload
kept = Copies({folder!r}, 1 << 30, 1 << 30)
from pathlib import Path
n = int(Path({folder!r}, "n").read_text()) if Path({folder!r}, "n").exists() else 0
while True:
    n += 1
    Path({folder!r}, "n.new").write_text(str(n))
    Path({folder!r}, "n.new").replace(Path({folder!r}, "n"))
    for machine in range(3):
        kept.begin(0, 0, n, machine, 3, f"m{{machine}}")
    for machine in range(3):
        data = b"%d %d" % (n, machine) * 20000
        half = len(data) // 2
        whole = upload(data)
        kept.take(f"m{{machine}}", 0, n, upload(data[:half], size=len(data), sha256=whole.sha256))
        kept.take(f"m{{machine}}", 0, n, upload(data[half:], size=len(data), sha256=whole.sha256, offset=half))
    print(n, flush=True)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_no_copy_that_was_complete(tmp_path: Path) -> None:
    rng, folder, last = np.random.default_rng(0), tmp_path / "c", 0
    text = FOREVER.format(path=[path for path in sys.path if path], folder=str(folder)).replace(
        f"Copies({str(folder)!r}", f"Copies(__import__('pathlib').Path({str(folder)!r})"
    )
    for _ in range(12):
        worker = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert worker.stdout is not None
        assert worker.stderr is not None
        line = worker.stdout.readline()
        assert line, worker.stderr.read().decode()
        last = int(line)
        time.sleep(float(rng.uniform(0.0, 0.3)))
        worker.kill()
        rest, _ = worker.communicate()
        last = int((rest.split() or [last])[-1])
        with closing(Copies(folder, 1 << 30, 1 << 30)) as kept:
            parts = kept.newest(0)
            assert [part.machine for part in parts] == [0, 1, 2]
            assert {part.attempt for part in parts} <= {last, last + 1}
            for part in parts:
                assert hashlib.sha256(kept.store.path(part.sha256).read_bytes()).hexdigest() == part.sha256
            names = {path.name for path in kept.store.folder.iterdir()}
            assert len(names) <= 6, (
                "what is no part of a copy does not pile up: at most all of the copy that comes next"
            )


# ---- real machines --------------------------------------------------------------------------------------------------------

RANKS = (
    "trap 'echo $THEMIS_ATTEMPT > $THEMIS_CHECKPOINT_DIR/stopped-$RANK; exit 0' TERM; "
    "ls $THEMIS_CHECKPOINT_DIR | sort | tr '\\n' ' ' > $SEEN-$THEMIS_ATTEMPT-$RANK.new; "
    "mv $SEEN-$THEMIS_ATTEMPT-$RANK.new $SEEN-$THEMIS_ATTEMPT-$RANK; "
    "echo $THEMIS_ATTEMPT > $THEMIS_CHECKPOINT_DIR/shard-$RANK; [ $THEMIS_ATTEMPT = 3 ] && exit 0; while true; do sleep 0.1; done"
)


@contextmanager
def gang(tmp_path: Path, url: str, *, every_s: float = 600.0) -> Iterator[tuple[Live, Copies]]:
    """Four machines of one GPU without a shared folder."""
    kept = Copies(tmp_path / "copies", 1 << 30, 1 << 30)
    env = {"SEEN": str(tmp_path / "seen")}
    program = shell(RANKS, checkpoint_url=url, grace_s=10.0, env=env)
    try:
        settings = replace(LONG, copy_every_s=every_s)
        with live(tmp_path / "run", program, 1, 1, 1, 1, settings=settings, copies=kept) as world:
            yield world, kept
    finally:
        kept.close()
    wait_until(lambda: not left_of(tmp_path), "no process was left")


def seen(tmp_path: Path, attempt: int) -> list[list[str]]:
    """Files that the two ranks of an attempt began with."""
    paths = [tmp_path / f"seen-{attempt}-{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in paths), "both ranks have looked")
    return [path.read_text().split() for path in paths]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["service", "url"])
def test_what_the_ranks_of_two_machines_wrote_is_on_the_two_machines_of_the_next_attempt(
    tmp_path: Path, where: str
) -> None:
    if where == "url":
        pytest.importorskip("fsspec")
    with gang(tmp_path, THROUGH_SERVICE if where == "service" else f"file://{tmp_path}/bucket") as (world, kept):
        world.executor.submit(grant(1, (0, 1)))
        assert seen(tmp_path, 1) == [[], []]
        wait_until(lambda: len([*(tmp_path / "run").glob("nodes/m*/checkpoints/*/shard-*")]) == 2, "both have saved")
        for attempt, gpus in ((2, (2, 3)), (3, (1, 2))):
            world.executor.submit(revoke(attempt - 1))
            world.until(AttemptEnded)
            world.until(JobStopped)
            world.executor.recorded(0, attempt - 1)
            world.executor.submit(grant(attempt, gpus))
            assert seen(tmp_path, attempt) == [["shard-0", "shard-1", "stopped-0", "stopped-1"]] * 2
        world.until(JobReached)
        assert [(part.attempt, part.machine) for part in kept.newest(0)] == [(2, 0), (2, 1)]
        assert (
            sorted(path.read_text() for path in (tmp_path / "run").glob("nodes/m[12]/checkpoints/*3/stopped-*"))
            == ["2\n"] * 4
        )


@pytest.mark.slow
def test_a_gang_that_loses_a_machine_goes_on_with_the_last_copy_of_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("themis.machines.engines.depot.SIGN_S", 1.0)
    with gang(tmp_path, THROUGH_SERVICE, every_s=0.5) as (world, kept):
        world.executor.submit(grant(1, (0, 1)))
        wait_until(lambda: len(kept.newest(0)) == 2, "a copy of both machines was made while it ran")
        world.executor.respawn = False
        world.executor.agents[1].kill()
        kill_all(tmp_path / "run" / "nodes" / "m1")
        wait_until(lambda: not world.executor.gangs.nodes[1].connected, "it is gone")
        world.executor.submit(revoke(1))
        wait_until(lambda: not kept.awaited(0, 2) or kept.awaited(0, 2) == ["m1"], "the other machine sent its last")
        world.executor.gangs.gangs.clear()  # as when its lease is over, and its GPUs count as free
        world.executor.submit(grant(2, (2, 3)))
        assert seen(tmp_path, 2) == [["shard-0", "shard-1"]] * 2
        assert "the last copy of the attempt before, from m1, did not arrive" in world.logs()


def test_a_refused_name_is_one_sentence(kept: Copies) -> None:
    begin(kept, machines=1)
    with pytest.raises(InputError, match="not the name of a bundle"):
        store.check_name("../x")
