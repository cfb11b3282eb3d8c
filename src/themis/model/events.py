"""Events go into the core, commands come out; both are what the log is made of.

The log is a list of records in order: a ``Header``, then every event and command except those that only drive
the machinery (``Wake``, ``WakeAt``, ``Solve``, ``CollectBids``, ``BidsCollected``). State, reports and replay are
folds over it. ``SCHEMA`` grows whenever a record changes its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from themis.model.bids import Bids
from themis.model.cluster import Machine
from themis.model.units import GpuSeconds, Seconds
from themis.model.workload import App

if TYPE_CHECKING:
    from themis.model.answers import Ask, Solved
    from themis.model.snapshot import Snapshot

SCHEMA = 4

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass for the type checker, a plain one at run time: building it takes a third of the time.

    For what a simulation builds by the hundred thousand.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """First record of a log: what was run on what."""

    schema: int
    version: str
    simulated: bool
    policy: str
    params: Mapping[str, Any]
    seed: int
    workload: str
    source: str
    cluster: str
    settings: Mapping[str, Any]
    profiles: str = ""
    """Fingerprint of the speeds that the scheduler believed in; a replay needs the same."""


# ---- events: facts from outside ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineJoined:
    """A machine came into service for the first time; its GPUs get the next ids."""

    machine: Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFailed:
    """A machine failed: its jobs stop and lose all steps since their last checkpoint.

    ``drained`` : an administrator or its engine took it out of service; its jobs save, and nothing failed.
    ``reason`` : why the service accepts nothing of it; empty where it does not answer.
    """

    machine: int
    drained: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReturned:
    """A failed machine is back, all its GPUs free."""

    machine: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDraining:
    """A machine gets no new gangs; leases of gangs that are on such machines alone continue ``until`` then.

    None: it is an ordinary machine again. The draining party sends ``MachineFailed`` when the time has come.
    """

    machine: int
    until: Seconds | None = None


class AssumedSpeed(NamedTuple):
    """An assumed, unmeasured speed: of a model at a batch size, of a gang on a GPU type."""

    model: str
    batch: int
    gpu_type: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusWithheld:
    """Set the GPUs of a machine that get no gang; leases that run on them continue. None: all can be leased again.

    Attributes
    ----------
    gpus : ids in the cluster. ``pids`` : processes that are on them and belong to no gang. ``reason`` : why, for people.
    """

    machine: int
    gpus: tuple[int, ...]
    pids: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSubmitted:
    """An app arrived; apps and jobs are numbered in this order. ``weight`` includes user and group.

    ``assumed`` : speeds that the app depends on and that were not measured, on the GPU types there were; None in logs
        from
    before they were kept.
    ``alone`` : GPU-seconds of all its work, and seconds of its longest job on its most GPUs, alone and placed best, as was believed
    when it came; None in logs from before.
    """

    app: App
    weight: float = 1.0
    assumed: tuple[AssumedSpeed, ...] | None = None
    alone: tuple[GpuSeconds, Seconds] | None = None
    unknown: bool = False
    """True if nothing was said about its work, so that ``alone`` is an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppCancelled:
    """The user withdrew an app."""

    app: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppHeld:
    """The user holds an app: its GPUs are released, and it gets none until ``AppResumed``.

    That time is the user's own: it is no part of the app's life as fairness measures it, and the app does not count
    among those that contend.
    """

    app: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppResumed:
    """An app that was held takes part again."""

    app: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDelayed:
    """The job gets no GPUs before ``until``: its last attempt failed or hardly ran, and the next must wait."""

    job: int
    until: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGivenUp:
    """The job shall not run any more: it failed too often, or ran for as long as it may.

    ``cause``: failed | walltime. Its app continues with its other jobs, and ends as failed.
    """

    job: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRepaired:
    """The service's journal was damaged here, and ``lost`` records are missing: every lease ends, for others may be held by now.

    ``attempts`` : (job, attempt) that there were by then, by what is left of the rest; the next one of a job is a later one.
    """

    lost: int
    attempts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """Quarantine of an app or a machine that caused an error of the service (decision 73).

    The app's leases end, and it gets nothing until ``AppResumed``; the machine's leases end, and it is out of service until
    ``MachineReturned``.

    Attributes
    ----------
    app, machine : exactly one of them is not None. ``reason`` : the error in one line, or why an administrator wants it.
    frames : of the error, outermost first, each ``FILE:LINE FUNCTION``; empty where there was none.
    skipped : numbers of records of a service's journal that no fold takes in; the quarantine holds from the first of them on.
    """

    app: int | None = None
    machine: int | None = None
    reason: str = ""
    frames: tuple[str, ...] = ()
    skipped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSet:
    """Quota of concurrently held GPUs of these users together; None lifts the quota of that name."""

    name: str
    users: tuple[str, ...]
    gpus: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserWeightsSet:
    """Factor of these users' app weights from now on, which includes the group's; also for held apps."""

    users: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged:
    """Changed settings of a running service; they apply from here on, all of them or none (decision 25).

    What the core works by is in ``settings`` and ``policy``. Machines, quotas, weights and the unit of fairness follow at the same
    instant, as records of their own. A decision under way is abandoned, and repeated with the new settings.

    Attributes
    ----------
    user : who changed them. ``values`` : every setting that changed, by name, as JSON has it (``service.engine.setting_changes``).
    settings : those of ``model.settings.Settings`` that changed, by name; leases that run keep their length.
    policy : as ``themis simulate -p`` takes it, from now on; "" where it stays. ``params`` : all its parameters.
    """

    user: str
    values: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    policy: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesSet:
    """Estimated speeds of models from now on, until they are measured; submitted work keeps its unit.

    ``profiles`` : each as ``core.packed`` spells it.
    """

    profiles: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineResized:
    """New number of GPUs of a machine; 0: it was removed; above 0 after that: it is back.

    GPUs that leave are the machine's last ones; gangs on them are preempted. GPUs that come are first those that left, then new
    ones, which get the next ids.
    """

    machine: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessSet:
    """Unit of fairness from now on: ``apps``, ``users`` or ``groups`` (``core.fairness_unit``); apps by default.

    ``groups`` : (name, weight, its users) of each group.
    """

    between: str
    groups: tuple[tuple[str, float, tuple[str, ...]], ...] = ()


