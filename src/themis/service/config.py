"""What an arbiter is told: one YAML file, variables ``THEMIS_NAME``, options of ``themis up``; the later ones win."""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from themis.errors import InputError, UnknownName
from themis.model.units import Seconds

ENGINES = ("local", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of an arbiter.

    Attributes
    ----------
    gpus : so many virtual GPUs on one machine. ``machines`` : virtual machines as ``2x4``, or a YAML file of a cluster.
        Where both are empty, this machine's GPUs are found through NVML.
    engine : ``local``, or ``ray`` for the nodes of a Ray cluster at ``address``; ``node_root`` : where agents keep tasks
        and logs on each of them.
    policy : as ``themis simulate -p`` takes it. ``lease_s`` : the least time that GPUs stay with a job that can use them.
    tick_s : leases end at multiples of it. ``container_s`` : what a change of GPUs is believed to cost.
    port : of gRPC. ``http_port`` : of the status pages; -1 for none. 0 lets the system choose.
    host : address to listen on. Only loopback is safe: calls are not encrypted.
    retries : failures of one job beyond which its app is given up, unless it says otherwise.
    grace_s : from the stop signal to SIGKILL, where a job does not say.
    node_lease_s, node_renew_s, node_margin_s : leases of machines (``themis.executors.hosts``).
    progress_s : at most one progress record of a job in so long.
    weights : of users; 1 for those not named.
    max_message_bytes, max_jobs, max_apps, max_apps_per_user : limits of a call, of jobs in an app, of active apps.
    allow_root : let jobs run as root where the arbiter does. ``single_trust`` : jobs run as the arbiter's own user even
        where it is root and could change to their submitter's. ``validate`` : check every invariant after every step.
    """

    gpus: int = 0
    machines: str = ""
    engine: str = "local"
    address: str = "auto"
    node_root: str = ""
    policy: str = "themis"
    lease_s: Seconds = 600.0
    tick_s: Seconds = 60.0
    container_s: Seconds = 35.0
    seed: int = 0
    host: str = "127.0.0.1"
    port: int = 7433
    http_port: int = 7434
    retries: int = 2
    grace_s: Seconds = 60.0
    node_lease_s: Seconds = 30.0
    node_renew_s: Seconds = 10.0
    node_margin_s: Seconds = 5.0
    progress_s: Seconds = 30.0
    weights: Mapping[str, float] = field(default_factory=dict)
    max_message_bytes: int = 4 << 20
    max_jobs: int = 1000
    max_apps: int = 5000
    max_apps_per_user: int = 1000
    allow_root: bool = False
    single_trust: bool = False
    validate: bool = False

    def __post_init__(self) -> None:
        for name in ("max_message_bytes", "max_jobs", "max_apps", "max_apps_per_user"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 1.")
        for name in ("gpus", "retries", "grace_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}, expected 0 or more.")
        for name, least in (("port", 0), ("http_port", -1)):
            if not least <= getattr(self, name) < 65536:
                raise InputError(f"{name} is {getattr(self, name)}, expected {least} to 65535.")
        if self.engine not in ENGINES:
            raise UnknownName("engine", self.engine, ENGINES)
        if self.engine == "ray" and (self.gpus or self.machines):
            raise InputError("with the engine ray, machines are Ray's nodes; leave out gpus and machines.")
        if self.gpus and self.machines:
            raise InputError(f"gpus is {self.gpus} and machines {self.machines!r}; give one of them.")
        for user, weight in self.weights.items():
            if not 0 < weight < float("inf"):
                raise InputError(f"weights: user {user!r} has weight {weight}, expected a number above 0.")


def load(file: Path | None, given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Config:
    """Read the configuration.

    Parameters
    ----------
    file : a YAML mapping, or None. ``given`` : options of the command line; None stands for "not given".

    Raises
    ------
    UnknownName : a name that there is not. InputError : a value of the wrong kind or out of range.
    """
    kinds = typing.get_type_hints(Config)
    values: dict[str, Any] = {}
    for name, value in (_read(file) if file else {}).items():
        if name not in kinds:
            raise UnknownName(f"setting in {file}:", str(name), kinds)
        values[name] = _as(kinds[name], f"{file}: {name}", value)
    for f in fields(Config):
        text = environ.get(f"THEMIS_{f.name.upper()}")
        if text is not None and kinds[f.name] in (int, float, str, bool):
            values[f.name] = _as(kinds[f.name], f"THEMIS_{f.name.upper()}", yaml.safe_load(text) if text else text)
    for name, value in given.items():
        if value is not None:
            if name not in kinds:
                raise UnknownName("setting", name, kinds)
            values[name] = _as(kinds[name], name, yaml.safe_load(value) if isinstance(value, str) and value else value)
    return Config(**values)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(found, dict):
        raise InputError(f"{file} holds a {type(found).__name__}, expected settings as NAME: VALUE.")
    return found


def _as(kind: Any, where: str, value: Any) -> Any:
    """A value of a setting's kind; whole numbers serve as others."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if typing.get_origin(kind) is not None:
        if isinstance(value, dict) and all(
            isinstance(k, str) and isinstance(v, int | float) and not isinstance(v, bool) for k, v in value.items()
        ):
            return types.MappingProxyType({k: float(v) for k, v in value.items()})
        raise InputError(f"{where} is {value!r}, expected names with numbers, such as alice: 2.")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]
        raise InputError(f"{where} is {value!r}, expected {wanted}.")
    return value
