"""A validated submission: frozen data, numbers in fixed units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from themis.model.dynamic import Dynamic
from themis.model.units import Seconds
from themis.model.workload import Regime, Tuner
from themis.sizes import Work

Value: TypeAlias = str | int | float | bool


class When(StrEnum):
    """The required outcome of a dependency."""

    OK = "ok"
    ANY = "any"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """A dependency: this app starts after the app ``name`` of the same user has ended with the outcome ``when``.

    If that is no longer possible, the service cancels this app.
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
    """The speed as the submitter gave it.

    Attributes
    ----------
    model, batch : a model with a profile; empty and 0 if unknown.
    speed : GPU type or ``*`` -> GPUs of the gang -> steps/s; empty if unknown.
    slowdown : of slot, machine, rack, cross-rack; None for the default.
    checkpoint_s : seconds to write and read a checkpoint; None for the default.
    """

    model: str = ""
    batch: int = 0
    speed: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    slowdown: tuple[float, float, float, float] | None = None
    checkpoint_s: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One app as submitted: a single job, an array, or a sweep.

    Attributes
    ----------
    command : words, with ``{name}`` placeholders in an array or a sweep. No shell runs them.
    trials : the app's jobs; a single job has one, with index 0 and no parameters.
    cpus, memory : per GPU; 0: no request. ``memory`` in bytes.
    walltime_s : maximum run time of one job over all its attempts, in seconds; None: no limit.
    retries : maximum number of attempts after failures of a job; None: the service's setting.
    at_once : maximum number of concurrent jobs of the app; 0: no limit.
    dynamic, regimes : the declaration of a dynamic job, and its known epochs by batch size; None and empty if the batch
        size does not change.
    work : of one job, None if unknown. ``steps_per_epoch`` : 0 if unknown.
    deadline_s : seconds after submission.
    send : absolute folder whose files are sent, empty for none; ``workdir`` is in it.
    packages, modules, launcher, checkpoint_url, outputs : as in ``Program``.
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
    launch: str = "once"
    grace_s: Seconds = 60.0
    stop_signal: str = "SIGTERM"
    checkpoint_dir: str = ""
    send: str = ""
    packages: str = ""
    modules: tuple[str, ...] = ()
    launcher: str = ""
    checkpoint_url: str = ""
    outputs: tuple[str, ...] = ()
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
