"""The command lines of launchers. bwrap runs in ``test_travel``; apptainer and docker are checked by their command lines alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from themis.errors import InputError
from themis.machines.agent.launchers import cleanup, signals_children, wrapped
from themis.machines.engines.program import Program


def words(launcher: str, **more: object) -> str:
    given: dict[str, object] = {
        "cwd": "/w/sub",
        "folders": ("/r/reports", "/c", "/w"),
        "readable": ("/r",),
        "name": "themis-job7-attempt2-rank0",
        "root": "/nowhere",
        **more,
    }
    return " ".join(
        wrapped(launcher, ("python", "t.py"), {"PATH": "/bin", "RANK": "0", "CUDA_VISIBLE_DEVICES": "GPU-a"}, **given)
    )  # type: ignore[arg-type]


def test_without_a_launcher_the_command_is_as_it_was() -> None:
    assert words("") == "python t.py"


def test_bwrap_shows_the_machine_and_lets_the_job_write_its_own_folders() -> None:
    assert words("bwrap") == (
        "bwrap --die-with-parent --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --bind-try /dev/shm /dev/shm "
        "--ro-bind /w/sub /w/sub --ro-bind /r /r --bind /r/reports /r/reports --bind /c /c --bind /w /w --chdir /w/sub -- "
        "python t.py"
    )
    assert signals_children("bwrap")


def test_bwrap_has_the_files_of_the_driver_and_of_every_gpu(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "sda"):
        (tmp_path / "dev" / name).touch()
    shown = words("bwrap", root=str(tmp_path))
    files = ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1")
    assert " ".join(f"--dev-bind /dev/{name} /dev/{name}" for name in files) in shown
    assert "sda" not in shown


def test_apptainer_gets_the_folders_and_the_gpus() -> None:
    assert words("apptainer:/images/torch.sif", devices=("GPU-a",)) == (
        "apptainer exec --nv --bind /w/sub:/w/sub,/r:/r,/r/reports:/r/reports,/c:/c,/w:/w "
        "--pwd /w/sub /images/torch.sif python t.py"
    )
    assert "--nv" not in words("apptainer:/images/torch.sif", devices=("",))
    assert cleanup("apptainer:x", ("a",)) == ()


def test_docker_gets_folders_gpus_the_user_and_names_of_variables_without_values() -> None:
    shown = words("docker:pytorch/pytorch:2.4", devices=("GPU-a", "GPU-b"), user="nobody")
    assert shown.startswith(
        "docker run --rm --init --name themis-job7-attempt2-rank0 --network host --ipc host --user 65534:65534 "
        '--gpus "device=GPU-a,GPU-b" --env MASTER_ADDR --env MASTER_PORT --env PET_MASTER_ADDR --env PET_MASTER_PORT --env RANK '
    )
    assert shown.endswith("--volume /c:/c --volume /w:/w --workdir /w/sub pytorch/pytorch:2.4 python t.py")
    assert "GPU-a --env" not in shown.replace("GPU-a,GPU-b", "")
    assert "--gpus" not in words("docker:x")
    assert cleanup("docker:x", ("a", "b")) == (("docker", "rm", "--force", "a", "b"),)


@pytest.mark.parametrize(
    "launcher", ["podman", "docker:", "docker:-v /:/ x", "bwrap --bind / /", "apptainer:a b", "docker:x\n"]
)
def test_other_launchers_are_refused(launcher: str) -> None:
    with pytest.raises(InputError, match="bwrap, apptainer:IMAGE or docker:IMAGE"):
        Program(argv=("true",), launcher=launcher)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"bundle": "x"}, "SHA-256"),
        ({"bundle": "a" * 64, "cwd": "/../x"}, "folder of the files"),
        ({"packages": "../x.txt"}, "below the working directory"),
        ({"packages": "setup.cfg"}, "uv.lock"),
        ({"packages": "uv.lock", "launcher": "docker:x"}, "packages of its image"),
        ({"modules": ("a; rm",)}, "cuda/12.4"),
        ({"checkpoint_url": "bucket"}, "expected a URL"),
        ({"checkpoint_url": "themis://x"}, "has nothing after it"),
        ({"checkpoint_url": "s3://b", "checkpoint_dir": "/c"}, "one of them"),
    ],
)
def test_programs_that_cannot_be_are_one_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Program(argv=("true",), **fields)  # type: ignore[arg-type]
