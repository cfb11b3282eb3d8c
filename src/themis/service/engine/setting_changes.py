"""Settings that a running service takes on: as values by name, what differs between two, and what follows for the core.

A ``Config`` is how a service is set; ``values_of`` spells it in the form of the settings file, a name for each thing
that can change by itself (``lease``, ``users.ann.weight``), and ``with_values`` reads it back. Values are what JSON
holds, for the journal keeps them.

Three of them meet when a service starts (``merged``): what the start before was given, what is in force, and what this start is
given. What is given as before stays as it is in force, so that a change by ``themis set`` outlives the next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from themis.core.state import State
from themis.errors import InputError, counted
from themis.machines.engines.hosts import Host
from themis.model.cluster import Cluster, Machine
from themis.model.events import Event, MachineJoined, MachineResized, SettingsChanged, UserWeightsSet
from themis.model.specs import to_fields
from themis.policies.api import check_types, logged_params, make_policy
from themis.service.engine.config import SETTINGS, Config, Notify
from themis.service.engine.machine_changes import host_name
from themis.setting import built, flat, kind_of, plain_words
from themis.trust.oidc.provider_settings import OidcSettings

Values = Mapping[str, Any]

MACHINES = ("gpus", "machines")
"""Settings of the machines' GPUs; the two exclude each other."""
LIVE = {key: found for key, found in SETTINGS.items() if found.live}
"""Settings that can change while the service runs."""
RESTART = {key: found for key, found in SETTINGS.items() if not found.live}
"""Settings that a service reads when it starts, which are no records."""


# ---- a configuration as values, and back ---------------------------------------------------------------------------------


def values_of(config: Config) -> dict[str, Any]:
    """All settings that can change, by name."""
    out: dict[str, Any] = {}
    for key, found in LIVE.items():
        out |= flat(key, found.kind, getattr(config, found.field))
    if config.cluster is not None:
        machines = [to_fields(machine) for machine in config.cluster.machines]
        out["machines"] = {"name": config.cluster.name, "machines": machines}
    return out


def with_values(config: Config, values: Values) -> Config:
    """A configuration with these settings instead of its own.

    Raises
    ------
    InputError : they contradict each other.
    """
    whole = values_of(config) | dict(values)
    fields = {found.field: built(key, found.kind, whole, found.default) for key, found in LIVE.items()}
    if (cluster := whole["machines"]) is not None:
        machines = tuple(Machine(**machine) for machine in cluster["machines"])
        fields["cluster"] = Cluster(name=cluster["name"], machines=machines)
    return replace(config, **fields)


def differing(before: Values, after: Values) -> dict[str, Any]:
    """Settings that differ from before, by name; None for a removed one."""
    names = sorted(before.keys() | after.keys())
    out = {name: after.get(name) for name in names if before.get(name) != after.get(name)}
    if not out.keys().isdisjoint(MACHINES):
        out |= {name: after.get(name) for name in MACHINES}
    return out


def merged(given_before: Values, in_force: Values, given: Values) -> tuple[dict[str, Any], dict[str, Any]]:
    """(changes by a start, settings that stay because something else is in force), by name."""
    changes = differing(given_before, given)
    changes = {name: value for name, value in changes.items() if in_force.get(name) != value or name in MACHINES}
    if all(in_force.get(name) == changes.get(name) for name in MACHINES):
        changes = {name: value for name, value in changes.items() if name not in MACHINES}
    left = {n: v for n, v in differing(in_force, given).items() if n not in changes and given_before.get(n) == v}
    return changes, {name: value for name, value in left.items() if in_force.get(name) != value}


def words(name: str, value: Any) -> str:
    """A setting's value in words."""
    match value:
        case Notify():  # addresses have passwords and tokens, and every user may list the settings
            return counted(len(value.admins) + sum(map(len, value.users.values())), "recipient")
        case OidcSettings():
            return value.issuer
    kind = kind_of(Config, name)
    return plain_words(value) if kind is None or value is None else kind.words(value)


# ---- what follows ----------------------------------------------------------------------------------------------------


