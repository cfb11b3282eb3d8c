"""The supervisor: a process next to one gang's ranks on one machine. It starts them, holds their lease, and ends them.

It outlives the node agent, so an agent that crashed finds its gangs again; and it holds the machine's lease itself,
so that nothing runs on when no agent comes back: the agent moves the deadline, and at the deadline the ranks stop.

    prepared ---go---> running ---stop, lease over, a rank failed, all ranks ended---> stopping ---> ended

The agent writes lines of JSON into the FIFO ``control``; the supervisor answers by replacing ``status.json``, and is alive
as long as it holds the lock on ``lock``. The cause of a stop is in the status before the first signal is sent.
Standard library alone, and run as a script by its path with ``-I -S``: neither the job's environment nor any package
can break it, and it starts in milliseconds. How the gang's processes are held together is in ``cells.py``, what is used of the
machine in ``system.py``; both are loaded from the same folder at the start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pwd
import re
import select
import shutil
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING or __name__ != "__main__":
    from themis.machines.agent.cells import NAMESPACE, NONE, Cell, fork_init, mount_proc, unshare_pids
    from themis.machines.agent.system import System, clock, prctl
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from cells import NAMESPACE, NONE, Cell, fork_init, mount_proc, unshare_pids
    from system import System, clock, prctl

    del sys.path[0]

CODE = "code"
"""Key of a report with the script that is not as it was submitted."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFTOVERS_S = 5.0
"""Seconds that processes which outlive their ranks (a daemon that a script left behind) have to end after SIGTERM."""
PEERS_S = 10.0
"""Grace of the other ranks after one failed: they often wait for it within a collective, where no signal is handled, so
a longer grace would only hold the GPUs and delay the next attempt.
"""
TICK_S = 0.2
ASKS_AGAIN = (75, 143, -15)
"""Exit codes of a rank that asks for another attempt (EX_TEMPFAIL), or that was sent SIGTERM."""
EARLY_S = 60.0
"""Seconds from the start within which an interpreter reads the whole script; a later SyntaxError may be of other text."""
NO_SCRIPT = re.compile(r"(can't|cannot) open .*No such file or directory|^\S*sh: \S+: No such file or directory")
"""Messages of Python, dash and bash that a script is not there."""
NOT_RUN = 127
"""Exit code of a rank that did not get to its program, as shells have it."""
DIED = "a rank died before it was started"
LAPSED = "the machine's lease was not renewed"
LOOK_S = 3.0
"""Seconds for checking whether anything was saved."""
STUCK_S = 5.0
"""A process that lives this many seconds after SIGKILL hangs in the kernel: the gang counts as ended, and its GPUs as occupied."""
CHASE_S = 0.1
"""Seconds of each round of killing processes that fork and exit faster than /proc is read."""
CLEAN_UP_S = 20.0
"""Seconds for each command that removes a launcher's leftovers."""
SPARES, SPARE = 4, b" " * 4096
"""Files for a status on a full disk, and their content before."""
MEMBERS_S = 1.0
"""Between two records of the gang's processes, where neither a cgroup nor a namespace holds them together."""


@dataclass(slots=True)
class RanksStatus:
    """State of the ranks in their supervisor; ``codes``: exit codes, a signal as its negative number, None while
    running."""

    phase: str
    codes: list[int | None]
    pids: list[int]
    cause: str = ""
    """Why they stop: what the agent sent, or lease | peer (a rank failed) | keeper (it was asked to end itself) |
    absent (what the job names is not on this machine) | broken (it cannot run on any machine) |
    not_started (it could not be started otherwise) | memory (the gang exceeded its memory)."""
    first: int | None = None
    """Exit code of the first rank that ran and did not end with 0."""
    message: str = ""
    killed: bool = False
    """True if SIGKILL was needed."""
    began: float = 0.0
    ended: float = 0.0
    saved: bool = False
    """True if the checkpoint folder changed during this attempt."""
    init: tuple[int, int] = (0, 0)
    """First process of the gang's PID namespace and when it started; (0, 0) without one."""
    left: list[int] = field(default_factory=list)
    """Processes that SIGKILL did not end."""


