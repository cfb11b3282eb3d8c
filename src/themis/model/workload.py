"""What people submit: apps of jobs, with the work of each job as a list of regimes.

An app is one job, a bag of jobs that all run to the end, or a sweep whose tuner stops jobs early. How an app
decides which of its jobs run is the business of ``themis.tuning``; here is only what the user wrote down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from themis.errors import InputError
from themis.model.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A stretch of training at one batch size; a static job has exactly one (Shockwave §2.3)."""

    steps: float
    batch: int = 0
    """Batch size; 0 is the profile's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """Training loss after i steps: ``a / (b i + 1) + c`` (the form SLAQ and Optimus fit)."""

    a: float = 1.0
    b: float = 0.0
    c: float = 0.0

    def at(self, steps: float) -> float:
        """Loss after ``steps`` steps."""
        return self.a / (self.b * steps + 1.0) + self.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training job: a gang of ``gpus_min`` to ``gpus_max`` GPUs that start together or not at all.

    Its seconds per step on one reference GPU are the profile's (``model``, batch) times ``step_scale``.
    """

    name: str
    model: str
    regimes: tuple[Regime, ...]
    gpus_min: int = 1
    gpus_max: int = 1
    step_scale: float = 1.0
    gpu_types: tuple[str, ...] = ()
    """Types that it may use; empty means any."""
    loss: LossCurve = LossCurve()

    def __post_init__(self) -> None:
        if not 1 <= self.gpus_min <= self.gpus_max:
            raise InputError(
                f"job {self.name!r} wants {self.gpus_min} to {self.gpus_max} GPUs, expected 1 <= minimum <= maximum."
            )
        if not self.regimes or any(r.steps <= 0 for r in self.regimes):
            raise InputError(f"job {self.name!r} has no work, expected at least one regime, each of more than 0 steps.")
        if self.step_scale <= 0:
            raise InputError(f"job {self.name!r} has step_scale {self.step_scale}, expected more than 0.")

    @property
    def steps(self) -> float:
        """All steps over all regimes."""
        return sum(r.steps for r in self.regimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bag:
    """Jobs that all run to the end; a single job is a bag of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One phase of successive halving: ``jobs`` jobs, each for ``steps`` more steps."""

    jobs: int
    steps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """Successive halving (Themis §4.3.2): after each rung only the best jobs of the next rung's number go on."""

    rungs: tuple[Rung, ...]

    def __post_init__(self) -> None:
        if not self.rungs:
            raise InputError("successive halving has no rungs, expected at least one.")
        for before, after in zip(self.rungs, self.rungs[1:], strict=False):
            if after.jobs > before.jobs:
                raise InputError(
                    f"a rung of {after.jobs} jobs follows one of {before.jobs}, expected no more jobs than before."
                )
        if any(r.jobs < 1 or r.steps <= 0 for r in self.rungs):
            raise InputError("each rung of successive halving needs at least 1 job and more than 0 steps.")


Tuner: TypeAlias = Bag | Halving


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A user's set of related jobs; finish-time fairness is measured for it."""

    name: str
    user: str
    arrival: Seconds
    jobs: tuple[Job, ...]
    tuner: Tuner = Bag()
    weight: float = 1.0
    deadline: Seconds | None = None

    def __post_init__(self) -> None:
        if not self.jobs:
            raise InputError(f"app {self.name!r} has no jobs, expected at least one.")
        if self.arrival < 0:
            raise InputError(f"app {self.name!r} arrives at {self.arrival} s, expected 0 or later.")
        if self.weight <= 0:
            raise InputError(f"app {self.name!r} has weight {self.weight}, expected more than 0.")
        if isinstance(self.tuner, Halving) and self.tuner.rungs[0].jobs != len(self.jobs):
            raise InputError(
                f"app {self.name!r} has {len(self.jobs)} jobs but its first rung has {self.tuner.rungs[0].jobs}; they must agree."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user or tenant; weights of user and group multiply into their apps' weight."""

    name: str
    weight: float = 1.0
    group: str = ""

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise InputError(f"user {self.name!r} has weight {self.weight}, expected more than 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Users that belong together (an entity in Gavel's words)."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Apps in order of arrival, with where they came from.

    Users and groups that are not listed have weight 1.
    """

    name: str
    apps: tuple[App, ...]
    source: str = ""
    """Where it came from: a file, or a generator with its parameters and seed."""
    users: tuple[User, ...] = field(default=())
    groups: tuple[Group, ...] = field(default=())

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.apps, key=lambda app: app.arrival))
        object.__setattr__(self, "apps", ordered)
        seen: set[str] = set()
        for app in ordered:
            if app.name in seen:
                raise InputError(f"workload {self.name!r} has two apps named {app.name!r}; app names must differ.")
            seen.add(app.name)

    @property
    def jobs(self) -> int:
        """Number of jobs over all apps."""
        return sum(len(app.jobs) for app in self.apps)

    def weight(self, app: App) -> float:
        """The app's weight times its user's and its group's."""
        user = next((u for u in self.users if u.name == app.user), None)
        group = next((g for g in self.groups if user and g.name == user.group), None)
        return app.weight * (user.weight if user else 1.0) * (group.weight if group else 1.0)
