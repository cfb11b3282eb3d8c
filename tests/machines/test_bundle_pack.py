"""What of a folder is sent, and that the same files give the same archive."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from themis.errors import InputError
from themis.machines.bundles.pack import pack

MOST = 1 << 20


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    packed = pack(folder, MOST)
    with tarfile.open(packed.path) as archive:
        found = archive.getnames()
    packed.path.unlink()
    return found


def sha(folder: Path) -> str:
    packed = pack(folder, MOST)
    packed.path.unlink()
    return packed.sha256


def git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *words], check=True, capture_output=True
    )


def test_a_git_tree_sends_tracked_and_untracked_files_that_are_not_ignored(tmp_path: Path) -> None:
    write(tmp_path, train_dot_py="1", _dot_gitignore="out/\n*.log\n", out__big="x", a_dot_log="x", lib__m_dot_py="2")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "train.py")
    assert names(tmp_path) == [".gitignore", "lib/m.py", "train.py"]
    write(tmp_path, _dot_themisignore="lib/\n")
    assert names(tmp_path) == [".gitignore", ".themisignore", "train.py"]
    (tmp_path / "train.py").unlink()
    assert names(tmp_path) == [".gitignore", ".themisignore"]


def test_a_folder_of_a_git_tree_sends_what_is_below_it(tmp_path: Path) -> None:
    write(tmp_path, above="1", in_dot_d__train_dot_py="1", in_dot_d__x_dot_log="1", _dot_gitignore="*.log\n")
    git(tmp_path, "init", "-q")
    assert names(tmp_path / "in.d") == ["train.py"]


def test_without_git_ignore_files_say_what_is_left_out(tmp_path: Path) -> None:
    write(
        tmp_path,
        train_dot_py="1",
        data__big="x",
        sub__keep_dot_log="k",
        sub__drop_dot_log="d",
        a_dot_log="x",
        _dot_gitignore="*.log\n",
        _dot_themisignore="/data\n",
        sub___dot_gitignore="!keep.log\n",
    )
    assert names(tmp_path) == [".gitignore", ".themisignore", "sub/.gitignore", "sub/keep.log", "train.py"]


def test_the_same_files_give_the_same_archive_and_others_another(tmp_path: Path) -> None:
    one = write(tmp_path / "one", b="2", a="1", c__d="3")
    two = write(tmp_path / "two", c__d="3", a="1", b="2")
    os.utime(two / "a", (1e9, 1e9))
    (two / "b").chmod(0o600)
    assert sha(one) == sha(two)
    (two / "b").chmod(0o755)
    assert sha(one) != sha(two)


def test_modes_and_links_within_the_folder_are_kept(tmp_path: Path) -> None:
    write(tmp_path, run_dot_sh="#!/bin/sh\n", lib__x="1")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "lib" / "up").symlink_to("../run.sh")
    packed = pack(tmp_path, MOST)
    with tarfile.open(packed.path) as archive:
        assert [(m.name, oct(m.mode), m.linkname) for m in archive] == [
            ("lib/up", "0o777", "../run.sh"),
            ("lib/x", "0o644", ""),
            ("run.sh", "0o755", ""),
        ]
    packed.path.unlink()


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside"])
def test_a_link_out_of_the_folder_is_refused_by_name(tmp_path: Path, target: str) -> None:
    (tmp_path / "data").symlink_to(target)
    with pytest.raises(InputError, match=r"'data' to \.themisignore"):
        pack(tmp_path, MOST)


def test_too_much_is_refused_and_the_largest_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, small="x", large="x" * 3_000_000, larger="x" * 4_000_000)
    with pytest.raises(InputError, match=r"6\.7 MiB in 3 files.*larger \(3\.8 MiB\), large \(2\.9 MiB\)"):
        pack(tmp_path, MOST)


def test_pipes_and_sockets_are_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    os.mkfifo(tmp_path / "pipe")
    packed = pack(tmp_path, MOST)
    packed.path.unlink()
    assert (packed.files, packed.skipped) == (1, ("pipe",))


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        pack(tmp_path / "no", MOST)
