"""Checkpoints and outputs that the service keeps: a job resumes on a machine that never had its folders, without a URL."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from live import LONG, Live, grant, live, revoke, shell

from archives import upload
from processes import kill_all, left_of, wait_until
from themis.errors import InputError
from themis.machines.agent import checkpoint_copies as node_copies
from themis.machines.agent import prepare
from themis.machines.agent.messages import THROUGH_SERVICE, Fetch, TaskSpec
from themis.machines.agent.prepare import unpack
from themis.machines.bundles.pack import pack
from themis.machines.bundles.store import Store
from themis.machines.engines.copies import Copies, Copy
from themis.machines.engines.depot import Depot
from themis.machines.engines.program import AttemptEnded, Ending
from themis.model.events import JobReached, JobStarted, JobStopped

SAVES = (
    "trap 'echo stopped > $THEMIS_CHECKPOINT_DIR/at-sigterm; exit 0' TERM; mkdir -p results; "
    "cat results/log $THEMIS_CHECKPOINT_DIR/attempts; echo $THEMIS_ATTEMPT >> $THEMIS_CHECKPOINT_DIR/attempts; "
    "echo $THEMIS_ATTEMPT >> results/log; while true; do sleep 0.1; done"
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    wait_until(lambda: not left_of(tmp_path), "no process was left")


@contextmanager
def keeping(
    tmp_path: Path, line: str, *machines: int, most: int = 1 << 30, quota: int = 1 << 30, **more: object
) -> Iterator[tuple[Live, Copies]]:
    """Machines that share no folder, a job that is sent with a folder of one file, and a service that keeps copies."""
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text("print('hello')")
    bundles, kept = Store(tmp_path / "bundles", 1 << 30), Copies(tmp_path / "copies", quota, most)
    packed = pack(source, 1 << 20)
    with bundles.receive(packed.bytes) as incoming:
        incoming.write(packed.path.read_bytes())
        incoming.finish(packed.sha256)
    given = {"checkpoint_url": THROUGH_SERVICE, "outputs": ("results",), "grace_s": 10.0, **more}
    program = shell(line, bundle=packed.sha256, **given)
    try:
        with live(tmp_path / "run", program, *machines, settings=LONG, bundles=bundles, copies=kept) as world:
            yield world, kept
    finally:
        kept.close()


def newest(kept: Copies) -> Copy:
    (found,) = kept.newest(0)
    return found


def files(kept: Copies) -> dict[str, str]:
    """Names and contents of the newest copy of job 0."""
    with tarfile.open(kept.store.path(newest(kept).sha256)) as archive:
        return {m.name: archive.extractfile(m).read().decode() for m in archive if m.isreg()}  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_preempted_job_resumes_on_another_machine_with_its_checkpoints_and_outputs(
    root: Path, tmp_path: Path
) -> None:
    with keeping(tmp_path, SAVES, 1, 1) as (world, kept):
        for attempt in (1, 2, 3):
            machine = (attempt + 1) % 2
            here = root / "nodes" / f"m{machine}"
            saved = here / "checkpoints" / f"job0-attempt{attempt}" / "attempts"
            log = here / "work" / f"job0-attempt{attempt}" / "results" / "log"
            world.executor.submit(grant(attempt, (machine,)))
            world.until(JobStarted)
            wait_until(lambda: log.exists() and log.read_text().split()[-1:] == [str(attempt)], "it trains")  # noqa: B023
            assert saved.read_text().split() == log.read_text().split() == [str(n) for n in range(1, attempt + 1)]
            assert (saved.parent / "at-sigterm").exists() == (attempt > 1)
            world.executor.submit(revoke(attempt))
            ended = world.until(AttemptEnded)
            assert (ended.ending, ended.saved) == (Ending.STOPPED, True)
            world.until(JobStopped)
            world.executor.recorded(0, attempt)
        wait_until(lambda: not kept.awaited(0, 4), "the last copy is here")
        assert files(kept) == {
            "checkpoints/at-sigterm": "stopped\n",
            "checkpoints/attempts": "1\n2\n3\n",
            "outputs/results/log": "1\n2\n3\n",
        }
        folders = [root / "nodes" / f"m{n}" / "checkpoints" for n in range(2)]
        wait_until(lambda: not any(p for n in folders for p in n.iterdir()), "copied folders are removed from machines")
        assert len(list((tmp_path / "copies" / "files").iterdir())) == 1, "only the newest copy is kept"


@pytest.mark.slow
def test_a_job_that_ended_left_its_outputs_and_a_machine_without_the_file_sent_nothing(
    root: Path, tmp_path: Path
) -> None:
    line = (
        "mkdir -p results/deep; echo 7 > results/deep/x; ln results/deep/x results/same; ln -s deep/x results/in; "
        "ln -s /etc/passwd results/out; ln -s $PWD/results/deep results/absolute; mkfifo results/pipe; echo no > other; exit 3"
    )
    with keeping(tmp_path, line, 1) as (world, kept):
        world.executor.submit(grant(1, (0,)))
        world.until(JobStopped)
        world.executor.recorded(0, 1)
        wait_until(lambda: kept.newest(0), "the outputs are here")
        with tarfile.open(kept.store.path(newest(kept).sha256)) as archive:
            members = {m.name: (m.linkname if m.issym() else m.type) for m in archive}
        log = world.logs()
    assert members == {
        "outputs/results": tarfile.DIRTYPE,
        "outputs/results/deep": tarfile.DIRTYPE,
        "outputs/results/deep/x": tarfile.REGTYPE,
        "outputs/results/same": tarfile.REGTYPE,
        "outputs/results/in": "deep/x",
        "outputs/results/absolute": "deep",
    }
    assert "outputs/results/out was not copied: it is a link to '/etc/passwd', out of its folder" in log
    assert "outputs/results/pipe was not copied" in log


@pytest.mark.slow
def test_a_copy_that_is_too_large_is_a_sentence_in_the_log_and_the_next_attempt_begins_without_waiting(
    root: Path, tmp_path: Path
) -> None:
    line = "[ -e $THEMIS_CHECKPOINT_DIR/x ] && exit 4; head -c 300000 /dev/zero > $THEMIS_CHECKPOINT_DIR/x; exit 75"
    with keeping(tmp_path, line, 1, 1, most=200_000) as (world, kept):
        world.executor.submit(grant(1, (0,)))
        assert world.until(AttemptEnded).ending is Ending.REQUEUED
        world.until(JobStopped)
        world.executor.recorded(0, 1)
        world.executor.submit(grant(2, (1,)))
        assert world.until(AttemptEnded).ending is Ending.REQUEUED, "it found no checkpoint"
        log = world.logs()
        assert not kept.newest(0)
    assert "were not copied: the copy has 0.3 MiB, more than 0.2 MiB (max_copy)" in log
    folders = [*(root / "nodes" / "m0" / "checkpoints").iterdir()]
    assert [path.name for path in folders] == ["job0-attempt1"], "the files stay on the machine"


@pytest.mark.slow
def test_what_copies_killed_in_the_middle_copies_again_and_half_a_copy_is_never_used(
    root: Path, tmp_path: Path
) -> None:
    line = (
        "if [ $THEMIS_ATTEMPT = 1 ]; then head -c 60M /dev/urandom > $THEMIS_CHECKPOINT_DIR/large; "
        f"sha256sum < $THEMIS_CHECKPOINT_DIR/large > {tmp_path}/sum; exit 75; "
        f"else sha256sum < $THEMIS_CHECKPOINT_DIR/large > {tmp_path}/again; fi"
    )
    with keeping(tmp_path, line, 1, 1) as (world, kept):
        world.executor.submit(grant(1, (0,)))
        world.until(JobStopped)
        world.executor.recorded(0, 1)
        parts = tmp_path / "copies" / "files"
        wait_until(lambda: any(p.stat().st_size > 1 << 20 for p in parts.glob(".*.part")), "half of it is here")
        agent = world.executor.agents[0]
        os.kill(agent.pid, signal.SIGKILL)
        world.executor.submit(grant(2, (1,)))
        world.until(JobReached)
        assert [p.name for p in parts.iterdir()] == [newest(kept).sha256]
    assert (tmp_path / "again").read_text() == (tmp_path / "sum").read_text()


@pytest.mark.slow
def test_a_machine_that_never_returns_is_not_awaited_for_long(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The periodic copy serves."""
    monkeypatch.setattr("themis.machines.engines.depot.SIGN_S", 1.0)
    line = "cat $THEMIS_CHECKPOINT_DIR/step && exit 0; echo 7 > $THEMIS_CHECKPOINT_DIR/step; while true; do sleep 0.1; done"
    monkeypatch.setattr("test_service_copies.LONG", replace(LONG, copy_every_s=0.5))
    with keeping(tmp_path, line, 1, 1) as (world, kept):
        world.executor.submit(grant(1, (0,)))
        wait_until(lambda: kept.newest(0), "a copy was made")
        world.executor.respawn = False
        world.executor.agents[0].kill()
        kill_all(root / "nodes" / "m0")
        wait_until(lambda: not world.executor.gangs.nodes[0].connected, "it is gone")
        world.executor.submit(revoke(1))
        world.executor.gangs.gangs.clear()  # as when its lease is over, and its GPUs count as free
        world.executor.submit(grant(2, (1,)))
        world.until(JobReached)
        assert "the last copy of the attempt before, from m0, did not arrive within 1 s" in world.logs()


