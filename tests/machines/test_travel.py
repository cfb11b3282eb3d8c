"""Jobs whose files and packages come to their machines: real agents, supervisors and processes."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from live import LONG, SHORT, grant, live, revoke, shell

from processes import PATIENCE_S, left_of, running, wait_until
from themis.machines.agent.messages import PIECE
from themis.machines.agent.prepare import WHOLE
from themis.machines.agent.rooms import trim_environments
from themis.machines.bundles.pack import pack
from themis.machines.bundles.store import Store
from themis.machines.engines.program import AttemptEnded, Ending
from themis.model.events import JobReached, JobStarted, JobStopped, MachineFailed

pytestmark = pytest.mark.slow
QUOTA = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder whose processes are all gone when the test is over."""
    yield tmp_path / "run"
    wait_until(lambda: not left_of(tmp_path), "no process was left")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "bundles", QUOTA)


def put(store: Store, data: bytes) -> str:
    with store.receive(len(data)) as incoming:
        incoming.write(data)
        return incoming.finish()


def send(store: Store, folder: Path, **files: str | bytes) -> str:
    """The bundle of a folder with these files."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    packed = pack(folder, QUOTA)
    data = packed.path.read_bytes()
    packed.path.unlink()
    return put(store, data)


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_each_machine_of_a_gang_runs_in_its_own_copy_of_the_files(root: Path, store: Store, tmp_path: Path) -> None:
    large = os.urandom(3 * PIECE + 17)
    bundle = send(
        store,
        tmp_path / "code",
        sub__run_dot_sh="pwd; cat ../data | sha256sum > $OUT/sum-$RANK; pwd > $OUT/cwd-$RANK",
        data=large,
    )
    out = tmp_path / "out"
    out.mkdir()
    program = shell(". ./run.sh", bundle=bundle, cwd="/sub", env={"OUT": str(out)})
    with live(root, program, 1, 1, bundles=store) as world:
        world.executor.submit(grant(1, (0, 1)))
        world.until(JobReached)
    sums = {(out / f"sum-{rank}").read_text().split()[0] for rank in range(2)}
    assert sums == {hashlib.sha256(large).hexdigest()}
    assert [(out / f"cwd-{n}").read_text().strip() for n in range(2)] == [
        str(root / "nodes" / f"m{n}" / "work" / "job0-attempt1" / "sub") for n in range(2)
    ]


def test_the_copy_goes_with_its_attempt_and_the_archive_stays_for_the_next(
    root: Path, store: Store, tmp_path: Path
) -> None:
    program = shell("test ! -e dirt && touch dirt && exec sleep 60", bundle=send(store, tmp_path / "code", a="1"))
    with live(root, program, bundles=store) as world:
        node = root / "nodes" / "m0"
        for attempt in (1, 2):
            world.executor.submit(grant(attempt, (0,)))
            world.until(JobStarted)
            assert os.listdir(node / "work") == [f"job0-attempt{attempt}"]
            world.executor.submit(revoke(attempt))
            world.until(JobStopped)
            world.executor.recorded(0, attempt)
            wait_until(lambda: os.listdir(node / "work") == [], "the copy is removed")
            # What the service no longer has is not asked for: it is here.
            shutil.rmtree(store.folder, ignore_errors=True)
        assert os.listdir(node / "cache" / "bundles") == [program.bundle]


def test_a_bundle_that_the_service_no_longer_has_is_the_machines_failure_with_a_sentence(
    root: Path, store: Store
) -> None:
    with live(root, shell("true", bundle="0" * 64), bundles=store) as world:
        world.executor.submit(grant(1, (0,)))
        ended = world.until(AttemptEnded)
    assert (ended.ending, ended.cause) == (Ending.NODE_LOST, "machine")
    assert "no longer in the service's store" in ended.message


def test_an_archive_that_was_damaged_on_the_machine_is_fetched_again(root: Path, store: Store, tmp_path: Path) -> None:
    program = shell("cat a; exec sleep 60", bundle=send(store, tmp_path / "code", a="1"))
    with live(root, program, bundles=store) as world:
        cache = root / "nodes" / "m0" / "cache" / "bundles"
        cache.mkdir(parents=True)
        (cache / program.bundle).write_bytes(b"damaged")
        world.executor.submit(grant(1, (0,)))
        ended = world.until(AttemptEnded)
        assert (ended.cause, "damaged" in ended.message) == ("machine", True)
        world.executor.submit(grant(2, (0,)))
        world.until(JobStarted)


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../up", tarfile.REGTYPE, ""),
        ("/tmp/abs", tarfile.REGTYPE, ""),
        ("a/./b", tarfile.REGTYPE, ""),
        ("dev", tarfile.CHRTYPE, ""),
        ("fifo", tarfile.FIFOTYPE, ""),
        ("hard", tarfile.LNKTYPE, "/etc/passwd"),
        ("link", tarfile.SYMTYPE, "/etc"),
        ("link", tarfile.SYMTYPE, "../.."),
    ],
)
def test_an_archive_with_paths_links_or_devices_out_of_its_folder_is_refused(
    root: Path, store: Store, name: str, kind: bytes, link: str
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    with live(root, shell("true", bundle=put(store, tar((member, b"")))), bundles=store) as world:
        world.executor.submit(grant(1, (0,)))
        ended = world.until(AttemptEnded)
    assert (ended.ending, ended.message[:14]) == (Ending.NOT_STARTED, "the bundle has")


def test_an_archive_that_writes_through_a_link_of_its_own_is_refused(root: Path, store: Store) -> None:
    link, file = tarfile.TarInfo("d"), tarfile.TarInfo("d/x")
    link.type, link.linkname = tarfile.SYMTYPE, "e"
    with live(root, shell("true", bundle=put(store, tar((link, b""), (file, b"1")))), bundles=store) as world:
        world.executor.submit(grant(1, (0,)))
        assert "below something that is no folder" in world.until(AttemptEnded).message


def test_a_stop_while_files_are_on_their_way_ends_the_attempt(root: Path, store: Store, tmp_path: Path) -> None:
    program = shell("true", bundle=send(store, tmp_path / "code", data=os.urandom(300 * PIECE)))
    with live(root, program, bundles=store) as world:
        world.executor.submit(grant(1, (0,)))
        wait_until(lambda: any((root / "nodes" / "m0" / "cache" / "bundles").glob(".*.part")), "it is being fetched")
        world.executor.submit(revoke(1))
        assert world.until(AttemptEnded).ending is Ending.STOPPED
        world.until(JobStopped)


def test_a_large_bundle_delays_no_renewal_of_a_machines_lease(root: Path, store: Store, tmp_path: Path) -> None:
    """150 MiB to each of three machines whose leases last two seconds."""
    program = shell("true", bundle=send(store, tmp_path / "code", data=os.urandom(150 << 20)))
    with live(root, program, 1, 1, 1, bundles=store, settings=SHORT) as world:
        world.executor.submit(grant(1, (0, 1, 2)))
        world.until(JobReached)
        assert not [item for item in world.heard if isinstance(item, MachineFailed)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start jobs of another user")
def test_files_belong_to_the_jobs_user(root: Path, store: Store, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):  # one more with several workers
        if folder != Path("/tmp"):
            folder.chmod(0o755)
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    bundle = send(store, tmp_path / "code", a="1")
    program = shell(
        "id -un > $OUT/who; stat -c %U a . > $OUT/owners", bundle=bundle, env={"OUT": str(out)}, user="nobody"
    )
    with live(root, program, bundles=store) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobReached)
    assert pwd.getpwnam("nobody")
    assert ((out / "who").read_text().split(), (out / "owners").read_text().split()) == (["nobody"], ["nobody"] * 2)


# ---- packages ---------------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, text: str) -> None:
    """A package of one module, as pip installs it without a network."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def test_requirements_are_installed_once_for_two_gangs_of_a_machine(root: Path, store: Store, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "themis_probe", "import sys; where = sys.prefix")
    bundle = send(
        store,
        tmp_path / "code",
        requirements_dot_txt=f"--no-index\n--find-links {tmp_path / 'wheels'}\nthemis_probe\n",
    )
    line = "python -c 'import themis_probe; print(themis_probe.where)' > $THEMIS_CHECKPOINT_DIR/where"
    program = shell(line, bundle=bundle, packages="requirements.txt", env={"PATH": PATH}, grace_s=5.0)
    with live(root, {0: program, 1: program}, bundles=store, settings=LONG) as world:
        for n in (0, 1):
            world.executor.submit(grant(1, (n,), job=n))
        for _ in range(2):
            world.until(JobReached)
        wheres = {world.checkpoint("where", job=n).read_text() for n in (0, 1)}
        logs = world.logs()
    made = [p for p in (root / "nodes" / "m0" / "environments" / "own").iterdir() if p.suffix != ".lock"]
    assert wheres == {f"{made[0]}\n"}
    assert len(made) == 1
    assert logs.count("Successfully installed themis") == 1


