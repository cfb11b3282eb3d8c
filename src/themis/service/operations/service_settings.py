"""The service's settings: a YAML file, then variables ``THEMIS_KEY``, then options; later ones override."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from themis import limits, sizes
from themis.data_dir import default_home
from themis.errors import InputError, ThemisError, UnknownName
from themis.jobs import check as check_jobs
from themis.jobs import readers, warnings_of
from themis.jobs.build import PRIOR_S
from themis.jobs.file_errors import Fault, Findings, Written, did_you_mean, keys_of, raise_first, reads
from themis.jobs.read import read_text
from themis.jobs.written import Duration, Name
from themis.machines.agent.cells import MOST_PROCESSES
from themis.model.cluster import Cluster
from themis.model.workload import Group, User
from themis.report.accounts.days import local_zone
from themis.service.engine.config import ELSEWHERE, LISTEN, Config, Notify
from themis.service.operations import accounting
from themis.service.operations.oidc_setup import OidcText
from themis.traces.profiles.cluster_file import ClusterFile, MachineGroup, build_cluster
from themis.traces.profiles.library import every_model
from themis.traces.profiles.presets import load_cluster
from themis.yaml_text import BadYaml, Document, documents

NESTED = ("gpu_names", "price", "notify", "oidc", "groups", "users", "others")
"""Keys that only a file can set."""

Weight = Annotated[float, Field(ge=limits.WEIGHT.least, le=limits.WEIGHT.most)]
Quota = Annotated[int, Field(ge=0, le=10**9)] | None


class GroupText(Written):
    """One of ``groups``."""

    weight: Weight = Field(default=1.0, description="weight of the group: 2 entitles it to twice the share (1)")
    gpus: Quota = Field(default=None, description="maximum number of GPUs of all its users together (no limit)")
    budget: accounting.BudgetText | None = Field(
        default=None,
        description="limits of GPU hours or cost of all its users together, see [accounting.md](accounting.md#budgets) (no limit)",
    )


class UserText(GroupText):
    """One of ``users``."""

    weight: Weight = Field(default=1.0, description="weight of the user: 2 entitles them to twice the share (1)")
    gpus: Quota = Field(default=None, description="maximum number of GPUs of the user (no limit)")
    budget: accounting.BudgetText | None = Field(
        default=None,
        description="limits of GPU hours or cost of the user, see [accounting.md](accounting.md#budgets) (no limit)",
    )
    group: Name | None = Field(default=None, description="group of the user (none)")


class OthersText(Written):
    """``others``."""

    weight: Weight = Field(default=1.0, description="weight of each user who is not listed (1)")
    gpus: Quota = Field(default=None, description="maximum number of GPUs of each of them (no limit)")
    budget: accounting.BudgetText | None = Field(
        default=None,
        description="limits of GPU hours or cost of each of them, see [accounting.md](accounting.md#budgets) (no limit)",
    )


LEAST_MESSAGE, MOST_MESSAGE = 64 << 10, (2 << 30) - 1
"""Bytes: enough for every call without a job, and the maximum of gRPC."""


def _message(value: object) -> int:
    """The size of a message."""
    try:
        size = sizes.memory(value)
    except sizes.Unreadable:
        size = 0
    if not LEAST_MESSAGE <= size <= MOST_MESSAGE:
        raise sizes.Unreadable("memory with its unit, from 64 KiB to just below 2 GiB, such as 4 MiB")
    return size


def _bytes_or_zero(value: object) -> int:
    """Bytes, or 0 for none."""
    try:
        return 0 if value == 0 and not isinstance(value, bool) else sizes.memory(value)
    except sizes.Unreadable:
        raise sizes.Unreadable("0, or memory with its unit, such as 64 MiB") from None


def _share_of_disk(value: object) -> float:
    """Bytes, or up to 1 a share."""
    share = PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if share is not None and 0 < float(share[1]) <= 100:
        return float(share[1]) / 100
    try:
        return float(_bytes_or_zero(value))
    except sizes.Unreadable:
        raise sizes.Unreadable("0, memory with its unit or a share of the disk, such as 200 GiB or 50%") from None


def _file(value: object) -> str:
    """A file of the service's machine."""
    path = Path(readers.text(value)).expanduser()
    if not path.is_absolute():
        raise sizes.Unreadable("an absolute path, such as /etc/ssl/themis.pem")
    return str(path)


