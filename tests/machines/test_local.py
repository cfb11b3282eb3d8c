"""Jobs as real processes: what they find, how they are stopped, how their ends are understood."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import SHORT, grant, live, revoke, script, shell

from processes import PATIENCE_S, left_of, ranks_of, wait_until
from themis.machines.agent import keeper
from themis.machines.agent.system import System, clock
from themis.machines.engines.program import ABSENT, BROKEN, AttemptEnded, Ending, ExecutorBroke, Measurement, Program
from themis.model.dynamic import Dynamic, Mode
from themis.model.events import BatchChanged, JobProgress, JobReached, JobStarted, JobStopped
from themis.model.workload import Job, Regime
from themis.testing.builders import app

pytestmark = pytest.mark.slow

NAMES = {
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "THEMIS_APP_ID",
    "THEMIS_JOB_ID",
    "THEMIS_ATTEMPT",
    "THEMIS_GPUS",
    "THEMIS_CHECKPOINT_DIR",
    "THEMIS_GRACE_S",
}


READY = "touch $THEMIS_CHECKPOINT_DIR/ready; "
LOOP = "while true; do sleep 0.1; done"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder whose processes are all gone when the test is over."""
    yield tmp_path
    wait_until(lambda: not left_of(tmp_path), "no process was left")


def test_a_gang_over_two_machines_finds_its_world_in_the_environment(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    dump = shell("env > $THEMIS_CHECKPOINT_DIR/env-$RANK", env={"SLURM_PROCID": "0", "MINE": "yes"})
    with live(root, dump, 2, 2) as world:
        world.executor.submit(grant(1, (0, 1, 3)))
        world.until(JobReached)
        ranks = [
            dict(line.split("=", 1) for line in world.checkpoint(f"env-{r}").read_text().splitlines()) for r in range(3)
        ]
    assert all(set(env) >= NAMES and not any(name.startswith("SLURM_") for name in env) for env in ranks)
    assert [(e["RANK"], e["LOCAL_RANK"], e["LOCAL_WORLD_SIZE"], e["NODE_RANK"]) for e in ranks] == [
        ("0", "0", "2", "0"),
        ("1", "1", "2", "0"),
        ("2", "0", "1", "1"),
    ]
    assert {(e["WORLD_SIZE"], e["THEMIS_GPUS"], e["CUDA_VISIBLE_DEVICES"], e["MINE"]) for e in ranks} == {
        ("3", "3", "", "yes")
    }
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in ranks}) == 1
    assert len({e["THEMIS_CHECKPOINT_DIR"] for e in ranks}) == 1


def test_a_job_is_preempted_resumes_with_fewer_gpus_and_ends_with_the_same_result(root: Path) -> None:
    with live(root, script("steps.py", 60, 0.05)) as world:
        world.executor.submit(grant(1, (0, 1, 2, 3), target=60))
        world.until(JobStarted)
        world.until(JobProgress, lambda e: e.steps >= 5)
        world.executor.submit(revoke(1))
        ended, stopped = world.until(AttemptEnded), world.until(JobStopped)
        assert (ended.ending, ended.cause, ended.killed, ended.saved) == (Ending.STOPPED, "expired", False, True)
        assert 5 <= stopped.steps < 60
        world.executor.submit(grant(2, (1, 2), target=60))
        assert world.until(JobReached).steps == 60
        began = [line.split() for line in world.checkpoint("history").read_text().splitlines()]
        assert began == [["0", "4"], [str(int(stopped.steps)), "2"]]
        assert world.checkpoint("result").read_text() == str(sum(range(60)))
        measured = [m for m in world.heard if isinstance(m, Measurement)]
        assert measured
        assert all(0 < m.steps_per_s < 20.5 for m in measured)


def test_a_rung_ends_at_its_target_and_the_next_goes_on_from_there(root: Path) -> None:
    with live(root, script("steps.py", 30, 0.0)) as world:
        for attempt, target in ((1, 10.0), (2, 30.0)):
            world.executor.submit(grant(attempt, (0,), target=target))
            reached = world.until(JobReached)
            assert (reached.steps, reached.loss) == (target, pytest.approx(1 / target))
            world.executor.submit(revoke(attempt, "rung"))
            assert world.until(JobStopped).steps == target
        assert world.checkpoint("history").read_text() == "0 1\n10 1\n"


