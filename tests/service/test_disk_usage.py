"""Who has how much in a data directory is one figure for doctor, monitoring, notifications and quotas."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import World, request, world

from archives import upload
from themis.machines.bundles.store import NoRoomInStore
from themis.machines.engines.copies import Copies
from themis.service.api.submission import submit
from themis.service.engine.disk_usage import DiskWatch, usage_of
from themis.service.operations import doctor

MIB = 1 << 20


def submitted(w: World, user: str) -> int:
    asked = request(f"app-{user}", gpus=(1, 1))
    asked.user = user
    return int(w.ask(lambda a: submit(a, asked)).app)


def left(home: Path, w: World) -> None:
    """Apps of ann and eve, each with one job, and what these left in all places."""
    for user, size in (("ann", 1), ("eve", 3)):
        app = submitted(w, user)
        for folder in (f"run/checkpoints/app{app}/job{app}", f"run/nodes/m0/logs/job{app}-attempt1"):
            (home / folder).mkdir(parents=True)
            (home / folder / "file").write_bytes(b"x" * size * MIB)


def test_what_lies_in_a_data_directory_is_counted_by_user(tmp_path: Path) -> None:
    with world(tmp_path, 4) as w:
        left(tmp_path, w)
        (tmp_path / "run" / "checkpoints" / "app0" / "job99").mkdir()
        found = usage_of(tmp_path, running=[1])
        assert 2 * MIB <= found.users["ann"] < 2.1 * MIB
        assert 6 * MIB <= found.users["eve"] < 6.1 * MIB
        assert found.at_rest == {"ann": found.users["ann"], "eve": 0}
        assert found.most().startswith("eve has 6")
        (checked,) = [check for check in doctor.examine(tmp_path) if check["check"] == "disk"]
        assert "of which eve has 6" in checked["finding"]


def test_the_files_of_every_job_of_an_app_are_counted_and_of_the_first_user_who_sent_them(tmp_path: Path) -> None:
    with world(tmp_path, 4) as w:
        for user, names in (("ann", "ab"), ("eve", "bc")):
            asked = request(f"app-{user}", gpus=(1, 1))
            asked.user = user
            asked.jobs.append(asked.jobs[0].model_copy(deep=True))
            for job, name in zip(asked.jobs, names, strict=True):
                job.program.bundle = name * 64
                (tmp_path / "bundles" / (name * 64)).parent.mkdir(exist_ok=True)
                (tmp_path / "bundles" / (name * 64)).write_bytes(b"x" * MIB)
            w.ask(lambda a, asked=asked: submit(a, asked))
        assert usage_of(tmp_path).users == {"ann": 2 * MIB, "eve": MIB}


def test_files_beyond_a_users_quota_are_refused_and_others_are_not(tmp_path: Path) -> None:
    with world(tmp_path, 4) as w:
        left(tmp_path, w)
        watch = DiskWatch(tmp_path, 7.0 * MIB, lambda: ())
        watch.admit("eve", 100 * MIB)
        watch.added = {}
        watch.measure((), 0.0)
        with pytest.raises(
            NoRoomInStore, match=r"user eve has 6.* MiB in the service's data directory, and 2 MiB more exceed"
        ):
            watch.admit("eve", 2 * MIB)
        watch.admit("eve", 2 * MIB, instead=2 * MIB)
        watch.admit("ann", 4 * MIB)
        with pytest.raises(NoRoomInStore, match="user ann has 6"):
            watch.admit("ann", 2 * MIB)


def test_a_copy_that_its_user_may_not_add_is_refused_and_its_machine_told(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "copies", 1 << 30, 1 << 30)

    def refuse(app: int, size: int, instead: int) -> None:
        raise NoRoomInStore(f"app {app} may not add {size} bytes instead of {instead}.")

    copies.admit = refuse
    copies.begin(7, 1, 1, 0, 1, "m0")
    answer = copies.take("m0", 1, 1, upload(b"12345"))
    assert (answer.problem, answer.over) == ("app 7 may not add 5 bytes instead of 0.", True)
    copies.close()
