"""Checkpoints that are copied to a URL: a job resumes on a machine that never had its folder."""

from __future__ import annotations

import json
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from live import LONG, SHORT, grant, live, revoke, shell

from processes import left_of, wait_until
from themis.machines.agent import checkpoint_copies
from themis.machines.agent.checkpoint_copies import Place, restore, save
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


@pytest.mark.slow
def test_a_preempted_job_resumes_on_another_machine_with_what_it_wrote_at_sigterm(root: Path, tmp_path: Path) -> None:
    """The machines share no folder: each attempt's checkpoints are below its own agent's folder."""
    url = tmp_path / "bucket"
    with live(root, shell(SAVES, checkpoint_url=f"file://{url}", grace_s=10.0), 1, 1, settings=LONG) as world:
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
    names = sorted(os.listdir(url))
    assert [name for name in names if name.startswith("ended")] == [f"ended-000{n}.json" for n in (1, 2, 3)]
    assert len([name for name in names if name.endswith(".tar")]) == checkpoint_copies.KEPT


@pytest.mark.slow
def test_every_machine_of_a_gang_gets_the_checkpoints_that_rank_0s_machine_copied(root: Path, tmp_path: Path) -> None:
    line = (
        "if [ $THEMIS_ATTEMPT = 1 ]; then [ $RANK = 1 ] || echo saved > $THEMIS_CHECKPOINT_DIR/step; exit 75; "
        f"else cp $THEMIS_CHECKPOINT_DIR/step {tmp_path}/of-$RANK; fi"
    )
    with live(root, shell(line, checkpoint_url=f"file://{tmp_path}/bucket"), 1, 1, settings=LONG) as world:
        world.executor.submit(grant(1, (0, 1)))
        world.until(JobStopped)
        world.executor.submit(grant(2, (0, 1)))
        world.until(JobReached)
    assert [(tmp_path / f"of-{rank}").read_text() for rank in range(2)] == ["saved\n"] * 2


