"""The messages of the API, version 1: the only shapes that cross a wire. One file, so that ``schema.X`` names each.

Fields are only ever added. Times are seconds since 1970 (UTC), durations are seconds. A field that is None is left out of JSON.
Requests refuse unknown fields and values of another type; replies ignore fields that a newer service has.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    WithJsonSchema,
    model_validator,
)

from themis import limits
from themis.limits import Number as Range

INT64_TEXT = "^-?[0-9]{1,19}$"

By = Literal["user", "group", "day", "gpu_type"]


class Message(BaseModel):
    """A message; its fields have defaults, and are not checked again when they are changed."""

    # Schemas are built when they are first used: a client needs few of them.
    model_config = ConfigDict(
        defer_build=True, ser_json_inf_nan="strings", protected_namespaces=(), populate_by_name=True
    )


class Request(Message):
    """A message that callers send."""

    model_config = ConfigDict(extra="forbid")


def _long(given: Any) -> Any:
    """A whole number of 64 bits, which replies write as text because readers in JavaScript would round it."""
    return int(given) if isinstance(given, str) and re.fullmatch(INT64_TEXT, given) else given


def _count(least: int, most: int) -> Range:
    return Range(name="number", what="", least=least, most=most, whole=True)


Whole = Annotated[int, _count(-(2**31), 2**31 - 1)]
Count = Annotated[int, _count(0, 2**31 - 1)]
Most = Annotated[int, _count(0, 1000)]
Page = Annotated[int, _count(1, 1000)]
Long = Annotated[
    int,
    _count(0, 2**63 - 1),
    BeforeValidator(_long),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
                {"type": "string", "pattern": "^[0-9]{1,19}$"},
            ]
        }
    ),
]
"""Number of a record or a round; text too, as replies have it."""
Moment = Annotated[float, Range(name="time", what="", least=-62_135_510_400.0, most=253_402_128_000.0)]
"""Seconds since 1970 of days that calendars have in every time zone: 0001-01-02 to 9999-12-30."""
Path = Annotated[str, limits.PATH]
Gpus = Annotated[int, limits.GPUS]
Steps = Annotated[float, limits.STEPS]
Batch = Annotated[int, limits.BATCH]
Rho = Annotated[float, limits.RHO]
Int64 = Annotated[
    int, PlainSerializer(str, when_used="json"), WithJsonSchema({"type": "string", "pattern": "^-?[0-9]+$"})
]
Figure = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]})]


class Nothing(Request):
    """A call without parameters, or a reply without content."""


class SignInRequest(Request):
    handle: str = ""  # of the last reply
    token: str = ""  # to renew


class SignInReply(Message):
    handle: str = ""  # while the user has not agreed: for the next step
    url: str = ""  # where the user enters `code`; in the first reply alone
    whole_url: str = ""  # the same with the code, if the provider has one
    code: str = ""
    interval_s: Figure = 0.0  # until the next step, at least
    ends: Figure = 0.0  # of the code, or of the token; seconds since 1970
    token: str = ""  # signed in
    user: str = ""


class AuditRequest(Request):
    user: str = ""  # of one user; empty: all
    limit: Most = 0  # 0: 1000


class AuditEntry(Message):
    time: Figure = 0.0
    user: str = ""  # empty: the caller did not sign in
    method: str = ""  # token, oidc
    address: str = ""  # empty: the service itself
    action: str = ""
    target: str = ""
    outcome: str = ""  # ok, refused
    message: str = ""  # why it was refused
    count: int = 0  # calls like this within one minute, where they were refused; else 1


class AuditReply(Message):
    entries: list[AuditEntry] = []


class Setting(Message):
    name: str = ""  # as in docs/settings.md; users.NAME.weight and the like for users and groups
    value: str = ""
    since: Figure | None = None  # missing: since the journal began, or since the service started
    user: str = ""  # who changed it; empty: not changed
    restart: bool = False  # changes only when the service starts


class SettingsReply(Message):
    settings: list[Setting] = []


class SetRequest(Request):
    values: dict[str, str] = {}  # name -> value, as in docs/settings.md; `none` removes a limit, a user or a machine
    reload: StrictBool = False  # read the settings file again, and take on what changed in it


class SetReply(Message):
    changes: list[str] = []  # a sentence for each change and what follows from it; empty: nothing changed


class SettingsHistoryRequest(Request):
    limit: Most = 0  # maximum number of changes; 0: 1000


class SettingsChange(Message):
    """Settings that one call changed together."""

    record: Int64 = 0  # its number in the journal
    time: Figure = 0.0
    user: str = ""  # who changed them
    values: dict[str, str] = {}  # the new values


class SettingsHistoryReply(Message):
    changes: list[SettingsChange] = []


class Backup(Message):
    name: str = ""  # of its folder in `backups` of the data directory
    made: Figure = 0.0
    bytes: Figure = 0.0


class JournalReply(Message):
    records: Int64 = 0
    began: Figure = 0.0  # when the journal began
    last: Figure = 0.0  # time of its last record
    bytes: Figure = 0.0  # of the journal's file
    free_bytes: Figure = 0.0  # on its disk
    path: str = ""  # the data directory
    backups: list[Backup] = []  # the newest first


class InfoReply(Message):
    version: str = ""
    api: int = 0
    policy: str = ""
    gpus: int = 0
    machines: int = 0
    started: Figure = 0.0
    lease_s: Figure = 0.0
    active_apps: int = 0
    records: Int64 = 0  # of the journal
    problem: str = ""  # the last decision that the policy could not make; empty if none
    pid: int = 0
    unknown_work_s: Figure = 0.0  # assumed run time of a job without estimates
    user: str = ""  # the caller, by the token
    admin: bool = False
    engine: str = ""  # local: this machine; fleet: machines that joined; ray: the nodes of a Ray cluster
    max_bundle: Int64 = 0  # most bytes of a bundle (PUT /v1/bundles/{sha256}); 0 from a service without bundles
    unready: str = ""  # why submissions are refused or not decided on, as /readyz says; empty where neither


class AppRef(Request):
    """An app by its number, or by its name."""

    app: str = ""


class Program(Request):
    argv: list[str] = []  # no shell
    cwd: Path = ""  # absolute
    env: dict[str, str] = {}
    launch: Path = (
        ""  # once (default): one process, on one machine; gpu: a rank for each GPU; machine: one for each machine
    )
    grace_s: Annotated[float, limits.GRACE_S] | None = None
    stop_signal: Path = ""  # SIGTERM by default
    checkpoint_dir: Path = ""
    # The job's work is an estimate of time, not the steps that the program counts: it gets no target, its reports of
    # steps are not believed, and it ends when it ends, however long that takes.
    work_is_time: StrictBool = False
    # Nothing was said about its work. Its regimes are an assumption; without any, the setting unknown_work is.
    work_unknown: StrictBool = False
    # The files that it is sent with, by the SHA-256 of their archive; cwd is then a folder among them, "/" the topmost.
    bundle: Path = ""
    packages: Path = ""  # uv.lock, a requirements file or a conda file, relative to cwd; empty for none
    modules: Annotated[list[str], limits.MODULES] = []  # to load with `module load`
    launcher: Path = ""  # bwrap, apptainer:IMAGE or docker:IMAGE; empty for none
    checkpoint_url: Path = (
        ""  # where checkpoints are copied: a URL of fsspec, or themis:// for the service; empty for nowhere
    )
    outputs: list[str] = []  # files and folders below cwd that the service keeps; only with a bundle
    exports: dict[
        str, str
    ] = {}  # variables of the submitter's shell; a value that is a path must exist on the job's machine
    secrets: list[str] = []  # names of variables in the file ~/.config/themis/secrets of the job's account


class Regime(Request):
    steps: Steps
    batch: Batch = 0


class BatchSize(Request):
    batch: Batch
    steps_per_epoch: Annotated[float, limits.EPOCH_STEPS]


class Dynamic(Request):
    """A dynamic job's declaration (Shockwave): its regimes' steps are epochs."""

    mode: Literal["gns", "accordion", "declared"]
    sizes: Annotated[list[BatchSize], limits.BATCH_SIZES] = []  # rising; all that it may use
    regimes: Annotated[int, limits.DYNAMIC_REGIMES] = 0  # accordion: maximum number of stretches at one size; 0: 6


class Job(Request):
    name: str = ""
    model: Annotated[str, limits.WORD] = "generic"  # a profile's name; "generic" makes one step a second on one GPU
    regimes: Annotated[list[Regime], limits.REGIMES] = []
    gpus_min: Gpus = 1
    gpus_max: Gpus | None = None  # absent: gpus_min
    step_scale: Annotated[float, limits.STEP_SCALE] | None = None
    gpu_types: Annotated[list[Annotated[str, limits.WORD]], limits.GPU_TYPES] = []
    program: Program = Field(default_factory=Program)
    cpus: Annotated[float, limits.CPUS] = 0.0  # cores for each GPU; checked against the machines, not enforced
    memory: Annotated[int, limits.MEMORY] = 0  # bytes for each GPU, likewise
    dynamic: Dynamic | None = None


class Rung(Request):
    jobs: Annotated[int, limits.TRIALS]
    steps: Steps


class Bracket(Request):
    rungs: Annotated[list[Rung], limits.RUNGS] = []


class Brackets(Request):
    """Successive halving (one bracket) or Hyperband (several)."""

    brackets: Annotated[list[Bracket], limits.BRACKETS] = []


class CurveStopping(Request):
    check_steps: Steps
    keep: Annotated[int, limits.KEEP]
    confidence: Annotated[float, limits.CONFIDENCE]
    warmup: Annotated[int, limits.WARMUP]
    floor: Annotated[float, limits.FLOOR] | None = None  # no loss is below it


class SpeedCurve(Request):
    gpu_type: Annotated[str, limits.WORD]  # "*" for any
    gpus: Annotated[list[Gpus], limits.SPEED_POINTS]  # rising
    steps_per_s: list[Annotated[float, limits.SPEED]]  # for each of them
    # Until it is measured: the model that stands in on a type not named; "guessed": a guess from the job's time.
    like: Annotated[str, limits.LIKE] = ""


class Profile(Request):
    """A model's speed as its submitter knows it; the app's jobs then name no `model`."""

    curves: Annotated[list[SpeedCurve], limits.GPU_TYPES] = []
    slowdown: list[Annotated[float, limits.SLOWDOWN]] = []  # of slot, machine, rack, cross-rack; none: the default
    checkpoint_s: Annotated[float, limits.CHECKPOINT_S] | None = None


class After(Request):
    """Start once another app of the same user has ended."""

    app: str = ""  # number or name
    when: Literal["ok", "failed", "any"] = "ok"  # ok: all its jobs did well; failed: it ended otherwise


class SubmitRequest(Request):
    key: Annotated[str, limits.KEY] = ""  # unique for this submission, chosen by the caller
    name: str = ""
    user: str = ""  # empty: the caller; only administrators may name others
    weight: Annotated[float, limits.WEIGHT] = 1.0  # only administrators may give more than 1
    jobs: Annotated[list[Job], limits.JOBS] = []
    # none: all jobs run to the end
    brackets: Brackets | None = None
    curve: CurveStopping | None = None
    retries: Annotated[int, limits.RETRIES] | None = None  # failures of one job after which the job is given up
    deadline_s: Annotated[float, limits.DEADLINE_S] | None = None  # seconds after the submission
    profile: Profile | None = None
    after: Annotated[list[After], limits.AFTER] = []  # all must be met; if one no longer can be, the app is cancelled
    walltime_s: Annotated[float, limits.WALLTIME_S] | None = None  # most time of one job, over all its attempts
    at_once: Annotated[int, limits.AT_ONCE] = 0  # maximum number of concurrent jobs; 0: no limit
    machine: Annotated[str, limits.NAMED] = (
        ""  # on which all its jobs run, for administrators' measurements; empty: any
    )

    @model_validator(mode="after")
    def _one_tuner(self) -> SubmitRequest:
        if self.brackets is not None and self.curve is not None:
            raise ValueError("brackets and curve are given, expected one of them.")
        return self


class SubmitReply(Message):
    app: int = 0
    name: str = ""  # with a number added where the name was taken
    layout: str = ""  # how a gang of several GPUs runs, such as "1 process, 4 GPUs (ranks: --launch gpu, or torchrun)"


class JobFile(Request):
    """A job file (docs/jobs.md)."""

    key: Annotated[str, limits.KEY] = ""  # unique for this submission, chosen by the caller
    text: str = ""  # YAML, at most 256 KiB
    source: Annotated[str, limits.NAMED] = ""  # its name, for messages
    folder: Path = ""  # absolute; `workdir` is relative to it
    user: str = ""  # empty: the caller; only administrators may name others
    exports: dict[str, str] = {}  # as in Program, for all jobs
    secrets: list[str] = []


class JobFileReply(Message):
    apps: list[SubmitReply] = []
    notes: list[str] = []


class App(Message):
    id: int = 0
    name: str = ""
    user: str = ""
    state: str = ""  # waiting | running | stopping | held | completed | cancelled | failed
    gpus: int = 0  # leased now
    demand: int = 0  # that its runnable jobs could use
    jobs: int = 0
    jobs_ended: int = 0
    progress: Figure = (
        0.0  # share of its work done, 0 to 1; jobs that are done have none left, failed and cancelled ones keep theirs
    )
    submitted: Figure = 0.0
    ended: Figure | None = None
    rho: Figure | None = None  # finish-time fairness over its whole life: forecast on its own share, or as it ended
    sooner_s: Figure | None = (
        None  # how much sooner it ends, or ended, than on its own share; below 0: later; absent: unknown
    )
    expected_end: Figure | None = None  # as in WhyReply
    gpu_hours: Figure = 0.0
    weight: Figure = 0.0
    reason: str = ""  # why it failed or was cancelled, or what it waits for, in words
    waits: str = (
        ""  # what it waits for: after | held | quota | budget | at_once | backoff | gpus; empty if it does not wait
    )
    warning: str = ""  # budgets of its user or group whose soft limit is reached, in words; idle GPUs
    elapsed_s: Figure = 0.0  # run time of the job that has run longest, over all its attempts
    walltime_s: Figure | None = None  # maximum run time of one job
    steps_known: bool = False  # its work is in steps that its programs report; if not, `progress` is an estimate
    nodes: list[str] = []  # machines of its running jobs
    jobs_done: int = (
        0  # of those that ended: completed, or stopped by the app's tuner; failed and cancelled ones are not
    )


class Attempt(Message):
    number: int = 0
    ending: str = ""  # finished | stopped | requeued | terminated | node_lost | not_started | failed
    cause: str = ""
    code: int | None = None
    seconds: Figure = 0.0
    steps: Figure = 0.0
    killed: bool = False
    message: str = ""
    ended: Figure = 0.0


class JobInfo(Message):
    id: int = 0  # position in the app, from 0
    name: str = ""
    state: str = ""  # waiting | running | stopping | held | paused | ended
    attempt: int = 0
    gpus: list[int] = []
    nodes: list[str] = []
    steps: Figure | None = None  # as its program reports them; absent where it reported none
    total: Figure | None = None  # of its work, or as its program reports it; absent where neither says
    until: Figure | None = None  # end of its lease
    command: list[str] = []
    attempts: list[Attempt] = []
    outcome: str = ""  # of one that ended: completed | stopped | cancelled | failed
    gpu_hours: Figure = 0.0  # held in all its leases so far
    elapsed_s: Figure = 0.0  # run time over all attempts
    walltime_s: Figure | None = None  # maximum run time
    steps_known: bool = False  # its work is in the steps that its program reports
    metrics: dict[str, Figure] = {}  # as its program reported them last, by name
    last_lines: list[str] = []  # the end of the output of rank 0, of a job that failed


class Status(Message):
    status: Literal["ok"] = "ok"


class BundleRef(Request):
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = ""  # of an archive, as 64 hexadecimal digits


class BundleReply(Message):
    sha256: str = ""
    bytes: int = 0


class JobRef(Request):
    app: str = ""
    job: Count = 0  # position in the app, from 0
    machine: Count = 0  # of its gang, from 0


class KeptCopy(Message):
    """An archive of the newest copy of a job's checkpoints and outputs: what one machine of its gang wrote."""

    job: int = 0  # position in the app, from 0
    machine: int = 0  # of its gang, from 0; of two files of one name, that of the lower machine counts
    attempt: int = 0
    sha256: str = ""
    bytes: int = 0
    time: Figure = 0.0


