"""The settings of a service: one model, from which all that names a setting derives (``themis.setting``). Frozen data, checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from themis import limits, sizes
from themis.errors import InputError, counted
from themis.machines.agent.cells import MOST_PROCESSES
from themis.machines.agent.means import WANTED
from themis.setting import (
    ABSOLUTE,
    DURATION,
    MEMORY,
    ROOM,
    SWITCH,
    TEXT,
    WAIT,
    Kind,
    choice,
    each,
    entry,
    listed,
    number,
    plain_words,
    setting,
    settings_of,
    size_words,
    text,
    whole,
    words,
)
from themis.sizes import Seconds, Unreadable
from themis.trust.oidc.provider_settings import OidcSettings

if TYPE_CHECKING:
    from themis.model.cluster import Cluster
    from themis.model.events import AccountingSet, FairnessSet
    from themis.model.settings import Settings

ELSEWHERE = {"ray": "Ray's nodes", "fleet": "those that join with `themis agent join`"}
"""Engines with machines other than this one, and a name for these machines."""
LOOPBACK = "127.0.0.1"
NOTICES = ("finished", "failed", "preempted", "idle", "intrusion", "budget", "machine_lost", "disk")
DAY = 86400.0


# ---- kinds of values that only these settings have -------------------------------------------------------------------------


def _name(value: Any) -> str:
    from themis.jobs import readers

    return readers.name(value)


def _folder(value: Any) -> str:
    if not PurePath(text(value)).is_absolute():
        raise Unreadable("an absolute path, which is the same on every node")
    from themis.jobs import readers

    return readers.folder(value)


def _expected(value: Any) -> str:
    from themis.errors import ClusterError
    from themis.traces.profiles.presets import from_shorthand

    try:
        from_shorthand(text(value))
    except ClusterError:
        raise Unreadable("numbers and sizes of machines, COUNTxGPUS[@TYPE] joined by +, such as 4x8@A100+2x4") from None
    return text(value)


def _message(value: Any) -> int:
    try:
        size = sizes.memory(value)
    except Unreadable:
        size = 0
    if not 64 << 10 <= size <= (2 << 30) - 1:  # enough for every call without a job
        raise Unreadable("memory with its unit, from 64 KiB to just below 2 GiB, such as 4 MiB")
    return size


_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)\s*%")


def _share_of_disk(value: Any) -> float:
    share = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if share is not None and 0 < float(share[1]) <= 100:
        return float(share[1]) / 100
    try:
        return float(ROOM.read(value))
    except Unreadable:
        raise Unreadable("0, memory with its unit or a share of the disk, such as 200 GiB or 50%") from None


def _disk_words(value: Any) -> str:
    return f"{value:.3%}".rstrip("0%").rstrip(".") + "%" if 0 < value <= 1 else size_words(int(value))


def _currency(value: Any) -> str:
    if not isinstance(value, str) or not value.isalpha() or len(value) > 10:
        raise Unreadable("a currency of at most 10 letters, such as EUR")
    return value


def _zone(value: Any) -> str:
    from themis.report.accounts.days import zone_of

    try:
        zone_of(text(value))
    except InputError:
        raise Unreadable("a time zone of the IANA database, such as Europe/Berlin or UTC") from None
    return str(value)


def _local_zone() -> str:
    from themis.report.accounts.days import local_zone

    return local_zone()


def _machines_words(value: Any) -> str:
    match value:
        case {"name": "machines", "machines": machines}:  # changed one by one: no preset's and no file's
            return ", ".join(f"{machine['name']} with {counted(machine['gpus'], 'GPU')}" for machine in machines)
        case {"name": name}:
            return str(name)
    return plain_words(value)


NAME = Kind(read=_name)
COUNT = whole(1, 10**9)
PORT = whole(0, 65535)
HOST_NAMES = words(
    ", ",
    re.compile(r"[A-Za-z0-9*_:][A-Za-z0-9._:-]{0,252}").fullmatch,
    "host names or IP addresses, separated by commas, such as gpu.example.org, 10.0.0.7",
)
VARIABLES = words(
    " ",
    re.compile(r"(?!THEMIS_|SLURM_)[A-Za-z_][A-Za-z0-9_]{0,254}").fullmatch,
    "names of environment variables, separated by commas, none of which begins with THEMIS_ or SLURM_, such as HTTPS_PROXY",
)
AMOUNT = number(limits.Number(name="", what="", least=0, most=1e15))


# ---- entries ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``budget`` of a user or group. Weeks begin on Monday, and all periods in the service's time zone."""

    hard: float | None = setting(
        None, AMOUNT, "limit from which on no lease is granted or renewed until the period ends", shown="no limit"
    )
    soft: float | None = setting(None, AMOUNT, "limit from which on `queue`, `show` and `why` warn", shown="no limit")
    of: str = setting("gpu_hours", choice("gpu_hours", "cost"), "what is limited")
    per: str = setting("month", choice("day", "week", "month", "total"), "period of the limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """One of ``groups``, or ``others``, of which each has these."""

    weight: float = setting(1.0, number(limits.WEIGHT), "weight: 2 entitles to twice the share")
    gpus: int | None = setting(None, whole(0, 10**9), "maximum number of GPUs", shown="no limit")
    budget: Budget | None = setting(
        None,
        entry(Budget),
        "limits of GPU hours or cost, see [accounting.md](accounting.md#budgets)",
        shown="no limit",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings(GroupSettings):
    """One of ``users``."""

    group: str | None = setting(None, NAME, "group of the user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """``notify``."""

    admins: tuple[str, ...] = setting((), listed(TEXT), "addresses of administrators, as apprise takes them")
    users: Mapping[str, tuple[str, ...]] = setting(
        None, each(listed(TEXT), NAME), "addresses of users, by name", factory=dict
    )
    events: tuple[str, ...] = setting(NOTICES, listed(choice(*NOTICES)), "what to notify of", shown="all")
    preempted_after_s: Seconds = setting(
        1800.0, DURATION, "notify of an app that waits for this time after it lost its GPUs"
    )
    per_hour: int = setting(20, whole(1, 100_000), "maximum number of messages to one recipient in an hour")
    disk_free: int = setting(5 << 30, MEMORY, "notify when less of the data directory's disk is free")


# ---- the settings ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of a service, each with its meaning."""

    gpus: int = setting(
        0,
        whole(0, 100_000),
        "number of virtual GPUs on one machine",
        live=True,
        shown="this machine's GPUs, found through NVML",
        option="--gpus",
    )
    cluster: Cluster | None = setting(
        None,
        Kind(words=_machines_words),
        "virtual machines: `2x4`, a preset or a file, as `themis simulate --cluster` takes it, or a list of machines",
        live=True,
        option="--machines",
        key="machines",
    )
    expected: str = setting(
        "",
        Kind(read=_expected),
        "all machines that may be there one day, `COUNTxGPUS[@TYPE]` joined by `+`, such as `4x8@A100+2x4`: jobs that fit them "
        "wait until they join, others are refused",
        live=True,
        shown="those that ever joined, and anything before the first; on this machine those that are there",
    )
    gpu_names: Mapping[str, str] = setting(
        None,
        each(NAME, NAME),
        "other names of GPU types, by those that `themis doctor` shows: `V100-SXM2-16GB: V100`",
        shown="as found",
        factory=dict,
    )
    engine: str = setting(
        "local",
        choice("local", "ray", "fleet"),
        "`local` for this machine, `fleet` for machines that join over the network, see [fleet.md](fleet.md), `ray` for the "
        "nodes of a Ray cluster, see [ray.md](ray.md)",
        option="--engine",
    )
    address: str = setting("auto", TEXT, "address of the Ray cluster, as for `ray.init`", option="--address")
    node_root: str = setting(
        "", Kind(read=_folder), "folder for tasks and logs on Ray's nodes", shown="chosen by the service"
    )
    node_token_s: Seconds = setting(DAY, DURATION, "time after which a machine of a fleet is given its next token")
    cpus: int = setting(0, whole(0, 10**6), "CPU cores of this machine for jobs", live=True, shown="all of them")
    memory: int = setting(0, ROOM, "memory of this machine for jobs, such as `64 GiB`", live=True, shown="all of it")
    policy: str = setting(
        "fair_finish",
        TEXT,
        "scheduling policy, as for `themis simulate --policy`; `themis` is the auction",
        live=True,
        option="--policy -p",
    )
    between: str = setting(
        "users",
        choice("apps", "users", "groups"),
        "level of equal shares, before weights: `users` divide their share among their apps, `groups` among their users; with "
        "`apps`, a user with more apps gets more",
        live=True,
    )
    profiles: str = setting("themis", TEXT, "tables of the models' speeds, as for `themis simulate --profiles`")
    lease_s: Seconds = setting(
        600.0, DURATION, "length of a lease, the minimum time that a job keeps its GPUs", live=True
    )
    least_steps: int = setting(
        10,
        whole(0, 10**6),
        "a lease in which a job starts lasts at least as long as its start and this number of its steps, as measured; 0: it may "
        "be shorter",
        live=True,
    )
    step_s: Seconds = setting(
        0.0,
        WAIT,
        "leases end together, at multiples of this time, and are renewed or given to others then, under every policy that grants "
        "GPUs but `themis`; 0: as the policy says, `fair_finish`, `srsf`, `srtf`, `fifo` at each `tick`, others at multiples of "
        "`lease`",
        live=True,
    )
    tick_s: Seconds = setting(60.0, DURATION, "leases end at multiples of this time", live=True)
    container_s: Seconds = setting(35.0, WAIT, "assumed cost of changing a job's GPUs", live=True)
    gather_s: Seconds = setting(0.5, WAIT, "events within this time are handled in one decision", live=True)
    checkpoint_every_s: Seconds = setting(600.0, DURATION, "assumed interval between a job's checkpoints", live=True)
    unknown_work_s: Seconds = setting(
        sizes.UNKNOWN_WORK_S, DURATION, "assumed run time of a job without estimates, on its fewest GPUs", live=True
    )
    seed: int = setting(0, whole(0, 2**63 - 1), "random seed of randomised policies", live=True)
    host: str = setting(
        LOOPBACK,
        TEXT,
        "address that the service listens on; `0.0.0.0` lets other machines log in, and those of a fleet join",
        option="--host",
    )
    port: int = setting(7433, PORT, "port of the API and the console; 0: any free port", option="--port")
    tls: str = setting(
        "auto",
        choice("auto", "on", "off"),
        "encryption of the API, see [tls.md](tls.md); `auto`: on every address but loopback",
    )
    tls_certificate: str = setting(
        "",
        ABSOLUTE,
        "file of the service's certificate and those that lead to its authority, as PEM",
        shown="the service's own authority issues one",
    )
    tls_key: str = setting("", ABSOLUTE, "file of the key of `tls_certificate`, as PEM", shown="the same file")
    tls_names: str = setting(
        "",
        HOST_NAMES,
        "further host names and addresses of the service: `gpu.example.org, 10.0.0.7`",
        shown="this machine's",
    )
    retries: int = setting(
        2, number(limits.RETRIES), "default maximum number of attempts after failures of a job", live=True
    )
    backoff_s: Seconds = setting(
        10.0, WAIT, "delay after a job's first failure; doubles with each further failure", live=True
    )
    backoff_most_s: Seconds = setting(600.0, WAIT, "maximum delay after a failure", live=True)
    grace_s: Seconds = setting(
        60.0, WAIT, "default grace period of a job, between the stop signal and SIGKILL", live=True
    )
    max_grace_s: Seconds = setting(3600.0, WAIT, "maximum grace period that a job may request", live=True)
    node_lease_s: Seconds = setting(30.0, DURATION, "how long jobs continue without an arbiter")
    node_renew_s: Seconds = setting(10.0, DURATION, "interval at which machines renew their lease")
    node_margin_s: Seconds = setting(
        5.0, WAIT, "margin after lease and grace period, before the GPUs of an unreachable machine are reused"
    )
    progress_s: Seconds = setting(30.0, WAIT, "minimum interval between two progress records of a job")
    idle_warn_s: Seconds = setting(
        300.0,
        WAIT,
        "warn of an app that holds a GPU that did nothing for this time, see [accounting.md](accounting.md#idle-gpus); 0: never",
        live=True,
    )
    idle_cancel_s: Seconds = setting(
        0.0, WAIT, "cancel an app whose job's GPUs did nothing for this time; 0: never", live=True
    )
    solve_s: Seconds = setting(
        10.0,
        DURATION,
        "approximate time limit of a decision; the search then returns the best solution found",
        live=True,
    )
    journal_keep_s: Seconds = setting(30 * DAY, DURATION, "retention of the journal's records", live=True)
    audit_keep_s: Seconds = setting(
        90 * DAY, DURATION, "retention of the audit log's entries, see [sign-in.md](sign-in.md)", live=True
    )
    journal_reserve_bytes: int = setting(
        64 << 20,
        ROOM,
        "room that the journal keeps for itself, so that cancel, hold and drain work on a full disk; at most a quarter of what "
        "is free, 0: none",
    )
    logs_keep_s: Seconds = setting(30 * DAY, DURATION, "retention of job output after the app ended", live=True)
    checkpoints_keep_s: Seconds | None = setting(
        None,
        DURATION,
        "retention of checkpoints in the data directory after the app completed; those of other apps are kept",
        live=True,
        shown="no limit",
    )
    prices: Mapping[str, float] = setting(
        None,
        each(number(limits.Number(name="", what="", least=0, most=1e9)), TEXT),
        "price of a GPU hour by GPU type, `'*'` for all others: `{H200: 3.5, '*': 1}`, see [accounting.md](accounting.md#prices)",
        live=True,
        key="price",
        factory=dict,
    )
    currency: str = setting("", Kind(read=_currency), "currency of prices, such as EUR", live=True)
    time_zone: str = setting(
        None,
        Kind(read=_zone),
        "time zone of the days of accounts and budgets",
        live=True,
        shown="the machine's",
        factory=_local_zone,
    )
    notify: Notify = setting(
        Notify(),
        entry(Notify),
        "addresses and events of notifications, see [accounting.md](accounting.md#notifications)",
        shown="none",
    )
    oidc: OidcSettings | None = setting(
        None, entry(OidcSettings), "OpenID Connect provider that people sign in with, see [sign-in.md](sign-in.md)"
    )
    agent_s: Seconds = setting(2.0, DURATION, "timeout for answers of apps' own agents", live=True, key="agent_wait")
    agent_misses: int = setting(
        3, whole(1, 1000), "consecutive answers that an agent may miss before the service bids for its app", live=True
    )
    max_agents: int = setting(256, whole(1, 4096), "maximum number of connected agents")
    containment: str = setting(
        "auto",
        choice(*WANTED),
        "containment of a job's processes, see [containment.md](containment.md); `auto`: the strongest that each machine "
        "supports",
    )
    max_processes: int = setting(
        4096,
        whole(16, MOST_PROCESSES),
        "maximum number of processes and threads of a job, for each of its GPUs on a machine",
    )
    pass_variables: str = setting(
        "",
        VARIABLES,
        "environment variables that jobs inherit from the service or the machine's agent, besides [those that every job "
        "gets](training.md#what-a-job-finds-in-its-environment): `LD_LIBRARY_PATH, HTTPS_PROXY`",
    )
    max_message_bytes: int = setting(4 << 20, replace(MEMORY, read=_message), "maximum size of a client's message")
    max_jobs: int = setting(1000, whole(1, limits.JOBS.most), "maximum number of jobs of an app", live=True)
    max_apps: int = setting(5000, COUNT, "maximum number of waiting and running apps", live=True)
    max_apps_per_user: int = setting(1000, COUNT, "maximum number of waiting and running apps of one user", live=True)
    max_submissions: int = setting(3600, COUNT, "maximum number of submissions of one user in an hour", live=True)
    max_bundle_bytes: int = setting(512 << 20, MEMORY, "maximum size of the files that a job is sent with")
    bundles_quota_bytes: int = setting(20 << 30, MEMORY, "maximum size of all such files in the data directory")
    bundles_keep_s: Seconds = setting(30 * DAY, DURATION, "retention of such files after their last use")
    copy_checkpoints: bool = setting(
        True, SWITCH, "copy checkpoints of a fleet's jobs that name no `checkpoint_dir` through the service"
    )
    max_copy_bytes: int = setting(
        10 << 30, MEMORY, "maximum size of the checkpoints and outputs of a job that the service keeps"
    )
    copies_quota_bytes: int = setting(100 << 30, MEMORY, "maximum size of all such copies in the data directory")
    copies_keep_s: Seconds = setting(
        30 * DAY, DURATION, "retention of such copies after the end of their app and their last use"
    )
    node_cache_bytes: int = setting(
        50 << 30, MEMORY, "maximum size of such files and environments on each machine, besides those in use"
    )
    user_disk: float = setting(
        0.8,
        Kind(read=_share_of_disk, words=_disk_words),
        "maximum size of the checkpoints, files and logs of a user on one disk, in bytes or as a share of the disk: `200 GiB`, "
        "`50%`; 0: no limit",
    )
    disk_reserve_bytes: int = setting(
        1 << 30,
        ROOM,
        "free space of each disk below which the job that writes most there is stopped; at most a twentieth of the disk, 0: none",
    )
    setup_s: Seconds = setting(900.0, DURATION, "time limit for bringing a job's files and environment to its machines")
    allow_root: bool = setting(False, SWITCH, "allow jobs to run as root if the service does", option="--allow-root")
    single_trust: bool = setting(
        False, SWITCH, "run all jobs as the service's own user; if that is root, `allow_root` is required too"
    )
    validate: bool = setting(False, SWITCH, "check all invariants after each step, for tests", key="check_state")
    groups: Mapping[str, GroupSettings] = setting(
        None, each(entry(GroupSettings), NAME), "groups of users, by name", live=True, factory=dict
    )
    users: Mapping[str, UserSettings] = setting(
        None, each(entry(UserSettings), NAME), "users, by name", live=True, factory=dict
    )
    others: GroupSettings = setting(GroupSettings(), entry(GroupSettings), "users who are not listed", live=True)

    def __post_init__(self) -> None:
        for _, problem in conflicts(self):
            raise InputError(problem)

    @property
    def core_settings(self) -> Settings:
        """The settings of the scheduling core."""
        from themis.model.settings import Settings

        return Settings(
            lease_s=self.lease_s,
            tick_s=self.tick_s,
            step_s=self.step_s,
            container_s=self.container_s,
            seed=self.seed,
            gather_s=self.gather_s,
            checkpoint_every_s=self.checkpoint_every_s,
            validate=self.validate,
            least_steps=self.least_steps,
        )

    def weight(self, user: str) -> float:
        """Factor on the weight of the user's apps: the user's weight times the group's."""
        known = self.users.get(user, self.others)
        group = self.groups.get(self.group_of(user))
        return known.weight * (group.weight if group else 1.0)

    def group_of(self, user: str) -> str:
        """The user's group; empty if there is none."""
        return (self.users[user].group or "") if user in self.users else ""

    def fairness(self) -> FairnessSet:
        """The unit of fairness as an event for the core, with groups only where groups are the unit."""
        from themis.model.events import FairnessSet
        from themis.model.workload import Group, User, members

        users = [User(name=name, weight=user.weight, group=user.group or "") for name, user in self.users.items()]
        groups = [Group(name=name, weight=group.weight) for name, group in self.groups.items()]
        return FairnessSet(between=self.between, groups=members(users, groups) if self.between == "groups" else ())

    def quotas(self, user: str) -> Mapping[str, tuple[frozenset[str], int]]:
        """Quotas that the user is under: name of the quota -> who shares it, most GPUs."""
        return {name: (who, of.gpus) for name, who, of in self._above(user) if of.gpus is not None}

    def budgets(self, user: str) -> Mapping[str, tuple[frozenset[str], Budget]]:
        """Budgets that the user is under: name of the budget -> who shares it, its limits."""
        return {name: (who, of.budget) for name, who, of in self._above(user) if of.budget is not None}

    def _above(self, user: str) -> Iterator[tuple[str, frozenset[str], GroupSettings]]:
        """The user and the user's group, each with its members and its limits."""
        yield f"user {user}", frozenset({user}), self.users.get(user, self.others)
        if (group := self.group_of(user)) in self.groups:
            members = frozenset(name for name, other in self.users.items() if other.group == group)
            yield f"group {group}", members, self.groups[group]

    def tariff(self) -> AccountingSet:
        """The tariff of GPU time, as an event for the log."""
        from themis.model.events import AccountingSet

        return AccountingSet(
            prices=tuple(sorted(self.prices.items())),
            currency=self.currency,
            groups=tuple(sorted((name, user.group) for name, user in self.users.items() if user.group)),
            zone=self.time_zone,
        )


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Settings that contradict others: (key, sentence). Each rule is here, once."""
    elsewhere = ELSEWHERE.get(config.engine)
    if elsewhere and (config.gpus or config.cluster):
        yield "engine", f"with the engine {config.engine}, the machines are {elsewhere}; remove gpus and machines."
    if config.gpus and config.cluster:
        yield "gpus", "gpus and machines exclude each other; remove one."
    if config.gpu_names and (config.gpus or config.cluster or elsewhere):
        yield (
            "gpu_names",
            "gpu_names is for this machine's own GPUs; remove it for virtual machines, a fleet and Ray's nodes.",
        )
    if config.tls_key and not config.tls_certificate:
        yield "tls_key", f"tls_key is {config.tls_key}, but there is no tls_certificate; give both."
    if 0 < config.idle_cancel_s < config.idle_warn_s:
        yield (
            "idle_cancel",
            f"idle_cancel is {config.idle_cancel_s:g} s, below idle_warn, {config.idle_warn_s:g} s; a warning comes first.",
        )
    if config.lease_s < config.tick_s:
        yield (
            "lease",
            f"lease is {config.lease_s:g} s, shorter than tick, {config.tick_s:g} s; "
            "make the lease at least one tick, or the tick shorter (--set tick=5s).",
        )
    if config.node_renew_s >= config.node_lease_s:
        yield (
            "node_renew",
            f"node_renew is {config.node_renew_s:g} s, not below node_lease, {config.node_lease_s:g} s; a third of it is usual.",
        )


SETTINGS = settings_of(Config)
"""Every setting, by its name in files."""
