"""Checkpoints and outputs that the service keeps: a job resumes on a machine that never had its folders, without a URL."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live import LONG, Live, grant, live, revoke, shell

from processes import left_of, wait_until
from themis.bundles.copies import Copies, Copy
from themis.bundles.pack import pack
from themis.bundles.store import Store
from themis.executors.program import AttemptEnded, Ending
from themis.model.events import JobStarted, JobStopped
from themis.node.messages import THROUGH_SERVICE

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
    found = kept.newest(0)
    assert found is not None
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
        wait_until(lambda: kept.awaited(0, 4) == "", "the last copy is here")
        assert files(kept) == {
            "checkpoints/at-sigterm": "stopped\n",
            "checkpoints/attempts": "1\n2\n3\n",
            "outputs/results/log": "1\n2\n3\n",
        }
        folders = [root / "nodes" / f"m{n}" / "checkpoints" for n in range(2)]
        wait_until(lambda: not any(p for n in folders for p in n.iterdir()), "copied folders are removed from machines")
        assert len(list((tmp_path / "copies" / "files").iterdir())) == 1, "only the newest copy is kept"
