"""Claims on GPUs: ranks cannot release them, other accounts can neither hold nor fake them; jobs get no rights of root."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from live import grant, live, shell

from processes import PATIENCE_S, running
from themis.errors import InputError
from themis.machines.agent import gpus, keeper
from themis.machines.agent.environment import CLEAN_PATH, rank_env
from themis.machines.agent.gpus import claim, release
from themis.machines.agent.messages import TaskSpec
from themis.machines.agent.tasks import user_for
from themis.machines.engines.program import AttemptEnded
from themis.model.events import JobReached

ROOT = os.geteuid() == 0
OTHER = "nobody"
as_root = pytest.mark.skipif(not ROOT, reason="only root can act as another account")

UNLOCK = """
import fcntl, os, struct, sys
for name in os.listdir("/proc/self/fd"):
    try:
        where = os.readlink(f"/proc/self/fd/{name}")
        if "GPU" in where:
            print("inherited", where)
        fcntl.flock(int(name), fcntl.LOCK_UN)
        fcntl.fcntl(int(name), fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0))
    except OSError:
        pass
"""


@pytest.mark.slow
def test_no_rank_has_the_files_of_the_claims_or_can_release_them(tmp_path: Path) -> None:
    base = tmp_path / "claims"
    held = claim(["GPU-0"], 1, base)
    (tmp_path / "unlock.py").write_text(UNLOCK)
    program = shell(f"{sys.executable} {tmp_path / 'unlock.py'}; echo unlocked; sleep 0.2")
    with live(tmp_path / "root", program, claims=held) as world:  # which gives them back in the end
        world.executor.submit(grant(1, (0,)))
        world.until(JobReached)
        assert world.logs().strip().endswith("unlocked")
        assert "inherited" not in world.logs()
        with pytest.raises(InputError, match="0 of 1 GPUs"):
            claim(["GPU-0"], 1, base)
    release(claim(["GPU-0"], 1, base))


# ---- other accounts of the machine ----------------------------------------------------------------------------------------

BECOME = """
import os, pwd, sys
from pathlib import Path
from themis.errors import InputError
from themis.machines.agent.gpus import claim
other = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(other.pw_gid)
os.setuid(other.pw_uid)
"""
"""After its imports: this installation may be root's alone."""
HOLD = f"""{BECOME}
try:
    held = claim(sys.argv[2:], len(sys.argv) - 2, Path(sys.argv[1]))
    print("held", flush=True)
    sys.stdin.read()
except InputError as error:
    print(error, flush=True)
"""
OPEN = f"""{BECOME}
for act in (lambda: os.open(sys.argv[1], os.O_RDONLY), lambda: os.listdir(os.path.dirname(sys.argv[1]))):
    try:
        print("got", act())
    except PermissionError:
        print("refused")
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """As /var/tmp: all accounts make folders there."""
    folder = Path(tempfile.mkdtemp(prefix="themis-claims-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def holder(*arguments: object) -> Iterator[str]:
    """Another account that claims these GPUs and holds them through the block; gives the first line that it says."""
    command = [sys.executable, "-c", HOLD, *map(str, arguments)]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline()


@as_root
def test_another_account_can_neither_open_nor_hold_what_root_claims_and_respects_it(base: Path) -> None:
    held = claim(["GPU-0"], 1, base)
    (folder,) = base.iterdir()
    opened = subprocess.run(
        [sys.executable, "-c", OPEN, str(folder / "GPU-0")],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert opened.stdout.split() == ["refused", "refused"]
    with holder(base, "GPU-0") as said:
        assert "0 of 1 GPUs of this machine are free" in said
        assert "Account root has GPU-0" in said
    release(held)
    with holder(base, "GPU-0") as said:
        assert said == "held\n"


@as_root
def test_another_accounts_claim_keeps_no_gpu_from_root_who_is_warned(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with holder(base, "GPU-0", "GPU-1") as said:
        assert said == "held\n"
        held = claim(["GPU-1"], 1, base)
        assert f"account {OTHER} has a claim on GPU-1" in caplog.text
        release(held)


@as_root
def test_a_folder_that_another_account_made_in_our_name_is_left_to_it(base: Path) -> None:
    squatted = base / "themis-gpus-0"
    squatted.mkdir(mode=0o777)
    (squatted / "GPU-0").write_text("")
    uid = pwd.getpwnam(OTHER).pw_uid
    for path in (squatted, squatted / "GPU-0"):
        os.chown(path, uid, -1)
    held = claim(["GPU-0"], 1, base)
    assert (base / "themis-gpus-0.1" / "GPU-0").exists()
    with pytest.raises(InputError, match="0 of 1 GPUs"):
        claim(["GPU-0"], 1, base)
    release(held)


def test_claims_in_a_folder_that_others_can_write_are_refused(base: Path) -> None:
    release(claim(["GPU-0"], 1, base))
    (folder,) = base.iterdir()
    folder.chmod(0o777)
    with pytest.raises(InputError, match=r"can be written by others, who could claim GPUs there; chmod 711"):
        claim(["GPU-0"], 1, base)


def test_claims_of_ordinary_accounts_count_for_each_other(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from an account that owns nothing there: the folder and its files are those of the account of this process."""
    held = claim(["GPU-0"], 1, base)
    mine = os.geteuid()
    monkeypatch.setattr("themis.machines.agent.gpus.os.geteuid", lambda: mine + 1)
    assert gpus._elsewhere(base, ["GPU-0", "GPU-1"]) == {"GPU-0": [mine]}
    release(held)
    assert gpus._elsewhere(base, ["GPU-0"]) == {}