UV = shutil.which("uv")


@pytest.mark.skipif(UV is None, reason="uv is not installed: pip install uv")
@pytest.mark.parametrize("packages", ["uv.lock", "requirements.txt"])
def test_the_real_uv_makes_the_environment_of_a_lock_file_and_of_requirements(
    packages: str, root: Path, store: Store, tmp_path: Path
) -> None:
    """The package is a wheel among the files, so no index is asked."""
    assert UV is not None
    code = tmp_path / "code"
    wheel(code, "themis_probe", "import sys; where = sys.prefix")
    name = "themis_probe-1.0-py3-none-any.whl"
    project = f"""
[project]
name = "probed"
version = "1"
requires-python = ">=3.11"
dependencies = ["themis-probe"]
[tool.uv.sources]
themis-probe = {{path = "{name}"}}
"""
    (code / "pyproject.toml").write_text(project)
    (code / "requirements.txt").write_text(f"--no-index\n./{name}\n")
    subprocess.run([UV, "lock", "--offline", "--project", str(code)], check=True, capture_output=True)
    bundle = send(store, code)
    line = "python -c 'import themis_probe; print(themis_probe.where)' > $THEMIS_CHECKPOINT_DIR/where"
    env = {"PATH": f"{Path(UV).parent}:{PATH}", "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    program = shell(line, bundle=bundle, packages=packages, env=env, grace_s=5.0)
    with live(root, program, bundles=store, settings=LONG) as world:
        world.executor.submit(grant(1, (0,)))
        assert world.until(AttemptEnded).ending is Ending.FINISHED, world.logs()
        where, logs = world.checkpoint("where").read_text(), world.logs()
    (made,) = (p for p in (root / "nodes" / "m0" / "environments" / "own").iterdir() if p.suffix != ".lock")
    assert where == f"{made}\n"
    assert f"{UV} {'sync' if packages == 'uv.lock' else 'pip'}" in logs


def test_packages_that_cannot_be_installed_are_the_jobs_failure_with_the_last_line(
    root: Path, store: Store, tmp_path: Path
) -> None:
    bundle = send(store, tmp_path / "code", requirements_dot_txt="--no-index\nno-such-package-of-ours\n")
    program = shell("true", bundle=bundle, packages="requirements.txt", env={"PATH": PATH})
    with live(root, program, bundles=store, settings=LONG) as world:
        world.executor.submit(grant(1, (0,)))
        ended = world.until(AttemptEnded)
        logs = world.logs()
    assert ended.ending is Ending.NOT_STARTED
    assert "requirements.txt cannot be installed" in ended.message
    assert "No matching distribution found for no-such-package-of-ours" in ended.message
    assert ended.message in logs
    assert not [p for p in (root / "nodes" / "m0" / "environments" / "own").iterdir() if p.suffix != ".lock"]


def test_preparing_longer_than_the_limit_is_the_jobs_failure_and_leaves_no_process(
    root: Path, store: Store, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    send(store, tools, uv="#!/bin/sh\nsleep 600\n")
    (tools / "uv").chmod(0o755)
    bundle = send(store, tmp_path / "code", requirements_dot_txt="x\n")
    program = shell("true", bundle=bundle, packages="requirements.txt", env={"PATH": f"{tools}:{PATH}"})
    with live(root, program, bundles=store, settings=replace(LONG, setup_s=2.0)) as world:
        world.executor.submit(grant(1, (0,)))
        ended = world.until(AttemptEnded)
    assert (ended.ending, ended.message) == (
        Ending.NOT_STARTED,
        "its files and packages were not prepared within 2 s (setup)",
    )


def test_a_half_made_environment_is_made_again(root: Path, store: Store, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    count = tmp_path / "count"
    script = (
        f"#!/bin/sh\necho >> {count}\nif [ $1 = venv ]; then mkdir -p $2/bin; [ -e {tmp_path}/go ] || sleep 600; fi\n"
    )
    send(store, tools, uv=script)
    (tools / "uv").chmod(0o755)
    bundle = send(store, tmp_path / "code", requirements_dot_txt="x\n")
    program = shell("true", bundle=bundle, packages="requirements.txt", env={"PATH": f"{tools}:{PATH}"})
    with live(root, program, bundles=store, settings=LONG) as world:
        world.executor.submit(grant(1, (0,)))
        wait_until(count.exists, "it is being made")
        world.executor.submit(revoke(1))
        world.until(JobStopped)
        (tmp_path / "go").touch()
        world.executor.submit(grant(2, (0,)))
        world.until(JobReached)
    assert count.read_text() == "\n" * 3


def test_a_tool_that_outlives_who_started_it_keeps_others_from_its_folder(tmp_path: Path) -> None:
    """Two gangs of a machine with the same packages: the supervisor of the one that installs them is killed."""
    tools, pids = tmp_path / "tools", tmp_path / "pids"
    text = f"#!/bin/sh\n[ $1 = venv ] && mkdir -p $2\necho $$ >> {pids}\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n"
    tools.mkdir()
    (tools / "uv").write_text(text)
    (tools / "uv").chmod(0o755)
    (tmp_path / "requirements.txt").write_text("x\n")
    own = tmp_path / "own"
    own.mkdir()
    line = (
        "import sys\nfrom themis.machines.agent.prepare import environment\n"
        "environment('requirements.txt', sys.argv[1], {'PATH': sys.argv[2]})"
    )
    words = [sys.executable, "-c", line, str(own), f"{tools}:{PATH}"]

    def tools_begun() -> list[int]:
        return [int(word) for word in pids.read_text().split()] if pids.exists() else []

    with running(words, cwd=tmp_path) as first, running(words, cwd=tmp_path) as second:
        wait_until(lambda: len(tools_begun()) == 1, "one of them installs")
        tool = tools_begun()[0]
        parent = int(Path(f"/proc/{tool}/stat").read_text().rpartition(")")[2].split()[1])
        killed, other = (first, second) if parent == first.pid else (second, first)
        killed.kill()
        killed.wait()
        time.sleep(1.0)
        assert tools_begun() == [tool], "the other one waits for the tool, which still writes"
        os.kill(tool, signal.SIGKILL)
        wait_until(lambda: len(tools_begun()) == 2, "the other one begins anew")
        (tmp_path / "go").touch()
        wait_until(lambda: other.poll() is not None, "it ends")


def test_packages_that_no_gang_uses_are_removed_the_least_recently_used_first(tmp_path: Path) -> None:
    own = tmp_path / "environments" / "own"
    for n in range(4):
        folder = own / (f"{n}" * 64)
        folder.mkdir(parents=True)
        (own / f"{folder.name}.lock").touch()
        (folder / WHOLE).write_text(json.dumps({"bytes": 10}))
        os.utime(folder / WHOLE, (n, n))
    used = os.open(own / f"{'0' * 64}.lock", os.O_RDWR)
    fcntl.flock(used, fcntl.LOCK_SH)
    trim_environments(tmp_path, 20).join()
    os.close(used)
    assert sorted(p.name[0] for p in own.iterdir() if p.is_dir()) == ["0", "3"]


def test_modules_are_loaded_before_the_command(root: Path, tmp_path: Path) -> None:
    init = tmp_path / "modules" / "init"
    init.mkdir(parents=True)
    (init / "bash").write_text(
        'module() { [ "$2" = cuda/12.4 ] || { echo "no module $2"; return 1; }; export LOADED="$2"; }\n'
    )
    env = {"MODULESHOME": str(tmp_path / "modules")}
    program = shell('echo "$LOADED" > $THEMIS_CHECKPOINT_DIR/loaded', modules=("cuda/12.4",), env=env)
    with live(root, {0: program, 1: replace(program, modules=("cuda/99",))}, settings=LONG) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobReached)
        assert world.checkpoint("loaded").read_text() == "cuda/12.4\n"
        world.executor.submit(grant(1, (1,), job=1))
        assert "module load cuda/99 failed" in world.until(AttemptEnded, lambda e: e.job == 1).message


# ---- launchers --------------------------------------------------------------------------------------------------------


def works(*command: str) -> bool:
    import subprocess

    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


bwrap = pytest.mark.skipif(
    not works("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"),
    reason="bubblewrap is not installed, or may not make namespaces here",
)


@bwrap
def test_in_bwrap_the_job_writes_its_own_folders_only(root: Path, store: Store, tmp_path: Path) -> None:
    bundle = send(store, tmp_path / "code", a="1")
    line = (
        "cat a && touch mine $THEMIS_CHECKPOINT_DIR/saved && echo $CUDA_VISIBLE_DEVICES > $THEMIS_CHECKPOINT_DIR/gpus; "
        "touch /usr/themis-probe 2>/dev/null && touch $THEMIS_CHECKPOINT_DIR/wrote; touch /tmp/themis-probe"
    )
    with live(root, shell(line, bundle=bundle, launcher="bwrap"), 2, bundles=store, devices=("G0", "G1")) as world:
        world.executor.submit(grant(1, (1,)))
        world.until(JobReached)
        assert world.checkpoint("saved").exists()
        assert world.checkpoint("gpus").read_text() == "G1\n"
        assert not world.checkpoint("wrote").exists()
    assert not Path("/tmp/themis-probe").exists()


@bwrap
def test_in_bwrap_sigterm_reaches_the_program_and_nothing_is_left(root: Path) -> None:
    line = (
        "trap 'touch $THEMIS_CHECKPOINT_DIR/saved; exit 0' TERM; (sleep 600 & ); touch $THEMIS_CHECKPOINT_DIR/ready; "
        "while true; do sleep 0.1; done"
    )
    with live(root, shell(line, launcher="bwrap", grace_s=10.0)) as world:
        world.executor.submit(grant(1, (0,)))
        wait_until(lambda: world.checkpoint("ready").exists(), "it runs")
        world.executor.submit(revoke(1))
        ended = world.until(AttemptEnded)
        assert world.checkpoint("saved").exists()
        world.until(JobStopped)
        assert (ended.ending, ended.killed) == (Ending.STOPPED, False)
        wait_until(lambda: not left_of(root / "nodes" / "m0" / "tasks"), "nothing of it is left")


@bwrap
def test_in_bwrap_what_ignores_sigterm_ends_with_the_lease_when_no_arbiter_comes_back(root: Path) -> None:
    line = "trap '' TERM; touch $THEMIS_CHECKPOINT_DIR/ready; while true; do sleep 0.1; done"
    with live(root, shell(line, launcher="bwrap", grace_s=0.5), sweep=False) as world:
        world.executor.submit(grant(1, (0,)))
        wait_until(lambda: world.checkpoint("ready").exists(), "it runs")
        world.executor.close(stop_jobs=False)
        began = time.monotonic()
        wait_until(lambda: not left_of(root), "it ended with the lease")
        assert time.monotonic() - began < PATIENCE_S


def test_a_container_that_outlives_its_client_is_removed_before_the_gpus_are_free(root: Path, tmp_path: Path) -> None:
    """A script stands for docker: its container is a process that no supervisor has below it."""
    tools, box = tmp_path / "tools", tmp_path / "box"
    tools.mkdir()
    run = f"if [ $1 = run ]; then touch {box}; exec sleep 600; fi"
    remove = f'if [ $1 = rm ]; then echo "$@" > {tmp_path}/removed; rm {box}; fi'
    (tools / "docker").write_text(f"#!/bin/sh\n{run}\n{remove}\n")
    (tools / "docker").chmod(0o755)
    os.environ["PATH"], before = f"{tools}:{os.environ['PATH']}", os.environ["PATH"]
    try:
        with live(root, shell("true", launcher="docker:image", env={"PATH": f"{tools}:{PATH}"})) as world:
            world.executor.submit(grant(1, (0, 1)))
            wait_until(box.exists, "the container runs")
            world.executor.submit(revoke(1))
            world.until(JobStopped)
            assert not box.exists()
    finally:
        os.environ["PATH"] = before
    assert (tmp_path / "removed").read_text() == "rm --force themis-job0-attempt1-rank0 themis-job0-attempt1-rank1\n"
