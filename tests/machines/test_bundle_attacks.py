"""Archives, and machines, that ask for more than they may: each is refused with a sentence, and costs nobody else anything."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from live import grant
from test_gangs import gangs, said

from themis.machines.agent import prepare
from themis.machines.agent.messages import PROTOCOL, Fetch, Hello, Message, Piece, Prepare, Renew, TaskState
from themis.machines.agent.prepare import Unfit, unpack
from themis.machines.bundles.store import Store
from themis.machines.engines.depot import Depot
from themis.machines.engines.gangs import Gangs
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.program import AttemptEnded, Ending, Program
from themis.model.cluster import Machine
from themis.testing.builders import app, job

BUNDLE = "a" * 64


def archive(folder: Path, *members: tuple[str, bytes, bytes]) -> tuple[int, str]:
    """An open archive of (name, type, content), and its SHA-256."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(data)
            tar.addfile(info, io.BytesIO(data))
    path = folder / "bundle.tar"
    path.write_bytes(out.getvalue())
    return os.open(path, os.O_RDONLY), hashlib.sha256(out.getvalue()).hexdigest()


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([("a", tarfile.REGTYPE, b"1"), ("a", tarfile.REGTYPE, b"2")], "has a name twice"),
        ([("a" * 300, tarfile.REGTYPE, b"1")], "has a name twice, or one that is too long"),
        ([("d/" * 300 + "f", tarfile.REGTYPE, b"1")], "more than 200 folders deep"),
        ([(f"f{n}", tarfile.REGTYPE, b"") for n in range(60)], "more than 50 files"),
        ([("d/../../x", tarfile.REGTYPE, b"1")], "not a path within its folder"),
        ([("pipe", tarfile.FIFOTYPE, b"")], "no file, folder or link"),
    ],
)
def test_an_archive_with_too_much_is_the_jobs_failure_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: list[tuple[str, bytes, bytes]], sentence: str
) -> None:
    monkeypatch.setattr(prepare, "MOST_MEMBERS", 50)
    target = tmp_path / "target"
    target.mkdir()
    file, name = archive(tmp_path, *members)
    with pytest.raises(Unfit, match=sentence):
        unpack(file, str(target), name)
    os.close(file)


@pytest.mark.parametrize("magic", [b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00"])
def test_a_compressed_archive_is_not_unpacked_so_that_none_grows(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "bundle.tar"
    path.write_bytes(magic + bytes(4096))
    file = os.open(path, os.O_RDONLY)
    with pytest.raises(Unfit, match="is no tar archive"):
        unpack(file, str(tmp_path / "target"), hashlib.sha256(path.read_bytes()).hexdigest())
    os.close(file)


def sent(machines: int = 2) -> Gangs:
    """Machines whose job is sent with files, granted on the first machine."""
    hosts = [Host(machine=Machine(name=f"m{n}", gpus=2), address=f"10.0.0.{n}") for n in range(machines)]
    program = Program(argv=("train",), bundle=BUNDLE, cwd="/")
    book = Gangs(hosts, lambda app, index: program, NodeSettings(), now=0.0, checkpoints="/ckpt")
    book.admit(0, app("a", [job(100.0, (1, 4))]))
    return book


def test_a_machine_gets_the_files_of_its_own_jobs_while_they_last_and_no_others() -> None:
    book = sent()
    for n in range(2):
        book.handle_message(n, Hello(node=f"m{n}", trust="single", protocol=PROTOCOL), 0.0)
        book.handle_message(n, Renew(sequence=1), 0.0)
    assert not book.specs_on(0)
    assert said(book.command(grant(1, (0,)), 0.0), Prepare) == [0]
    (spec,) = book.specs_on(0)
    assert (spec.bundle, book.specs_on(1)) == (BUNDLE, [])
    book.handle_message(0, TaskState(task="job0-attempt1", phase="ended", cause="not_started"), 1.0)
    assert not book.specs_on(0)


def test_a_question_for_other_files_is_answered_without_a_look_at_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path, 1 << 20)
    with store.receive(3) as incoming:
        incoming.write(b"abc")
        name = incoming.finish()
    answers: list[tuple[int, Message]] = []
    book = sent()
    book.command(grant(1, (0,)), 0.0)
    spec = replace(book.gangs[0].parts[0].spec, bundle=name)
    depot = Depot(store, None, lambda machine, message: answers.append((machine, message)))
    depot.fetch(7, Fetch(bundle=name, offset=0), [])
    ((machine, piece),) = answers
    assert isinstance(piece, Piece)
    assert (machine, piece.size, piece.data) == (7, -1, b"")
    assert "no job of this machine has the bundle" in piece.problem
    assert name not in piece.problem  # who reads it must not learn the name, which is the right to run with the files
    depot.fetch(7, Fetch(bundle=name, offset=0), [spec])
    end = time.monotonic() + 10
    while len(answers) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    depot.close()
    assert answers[1][1].size == 3  # type: ignore[union-attr]


def test_an_agent_of_an_earlier_protocol_gets_no_job_that_needs_more_and_others_as_before() -> None:
    book = sent(1)
    book.handle_message(0, Hello(node="m0", trust="single"), 0.0)
    book.handle_message(0, Renew(sequence=1), 0.0)
    out = book.command(grant(1, (0,)), 0.0)
    assert said(out, Prepare) == []
    (ended,) = [item for item in out if isinstance(item, AttemptEnded)]
    assert ended.ending is Ending.NODE_LOST
    assert "the agent of m0 speaks protocol 1, and this job's files" in ended.message
    assert said(gangs(1).command(grant(1, (0,)), 0.0), Prepare) == [0]