class CopiesReply(Message):
    copies: list[KeptCopy] = []
    coming: list[int] = []  # positions of jobs that ended, and whose machines still make or send their last archives


class AppReply(Message):
    app: App


class RunId(Message):
    """A run of a job in MLflow or Weights & Biases."""

    tracker: str = ""  # mlflow | wandb
    run: str = ""
    job: int = 0  # position in the app, from 0
    attempt: int = 0


class ShowReply(Message):
    app: App
    jobs: list[JobInfo] = []
    runs: list[RunId] = []  # in MLflow and Weights & Biases
    sweep: bool = False  # its jobs have parameters: `Trials` has more
    sentence: str = ""  # why it does not run (more) now, as `Why` says it; empty if it has ended
    layout: str = ""  # how its gangs run, as in SubmitReply; empty for one GPU
    assumed: list[
        str
    ] = []  # GPU types on which another model's speeds stand in for its own, and which, until they are measured


class Trial(Message):
    """A job of a sweep."""

    job: int = 0  # position in the app, from 0
    name: str = ""
    state: str = ""
    outcome: str = ""
    parameters: str = ""  # a JSON object
    steps: Figure | None = None  # as its program reports them; absent where it reported none
    last_loss: Figure | None = None
    best_loss: Figure | None = None
    best_steps: Figure = 0.0  # at which it reported its best loss
    checkpoint: str = ""  # folder or URL of its checkpoints
    total: Figure | None = None  # of its work, or as its program reports it
    metrics: dict[str, Figure] = {}  # as its program reported them last, by name
    stopped: Figure | None = None  # when it ended early
    why_stopped: str = ""
    elapsed_s: Figure = 0.0
    gpu_hours: Figure = 0.0