@record
class JobStarted:
    """The gang is training now (after restart and container costs)."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """The gang reports its steps, at least at every change of batch size."""

    job: int
    attempt: int
    steps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChanged:
    """The gang of a dynamic job trains at this batch size from here on; ``steps`` are its epochs so far."""

    job: int
    attempt: int
    steps: float
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReported:
    """The gang is at a check of its app's curve stopping and reports the loss there."""

    job: int
    attempt: int
    steps: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReported:
    """A program's own count of steps and its metrics, as it reported them last; no decision depends on them.

    ``total`` : steps that it will do, by itself; 0 where it did not report them. ``values`` : (name, value), NaN included.
    """

    job: int
    attempt: int
    steps: float
    total: float = 0.0
    values: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedMeasured:
    """Measured speed of a gang of a model, which corrects the model's estimates.

    ``partner`` : model of the job on the same GPUs, or empty; 0 steps beside it: the two do not fit. Steps are the model's
    own, before a job's ``step_scale``.
    """

    model: str
    gpu_type: str
    gpus: int
    locality: int
    steps_per_s: float
    batch: int = 0
    partner: str = ""
    partner_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputReported:
    """An adaptive job's gang says what it measured; the scheduler believes the goodput that follows (``model.goodput``).

    ``steps`` : done so far, of the base batch size. ``noise`` : gradient noise scale, examples. ``times`` : the seven parameters of
    ``StepTimes`` that the job fitted to its iterations on this GPU type.
    """

    job: int
    attempt: int
    steps: float
    noise: float
    gpu_type: str
    times: tuple[float, ...]


@record
class JobStopped:
    """The gang has released its GPUs; ``steps`` is what its checkpoint holds.

    ``own`` : unasked, with an exit code that says that it is to be run again (75, 143): no failure.
    """

    job: int
    attempt: int
    steps: float
    own: bool = False


@record
class JobReached:
    """The gang did the steps it was asked for (a rung, or all of its work); ``loss`` is the loss there."""

    job: int
    attempt: int
    steps: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """A solve's answer to the snapshot of this version."""

    version: int
    solved: Solved