def _host_names(value: object) -> str:
    """Host names, as a list or separated by commas or spaces; as text with commas."""
    words = value if isinstance(value, list) else str(value).replace(",", " ").split()
    if not all(isinstance(word, str) and HOST_NAME.fullmatch(word) for word in words):
        raise sizes.Unreadable("host names or IP addresses, separated by commas, such as gpu.example.org, 10.0.0.7")
    return ", ".join(words)


def _variables(value: object) -> str:
    """Names of environment variables, as a list or separated by commas or spaces; as text with spaces."""
    words = value if isinstance(value, list) else str(value).replace(",", " ").split()
    if not all(isinstance(word, str) and VARIABLE.fullmatch(word) for word in words):
        raise sizes.Unreadable(
            "names of environment variables, separated by commas, none of which begins with THEMIS_ or SLURM_, such as HTTPS_PROXY"
        )
    return " ".join(words)


VARIABLE = re.compile(r"(?!THEMIS_|SLURM_)[A-Za-z_][A-Za-z0-9_]{0,254}")
PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)\s*%")
HOST_NAME = re.compile(r"[A-Za-z0-9*_:][A-Za-z0-9._:-]{0,252}")

Wait = Annotated[float, reads(readers.zero_or_more)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Port = Annotated[int, Field(ge=0, lt=65536)]


class ServiceText(Written):
    """The whole file."""

    gpus: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=0, description="number of virtual GPUs on one machine (this machine's GPUs, found through NVML)"
    )
    machines: Any = Field(
        default=None,
        description="virtual machines: `2x4`, a preset or a file, as `themis simulate --cluster` takes it, or a list of "
        "machines (none)",
    )
    gpu_names: dict[Name, Name] = Field(
        default={},
        description="other names of GPU types, by those that `themis doctor` shows: `V100-SXM2-16GB: V100` (as found)",
    )
    engine: Literal["local", "ray", "fleet"] = Field(
        default="local",
        description="`local` for this machine, `fleet` for machines that join over the network, see [fleet.md](fleet.md), "
        "`ray` for the nodes of a Ray cluster, see [ray.md](ray.md) (local)",
    )
    address: Annotated[str, reads(readers.text)] = Field(
        default="auto", description="address of the Ray cluster, as for `ray.init` (auto)"
    )
    node_root: Annotated[str, reads(readers.folder)] | None = Field(
        default=None, description="folder for tasks and logs on Ray's nodes (chosen by the service)"
    )
    listen: Annotated[str, reads(readers.text)] = Field(
        default=LISTEN,
        description="address and port for the machines of a fleet; `0.0.0.0:7435` lets other machines join (127.0.0.1:7435)",
    )
    node_certificate: Duration = Field(
        default=30 * 86400.0,
        description="how long certificates of a fleet's machines are valid; they are renewed when a third of it is left (30 days)",
    )
    cpus: Annotated[int, Field(ge=0, le=10**6)] = Field(
        default=0, description="CPU cores of this machine for jobs (all of them)"
    )
    memory: Annotated[int, reads(sizes.memory)] = Field(
        default=0, description="memory of this machine for jobs, such as `64 GiB` (all of it)"
    )
    policy: Annotated[str, reads(readers.text)] = Field(
        default="fair_finish",
        description="scheduling policy, as for `themis simulate --policy`; `themis` is the auction (fair_finish)",
    )
    between: Literal["apps", "users", "groups"] = Field(
        default="users",
        description="level of equal shares, before weights: `users` divide their share among their apps, `groups` among their "
        "users; with `apps`, a user with more apps gets more (users)",
    )
    profiles: Annotated[str, reads(readers.text)] = Field(
        default="themis",
        description="tables of the models' speeds, as for `themis simulate --profiles` (themis)",
    )
    lease: Duration = Field(
        default=600.0, description="length of a lease, the minimum time that a job keeps its GPUs (10m)"
    )
    shortest_lease: Wait = Field(
        default=180.0,
        description="minimum length of a lease while apps wait for their first GPUs; 0, or `lease` and more: leases are not "
        "shortened (3m)",
    )
    tick: Duration = Field(default=60.0, description="leases end at multiples of this time (60s)")
    container: Wait = Field(default=35.0, description="assumed cost of changing a job's GPUs (35s)")
    gather: Wait = Field(default=0.5, description="events within this time are handled in one decision (500ms)")
    checkpoint_every: Duration = Field(default=600.0, description="assumed interval between a job's checkpoints (10m)")
    unknown_work: Duration = Field(
        default=PRIOR_S, description="assumed run time of a job without estimates, on its fewest GPUs (3h45m)"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="random seed of randomised policies (0)")
    host: Annotated[str, reads(readers.text)] = Field(
        default="127.0.0.1", description="address that the service listens on (127.0.0.1)"
    )
    port: Port = Field(default=7433, description="port of the gRPC API; 0: any free port (7433)")
    http_port: Annotated[int, Field(ge=-1, lt=65536)] = Field(
        default=7434, description="port of the HTTP API; 0: any free port, -1: none (7434)"
    )
    tls: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="encryption of the gRPC and HTTP APIs, see [tls.md](tls.md); `auto`: on every address but loopback (auto)",
    )
    tls_certificate: Annotated[str, reads(_file)] | None = Field(
        default=None,
        description="file of the service's certificate and those that lead to its authority, as PEM (the service's own authority "
        "issues one)",
    )
    tls_key: Annotated[str, reads(_file)] | None = Field(
        default=None, description="file of the key of `tls_certificate`, as PEM (the same file)"
    )
    tls_names: Annotated[str, reads(_host_names)] = Field(
        default="",
        description="further host names and addresses of the service: `gpu.example.org, 10.0.0.7` (this machine's)",
    )
    retries: Annotated[int, Field(ge=0, le=limits.RETRIES.most)] = Field(
        default=2, description="default maximum number of attempts after failures of a job (2)"
    )
    backoff: Wait = Field(
        default=10.0, description="delay after a job's first failure; doubles with each further failure (10s)"
    )
    backoff_most: Wait = Field(default=600.0, description="maximum delay after a failure (10m)")
    grace: Wait = Field(
        default=60.0, description="default grace period of a job, between the stop signal and SIGKILL (60s)"
    )
    max_grace: Wait = Field(default=3600.0, description="maximum grace period that a job may request (1h)")
    node_lease: Duration = Field(default=30.0, description="how long jobs continue without an arbiter (30s)")
    node_renew: Duration = Field(default=10.0, description="interval at which machines renew their lease (10s)")
    node_margin: Wait = Field(
        default=5.0,
        description="margin after lease and grace period, before the GPUs of an unreachable machine are reused (5s)",
    )
    progress: Wait = Field(default=30.0, description="minimum interval between two progress records of a job (30s)")
    idle_warn: Wait = Field(
        default=0.0,
        description="warn of an app whose job's GPUs did nothing for this time, see [accounting.md](accounting.md#idle-gpus); 0: "
        "never (0)",
    )
    idle_cancel: Wait = Field(
        default=0.0, description="cancel an app whose job's GPUs did nothing for this time; 0: never (0)"
    )
    solve: Duration = Field(
        default=10.0,
        description="approximate time limit of a decision; the search then returns the best solution found (10s)",
    )
    journal_keep: Duration = Field(default=30 * 86400.0, description="retention of the journal's records (30d)")
    audit_keep: Duration = Field(
        default=90 * 86400.0, description="retention of the audit log's entries, see [sign-in.md](sign-in.md) (90d)"
    )
    journal_reserve: Annotated[int, reads(_bytes_or_zero)] = Field(
        default=64 << 20,
        description="room that the journal keeps for itself, so that cancel, hold and drain work on a full disk; at most a quarter "
        "of what is free, 0: none (64 MiB)",
    )
    logs_keep: Duration = Field(default=30 * 86400.0, description="retention of job output after the app ended (30d)")
    checkpoints_keep: Duration | None = Field(
        default=None,
        description="retention of checkpoints in the data directory after the app completed; those of other apps are kept (no "
        "limit)",
    )
    price: dict[Annotated[str, reads(readers.text)], accounting.Price] = Field(
        default={},
        description="price of a GPU hour by GPU type, `'*'` for all others: `{H200: 3.5, '*': 1}`, see "
        "[accounting.md](accounting.md#prices) (none)",
    )
    currency: Annotated[str, reads(accounting.currency)] = Field(
        default="", description="currency of prices, such as EUR (none)"
    )
    time_zone: Annotated[str, reads(accounting.zone)] | None = Field(
        default=None, description="time zone of the days of accounts and budgets (the machine's)"
    )
    notify: accounting.NotifyText | None = Field(
        default=None,
        description="addresses and events of notifications, see [accounting.md](accounting.md#notifications) (none)",
    )
    oidc: OidcText | None = Field(
        default=None,
        description="OpenID Connect provider that people sign in with, see [sign-in.md](sign-in.md) (none)",
    )
    agent_wait: Duration = Field(default=2.0, description="timeout for answers of apps' own agents (2s)")
    agent_misses: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="consecutive answers that an agent may miss before the service bids for its app (3)"
    )
    max_agents: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=256, description="maximum number of connected agents (256)"
    )
    containment: Literal["auto", "cgroup", "namespace", "none"] = Field(
        default="auto",
        description="containment of a job's processes, see [containment.md](containment.md); `auto`: the strongest that each "
        "machine supports (auto)",
    )
    max_processes: Annotated[int, Field(ge=16, le=MOST_PROCESSES)] = Field(
        default=4096,
        description="maximum number of processes and threads of a job, for each of its GPUs on a machine (4096)",
    )
    pass_variables: Annotated[str, reads(_variables)] = Field(
        default="",
        description="environment variables that jobs inherit from the service or the machine's agent, besides [those that every "
        "job gets](training.md#what-a-job-finds-in-its-environment): `LD_LIBRARY_PATH, HTTPS_PROXY` (none)",
    )
    max_message: Annotated[int, reads(_message)] = Field(
        default=4 << 20, description="maximum size of a client's message (4 MiB)"
    )
    max_jobs: Annotated[int, Field(ge=1, le=limits.JOBS.most)] = Field(
        default=1000, description="maximum number of jobs of an app (1000)"
    )
    max_apps: Count = Field(default=5000, description="maximum number of waiting and running apps (5000)")
    max_apps_per_user: Count = Field(
        default=1000, description="maximum number of waiting and running apps of one user (1000)"
    )
    max_submissions: Count = Field(
        default=3600, description="maximum number of submissions of one user in an hour (3600)"
    )
    max_bundle: Annotated[int, reads(sizes.memory)] = Field(
        default=512 << 20, description="maximum size of the files that a job is sent with (512 MiB)"
    )
    bundles_quota: Annotated[int, reads(sizes.memory)] = Field(
        default=20 << 30, description="maximum size of all such files in the data directory (20 GiB)"
    )
    bundles_keep: Duration = Field(
        default=30 * 86400.0, description="retention of such files after their last use (30d)"
    )
    copy_checkpoints: bool = Field(
        default=True,
        description="copy checkpoints of a fleet's jobs that name no `checkpoint_dir` through the service (true)",
    )
    max_copy: Annotated[int, reads(sizes.memory)] = Field(
        default=10 << 30,
        description="maximum size of the checkpoints and outputs of a job that the service keeps (10 GiB)",
    )
    copies_quota: Annotated[int, reads(sizes.memory)] = Field(
        default=100 << 30, description="maximum size of all such copies in the data directory (100 GiB)"
    )
    copies_keep: Duration = Field(
        default=30 * 86400.0, description="retention of such copies after the end of their app and their last use (30d)"
    )
    node_cache: Annotated[int, reads(sizes.memory)] = Field(
        default=50 << 30,
        description="maximum size of such files and environments on each machine, besides those in use (50 GiB)",
    )
    user_disk: Annotated[float, reads(_share_of_disk)] = Field(
        default=0.8,
        description="maximum size of the checkpoints, files and logs of a user on one disk, in bytes or as a share of the disk: "
        "`200 GiB`, `50%`; 0: no limit (80%)",
    )
    disk_reserve: Annotated[int, reads(_bytes_or_zero)] = Field(
        default=1 << 30,
        description="free space of each disk below which the job that writes most there is stopped; at most a twentieth of the "
        "disk, 0: none (1 GiB)",
    )
    setup: Duration = Field(
        default=900.0, description="time limit for bringing a job's files and environment to its machines (15m)"
    )
    allow_root: bool = Field(default=False, description="allow jobs to run as root if the service does (false)")
    single_trust: bool = Field(
        default=False,
        description="run all jobs as the service's own user; if that is root, `allow_root` is required too (false)",
    )
    check_state: bool = Field(default=False, description="check all invariants after each step, for tests (false)")
    groups: dict[Name, GroupText] = Field(default={}, description="groups of users, by name, see below (none)")
    users: dict[Name, UserText] = Field(default={}, description="users, by name, see below (none)")
    others: OthersText = Field(default=OthersText(), description="users who are not listed, see below")


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
    _check_file(findings, path)
    overrides: dict[str, Any] = {}
    for key in keys():
        if text := env.get(f"THEMIS_{key.upper()}"):
            overrides[key] = override(f"variable THEMIS_{key.upper()}", key, text, findings.faults)
    for key, value in (flags or {}).items():
        if key in NESTED:
            raise InputError(f"setting {key!r} has nested keys; set it in the settings file instead.")
        if key not in keys():
            hint = did_you_mean(key, keys())
            raise InputError(f"unknown setting {key!r}.{hint} Known: {', '.join(sorted(keys()))}.")
        if value is not None:
            overrides[key] = override(f"option {key}", key, value, findings.faults)
    raise_first(findings.faults)
    # One place says which GPUs: an option of the one kind takes the place of a file's of the other.
    data = {**document.data, **overrides}
    for one, other in (("gpus", "machines"), ("machines", "gpus")):
        if one in overrides:
            data.pop("gpu_names", None)
            if other not in overrides:
                data.pop(other, None)
    together = Findings(source, Document(data=data, lines=document.lines))
    _check_file(together, path)
    raise_first(together.faults)
    return _config(together, path)