def test_an_unmodified_script_that_handles_sigterm_goes_on_where_it_was(root: Path) -> None:
    with live(root, script("sigterm_only.py", 50, 0.05), pace=lambda job, grant, gpu_type: 20.0) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        wait_until(lambda: "begins at 0" in world.logs(), "the script began")
        world.executor.submit(revoke(1))
        ended, stopped = world.until(AttemptEnded), world.until(JobStopped)
        assert (ended.ending, ended.saved) == (Ending.STOPPED, True)
        assert stopped.steps > 0, "what a silent job saved is estimated by the believed pace"
        step = int(world.checkpoint("my-own-checkpoint").read_text())
        world.executor.submit(grant(2, (1,)))
        world.until(JobReached)
        assert f"begins at {step}" in world.logs()


def test_a_job_that_handles_nothing_is_told_what_it_lost(root: Path) -> None:
    with live(root, shell("exec sleep 1000")) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        world.executor.submit(revoke(1))
        assert world.until(JobStopped).steps == 0
        assert "this work is lost" in world.logs()
        assert "themis.train" in world.logs()


def test_what_ignores_the_signal_is_killed_after_its_grace_with_everything_it_started(root: Path) -> None:
    stubborn = shell("trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 1000' &); " + READY + LOOP)
    with live(root, stubborn) as world:
        world.executor.submit(grant(1, (0,)))
        wait_until(world.checkpoint("ready").exists, "the shell knows its traps")
        world.executor.submit(revoke(1))
        assert world.until(AttemptEnded).killed
        world.until(JobStopped)
        assert "was killed" in world.logs()
        ours = ranks_of(root)
        assert ours == [], "GPUs are free only when nothing is left"


def test_a_daemon_that_outlives_its_script_is_ended_and_the_job_counts_as_finished(root: Path) -> None:
    with live(root, shell("(setsid sleep 1000 &) ; exit 0")) as world:
        world.executor.submit(grant(1, (0,)))
        assert world.until(AttemptEnded).ending is Ending.FINISHED


@pytest.mark.parametrize(
    ("text", "ending", "failure"),
    [
        ("exit 3", Ending.FAILED, True),
        ("exit 75", Ending.REQUEUED, False),
        ("exit 143", Ending.TERMINATED, False),
        ("kill -TERM $$", Ending.TERMINATED, False),
        ("kill -SEGV $$", Ending.FAILED, True),
        ("exit 0", Ending.FINISHED, False),
    ],
)
def test_ends_are_understood(root: Path, text: str, ending: Ending, failure: bool) -> None:
    with live(root, shell(text)) as world:
        world.executor.submit(grant(1, (0,)))
        ended = world.until(AttemptEnded)
        assert (ended.ending, ended.ending.is_failure) == (ending, failure)
        world.until(JobReached if ending is Ending.FINISHED else JobStopped)


def test_one_failed_rank_ends_the_whole_gang_and_is_the_one_that_is_named(root: Path) -> None:
    with live(root, shell("[ $RANK = 2 ] && echo no room >&2 && exit 9; sleep 1000"), 2, 2) as world:
        world.executor.submit(grant(1, (0, 1, 2)))
        ended = world.until(AttemptEnded)
        assert (ended.ending, ended.code) == (Ending.FAILED, 9)
        assert ended.message == "rank 2: exit code 9: no room"
        world.until(JobStopped)


def test_a_program_that_cannot_start_starts_nowhere(root: Path) -> None:
    with live(root, {0: shell("true", cwd="/nowhere"), 1: script("steps.py", 1, 0)}) as world:
        world.executor.submit(grant(1, (0, 1)))
        ended = world.until(AttemptEnded)
        assert (ended.ending, ended.ending.is_failure) == (Ending.NOT_STARTED, True)
        assert "/nowhere" in ended.message
        world.until(JobStopped)
        assert not [e for e in world.heard if isinstance(e, JobStarted)]


def test_what_is_not_there_is_told_from_other_failures_and_why(root: Path) -> None:
    for name, text, mode in (
        ("plain", "#!/bin/sh", 0o644),
        ("bare", "echo", 0o755),
        ("gone", "#!/no/such/shell\n", 0o755),
    ):
        (root / name).write_text(text)
        (root / name).chmod(mode)
    here = {"cwd": str(root), "grace_s": 1.0}
    asked = {
        "folder '/nowhere' to run in: No such file": Program(argv=("true",), cwd="/nowhere"),
        "folder '/etc/passwd' to run in: Not a dir": Program(argv=("true",), cwd="/etc/passwd"),
        "program 'nosuch' is not on PATH '/bin'": Program(argv=("nosuch",), env={"PATH": "/bin"}),
        "program './nosuch': No such file": Program(argv=("./nosuch",), **here),
        "program '/etc': Is a directory": Program(argv=("/etc",)),
        "program './plain': it may not be executed": Program(argv=("./plain",), **here),
        "program './bare' cannot be executed: Exec format error": Program(argv=("./bare",), **here),
        "program './gone' cannot be executed: No such file": Program(argv=("./gone",), **here),
    }
    with live(root, dict(enumerate(asked.values())), len(asked) + 1) as world:
        for j in range(len(asked)):
            # The last one is a gang, of which no rank may be left.
            world.executor.submit(grant(1, (j,) if j < len(asked) - 1 else (j, j + 1), job=j))
        heard = [world.until(AttemptEnded) for _ in asked]
    assert {(end.ending, end.cause, end.code) for end in heard} == {(Ending.NOT_STARTED, ABSENT, None)}, heard
    for end, words in zip(sorted(heard, key=lambda e: e.job), asked):
        assert end.message.startswith(words)


