"""Copies of a home that runs, and homes made of them."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fake import request, world
from typer.testing import CliRunner

from archives import upload
from themis.cli.root import app
from themis.client.home import make_token
from themis.errors import InputError
from themis.machines.agent.frames import Join
from themis.machines.engines.copies import Copies
from themis.machines.engines.members import Members, NotAllowed, authority_folder, members_file
from themis.service.api.access import Access
from themis.service.api.submission import submit
from themis.service.engine.journal import Journal
from themis.service.operations.backups import back_up, restore
from themis.trust.authority.ca import Authority


def test_a_home_that_runs_is_copied_and_the_copy_goes_on(tmp_path: Path) -> None:
    home, target, other = tmp_path / "home", tmp_path / "backup", tmp_path / "elsewhere" / "home"
    clock = [1000.0]
    with world(home, 2, clock=clock) as w:
        token = make_token(home)
        Access(home, token, "root").add("bob", admin=False)
        (home / "config.yaml").write_text("policy: themis\n")
        (home / "run" / "checkpoints" / "app0").mkdir(parents=True)
        (home / "run" / "checkpoints" / "app0" / "step").write_text("7")
        (home / "run" / "nodes").mkdir()
        for name in "abc":
            w.ask(lambda a, name=name: submit(a, request(name, weight=0.37)))
        w.finish(0)
        held = w.held()
        done = back_up(home, target)
        assert done.files == ("token", "users.json", "config.yaml")
        back_up(home, tmp_path / "whole", checkpoints=True)
        # What comes after the backup is not in it.
        w.ask(lambda a: submit(a, request("late")))
    assert not (target / "run").exists()
    assert {path.name for path in target.iterdir()} == {"journal.db", "journal.head", *done.files}
    assert all(path.stat().st_mode & 0o077 == 0 for path in target.iterdir())
    restore(tmp_path / "whole", other)
    assert (other / "run" / "checkpoints" / "app0" / "step").read_text() == "7"
    assert (other / "token").read_text() == token + "\n"
    assert json.loads((other / "users.json").read_text())
    with world(other, 2, clock=clock) as w:
        assert [entry.name for entry in w.arbiter.journal.apps()] == ["a", "b", "c"]
        assert [entry.outcome for entry in w.arbiter.journal.apps()] == ["completed", "", ""]
        assert w.held() == held
        w.ask(lambda a: submit(a, request("d")))


def test_copies_that_the_service_keeps_are_copied_with_the_checkpoints(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    with world(home, 2) as w:
        w.ask(lambda a: submit(a, request("a")))
        with closing(Copies(home / "copies", 1000, 1000)) as kept:
            kept.begin(0, 0, 1, 0, 1, "m0")
            kept.take("m0", 0, 1, upload(b"abc"))
            assert "copies" in back_up(home, tmp_path / "whole", checkpoints=True).files
            back_up(home, tmp_path / "small")
            assert not [*(tmp_path / "small" / "copies" / "files").iterdir()], "which archives are at URLs, and no more"
    (home / "copies" / "copies.db").write_bytes(b"x" * 4096)
    with pytest.raises(InputError, match=r"copies\.db cannot be copied"):
        back_up(home, tmp_path / "again", checkpoints=True)
    assert not (tmp_path / "again").exists()
    restore(tmp_path / "whole", other)
    with closing(Copies(other / "copies", 1000, 1000)) as kept:
        (found,) = kept.newest(0)
        assert kept.store.path(found.sha256).read_bytes() == b"abc"


def test_the_machines_of_a_fleet_and_their_authority_are_copied_and_join_tokens_are_not(tmp_path: Path) -> None:
    home, target, other = tmp_path / "home", tmp_path / "backup", tmp_path / "other"
    authority = Authority.open(authority_folder(home))
    with closing(Members(members_file(home))) as members:
        members.add_token("used", 600.0)
        join = Join(secret="used", name="gpu-1", gpus=2, gpu_type="H200", rack="", devices=(), slot=0)
        _, token = members.admit(join, "10.0.0.7")
        members.add_token("later", 600.0)
        with world(home, 2) as w:
            w.ask(lambda a: submit(a, request("a")))
            done = back_up(home, target)  # while the gateway has the file open
    assert {"authority", "fleet/fleet.db"} <= set(done.files)
    assert (target / "fleet").stat().st_mode & 0o077 == 0
    assert (target / "fleet" / "fleet.db").stat().st_mode & 0o077 == 0
    restore(target, other)
    assert Authority.open(authority_folder(other)).pem == authority.pem
    with closing(Members(members_file(other))) as members:
        assert members.entering("gpu-1", token, "10.0.0.7").gpus == 2
        for secret in ("used", "later"):
            with pytest.raises(NotAllowed, match="does not know this join token"):
                members.admit(replace(join, secret=secret, name="gpu-2"), "10.0.0.8")


def test_what_cannot_be_copied_or_restored_is_said(tmp_path: Path) -> None:
    home, target = tmp_path / "home", tmp_path / "backup"
    with pytest.raises(InputError, match=r"has no journal\.db, so there is nothing to back up"):
        back_up(home, target)
    with world(home, 2) as w:
        w.ask(lambda a: submit(a, request("a")))
    back_up(home, target)
    with pytest.raises(InputError, match="exists already; name a new folder"):
        back_up(home, target)
    with pytest.raises(InputError, match=r"has a journal\.db already"):
        restore(target, home)
    with pytest.raises(InputError, match="so it is not a backup"):
        restore(tmp_path, tmp_path / "new")


@pytest.mark.unfoldable
def test_a_damaged_journal_is_neither_copied_nor_restored(tmp_path: Path) -> None:
    home, target = tmp_path / "home", tmp_path / "backup"
    with world(home, 2) as w:
        w.ask(lambda a: submit(a, request("a")))
    back_up(home, target)
    for folder in (home, target):
        with closing(Journal(folder / "journal.db")) as journal:
            journal.db.execute("UPDATE records SET t = t + 1 WHERE number = 4")
    with pytest.raises(InputError, match="is damaged: record 4"):
        back_up(home, tmp_path / "second")
    assert not list(tmp_path.glob("*second*")) + list(tmp_path.glob(".second*"))
    with pytest.raises(InputError, match="is damaged: record 4"):
        restore(target, tmp_path / "new")
    assert not (tmp_path / "new" / "journal.db").exists()


def test_the_commands_say_what_they_copied(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with world(home, 2) as w:
        w.ask(lambda a: submit(a, request("a")))
    done = CliRunner().invoke(app, ["backup", str(tmp_path / "b"), "--home", str(home)])
    assert done.exit_code == 0, done.output
    assert "records of the journal" in done.output
    done = CliRunner().invoke(app, ["restore", str(tmp_path / "b"), str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "journal.db").exists()