class Log:
    """A log file of bounded size: when it has half of its limit it becomes ``NAME.1`` and begins again."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.half, self.size = path, max(limit // 2, 4096), 0
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, data: bytes) -> None:
        """Append; a full disk loses output rather than the job."""
        with contextlib.suppress(OSError):
            if self.size + len(data) > self.half and self.size:
                with contextlib.suppress(FileNotFoundError):  # a new one could not be made the last time
                    os.replace(self.path, self.path + ".1")
                fresh = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                os.close(self.file)
                self.file, self.size = fresh, 0
            os.write(self.file, data)
            self.size += len(data)


@dataclass(slots=True)
class Rank:
    """One process of the gang: where its barrier, its first word and its output are."""

    pid: int
    barrier: int
    ready: int
    output: int
    log: Log
    code: int | None = None
    is_ready: bool = False


@dataclass(slots=True)
class Setup:
    """The process that prepares files and packages, and when its time is over."""

    process: Rank
    until: float


@dataclass(slots=True)
class Supervisor:
    """One gang's ranks on this machine."""

    folder: Path
    task: dict[str, Any]
    deadline: float
    control: int
    ranks: list[Rank] = field(default_factory=list)
    status: RanksStatus = field(default_factory=lambda: RanksStatus(phase="preparing", codes=[], pids=[]))
    kill_at: float = float("inf")
    termed: set[int] = field(default_factory=set)
    buffer: bytes = b""
    checkpoints: tuple[int, int] = (0, 0)
    """The checkpoint folder's state when the ranks began."""
    told_to_end: bool = False
    published: bool = True
    cell: Cell = field(default_factory=Cell)
    system: System = field(default_factory=System)
    init: int = 0
    """Process id of the init process of the gang's PID namespace while it lives, else 0."""
    recorded_at: float = 0.0
    setup: Setup | None = None
    """Files and packages, while they are prepared."""
    environment: dict[str, str] = field(default_factory=dict)
    """``key`` and ``prefix`` of the ranks' packages, once they are there."""
    members: dict[int, int] = field(default_factory=dict)
    """The gang's processes by pid, with when they started, as they are on disk."""

    # ---- starting -----------------------------------------------------------------------------------------------

    def fork_ranks(self) -> None:
        """All ranks up to the point where only ``exec`` is left; they wait there for the word."""
        commands = self.task.get("commands")
        for number, env in enumerate(self.task["ranks"]):
            env = env | self.task.get("exports", {})
            if self.environment.get("prefix"):
                env = load_prepare().with_environment(env, self.environment["prefix"])
            log = Log(self.task["logs"][number], self.task["log_bytes"])
            barrier, go = os.pipe2(os.O_CLOEXEC)
            ready, report = os.pipe2(os.O_CLOEXEC)
            output, out = os.pipe2(os.O_CLOEXEC)
            # Another rank's barrier, held open in the child, would never report its end of file.
            others = [go, ready, output, *(r.barrier for r in self.ranks)]
            task = {**self.task, "argv": commands[number]} if commands else self.task
            become_rank = partial(run_rank, task, env, self.system.getpid(), barrier, report, out, others)
            pid = self.system.fork(become_rank, (barrier, report, out))
            for fd in (barrier, report, out):
                os.close(fd)
            os.set_blocking(output, False)
            self.ranks.append(Rank(pid=pid, barrier=go, ready=ready, output=output, log=log))
        self.status.pids = [rank.pid for rank in self.ranks]
        self.publish()

    def make_namespace(self) -> None:
        """The gang's PID namespace, if it has one: the next fork is in it."""
        if self.cell.kind == NAMESPACE:
            unshare_pids()
            self.init = fork_init()
            self.status.init = (self.init, self.system.started(self.init))

    def begin_setup(self) -> None:
        """Prepare files and packages, in a process of the gang and of its user; its output goes to the first rank's log."""
        written = self.task["setup"]
        load_prepare()  # before the fork: the job's user may not be allowed to read it
        log = Log(self.task["logs"][0], self.task["log_bytes"])
        archives = tuple(
            os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1
            for path in (written["archive"], *(copy["archive"] for copy in written["copies"]))
        )
        ready, report = os.pipe2(os.O_CLOEXEC)
        output, out = os.pipe2(os.O_CLOEXEC)
        child = partial(run_setup, self.task, self.system.getpid(), archives, report, out)
        pid = self.system.fork(child, (*(file for file in archives if file >= 0), report, out))
        for file in (*archives, report, out):
            if file >= 0:
                os.close(file)
        os.set_blocking(output, False)
        until = self.system.clock() + (written["seconds"] or float("inf"))
        self.setup = Setup(Rank(pid=pid, barrier=-1, ready=ready, output=output, log=log), until)
        self.publish()

    def _setup_ended(self, code: int) -> None:
        """Start the ranks if all is prepared, or say why not."""
        assert self.setup is not None
        setup, self.setup = self.setup.process, None
        while setup.output >= 0:
            before = setup.log.size
            self._pump(setup)
            if setup.output >= 0 and setup.log.size == before:
                os.close(setup.output)
                break
        found = os.read(setup.ready, 65536).decode(errors="replace")
        os.close(setup.ready)
        written = self.task["setup"]
        for each in (written, *written["copies"]):
            with contextlib.suppress(OSError):
                os.unlink(each["archive"])
        if self.status.phase != "preparing":
            os.close(setup.log.file)
            return
        cause, _, why = found.partition(":")
        if code == 0:
            try:
                self.environment = json.loads(found)
                self.hold_environment()
                os.close(setup.log.file)
                # What the job began with changed before this file, and what its ranks write changes later.
                (self.folder / "began").touch()
                self.fork_ranks()
                return
            except (OSError, ValueError, KeyError) as error:
                cause, why = "machine", f"the ranks cannot be started: {error}"
        elif cause == "damaged":
            cause = "machine"
            for each in (written, *written["copies"]):
                with contextlib.suppress(OSError):
                    os.unlink(each["cached"])
        message = why or "what prepares its files and packages was killed"
        setup.log.write(f"themis: {message}\n".encode())
        os.close(setup.log.file)
        self.stop(cause or "not_started", 0.0, message)

    def hold_environment(self) -> None:
        """Hold a shared lock on the packages, so that they are not removed while this process lives."""
        key = str(self.environment["key"])
        if not key:
            return
        if not load_prepare().KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no environment")
        path = f"{self.task['setup']['environments']}/{key}"
        # The folder is the job's: it may have put a pipe or a link in the file's place.
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise ValueError(f"{path}.lock is no file")
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.lstat(f"{path}/{load_prepare().WHOLE}")  # another process may have removed it before this lock
        self.environment["prefix"] = path

    def _hear_ready(self, rank: Rank) -> None:
        report = os.read(rank.ready, 4096)
        rank.is_ready = report == b"ok"
        if not rank.is_ready:
            cause, _, why = report.decode(errors="replace").partition(":")
            self.stop(cause or "not_started", 0.0, why or DIED)
        elif self.status.phase == "preparing" and all(r.is_ready for r in self.ranks):
            self.status.phase = "prepared"
            self.publish()

    def go(self, env: dict[str, str]) -> None:
        """Let all ranks run."""
        if self.status.phase != "prepared":
            return
        self.checkpoints = newest(self.task["checkpoint_dir"])
        if self.system.clock() >= self.deadline:
            # The check took too long, or this process was stopped too long, and the GPUs may belong to another job. End
            # here: a lease that comes next would keep the loop from ending it, and the gang would wait for ever.
            self.stop("lease", 0.0, LAPSED)
            return
        self.status.phase, self.status.began = "running", self.system.clock()
        self.publish()
        word = json.dumps(env).encode() + b"\n"
        for rank in self.ranks:
            with contextlib.suppress(BrokenPipeError):
                os.write(rank.barrier, word)
            os.close(rank.barrier)
            rank.barrier = -1

    # ---- stopping -----------------------------------------------------------------------------------------------

    def stop(self, cause: str, grace_s: float, message: str = "") -> None:
        """Record why, then ask the ranks to end; a second call may only shorten the time they have."""
        if self.status.phase == "ended":
            return
        if self.status.phase == "stopping":
            self.kill_at = min(self.kill_at, self.system.clock() + grace_s)
            return
        if self.status.phase == "running" and all(rank.code is not None for rank in self.ranks):
            self._tidy(grace_s)  # they ended by themselves; no cause of ours
            return
        never_ran = self.status.phase in ("preparing", "prepared")
        self.status.phase, self.status.cause, self.status.message = "stopping", cause, message
        self.kill_at = self.system.clock() + (0.0 if never_ran else grace_s)
        self.publish()
        # Signal the ranks only, as torchrun and containers do: helpers such as data loader workers are needed for
        # saving.
        pids = {r.pid for r in self.ranks if r.code is None}
        if self.task.get("signals_children") and not never_ran:
            # The launcher would end at the signal, and its program by SIGKILL.
            pids = set().union(*(self.system.children(pid) or {pid} for pid in pids))
        self._signal(signal.Signals[self.task["stop_signal"]], pids)
        # Not before the signal: a rank that reads the file first may be ending when the signal comes, and die of it.
        with contextlib.suppress(OSError):
            (self.folder / "stop").touch()

    def _tidy(self, grace_s: float) -> None:
        """All ranks have ended: give the processes that they left a little time to end too."""
        self.status.phase, self.kill_at = (
            "stopping",
            self.system.clock() + min(LEFTOVERS_S, grace_s, self.task["grace_s"]),
        )
        self.publish()

    def _signal(self, number: signal.Signals, pids: set[int]) -> None:
        self.termed |= pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self.system.kill(pid, number)

    def _pursue(self) -> None:
        """Ask what outlived all ranks to end (a shell's child that still saves, a daemon); kill at the deadline."""
        alive = self._alive()
        if all(rank.code is not None for rank in self.ranks):
            if self.status.phase == "running" and alive:
                self._tidy(LEFTOVERS_S)
            self._signal(signal.Signals[self.task["stop_signal"]], alive - self.termed)
            if self.init and not alive:
                self._signal(signal.SIGKILL, {self.init})  # an empty namespace
        if self.system.clock() >= self.kill_at and alive:
            self.status.killed = True
            self.cell.kill()
            # The end of a namespace's first process is the end of all others in it.
            self._signal(signal.SIGKILL, {self.init} if self.init else alive)
            if self.cell.kind == NONE:
                self._chase()
            if self.system.clock() >= self.kill_at + STUCK_S:
                self._give_up(alive)

    def _alive(self) -> set[int]:
        """The gang's processes: what descends from this one, and what the kernel counts in the gang's cgroup."""
        return (self.system.descendants(self.system.getpid()) - {self.init}) | self.cell.pids()

    def _chase(self) -> None:
        """SIGKILL to all children, again and again: processes that fork and exit are gone before /proc is read as a whole.

        Every orphan of the gang is a child of this process, and its pid is not used again before it is collected here.
        """
        until, me = self.system.clock() + CHASE_S, self.system.getpid()
        while self.system.clock() < until and not self._over():
            self._signal(signal.SIGKILL, self.system.children(me))

    def _give_up(self, alive: set[int]) -> None:
        """Report processes that SIGKILL does not end (they hang in the kernel): the gang has ended, but its GPUs are
        not free."""
        left = sorted(alive)
        if self.status.phase != "ended":
            self._conclude()
        if self.status.left != left:
            self.status.left = left
            self.publish()

    def _look_at_memory(self) -> None:
        """The kernel killed one of the gang's processes for want of memory: the others end with it."""
        if self.task.get("memory") and self.cell.out_of_memory() and self.status.cause != "memory":
            limit = self.task["memory"] / 2**20
            self._end_of_memory(f"it exceeded its memory, {limit:.0f} MiB on this machine, and was killed; see memory")

    def _end_of_memory(self, why: str) -> None:
        if self.status.phase == "running":
            self.stop("memory", 0.0, why)
        if self.status.phase == "stopping" and self.status.cause in ("", "peer"):
            self.status.cause, self.status.message, self.kill_at = "memory", why, self.system.clock()
            self.publish()

    def _record(self) -> None:
        """Record the gang's processes, by which the agent finds them if this process is killed."""
        self.recorded_at = self.system.clock()
        todo, found = [self.system.getpid()], dict[int, int]()
        while todo:
            for pid in self.system.children(todo.pop()) - found.keys():
                todo.append(pid)
                found[pid] = self.system.started(pid)
        if found == self.members:
            return
        draft = self.folder / "members.json.new"
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps(found))
            draft.replace(self.folder / "members.json")
            self.members = found

    # ---- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until nothing is left of the gang."""
        woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_end)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.begin()
        while self.turn(woken):
            pass

    def begin(self) -> None:
        """Fork the ranks, or what prepares their machine first."""
        try:
            self.make_namespace()
            if self.task.get("setup"):
                self.begin_setup()
            else:
                self.fork_ranks()
        except OSError as error:  # no more processes or files; the started ranks wait at the barrier
            self.stop("machine", 0.0, f"the ranks cannot be started: {error}")

    def turn(self, woken: int) -> bool:
        """Wait for something to happen and handle it; returns False once nothing is left of the gang.

        ``woken`` : file from which can be read when a signal came; -1 for none.
        """
        if self._over():
            self._look_at_memory()
            self._finish()
            return False
        self._wait(woken)
        if not self.published:
            self.publish()
        if self.told_to_end and self.status.phase not in ("stopping", "ended"):
            self.stop("keeper", self.task["grace_s"], "the supervisor of this job was asked to end")
        if self.system.clock() >= self.deadline and self.status.phase not in ("stopping", "ended"):
            self.stop("lease", self.task["grace_s"], LAPSED)
        if self.setup is not None and self.system.clock() >= self.setup.until and self.status.phase == "preparing":
            limit = self.task["setup"]["seconds"]
            self.stop("not_started", 0.0, f"its files and packages were not prepared within {limit:g} s (setup)")
        self._look_at_memory()
        if self.cell.kind == NONE and self.status.began and self.system.clock() >= self.recorded_at + MEMBERS_S:
            self._record()
        all_over = self.setup is None and all(r.code is not None for r in self.ranks)
        if self.status.phase in ("stopping", "ended") or all_over:
            self._pursue()
        return True

    def _told_to_end(self, *_: object) -> None:
        # A signal handler may interrupt any code, so the loop does the rest.
        self.told_to_end = True

    def _wait(self, woken: int) -> None:
        poll, now = select.poll(), self.system.clock()
        waiting = {r.ready: r for r in self.ranks if self.status.phase == "preparing" and not r.is_ready}
        setup = (self.setup.process,) if self.setup is not None else ()
        outputs = {r.output: r for r in (*self.ranks, *setup) if r.output >= 0}
        for fd in (*((woken,) if woken >= 0 else ()), self.control, *waiting, *outputs):
            poll.register(fd, select.POLLIN)
        for fd, _ in self.system.poll(poll, max(min(self.deadline, self.kill_at, now + TICK_S) - now, 0.01)):
            if fd == woken:
                os.read(woken, 4096)
            elif fd == self.control:
                self._obey()
            elif fd in waiting:
                self._hear_ready(waiting[fd])
            else:
                self._pump(outputs[fd])

    def _obey(self) -> None:
        self.buffer += os.read(self.control, 65536)
        *lines, self.buffer = self.buffer.split(b"\n")
        orders = [json.loads(line) for line in filter(None, lines)]
        # A process that was stopped for a while finds several words: what the last of them grants holds for the others.
        for order in orders:
            if "lease" in order:
                self.deadline = float(order["lease"])
        for order in orders:
            if "go" in order:
                self.go(order["go"])
            elif "stop" in order:
                # A rank that ended before the signal ended by itself, even if it was not checked since.
                self._over()
                self.stop(order["stop"], float(order["grace_s"]), str(order.get("message", "")))
            elif "tell" in order:
                for rank in self.ranks[:1]:
                    rank.log.write(f"themis: {order['tell']}\n".encode())

    def _pump(self, rank: Rank) -> None:
        with contextlib.suppress(BlockingIOError):
            if data := os.read(rank.output, 65536):
                rank.log.write(data)
            else:
                os.close(rank.output)
                rank.output = -1

    def _over(self) -> bool:
        """Collect the dead; nothing is left when no child is, adopted ones included, and the kernel counts none."""
        while True:
            try:
                pid, wait = self.system.waitpid(-1)
            except ChildProcessError:
                return self.cell.empty()
            if pid == 0:
                return False
            if pid == self.init:
                self.init = 0
            if self.setup is not None and pid == self.setup.process.pid:
                self._setup_ended(os.waitstatus_to_exitcode(wait))
            for rank in self.ranks:
                if rank.pid == pid:
                    self._ended(rank, os.waitstatus_to_exitcode(wait))

    def _ended(self, rank: Rank, code: int) -> None:
        rank.code = code
        self._look_at_memory()
        if self.status.phase in ("preparing", "prepared"):
            if not rank.is_ready:
                self._hear_ready(rank)
            self.stop("not_started", 0.0, DIED)
        elif self.status.phase == "running" and code == NOT_RUN and (why := os.read(rank.ready, 4096)):
            # Its program is there, and yet could not be executed.
            self.status.cause, _, self.status.message = why.decode(errors="replace").partition(":")
        self.status.codes = [r.code for r in self.ranks]
        if code != 0 and self.status.began:
            if self.status.first is None and self.status.cause != "absent":
                self.status.first = code
                self._first_failure(rank, code)
            if self.status.phase == "running" and any(r.code is None for r in self.ranks):
                self.stop(self.status.cause or "peer", min(PEERS_S, self.task["grace_s"]), self.status.message)
        self.publish()

    def _first_failure(self, rank: Rank, code: int) -> None:
        """Keep why the first rank failed, from its last line; and whether another attempt could do better."""
        if self.status.phase != "running" or self.status.cause or code in ASKS_AGAIN:
            return
        while rank.output >= 0:
            before = rank.log.size
            self._pump(rank)
            if rank.log.size == before:
                break
        line = last_line(rank.log.path)
        env = self.task["ranks"][self.ranks.index(rank)]
        who = f"rank {env['RANK']}: " if env["WORLD_SIZE"] != "1" else ""
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        self.status.message = f"{who}{how}{': ' if line else ''}{line}"
        if self.system.clock() < self.status.began + EARLY_S:
            self.status.cause = hopeless(line, code)

    def _finish(self) -> None:
        if self.status.phase != "ended":
            self._clean_up()
            self._conclude()
        self.status.left = []
        self.cell.remove()
        self.publish()
        while not self.published:
            self.system.sleep(1.0)
            self.publish()

    def _clean_up(self) -> None:
        """End what a launcher left that is no process below this one, such as a container, before the GPUs count as free."""
        for command in self.task.get("cleanup", ()):
            pid = self.system.fork(partial(run_quietly, command), ())
            until = self.system.clock() + CLEAN_UP_S
            while self.system.waitpid(pid)[0] == 0:
                if self.system.clock() >= until:
                    self._signal(signal.SIGKILL, {pid})
                self.system.sleep(0.05)

    def _conclude(self) -> None:
        """The gang has ended: write down how."""
        for rank in self.ranks:
            while rank.output >= 0:
                before = rank.log.size
                self._pump(rank)
                if rank.output >= 0 and rank.log.size == before:
                    break
        self.status.saved = bool(self.status.began) and newest(self.task["checkpoint_dir"]) != self.checkpoints
        self.status.phase, self.status.ended = "ended", self.system.clock()
        for note in notes(self.status, self.task, self.cell.out_of_processes()):
            for rank in self.ranks[:1]:
                rank.log.write(f"themis: {note}\n".encode())

    def publish(self) -> None:
        """Replace the status in one step, so that no reader ever sees half of it.

        On a full disk it is written over a spare file, which has its blocks already; if there is none left, it is tried
        again.
        """
        self.status.codes = [r.code for r in self.ranks]
        text = json.dumps(asdict(self.status)).encode()
        spares = [self.folder / f"status.json.spare{n}" for n in range(SPARES)]
        self.published = False
        for draft in (self.folder / "status.json.new", *spares):
            with contextlib.suppress(OSError), open(draft, "wb" if draft not in spares else "r+b", buffering=0) as file:
                if file.write(text.ljust(len(SPARE) if draft in spares else 0)) >= len(text):
                    draft.replace(self.folder / "status.json")
                    self.published = True
                    break
        else:
            self.published = not self.folder.is_dir()
        with contextlib.suppress(OSError):
            for spare in spares if self.published and self.status.phase != "ended" else ():
                if not spare.exists():
                    spare.write_bytes(SPARE)


