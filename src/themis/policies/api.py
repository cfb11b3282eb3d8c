"""Interface of policies: a pure function of the snapshot, with its parameters as a frozen dataclass.

Adding one takes a file in this folder, a line in ``builtin.py``, and a row in ``docs/which-policy.md`` (see
CONTRIBUTING.md). Other packages add theirs by an entry point of the group ``themis.policies``. Nothing outside a
policy's file may branch on its name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

from themis.errors import INSTALL_AGAIN, InputError, UnknownName
from themis.fairness.forecasts.rules import FORECASTER, Forecaster
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.policies.builtin import BUILT_IN


class Granularity(StrEnum):
    """Unit between which a policy shares."""

    APP = "app"
    JOB = "job"


class Renews(IntEnum):
    """Whether a policy renews every lease that ends, in place, while no job could use more GPUs than it has."""

    NO = 0
    SINGLE_ON_ONE_TYPE = 1
    """Leases of apps of one job, on one type: an app of several may decline a gang that does not help it."""
    ON_ONE_TYPE = 2
    """While GPUs of one type are in service: between types it may move gangs."""
    ALWAYS = 3


@dataclass(frozen=True, slots=True)
class Cadence:
    """Times of a policy's decisions: whenever GPUs are free, or (with ``round_s``) also at every round's boundary.

    Attributes
    ----------
    resolve_interval : time shares stay in force until jobs or machines come or go, and for at least this many seconds;
        None: the policy is asked again for every decision.
    backfill : GPUs that fall free in mid-round are allocated immediately, not at the round's end.
    replan_on_regime : a job's change of speed ends the plan in force (Shockwave §7, reactive); otherwise it goes on (lazy).
    spare : GPUs that the answer leaves free go to jobs that wait, and leases that end on them are renewed; of time
        shares that is charged to no job. False: the policy leaves GPUs idle on purpose.
    renews : whether its answer is forced while each job has all GPUs that it can use; it is not asked then (decision 93).
    packs : the same where jobs wait that all fit: gangs that stand are renewed, the others are put where ``packing.narrowest``
        says, larger ones first.
    lone : where no lease ends, a rigid job that is its app's only one and that alone of those that wait needs no more GPUs than are
        free gets them where ``packing.narrowest`` says, and if no job does, the answer is empty.
    ticks : where the settings have no ``step_s``: on one GPU type, leases of its answers end together at each tick. False: at
        multiples of ``lease_s``, where leases are turns: each decision would stop gangs for those whose turn comes (decision 138).
    apart : each lease ends by itself: winners of an auction pay with part of a full lease. The setting ``step_s`` does not count.
    clock : rounds begin at multiples of ``round_s``, as leases end, not when the first app came and at multiples from then on.
    """

    round_s: Seconds | None = None
    resolve_interval: Seconds | None = None
    backfill: bool = True
    replan_on_regime: bool = True
    spare: bool = True
    renews: Renews = Renews.NO
    packs: bool = False
    lone: bool = False
    ticks: bool = False
    apart: bool = False
    clock: bool = False

    def __post_init__(self) -> None:
        if self.round_s is not None and not 1.0 <= self.round_s < math.inf:
            raise InputError(f"round_s is {self.round_s}, expected at least 1 second.")
        if self.resolve_interval is not None and not 0 <= self.resolve_interval < math.inf:
            raise InputError(f"resolve_interval is {self.resolve_interval}, expected 0 seconds or more.")


ON_FREE_GPUS = Cadence()
RENEWING = Cadence(renews=Renews.ALWAYS)
"""``ON_FREE_GPUS`` of a policy that renews every lease that ends while no job could use more GPUs."""
PACKING = Cadence(renews=Renews.ALWAYS, packs=True)
"""The same of one that also gives every job its gang while all fit."""


@dataclass(slots=True)
class Workbench:
    """Caches that may be dropped at any moment without changing a decision; owned by the caller, never by the policy.

    ``seconds`` : the live service only: after about this time a search should stop with the best answer found and its
    proven gap. Infinite in simulations, whose searches are bounded by work.
    """

    caches: dict[str, Any] = field(default_factory=dict)
    seconds: Seconds = math.inf

    def clear(self) -> None:
        """Drop everything."""
        self.caches.clear()


ADDED = MappingProxyType({"added": True})
"""Metadata of a parameter that came later: a log names it only where it is not its default, so that old logs stay equal."""


@runtime_checkable
class Policy(Protocol):
    """A scheduling policy.

    Attributes
    ----------
    claims : properties that are proven for it ("work_conserving", "sharing_incentive", ...); the conformance kit checks them.
    needs : optional snapshot columns that it asks for.
    """

    claims: ClassVar[frozenset[str]]
    needs: ClassVar[frozenset[str]]
    level: ClassVar[Granularity]

    @property
    def pace(self) -> Cadence:
        """Times of its decisions."""
        ...

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Decide on this snapshot."""
        ...


