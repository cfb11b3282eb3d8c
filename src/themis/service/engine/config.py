"""The settings of an arbiter, checked: frozen data. How people write them is ``operations.settings``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from themis.errors import InputError, UnknownName
from themis.jobs.build import PRIOR_S
from themis.machines.agent.means import AUTO, WANTED
from themis.model.cluster import Cluster
from themis.model.events import AccountingSet, FairnessSet
from themis.model.settings import Settings
from themis.model.units import Seconds
from themis.model.workload import Group, User, members
from themis.report.accounts.days import local_zone
from themis.trust.oidc.provider_settings import OidcSettings

ENGINES = ("local", "ray", "fleet")
TLS = ("auto", "on", "off")

ELSEWHERE = {"ray": "Ray's nodes", "fleet": "those that join with `themis agent join`"}
"""Engines with machines other than this one, and a name for these machines."""
LISTEN = "127.0.0.1:7435"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a user's or group's use in a period.

    Attributes
    ----------
    hard, soft : in GPU hours or in the tariff's currency, by ``of`` (gpu_hours | cost); None: no limit.
    per : day | week | month | total; weeks begin on Monday, and all in the service's time zone.
    """

    hard: float | None = None
    soft: float | None = None
    of: str = "gpu_hours"
    per: str = "month"