def test_copies_come_from_the_attempts_own_machine_whole_and_in_order(tmp_path: Path) -> None:
    kept = Copies(tmp_path / "c", 1 << 20, 1000)

    def send(
        node: str, number: int, offset: int, data: bytes, of: bytes, attempt: int = 1, **more: object
    ) -> tuple[int, str, bool]:
        sha256 = hashlib.sha256(of).hexdigest() if of else ""
        given = {"final": False, "size": len(of), "sha256": sha256, "offset": offset, **more}
        answer = kept.take(node, 5, attempt, upload(data, number=number, **given))  # type: ignore[arg-type]
        return answer.offset, answer.problem, answer.over

    kept.begin(2, 5, 1, 0, 1, "m0")
    six = b"abcdef"
    assert send("m1", 1, 0, b"abc", six) == (0, "the service does not expect copies of job 5, attempt 1, from m1", True)
    assert "does not expect" in send("m0", 1, 0, b"abc", six, attempt=2)[1]
    assert send("m0", 1, 0, b"abc", six) == (3, "", False)
    assert send("m0", 1, 0, b"abc", six) == (3, "", False), "a repeated piece changes nothing"
    assert kept.newest(5) == []
    assert send("m0", 1, 3, b"def", six) == (6, "", True)
    assert kept.store.path(kept.of_app(2)[0].sha256).read_bytes() == six
    # Another archive begins, and the machine starts again with a third: the first stays until that is whole.
    send("m0", 2, 0, b"xx", b"xxxx")
    assert send("m0", 3, 0, b"yy", b"yyyy") == (2, "", False)
    assert kept.of_app(2)[0].bytes == 6
    send("m0", 3, 2, b"yy", b"yyyy")
    assert kept.of_app(2)[0].bytes == 4
    assert "max_copy" in send("m0", 4, 0, b"z", b"z" * 2000)[1]
    assert (kept.awaited(5, 2), kept.coming(2), kept.coming(3)) == (["m0"], {5}, set())
    assert send("m0", 5, 0, b"", b"", final=True) == (0, "", True)
    assert (kept.awaited(5, 2), kept.coming(2)) == ([], set())
    assert send("m0", 5, 0, b"", b"", final=True) == (0, "", True), "its answer was lost"
    assert kept.of_app(2)[0].bytes == 4, "an attempt that saved nothing leaves what there was"
    kept.begin(2, 5, 2, 0, 1, "m1")
    kept.gone("m1", {(5, 2)})
    assert (kept.awaited(5, 3), kept.coming(2)) == (["m1"], {5})
    kept.gone("m1", set())
    assert kept.awaited(5, 3) == [], "the machine lost it"
    kept.close()
    again = Copies(tmp_path / "c", 1 << 20, 1000)
    assert again.of_app(2)[0].bytes == 4
    assert not [*(tmp_path / "c" / "files").glob(".*.part")]
    again.close()


