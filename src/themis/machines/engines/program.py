"""Real jobs: their programs, and how their attempts end."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from themis.errors import InputError
from themis.machines.agent.messages import THROUGH_SERVICE
from themis.model.units import Locality, Seconds
from themis.model.workload import App

UNABLE = "machine"
"""Cause of an end where a machine had no room, processes or files left to start a gang."""
ABSENT = "absent"
"""Cause of an end where the program or its folder is not on the machine, or not for the job's user."""
BROKEN = "broken"
"""Cause of an end where the program or its files cannot run on any machine: a SyntaxError, a bad archive."""
DISK = "disk_quota"
"""Cause of an end where the gang filled a disk, or its user has more there than the quota."""
MEMORY = "memory"
"""Cause of an end where the gang exceeded the memory that its job asked for."""
LAUNCHES = ("once", "gpu", "machine")
STOP_SIGNALS = frozenset(signal.Signals.__members__) - {"SIGKILL", "SIGSTOP"}
"""Names of the signals that a program can handle."""


BUNDLE = re.compile(r"[0-9a-f]{64}")
MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/:-]{0,199}")
LONGEST_OUTPUT, MOST_OUTPUTS = 500, 50
URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}://")
LAUNCHER = re.compile(r"bwrap|(apptainer|docker):[A-Za-z0-9./][A-Za-z0-9._/:@+-]{0,499}")


def check_launcher(text: str) -> None:
    """Raise InputError if the text is neither empty nor a launcher."""
    if text and not LAUNCHER.fullmatch(text):
        raise InputError(f"launcher is {text[:100]!r}, expected bwrap, apptainer:IMAGE or docker:IMAGE.")


def check_packages(text: str) -> None:
    """Raise InputError if the text is neither empty nor the relative path of a file that describes packages."""
    name = text.rpartition("/")[2]
    known = name == "uv.lock" or name.endswith((".txt", ".yaml", ".yml"))
    if text and (not known or text.startswith("/") or ".." in text.split("/") or "\0" in text):
        raise InputError(
            f"packages is {text[:100]!r}, expected uv.lock, a requirements file such as requirements.txt, or a conda file "
            "such as environment.yml, below the working directory."
        )


def check_outputs(paths: Sequence[str]) -> None:
    """Raise InputError if one is not a path below the working directory."""
    for path in paths:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in path or len(path) > LONGEST_OUTPUT:
            raise InputError(
                f"outputs has {path[:100]!r}, expected a file or a folder below the working directory, such as results."
            )
    if len(paths) > MOST_OUTPUTS:
        raise InputError(f"outputs has {len(paths)} paths, expected at most {MOST_OUTPUTS}; name folders.")