# ---- in the rank's process ----------------------------------------------------------------------------------------------


class Absent(Exception):
    """A path that the job names is missing on this machine, or not accessible to its user; another attempt would fail
    likewise."""


def enter(task: dict[str, Any], parent: int) -> None:
    """Make a forked child the gang's: its own session, its cell, its user; it ends with its supervisor, ``parent``."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    cell = as_cell(task)
    cell.enter()
    if cell.kind == NAMESPACE:
        mount_proc()
    if task["user"]:
        become(task["user"])
    # After the change of user, which would clear it.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # From another PID namespace a parent cannot be seen; there, its end is seen at the barrier.
    if os.getppid() != parent and cell.kind != NAMESPACE:
        os._exit(1)


def run_rank(
    task: dict[str, Any], env: dict[str, str], parent: int, barrier: int, report: int, out: int, others: Sequence[int]
) -> NoReturn:
    """Become the rank: its own session, its user, its folder; then wait for the start message and ``exec``.

    ``others`` : open files that are not the rank's, to be closed.
    """
    for file in others:
        os.close(file)
    try:
        enter(task, parent)
        try:
            os.makedirs(task["checkpoint_dir"], exist_ok=True)
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            raise Absent(f"checkpoint folder {task['checkpoint_dir']!r}: {error.strerror}") from None
        try:
            os.chdir(task["cwd"])
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise Absent(f"folder {task['cwd']!r} to run in: {error.strerror}") from None
        for name, value in task.get("exports", {}).items():
            if value.startswith("/") and ":" not in value and not os.path.exists(value):
                raise Absent(
                    f"{name}={value} of the submitter's shell is not on this machine; --export NONE runs without"
                )
        if task.get("secrets"):
            env = env | secrets_of(task["secrets"], pwd.getpwuid(os.getuid()).pw_dir)
        program = find_program(task["argv"][0], env.get("PATH", os.defpath))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.write(report, b"ok")
        if changed := changed_code(task.get("exports", {}).get("THEMIS_CODE", "")):
            os.write(
                1,
                f"themis: {changed} changed since the job was submitted; this attempt runs the new version.\n".encode(),
            )
            if env.get("RANK", "0") == "0":
                tell(env.get("THEMIS_RUN_DIR", ""), changed)
        word = b""
        while not word.endswith(b"\n"):
            more = os.read(barrier, 65536)
            if not more:
                os._exit(1)
            word += more
        execute(program, task["argv"], env | json.loads(word))
    except BaseException as error:
        with contextlib.suppress(OSError):
            cause = "absent" if isinstance(error, Absent) else "not_started"
            os.write(report, f"{cause}:{error}".encode()[:4000])
        os._exit(NOT_RUN)


def secrets_of(names: Sequence[str], home: str) -> dict[str, str]:
    """Variables of these names from the account's file of secrets, lines ``NAME=VALUE``, which the account alone may read.

    Raises
    ------
    Absent : the file is missing, others may read it, or it lacks a name.
    """
    path = os.path.join(home, ".config", "themis", "secrets")
    try:
        with open(path, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise Absent(f"the file of secrets {path} must belong to the job's account alone: chmod 600 {path}")
            lines = (line.strip().partition("=") for line in file if not line.startswith("#"))
            known = {name.strip(): value for name, equals, value in lines if equals}
    except OSError as error:
        raise Absent(f"the file of secrets {path}: {error.strerror}") from None
    missing = [name for name in names if name not in known]
    if missing:
        raise Absent(f"the file of secrets {path} has no {', '.join(missing)}")
    return {name: known[name] for name in names}


def changed_code(submitted: str) -> str:
    """The script if it is not as it was submitted, else empty; ``submitted`` : digest and path, empty for none."""
    digest, _, path = submitted.partition(" ")
    if not digest:
        return ""
    try:
        with open(path, "rb") as file:
            same = hashlib.sha256(file.read()).hexdigest() == digest
    except OSError:
        return ""  # the program says so itself
    return "" if same else path


def tell(folder: str, script: str) -> None:
    """Report to the agent, as a rank may, that a script is another than was submitted."""
    with contextlib.suppress(OSError), open(os.path.join(folder, "reports", "reports.jsonl"), "a") as file:
        file.write(json.dumps({CODE: os.path.basename(script)}) + "\n")


def load_prepare() -> Any:
    """The module ``prepare``; only gangs that need it wait for what it imports."""
    if __name__ != "__main__":
        from themis.machines.agent import prepare

        return prepare
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    try:
        import prepare as by_path  # type: ignore[import-not-found]

        return by_path
    finally:
        del sys.path[0]


def run_setup(task: dict[str, Any], parent: int, archives: tuple[int, ...], report: int, out: int) -> NoReturn:
    """Prepare the gang's files and packages as its user, and write what was found, or what failed, into ``report``."""
    prepare = load_prepare()
    try:
        enter(task, parent)
        os.umask(0o022)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        found = prepare.prepare(task["setup"], task["ranks"][0], *archives)
        os.write(report, json.dumps(found).encode())
        os._exit(0)
    except BaseException as error:
        with contextlib.suppress(OSError):
            own = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM)
            causes = {prepare.Damaged: "damaged", prepare.Unfit: "broken"}
            cause = causes.get(type(error), "machine" if own else "not_started")
            os.write(report, f"{cause}:{error}".encode()[:4000])
        os._exit(NOT_RUN)