NOTICES = ("finished", "failed", "preempted", "idle", "intrusion", "budget", "machine_lost", "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Notification settings: recipients and events.

    Attributes
    ----------
    admins : addresses in the syntax of apprise. ``users`` : addresses by user. ``events`` : events to notify of, from
        ``NOTICES``.
    preempted_after_s : seconds that an app waits after it lost its GPUs before a notification. ``per_hour`` : maximum
        number of messages to one recipient.
    disk_free : free bytes below which the disk counts as nearly full.
    """

    admins: tuple[str, ...] = ()
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    events: tuple[str, ...] = NOTICES
    preempted_after_s: Seconds = 1800.0
    per_hour: int = 20
    disk_free: int = 5 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of an arbiter.

    Attributes
    ----------
    gpus : number of virtual GPUs on one machine. ``cluster`` : virtual machines. Where there is neither, this machine's
        GPUs are found through NVML.
    gpu_names : what types of this machine's GPUs are called here, by the names that were found.
    cpus, memory : of this machine, that jobs may ask for together; 0 stands for all that it has. ``memory`` in bytes.
    engine : ``local``, or ``ray`` for the nodes of a Ray cluster at ``address``; ``node_root`` : where agents keep tasks
        and logs on each of them. ``fleet`` for machines that join over the network: ``listen`` : HOST:PORT for them,
        ``node_certificate_s`` : how long their certificates are valid.
    policy : as ``themis simulate -p`` takes it. ``seed`` : random seed of randomised policies.
    profiles : books of speeds, as ``themis simulate --profiles`` takes them.
    lease_s : the least time that GPUs stay with a job that can use them. ``tick_s`` : leases end at multiples of it.
    shortest_lease_s : leases shorten down to it while apps wait (``core.contention``), if it is below ``lease_s``; 0: never.
    container_s : assumed cost of a change of GPUs. ``gather_s`` : events within this time are handled in one decision.
        ``checkpoint_every_s`` : assumed interval between a job's checkpoints.
    unknown_work_s : training on its fewest GPUs of a job of which nothing is known.
    port : of gRPC. ``http_port`` : of the HTTP API; -1 for none. 0 lets the system choose.
    host : address to listen on. ``tls`` : on, off, or auto: on unless ``host`` is loopback.
    tls_certificate, tls_key : files of the service's own certificate; empty: its authority issues one. ``tls_names`` : more names
        that it is issued for, separated by commas.
    retries : failures of one job beyond which it is given up, unless it says otherwise.
    backoff_s : wait after a job's first failure; it doubles with each further one, up to ``backoff_most_s``.
    grace_s : from the stop signal to SIGKILL, where a job does not say. ``max_grace_s`` : most that a job may ask for.
    node_lease_s, node_renew_s, node_margin_s : leases of machines (``themis.machines.engines.hosts``).
    progress_s : minimum interval between two progress records of a job.
    idle_warn_s, idle_cancel_s : an app whose gang's GPUs did nothing for this long is warned of, and cancelled; 0:
        never.
    between : unit of fairness: apps, users or groups.
    users, groups : those with a weight or a group; users who are not listed have ``others_weight``.
    user_gpus, group_gpus : quotas of those who have one. ``others_gpus`` : of each user who is not listed, or None.
    user_budgets, group_budgets, others_budget : likewise. ``prices`` : of a GPU hour by GPU type, ``*`` for the others.
    oidc : the provider that people sign in with, if any.
    time_zone : of the days of accounts and budgets, by its IANA name.
    solve_s : approximate limit of a decision; its searches then stop with the best answer found and its proven gap.
        A policy that takes three times as long is stopped, and ``fifo`` decides.
    journal_keep_s : records of the journal that are older are dropped once pictures of the state cover them.
    audit_keep_s : entries of the audit log that are older are dropped.
    journal_reserve_bytes : that the journal keeps of its disk for itself, at most a quarter of what is free.
    logs_keep_s : ranks' logs of apps that were over for longer are dropped. ``checkpoints_keep_s`` : likewise the
        checkpoints of apps that completed, of those below the data directory; None keeps them.
    agent_s : time in which apps' own agents must answer (docs/agents.md). ``agent_misses`` : consecutive answers that may
        be missing before the service's agent takes over. ``max_agents`` : most connected agents.
    containment : how a gang's processes are held together (``machines.agent.means.find``); ``auto`` is the strongest way
    that each machine
        allows.
    max_processes : most processes and threads of a gang, for each of its GPUs on a machine.
    pass_variables : names, separated by spaces, of variables that jobs get from the agents' environment besides those of every job.
    max_message_bytes, max_jobs, max_apps, max_apps_per_user : limits of a call, of jobs in an app, of active apps.
    max_submissions : of one user in an hour.
    max_bundle_bytes : of the files that a job is sent with. ``bundles_quota_bytes`` : of all bundles together.
    bundles_keep_s : a bundle that no live app needs is dropped when it was not used for this long.
    copy_checkpoints : those of a fleet's jobs that name no place are copied through the service. ``max_copy_bytes`` : of one job's
        checkpoints and outputs; ``copies_quota_bytes`` : of all; ``copies_keep_s`` : after the end of the app, and its last use.
    node_cache_bytes : of the bundles and environments that a machine keeps; those in use may exceed it.
    user_disk, disk_reserve_bytes : what a user's jobs may have on one disk, and what is to stay free there
        (``themis.machines.engines.hosts``).
    setup_s : for bringing a gang's files and environment to its machines.
    allow_root : let jobs run as root where the arbiter does. ``single_trust`` : jobs run as the arbiter's own user even
        where it is root and could change to their submitter's. ``validate`` : check every invariant after every step.
    """

    gpus: int = 0
    cluster: Cluster | None = None
    gpu_names: Mapping[str, str] = field(default_factory=dict)
    engine: str = "local"
    address: str = "auto"
    node_root: str = ""
    listen: str = LISTEN
    node_certificate_s: Seconds = 30 * 86400.0
    cpus: int = 0
    memory: int = 0
    policy: str = "fair_finish"
    profiles: str = "themis"
    lease_s: Seconds = 600.0
    shortest_lease_s: Seconds = 180.0
    tick_s: Seconds = 60.0
    container_s: Seconds = 35.0
    gather_s: Seconds = 0.5
    checkpoint_every_s: Seconds = 600.0
    unknown_work_s: Seconds = PRIOR_S
    seed: int = 0
    host: str = "127.0.0.1"
    tls: str = "auto"
    tls_certificate: str = ""
    tls_key: str = ""
    tls_names: str = ""
    port: int = 7433
    http_port: int = 7434
    retries: int = 2
    backoff_s: Seconds = 10.0
    backoff_most_s: Seconds = 600.0
    grace_s: Seconds = 60.0
    max_grace_s: Seconds = 3600.0
    node_lease_s: Seconds = 30.0
    node_renew_s: Seconds = 10.0
    node_margin_s: Seconds = 5.0
    progress_s: Seconds = 30.0
    idle_warn_s: Seconds = 0.0
    idle_cancel_s: Seconds = 0.0
    users: tuple[User, ...] = ()
    groups: tuple[Group, ...] = ()
    user_gpus: Mapping[str, int] = field(default_factory=dict)
    group_gpus: Mapping[str, int] = field(default_factory=dict)
    others_weight: float = 1.0
    between: str = "users"
    others_gpus: int | None = None
    user_budgets: Mapping[str, Budget] = field(default_factory=dict)
    group_budgets: Mapping[str, Budget] = field(default_factory=dict)
    others_budget: Budget | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""
    notify: Notify = Notify()
    oidc: OidcSettings | None = None
    time_zone: str = field(default_factory=local_zone)
    solve_s: Seconds = 10.0
    agent_s: Seconds = 2.0
    journal_keep_s: Seconds = 30 * 86400.0
    audit_keep_s: Seconds = 90 * 86400.0
    journal_reserve_bytes: int = 64 << 20
    logs_keep_s: Seconds = 30 * 86400.0
    checkpoints_keep_s: Seconds | None = None
    containment: str = AUTO
    max_processes: int = 4096
    pass_variables: str = ""
    agent_misses: int = 3
    max_agents: int = 256
    max_message_bytes: int = 4 << 20
    max_jobs: int = 1000
    max_apps: int = 5000
    max_apps_per_user: int = 1000
    max_submissions: int = 3600
    max_bundle_bytes: int = 512 << 20
    bundles_quota_bytes: int = 20 << 30
    bundles_keep_s: Seconds = 30 * 86400.0
    copy_checkpoints: bool = True
    max_copy_bytes: int = 10 << 30
    copies_quota_bytes: int = 100 << 30
    copies_keep_s: Seconds = 30 * 86400.0
    node_cache_bytes: int = 50 << 30
    user_disk: float = 0.8
    disk_reserve_bytes: int = 1 << 30
    setup_s: Seconds = 900.0
    allow_root: bool = False
    single_trust: bool = False
    validate: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UnknownName("engine", self.engine, ENGINES)
        if self.containment not in WANTED:
            raise UnknownName("containment", self.containment, WANTED)
        if self.engine in ELSEWHERE and (self.gpus or self.cluster):
            raise InputError(
                f"with the engine {self.engine}, machines are {ELSEWHERE[self.engine]}; leave out gpus and machines."
            )
        if self.tls not in TLS:
            raise UnknownName("value of tls", self.tls, TLS)
        if self.tls_key and not self.tls_certificate:
            raise InputError(f"tls_key is {self.tls_key}, but there is no tls_certificate; give both.")
        if self.gpus and self.cluster:
            raise InputError(f"gpus is {self.gpus} and machines {self.cluster.name!r}; give one of them.")
        if self.grace_s > self.max_grace_s:
            raise InputError(f"grace is {self.grace_s:g} s, more than max_grace, {self.max_grace_s:g} s.")
        if 0 < self.idle_cancel_s < self.idle_warn_s:
            raise InputError(
                f"idle_cancel is {self.idle_cancel_s:g} s, below idle_warn, {self.idle_warn_s:g} s; a warning comes first."
            )
        if self.lease_s < self.tick_s:
            raise InputError(
                f"lease is {self.lease_s:g} s, shorter than tick, {self.tick_s:g} s; "
                "make the lease at least one tick, or the tick shorter (--set tick=5s)."
            )
        if self.node_renew_s >= self.node_lease_s:
            raise InputError(
                f"node_renew is {self.node_renew_s:g} s, not below node_lease, {self.node_lease_s:g} s; a third of it is usual."
            )

    @property
    def shortest_lease(self) -> Seconds:
        """``shortest_lease_s`` as the core takes it: at least a tick; 0 where leases are no longer anyway."""
        shortest = max(self.shortest_lease_s, self.tick_s) if self.shortest_lease_s else 0.0
        return shortest if shortest < self.lease_s else 0.0

    @property
    def core_settings(self) -> Settings:
        """The settings of the scheduling core."""
        return Settings(
            lease_s=self.lease_s,
            tick_s=self.tick_s,
            container_s=self.container_s,
            seed=self.seed,
            gather_s=self.gather_s,
            checkpoint_every_s=self.checkpoint_every_s,
            validate=self.validate,
            shortest_lease_s=self.shortest_lease,
        )

    def weight(self, user: str) -> float:
        """Factor on the weight of the user's apps: the user's weight times the group's."""
        known = self._user(user)
        group = next((g for g in self.groups if known and g.name == known.group), None)
        return (known.weight if known else self.others_weight) * (group.weight if group else 1.0)

    def fairness(self) -> FairnessSet:
        """The unit of fairness as an event for the core, with groups only where groups are the unit."""
        groups = members(self.users, self.groups) if self.between == "groups" else ()
        return FairnessSet(between=self.between, groups=groups)

    def quotas(self, user: str) -> Mapping[str, tuple[frozenset[str], int]]:
        """Quotas that the user is under: name of the quota -> who shares it, most GPUs."""
        known = self._user(user)
        own = self.user_gpus.get(user) if known else self.others_gpus
        out = {} if own is None else {f"user {user}": (frozenset({user}), own)}
        if known and known.group in self.group_gpus:
            members = frozenset(u.name for u in self.users if u.group == known.group)
            out[f"group {known.group}"] = (members, self.group_gpus[known.group])
        return out

    def budgets(self, user: str) -> Mapping[str, tuple[frozenset[str], Budget]]:
        """Budgets that the user is under: name of the budget -> who shares it, its limits."""
        known = self._user(user)
        own = self.user_budgets.get(user) if known else self.others_budget
        out = {} if own is None else {f"user {user}": (frozenset({user}), own)}
        if known and known.group in self.group_budgets:
            members = frozenset(u.name for u in self.users if u.group == known.group)
            out[f"group {known.group}"] = (members, self.group_budgets[known.group])
        return out

    def tariff(self) -> AccountingSet:
        """The tariff of GPU time, as an event for the log."""
        return AccountingSet(
            prices=tuple(sorted(self.prices.items())),
            currency=self.currency,
            groups=tuple(sorted((user.name, user.group) for user in self.users if user.group)),
            zone=self.time_zone,
        )

    def _user(self, name: str) -> User | None:
        return next((u for u in self.users if u.name == name), None)
