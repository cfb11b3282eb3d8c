"""Hosts that become machines by ssh, as ``machines.yaml`` and ``themis fleet add`` name them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from themis.errors import InputError
from themis.machines.agent.joining import LABEL, LABELS, NAME
from themis.service.operations.ssh import HOST
from themis.yaml_text import BadYaml, Document, one_document

TEXTS = ("name", "python", "folder", "tasks", "address", "ssh_config")
SHARED = ("python", "folder", "address", "ssh_config")
"""Keys that are also allowed at the top of the file, for all its machines."""
MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host.

    Attributes
    ----------
    host : for ``ssh``: a name of ``~/.ssh/config``, a host name or an address, with ``USER@`` where needed.
    name : of the machine. ``gpus`` : virtual ones; 0 for those that NVML finds. ``labels`` : rack, gpu_type.
    python : interpreter there; empty for the first one that is new enough.
    folder : for the package and the token; empty for /opt/themis-agent (root) or ~/.local/share/themis-agent.
    tasks : folder of tasks and logs; empty for /var/tmp/themis-agent/NAME.
    address : at which it reaches the service; empty: found out. ``ssh_config`` : file for ``ssh -F``.
    """

    host: str
    name: str
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    python: str = ""
    folder: str = ""
    tasks: str = ""
    address: str = ""
    ssh_config: str = ""

    @property
    def rack(self) -> str:
        """The rack that it is labelled with, or none."""
        return self.labels.get("rack", "")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Host:
        """A host from its fields, as ``dataclasses.asdict`` gives them; TypeError where they are others."""
        return cls(**given)


def make_host(host: str, **more: Any) -> Host:
    """A host; its machine is named after it unless ``name`` is given.

    Raises
    ------
    InputError : a value cannot be right.
    """
    if not HOST.fullmatch(host):
        raise InputError(f"host is {host!r}, expected a name or an address, such as gpu1 or ada@10.0.0.7.")
    more["name"] = more.get("name") or host.rpartition("@")[2].replace(":", "-")
    made = Host(host=host, **more)
    if not NAME.fullmatch(made.name):
        raise InputError(f"host {host}: name is {made.name!r}, expected letters, digits, dots, _ and -, at most 60.")
    for key, value in made.labels.items():
        if key not in LABELS or not LABEL.fullmatch(value):
            raise InputError(f"host {host}: {key} is {value!r}, expected letters, digits, dots, _ and -.")
    for key in ("folder", "tasks"):
        if (path := getattr(made, key)) and not path.startswith("/"):
            raise InputError(f"host {host}: {key} is {path!r}, expected an absolute path.")
    if not 0 <= made.gpus <= MOST:
        raise InputError(f"host {host}: gpus is {made.gpus}, expected 0 to {MOST}.")
    if made.ssh_config:
        return dataclasses.replace(made, ssh_config=str(Path(made.ssh_config).expanduser().absolute()))
    return made


def read_hosts(path: Path) -> list[Host]:
    """The hosts of a file: ``machines``, a list of names or of mappings.

    Raises
    ------
    InputError : it cannot be read, or something of it is wrong; says the line.
    """
    try:
        found = one_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: it is not text in UTF-8.") from None
    except BadYaml as error:
        raise InputError(f"{path}, line {error.line}: {error.problem}.") from None
    data = found.data
    if not isinstance(data, dict) or not isinstance(data.get("machines"), list) or not data["machines"]:
        raise InputError(f"{path}: expected the key machines with a list of hosts, such as `machines: [gpu1, gpu2]`.")
    _check_keys(path, found, (), data, ("machines", *SHARED))
    shared = {key: _text(path, found, (key,), data[key]) for key in SHARED if key in data}
    hosts = [_host(path, found, number, entry, shared) for number, entry in enumerate(data["machines"])]
    names = [host.name for host in hosts]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(
                f"{path}, line {found.line(('machines', number))}: two machines are named {name!r}; give one a name."
            )
    return hosts


def _host(path: Path, found: Document, number: int, entry: Any, shared: Mapping[str, str]) -> Host:
    at: tuple[str | int, ...] = ("machines", number)
    if isinstance(entry, str):
        entry = {"host": entry}
    if not isinstance(entry, dict) or not isinstance(entry.get("host"), str):
        raise InputError(
            f"{path}, line {found.line(at)}: expected a host, such as gpu1, or a mapping with the key host."
        )
    _check_keys(path, found, at, entry, ("host", "gpus", *LABELS, *TEXTS))
    gpus = entry.get("gpus", 0)
    if not isinstance(gpus, int) or isinstance(gpus, bool):
        raise InputError(f"{path}, line {found.line((*at, 'gpus'))}: gpus is {gpus!r}, expected a whole number.")
    texts = {key: _text(path, found, (*at, key), entry[key]) for key in (*TEXTS, *LABELS) if key in entry}
    labels = {key: texts.pop(key) for key in LABELS if key in texts}
    try:
        return make_host(entry["host"], gpus=gpus, labels=labels, **{**shared, **texts})
    except InputError as error:
        raise InputError(f"{path}, line {found.line(at)}: {error}") from None


def _check_keys(
    path: Path, found: Document, at: tuple[str | int, ...], data: Mapping[Any, Any], known: tuple[str, ...]
) -> None:
    for key in data:
        if key not in known:
            raise InputError(
                f"{path}, line {found.line((*at, key))}: unknown key {key!r}; expected one of {', '.join(known)}."
            )


def _text(path: Path, found: Document, at: tuple[str | int, ...], value: Any) -> str:
    if isinstance(value, dict | list) or value is None:
        raise InputError(f"{path}, line {found.line(at)}: {at[-1]} is {value!r}, expected text.")
    return found.texts.get(at, str(value))