@pytest.mark.slow
def test_while_it_runs_copies_are_made_and_one_serves_when_the_machine_is_lost(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = tmp_path / "bucket"
    # In one step, as jobs should save: a copy that is made meanwhile has all of it or nothing.
    line = "cd $THEMIS_CHECKPOINT_DIR; echo 7 > .step; mv .step step; while true; do sleep 0.1; done"
    settings = replace(LONG, copy_every_s=0.5)

    def copied() -> list[str]:
        """Files of all copies that have a marker."""
        found = []
        for marker in url.glob("copy-0001-*.json"):
            # Old copies are removed.
            with suppress(FileNotFoundError), tarfile.open(marker.with_suffix(".tar")) as archive:
                found += archive.getnames()
        return found

    def told() -> str:
        logs = [path.read_text() for path in sorted(root.glob("nodes/*/tasks/*/copies.log"))]
        files = sorted(path.name for path in url.glob("*"))
        return f"the last copy outlives the service; there are {files}, it said {logs}"

    # What copies outlives the service, so nothing is swept away here.
    with live(root, shell(line, checkpoint_url=f"file://{url}"), 1, 1, settings=settings, sweep=False) as world:
        world.executor.submit(grant(1, (0,)))
        wait_until(lambda: "./step" in copied(), lambda: f"a copy was made; {world.heard} {world.logs()}")
    wait_until((url / "ended-0001.json").exists, told)
    wait_until(lambda: not left_of(tmp_path), lambda: f"it is over: {left_of(tmp_path)}")
    assert json.loads((url / "ended-0001.json").read_text())["problem"] == ""
    (url / "ended-0001.json").unlink()  # as where the machine died with it
    (url / "copying-0001.json").unlink()
    monkeypatch.setattr(checkpoint_copies, "SIGN_S", 0.1)
    folder = tmp_path / "new"
    folder.mkdir()
    said = restore(Place(f"file://{url}"), folder, 2, lead=True, wait_s=5.0)
    assert "left no final copy" in said
    assert (folder / "step").read_text() == "7\n"


@pytest.mark.slow
def test_a_url_that_cannot_be_written_is_a_sentence_and_does_not_hold_the_gpus(root: Path, tmp_path: Path) -> None:
    program = shell("true", checkpoint_url="nosuch://bucket/x")
    with live(root, program, settings=LONG) as world:
        world.executor.submit(grant(1, (0,)))
        ended = world.until(AttemptEnded)
    assert ended.ending is Ending.NOT_STARTED
    assert "checkpoints cannot be restored" in ended.message
    assert "nosuch" in ended.message


@pytest.mark.slow
def test_the_next_attempt_does_not_begin_before_the_last_copy_is_there(root: Path, tmp_path: Path) -> None:
    """GPUs are free when the ranks have ended: the first machine serves another job while the copy is written."""
    url = tmp_path / "bucket"
    line = (
        f"if [ $THEMIS_ATTEMPT = 1 ]; then head -c 200M /dev/urandom > $THEMIS_CHECKPOINT_DIR/large; sleep 600; "
        f"else ls {url} > {tmp_path}/seen; stat -c %s $THEMIS_CHECKPOINT_DIR/large >> {tmp_path}/seen; fi"
    )
    with live(root, shell(line, checkpoint_url=f"file://{url}"), 1, 1, settings=SHORT) as world:
        large = root / "nodes" / "m0" / "checkpoints" / "job0-attempt1" / "large"
        world.executor.submit(grant(1, (0,)))
        wait_until(lambda: large.exists() and large.stat().st_size == 200 << 20, "it saved")
        world.executor.submit(revoke(1))
        world.until(JobStopped)
        world.executor.submit(grant(2, (1,)))
        world.until(JobReached)
    seen = (tmp_path / "seen").read_text().split()
    assert "ended-0001.json" in seen
    assert seen[-1] == str(200 << 20)


def folder(path: Path, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def test_half_a_copy_and_a_damaged_one_are_never_restored(tmp_path: Path) -> None:
    place, here = Place(f"file://{tmp_path}/b"), folder(tmp_path / "a", step="1")
    save(place, here, 1, 1, final=False)
    folder(here, step="2")
    save(place, here, 1, 2, final=True)
    tar = tmp_path / "b" / "copy-0001-0002.tar"
    tar.write_bytes(tar.read_bytes()[:-100] + b"x" * 100)
    (tmp_path / "b" / "copy-0001-0003.tar").write_bytes(b"half")
    (tmp_path / "b" / "copy-0001-0004.json").write_text('{"sha')
    there = folder(tmp_path / "c", old="x")
    said = restore(place, there, 2, lead=False, wait_s=0.1)
    assert "copy-0001-0002 is damaged" in said
    assert [(p.name, p.read_text()) for p in there.iterdir()] == [("step", "1")]


@pytest.mark.parametrize("fails", ["extract", "rename"])
def test_nothing_of_a_restore_that_did_not_finish_is_ever_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """It would be the newest copy, and the next attempt would go on from half of the checkpoints."""
    place = Place(f"file://{tmp_path}/b")
    save(place, folder(tmp_path / "one", model="1", optimizer="2", step="3"), 1, 1, final=True)
    there, kind, count = folder(tmp_path / "two"), (tarfile.TarFile if fails == "extract" else Path), iter(range(9))
    real = getattr(kind, fails)

    def dies(*given: object, **more: object) -> object:
        if next(count) == 2:
            raise KeyboardInterrupt  # as kill -9, nothing of ours handles it
        return real(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(kind, fails, dies)
        with pytest.raises(KeyboardInterrupt):
            restore(place, there, 2, lead=True, wait_s=0.1)
    assert any(there.iterdir())
    assert not save(place, there, 2, 2, final=True)
    place.write("ended-0002.json", {"problem": ""})
    third = folder(tmp_path / "three")
    restore(place, third, 3, lead=True, wait_s=0.1)
    assert {path.name: path.read_text() for path in third.iterdir()} == {"model": "1", "optimizer": "2", "step": "3"}
    # Begun again in the same folder, it finishes.
    restore(place, there, 2, lead=True, wait_s=0.1)
    assert {path.name for path in there.iterdir()} == {"model", "optimizer", "step"}
    assert save(place, there, 2, 3, final=True)


def test_a_late_copy_of_an_earlier_attempt_does_not_replace_a_later_ones(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/b")
    save(place, folder(tmp_path / "two", step="2"), 2, 1, final=False)
    save(place, folder(tmp_path / "one", step="1"), 1, 99, final=True)
    there = folder(tmp_path / "c")
    restore(place, there, 3, lead=False, wait_s=0.1)
    assert (there / "step").read_text() == "2"


def test_a_restore_waits_for_a_copy_that_is_being_written(tmp_path: Path) -> None:
    place, here = Place(f"file://{tmp_path}/b"), folder(tmp_path / "a", step="1")
    place.write("began-0001.json", {})
    place.write("copying-0001.json", {})

    def finish() -> None:
        time.sleep(1.0)
        save(place, here, 1, 1, final=True)
        place.write("ended-0001.json", {"problem": ""})

    thread = threading.Thread(target=finish)
    thread.start()
    there = folder(tmp_path / "c")
    restore(Place(f"file://{tmp_path}/b"), there, 2, lead=True, wait_s=30.0)
    thread.join()
    assert (there / "step").read_text() == "1"
    assert json.loads((tmp_path / "b" / "began-0002.json").read_text())


def test_files_that_change_while_they_are_copied_make_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, here = Place(f"file://{tmp_path}/b"), folder(tmp_path / "a", step="1")
    states = iter(range(100))
    monkeypatch.setattr(checkpoint_copies, "_state", lambda _: next(states))
    monkeypatch.setattr(checkpoint_copies.time, "sleep", lambda _: None)
    with pytest.raises(checkpoint_copies.Failed, match="changed while they were copied"):
        save(place, here, 1, 1, final=False)
    assert place.copies() == []
    assert [file.suffix for file in (tmp_path / "b").iterdir() if file.is_file()] == []
