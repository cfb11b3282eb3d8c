"""Checkpoints that are copied to a URL: a job resumes on a machine that never had its folder."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from live import LONG, Live, grant, live, revoke, shell

from processes import kill_all, left_of, wait_until
from themis.machines.agent import checkpoint_copies, prepare
from themis.machines.agent.checkpoint_copies import CHECKPOINTS, NEW, Failed, Place, name_of, pack, restore
from themis.machines.engines.copies import Copies
from themis.machines.engines.hosts import NodeSettings
from themis.machines.engines.program import AttemptEnded, Ending
from themis.model.events import JobReached, JobStarted, JobStopped

pytest.importorskip("fsspec")
SAVES = (
    "trap 'date +%s%N > $THEMIS_CHECKPOINT_DIR/at-sigterm; exit 0' TERM; cat $THEMIS_CHECKPOINT_DIR/* ; "
    "echo $THEMIS_ATTEMPT >> $THEMIS_CHECKPOINT_DIR/attempts; while true; do sleep 0.1; done"
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    wait_until(lambda: not left_of(tmp_path), "no process was left")


@contextmanager
def copying(
    tmp_path: Path, line: str, *machines: int, settings: NodeSettings = LONG, **more: object
) -> Iterator[tuple[Live, Copies, Path]]:
    """Machines that share no folder but the one of the URL."""
    kept, url = Copies(tmp_path / "copies", 1 << 30, 1 << 30), tmp_path / "bucket"
    program = shell(line, **{"checkpoint_url": f"file://{url}", "grace_s": 10.0, **more})
    try:
        with live(tmp_path / "run", program, *machines, settings=settings, copies=kept) as world:
            yield world, kept, url
    finally:
        kept.close()


@pytest.mark.slow
def test_a_preempted_job_resumes_on_another_machine_with_what_it_wrote_at_sigterm(root: Path, tmp_path: Path) -> None:
    """The machines share no folder: each attempt's checkpoints are below its own agent's folder."""
    with copying(tmp_path, SAVES, 1, 1) as (world, kept, url):
        nodes = [root / "nodes" / f"m{n}" / "checkpoints" for n in range(2)]
        for attempt in (1, 2, 3):
            here = nodes[(attempt + 1) % 2] / f"job0-attempt{attempt}"
            world.executor.submit(grant(attempt, ((attempt + 1) % 2,)))
            world.until(JobStarted)
            wait_until(lambda: (here / "attempts").exists(), "it trains")  # noqa: B023
            wait_until(lambda: (here / "attempts").read_text().split()[-1:] == [str(attempt)], "it wrote")  # noqa: B023
            assert (here / "attempts").read_text().split() == [str(n) for n in range(1, attempt + 1)]
            assert (here / "at-sigterm").exists() == (attempt > 1)
            world.executor.submit(revoke(attempt))
            ended = world.until(AttemptEnded)
            assert (ended.ending, ended.saved) == (Ending.STOPPED, True)
            world.until(JobStopped)
            world.executor.recorded(0, attempt)
        wait_until(lambda: not any(p for n in nodes for p in n.iterdir()), "copied folders are removed from machines")
        (last,) = kept.newest(0)
        assert (last.attempt, last.sha256, last.bytes) == (3, "", 0), (
            "the service knows the copy, and has no byte of it"
        )
        assert name_of(3, last.number, 0) in os.listdir(url)


@pytest.mark.slow
def test_while_it_runs_copies_are_made_and_one_serves_when_the_machine_is_lost(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("themis.machines.engines.depot.SIGN_S", 1.0)
    line = (
        "cd $THEMIS_CHECKPOINT_DIR; [ -e step ] && cp step $OUT && exit 0; n=0; "
        "while true; do n=$((n+1)); echo 7 > .step; echo $n > count; mv .step step; sleep 0.7; done"
    )
    env = {"OUT": str(tmp_path / "found")}
    with copying(tmp_path, line, 1, 1, settings=replace(LONG, copy_every_s=0.3), env=env) as (world, kept, url):
        world.executor.submit(grant(1, (0,)))
        numbers = set[int]()
        wait_until(
            lambda: bool(numbers.update(c.number for c in kept.newest(0))) or len(numbers) > 3, "copies are made"
        )
        wait_until(lambda: len(os.listdir(url)) <= 3, "those before the newest whole one are removed")
        world.executor.respawn = False
        world.executor.agents[0].kill()
        kill_all(root / "nodes" / "m0")
        wait_until(lambda: not world.executor.gangs.nodes[0].connected, "it is gone")
        world.executor.submit(revoke(1))
        world.executor.gangs.gangs.clear()  # as when its lease is over, and its GPUs count as free
        world.executor.submit(grant(2, (1,)))
        world.until(JobReached)
    assert (tmp_path / "found").read_text() == "7\n"


@pytest.mark.slow
def test_a_url_that_cannot_be_used_is_a_sentence_before_the_job_runs(root: Path, tmp_path: Path) -> None:
    with copying(tmp_path, "true", 1, checkpoint_url="nosuch://bucket/x") as (world, _, _):
        world.executor.submit(grant(1, (0,)))
        ended = world.until(AttemptEnded)
    assert ended.ending is Ending.NOT_STARTED
    assert "checkpoints cannot be restored" in ended.message
    assert "nosuch" in ended.message


@pytest.mark.slow
def test_a_url_that_fails_later_is_a_line_in_the_log_and_the_files_stay_on_the_machine(
    root: Path, tmp_path: Path
) -> None:
    line = f"echo 1 > $THEMIS_CHECKPOINT_DIR/x; rmdir {tmp_path}/bucket; echo > {tmp_path}/bucket; exit 75"
    with copying(tmp_path, line, 1) as (world, kept, url):
        world.executor.submit(grant(1, (0,)))
        assert world.until(AttemptEnded).ending is Ending.REQUEUED
        world.until(JobStopped)
        world.executor.recorded(0, 1)
        wait_until(lambda: not kept.awaited(0, 2), "the next attempt need not wait")
        assert kept.newest(0) == []
        assert f"checkpoints were not copied to file://{url}" in world.logs()
    assert (root / "nodes" / "m0" / "checkpoints" / "job0-attempt1" / "x").read_text() == "1\n"


@pytest.mark.slow
def test_an_archive_that_is_damaged_at_its_url_is_named_and_the_job_does_not_begin_anew(
    root: Path, tmp_path: Path
) -> None:
    line = "echo 1 > $THEMIS_CHECKPOINT_DIR/x; exit 75"
    with copying(tmp_path, line, 1) as (world, kept, url):
        world.executor.submit(grant(1, (0,)))
        world.until(JobStopped)
        world.executor.recorded(0, 1)
        wait_until(lambda: bool(kept.newest(0)), "it is copied")
        (archive,) = url.iterdir()
        archive.write_bytes(archive.read_bytes()[:-100] + b"x" * 100)
        world.executor.submit(grant(2, (0,)))
        ended = world.until(AttemptEnded)
        assert ended.ending is Ending.NOT_STARTED
        assert f"{archive.name} at file://{url} is missing or damaged" in ended.message
        world.until(JobStopped)
        world.executor.recorded(0, 2)
        wait_until(lambda: not kept.awaited(0, 3), "its machine says that nothing comes")
        assert [copy.attempt for copy in kept.newest(0)] == [1], "what was not restored is not copied"


@pytest.mark.slow
def test_the_next_attempt_does_not_begin_before_the_last_copy_is_there(root: Path, tmp_path: Path) -> None:
    """GPUs are free when the ranks have ended: the first machine serves another job while the copy is written."""
    line = (
        "if [ $THEMIS_ATTEMPT = 1 ]; then head -c 100M /dev/urandom > $THEMIS_CHECKPOINT_DIR/large; sleep 600; "
        f"else stat -c %s $THEMIS_CHECKPOINT_DIR/large > {tmp_path}/seen; fi"
    )
    with copying(tmp_path, line, 1, 1, grace_s=1.0) as (world, _, _):
        large = root / "nodes" / "m0" / "checkpoints" / "job0-attempt1" / "large"
        world.executor.submit(grant(1, (0,)))
        wait_until(lambda: large.exists() and large.stat().st_size == 100 << 20, "it saved")
        world.executor.submit(revoke(1))
        world.until(JobStopped)
        world.executor.submit(grant(2, (1,)))
        world.until(JobReached)
    assert (tmp_path / "seen").read_text() == f"{100 << 20}\n"


def folder(path: Path, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def saved(place: Place, here: Path, number: int, machine: int = 0, since: int = 0) -> tuple[str, str]:
    """Name and SHA-256 of an archive."""
    name = name_of(1, number, machine)
    return name, pack(lambda: place.opened(name, "wb"), [(here, CHECKPOINTS)], machine, since).sha256


def files_of(path: Path) -> dict[str, str]:
    """Names and contents of the files below a folder."""
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("fails", ["extract", "rename"])
def test_a_restore_that_did_not_finish_leaves_its_mark_and_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """What has the mark is never copied: it would be the newest copy, of half of the checkpoints."""
    place = Place(f"file://{tmp_path}/b")
    part = saved(place, folder(tmp_path / "one", model="1", optimizer="2", step="3"), 1)
    there, count = folder(tmp_path / "two"), iter(range(9))
    of, name = (prepare.tarfile.TarFile, "extractfile") if fails == "extract" else (prepare.shutil, "move")
    real = getattr(of, name)

    def dies(*given: object, **more: object) -> object:
        if next(count) == 2:
            raise KeyboardInterrupt  # as kill -9, nothing of ours handles it
        return real(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(of, name, dies)
        with pytest.raises(KeyboardInterrupt):
            restore(place, there, [part])
    assert (there / NEW).exists()
    restore(place, there, [part])
    assert files_of(there) == {"model": "1", "optimizer": "2", "step": "3"}


def test_files_that_change_while_they_are_copied_make_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, here = Place(f"file://{tmp_path}/b"), folder(tmp_path / "a", step="1")
    states = iter(range(100))
    monkeypatch.setattr(checkpoint_copies, "state", lambda _: next(states))
    monkeypatch.setattr(checkpoint_copies.time, "sleep", lambda _: None)
    with pytest.raises(Failed, match="changed while they were copied"):
        saved(place, here, 1)


def test_only_archives_that_a_whole_copy_replaced_are_removed(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/b")
    names = [name_of(*each) for each in ((1, 5, 0), (1, 5, 1), (2, 6, 0), (2, 6, 1), (2, 7, 0), (2, 8, 0), (3, 1, 0))]
    folder(tmp_path / "b", **dict.fromkeys([*names, "mine"], "x"))
    place.trim(2, 0, 0)
    assert sorted(place.names()) == sorted([*names, "mine"]), "no copy is whole yet"
    place.trim(2, 7, 1)
    assert set(names) - set(place.names()) == {name_of(2, 6, 1)}, "a machine removes its own"
    place.trim(2, 7, 0)
    assert sorted(place.names()) == sorted([name_of(2, 7, 0), name_of(2, 8, 0), name_of(3, 1, 0), "mine"])


# ---- archives of several machines ---------------------------------------------------------------------------------------


def begun(tmp_path: Path, machine: int, **files: str) -> tuple[Path, int]:
    """A folder of files with which an attempt began, and the time after which its ranks change it."""
    here = folder(tmp_path / f"m{machine}", **files)
    stamp = folder(tmp_path, stamp="x") / "stamp"
    while stamp.stat().st_ctime_ns <= max(path.stat().st_ctime_ns for path in here.iterdir()):
        stamp.touch()
    return here, stamp.stat().st_ctime_ns


def together(tmp_path: Path, parts: Sequence[tuple[str, str]]) -> dict[str, str]:
    there = folder(tmp_path / "there")
    restore(Place(f"file://{tmp_path}/b"), there, [*reversed(parts)])
    return files_of(there)


def test_a_file_that_any_machine_wrote_replaces_the_one_with_which_all_of_them_began(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/b")
    old = {"shared": "old", "of-0": "old", "of-1": "old", "gone": "old", "both": "old"}
    folders = [begun(tmp_path, machine, **old) for machine in range(2)]
    (folders[0][0] / "gone").unlink()
    for machine, (here, _) in enumerate(folders):
        folder(here, **{f"of-{machine}": f"new {machine}", f"shard-{machine}": str(machine), "both": f"new {machine}"})
    parts = [saved(place, here, 1, machine, since) for machine, (here, since) in enumerate(folders)]
    with tarfile.open(tmp_path / "b" / parts[1][0]) as archive:
        names = {member.name for member in archive if member.isfile()}
    assert names == {"checkpoints/of-1", "checkpoints/shard-1", "checkpoints/both"}, (
        "the rest is not sent by each machine"
    )
    assert together(tmp_path, parts) == {
        "shared": "old",
        "of-0": "new 0",
        "of-1": "new 1",
        "both": "new 0",
        "shard-0": "0",
        "shard-1": "1",
    }


def test_a_name_that_is_a_file_here_a_folder_there_and_a_link_elsewhere_is_written_through_no_link(
    tmp_path: Path,
) -> None:
    place, outside = Place(f"file://{tmp_path}/b"), folder(tmp_path / "outside", x="theirs")
    zero, one, two = (folder(tmp_path / f"m{n}") for n in range(3))
    folder(zero / "name", x="0")
    folder(one, name="1")
    folder(two / "real", x="2")
    (two / "name").symlink_to("real")
    (two / "out").symlink_to(outside)
    parts = [saved(place, here, 1, machine) for machine, here in enumerate((zero, one, two))]
    assert together(tmp_path, parts) == {"name/x": "0", "real/x": "2"}
    assert files_of(outside) == {"x": "theirs"}