def test_the_quota_drops_what_finished_apps_have_and_never_what_live_ones_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_apps = {0, 1}
    kept = Copies(tmp_path / "c", 250, 200, live=lambda: live_apps)

    def whole(job: int, size: int) -> str:
        kept.begin(job, job, 1, 0, 1, "m0")
        return kept.take("m0", job, 1, upload(bytes([job]) * size)).problem

    assert whole(0, 100) == whole(1, 100) == ""
    assert "the store of copies" in (why := whole(2, 100))
    assert "copies_quota" in why
    live_apps.remove(0)
    old = kept.store.path(kept.of_app(0)[0].sha256)
    os.utime(old, (0, 0))
    assert whole(3, 100) == ""
    assert not kept.of_app(0)
    assert kept.of_app(1)
    live_apps.clear()
    for copy in (*kept.of_app(1), *kept.of_app(3)):
        os.utime(kept.store.path(copy.sha256), (0, 0))
    kept.trim(10.0)
    assert not [*(tmp_path / "c" / "files").iterdir()]
    assert not kept.of_app(1)
    kept.close()


def test_a_machine_gets_copies_of_its_own_jobs_only(tmp_path: Path) -> None:
    kept = Copies(tmp_path / "c", 1 << 20, 1 << 20)
    depot = Depot(None, kept, lambda machine, message: None)
    kept.begin(0, 7, 1, 0, 1, "m0")
    task = "job7-attempt1"
    done = depot.taken("m0", upload(b"abc", task=task))
    assert (done.over, done.problem) == (True, "")
    assert "does not expect" in depot.taken("m1", upload(b"abc", task=task, number=2)).problem
    assert depot.taken("m0", upload(b"abc", task="../x")).over
    name = kept.newest(7)[0].sha256
    fields = dict.fromkeys(TaskSpec.__dataclass_fields__, 0)
    mine = TaskSpec(**{**fields, "job": 7, "bundle": "", "outputs": ("x",), "checkpoint_url": ""})  # type: ignore[arg-type]
    other = replace(mine, job=8)
    assert depot.piece(Fetch(bundle=name, offset=0), [mine]).data == b"abc"
    assert depot.piece(Fetch(bundle=name, offset=0), [other]).size == -1
    assert depot.piece(Fetch(bundle=name, offset=0), []).size == -1
    depot.close()
    kept.close()


