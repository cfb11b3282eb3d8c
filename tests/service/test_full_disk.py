"""A full disk: nothing is lost or leased twice, jobs run on, and the arbiter goes on when there is room."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from daemon import QUICK, Daemon
from fake import World, request, world

from processes import PATIENCE_S, wait_until
from themis.client.client import Client, Unavailable
from themis.client.home import read_endpoint
from themis.errors import InputError
from themis.machines.agent.keeper import Log, Supervisor
from themis.model.events import JobEnded
from themis.service.api.submission import DiskLow, submit
from themis.service.engine import transactions as turns
from themis.service.engine.journal import Journal, export
from themis.service.engine.pending_calls import Closed
from themis.service.engine.transactions import NoRoom
from themis.service.operations import doctor
from themis.sim.replay import replay


class Disk:
    """A journal that SQLite may let grow by so many pages, and by more when it was asked so often whether to go on."""

    def __init__(self, journal: Journal, pages: int, tries: int = 3) -> None:
        self.journal, self.tries, self.asked = journal, tries, 0
        journal.patient = self.patient
        self._let(int(journal.db.execute("PRAGMA page_count").fetchone()[0]) + pages)

    def _let(self, pages: int) -> None:
        self.journal.db.execute(f"PRAGMA max_page_count = {pages}")

    def patient(self) -> bool:
        self.asked += 1
        assert "full" in self.journal.stuck
        if self.asked == self.tries:
            self._let(1 << 30)
        return True


def submitted(w: World, name: str) -> int:
    return int(w.ask(lambda a: submit(a, request(name, gpus=(2, 2), jobs=2))).app)


def test_a_turn_that_finds_no_room_is_written_whole_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turns, "LOOK_S", 0.0)
    caplog.set_level(logging.INFO, "themis.service")
    with world(tmp_path, 4) as w:
        disks = 0
        for n in range(60):
            w.clock[0] += 0.25
            disk = Disk(w.arbiter.journal, n % 2)
            submitted(w, f"app{n}")
            for job in sorted(w.held())[:1]:
                w.finish(job)
            disks += disk.asked >= 3
            disk._let(1 << 30)
        assert disks > 3, "the disk was full now and then"
        assert not w.arbiter.journal.stuck
        held = w.held()
        expected = [r for _, r in w.arbiter.journal.records() if isinstance(r, JobEnded)]
        assert len(expected) == sum(w.arbiter.state.jobs.outcome[: w.arbiter.state.jobs.size] > 0)
    said = [r.getMessage() for r in caplog.records if "journal.db" in r.getMessage()]
    assert len([s for s in said if "nothing is decided or accepted until there is room; jobs run on" in s]) == disks
    assert len([s for s in said if "can be written again" in s]) == disks
    export(tmp_path / "journal.db", tmp_path / "log.jsonl")
    assert replay(tmp_path / "log.jsonl").difference is None
    with world(tmp_path, 4, clock=[2000.0]) as w:
        assert len(w.arbiter.journal.apps()) == 60
        assert {g.job: g.gpus for g, _, _ in w.executor.restored} == held


def test_an_arbiter_that_ends_waits_for_no_room_and_the_next_goes_on_from_the_turn_before(tmp_path: Path) -> None:
    with world(tmp_path, 4) as w:
        submitted(w, "first")
        Disk(w.arbiter.journal, 0)
        w.arbiter.journal.patient = lambda: False
        with pytest.raises(NoRoom, match="cannot be written"):
            [submitted(w, f"app{n}") for n in range(100)]
        written = len(w.arbiter.journal.apps())
    with world(tmp_path, 4, clock=[2000.0]) as w:
        assert len(w.arbiter.journal.apps()) == written == w.arbiter.state.apps.size
        assert [g.job for g, _, _ in w.executor.restored] == [0, 1]


def test_callers_are_told_at_once_that_the_disk_is_full(tmp_path: Path) -> None:
    with world(tmp_path, 4) as w:
        w.arbiter.journal.stuck = "J cannot be written (database or disk is full)"
        began = time.monotonic()
        with pytest.raises(Closed, match="J cannot be written"):
            w.arbiter.ask(lambda: None)
        assert time.monotonic() - began < 1.0


def test_the_caller_whose_call_finds_no_room_is_told_soon_and_the_call_is_kept_when_there_is(tmp_path: Path) -> None:
    with world(tmp_path, 4) as w:
        disk, enough = Disk(w.arbiter.journal, 0, tries=6), threading.Event()

        def turns() -> None:
            while not enough.is_set():
                w.arbiter._transaction()

        thread = threading.Thread(target=turns)
        thread.start()
        began, told = time.monotonic(), ""
        for n in range(60):
            try:
                w.arbiter.ask(lambda n=n: submit(w.arbiter, request(f"app{n}", gpus=(2, 2), jobs=2)))  # type: ignore[misc]
            except Closed as error:
                told = str(error)
                break
        assert "until there is room" in told
        assert "may be kept then" in told
        assert time.monotonic() - began < 30.0
        wait_until(lambda: not w.arbiter.journal.stuck, "there is room")
        enough.set()
        thread.join(PATIENCE_S)
        assert disk.asked >= 6
        assert not w.arbiter.journal.stuck
        assert len(w.arbiter.journal.apps()) == n + 1


def test_a_ranks_log_goes_on_when_a_new_file_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(str(tmp_path / "log"), 8192)
    log.write(b"a" * 4096)
    real = os.open

    def full(*given: object, **more: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("themis.machines.agent.keeper.os.open", full)
    log.write(b"lost")
    log.write(b"lost")
    os.fstat(log.file)  # it did not let go of the file that it has: another might have got its number
    monkeypatch.setattr("themis.machines.agent.keeper.os.open", real)
    log.write(b"kept")
    assert (tmp_path / "log").read_bytes() == b"kept"
    assert (tmp_path / "log.1").read_bytes() == b"a" * 4096
    os.close(log.file)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Take all that is free, as a job's ``dd`` does."""
    with open(folder / "filler", "wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    return folder / "filler"


def test_the_reserve_is_the_journals_alone_and_commits_go_on_where_the_disk_is_full(small: Path) -> None:
    with world(small, 4) as w:
        journal = w.arbiter.journal
        journal.reserve = 3 << 20
        app = submitted(w, "first")
        assert os.stat(f"{journal.path}-wal").st_size >= 3 << 20
        filler = fill(small)
        journal.patient = lambda: False
        for _ in range(20):
            w.ask(lambda a: a.hold(app))
            w.ask(lambda a: a.resume(app))
        with pytest.raises(DiskLow, match="submissions are refused until there is room; jobs run on"):
            submitted(w, "second")
        assert "is full" in w.arbiter.unready()
        assert not w.arbiter.unwell()
        w.ask(lambda a: a.cancel(app))
        filler.unlink()
        assert not w.arbiter.unready()
        assert submitted(w, "second") == app + 1
    with world(small, 4, clock=[2000.0]) as w:
        assert [entry.outcome for entry in w.arbiter.journal.apps()] == ["cancelled", ""]
    export(small / "journal.db", small / "log.jsonl")
    assert replay(small / "log.jsonl").difference is None


def test_a_reserve_that_does_not_fit_is_a_quarter_of_what_is_free(small: Path) -> None:
    with world(small, 4) as w:
        w.arbiter.journal.reserve = 1 << 30
        submitted(w, "first")
        assert 2 << 20 < os.stat(f"{w.arbiter.journal.path}-wal").st_size < 5 << 20


def test_a_supervisor_says_how_its_gang_ended_on_a_full_disk(small: Path) -> None:
    one = Supervisor(folder=small, task={}, deadline=0.0, control=-1)
    one.status.phase = "running"
    one.publish()
    fill(small)
    one.status.phase = "stopping"
    one.publish()
    assert one.published
    one.status.phase, one.status.message = "ended", "as asked"
    one.publish()
    assert one.published
    found = json.loads((small / "status.json").read_text())
    assert (found["phase"], found["message"]) == ("ended", "as asked")


def page(home: Path, path: str) -> tuple[int, str]:
    """The status of a page that needs no token, and what it says."""
    try:
        with urlopen(read_endpoint(home).http + path, timeout=PATIENCE_S) as reply:
            return int(reply.status), reply.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_on_a_full_disk_the_administrator_cancels_and_submissions_are_refused(small: Path) -> None:
    daemon = Daemon(small / "home")
    daemon.up()
    try:
        with Client(small / "home", patience_s=0.5) as client:
            apps = [client.run(["sleep", "1000"], name=name, gpus=1).app for name in ("one", "two", "three")]
            wait_until(lambda: all(client.show(app).app.state == "running" for app in apps), "the jobs run")
            wal = small / "home" / "journal.db-wal"
            wait_until(lambda: wal.stat().st_size > 1 << 20, "the journal has its reserve")
            assert page(small / "home", "/readyz") == (200, '{"status":"ok"}\n')
            filler = fill(small)
            with pytest.raises(InputError, match="submissions are refused until there is room"):
                client.run(["true"])
            client.cancel(apps[0])
            client.hold(apps[1])
            wait_until(lambda: client.show(apps[0]).app.state == "cancelled", "it is over")
            wait_until(lambda: client.show(apps[0]).app.gpus == 0, "its GPUs are free")
            code, said = page(small / "home", "/readyz")
            assert code == 503
            assert "is full" in said
            assert page(small / "home", "/healthz")[0] == 200
            assert client.show(apps[2]).app.state == "running"
            filler.unlink()
            assert client.run(["true"]).app > apps[2]
    finally:
        (small / "filler").unlink(missing_ok=True)
        assert daemon.down() == 0
    export(small / "home" / "journal.db", small / "log.jsonl")
    assert replay(small / "log.jsonl").difference is None


@pytest.mark.slow
@pytest.mark.parametrize("fills", ["$THEMIS_CHECKPOINT_DIR/x", "unlinked"])
def test_a_users_job_that_fills_the_disk_is_stopped_and_named_and_others_go_on(
    small: Path, tmp_path: Path, fills: str
) -> None:
    daemon = Daemon(small / "home", settings=(*QUICK, "single_trust=true"))
    daemon.up()
    try:
        with Client(small / "home", patience_s=0.5) as client:
            wal = small / "home" / "journal.db-wal"
            wait_until(lambda: wal.exists() and wal.stat().st_size > 1 << 20, "the journal has its reserve")
            counts = tmp_path / "counts"
            count = f"touch {counts}; while :; do echo $THEMIS_ATTEMPT >> {counts}; sleep 0.05; done"
            other = client.run(["sh", "-c", count], user="ann", gpus=1).app
            wait_until(lambda: counts.exists() and counts.stat().st_size > 0, "the other user's job runs")
            fill_up = (
                f"dd if=/dev/zero of={fills} bs=64k"
                if fills.startswith("$")
                else f"exec 3>{small}/y; rm {small}/y; cat /dev/zero >&3"
            )
            bad = client.run(["sh", "-c", f"{fill_up}; sleep 1000"], user="eve", gpus=1).app
            wait_until(lambda: client.show(bad).app.state == "held", "who fills the disk is stopped")
            found = client.show(bad)
            assert "user eve fills the disk of" in found.sentence
            assert "user eve fills the disk of" in found.jobs[0].attempts[-1].message
            assert found.jobs[0].attempts[-1].cause == "disk_quota"
            before = len(counts.read_text().split())
            # Ten of its leases.
            wait_until(lambda: len(counts.read_text().split()) > before + 400, "the other user's job runs on")
            assert set(counts.read_text().split()) == {"1"}
            client.cancel(bad)
            client.cancel(other)
            wait_until(lambda: client.show(other).app.gpus == 0, "both are over")
        assert "of user eve is held: user eve fills the disk" in daemon.said()
    finally:
        assert daemon.down() == 0
    export(small / "home" / "journal.db", tmp_path / "log.jsonl")
    assert replay(tmp_path / "log.jsonl").difference is None


@pytest.mark.slow
def test_a_service_without_a_reserve_keeps_its_jobs_and_goes_on(small: Path, tmp_path: Path) -> None:
    daemon = Daemon(small / "home", settings=(*QUICK, "journal_reserve=0"))
    daemon.up()
    try:
        with Client(small / "home", patience_s=0.5) as client:
            counts, enough = tmp_path / "counts", tmp_path / "enough"
            count = f"touch {counts}; while [ ! -e {enough} ]; do echo $THEMIS_ATTEMPT >> {counts}; sleep 0.05; done"
            app = client.run(["sh", "-c", count], gpus=2).app
            wait_until(lambda: counts.exists() and counts.stat().st_size > 0, "the job runs")
            more = client.run(["true"], name="more", gpus=4, launch="gpu").app
            fill(small)
            told = threading.Event()
            asker = threading.Thread(target=_hold_until, args=(told, small / "home", more))
            asker.start()
            # What the journal has room for in the blocks that it holds already is written; then it is told.
            wait_until(lambda: _refused(client), "callers are told that the disk is full")
            told.set()
            assert page(small / "home", "/healthz")[0] == 503
            assert any("cannot be written" in check["finding"] for check in doctor.examine(small / "home"))
            before = len(counts.read_text().split())
            wait_until(
                lambda: len(counts.read_text().split()) > before + 100, "the job runs on, beyond its machine's lease"
            )
            (small / "filler").unlink()
            asker.join()
            wait_until(lambda: not _refused(client), "callers are served again")
            enough.touch()
            assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
            attempts = [int(n) for n in counts.read_text().split()]
            assert attempts == sorted(attempts), "no two of its attempts ran at once"
            assert client.run(["true"]).app > app
        assert "jobs run on" in daemon.said()
        assert "the service continues" in daemon.said()
    finally:
        (small / "filler").unlink(missing_ok=True)
        assert daemon.down() == 0
    export(small / "home" / "journal.db", tmp_path / "log.jsonl")
    assert replay(tmp_path / "log.jsonl").difference is None


def _refused(client: Client) -> bool:
    try:
        client.info()
    except Unavailable as error:
        return "cannot be written" in str(error) and "jobs run on" in str(error)
    return False


def _hold_until(told: threading.Event, home: Path, app: int) -> None:
    """So that there is something to be written down."""
    with Client(home, patience_s=0.2) as client, suppress(Unavailable):
        while not told.is_set():
            client.hold(app)
            client.resume(app)