GROUP = "themis.policies"
"""Group of the entry points by which other packages add policies."""


@cache
def _points() -> Mapping[str, EntryPoint]:
    """Policies by name; a package cannot replace a built-in one."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    found |= {name: EntryPoint(name=name, value=value, group=GROUP) for name, value in BUILT_IN.items()}
    return dict(sorted(found.items()))


def policy_names() -> tuple[str, ...]:
    """Names of all policies: the built-in ones and those that installed packages register."""
    return tuple(_points())


def policy_class(name: str) -> type[Policy]:
    """The policy of this name.

    Raises
    ------
    UnknownName : no policy has this name. InputError : its module is there but not registered, or it cannot be loaded.
    """
    points = _points()
    if name not in points:
        if name.isidentifier() and find_spec(f"{__package__}.{name}") is not None:
            raise InputError(
                f"policy {name!r} is not registered, although the module {__package__}.{name} exists: "
                f"add a line for it to BUILT_IN in {__package__}.builtin."
            )
        raise UnknownName("policy", name, points, hint=f"{INSTALL_AGAIN} (entry points of the group {GROUP}).")
    try:
        loaded: type[Policy] = points[name].load()
    except Exception as error:  # a plug-in may fail in any way; the person who installed it needs its name
        if name in BUILT_IN:
            raise
        raise InputError(
            f"policy {name!r} ({points[name].value}) cannot be loaded: {error!r}. "
            "Repair or uninstall the package that registers it."
        ) from error
    return loaded


def make_policy(spec: str, overrides: Mapping[str, Any] | None = None) -> Policy:
    """Build a policy from ``name`` or ``name:key=value,key=value``.

    Raises
    ------
    UnknownName : no such policy, or no such parameter.
    InputError : a value of the wrong kind or out of range.
    """
    name, _, rest = spec.partition(":")
    kind = policy_class(name)
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"policy {spec!r}: got {part!r}, expected key=value, as in {name}:{_example(kind)}.")
        if key.strip() in given:
            raise InputError(f"policy {spec!r}: {key.strip()} is there twice, expected each parameter once.")
        given[key.strip()] = value.strip()
    given |= overrides or {}
    parameters = {f.name: f for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    values = {}
    for key, value in given.items():
        if key not in parameters:
            raise UnknownName(f"parameter of policy {name}", key, parameters)
        values[key] = _convert(name, key, value, parameters[key].default)
    policy = kind(**values)
    try:
        _ = policy.pace
    except InputError as error:
        raise InputError(f"policy {name}: {error}") from None
    return policy


def forecaster_of(policy: Policy) -> Forecaster:
    """The forecasts that a policy wants to be shown; a policy may have a property ``forecaster``."""
    wanted: Forecaster = getattr(policy, "forecaster", FORECASTER)
    return wanted


def check_types(policy: Policy, gpu_types: Sequence[str]) -> None:
    """Ask a policy whose parameters name GPU types to check them against the cluster; this method is optional.

    Raises
    ------
    UnknownName : a parameter names a type that is not among ``gpu_types``.
    """
    check: Callable[[Sequence[str]], None] | None = getattr(policy, "check_types", None)
    if check is not None:
        check(gpu_types)


def params(policy: Policy) -> dict[str, Any]:
    """A policy's parameters by name."""
    return {f.name: getattr(policy, f.name) for f in dataclasses.fields(policy) if f.init}  # type: ignore[arg-type]


def logged_params(policy: Policy) -> dict[str, Any]:
    """A policy's parameters as a log's header names them: those marked ``ADDED`` only where they are not the default."""
    given = {f.name: f for f in dataclasses.fields(policy)}  # type: ignore[arg-type]
    return {
        name: value
        for name, value in params(policy).items()
        if not given[name].metadata.get("added") or value != given[name].default
    }


def _example(policy: type[Policy]) -> str:
    first = next(iter(dataclasses.fields(policy)), None)  # type: ignore[arg-type]
    return f"{first.name}={first.default}" if first else "(it has no parameters)"


_KINDS = {int: "whole number", float: "number"}


def _convert(policy: str, key: str, value: Any, default: Any) -> Any:
    """A parameter given as text takes the kind of its default."""
    if not isinstance(value, str) or (isinstance(default, str) and not isinstance(default, StrEnum)):
        return value
    kind = type(default)
    if kind is bool:
        if value.lower() in ("true", "yes", "1", "on", "false", "no", "0", "off"):
            return value.lower() in ("true", "yes", "1", "on")
        raise InputError(f"policy {policy}: {key} is {value!r}, expected true or false.")
    try:
        return kind(value)
    except ValueError:
        if isinstance(default, StrEnum):
            raise UnknownName(f"{key} of policy {policy}", value, [str(v) for v in kind]) from None
        raise InputError(
            f"policy {policy}: {key} is {value!r}, expected a {_KINDS.get(kind, kind.__name__)} such as {default}."
        ) from None