def run_quietly(command: Sequence[str]) -> NoReturn:
    """Replace this process by a program and discard its output."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(null, file)
        os.execvp(command[0], list(command))
    finally:
        os._exit(NOT_RUN)


def find_program(name: str, path: str) -> str:
    """Path of the program; raises Absent with the reason why it cannot run."""
    if (found := shutil.which(name, path=path)) is not None:
        return found
    if not os.path.dirname(name):
        raise Absent(f"program {name!r} is not on PATH {path!r}")
    try:
        kind = os.stat(name).st_mode
    except OSError as error:
        raise Absent(f"program {name!r}: {error.strerror}") from None
    why = "Is a directory" if stat.S_ISDIR(kind) else "it may not be executed; chmod +x allows that"
    raise Absent(f"program {name!r}: {why}")


def execute(program: str, argv: list[str], env: dict[str, str]) -> NoReturn:
    """Become the program; what was found may still lack its interpreter, or be no program of this machine."""
    try:
        os.execve(program, argv, env)
    except OSError as error:
        if error.errno not in (errno.ENOEXEC, errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            raise
        raise Absent(
            f"program {argv[0]!r} cannot be executed: {error.strerror}; does its first line name an interpreter that is there, "
            "as #!/bin/sh does?"
        ) from None


def become(name: str) -> None:
    """Take on this system user with all its groups; never root, whatever it is called here."""
    user = pwd.getpwnam(name)
    if user.pw_uid == 0:
        raise PermissionError(f"user {name!r} has uid 0, and no job may run as root")
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


# ---- looking around -----------------------------------------------------------------------------------------------------


def as_cell(task: dict[str, Any]) -> Cell:
    """The gang's cell, from its task file."""
    cell = task["cell"]
    # A job that was left running by the commit before has no count of refused processes.
    return Cell(cell["kind"], cell["group"], tuple(cell["limits"]), cell["memory"], cell.get("processes", ""))


