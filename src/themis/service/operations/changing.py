"""``themis set``: settings as people write them, read one by one on top of those in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from themis.errors import InputError, UnknownName
from themis.jobs.file_errors import Findings, did_you_mean, keys_of, raise_first, short
from themis.model.specs import to_fields
from themis.report.accounts.days import local_zone
from themis.service.engine.config import Budget, Config
from themis.service.engine.machine_changes import host_name
from themis.service.engine.setting_changes import BUDGET, PLAIN, RESTART, Values, member_of, values_of, with_values
from themis.service.operations.accounting import BudgetText
from themis.service.operations.service_settings import (
    NESTED,
    GroupText,
    OthersText,
    ServiceText,
    UserText,
    clusters_of,
    override,
)
from themis.yaml_text import Document

NONE = ("none", "null", "~")
"""Values that lift a limit, or remove a user, a group or a machine."""
FOUND = {"ray": "the nodes of a Ray cluster", "fleet": "the machines that join it"}
"""GPUs that the service schedules, by engine, unless they are those of this machine."""
MEMBERS = {"users": UserText, "groups": GroupText}


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
        name = given if given in PLAIN else _plain(given)
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


def _plain(name: str) -> str:
    """``lease_s`` is written ``lease``: the value carries its unit."""
    bare = name.removesuffix("_s")
    return bare if bare in PLAIN or bare in RESTART else name


def _one(name: str, text: str, known: Values, config: Config) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    if first in RESTART:
        option = "" if first in NESTED else f", or start with --set {name}={text}"
        raise InputError(f"{name} changes only when the service starts: set it in config.yaml{option}.")
    if first in MEMBERS:
        return _member(first, rest, text, known)
    if first == "others":
        return _budget("others", rest, text, known) or {name: _checked(OthersText, rest, text, "others")}
    if first == "price":
        return _price(rest, text, known)
    if first in ("gpus", "machines"):
        if not known["gpus"] and known["machines"] is None:
            found = FOUND.get(config.engine, "the GPUs of this machine")
            raise InputError(
                f"{first} cannot be set: the service schedules {found}, not virtual ones. Drain a machine with `themis drain`; a "
                "GPU that was added is found when the service starts again."
            )
        return _machine(rest, text, known) if rest else _machines(first, text)
    if name not in PLAIN:
        names = [key for key in (*PLAIN, *RESTART, "gpus", "machines", "users", "groups", "price") if "." not in key]
        hint = did_you_mean(name, names)
        raise InputError(f"unknown setting {short(name)}.{hint} Known: {', '.join(sorted([*names, 'others']))}.")
    if name == "currency" and text.lower() in NONE:
        return {name: ""}
    value = _checked(ServiceText, name, text, "")
    return {name: local_zone() if name == "time_zone" and value is None else value}


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


def _budget(at: str, key: str, text: str, known: Values) -> dict[str, Any]:
    """``users.ann.budget.hard=50``, ``users.ann.budget=none``; nothing where the key is no budget's."""
    first, _, leaf = key.partition(".")
    if first != "budget":
        return {}
    if not leaf:
        if text.lower() not in NONE:
            raise InputError(
                f"{at}.budget is {short(text)}; expected `{at}.budget.hard=50`, another key of the budget "
                f"({', '.join(BUDGET)}), or `{at}.budget=none`, which removes the budget."
            )
        if known.get(f"{at}.budget.of") is None:
            raise InputError(f"{at} has no budget to remove.")
        return {f"{at}.budget.{name}": None for name in BUDGET}
    if leaf in BUDGET and text.lower() in NONE:
        return {f"{at}.budget.{leaf}": getattr(Budget(), leaf)}
    return {f"{at}.budget.{leaf}": _checked(BudgetText, leaf, text, f"{at}.budget")}


def _price(gpu_type: str, text: str, known: Values) -> dict[str, Any]:
    """``price.H200=3.5``, ``price.H200=none``."""
    name = f"price.{gpu_type}"
    if not gpu_type:
        raise InputError(
            "price is a setting for each GPU type; expected `price.H200=3.5`, `price.*=1` for all other types, or "
            "`price.H200=none`, which removes the price."
        )
    if text.lower() in NONE:
        if known.get(name) is None:
            raise UnknownName(
                "price", gpu_type, [key.removeprefix("price.") for key in known if key.startswith("price.")]
            )
        return {name: None}
    try:
        given: object = float(text)
    except ValueError:
        given = text
    findings = Findings(f"setting {name}", Document(data={}))
    read = findings.valid(ServiceText, {"price": {gpu_type: given}})
    raise_first(findings.faults)
    assert read is not None
    return {name: read.price[gpu_type]}


def _member(kind: str, rest: str, text: str, known: Values) -> dict[str, Any]:
    """``users.ann.weight=2``, ``groups.ml.gpus=8``, ``users.ann=none``."""
    name, leaf = member_of(rest)
    if name.endswith(".budget") and leaf not in keys_of(MEMBERS[kind]):
        name, leaf = name.removesuffix(".budget"), f"budget.{leaf}"
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
    value = None if leaf.startswith("budget") else _checked(MEMBERS[kind], leaf, text, f"{kind}.{name}")
    if leaf == "group" and value is not None and value not in _names("groups", known):
        raise UnknownName("group", value, _names("groups", known), hint=f"Add it first: groups.{value}.weight=1.")
    found = _budget(f"{kind}.{name}", leaf, text, known) or {f"{kind}.{name}.{leaf}": value}
    return found | ({} if listed or leaf == "weight" else {f"{kind}.{name}.weight": 1.0})


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
    only = [{"name": host_name(), "gpus": known["gpus"]}]  # machines of gpus=8
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