def layout(launch: str, least: int, most: int) -> str:
    """How a gang of so many GPUs runs, in words; empty for one GPU."""
    gpus = f"{least} GPUs" if least == most else f"{least} to {most} GPUs"
    words = {
        "once": f"1 process, {gpus} (ranks: --launch gpu, or torchrun)",
        "gpu": f"{gpus}, a rank on each",
        "machine": f"{gpus}, a process on each machine",
    }
    return words[launch] if most > 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The command of a job, and how it wants to be started and stopped.

    Attributes
    ----------
    argv : program and arguments, no shell. ``cwd`` : absolute folder to run in.
    env : variables in addition to those that every rank gets (``docs/training.md``); ``SLURM_*`` names are left out.
    user : the submitter's system user, for agents that run as root.
    launch : ``once`` starts one process, whose job is ``one_machine``; ``gpu`` one rank a GPU, ``machine`` one process a machine
        (torchrun starts its own ranks).
    grace_s : seconds from ``stop_signal`` to SIGKILL.
    checkpoint_dir : where it saves, on every machine; empty for a folder that the executor chooses.
    own_steps : its app's work is counted in the steps that the program counts. If not, because work was estimated as
        time, the program gets no target that it could take for its own, and its reports of steps are not believed.
    cpus, memory : limits for each GPU, CPUs and bytes; 0 for none.
    bundle : SHA-256 of the archive of the files that it is sent with; ``cwd`` is then a folder in it, ``/`` the topmost.
    packages : file that describes the packages it needs, relative to ``cwd``. ``modules`` : to load.
    launcher : wraps its command: bwrap | apptainer:IMAGE | docker:IMAGE; empty for none.
    checkpoint_url : where its checkpoints are copied: a URL of fsspec, or ``themis://`` for the service; empty for nowhere.
    outputs : files and folders below ``cwd`` that the service keeps; only for a job that is sent with files.
    exports : variables of the submitter's shell, for ranks alone; a path must exist on the machine. ``env`` and Themis come first.
    secrets : names of variables that ranks read from their account's file of secrets.
    """

    argv: tuple[str, ...]
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    launch: str = "gpu"
    grace_s: Seconds = 60.0
    stop_signal: str = "SIGTERM"
    checkpoint_dir: str = ""
    own_steps: bool = True
    cpus: float = 0.0
    memory: int = 0
    bundle: str = ""
    packages: str = ""
    modules: tuple[str, ...] = ()
    launcher: str = ""
    checkpoint_url: str = ""
    outputs: tuple[str, ...] = ()
    exports: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise InputError("a job's command is empty, expected a program and its arguments.")
        for name, path in (("cwd", self.cwd), ("checkpoint_dir", self.checkpoint_dir or "/")):
            if not path.startswith("/"):
                raise InputError(f"a job's {name} is {path!r}, expected an absolute path.")
        if self.launch not in LAUNCHES:
            raise InputError(f"a job's launch is {self.launch!r}, expected one of {', '.join(LAUNCHES)}.")
        if not 0 <= self.grace_s < float("inf"):
            raise InputError(f"a job's grace_s is {self.grace_s}, expected 0 seconds or more.")
        if self.bundle and not BUNDLE.fullmatch(self.bundle):
            raise InputError(f"a job's bundle is {self.bundle[:100]!r}, expected a SHA-256 of 64 hexadecimal digits.")
        if self.bundle and ".." in self.cwd.split("/"):
            raise InputError(f"a job's cwd is {self.cwd!r}, expected a folder of the files that it is sent with.")
        check_packages(self.packages)
        for module in self.modules:
            if not MODULE.fullmatch(module):
                raise InputError(f"a job's module is {module[:100]!r}, expected a name such as cuda/12.4.")
        check_launcher(self.launcher)
        if self.packages and self.launcher.startswith(("apptainer:", "docker:")):
            raise InputError("a job in a container has the packages of its image; remove packages, or the launcher.")
        if self.checkpoint_url.startswith(THROUGH_SERVICE) and self.checkpoint_url != THROUGH_SERVICE:
            raise InputError(
                f"a job's checkpoint_dir is {self.checkpoint_url[:200]!r}; {THROUGH_SERVICE} has nothing after it, because the "
                "service chooses the place."
            )
        check_outputs(self.outputs)
        if self.checkpoint_url and self.checkpoint_dir:
            raise InputError("a job has both a checkpoint_dir and a checkpoint_url; give one of them.")
        if self.checkpoint_url and not URL.match(self.checkpoint_url):
            raise InputError(
                f"a job's checkpoint_url is {self.checkpoint_url[:200]!r}, expected a URL such as s3://b/p."
            )
        if self.stop_signal not in STOP_SIGNALS:
            raise InputError(
                f"a job's stop_signal is {self.stop_signal!r}, expected a signal that it can handle, such as SIGTERM."
            )

    @property
    def needs_setup(self) -> bool:
        """True if something is prepared on each machine before its ranks are."""
        return bool(self.bundle or self.packages or self.modules or self.checkpoint_url or self.outputs)


Programs = Callable[[App, int], Program]
"""The program of an app's job, by its position in the app."""