def test_a_script_that_cannot_run_anywhere_is_told_from_one_that_failed(root: Path) -> None:
    ranks = "from themis.train import Run; from themis.train.world import World; world = World(world_size=4); "
    python = {
        "def f(:": (BROKEN, "SyntaxError: invalid syntax"),
        "raise ValueError('SyntaxError: no')": ("", "ValueError: SyntaxError: no"),
        f"{ranks} next(Run(print, print, world=world, checkpoints='.', everywhere=True).steps(2))": (
            BROKEN,
            "themis.train.run.SameFile: 4 ranks would write the same checkpoint",
        ),
    }
    programs = [Program(argv=(sys.executable, "-c", text)) for text in python]
    programs.append(Program(argv=(sys.executable, "nosuch.py"), cwd=str(root)))
    (root / "shut").touch()
    programs.append(Program(argv=("true",), checkpoint_dir=str(root / "shut" / "in")))
    with live(root, dict(enumerate(programs)), len(programs)) as world:
        for j in range(len(programs)):
            world.executor.submit(grant(1, (j,), job=j))
        heard = sorted((world.until(AttemptEnded) for _ in programs), key=lambda end: end.job)
    for end, (cause, words) in zip(heard, python.values()):
        assert (end.cause, end.message.startswith(f"exit code 1: {words}")) == (cause, True)
    assert heard[-2].cause == heard[-1].cause == ABSENT
    assert "nosuch.py" in heard[-2].message
    assert heard[-1].message.startswith("checkpoint folder")
    assert all(end.ending.is_failure for end in heard)


def test_a_rank_has_exported_variables_and_is_refused_by_name_where_a_path_is_missing(root: Path) -> None:
    (root / "bin").mkdir()
    (root / "bin" / "train").write_text("#!/bin/sh\necho in $VIRTUAL_ENV\n")
    (root / "bin" / "train").chmod(0o755)
    there = {"PATH": f"{root}/bin:/bin", "VIRTUAL_ENV": str(root)}
    programs = [Program(argv=("train",), exports=there | more) for more in ({}, {"HF_HOME": "/no/such/cache"})]
    with live(root, dict(enumerate(programs)), 2) as world:
        for j in range(2):
            world.executor.submit(grant(1, (j,), job=j))
        heard = sorted((world.until(AttemptEnded) for _ in programs), key=lambda end: end.job)
        assert f"in {root}" in world.logs()
    assert [end.ending for end in heard] == [Ending.FINISHED, Ending.NOT_STARTED]
    assert heard[1].message.startswith("HF_HOME=/no/such/cache of the submitter's shell is not on this machine")


def test_a_program_that_ends_with_the_code_of_those_that_are_not_there_has_run(root: Path) -> None:
    with live(root, shell("exit 127")) as world:
        world.executor.submit(grant(1, (0,)))
        ended = world.until(AttemptEnded)
        assert (ended.ending, ended.cause, ended.code) == (Ending.FAILED, "", 127)


def test_the_signal_and_the_grace_are_the_jobs_own(root: Path) -> None:
    text = "trap 'echo one > $THEMIS_CHECKPOINT_DIR/got; exit 0' USR1; trap '' TERM; " + READY + LOOP
    with live(root, shell(text, stop_signal="SIGUSR1", grace_s=30.0)) as world:
        world.executor.submit(grant(1, (0,)))
        wait_until(world.checkpoint("ready").exists, "the shell knows its traps")
        world.executor.submit(revoke(1))
        assert not world.until(AttemptEnded).killed
        assert world.checkpoint("got").read_text() == "one\n"


