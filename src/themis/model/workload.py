"""Workloads that people submit: apps of jobs, with the work of each job as a list of regimes.

An app is one job, a batch of jobs that all run to the end, or a sweep whose tuner stops jobs early. How an app decides
which of its jobs run is the business of ``themis.policies.tuning``; this module holds the submitted specification only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from themis.errors import InputError
from themis.model.dynamic import Dynamic
from themis.model.goodput import Adaptive
from themis.model.speed import Profile
from themis.model.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A stretch of training at one batch size; a static job has exactly one (Shockwave §2.3)."""

    steps: float
    """Epochs, where the job is dynamic."""
    batch: int = 0
    """Batch size; 0 is the profile's own."""
    pace: float = 1.0
    """Factor by which an epoch of a dynamic job truly takes longer than declared; only simulated gangs know it."""


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

    Its seconds per step on one reference GPU are the profile's (``model``, batch) times ``scale(batch)``. A dynamic job
    counts its work in epochs: wherever a job's steps are meant, its steps are epochs.

    Attributes
    ----------
    regimes : of a dynamic job whose program decides by itself, what truly happens in a simulation, or first batch size
        and number of epochs: the scheduler reads no more of it than that.
    one_machine : its gang is one process, so all GPUs are of one machine.
    adaptive : batch sizes of a job that reports its noise and step times: nothing more of its speed is known, and its steps are
        of the base batch size. Its model is its own, of batch size 0 for what is believed before the first report; its regimes
        are what truly happens, by noise level (``model.goodput.level_of``).
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
    dynamic: Dynamic | None = None
    one_machine: bool = False
    adaptive: Adaptive | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gpus_min <= self.gpus_max:
            raise InputError(
                f"job {self.name!r} wants {self.gpus_min} to {self.gpus_max} GPUs, expected 1 <= minimum <= maximum."
            )
        if not self.regimes or any(r.steps <= 0 for r in self.regimes):
            raise InputError(f"job {self.name!r} has no work, expected at least one regime, each of more than 0 steps.")
        if any(not 0 < r.pace < math.inf for r in self.regimes):
            paces = [r.pace for r in self.regimes]
            raise InputError(f"job {self.name!r} has paces {paces} of its regimes, expected factors above 0.")
        if self.step_scale <= 0:
            raise InputError(f"job {self.name!r} has step_scale {self.step_scale}, expected more than 0.")
        if self.dynamic and self.regimes[0].batch not in self.dynamic.batches:
            raise InputError(
                f"job {self.name!r} begins at batch size {self.regimes[0].batch}, expected one of those that it declares: "
                f"{', '.join(map(str, self.dynamic.batches))}."
            )

    def scale(self, batch: int) -> float:
        """Steps of the job's model in one step, or epoch, of the job."""
        return self.step_scale * (self.dynamic.steps_per_epoch(batch) if self.dynamic else 1.0)

    @property
    def expected_regimes(self) -> tuple[Regime, ...]:
        """Regimes known when the job arrives: all of them, or the first batch size only where its program decides."""
        if self.adaptive:
            return (Regime(steps=self.steps),)
        if self.dynamic and self.dynamic.hidden:
            return (Regime(steps=self.steps, batch=self.regimes[0].batch),)
        return self.regimes

    @property
    def configs(self) -> tuple[tuple[str, int], ...]:
        """(model, batch size) of everything that it may train with, as far as is known when it comes."""
        declared = self.dynamic.batches if self.dynamic else ()
        return tuple(
            (self.model, batch) for batch in dict.fromkeys([*(r.batch for r in self.expected_regimes), *declared])
        )

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
    """Successive halving (Themis §4.3.2): after each rung only the best jobs, up to the next rung's size, continue."""

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

    @property
    def steps(self) -> float:
        """Steps of a job that survives every rung."""
        return sum(rung.steps for rung in self.rungs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperband:
    """Hyperband: parallel brackets of successive halving, each with jobs of its own (Themis §4.3.2, its [21]).

    The app's jobs belong to the brackets in order: the first bracket has the first jobs, as many as its first rung.
    Survivors of a rung are chosen within the bracket; the app ends when all its brackets have.
    """

    brackets: tuple[Halving, ...]

    def __post_init__(self) -> None:
        if not self.brackets:
            raise InputError("hyperband has no brackets, expected at least one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStopping:
    """Curve stopping as by HyperDrive (Themis §4.3.2, its [29]): jobs whose learning curves promise too little end early.

    Jobs report their loss every ``check_steps`` steps. A job is stopped once the probability that its final loss beats
    the ``keep``-th best of its app falls below 1 - ``confidence`` (``themis.policies.tuning.curves`` says how).

    Attributes
    ----------
    check_steps : steps between two reports, above 0.
    keep : this many of the app's jobs, those forecast to end best, are never stopped; at least 1.
    confidence : in [0.5, 1); HyperDrive calls a job poor below a probability of 5 %.
    warmup : reports before a job's curve is extrapolated; at least 4, one more than the curve has parameters.
    noise : standard deviation of simulated reports, as a share of the loss; 0 or more. An assumption.
    floor : no loss is below it. None: 0; once a loss below 0 is reported, as far below the lowest as the highest is above.
    """

    check_steps: float
    keep: int = 1
    confidence: float = 0.95
    warmup: int = 4
    noise: float = 0.01
    floor: float | None = None

    def __post_init__(self) -> None:
        what = "curve stopping"
        if not 0 < self.check_steps < float("inf"):
            raise InputError(f"{what} has check_steps {self.check_steps}, expected a number above 0.")
        if self.keep < 1:
            raise InputError(f"{what} has keep {self.keep}, expected at least 1: the best job is never stopped.")
        if not 0.5 <= self.confidence < 1:
            raise InputError(f"{what} has confidence {self.confidence}, expected at least 0.5 and less than 1.")
        if self.warmup < 4:
            raise InputError(f"{what} has warmup {self.warmup}, expected at least 4 reports before the first fit.")
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"{what} has noise {self.noise}, expected a share of the loss, 0 or more.")
        if self.floor is not None and not math.isfinite(self.floor):
            raise InputError(f"{what} has floor {self.floor}, expected a finite loss.")


MOST_REPORTS = 10_000
"""Maximum number of loss reports of one job under curve stopping; each is an event, and all of them are fitted."""

Tuner: TypeAlias = Bag | Halving | Hyperband | CurveStopping


def brackets_of(tuner: Tuner) -> tuple[Halving, ...]:
    """The brackets of a sweep in rungs: one for successive halving, none for bags and curve stopping."""
    match tuner:
        case Halving():
            return (tuner,)
        case Hyperband():
            return tuner.brackets
        case _:
            return ()


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
    at_once: int = 0
    """Maximum number of concurrently running jobs; 0 is no limit."""
    machine: str = ""
    """The machine on which all its gangs run; empty, or not there when the app comes, means any."""

    def __post_init__(self) -> None:
        if self.at_once < 0:
            raise InputError(f"app {self.name!r} has at_once {self.at_once}, expected 0 (no limit) or more.")
        if not self.jobs:
            raise InputError(f"app {self.name!r} has no jobs, expected at least one.")
        if not 0 <= self.arrival < math.inf:
            raise InputError(f"app {self.name!r} arrives at {self.arrival} s, expected 0 or later.")
        if not 0 < self.weight < math.inf:
            raise InputError(f"app {self.name!r} has weight {self.weight}, expected more than 0.")
        first = [bracket.rungs[0].jobs for bracket in brackets_of(self.tuner)]
        if first and sum(first) != len(self.jobs):
            rungs = "its first rung has" if len(first) == 1 else "the first rungs of its brackets have"
            raise InputError(f"app {self.name!r} has {len(self.jobs)} jobs but {rungs} {sum(first)}; they must agree.")
        if isinstance(self.tuner, CurveStopping):
            reports = max(job.steps for job in self.jobs) / self.tuner.check_steps
            if reports > MOST_REPORTS:
                raise InputError(
                    f"app {self.name!r} has check_steps {self.tuner.check_steps}, {reports:.3g} reports of its longest job; "
                    f"expected at most {MOST_REPORTS}. Raise check_steps."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user or tenant; weights of user and group multiply into their apps' weight."""

    name: str
    weight: float = 1.0
    group: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise InputError(f"user {self.name!r} has weight {self.weight}, expected more than 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Users that belong together (an entity in Gavel's words)."""

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise InputError(f"group {self.name!r} has weight {self.weight}, expected more than 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Apps in order of arrival, with where they came from.

    Users and groups that are not listed have weight 1.
    """

    name: str
    apps: tuple[App, ...]
    source: str = ""
    """Source of the workload: a file, or a generator with its parameters and seed."""
    users: tuple[User, ...] = field(default=())
    groups: tuple[Group, ...] = field(default=())
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Warnings of the trace reader, a sentence each; the command line prints them."""
    profiles: tuple[Profile, ...] = field(default=(), compare=False, repr=False)
    """Speeds of models that were measured with the workload; simulations of it take them in place of the book's."""

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

    def members(self) -> tuple[tuple[str, float, tuple[str, ...]], ...]:
        """(name, weight, its users) of each group that users belong to, by name."""
        return members(self.users, self.groups)

    def weight(self, app: App) -> float:
        """The app's weight times its user's and its group's."""
        user = next((u for u in self.users if u.name == app.user), None)
        group = next((g for g in self.groups if user and g.name == user.group), None)
        return app.weight * (user.weight if user else 1.0) * (group.weight if group else 1.0)


def members(users: Iterable[User], groups: Iterable[Group]) -> tuple[tuple[str, float, tuple[str, ...]], ...]:
    """(name, weight, its users) of each group that users belong to, by name; groups that are not listed have weight 1."""
    weights = {group.name: group.weight for group in groups}
    found: dict[str, list[str]] = {}
    for user in users:
        if user.group:
            found.setdefault(user.group, []).append(user.name)
    return tuple((name, weights.get(name, 1.0), tuple(sorted(found[name]))) for name in sorted(found))
