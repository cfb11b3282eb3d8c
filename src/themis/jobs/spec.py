"""What a submission says, after it was read: frozen data, every figure in one unit, nothing left to check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from themis.jobs.sizes import Work
from themis.model.dynamic import Dynamic
from themis.model.units import Seconds
from themis.model.workload import Regime, Tuner

Value: TypeAlias = str | int | float | bool


class When(StrEnum):
    """How the app waited for must have ended."""

    OK = "ok"
    ANY = "any"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """This app starts once the app ``name`` of the same user has ended like ``when``.

    An app that can no longer end like that never lets this one start: the service ends this one as cancelled.
    """

    name: str
    when: When = When.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One job of an app: its number (an array's index, a sweep's trial from 0) and its parameters."""

    index: int = 0
    parameters: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the submitter knows of the speed.

    Attributes
    ----------
    model, batch : a model that the service has a profile of; empty and 0 if unknown.
    speed : GPU type or ``*`` -> GPUs of the gang -> steps/s; empty if unknown.
    slowdown : of slot, machine, rack, cross-rack; None for the default.
    checkpoint_s : seconds to write and read a checkpoint; None for the default.
    """

    model: str = ""
    batch: int = 0
    speed: Mapping[str, Mapping[int, float]]
    slowdown: tuple[float, float, float, float] | None = None
    checkpoint_s: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One app as submitted: a single job, an array, or a sweep.

    Attributes
    ----------
    command : words, with ``{name}`` places where there is an array or a sweep. No shell.
    trials : the app's jobs; a single job has one, with index 0 and no parameters.
    cpus, memory : for each GPU; 0 asks for nothing. ``memory`` in bytes.
    walltime_s : seconds that one job may run in all its attempts together; None for no limit.
    retries : failures of a job that are followed by another attempt; None leaves it to the service.
    at_once : most jobs of the app that may run at once; 0 is no limit.
    dynamic, regimes : what a dynamic job declares, and its epochs by batch size as far as they are known; None and nothing
        where the batch size stays.
    work : of one job, None if unknown. ``steps_per_epoch`` : 0 if unknown.
    deadline_s : seconds after submission.
    kind : job, array or sweep. ``source`` : file and line.
    """

    name: str
    command: tuple[str, ...]
    gpus_min: int
    gpus_max: int
    trials: tuple[Trial, ...]
    tuner: Tuner
    hints: Hints
    kind: str = "job"
    gpu_types: tuple[str, ...] = ()
    cpus: float = 0.0
    memory: int = 0
    workdir: str
    env: Mapping[str, str]
    launch: str = "gpu"
    grace_s: Seconds = 60.0
    stop_signal: str = "SIGTERM"
    checkpoint_dir: str = ""
    walltime_s: Seconds | None = None
    retries: int | None = None
    after: tuple[After, ...] = ()
    at_once: int = 0
    work: Work | None = None
    steps_per_epoch: float = 0.0
    dynamic: Dynamic | None = None
    regimes: tuple[Regime, ...] = ()
    deadline_s: Seconds | None = None
    source: str = ""
