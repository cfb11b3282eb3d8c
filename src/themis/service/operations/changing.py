"""``themis set``: settings as people write them, read one by one on top of those in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from themis.errors import InputError, UnknownName
from themis.jobs.faults import Findings, did_you_mean, keys_of, raise_first, short
from themis.model.specs import to_fields
from themis.service.engine.changes import PLAIN, RESTART, Values, values_of, with_values
from themis.service.engine.config import Config
from themis.service.engine.machines import host_name
from themis.service.operations.settings import (
    GroupText,
    OthersText,
    ServiceText,
    UserText,
    clusters_of,
    override,
)
from themis.yaml_text import Document

NONE = ("none", "null", "~")
"""How a limit is lifted, and a user, a group or a machine removed."""
MEMBERS = {"users": UserText, "groups": GroupText}


def changed(config: Config, texts: Mapping[str, str]) -> Config:
    """The settings in force with these changes, each ``name -> value``.

    Raises
    ------
    InputError : the first fault of them.
    """
    if not texts:
        raise InputError("nothing to set was given; expected KEY=VALUE, such as lease=5m.")
    values: dict[str, Any] = {}
    for given, text in texts.items():
        name = given if given in PLAIN else _plain(given)
        found = _one(name, text.strip(), {**values_of(config), **values}, config)
        if twice := sorted(values.keys() & found.keys()):
            raise InputError(f"{twice[0]} is set by {given!r} and by another of these; give each setting once.")
        values |= found
    return with_values(config, values)


def _plain(name: str) -> str:
    """``lease_s`` is ``lease``: a value of time has its unit."""
    bare = name.removesuffix("_s")
    return bare if bare in PLAIN or bare in RESTART else name


def _one(name: str, text: str, known: Values, config: Config) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    if name in RESTART:
        raise InputError(
            f"{name} changes only when the service starts: set it in config.yaml, or start with --set {name}={text}."
        )
    if first in MEMBERS:
        return _member(first, rest, text, known)
    if first == "others":
        return {name: _checked(OthersText, rest, text, "others")}
    if first in ("gpus", "machines"):
        if not known["gpus"] and known["machines"] is None:
            found = "the nodes of a Ray cluster" if config.engine == "ray" else "the GPUs of this machine"
            raise InputError(
                f"{first} cannot be set: the service schedules {found}, not virtual ones. Drain a machine with `themis drain`; a "
                "GPU that was added is found when the service starts again."
            )
        return _machine(rest, text, known) if rest else _machines(first, text)
    if name not in PLAIN:
        names = [key for key in (*PLAIN, *RESTART, "gpus", "machines", "users", "groups") if "." not in key]
        hint = did_you_mean(name, names)
        raise InputError(f"unknown setting {short(name)}.{hint} Known: {', '.join(sorted([*names, 'others']))}.")
    return {name: _checked(ServiceText, name, text, "")}


def _checked(model: type[Any], key: str, text: str, inside: str) -> Any:
    """A value as its model reads it."""
    where = f"{inside}.{key}" if inside else key
    if key not in keys_of(model):
        hint = did_you_mean(key, keys_of(model))
        raise InputError(f"unknown setting {short(where)}.{hint} Known: {', '.join(sorted(keys_of(model)))}.")
    nullable = model.model_fields[key].default is None
    if nullable and text.lower() in NONE:
        return None
    faults: list[Any] = []
    given = override(f"setting {where}", key, text, faults, model)
    raise_first(faults)
    return getattr(model.model_validate({key: given}), key)


def _member(kind: str, rest: str, text: str, known: Values) -> dict[str, Any]:
    """``users.ann.weight=2``, ``groups.ml.gpus=8``, ``users.ann=none``."""
    name, _, leaf = rest.rpartition(".")
    one = kind.removesuffix("s")
    if not name:
        name, leaf = rest, ""
    listed = known.get(f"{kind}.{name}.weight") is not None
    if not leaf:
        if not name or text.lower() not in NONE:
            raise InputError(
                f"{kind}.{name} is {short(text)}; expected `{kind}.NAME.weight=2`, another key of the {one}, or "
                f"`{kind}.NAME=none`, which removes the {one}."
            )
        if not listed:
            raise UnknownName(one, name, _names(kind, known))
        members = [user for user in _names("users", known) if known.get(f"users.{user}.group") == name]
        if kind == "groups" and members:
            raise InputError(
                f"group {name!r} has the users {', '.join(members)}; remove them from it first (users.{members[0]}.group=none)."
            )
        return {key: None for key in known if key.startswith(f"{kind}.{name}.")}
    findings = Findings(f"setting {kind}.{rest}", Document(data={}))
    findings.valid(ServiceText, {kind: {name: {}}})
    raise_first(findings.faults)
    value = _checked(MEMBERS[kind], leaf, text, f"{kind}.{name}")
    if leaf == "group" and value is not None and value not in _names("groups", known):
        raise UnknownName("group", value, _names("groups", known), hint=f"Add it first: groups.{value}.weight=1.")
    return {f"{kind}.{name}.{leaf}": value} | ({} if listed or leaf == "weight" else {f"{kind}.{name}.weight": 1.0})


def _names(kind: str, known: Values) -> list[str]:
    ends = ".weight"
    return [
        key.removeprefix(f"{kind}.").removesuffix(ends)
        for key, value in known.items()
        if key.startswith(f"{kind}.") and key.endswith(ends) and value is not None
    ]


def _machines(key: str, text: str) -> dict[str, Any]:
    """``gpus=12``, ``machines=3x4``."""
    faults: list[Any] = []
    given = override(f"setting {key}", key, text, faults)
    raise_first(faults)
    if key == "gpus":
        if not given:
            raise InputError("gpus is 0, expected at least 1 GPU. `themis drain` takes machines out of service.")
        return {"gpus": given, "machines": None}
    cluster = clusters_of(given)
    return {"gpus": 0, "machines": {"name": cluster.name, "machines": [to_fields(m) for m in cluster.machines]}}


def _machine(rest: str, text: str, known: Values) -> dict[str, Any]:
    """``machines.m1.gpus=8``, ``machines.m1=none``."""
    name, _, leaf = rest.rpartition(".")
    if leaf not in ("gpus", "gpu_type", "rack"):
        name, leaf = rest, ""
    only = [{"name": host_name(), "gpus": known["gpus"]}]  # what gpus=8 stands for
    before = known["machines"]["machines"] if known["machines"] else only
    machines = {machine["name"]: dict(machine) for machine in before}
    if not leaf:
        if text.lower() not in NONE:
            raise InputError(
                f"machines.{name} is {short(text)}; expected `machines.{name}.gpus=8`, or `machines.{name}=none`, which removes it."
            )
        if name not in machines:
            raise UnknownName("machine", name, machines)
        if len(machines) == 1:
            raise InputError(f"{name} is the only machine; add another one before you remove it.")
        del machines[name]
    elif leaf == "gpus":
        faults: list[Any] = []
        gpus = override(f"setting machines.{rest}", "gpus", text, faults)
        raise_first(faults)
        if not gpus:
            raise InputError(f"machines.{name}.gpus is 0, expected at least 1; `machines.{name}=none` removes it.")
        machines.setdefault(name, {"name": name})["gpus"] = gpus
    else:
        raise InputError(
            f"machines.{rest} cannot be set; expected `machines.{name}.gpus=8`, or machines=FILE for all of them."
        )
    return {"gpus": 0, "machines": {"name": "machines", "machines": list(machines.values())}}