def plan(state: State, before: Config, after: Config, hosts: Sequence[Host], user: str) -> list[Event]:
    """The records of a change of settings, in order; none where nothing changes.

    Parameters
    ----------
    hosts : this machine's GPUs as they were found, where neither ``gpus`` nor ``machines`` says which there are.

    Raises
    ------
    InputError : something of it cannot be; then nothing is changed.
    """
    machines = machines_of(after, hosts)
    changes = differing(values_of(before), values_of(after))
    resized = resizes(state, machines) if after.engine == "local" else []
    if not changes and not resized:
        return []
    policy = make_policy(after.policy)
    check_types(policy, sorted({machine.gpu_type for machine in machines} or set(state.gpu_types)))
    old, new = before.core_settings, after.core_settings
    # Those of the core that a service has.
    names = tuple(field.name for field in fields(old) if field.name not in ("between", "renew_idle", "validate"))
    other = after.policy != before.policy
    first = SettingsChanged(
        user=user,
        values=changes,
        settings={name: getattr(new, name) for name in names if getattr(new, name) != getattr(old, name)},
        policy=after.policy if other else "",
        params=logged_params(policy) if other else {},
    )
    return [first, *resized, *_weights(state, before, after)]


def machines_of(config: Config, hosts: Sequence[Host]) -> list[Machine]:
    """Machines of a configuration; ``hosts`` : those found, of this machine or as given."""
    if config.cluster is not None:
        return list(config.cluster.machines)
    if config.gpus:
        return [Machine(name=host_name(), gpus=config.gpus)]
    return [host.machine for host in hosts]


def resizes(state: State, wanted: Sequence[Machine]) -> list[Event]:
    """Events that change the machines to the wanted ones; GPUs are added before others are removed, so that jobs find
    room.

    Raises
    ------
    InputError : a machine in service would change its GPU type or rack.
    """
    last = {machine.name: n for n, machine in enumerate(state.machines)}
    more: list[Event] = []
    less: list[Event] = []
    for machine in wanted:
        n = last.get(machine.name)
        if n is None:
            more.append(MachineJoined(machine=machine))
            continue
        size, known = int(state.machine_size[n]), state.machines[n]
        alike = (known.gpu_type, known.rack) == (machine.gpu_type, machine.rack)
        if not alike and (size or state.occupants(n)):
            raise InputError(
                f"machine {machine.name!r} has GPUs of type {known.gpu_type} in {known.rack} and cannot get others of type "
                f"{machine.gpu_type} in {machine.rack} while it serves. Remove it, and add it again when `themis nodes` does not "
                "list it any more; or give it another name."
            )
        if not alike:
            more.append(MachineJoined(machine=machine))
        elif machine.gpus != size:
            (more if machine.gpus > size else less).append(MachineResized(machine=n, gpus=machine.gpus))
    names = {machine.name for machine in wanted}
    less += [
        MachineResized(machine=n, gpus=0)
        for name, n in sorted(last.items(), key=lambda item: item[1])
        if name not in names and state.machine_size[n]
    ]
    return more + less


def back_again(state: State, n: int, machine: Machine) -> list[Event]:
    """Events that bring a removed machine back: with its ids, or as a new machine if its GPU type or rack changed."""
    known = state.machines[n]
    if (known.gpu_type, known.rack) == (machine.gpu_type, machine.rack):
        return [MachineResized(machine=n, gpus=machine.gpus)]
    return [] if state.occupants(n) else [MachineJoined(machine=machine)]


def _weights(state: State, before: Config, after: Config) -> list[Event]:
    known = [user for user in sorted(state.users) if before.weight(user) != after.weight(user)]
    return [UserWeightsSet(users=tuple((user, after.weight(user)) for user in known))] if known else []


def too_large(state: State) -> list[str]:
    """Apps in the queue with a job that no longer fits the machines, which therefore wait, in a sentence each."""
    out = []
    for a, app in enumerate(state.app_specs):
        if not state.apps.active[a]:
            continue
        try:
            state.check_fits(app)
        except InputError as error:
            out.append(f"{error} Until then it waits.")
    return out


def said(before: Values, changes: Iterable[tuple[str, Any]]) -> list[str]:
    """Each change in a few words: ``lease: 10m -> 5m``."""
    return [
        f"{name}: {words(name, before.get(name))} -> {words(name, value)}"
        for name, value in changes
        if before.get(name) != value
    ]