def keys() -> tuple[str, ...]:
    """Keys that variables and options may set."""
    return tuple(key for key in keys_of(ServiceText) if key not in NESTED)


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
    _check_file(findings, path)
    return sorted(findings.faults, key=lambda fault: fault.line)


def is_settings(text: str) -> bool:
    """True if a file is rather settings than jobs: it has keys of settings, and no command."""
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


def override(source: str, key: str, value: Any, faults: list[Fault], model: type[Written] = ServiceText) -> Any:
    """A value from outside the file, checked by itself so that a fault names where it came from."""
    given = value
    if isinstance(value, str):
        document, bad = _document(value, source)
        given = value if bad or document.data == {} or isinstance(document.data, (dict, list)) else document.data
    findings = Findings(source, Document(data={key: given}))
    if model is ServiceText:
        _check_file(findings, None, alone=True)
    else:
        findings.valid(model, findings.document.data)
    faults += findings.faults
    return given


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


def _check_file(findings: Findings, path: Path | None, *, alone: bool = False) -> None:
    text = findings.valid(ServiceText, findings.document.data)
    _machines(
        findings.document.data.get("machines") if isinstance(findings.document.data, dict) else None, findings, path
    )
    if text is None:
        return
    from themis.policies.api import policy_names

    name = text.policy.partition(":")[0]
    known = policy_names()
    try:
        if name not in known:
            raise UnknownName("policy", name, known)
    except UnknownName as error:
        findings.add(("policy",), str(error))
    for user, entry in text.users.items():
        if entry.group is not None and entry.group not in text.groups:
            wrong = UnknownName("group", entry.group, text.groups)
            findings.add(("users", user, "group"), f"key 'group' in users.{user}: {wrong} Add it to groups.")
    if alone:
        return
    if text.lease < text.tick:
        findings.add(
            ("lease",),
            f"key 'lease' is {text.lease:g} s, below the tick of {text.tick:g} s; make the lease at "
            "least one tick, or the tick shorter (--set tick=5s).",
        )
    if 0 < text.idle_cancel < text.idle_warn:
        findings.add(
            ("idle_cancel",),
            f"key 'idle_cancel' is {text.idle_cancel:g} s, below idle_warn, {text.idle_warn:g} s; a warning comes first.",
        )
    if text.node_renew >= text.node_lease:
        findings.add(
            ("node_renew",),
            f"key 'node_renew' is {text.node_renew:g} s, expected less than node_lease, {text.node_lease:g} s; a third of it "
            "is usual.",
        )
    if text.tls_key is not None and text.tls_certificate is None:
        findings.add(("tls_key",), "key 'tls_key' needs a tls_certificate; give both.")
    if text.gpus and text.machines is not None:
        findings.add(("gpus",), "keys 'gpus' and 'machines' exclude each other; remove one.")
    if text.gpu_names and (text.gpus or text.machines is not None or text.engine != "local"):
        findings.add(
            ("gpu_names",),
            "key 'gpu_names' is for this machine's own GPUs; remove it for virtual machines, a fleet and Ray's nodes.",
        )
    if text.engine in ELSEWHERE and (text.gpus or text.machines is not None):
        findings.add(
            ("engine",),
            f"key 'engine' is {text.engine}, so the machines are {ELSEWHERE[text.engine]}; remove gpus and machines.",
        )
    if text.oidc is not None and find_spec("joserfc") is None:
        findings.add(("oidc",), "key 'oidc' needs joserfc: pip install 'themis-scheduler[oidc]'.")
    host, _, port = text.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        findings.expected(("listen",), text.listen, "HOST:PORT, such as 0.0.0.0:7435")
    if text.node_root is not None and not Path(text.node_root).is_absolute():
        findings.expected(("node_root",), text.node_root, "an absolute path, which is the same on every node")


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