def packed_again(tmp_path: Path, outputs: tuple[str, ...]) -> list[str]:
    """Pack outputs of ``tmp_path/work``, and unpack them as a machine does; returns the files."""
    (there := tmp_path / "there").mkdir()
    path = tmp_path / "copy.tar"
    made = node_copies.pack(lambda: path.open("wb"), node_copies.roots(None, tmp_path / "work", outputs))
    with open(path, "rb") as file:
        unpack(file.fileno(), str(there), made.sha256)
    return sorted(str(path.relative_to(there / "outputs")) for path in there.rglob("*") if path.is_file())


def test_a_second_name_of_a_file_is_copied_too(tmp_path: Path) -> None:
    """``tarfile`` makes links of them, which were left out."""
    (work := tmp_path / "work" / "results").mkdir(parents=True)
    (work / "step-5").write_text("5")
    os.link(work / "step-5", work / "latest")
    assert packed_again(tmp_path, ("results",)) == ["results/latest", "results/step-5"]


def test_outputs_that_name_a_file_twice_are_copied_once(tmp_path: Path) -> None:
    (tmp_path / "work" / "results" / "sub").mkdir(parents=True)
    (tmp_path / "work" / "results" / "sub" / "x").write_text("1")
    (tmp_path / "work" / "results-2").write_text("2")
    outputs = ("results/sub", "results-2", "results", "results", "results/sub/x")
    assert packed_again(tmp_path, outputs) == ["results-2", "results/sub/x"]