class Ending(StrEnum):
    """Ending of an attempt; only ``failed`` and ``not_started`` are caused by the job itself."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """The scheduler asked for it, and its ranks were signalled: a preemption, a cancel, a rung."""
    REQUEUED = "requeued"
    """The program asked for a requeue: exit code 75 (EX_TEMPFAIL)."""
    TERMINATED = "terminated"
    """Another process sent SIGTERM: exit code 143, or death by that signal."""
    NODE_LOST = "node_lost"
    """Its machine, or the machine's lease, was lost, or the machine could start nothing (``UNABLE``)."""
    NOT_STARTED = "not_started"
    FAILED = "failed"

    @property
    def is_failure(self) -> bool:
        """True if it counts towards the job's retries."""
        return self in (Ending.FAILED, Ending.NOT_STARTED)

    @property
    def is_own(self) -> bool:
        """True if its exit code said that it is to be run again, without a failure."""
        return self in (Ending.REQUEUED, Ending.TERMINATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """The end of one attempt, beyond what the core needs to know.

    Attributes
    ----------
    cause : why its ranks were stopped, empty if they ended by themselves. ``code`` : first exit code that was not 0.
    steps : what its checkpoint holds. ``saved`` : whether it wrote to its checkpoint folder.
    killed : whether SIGKILL was needed.
    """

    app: int
    job: int
    attempt: int
    ending: Ending
    cause: str
    code: int | None
    seconds: Seconds
    steps: float
    saved: bool
    killed: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A job's speed as it trains: what the speed model is corrected with (Themis footnote 3)."""

    job: int
    attempt: int
    model: str
    gpu_type: str
    gpus: int
    locality: Locality
    steps_per_s: float
    batch: int = 0
    partner: str = ""
    partner_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangIdle:
    """A gang's GPUs did nothing.

    Attributes
    ----------
    gpu_seconds : of all its GPUs, since the last one. ``idle_s`` : seconds since any of them did something; 0 where one does.
    by : nvml | reports. ``each_s`` : by GPU, seconds since it did something; empty where only the whole gang is known.
    """

    app: int
    job: int
    attempt: int
    gpu_seconds: float
    idle_s: Seconds
    by: str
    each_s: tuple[Seconds, ...] = ()

    @property
    def longest_s(self) -> Seconds:
        """Seconds of the GPU that did nothing for the longest time."""
        return max(self.each_s, default=self.idle_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangIntrudes:
    """A gang's processes are on these GPUs of a machine, which it does not hold; none once they left them."""

    app: int
    job: int
    attempt: int
    machine: int
    gpus: tuple[int, ...]
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReported:
    """A job reported its run in a tracker, ``mlflow`` or ``wandb``."""

    app: int
    job: int
    attempt: int
    tracker: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRejected:
    """A machine sent again and again what is not accepted: it stays out of service until an administrator puts it back."""

    machine: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskWarning:
    """A job's user has more on the disk of its machine than the quota; an empty ``sentence``: no more."""

    app: int
    job: int
    attempt: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorBroke:
    """The executor's thread ended by an error: it renews, starts and stops nothing any more."""

    error: BaseException


Note = (
    ExecutorBroke | AttemptEnded | Measurement | GangIdle | GangIntrudes | RunReported | MachineRejected | DiskWarning
)
"""Notes about gangs to the arbiter that are not events."""


def ending_of(*, asked: bool, cause: str, code: int | None) -> Ending:
    """The ending of an attempt.

    Parameters
    ----------
    asked : the scheduler requested the end and ranks were signalled for it; exit codes are then ignored.
    cause : cause that its machine reported. ``code`` : the first exit code that was not 0, None if there was none.
    """
    if asked:
        return Ending.STOPPED
    if cause == DISK:
        return Ending.STOPPED
    if cause in ("lease", "lost", "keeper", UNABLE):
        return Ending.NODE_LOST
    if cause == "not_started" or (cause in (ABSENT, BROKEN) and code is None):
        return Ending.NOT_STARTED
    if cause in (MEMORY, ABSENT, BROKEN):
        return Ending.FAILED
    if code is None:
        return Ending.FINISHED
    if code == 75:
        return Ending.REQUEUED
    return Ending.TERMINATED if code in (143, -signal.SIGTERM) else Ending.FAILED
