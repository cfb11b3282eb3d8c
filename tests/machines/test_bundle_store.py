"""The content store: verified, atomic, with a quota that no needed file falls to."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from themis.errors import InputError
from themis.machines.bundles.store import NoRoomInStore, Store


def put(store: Store, data: bytes) -> str:
    with store.receive(len(data)) as incoming:
        incoming.write(data)
        return incoming.finish(hashlib.sha256(data).hexdigest())


def age(store: Store, name: str, seconds: float) -> None:
    path = store.path(name)
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_a_file_is_there_once_it_is_whole_and_under_its_sha256(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", 1000)
    name = put(store, b"hello")
    assert (store.size(name), store.read(name, 1, 3), store.read(name, 9, 3)) == (5, b"ell", b"")
    assert put(store, b"hello") == name
    assert [p.name for p in store.folder.iterdir()] == [name]


def test_a_damaged_or_unfinished_file_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", 1000)
    with store.receive(10) as incoming:
        incoming.write(b"hello")
        with pytest.raises(InputError, match="damaged"):
            incoming.finish("0" * 64)
    with store.receive(3) as incoming, pytest.raises(InputError, match="more than"):
        incoming.write(b"hello")
    assert list(store.folder.iterdir()) == []
    with store.receive(1000):
        pass  # what the two reserved was given back


def test_what_a_crash_left_half_written_is_removed_at_the_next_start(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", 1000)
    incoming = store.receive(10)
    incoming.write(b"half")
    assert len(list(store.folder.iterdir())) == 1
    assert list(Store(tmp_path / "s", 1000).folder.iterdir()) == []


def test_room_is_made_by_removing_the_least_recently_used_that_no_job_needs(tmp_path: Path) -> None:
    needed: set[str] = set()
    store = Store(tmp_path / "s", 25, lambda: needed)
    old, kept, new = (put(store, bytes([i]) * 8) for i in range(3))
    for name, seconds in ((old, 9000), (kept, 8000), (new, 7000)):
        age(store, name, seconds)
    needed.add(old)
    fourth = put(store, b"4" * 8)
    assert {p.name for p in store.folder.iterdir()} == {old, new, fourth}
    needed |= {new, fourth}
    with pytest.raises(NoRoomInStore, match="bundles_quota"):
        put(store, b"5" * 8)


def test_a_file_that_was_used_lately_stays_though_no_job_needs_it_yet(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", 10)
    put(store, b"a" * 8)
    with pytest.raises(NoRoomInStore):
        put(store, b"b" * 8)


def test_files_that_nobody_used_for_long_are_removed(tmp_path: Path) -> None:
    needed: set[str] = set()
    store = Store(tmp_path / "s", 100, lambda: needed)
    one, two, three = put(store, b"one"), put(store, b"two"), put(store, b"three")
    age(store, one, 90000)
    age(store, two, 90000)
    needed.add(two)
    assert store.trim(86400) == [one]
    assert {p.name for p in store.folder.iterdir()} == {two, three}


@pytest.mark.parametrize("name", ["", "../x", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_names_that_are_no_sha256_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="SHA-256"):
        Store(tmp_path, 1).size(name)
