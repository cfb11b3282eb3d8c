"""What a job is in real life: a program, and how its attempts end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from themis.errors import InputError
from themis.model.units import Locality, Seconds
from themis.model.workload import App

UNABLE = "machine"
"""Cause of an end where a machine had no room, processes or files left to start a gang."""
ABSENT = "absent"
"""Cause of an end where the program or its folder is not on the machine, or not for the job's user."""
MEMORY = "memory"
"""Cause of an end where the gang exceeded the memory that its job asked for."""
LAUNCHES = ("gpu", "machine")
STOP_SIGNALS = frozenset(signal.Signals.__members__) - {"SIGKILL", "SIGSTOP"}
"""Names of the signals that a program can handle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The command of a job, and how it wants to be started and stopped.

    Attributes
    ----------
    argv : program and arguments, no shell. ``cwd`` : absolute folder to run in.
    env : variables in addition to those that every rank gets (``docs/training.md``); ``SLURM_*`` names are left out.
    user : the submitter's system user, for agents that run as root.
    launch : ``gpu`` starts one rank a GPU, ``machine`` one process a machine (torchrun starts its own ranks).
    grace_s : seconds from ``stop_signal`` to SIGKILL.
    checkpoint_dir : where it saves, on every machine; empty for a folder that the executor chooses.
    own_steps : its app's work is counted in the steps that the program counts. If not, because work was estimated as
        time, the program gets no target that it could take for its own, and its reports of steps are not believed.
    cpus, memory : limits for each GPU, CPUs and bytes; 0 for none.
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
        if self.stop_signal not in STOP_SIGNALS:
            raise InputError(
                f"a job's stop_signal is {self.stop_signal!r}, expected a signal that it can handle, such as SIGTERM."
            )


Programs = Callable[[App, int], Program]
"""The program of an app's job, by its position in the app."""


class Ending(StrEnum):
    """How an attempt ended; only ``failed`` and ``not_started`` are the job's own doing."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """The scheduler asked for it, and its ranks were signalled: a preemption, a cancel, a rung."""
    REQUEUED = "requeued"
    """It asked to be run again: exit code 75 (EX_TEMPFAIL)."""
    TERMINATED = "terminated"
    """Somebody else sent SIGTERM: exit code 143, or death by that signal."""
    NODE_LOST = "node_lost"
    """Its machine, or the lease of its machine, was lost, or it could not start anything (``UNABLE``)."""
    NOT_STARTED = "not_started"
    FAILED = "failed"

    @property
    def is_failure(self) -> bool:
        """Whether it counts towards the job's retries."""
        return self in (Ending.FAILED, Ending.NOT_STARTED)

    @property
    def is_own(self) -> bool:
        """Whether its exit code said that it is to be run again, without a failure."""
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
    by : nvml | reports.
    """

    app: int
    job: int
    attempt: int
    gpu_seconds: float
    idle_s: Seconds
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReported:
    """A job reported its run in a tracker, ``mlflow`` or ``wandb``."""

    app: int
    job: int
    attempt: int
    tracker: str
    run: str


Note = AttemptEnded | Measurement | GangIdle | RunReported
"""What the arbiter hears of gangs that is no event."""


def ending_of(*, asked: bool, cause: str, code: int | None) -> Ending:
    """What an attempt's end means.

    Parameters
    ----------
    asked : the scheduler had asked for its end, and ranks were signalled for it; then no exit code matters.
    cause : what its machine reported. ``code`` : the first exit code that was not 0, None if there was none.
    """
    if asked:
        return Ending.STOPPED
    if cause in ("lease", "lost", "keeper", UNABLE):
        return Ending.NODE_LOST
    if cause in ("not_started", ABSENT):
        return Ending.NOT_STARTED
    if cause == MEMORY:
        return Ending.FAILED
    if code is None:
        return Ending.FINISHED
    if code == 75:
        return Ending.REQUEUED
    return Ending.TERMINATED if code in (143, -signal.SIGTERM) else Ending.FAILED