def test_logs_are_bounded(root: Path) -> None:
    settings = type(SHORT)(lease_s=2.0, renew_s=0.5, log_bytes=20_000)
    with live(root, shell("i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done"), settings=settings) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobReached)
        files = list((root / "nodes" / "m0" / "logs" / "job0-attempt1").iterdir())
        assert sorted(f.name for f in files) == ["rank-0.log", "rank-0.log.1"]
        assert sum(f.stat().st_size for f in files) <= 20_000 + 65_536
        assert (root / "nodes/m0/logs/job0-attempt1/rank-0.log").read_text().endswith("line 4999\n")


def test_ranks_are_not_let_go_once_their_lease_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking through a checkpoint folder may take longer than the lease."""
    now = [10.0]
    monkeypatch.setattr(System, "clock", lambda system: now[0])
    task = {"checkpoint_dir": str(tmp_path), "grace_s": 9.0, "stop_signal": "SIGTERM"}
    kept = keeper.Supervisor(folder=tmp_path, task=task, deadline=20.0, control=-1)
    kept.status.phase = "prepared"

    def slow(folder: str) -> tuple[int, int]:
        now[0] += 11.0
        return 0, 0

    monkeypatch.setattr(keeper, "newest", slow)
    kept.go({})
    assert (kept.status.phase, kept.status.cause) == ("stopping", "lease"), (
        "else a lease that comes late keeps it waiting"
    )
    assert not kept.status.began


@pytest.mark.parametrize("renewed", [True, False])
def test_a_supervisor_that_was_stopped_for_a_while_lets_its_ranks_go_or_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renewed: bool
) -> None:
    """Found by simulation: it read the go before the lease, did neither, and the gang held its GPUs for ever."""
    hear, say = os.pipe()
    monkeypatch.setattr(System, "clock", lambda system: 30.0)
    task = {"checkpoint_dir": str(tmp_path), "grace_s": 9.0, "stop_signal": "SIGTERM"}
    kept = keeper.Supervisor(folder=tmp_path, task=task, deadline=20.0, control=hear)
    kept.status.phase = "prepared"
    os.write(say, b'{"go": {}}\n' + b'{"lease": 60.0}\n' * renewed)
    kept._obey()
    for file in (hear, say):
        os.close(file)
    assert kept.status.phase == ("running" if renewed else "stopping")


@pytest.mark.parametrize("ended", [True, False])
def test_who_ended_before_the_signal_ended_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """Also if the keeper hears of the stop before it has looked at its ranks."""
    hear, say = os.pipe()
    task = {"checkpoint_dir": str(tmp_path), "grace_s": 9.0, "stop_signal": "SIGTERM"}
    kept = keeper.Supervisor(folder=tmp_path, task=task, deadline=1e12, control=hear)
    log = keeper.Log(str(tmp_path / "log"), 4096)
    kept.ranks = [keeper.Rank(pid=4194305, barrier=-1, ready=-1, output=-1, log=log, is_ready=True)]
    kept.status.phase = "running"
    dead = [(4194305, 0)] if ended else []
    monkeypatch.setattr("themis.machines.agent.keeper.os.waitpid", lambda pid, how: dead.pop() if dead else (0, 0))
    os.write(say, b'{"stop": "expired", "grace_s": 5.0}\n')
    kept._obey()
    for file in (hear, say, log.file):
        os.close(file)
    assert kept.status.phase == "stopping"
    assert (kept.status.cause, kept.status.codes) == (("", [0]) if ended else ("expired", [None]))
    assert (tmp_path / "stop").exists() != ended
    assert kept.kill_at - clock() == pytest.approx(5.0, abs=1.0)


def test_the_file_that_says_stop_is_not_there_before_the_signal(tmp_path: Path) -> None:
    """A rank that reads it first ends as it likes; the signal would meet an interpreter that is ending, and kill it."""

    class Sent(System):
        def kill(self, pid: int, number: int) -> None:
            there.append((tmp_path / "stop").exists())

    there: list[bool] = []
    task = {"checkpoint_dir": str(tmp_path), "grace_s": 9.0, "stop_signal": "SIGTERM"}
    kept = keeper.Supervisor(folder=tmp_path, task=task, deadline=1e12, control=-1, system=Sent())
    log = keeper.Log(str(tmp_path / "log"), 4096)
    kept.ranks = [
        keeper.Rank(pid=4194305 + i, barrier=-1, ready=-1, output=-1, log=log, is_ready=True) for i in range(2)
    ]
    kept.status.phase = "running"
    kept.stop("expired", 5.0)
    os.close(log.file)
    assert there == [False, False]
    assert (tmp_path / "stop").exists()


def test_a_log_keeps_the_last_half_of_its_limit_at_least(tmp_path: Path) -> None:
    log = keeper.Log(str(tmp_path / "log"), 1 << 20)
    for number in range(3000):
        log.write(b"%999d\n" % number)
    os.close(log.file)
    assert 1 << 19 <= sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1 << 20
    assert int((tmp_path / "log").read_bytes().splitlines()[-1]) == 2999


def test_a_keeper_that_cannot_fork_blames_the_machine(tmp_path: Path) -> None:
    """In a process of its own: a keeper ends all that descends from it, here all that the tests have started."""
    task = {
        "checkpoint_dir": str(tmp_path),
        "grace_s": 9.0,
        "stop_signal": "SIGTERM",
        "ranks": [{}],
        "log_bytes": 4096,
        "logs": [str(tmp_path / "log")],
        "user": "",
        "deadline": 1e12,
        "cell": {"kind": "none", "group": "", "limits": [], "memory": "", "processes": ""},
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    os.mkfifo(tmp_path / "control")
    program = f"""
