"""The service's settings as people write them: a YAML file, then variables ``THEMIS_KEY``, then options; later ones override."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, create_model

from themis.data_dir import default_home
from themis.errors import InputError, ThemisError, UnknownName
from themis.faults import did_you_mean, ended, is_not, keys_of, named, reads, unknown
from themis.jobs import check as check_jobs
from themis.jobs import warnings_of
from themis.jobs.file_errors import Fault, Findings, Written, raise_first
from themis.jobs.written import JobText
from themis.limits import read_text, shown
from themis.model.cluster import Cluster
from themis.service.engine.config import SETTINGS, Config, conflicts
from themis.setting import Kind, Setting, settings_of
from themis.sizes import Unreadable
from themis.traces.profiles.cluster_file import ClusterFile, MachineGroup, build_cluster
from themis.traces.profiles.library import every_model
from themis.traces.profiles.presets import load_cluster
from themis.yaml_text import BadYaml, Document, documents

# ---- the model of the file -----------------------------------------------------------------------------------------------


@cache
def written(cls: Any) -> type[Written]:
    """The model of a mapping with the settings of a dataclass, which it reads."""
    fields: dict[str, Any] = {}
    for key, found in settings_of(cls).items():
        kind = _annotation(found.kind)
        given: Any = Field() if found.default is MISSING else Field(default_factory=found.fresh)
        fields[key] = (kind | None if found.nullable else kind, given)
    return create_model(cls.__name__, __base__=Written, **fields)


def _annotation(kind: Kind) -> Any:
    if kind.shape == "list" and kind.of:
        of: Any = list
        return Annotated[of[_annotation(kind.of)], AfterValidator(tuple)]
    if kind.shape == "map" and kind.of and kind.key:
        inner: Any = dict
        return inner[_annotation(kind.key), _annotation(kind.of)]
    if kind.shape == "entry" and kind.entry:
        cls = kind.entry
        return Annotated[written(cls), AfterValidator(lambda model: cls(**_fields(cls, model)))]
    return Annotated[Any, reads(kind.read)]


def _fields(cls: Any, model: Any) -> dict[str, Any]:
    """The values of the model, by field of the dataclass; null stands for the default."""
    return {
        found.field: found.default if (value := getattr(model, key)) is None else value
        for key, found in settings_of(cls).items()
    }


# ---- reading -------------------------------------------------------------------------------------------------------------


def load(path: Path | None, flags: Mapping[str, Any] | None = None, env: Mapping[str, str] = os.environ) -> Config:
    """Read the settings.

    Parameters
    ----------
    path : the file, or None for defaults. ``flags`` : options by key; None stands for "not given".
    env : the environment; of it ``THEMIS_POLICY``, ``THEMIS_LEASE`` and so on count.

    Raises
    ------
    UnknownName : a flag that is no key. InputError : the first fault; says how many more there are.
    """
    document = Document(data={})
    source = str(path) if path else "settings"
    faults: list[Fault] = []
    if path:
        document, faults = _document(read_text(path), source)
    findings = Findings(source, document, faults)
    _checked(findings, path)
    overrides: dict[str, Any] = {}
    given = {key: (f"variable THEMIS_{key.upper()}", env.get(f"THEMIS_{key.upper()}") or None) for key in keys()}
    given |= {
        key: (f"option {key}", value) for key, value in (flags or {}).items() if key in given and value is not None
    }
    for key in flags or {}:
        if key in SETTINGS and key not in given:
            raise InputError(f"setting {key!r} has nested keys; set it in the settings file instead.")
        if key not in given:
            raise InputError(unknown(key, keys(), what="setting"))
    for key, (where, value) in given.items():
        if value is not None:
            overrides[key] = from_text(value)
            try:
                _read(SETTINGS[key], overrides[key])
            except InputError as error:
                findings.faults.append(Fault(where, 0, str(error)))
    raise_first(findings.faults)
    # One place says which GPUs: an option of the one kind takes the place of a file's of the other.
    data = {**document.data, **overrides}
    for one, other in (("gpus", "machines"), ("machines", "gpus")):
        if one in overrides:
            data.pop("gpu_names", None)
            if other not in overrides:
                data.pop(other, None)
    together = Findings(source, Document(data=data, lines=document.lines))
    values = _checked(together, path)
    raise_first(together.faults)
    return Config(**values)


def keys() -> tuple[str, ...]:
    """Keys that variables and options may set; the others only a file can."""
    return tuple(key for key, found in SETTINGS.items() if found.kind.shape == "value")


def from_text(given: Any) -> Any:
    """A value of a variable, an option or ``themis set``, as YAML reads it."""
    if not isinstance(given, str):
        return given
    document, bad = _document(given, "")
    return given if bad or document.data == {} or isinstance(document.data, (dict, list)) else document.data


def read_one(found: Setting, given: Any, where: str) -> Any:
    """One value, with ``where`` it came from.

    Raises
    ------
    InputError : it is not as expected.
    """
    try:
        return _read(found, from_text(given))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _read(found: Setting, value: Any) -> Any:
    try:
        if value is None and found.nullable:
            return found.default
        if found.key == "machines":
            return clusters_of(value)
        read = found.kind.read(value)
    except Unreadable as error:
        raise InputError(ended(f"{found.key} {is_not(value, str(error))}")) from None
    if found is SETTINGS["policy"] and (wrong := _policy_fault(read)):
        raise InputError(wrong)
    return read


def _policy_fault(given: str) -> str:
    """A sentence if no policy has this name, or if it names a file from a folder that no later start knows."""
    from themis.policies.api import policy_names

    (name, _, rest), known = given.partition(":"), policy_names()
    if name not in known:
        return str(UnknownName("policy", name, known))
    for part in rest.split(","):
        key, _, value = map(str.strip, part.partition("="))
        if key == "file" and value and not Path(value).is_absolute():
            return (
                f"policy {name}: file is {shown(value)}, expected an absolute path, such as file=$PWD/plan.yaml: each start of "
                "the service reads it."
            )
    return ""


def check(paths: Iterable[Path], *, folder: Path | None = None) -> list[str]:
    """All faults of these files, of jobs or of settings: a sentence each, by file and line."""
    out: list[str] = []
    book = every_model(default_home() / "profiles")
    for path in paths:
        try:
            text = read_text(path)
        except InputError as error:
            out.append(str(error))
            continue
        out += (
            map(str, settings_faults(text, path)) if is_settings(text) else check_jobs([path], folder=folder, book=book)
        )
    return out


def doubts_of(paths: Iterable[Path], gpu_types: Collection[str], here: bool) -> list[str]:
    """Warnings for those of these files that describe jobs, see ``jobs.warnings_of``."""
    return warnings_of(paths, book=every_model(default_home() / "profiles"), gpu_types=gpu_types, here=here)


def settings_faults(text: str, path: Path) -> list[Fault]:
    """All faults of a settings file."""
    document, faults = _document(text, str(path))
    findings = Findings(str(path), document, faults)
    _checked(findings, path)
    return sorted(findings.faults, key=lambda fault: fault.line)


def is_settings(text: str) -> bool:
    """True if a file is rather settings than jobs: it has keys of settings, no command, and no key that is close to one of jobs."""
    try:
        data = next(documents(text), Document()).data
    except BadYaml:
        return False
    if not isinstance(data, dict) or SETTINGS.keys().isdisjoint(data):
        return False
    names = set(keys_of(JobText)) - SETTINGS.keys()
    strange = [str(key) for key in data if key not in SETTINGS]
    return not any(key in names or named(did_you_mean(key, names | SETTINGS.keys())) in names for key in strange)


def _document(text: str, source: str) -> tuple[Document, list[Fault]]:
    try:
        found = list(documents(text))
    except BadYaml as error:
        return Document(data={}), [Fault(source, error.line, f"{error.problem}.")]
    if len(found) > 1:
        return found[0], [Fault(source, found[1].line(()), "a second document begins here, expected one.")]
    return (found[0] if found else Document(data={})), []


def clusters_of(given: Any) -> Cluster:
    """Machines that a value of ``machines`` describes.

    Raises
    ------
    InputError : it stands for none.
    """
    findings = Findings("setting machines", Document(data={"machines": given}))
    cluster = _machines(given, findings, None)
    raise_first(findings.faults)
    if cluster is None:
        raise InputError("machines is empty, expected at least one machine, such as 2x4.")
    return cluster


def _checked(findings: Findings, path: Path | None) -> dict[str, Any]:
    """The values of a file, by field of ``Config``; adds its faults."""
    data = findings.document.data
    read: Any = findings.valid(written(Config), data)
    cluster = _machines(data.get("machines") if isinstance(data, dict) else None, findings, path)
    if read is None:
        return {}
    values = _fields(Config, read) | {"cluster": cluster}
    config: Any = SimpleNamespace(**values | {"cluster": values["cluster"] or read.machines})
    if wrong := _policy_fault(config.policy):
        findings.add(("policy",), wrong)
    for user, given in config.users.items():
        if given.group is not None and given.group not in config.groups:
            unknown = UnknownName("group", given.group, config.groups)
            findings.add(("users", user, "group"), f"key 'group' in users.{user}: {unknown} Add it to groups.")
    if config.oidc is not None and find_spec("joserfc") is None:
        findings.add(("oidc",), "key 'oidc' needs joserfc: pip install 'themis-scheduler[oidc]'.")
    for key, problem in conflicts(config):
        findings.add((key,), problem)
    return values


def _machines(given: Any, findings: Findings, path: Path | None) -> Cluster | None:
    at = ("machines",)
    try:
        match given:
            case None:
                return None
            case str():
                beside = path.parent / given if path and given else None
                return load_cluster(str(beside) if beside and beside.is_file() else given)
            case list() if given:
                groups = [findings.valid(MachineGroup, entry, (*at, i)) for i, entry in enumerate(given)]
                whole = [group for group in groups if group is not None]
                if len(whole) < len(groups):
                    return None
                spec = ClusterFile(machines=whole, name=path.stem if path else "cluster")
                return build_cluster(spec, path or Path("settings"))
        findings.expected(
            at, given, "a preset such as sim-256, a shorthand such as 8x4, a cluster file, or a list of machines"
        )
    except (ThemisError, OSError) as error:
        findings.add(at, f"key 'machines': {str(error).removeprefix(f'{path}: ')}")
    return None
