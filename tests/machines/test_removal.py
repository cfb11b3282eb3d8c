"""Folders that jobs left: of any depth, read-only or full of links, they are removed, and the node agent outlives it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from live import grant, live, shell
from test_travel import send

from processes import wait_until
from themis.machines.agent.removal import remove, remove_later
from themis.machines.bundles.store import Store
from themis.machines.engines.program import AttemptEnded, Ending
from themis.model.events import JobStopped, MachineFailed

DEEP = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\nopen('f', 'w').close()\n"


def deep(folder: Path) -> None:
    """3,000 folders within each other, deeper than a path may be long."""
    here = os.getcwd()
    folder.mkdir(parents=True)
    os.chdir(folder)
    try:
        exec(DEEP, {})
    finally:
        os.chdir(here)


def test_a_folder_of_any_depth_with_links_and_read_only_folders_is_removed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    top = tmp_path / "top"
    deep(top / "a" / "b")
    (top / "link").symlink_to(tmp_path / "outside")
    (top / "a" / "link").symlink_to(tmp_path / "outside" / "kept")
    (top / "cache").mkdir()
    (top / "cache" / "module").touch()
    (top / "cache").chmod(0o555)
    remove(top)
    assert not os.path.lexists(top)
    assert (tmp_path / "outside" / "kept").exists()
    remove(top)  # again: nothing
    remove(tmp_path / "none" / "there")


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "top").symlink_to(tmp_path / "outside")
    remove(tmp_path / "top")
    assert (tmp_path / "outside" / "kept").exists()


def test_later_frees_the_name_now_and_removes_all(tmp_path: Path) -> None:
    for n in range(5):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / str(n)).touch()
        remove_later(tmp_path / "x")
        assert not (tmp_path / "x").exists()
    wait_until(lambda: not any(tmp_path.iterdir()), "all are removed")


@pytest.mark.slow
def test_a_job_that_leaves_deep_folders_does_not_end_its_machines_agent(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "deep.py").write_text(DEEP)
    store = Store(tmp_path / "bundles", 1 << 30)
    bundle = send(store, code)
    program = shell("python3 deep.py; exit 3", bundle=bundle, env={"PATH": os.environ["PATH"]})
    with live(tmp_path / "run", program, bundles=store) as world:
        agent = world.executor.agents[0].pid
        for attempt in (1, 2):
            world.executor.submit(grant(attempt, (0,)))
            assert world.until(AttemptEnded).ending is Ending.FAILED
            world.until(JobStopped)
            world.executor.recorded(0, attempt)
        wait_until(lambda: not any((tmp_path / "run" / "nodes" / "m0" / "work").iterdir()), "the copies are removed")
        assert world.executor.agents[0].pid == agent
        assert not [item for item in world.heard if isinstance(item, MachineFailed)]