# ---- whose rights jobs have -----------------------------------------------------------------------------------------------


def accounts(monkeypatch: pytest.MonkeyPatch, **uids: int) -> None:
    def getpwnam(name: str) -> object:
        if name not in uids:
            raise KeyError(name)
        return SimpleNamespace(pw_name=name, pw_uid=uids[name], pw_gid=0, pw_dir="/", pw_shell="/bin/sh")

    monkeypatch.setattr("pwd.getpwnam", getpwnam)
    monkeypatch.setattr("os.geteuid", lambda: 0)


def test_uid_0_is_root_whatever_its_account_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts(monkeypatch, toor=0, ada=1000)
    assert user_for("ada", allow_root=False) == "ada"
    assert user_for("toor", allow_root=True) == ""
    with pytest.raises(
        InputError, match=r"the job would run as root: user 'toor' has uid 0. Submit it as another system user"
    ):
        user_for("toor", allow_root=False)
    with pytest.raises(InputError, match="does not exist"):
        user_for("0", allow_root=False)
    with pytest.raises(PermissionError, match="'toor' has uid 0"):
        keeper.become("toor")


def spec(user: str) -> TaskSpec:
    return TaskSpec(
        task="job0-attempt1",
        app=0,
        job=0,
        attempt=1,
        argv=("true",),
        cwd="/",
        env={},
        user=user,
        ranks=(0,),
        world_size=1,
        devices=("",),
        gpus=1,
        machine=0,
        machines=1,
        per_machine=False,
        grace_s=1.0,
        stop_signal="SIGTERM",
        checkpoint_dir="/c",
        make_checkpoint_dir=True,
        target=1.0,
        log_bytes=4096,
    )


def test_the_path_of_roots_service_reaches_no_other_users_job(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts(monkeypatch, ada=1000)
    outer = {"PATH": "/root/bin:/usr/bin", "HOME": "/root", "LANG": "C"}
    assert rank_env(spec("ada"), 0, "/run", outer)["PATH"] == CLEAN_PATH
    assert rank_env(spec(""), 0, "/run", outer)["PATH"] == "/root/bin:/usr/bin"


@as_root
@pytest.mark.slow
def test_a_job_of_another_user_runs_with_a_clean_path_and_without_the_services_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="themis-user-"))
    folder.chmod(0o711)
    monkeypatch.setenv("PATH", f"/root/own-bin:{os.environ['PATH']}")
    say = shell('echo "{\\"path\\": \\"$PATH\\", \\"user\\": \\"$(id -u)\\"}"', user=OTHER)
    try:
        with live(folder / "root", say) as world:
            (folder / "root").chmod(0o711)
            world.executor.submit(grant(1, (0,)))
            world.until(AttemptEnded)
            said = json.loads(world.logs().strip().splitlines()[-1])
        assert said == {"path": CLEAN_PATH, "user": str(pwd.getpwnam(OTHER).pw_uid)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
