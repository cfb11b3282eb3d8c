"""What-if question on a present state: policies, machines added or removed, apps left out, and the horizon."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.core.state import State
from themis.errors import InputError, UnknownName
from themis.model.cluster import Machine
from themis.model.events import AppCancelled, Event, MachineJoined, MachineResized
from themis.model.speed import ANY_TYPE
from themis.model.units import NONE, Seconds
from themis.policies.api import check_types, make_policy, policy_names

CURRENT = "current"
"""The policy that the state is under."""
MOST_GPUS = 100_000
MOST_POLICIES, MOST_SEEDS = 16, 1000
HORIZON_S = 7 * 86400.0
MOST_HORIZON_S = 366 * 86400.0
_GPUS = re.compile(r"(\d{1,9})(?:@(.+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What-if question.

    Attributes
    ----------
    policies : as ``themis simulate -p`` takes them; ``current`` is the state's own. Each is a case, under all the changes below.
    add : GPUs that join, ``N`` or ``N@TYPE``. ``remove`` : GPUs that leave, ``N@TYPE`` or a machine's name.
    without : numbers or names of apps that are cancelled first.
    horizon_s : simulated seconds ahead; apps that have not ended by then count as later. ``seeds`` : of the simulations.
    arrivals : further apps arrive as the history's did.
    """

    policies: Sequence[str] = (CURRENT,)
    add: Sequence[str] = ()
    remove: Sequence[str] = ()
    without: Sequence[str] = ()
    horizon_s: Seconds = HORIZON_S
    seeds: Sequence[int] = field(default=tuple(range(20)))
    arrivals: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.horizon_s <= MOST_HORIZON_S:
            raise InputError(
                f"the horizon is {self.horizon_s:g} s, expected more than 0 and at most {MOST_HORIZON_S / 86400:g} days."
            )
        if not 1 <= len(self.seeds) <= MOST_SEEDS:
            raise InputError(f"{len(self.seeds)} simulations were asked for, expected 1 to {MOST_SEEDS}.")
        if not 1 <= len(self.policies) <= MOST_POLICIES:
            raise InputError(f"{len(self.policies)} policies were named, expected 1 to {MOST_POLICIES}.")

    @property
    def changes(self) -> bool:
        """True if machines or apps are others than now."""
        return bool(self.add or self.remove or self.without)

    def words(self) -> str:
        """The changes as a sentence's end, ``with 8@A100 more, without sweep-1``; empty without changes."""
        parts = [f"with {', '.join(self.add)} more GPUs"] if self.add else []
        parts += [f"without {', '.join(gone)}" for gone in (self.remove, self.without) if gone]
        return ", ".join(parts)


def check_policies(state: State, policies: Sequence[str]) -> None:
    """Raise UnknownName or InputError for a policy that cannot decide here."""
    for spec in policies:
        if spec != CURRENT:
            try:
                check_types(make_policy(spec), state.gpu_types)
            except UnknownName as error:
                name = spec.partition(":")[0]
                if str(error).startswith(f"unknown policy {name!r}"):
                    raise UnknownName("policy", name, (CURRENT, *policy_names())) from None
                raise


def changes(state: State, asked: Question) -> list[Event]:
    """Events that turn the present state into the one in question.

    Raises
    ------
    UnknownName : no such GPU type, machine or app. InputError : more GPUs leave than there are, or an app has ended.
    """
    out: list[Event] = [AppCancelled(app=a) for a in dict.fromkeys(find_app(state, ref) for ref in asked.without)]
    left = {n: int(state.machine_size[n]) for n in range(len(state.machines))}
    for text in asked.remove:
        out += _removed(state, text, left)
    for text in asked.add:
        out += _added(state, text, sum(isinstance(event, MachineJoined) for event in out))
    if asked.remove and not asked.add and not any(left.values()):
        raise InputError("no GPU would be left; remove fewer.")
    return out