class TrialsReply(Message):
    app: App
    trials: list[Trial] = []


class AppsRequest(Request):
    user: str = ""  # only this user's; empty: all users'
    ended: StrictBool = False  # list finished apps instead of active ones
    state: Literal["", "waiting", "running", "stopping", "held", "completed", "cancelled", "failed"] = ""  # only those
    limit: Most = 0  # maximum number, newest first; 0: 1000


class AppsReply(Message):
    apps: list[App] = []


class NodeRef(Request):
    node: str = ""
    deadline_s: Annotated[float, limits.DEADLINE_S] = 0.0  # for Drain: from now; 0: immediately


class Node(Message):
    name: str = ""
    state: str = ""  # up | lost | away (with notice) | draining | drained | leaving
    gpu_type: str = ""
    gpus: int = 0
    leased: int = 0
    apps: list[str] = []
    until: Figure | None = None  # draining: when the jobs that are left are preempted
    niceness: int = 0  # of jobs there: above 0, whatever else runs on the machine comes first
    trust: str = ""  # per_user: jobs run as their submitters' system users; single: all as one; root: that may be root
    containment: str = ""  # of jobs there: cgroup | namespace | none; empty while its agent did not say
    limits: list[str] = []  # what of jobs is limited there: memory, cpus
    withheld: int = 0  # GPUs that get no job, because of processes that belong to none
    withheld_pids: list[int] = []  # those processes
    withheld_reason: str = ""
    rejected: str = ""  # why nothing that the machine sends is accepted; empty where it is


