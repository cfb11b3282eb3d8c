"""``themis doctor``: what a service needs, each checked by using it."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from themis.client.certificates import SOON_S, certificates
from themis.client.client import Client
from themis.client.home import read_endpoint, read_token
from themis.client.trust import is_local
from themis.errors import ThemisError, counted
from themis.machines.agent.gpus import nvml_gpus
from themis.machines.agent.means import find
from themis.machines.agent.node_agent import trust
from themis.schema import messages as schema
from themis.service.engine.config import ELSEWHERE, Config
from themis.service.engine.disk_usage import usage_of
from themis.service.engine.integrity import check_there, verify
from themis.service.engine.journal import SCHEMA
from themis.service.operations.rights import SHARED, WARNINGS
from themis.service.operations.service_settings import load
from themis.trust.authority.contexts import day

LEAST_FREE = 1 << 30
CLUSTER = Path("/tmp/ray/ray_current_cluster")
"""File in which Ray keeps the address of the cluster that it started on this machine."""
Check = dict[str, str]


@dataclass(frozen=True, slots=True)
class Running:
    """The service that answers: it may belong to another user, or run with options that differ from the settings."""

    info: schema.InfoReply
    nodes: list[schema.Node]


def examine(home: Path) -> list[Check]:
    """All checks with their state (``ok``, ``note`` or ``wrong``) and finding."""
    there = _running(home)
    checks: dict[str, Callable[[Path], tuple[str, str]]] = {
        "system": _system,
        "data directory": _home,
        "disk": _disk,
        "token": _token,
        "settings": _settings,
        "journal": _journal,
        "GPUs": lambda home: _gpus(home, there),
        "Ray": lambda home: _ray(home, there),
        "rights": lambda home: _rights(home, there),
        "containment": lambda home: _containment(home, there),
        "arbiter": lambda home: _arbiter(home, there),
        "certificate": _certificate,
        "nodes": lambda home: _nodes(there),
    }
    out = []
    for name, check in checks.items():
        try:
            state, finding = check(home)
        except (ThemisError, OSError) as error:
            state, finding = "wrong", str(error)
        out.append({"check": name, "state": state, "finding": finding})
    return out


def _running(home: Path) -> Running | ThemisError:
    """The service of this data directory, or why it does not answer."""
    try:
        with Client(home, timeout_s=3.0) as client:
            return Running(client.info(), client.nodes())
    except ThemisError as error:
        return error


def _system(home: Path) -> tuple[str, str]:
    if sys.platform != "linux":
        return "wrong", f"{sys.platform}; the service needs Linux, simulations run anywhere"
    return "ok", f"Linux, Python {sys.version.split()[0]}"


def _home(home: Path) -> tuple[str, str]:
    if not home.exists():
        return "note", f"{home} does not exist yet; `themis up` makes it"
    mode = home.stat().st_mode & 0o777
    if mode & 0o066:
        return "wrong", f"{home} has mode {mode:o}, other users can read or write it; chmod 700 {home}"
    return ("ok", str(home)) if os.access(home, os.W_OK) else ("wrong", f"{home} cannot be written")


def _disk(home: Path) -> tuple[str, str]:
    there = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(there).free
    most = ""
    with suppress(OSError, sqlite3.Error):
        most = usage_of(home).most() if (home / "journal.db").exists() else ""
    return (
        "ok" if free >= LEAST_FREE else "wrong",
        f"{free / 2**30:.1f} GiB free; for journal, logs and checkpoints{f', of which {most}' if most else ''}",
    )


def _token(home: Path) -> tuple[str, str]:
    if not (home / "token").exists():
        return "note", "none yet; `themis up` makes it"
    read_token(home)
    return "ok", "readable by its owner alone"


def _load(home: Path) -> Config:
    """The settings that ``themis up`` uses without options."""
    own = home / "config.yaml"
    return load(own if own.exists() else None)


def _settings(home: Path) -> tuple[str, str]:
    _load(home)
    own = home / "config.yaml"
    return "ok", str(own) if own.exists() else f"defaults; {own} does not exist"


def _journal(home: Path) -> tuple[str, str]:
    path = home / "journal.db"
    if check_there(path) and not path.exists():
        return "note", "none yet; `themis up` makes it"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            db.execute("BEGIN")  # a consistent view of one moment, even while a service writes
            found = db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
            intact = db.execute("PRAGMA quick_check").fetchone()[0]
            count = db.execute("SELECT count(*) FROM records").fetchone()[0]
            if found is not None and found[0] == str(SCHEMA):
                # While the service writes, its trace of the last record may be newer than the records read here.
                verify(db, path, ends=False)
    except sqlite3.DatabaseError as error:
        return "wrong", f"{path} is not a journal of Themis ({error}); move it away, or restore a backup"
    if found is None or found[0] != str(SCHEMA):
        return "wrong", f"{path} has schema {found and found[0]}, this Themis reads {SCHEMA}"
    return (
        ("ok", f"{count} records, schema {found[0]}") if intact == "ok" else ("wrong", f"{path} is damaged: {intact}")
    )


def _gpus(home: Path, there: Running | ThemisError) -> tuple[str, str]:
    if isinstance(there, Running) and there.nodes:
        types = ", ".join(sorted({node.gpu_type for node in there.nodes}))
        return "ok", f"the service has {there.info.gpus}, of type {types}"
    config = _load(home)
    if config.engine in ELSEWHERE:
        return "ok", f"those of {ELSEWHERE[config.engine]}, according to the settings"
    if config.gpus or config.cluster:
        return "ok", "virtual GPUs, according to the settings"
    try:
        found = nvml_gpus()
    except ThemisError as error:
        return "note", str(error)
    return "ok", ", ".join(f"{kind} {uuid}" for uuid, kind in found)


def _ray(home: Path, there: Running | ThemisError) -> tuple[str, str]:
    if isinstance(there, Running) and there.info.engine == "ray":
        return "ok", "the service is connected to a cluster" if there.nodes else "the service waits for a first node"
    config = _load(home)
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        if config.engine == "ray":
            return "wrong", "not installed, and the settings say engine: ray; pip install 'themis-scheduler[ray]'"
        return "note", "not installed; only `--engine ray` needs it"
    if config.engine != "ray":
        return "ok", f"version {version}; the settings do not use it"
    address = config.address
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or (CLUSTER.read_text().strip() if CLUSTER.exists() else "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return "wrong", f"version {version}, but no cluster was found on this machine; `ray start --head` starts one"
    try:
        socket.create_connection((host, int(port)), timeout=2.0).close()
    except OSError as error:
        return "wrong", f"version {version}, but the cluster at {address} does not answer ({error.strerror or error})"
    return "ok", f"version {version}, a cluster answers at {address}"


def _rights(home: Path, there: Running | ThemisError) -> tuple[str, str]:
    if isinstance(there, Running) and there.nodes:
        for word, warning in WARNINGS.items():
            if names := [node.name for node in there.nodes if node.trust == word]:
                return "note", f"on {_names(names)} {warning}"
        return "ok", "each job runs as its submitter's system user"
    config = _load(home)
    if config.single_trust and os.geteuid() == 0:
        if not config.allow_root:
            return (
                "wrong",
                "single_trust runs jobs as the service's own user, root, which needs allow_root",
            )
        return "note", f"single_trust: all jobs run as root, {SHARED}"
    warning = WARNINGS.get(trust(config.allow_root), "")
    if warning:
        return "note", warning
    return "ok", "each job runs as its submitter's system user; root's own need --allow-root"


HOLDS = {
    "cgroup": "jobs are contained by cgroups: everything that a job started ends with it",
    "namespace": "jobs are contained by PID namespaces: everything that a job started ends with it",
    "none": "jobs are not contained: a process that a job detached can outlive it if the job's supervisor is killed",
}
"""Sentence on each containment mechanism (``machines.agent.cells``)."""


UNLIMITED = {
    "processes": "the number of a job's processes is not limited",
    "devices": "a job can open other jobs' GPUs",
}
"""Sentence on the effect of each missing limit of a machine."""


def _containment(home: Path, there: Running | ThemisError) -> tuple[str, str]:
    if isinstance(there, Running) and (nodes := [node for node in there.nodes if node.containment]):
        kinds = sorted({node.containment for node in nodes})
        limits = set[str].intersection(*(set(node.limits) for node in nodes))
        where = {kind: _names([node.name for node in nodes if node.containment == kind]) for kind in kinds}
        facts = [f"on {where[kind]} {HOLDS[kind]}" if len(kinds) > 1 else HOLDS[kind] for kind in kinds]
        weak, why_not = "none" in kinds, ""
    else:
        config = _load(home)
        if config.engine in ELSEWHERE:
            return "note", "shown while `themis up` runs"
        found = find(config.containment)
        limits, facts, weak, why_not = (
            set(found.limits),
            [HOLDS[found.containment]],
            found.containment == "none",
            found.why_not,
        )
    what = " and ".join(name for name in ("memory", "cpus") if name in limits)
    for name, finding in UNLIMITED.items():
        facts += [finding] if name not in limits else []
    facts.append(
        f"{what} of jobs are limited as asked for" if what else "memory and cpus of jobs are counted, not limited"
    )
    return "note" if weak or not what else "ok", "; ".join((*facts, *filter(None, (why_not,))))


def _arbiter(home: Path, there: Running | ThemisError) -> tuple[str, str]:
    try:
        at = read_endpoint(home)
    except ThemisError:
        return "note", "not started; run `themis up`"
    if isinstance(there, ThemisError):
        raise there
    info = there.info
    if info.unready:
        return "wrong", info.unready
    if info.problem:
        return "wrong", f"its policy {info.policy} could not decide {info.problem}"
    return (
        "ok",
        f"version {info.version} answers on {at.address}: {counted(info.gpus, 'GPU')}, {counted(info.active_apps, 'app')}",
    )


def _certificate(home: Path) -> tuple[str, str]:
    """True if calls are encrypted, and how long the service's certificates are valid."""
    try:
        at = read_endpoint(home)
    except ThemisError:
        return "note", "shown while `themis up` runs"
    if not at.cacert:
        local = is_local(at.address)
        return "ok" if local else "note", "calls are not encrypted" + (", and stay on this machine" if local else "")
    try:
        found = certificates(home)
    except OSError:
        return "note", "shown while `themis up` runs"
    ends = [f"{one.of} until {day(one.expires)}" for one in found]
    soon = any(one.left_s < SOON_S for one in found)
    return "note" if soon else "ok", f"calls are encrypted; {', '.join(ends)}"


def _nodes(there: Running | ThemisError) -> tuple[str, str]:
    if isinstance(there, ThemisError):
        return "note", "shown while `themis up` runs"
    nodes = there.nodes
    found = [f"{_names(lost)} lost"] if (lost := [node.name for node in nodes if node.state == "lost"]) else []
    if nice := {node.name: node.niceness for node in nodes if node.niceness > 0}:
        advice = (
            "where Ray starts them, say `RAY_worker_niceness=0 ray start ...` there"
            if there.info.engine == "ray"
            else "start the service without nice to change that"
        )
        found.append(
            f"jobs on {_names([*nice])} have a niceness of {max(nice.values())}, so other programs there get the CPU first; "
            f"{advice}"
        )
    return ("note", "; ".join(found)) if found else ("ok", f"{counted(len(nodes), 'machine')}, none of them lost")


def _names(names: list[str]) -> str:
    """At most three of the names."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