def find_app(state: State, ref: str) -> int:
    """The number of an active app.

    Raises
    ------
    UnknownName : no active app has this number or name. InputError : the app has ended.
    """
    active = np.flatnonzero(state.apps.active[: state.apps.size]).tolist()
    names = {state.app_specs[a].name: a for a in active}
    if ref in names:
        return names[ref]
    if ref.isascii() and ref.isdecimal() and len(ref) < 10 and int(ref) < state.apps.size:
        if int(ref) in active:
            return int(ref)
        raise InputError(f"app {ref} ({state.app_specs[int(ref)].name}) has ended; name an app that is in the system.")
    if any(app.name == ref for app in state.app_specs):
        raise InputError(f"app {ref!r} has ended; name an app that is in the system.")
    raise UnknownName("app", ref[:100], names)


def _added(state: State, text: str, before: int) -> list[Event]:
    match = _GPUS.fullmatch(text.strip())
    count = int(match[1]) if match else 0
    if match is None or not 1 <= count <= MOST_GPUS:
        raise InputError(
            f"GPUs to add are {text[:100]!r}, expected a number from 1 to {MOST_GPUS:,} and a type, as in 8@A100."
        )
    gpu_type = match[2] or _most_common(state)
    alike = [n for n in _there(state) if state.gpu_types[int(state.machine_type[n])] == gpu_type]
    if not alike:
        known = {*state.gpu_types, *(kind for p in state.book.profiles.values() for kind, _ in p.curves)} - {ANY_TYPE}
        if gpu_type not in known:
            raise UnknownName("GPU type", gpu_type[:100], known)
    size = max((int(state.machine_size[n]) for n in alike or _there(state)), default=count)
    rack = state.machines[alike[0]].rack if alike else "rack0"
    sizes = [size] * (count // size) + ([count % size] if count % size else [])
    return [
        MachineJoined(machine=Machine(name=f"added-{before + i}", gpus=gpus, gpu_type=gpu_type, rack=rack))
        for i, gpus in enumerate(sizes)
    ]


def _removed(state: State, text: str, left: dict[int, int]) -> list[Event]:
    """Machines of which GPUs leave; ``left`` : GPUs of each machine, brought up to date."""
    names = {state.machines[n].name: n for n in _there(state)}
    if text in names:
        left[names[text]] = 0
        return [MachineResized(machine=names[text], gpus=0)]
    match = _GPUS.fullmatch(text.strip())
    if match is None or not int(match[1]):
        hint = "Machines are named as `themis nodes` lists them; numbers of GPUs as in 4@V100."
        raise UnknownName("machine", text[:100], names, hint=hint)
    count, gpu_type = int(match[1]), match[2] or _most_common(state)
    if gpu_type not in state.gpu_types:
        raise UnknownName("GPU type", gpu_type[:100], state.gpu_types)
    alike = [n for n in _there(state) if state.gpu_types[int(state.machine_type[n])] == gpu_type and left[n]]
    there = sum(left[n] for n in alike)
    if count > there:
        raise InputError(f"{count} GPUs of type {gpu_type} cannot be removed; there are {there}.")
    # Machines with the most idle GPUs first, so that few gangs have to move; on ties the last ones.
    idle = {n: int((state.gpu_job[state.gpu_machine == n] == NONE).all(axis=1).sum()) for n in alike}
    out: list[Event] = []
    for n in sorted(alike, key=lambda n: (-idle[n], -n)):
        gone = min(count, left[n])
        count, left[n] = count - gone, left[n] - gone
        if gone:
            out.append(MachineResized(machine=n, gpus=left[n]))
    return out


def _there(state: State) -> list[int]:
    """Machines that were not removed."""
    return [n for n in range(len(state.machines)) if state.machine_size[n]]


def _most_common(state: State) -> str:
    """The GPU type of most GPUs."""
    there = _there(state)
    if not there:
        raise InputError("the state has no machine; name the type of the GPUs, as in 8@A100.")
    sizes = np.bincount(state.machine_type[there], state.machine_size[there], len(state.gpu_types))
    return state.gpu_types[int(sizes.argmax())]