class NodesReply(Message):
    nodes: list[Node] = []


class NodeReply(Message):
    node: Node


class UsersRequest(Request):
    user: str = ""


class UserShare(Message):
    user: str = ""
    apps: int = 0
    gpus: int = 0
    share: Figure = 0.0  # of the GPUs in service, 0 to 1
    fair: Figure = 0.0  # its part of the weight of all active apps, 0 to 1
    rho_worst: Figure | None = None
    rho_median: Figure | None = None
    gpu_hours: Figure = 0.0  # that these apps have had
    private_gpu_hours: Figure = (
        0.0  # that they would have had on their own 1/N of the cluster, from when each was submitted
    )
    between: str = ""  # the unit of fairness: apps, users or groups
    # Of its active apps: forecast time from submission to end, over that on the app's own share of the cluster; absent without
    # a whole journal.
    sooner_worst_s: Figure | None = None  # of the app that ends least sooner than on its own share; below 0: later
    rho_reference_worst: Figure | None = None
    rho_reference_median: Figure | None = None
    rho_attainable_worst: Figure | None = None  # over the longer of that and its time on an idle cluster
    promise_known: int = 0  # its active apps whose end is forecast
    promise_kept: int = 0  # those of them for which the promise of `report.promise` holds


class ShareReply(Message):
    users: list[UserShare] = []