@dataclass(frozen=True, slots=True, kw_only=True)
class BidsCollected:
    """The bids asked for by the policy's ``Ask`` on the snapshot of this version."""

    version: int
    bids: Bids


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBid:
    """Message of an app's own agent, an external program, in the decision that is answered next; the live service only.

    With it the bids of a decision can be reconstructed from the log: the other apps' bids follow from the snapshot.

    Attributes
    ----------
    version : of the snapshot. ``said`` : rho (asked for it, before the apps are sorted) | bid | late, malformed (it lost
        the round).
    rho : reported value; in a bid the rho of winning nothing. ``rows`` : (gangs, span, GPU type, anchor, rho) as in
        ``themis.policies.tuning.outside``.
    """

    version: int
    app: int
    said: str
    rho: float | None = None
    rows: tuple[tuple[tuple[int, ...], int, int, int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingSet:
    """Tariff of GPU time from now on (``themis.report.accounts``); the scheduler does not use it.

    Attributes
    ----------
    prices : (GPU type, price of one GPU hour), ``*`` for the others; types without one cost nothing.
    currency : of the prices, for people.
    groups : (user, group) of users who are in one. ``zone`` : time zone of the service's days, by its IANA name.
    """

    prices: tuple[tuple[str, float], ...] = ()
    currency: str = ""
    groups: tuple[tuple[str, str], ...] = ()
    zone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusIdle:
    """Idle GPU-seconds of a gang since it trains, over all its GPUs.

    ``by`` : nvml (no kernel ran on them) | reports (the job reported steps before, and reports none now).
    ``action`` : warned | cancelled, where the settings say so; empty otherwise.
    """

    job: int
    attempt: int
    gpu_seconds: GpuSeconds
    by: str
    action: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusIntruded:
    """Processes of a gang are on these GPUs of a machine, which it does not hold; none once they left them.

    ``gpus`` : ids in the cluster. ``pids`` : the processes, only some if there are many.
    """

    job: int
    attempt: int
    machine: int
    gpus: tuple[int, ...]
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOrdered:
    """An app's own scheduler wants its waiting jobs to get gangs in this order, before any that it does not name."""

    app: int
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The journal dropped this many records up to here: the log cannot be replayed, but the rest can still be read."""

    records: int


@record
class Wake:
    """All events of this instant are in: settle what follows from them."""


Event: TypeAlias = (
    MachineJoined
    | MachineFailed
    | MachineReturned
    | MachineDraining
    | AppSubmitted
    | AppCancelled
    | AppHeld
    | AppResumed
    | JobDelayed
    | JobGivenUp
    | QuotaSet
    | FairnessSet
    | UserWeightsSet
    | SettingsChanged
    | ProfilesSet
    | MachineResized
    | JournalRepaired
    | Quarantined
    | JobStarted
    | JobProgress
    | JobStopped
    | JobReached
    | SpeedMeasured
    | MetricsReported
    | BatchChanged
    | GoodputReported
    | LossReported
    | Allocated
    | BidsCollected
    | Wake
    | AgentBid
    | JobsOrdered
    | AccountingSet
    | GpusIdle
    | GpusIntruded
    | Compacted
    | GpusWithheld
)


# ---- commands: the core's requests and announcements ---------------------------------------------------------------


@record
class Grant:
    """Lease these GPUs to this job until then and start its gang; it reports when it has done ``target`` steps."""

    app: int
    job: int
    attempt: int
    gpus: tuple[int, ...]
    seat: int
    until: Seconds
    locality: int
    target: float
    score: float
    """Placement score in (0, 1]: one over the slowdown of this locality (Themis §6.1)."""


@record
class Renew:
    """These jobs' gangs keep the same GPUs until then; nothing restarts.

    One record for all leases that a decision renews to the same end.
    """

    jobs: tuple[int, ...]
    until: Seconds


@record
class Revoke:
    """The job's lease is over; stop the gang.

    ``cause``: expired | moved | finished | rung | stopped (by its tuner) | failed | own (it ended by itself, to be run
    again) | cancelled | held | walltime.
    """

    app: int
    job: int
    attempt: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """Announcement: the job will not run again. ``outcome``: completed | stopped (by its tuner) | cancelled | failed.

    ``isolated_s`` : what its steps take alone on its most GPUs of the fastest type, placed best; 0 in logs from before.
    ``gpu_seconds`` : what it held in all its leases; None in logs from before, which also lack the ends of jobs that ran when
    their app was cancelled.
    """

    app: int
    job: int
    outcome: str
    steps: float
    isolated_s: Seconds = 0.0
    gpu_seconds: GpuSeconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLease:
    """Announcement: the job's leases are no shorter than ``least_s`` from now on where its gang has to start.

    ``start_s`` : from its grant to the first report of a new step, or twice the time of an attempt that ended before one.
    ``step_s`` : of a step; 0 while unknown.
    """

    job: int
    start_s: Seconds
    step_s: Seconds
    least_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStopped:
    """Announcement: curve stopping gives a job up after ``steps`` steps; its ``JobEnded`` follows.

    ``forecast`` is the final loss extrapolated from its reports, give or take ``deviation``; ``chance`` is the
    probability that it ends below ``standard``, the forecast (or the loss) of the app's ``keep``-th best job.
    """

    app: int
    job: int
    steps: float
    forecast: float
    deviation: float
    standard: float
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFinished:
    """Announcement: the app has finished; its finish-time fairness over its whole life in both forms.

    ``outcome``: completed | cancelled | failed (a job of it was given up). ``contention`` is N_avg, ``capacity`` R_C
    averaged likewise. ``jct`` is all of its time; rho leaves out what its user held it.
    ``needed`` : what it needed, phase by phase: (GPU-seconds on GPUs of mean speed, placed best; most GPUs that the phase can
    use). Empty in logs from before.
    ``alone`` : seconds that it takes on the idle cluster, its starts included; 0 where it did not complete.
    ``scaling`` : of one elastic job: (GPUs, part of its full speed); without, speed is in proportion to GPUs.
    """

    app: int
    outcome: str
    jct: Seconds
    rho_paper: float
    rho_exact: float
    t_id_paper: Seconds
    t_id_exact: Seconds
    contention: float
    capacity: float
    gpu_seconds: float
    needed: tuple[tuple[GpuSeconds, float], ...] = ()
    alone: Seconds = 0.0
    scaling: tuple[tuple[float, float], ...] = ()


@record
class WakeAt:
    """Send ``Wake`` at this time, after all other events of that instant."""

    time: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Solve:
    """Run the policy on this snapshot and send ``Allocated``."""

    version: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """Nothing is left to decide: send ``Allocated`` with this answer. No policy is asked.

    Attributes
    ----------
    version : of the state. ``now`` : the instant of the decision.
    """

    version: int
    now: Seconds
    solved: Solved


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectBids:
    """Ask these apps' agents for bids on the offer and send ``BidsCollected``."""

    version: int
    ask: Ask
    snapshot: Snapshot


Command: TypeAlias = (
    Grant | Renew | Revoke | JobEnded | LeastLease | CurveStopped | AppFinished | WakeAt | Solve | Forced | CollectBids
)


TOLERANCE = 1e-9
"""Relative; how far numbers of one record may be apart in ``agrees`` where it does not compare exactly."""


def agrees(logged: Command, drawn: Command | None, *, exactly: bool = True) -> bool:
    """True if a logged command is the one that is drawn now.

    Parameters
    ----------
    exactly : False where floats may have been rounded otherwise when the log was written, by another version or on another
        processor: they agree within ``TOLERANCE`` then. Everything else is compared exactly always.
    """
    if logged == drawn:
        return True
    within = 0.0 if exactly else TOLERANCE
    return type(logged) is type(drawn) and all(
        _close(getattr(logged, f.name), getattr(drawn, f.name), within) for f in fields(logged)
    )


def _close(a: object, b: object, within: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        # Not a number is equal to itself here: a record that holds it must not keep its log from being folded.
        return math.isclose(a, b, rel_tol=within, abs_tol=within / 1000) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_close(x, y, within) for x, y in zip(a, b))
    return a == b
