"""The service's settings: a YAML file, then variables ``THEMIS_KEY``, then options of the command line; later ones win."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from themis.errors import InputError, ThemisError, UnknownName
from themis.jobs import readers
from themis.jobs.build import PRIOR_S
from themis.jobs.faults import Fault, Findings, Written, keys_of, raise_first, reads
from themis.jobs.read import read_text
from themis.jobs.written import Duration, Name
from themis.jobs.yaml_text import BadYaml, Document, documents
from themis.model.cluster import Cluster
from themis.model.settings import Settings
from themis.model.units import Seconds
from themis.model.workload import Group, User
from themis.profiles.cluster_file import ClusterFile, MachineGroup, build_cluster
from themis.profiles.presets import load_cluster

VARIABLES = ("policy", "machines", "lease", "tick", "container", "checkpoint_every", "unknown_work", "seed")
"""Keys that variables and options may set."""

Weight = Annotated[float, Field(gt=0, le=1e9)]
Quota = Annotated[int, Field(ge=0, le=10**9)] | None


class GroupText(Written):
    """One of ``groups``."""

    weight: Weight = Field(default=1.0, description="multiplies into its users' apps' (1)")
    gpus: Quota = Field(default=None, description="most GPUs of all its users together (no limit)")


class UserText(GroupText):
    """One of ``users``."""

    weight: Weight = Field(default=1.0, description="multiplies into the user's apps' (1)")
    gpus: Quota = Field(default=None, description="most GPUs of the user at once (no limit)")
    group: Name | None = Field(default=None, description="the group that the user belongs to (none)")


class OthersText(Written):
    """``others``."""

    weight: Weight = Field(default=1.0, description="of each user who is not listed (1)")
    gpus: Quota = Field(default=None, description="most GPUs of each of them at once (no limit)")


class ServiceText(Written):
    """The whole file."""

    policy: Annotated[str, reads(readers.text)] = Field(
        default="themis", description="who gets GPUs, as `themis simulate --policy` takes it (themis)"
    )
    machines: Any = Field(
        default=None,
        description="a preset, `8x4` or a file, as `themis simulate --cluster` takes it, or a list of machines",
    )
    lease: Duration = Field(default=600.0, description="length of a lease (10m)")
    tick: Duration = Field(default=60.0, description="leases end at multiples of it (60s)")
    container: Annotated[float, reads(readers.zero_or_more)] = Field(
        default=35.0, description="what a change of GPUs is believed to cost (35s)"
    )
    checkpoint_every: Duration = Field(default=600.0, description="how often jobs are believed to save (10m)")
    unknown_work: Duration = Field(
        default=PRIOR_S, description="training on its fewest GPUs of a job of which nothing is known (3h45m)"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="of policies that draw lots (0)")
    groups: dict[Name, GroupText] = Field(default={}, description="groups of users by name, see below (none)")
    users: dict[Name, UserText] = Field(default={}, description="users by name, see below (none)")
    others: OthersText = Field(default=OthersText(), description="users who are not listed, see below")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of the service, checked.

    Attributes
    ----------
    cluster : None where the file names no machines.
    prior_s : for ``themis.jobs.build``.
    user_gpus, group_gpus : quotas of those who have one. ``others_gpus`` : of each user who is not listed, or None.
    """

    policy: str
    settings: Settings
    prior_s: Seconds
    cluster: Cluster | None
    users: tuple[User, ...]
    groups: tuple[Group, ...]
    user_gpus: Mapping[str, int]
    group_gpus: Mapping[str, int]
    others_weight: float
    others_gpus: int | None

    def weight(self, user: str) -> float:
        """What multiplies into the weight of the user's apps: the user's weight times the group's."""
        known = self._user(user)
        group = next((g for g in self.groups if known and g.name == known.group), None)
        return (known.weight if known else self.others_weight) * (group.weight if group else 1.0)

    def room(self, user: str, held: Mapping[str, int]) -> int | None:
        """GPUs that the user may take beside those held now; None if there is no quota, never below 0.

        Parameters
        ----------
        held : GPUs in use by user.
        """
        known = self._user(user)
        own = self.user_gpus.get(user) if known else self.others_gpus
        rooms = [] if own is None else [own - held.get(user, 0)]
        if known and known.group in self.group_gpus:
            members = [u.name for u in self.users if u.group == known.group]
            rooms.append(self.group_gpus[known.group] - sum(held.get(name, 0) for name in members))
        return max(min(rooms), 0) if rooms else None

    def _user(self, name: str) -> User | None:
        return next((u for u in self.users if u.name == name), None)