class UserCourse(Message):
    """One user's GPU hours over time; of the empty name: all others' together."""

    user: str = ""
    entitled: list[Figure] = []  # in each stretch of time: the equal share, as far as the user's apps could use it
    leased: list[Figure] = []  # in each stretch
    balance: Figure = 0.0  # leased less entitled so far; below 0: lent to others
    since: Figure | None = None  # when the balance got the sign that it has; absent: it is even


class Loan(Message):
    """GPU hours that one user was entitled to and another one had."""

    lender: str = ""
    borrower: str = ""
    gpu_hours: Figure = 0.0


class FairnessReply(Message):
    start: Figure = 0.0  # stretch i begins at start + i width
    width: Figure = 0.0
    until: Figure = 0.0  # end of the last stretch
    users: list[UserCourse] = []  # the furthest behind first
    loans: list[Loan] = []  # the largest first
    whole: bool = False  # false: a long journal is still being read, and `until` is behind; ask again
    between: str = ""  # the unit of fairness


class BudgetUse(Message):
    """A limit of GPU time or cost, and what is used of it."""

    name: str = ""  # as `user ann` or `group vision`
    of: str = ""  # gpu_hours | cost
    per: str = ""  # day | week | month | total
    used: Figure = 0.0  # in GPU hours or cost
    soft: Figure | None = None
    hard: Figure | None = None
    ends: Figure | None = None  # when it is renewed
    currency: str = ""  # of cost
    users: list[str] = []