def last_line(path: str) -> str:
    """The last line of a log that is not empty, at most 300 characters; empty if there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - 4096, 0))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        return next((line[:300] for line in reversed(lines) if line), "")
    return ""


def hopeless(line: str, code: int) -> str:
    """Cause of an end after which no attempt can succeed, from the last line of output: broken, absent, or empty."""
    if code == 1 and line.startswith(("SyntaxError:", "IndentationError:", "TabError:", "themis.train.run.SameFile:")):
        return "broken"
    return "absent" if code in (2, 127) and NO_SCRIPT.search(line) else ""


def newest(folder: str) -> tuple[int, int]:
    """(latest modification in ns, number of files) below a folder; changes whenever a file is saved there.

    GPUs wait for it, so of a folder that holds very many files only some are looked at.
    """
    latest, count, until = 0, 0, clock() + LOOK_S
    for base, _, names in os.walk(folder):
        if clock() > until:
            break
        for name in names:
            with contextlib.suppress(OSError):
                latest = max(latest, os.stat(os.path.join(base, name)).st_mtime_ns)
                count += 1
    return latest, count


def notes(status: RanksStatus, task: dict[str, Any], refused: int = 0) -> Iterator[str]:
    """Sentences for the end of the job's log; ``refused`` : number of processes that did not start because of the
    process limit."""
    if status.message and (status.first is None or status.cause == "memory" or status.message.startswith("rank")):
        yield status.message  # of one rank alone the log has it already
    if refused:
        yield (
            f"it had as many processes and threads as it may have on this machine, {task['processes']}, and {refused} more were "
            "not started; see max_processes"
        )
    if status.killed and status.began:
        yield f"what had not ended {task['grace_s']:g} s after {task['stop_signal']} was killed; see grace_s"
    asked = status.cause not in ("", "peer", "absent", "broken", "not_started", "machine", "memory", "disk_quota")
    if asked and status.began and not status.saved:
        lost = status.ended - status.began
        yield (
            f"stopped ({status.cause}) after {lost:.0f} s without a new file in {task['checkpoint_dir']}: this work is lost. "
            f"Save there on {task['stop_signal']}, or use themis.train"
        )


def keep_to_itself() -> None:
    """Keep the files that this process was started with, claims on GPUs, open here and from the ranks, who could release them."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the listing's own is closed by now
                os.set_inheritable(int(name), False)


def main(folder: Path) -> None:
    """Hold the lock, keep the gang, leave the status behind."""
    keep_to_itself()
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(lock, fcntl.LOCK_EX)
    os.write(lock, str(os.getpid()).encode())
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    task = json.loads((folder / "task.json").read_text())
    # Also opened for writing, so that it never ends when no agent is there.
    control = os.open(folder / "control", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    Supervisor(folder=folder, task=task, deadline=task["deadline"], control=control, cell=as_cell(task)).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