def load_service_settings(
    path: Path | None, env: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> ServiceSettings:
    """Read the settings.

    Parameters
    ----------
    path : the file, or None for defaults. ``env`` : the environment; of it ``THEMIS_POLICY``, ``THEMIS_LEASE`` and so on
        count (``VARIABLES``). ``flags`` : options by key, ``lease`` for ``--lease``; None stands for "not given".

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
    _check_file(findings, path)
    overrides: dict[str, Any] = {}
    for key in VARIABLES:
        text = (env or {}).get(f"THEMIS_{key.upper()}")
        if text:
            overrides[key] = _override(f"variable THEMIS_{key.upper()}", key, text, findings.faults)
    for key, value in (flags or {}).items():
        if key not in VARIABLES:
            raise UnknownName("setting", key, VARIABLES)
        if value is not None:
            overrides[key] = _override(f"option --{key.replace('_', '-')}", key, value, findings.faults)
    raise_first(findings.faults)
    # The file and each override are right by themselves; together only lease and tick can be wrong.
    together = Findings(source, Document(data={**document.data, **overrides}, lines=document.lines))
    _check_file(together, path)
    raise_first(together.faults)
    return _settings(together, path)


def settings_faults(text: str, path: Path) -> list[Fault]:
    """All that is wrong with a settings file."""
    document, faults = _document(text, str(path))
    findings = Findings(str(path), document, faults)
    _check_file(findings, path)
    return sorted(findings.faults, key=lambda fault: fault.line)


def is_settings(text: str) -> bool:
    """Whether a file is rather settings than jobs: it has keys of settings, and no command."""
    try:
        data = next(documents(text), Document()).data
    except BadYaml:
        return False
    return isinstance(data, dict) and "command" not in data and not set(keys_of(ServiceText)).isdisjoint(data)


def _document(text: str, source: str) -> tuple[Document, list[Fault]]:
    try:
        found = list(documents(text))
    except BadYaml as error:
        return Document(data={}), [Fault(source, error.line, f"{error.problem}.")]
    if len(found) > 1:
        return found[0], [Fault(source, found[1].line(()), "a second document begins here, expected one.")]
    return (found[0] if found else Document(data={})), []


def _override(source: str, key: str, value: Any, faults: list[Fault]) -> Any:
    """A value from outside the file, checked by itself so that a fault names where it came from."""
    given = value
    if isinstance(value, str):
        document, bad = _document(value, source)
        given = value if bad or document.data == {} or isinstance(document.data, (dict, list)) else document.data
    findings = Findings(source, Document(data={key: given}))
    _check_file(findings, None, alone=True)
    faults += findings.faults
    return given


def _check_file(findings: Findings, path: Path | None, *, alone: bool = False) -> None:
    text = findings.valid(ServiceText, findings.document.data)
    _machines(
        findings.document.data.get("machines") if isinstance(findings.document.data, dict) else None, findings, path
    )
    if text is None:
        return
    name = text.policy.partition(":")[0]
    known = {point.name for point in entry_points(group="themis.policies")}
    try:
        if name not in known:
            raise UnknownName("policy", name, known)
    except UnknownName as error:
        findings.add(("policy",), str(error))
    for user, entry in text.users.items():
        if entry.group is not None and entry.group not in text.groups:
            wrong = UnknownName("group", entry.group, text.groups)
            findings.add(("users", user, "group"), f"key 'group' in users.{user}: {wrong} Add it to groups.")
    if not alone and text.lease < text.tick:
        findings.add(("lease",), f"key 'lease' is {text.lease:g} s, shorter than tick, {text.tick:g} s; make the lease at "
                     "least one tick.")  # fmt: skip


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


def _settings(findings: Findings, path: Path | None) -> ServiceSettings:
    text = ServiceText.model_validate(findings.document.data)
    try:
        settings = Settings(
            lease_s=text.lease, tick_s=text.tick, container_s=text.container,
            checkpoint_every_s=text.checkpoint_every, seed=text.seed,
        )  # fmt: skip
    except InputError as error:
        raise InputError(f"{findings.source}: {error}") from None
    return ServiceSettings(
        policy=text.policy, settings=settings, prior_s=text.unknown_work, cluster=_machines(text.machines, findings, path),
        users=tuple(User(name=n, weight=u.weight, group=u.group or "") for n, u in text.users.items()),
        groups=tuple(Group(name=n, weight=g.weight) for n, g in text.groups.items()),
        user_gpus={n: u.gpus for n, u in text.users.items() if u.gpus is not None},
        group_gpus={n: g.gpus for n, g in text.groups.items() if g.gpus is not None},
        others_weight=text.others.weight, others_gpus=text.others.gpus,
    )  # fmt: skip