class BudgetsReply(Message):
    budgets: list[BudgetUse] = []


class UsageRequest(Request):
    user: str = ""  # only this user's; empty: all that the caller may see
    since: Moment | None = None  # whole days, from that of this time on; absent: all
    until: Moment | None = None  # the last day; absent: today
    by: list[By] = []  # user | group | day | gpu_type; none: user
    utc: StrictBool = False  # days are those of UTC, not of the service's time zone


class UserUsage(Message):
    """GPU time of one user, group, day or GPU type, whichever were asked for; the other names are empty."""

    user: str = ""
    apps: int = 0  # that are active, or ended in these days; 0 unless by user or group alone
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    gpu_hours: Figure = 0.0  # leased; the sum of useful, restart, lost and idle
    group: str = ""
    day: str = ""  # as 2026-11-23
    gpu_type: str = ""  # "unknown" for time from before there were accounts
    useful_hours: Figure = 0.0
    restart_hours: Figure = 0.0  # until the gang trained
    lost_hours: Figure = 0.0  # since the last checkpoint, of leases that ended by a failure
    idle_hours: Figure = 0.0  # training in which the GPUs did nothing
    cost: Figure = 0.0
    currency: str = ""


class UsageReply(Message):
    users: list[UserUsage] = []
    zone: str = ""  # time zone of the days


class HistoryRequest(Request):
    user: str = ""
    since: Moment | None = None  # apps that ended at this time or later
    until: Moment | None = None
    state: list[Literal["completed", "cancelled", "failed"]] = []  # completed | cancelled | failed; none: all
    reason: str = ""  # part of the app's reason, or an attempt's ending, cause or message
    limit: Most = 0  # maximum number, newest first; 0: 1000


class PastAttempt(Message):
    job: int = 0  # position in the app, from 0
    name: str = ""
    attempt: int = 0
    gpus: int = 0
    gpu_type: str = ""
    since: Figure = 0.0  # begin of the lease
    started: Figure | None = None
    ended: Figure | None = None
    cause: str = ""  # why the lease ended: expired | moved | finished | rung | stopped | failed | own | cancelled | held | walltime
    ending: str = ""  # of the program, as in Attempt
    code: int | None = None
    message: str = ""
    gpu_hours: Figure = 0.0
    useful_hours: Figure = 0.0
    restart_hours: Figure = 0.0
    lost_hours: Figure = 0.0
    idle_hours: Figure = 0.0
    idle_by: str = ""  # who measured idle time: nvml | reports; empty: nothing did
    cost: Figure = 0.0
    currency: str = ""


class PastApp(Message):
    id: int = 0
    name: str = ""
    user: str = ""
    group: str = ""
    state: str = ""  # completed | cancelled | failed
    reason: str = ""
    jobs: int = 0
    submitted: Figure = 0.0
    started: Figure | None = None  # its first lease
    ended: Figure = 0.0
    rho: Figure | None = None
    gpu_hours: Figure = 0.0
    useful_hours: Figure = 0.0
    restart_hours: Figure = 0.0
    lost_hours: Figure = 0.0
    idle_hours: Figure = 0.0
    cost: Figure = 0.0
    currency: str = ""
    gpu_types: list[str] = []
    attempts: list[PastAttempt] = []
    runs: list[RunId] = []


class HistoryReply(Message):
    apps: list[PastApp] = []


class UserRef(Request):
    user: str = ""
    admin: StrictBool = False  # may act on everybody's apps, drain machines, add users
    no_jobs: StrictBool = False  # the user submits none, and may be no system user


class UserToken(Message):
    user: str = ""
    token: str = ""


class User(Message):
    user: str = ""
    admin: bool = False
    added: Figure = 0.0
    method: str = ""  # token, oidc
    ends: Figure = 0.0  # of the last sign-in; 0: a token has no end


class UserReply(Message):
    user: User


class UsersReply(Message):
    users: list[User] = []


class EventsRequest(Request):
    after: Long = 0  # number of the last record known
    follow: StrictBool = True  # wait for further records
    limit: Count = 0  # 0: no limit
    user: str = ""  # only what concerns this user's apps; empty: all


class JobOfApp(Message):
    app: int = 0
    job: int = 0  # position in the app, from 0