import os, pathlib
from themis.machines.agent import keeper
def full(): raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = full
keeper.main(pathlib.Path({str(tmp_path)!r}))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["phase"], status["cause"]) == ("ended", "machine")
    assert "Resource temporarily unavailable" in status["message"]


def test_reports_that_are_no_file_disturb_nobody(root: Path) -> None:
    with live(root, shell("mkfifo $THEMIS_RUN_DIR/reports/reports.jsonl; sleep 0.5")) as world:
        world.executor.submit(grant(1, (0,)))
        assert world.until(AttemptEnded).ending is Ending.FINISHED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start jobs as other users")
def test_started_as_root_jobs_run_as_their_submitter() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        with live(folder, shell("id -un > $THEMIS_CHECKPOINT_DIR/who; echo $HOME $USER", user="nobody")) as world:
            world.executor.submit(grant(1, (0,)))
            world.until(JobReached)
            assert world.checkpoint("who").read_text() == "nobody\n"
            assert " nobody" in world.logs()
            assert world.checkpoint("who").parent.stat().st_mode & 0o077 == 0, (
                "another user's checkpoints are none of mine"
            )
        named = folder / "roots-own"
        named.mkdir()
        with live(folder / "b", shell("true", user="nobody", checkpoint_dir=str(named / "new"))) as world:
            world.executor.submit(grant(1, (0,)))
            ended = world.until(AttemptEnded)
            assert (ended.ending, "Permission denied" in ended.message) == (Ending.NOT_STARTED, True)
            assert named.stat().st_uid == 0, "a folder that a user names is not handed over"
    finally:
        shutil.rmtree(folder)


def test_a_real_job_reports_its_epochs_and_its_change_of_batch_size_over_a_preemption(root: Path) -> None:
    declared = Dynamic(mode=Mode.GNS, epoch_steps=((8, 8.0), (16, 4.0)))
    spec = Job(name="j", model="generic", regimes=(Regime(steps=6.0, batch=8),), gpus_max=2, dynamic=declared)
    with live(root, script("epochs.py", 6, 0.05), 2, spec=app("a", [spec])) as world:
        world.executor.submit(grant(1, (0,), target=6.0))
        assert world.until(BatchChanged).batch == 8
        change = world.until(BatchChanged)
        assert (change.batch, change.steps) == (16, pytest.approx(3.0, abs=0.5)), world.logs()
        world.executor.submit(revoke(1))
        saved = world.until(JobStopped).steps
        assert 3.0 <= saved < 6.0
        world.executor.submit(grant(2, (1,), target=6.0))
        assert world.until(JobReached).steps == 6.0
        history = [line.split() for line in world.checkpoint("history").read_text().splitlines()]
        # All 6 epochs of 64 examples, none of them twice, at 8 and then 16 a batch.
        assert world.checkpoint("result").read_text() == str(6 * 64)
        assert {(int(e), int(size)) for e, size in history} == {(e, 8 if e < 3 else 16) for e in range(6)}
        again = [e for e in world.heard if isinstance(e, BatchChanged) and e.attempt == 2]
        assert [e.batch for e in again] == [16]


def test_an_executor_whose_thread_ends_by_an_error_reports_it_and_takes_no_more_commands(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise LookupError("injected")

    with live(root, shell("exit 0"), 1) as one:
        monkeypatch.setattr(one.executor.gangs, "tick", fails)
        assert str(one.until(ExecutorBroke).error) == "injected"
        for _ in range(2):
            with pytest.raises(LookupError, match="injected"):
                one.executor.submit(grant(1, (0,)))