def test_what_no_machine_could_unpack_again_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_copies, "MOST_MEMBERS", 4)
    monkeypatch.setattr(prepare, "MOST_MEMBERS", 4)
    (work := tmp_path / "work" / "results").mkdir(parents=True)
    for name in "abc":
        (work / name).write_text(name)
    assert len(packed_again(tmp_path, ("results",))) == 3, "with the folder, as many as there may be"
    (work / "d").write_text("d")
    (tmp_path / "there").rename(tmp_path / "before")
    with pytest.raises(node_copies.Failed, match="more than 4 files"):
        packed_again(tmp_path, ("results",))
    monkeypatch.undo()
    deepest = tmp_path / "work" / "/".join(["deep"] + ["d"] * (node_copies.DEEPEST - 3))
    deepest.mkdir(parents=True)
    (deepest / "x").write_text("x")
    (tmp_path / "there").rmdir()
    assert len(packed_again(tmp_path, ("deep",))) == 1
    (deepest / "d").mkdir()
    (deepest / "d" / "x").write_text("x")
    (tmp_path / "there").rename(tmp_path / "after")
    with pytest.raises(node_copies.Failed, match="200 folders deep"):
        packed_again(tmp_path, ("deep",))


@pytest.mark.slow
def test_names_that_are_no_text_are_shown_in_one_line_and_the_rest_is_copied(root: Path, tmp_path: Path) -> None:
    line = (
        "mkdir results; mkfifo results/$(printf '\\377'); mkfifo \"results/a\nthemis: b\"; "
        "for i in $(seq 30); do mkfifo results/p$i; done; echo 1 > results/x"
    )
    with keeping(tmp_path, line, 1) as (world, kept):
        world.executor.submit(grant(1, (0,)))
        world.until(JobReached)
        wait_until(lambda: not kept.awaited(0, 2), "the last copy is over")
        assert files(kept) == {"outputs/results/x": "1\n"}
        wait_until(lambda: "more were not copied" in world.logs(), "its log says so")
        said = [row for row in world.logs().splitlines() if row.startswith("themis: ") and "not copied" in row]
        assert len(said) == node_copies.MOST_NAMED + 1
        assert said[-1] == "themis: 12 more were not copied"
        assert not [row for row in world.logs().splitlines() if row.startswith("themis: b")]


def test_a_table_that_is_damaged_is_one_sentence(tmp_path: Path) -> None:
    Copies(tmp_path / "c", 1 << 20, 1000).close()
    with open(tmp_path / "c" / "copies.db", "r+b") as file:
        file.write(b"no table at all")
    with pytest.raises(InputError, match=r"copies.db is damaged: .*move it away"):
        Copies(tmp_path / "c", 1 << 20, 1000)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used for copies of checkpoints and outputs: Not a directory"):
        Copies(tmp_path / "file" / "c", 1 << 20, 1000)


def test_a_table_of_before_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with closing(sqlite3.connect(tmp_path / "c" / "copies.db")) as db:
        db.execute(
            "CREATE TABLE attempts (job INTEGER, attempt INTEGER, app INTEGER, node TEXT, ended INTEGER, problem TEXT)"
        )
    with pytest.raises(InputError, match=r"copies.db is of an earlier version of Themis. Move .* away"):
        Copies(tmp_path / "c", 1 << 20, 1000)


def test_a_table_that_cannot_be_written_refuses_the_copy(tmp_path: Path) -> None:
    kept = Copies(tmp_path / "c", 1 << 20, 1000)
    kept.begin(2, 5, 1, 0, 1, "m0")
    kept._db.execute("CREATE TRIGGER t BEFORE INSERT ON copies BEGIN SELECT RAISE(FAIL, 'disk is full'); END")
    answer = kept.take("m0", 5, 1, upload(b"abc"))
    assert answer.over
    assert "table of copies cannot be written: disk is full" in answer.problem
    assert kept.awaited(5, 2) == [], "the next attempt is told, and does not wait"
    kept.close()