class Record(Message):
    number: int = 0
    time: Figure = 0.0
    kind: str = ""
    record: dict[str, Any] = {}  # as in an event log, which numbers the jobs of all apps together
    jobs: list[JobOfApp] = []  # the jobs that the record names

    @property
    def line(self) -> str:
        """The record as a line of an event log."""
        return orjson.dumps(self.record).decode()


class RecordsRequest(Request):
    user: str = ""  # only what concerns this user's apps; empty: all
    after: Long = 0  # number of the last record known
    limit: Page = 1000


class RecordsReply(Message):
    records: list[Record] = []


class LogsRequest(Request):
    app: str = ""
    job: Count = 0  # position in the app, from 0
    rank: Count = 0
    follow: StrictBool = False
    attempt: Count = 0  # 0: all


class Ahead(Message):
    app: int = 0
    name: str = ""
    user: str = ""
    rho: Figure = 0.0


class WhyRequest(AppRef):
    quick: StrictBool = False  # without simulations and history: answered immediately


class WhyReply(Message):
    story: str = Field(default="", alias="json")  # auctions, bids, payments and leases, as JSON
    code: str = ""  # why it does not run (more) now; docs/service.md lists the codes
    sentence: str = ""
    position: int = 0  # among apps that want GPUs: those without any first, then the worst off; 0: it wants none
    of: int = 0
    rho: Figure | None = None
    ahead: list[Ahead] = []  # the first 20 of those before it
    # When it gets its next GPUs, by short simulations without new arrivals; absent if not needed or not ready in time.
    start_median: Figure | None = None
    start_earliest: Figure | None = None
    start_latest: Figure | None = None  # missing: some simulations never got there
    simulations: int = 0
    assumed: list[str] = []  # as in ShowReply
    between: str = ""  # the unit of fairness: apps, users or groups
    weight: Figure = 0.0  # of the app now: between users its part of its user's
    fair: Figure = 0.0  # its part of the weight in the system, 0 to 1
    warning: str = ""  # as in App
    # Of an active app, absent without a whole journal: what its own share of the cluster, that no policy influences, would give.
    rho_reference: Figure | None = None  # forecast time from submission to end, over that on its own share
    rho_attainable: Figure | None = None  # over the longer of that and its time on an idle cluster
    reference_end: Figure | None = None  # when it would end on its own share
    expected_end: Figure | None = None  # when it is expected to end; absent where it is unknown
    end_low: Figure | None = None  # its 80 % interval
    end_high: Figure | None = None
    sooner_s: Figure | None = None  # how much sooner that is than on its own share; below 0: later
    lent_gpu_hours: Figure | None = (
        None  # what it would have had by now on its own share, less what it had; below 0: borrowed
    )
    lent_back: Figure | None = None  # by when it has got that back, if it ends as expected


class WhatIfRequest(Request):
    policies: list[str] = []  # names with parameters; `current` is the one in force; none: `current`
    add_gpus: list[str] = []  # GPUs that join, as `8` or `8@A100`
    remove: list[str] = []  # GPUs that leave, as `4@V100`, or names of machines
    without: list[str] = []  # numbers or names of apps that are cancelled; users name their own
    horizon_s: Annotated[float, limits.SECONDS] = 0.0  # time ahead; 0: seven days
    simulations: Whole = 0  # of each case, at most 100; 0: 20
    no_arrivals: StrictBool = False  # without further apps, which are otherwise drawn from the history


class WhatIfTimes(Message):
    """Forecast finish times of an app, in seconds from now."""

    case: str = ""  # `today`, or the policy
    later: bool = False  # the median is beyond the horizon
    low_s: Figure | None = None  # of the 80 % interval; missing: beyond the horizon, or the case leaves the app out
    median_s: Figure | None = None
    high_s: Figure | None = None
    difference_s: Figure | None = None  # to today's: the median over the simulations


class WhatIfApp(Message):
    app: int = 0
    name: str = ""
    user: str = ""
    state: str = ""  # running, waiting or held
    forecasts: list[WhatIfTimes] = []  # today's first, then those of each case


class WhatIfCase(Message):
    """A case over the apps of all users."""

    policy: str = ""
    compared: int = 0
    sooner: int = 0
    later: int = 0
    worst_s: Figure | None = None  # the largest difference; missing: beyond the horizon
    best_s: Figure | None = None
    sentence: str = ""
    problem: str = ""  # why it was not simulated