def _config(findings: Findings, path: Path | None) -> Config:
    text = ServiceText.model_validate(findings.document.data)
    return Config(
        gpus=text.gpus,
        cluster=_machines(text.machines, findings, path),
        engine=text.engine,
        address=text.address,
        node_root=text.node_root or "",
        listen=text.listen,
        node_certificate_s=text.node_certificate,
        gpu_names=text.gpu_names,
        cpus=text.cpus,
        memory=text.memory,
        policy=text.policy,
        between=text.between,
        profiles=text.profiles,
        lease_s=text.lease,
        shortest_lease_s=text.shortest_lease,
        tick_s=text.tick,
        container_s=text.container,
        gather_s=text.gather,
        checkpoint_every_s=text.checkpoint_every,
        unknown_work_s=text.unknown_work,
        seed=text.seed,
        host=text.host,
        port=text.port,
        http_port=text.http_port,
        tls=text.tls,
        tls_certificate=text.tls_certificate or "",
        tls_key=text.tls_key or "",
        tls_names=text.tls_names,
        retries=text.retries,
        backoff_s=text.backoff,
        backoff_most_s=text.backoff_most,
        grace_s=text.grace,
        max_grace_s=text.max_grace,
        node_lease_s=text.node_lease,
        node_renew_s=text.node_renew,
        node_margin_s=text.node_margin,
        progress_s=text.progress,
        idle_warn_s=text.idle_warn,
        idle_cancel_s=text.idle_cancel,
        solve_s=text.solve,
        agent_s=text.agent_wait,
        journal_keep_s=text.journal_keep,
        audit_keep_s=text.audit_keep,
        journal_reserve_bytes=text.journal_reserve,
        logs_keep_s=text.logs_keep,
        checkpoints_keep_s=text.checkpoints_keep,
        containment=text.containment,
        max_processes=text.max_processes,
        pass_variables=text.pass_variables,
        agent_misses=text.agent_misses,
        max_agents=text.max_agents,
        max_message_bytes=text.max_message,
        max_jobs=text.max_jobs,
        max_apps=text.max_apps,
        max_apps_per_user=text.max_apps_per_user,
        max_submissions=text.max_submissions,
        max_bundle_bytes=text.max_bundle,
        bundles_quota_bytes=text.bundles_quota,
        bundles_keep_s=text.bundles_keep,
        copy_checkpoints=text.copy_checkpoints,
        max_copy_bytes=text.max_copy,
        copies_quota_bytes=text.copies_quota,
        copies_keep_s=text.copies_keep,
        node_cache_bytes=text.node_cache,
        user_disk=text.user_disk,
        disk_reserve_bytes=text.disk_reserve,
        setup_s=text.setup,
        allow_root=text.allow_root,
        single_trust=text.single_trust,
        validate=text.check_state,
        users=tuple(User(name=n, weight=u.weight, group=u.group or "") for n, u in text.users.items()),
        groups=tuple(Group(name=n, weight=g.weight) for n, g in text.groups.items()),
        user_gpus={n: u.gpus for n, u in text.users.items() if u.gpus is not None},
        group_gpus={n: g.gpus for n, g in text.groups.items() if g.gpus is not None},
        others_weight=text.others.weight,
        others_gpus=text.others.gpus,
        prices=dict(text.price),
        currency=text.currency,
        notify=text.notify.read() if text.notify is not None else Notify(),
        oidc=text.oidc.read() if text.oidc is not None else None,
        time_zone=text.time_zone or local_zone(),
        user_budgets={n: u.budget.read() for n, u in text.users.items() if u.budget is not None},
        group_budgets={n: g.budget.read() for n, g in text.groups.items() if g.budget is not None},
        others_budget=text.others.budget.read() if text.others.budget is not None else None,
    )
