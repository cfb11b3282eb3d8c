"""``themis set``: settings as people write them, read one by one on top of those in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from themis.errors import InputError, UnknownName
from themis.faults import did_you_mean
from themis.limits import shown
from themis.model.specs import to_fields
from themis.service.engine.config import NAME, SETTINGS, Config
from themis.service.engine.machine_changes import host_name
from themis.service.engine.setting_changes import LIVE, MACHINES, Values, values_of, with_values
from themis.service.operations.service_settings import read_one
from themis.setting import Kind, Setting, leaves_of, member_of
from themis.sizes import Unreadable

NONE = ("none", "null", "~")
"""Values that lift a limit, or remove a user, a group or a machine."""
FOUND = {"ray": "the nodes of a Ray cluster", "fleet": "the machines that join it"}
"""GPUs that the service schedules, by engine, unless they are those of this machine."""


def changed(config: Config, texts: Mapping[str, str]) -> Config:
    """The settings in force with these changes, each ``name -> value``.

    Raises
    ------
    InputError : the first fault of the changes.
    """
    if not texts:
        raise InputError("nothing to set was given; expected KEY=VALUE, such as lease=5m.")
    values: dict[str, Any] = {}
    names: list[str] = []
    for given, text in texts.items():
        # The value carries its unit: ``lease_s`` is written ``lease``.
        name = bare if (bare := given.removesuffix("_s")) in SETTINGS else given
        found = _one(name, text.strip(), {**values_of(config), **values}, config)
        if any(_overlap(name, other) for other in names):
            raise InputError(f"{name} is set by {given!r} and by another of these; give each setting once.")
        values |= found
        names.append(name)
    return with_values(config, values)


def _overlap(one: str, other: str) -> bool:
    """True if two names overlap: ``machines.m0`` has ``machines.m0.gpus``, and ``gpus`` means all machines."""
    a, b = (f"{'machines' if name == 'gpus' else name}." for name in (one, other))
    return a.startswith(b) or b.startswith(a)


def _one(name: str, text: str, known: Values, config: Config) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    found = SETTINGS.get(first)
    if found is not None and not found.live:
        option = f", or start with --set {name}={text}" if found.kind.shape == "value" else ""
        raise InputError(f"{name} changes only when the service starts: set it in config.yaml{option}.")
    if first in MACHINES:
        if not known["gpus"] and known["machines"] is None:
            there = FOUND.get(config.engine, "the GPUs of this machine")
            raise InputError(
                f"{first} cannot be set: the service schedules {there}, not virtual ones. Drain a machine with `themis drain`; a "
                "GPU that was added is found when the service starts again."
            )
        return _machine(rest, text, known) if rest else _machines(first, text)
    if found is None or (rest and found.kind.shape == "value") or (not rest and found.kind.shape == "entry"):
        raise _unknown(name, SETTINGS)
    match found.kind.shape:
        case "map":
            return _in_map(found, rest, text, known)
        case "entry":
            return _part(first, found.kind, rest, text, known)
    return {name: _value(name, found, text)}


def _unknown(name: str, known: Mapping[str, Setting], key: str = "") -> InputError:
    hint = did_you_mean(key or name, known)
    return InputError(f"unknown setting {shown(name)}.{hint} Known: {', '.join(sorted(known))}.")


def _value(name: str, found: Setting, text: str) -> Any:
    if found.nullable and text.lower() in NONE:
        return found.default
    return read_one(found, text, f"setting {name}")


def _part(at: str, kind: Kind, leaf: str, text: str, known: Values) -> dict[str, Any]:
    """``others.weight=2``, ``users.ann.budget.hard=50``, ``users.ann.budget=none``."""
    key, _, rest = leaf.partition(".")
    name = f"{at}.{leaf}"
    found = kind.settings.get(key)
    if found is None or (rest and found.kind.shape == "value"):
        raise _unknown(name, kind.settings, key)
    if rest:
        below = found.kind.settings.get(rest)
        if below is not None and text.lower() in NONE:
            return {name: below.default}
        return _part(f"{at}.{key}", found.kind, rest, text, known)
    if found.kind.shape == "value":
        return {name: _value(name, found, text)}
    keys = [*leaves_of(found.kind)]
    if text.lower() not in NONE:
        raise InputError(
            f"{name} is {shown(text)}; expected `{name}.{keys[0]}=50`, another key of the {key} ({', '.join(keys)}), or "
            f"`{name}=none`, which removes the {key}."
        )
    if all(known.get(f"{name}.{leaf}") is None for leaf in keys):
        raise InputError(f"{at} has no {key} to remove.")
    return {f"{name}.{leaf}": None for leaf in keys}


def _in_map(of: Setting, rest: str, text: str, known: Values) -> dict[str, Any]:
    """``users.ann.weight=2``, ``groups.ml.gpus=8``, ``users.ann=none``, ``price.H200=3.5``, ``price.H200=none``."""
    one, kind = of.key.removesuffix("s"), of.kind.of
    assert kind is not None
    names = _names(of, known)
    name, leaf = member_of(of.kind, rest)
    if not leaf and text.lower() in NONE and rest:
        if name not in names:
            raise UnknownName(one, name, names)
        members = [user for user in _names(LIVE["users"], known) if known.get(f"users.{user}.group") == name]
        if of.key == "groups" and members:
            raise InputError(
                f"group {name!r} has the users {', '.join(members)}; remove them from it first (users.{members[0]}.group=none)."
            )
        return {key: None for key in known if key == f"{of.key}.{name}" or key.startswith(f"{of.key}.{name}.")}
    if kind.shape == "value":
        if not rest:
            raise InputError(
                "price is a setting for each GPU type; expected `price.H200=3.5`, `price.*=1` for all other types, or "
                "`price.H200=none`, which removes the price."
            )
        return {f"{of.key}.{rest}": read_one(_as(of, rest, kind), text, f"setting {of.key}.{rest}")}
    if not leaf and "." in rest:
        name, _, leaf = rest.partition(".")
    if not leaf:
        raise InputError(
            f"{of.key}.{name} is {shown(text)}; expected `{of.key}.NAME.weight=2`, another key of the {one}, or "
            f"`{of.key}.NAME=none`, which removes the {one}."
        )
    try:
        NAME.read(name)
    except Unreadable as error:
        raise InputError(f"setting {of.key}.{rest}: the name is {shown(name)}, expected {error}.") from None
    found = _part(f"{of.key}.{name}", kind, leaf, text, known)
    group = found.get(f"{of.key}.{name}.group")
    if group is not None and group not in _names(LIVE["groups"], known):
        raise UnknownName("group", group, _names(LIVE["groups"], known), hint=f"Add it first: groups.{group}.weight=1.")
    # A member is listed from its first setting on.
    return found if name in names or leaf == "weight" else found | {f"{of.key}.{name}.weight": 1.0}


def _as(of: Setting, key: str, kind: Kind) -> Setting:
    return replace(of, key=key, kind=kind, shown="", fresh=dict)


def _names(of: Setting, known: Values) -> list[str]:
    """Members that are listed."""
    there = [
        key.removeprefix(f"{of.key}.") for key, v in known.items() if key.startswith(f"{of.key}.") and v is not None
    ]
    return list(dict.fromkeys(member_of(of.kind, rest)[0] for rest in there))


def _machines(key: str, text: str) -> dict[str, Any]:
    """``gpus=12``, ``machines=3x4``."""
    given = read_one(SETTINGS[key], text, f"setting {key}")
    if key == "machines":
        machines = [to_fields(machine) for machine in given.machines]
        return {"gpus": 0, "machines": {"name": given.name, "machines": machines}}
    if not given:
        raise InputError("gpus is 0, expected at least 1 GPU. `themis drain` takes machines out of service.")
    return {"gpus": given, "machines": None}


def _machine(rest: str, text: str, known: Values) -> dict[str, Any]:
    """``machines.m1.gpus=8``, ``machines.m1=none``."""
    name, _, leaf = rest.rpartition(".")
    if leaf not in ("gpus", "gpu_type", "rack"):
        name, leaf = rest, ""
    only = [{"name": host_name(), "gpus": known["gpus"]}]  # machines of gpus=8
    before = known["machines"]["machines"] if known["machines"] else only
    machines = {machine["name"]: dict(machine) for machine in before}
    if not leaf:
        if text.lower() not in NONE:
            raise InputError(
                f"machines.{name} is {shown(text)}; expected `machines.{name}.gpus=8`, or `machines.{name}=none`, which removes it."
            )
        if name not in machines:
            raise UnknownName("machine", name, machines)
        if len(machines) == 1:
            raise InputError(f"{name} is the only machine; add another one before you remove it.")
        del machines[name]
    elif leaf == "gpus":
        gpus = read_one(SETTINGS["gpus"], text, f"setting machines.{rest}")
        if not gpus:
            raise InputError(f"machines.{name}.gpus is 0, expected at least 1; `machines.{name}=none` removes it.")
        machines.setdefault(name, {"name": name})["gpus"] = gpus
    else:
        raise InputError(
            f"machines.{rest} cannot be set; expected `machines.{name}.gpus=8`, or machines=FILE for all of them."
        )
    return {"gpus": 0, "machines": {"name": "machines", "machines": list(machines.values())}}