class WhatIfReply(Message):
    now: Figure = 0.0
    policy: str = ""  # in force
    changes: str = ""  # of machines and apps, in words
    horizon_s: Figure = 0.0
    simulations: int = 0  # that there was time for
    arrivals: bool = False  # whether further apps were drawn
    calibrated: bool = False  # whether intervals are corrected by past forecasts of the same journal
    basis: str = ""  # what the figures rest on, a sentence
    columns: list[str] = []
    apps: list[WhatIfApp] = []
    cases: list[WhatIfCase] = []


class Welcome(Message):
    app: int = 0
    name: str = ""
    answer_s: Figure = 0.0  # for each answer
    misses: int = 0  # missing answers in a row after which the service's agent takes over
    rows: int = 0  # most rows of a bid


class AgentJob(Message):
    job: int = 0  # position in the app, from 0
    left: Figure = 0.0  # GPU-seconds on one reference GPU to the end of its rung, or of its work
    gpus_min: int = 0
    gpus_max: int = 0
    held: int = 0  # GPUs beyond this instant
    expiring: int = 0  # GPUs whose lease ends now; they are in the offer
    gpu_types: list[str] = []  # that it may use


class Picture(Message):
    """The app as the service sees it at the decision's instant."""

    elapsed: Figure = 0.0  # seconds since it was submitted
    t_id: Figure = (
        0.0  # seconds that it would take on its own 1/N of the cluster; rho = (elapsed + seconds left) / t_id
    )
    rho: Figure = 0.0  # the service's own estimate, with the GPUs held beyond this instant
    lease_s: Figure = 0.0
    jobs: list[AgentJob] = []  # that can run


class Probe(Message):
    """The question for the app's rho now, with the GPUs held beyond this instant. No answer: the service's own estimate serves."""

    round: Int64 = 0
    answer_s: Figure = 0.0
    app: Picture


class OfferedGpus(Message):
    node: str = ""
    rack: str = ""
    gpu_type: str = ""
    gpus: int = 0


class BidRow(Request):
    """One of several exclusive choices: the app's rho with these gangs in addition to its GPUs."""

    gangs: Annotated[list[Gpus], limits.GANGS] = []  # GPUs of each; a gang serves one job
    span: str = "anywhere"  # how far each gang may reach: machine, rack, anywhere
    gpu_type: str = ""  # type of all its GPUs; may be omitted if the cluster has one type
    anchor: str = ""  # the node (span machine) or rack (span rack) that all gangs must lie in; empty: any
    rho: Annotated[float, Range(name="rho", what="", least=0.0, most=1e300)]


class Offer(Message):
    """Several apps see the same GPUs; each answers with one bid."""

    round: Int64 = 0
    answer_s: Figure = 0.0
    app: Picture
    gpus: list[OfferedGpus] = []
    rows: list[BidRow] = []  # the bid that the service's agent would make


class Award(Message):
    round: Int64 = 0
    bid: bool = False  # false: filtered out, the service had apps to serve that are worse off
    won: int = 0  # GPUs
    kept: Figure = 0.0  # share that is left after the hidden payment
    leftover: int = 0  # GPUs dealt out after the auction


class Lease(Message):
    what: str = ""  # granted | renewed | revoked
    job: int = 0  # position in the app
    gpus: list[int] = []
    nodes: list[str] = []
    until: Figure = 0.0
    cause: str = ""  # of a revocation


class Goodbye(Message):
    reason: str = ""  # over | replaced | silent


class AgentEvent(Message):
    """A message to an app's agent: exactly one of these."""

    welcome: Welcome | None = None  # first
    probe: Probe | None = None
    offer: Offer | None = None
    award: Award | None = None  # of the decision in which it bid
    lease: Lease | None = None  # what its jobs get and lose, by any decision
    goodbye: Goodbye | None = None  # last


class AgentAnswer(Request):
    """An agent's answer to a probe, which has rho alone, or to an offer."""

    app: str = ""
    round: Long = 0  # of the question
    rho: Rho | None = None  # to an offer: of winning nothing; else what was estimated, else the service's own
    rows: list[BidRow] = []  # at most 64; none: it wants nothing now
    jobs: list[Whole] = []  # which of its waiting jobs should get gangs first, from now on


class AnswersRequest(Request):
    answers: Annotated[list[AgentAnswer], limits.ANSWERS]


class AnswersReply(Message):
    refused: list[str] = []  # of each answer: why it was refused, empty if it was taken


def what(event: AgentEvent | Message) -> str:
    """The kind of a message to an agent: the name of its field."""
    return next((name for name in AgentEvent.model_fields if getattr(event, name, None) is not None), "")
