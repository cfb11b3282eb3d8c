from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SignInRequest(_message.Message):
    __slots__ = ("handle", "token")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    handle: str
    token: str
    def __init__(self, handle: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class SignInReply(_message.Message):
    __slots__ = ("handle", "url", "whole_url", "code", "interval_s", "ends", "token", "user")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    WHOLE_URL_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    handle: str
    url: str
    whole_url: str
    code: str
    interval_s: float
    ends: float
    token: str
    user: str
    def __init__(self, handle: _Optional[str] = ..., url: _Optional[str] = ..., whole_url: _Optional[str] = ..., code: _Optional[str] = ..., interval_s: _Optional[float] = ..., ends: _Optional[float] = ..., token: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ("user", "limit")
    USER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    user: str
    limit: int
    def __init__(self, user: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class AuditReply(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("time", "user", "method", "address", "action", "target", "outcome", "message", "count")
    TIME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    time: float
    user: str
    method: str
    address: str
    action: str
    target: str
    outcome: str
    message: str
    count: int
    def __init__(self, time: _Optional[float] = ..., user: _Optional[str] = ..., method: _Optional[str] = ..., address: _Optional[str] = ..., action: _Optional[str] = ..., target: _Optional[str] = ..., outcome: _Optional[str] = ..., message: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class SettingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Setting(_message.Message):
    __slots__ = ("name", "value", "since", "user", "restart")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    since: float
    user: str
    restart: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., since: _Optional[float] = ..., user: _Optional[str] = ..., restart: _Optional[bool] = ...) -> None: ...

class SettingsReply(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    def __init__(self, settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ...) -> None: ...

class SetRequest(_message.Message):
    __slots__ = ("values", "reload")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    RELOAD_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    reload: bool
    def __init__(self, values: _Optional[_Mapping[str, str]] = ..., reload: _Optional[bool] = ...) -> None: ...

class SetReply(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changes: _Optional[_Iterable[str]] = ...) -> None: ...

class SettingsHistoryRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class SettingsChange(_message.Message):
    __slots__ = ("record", "time", "user", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RECORD_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    record: int
    time: float
    user: str
    values: _containers.ScalarMap[str, str]
    def __init__(self, record: _Optional[int] = ..., time: _Optional[float] = ..., user: _Optional[str] = ..., values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SettingsHistoryReply(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[SettingsChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[SettingsChange, _Mapping]]] = ...) -> None: ...

class JournalRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Backup(_message.Message):
    __slots__ = ("name", "made", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    made: float
    bytes: float
    def __init__(self, name: _Optional[str] = ..., made: _Optional[float] = ..., bytes: _Optional[float] = ...) -> None: ...

class JournalReply(_message.Message):
    __slots__ = ("records", "began", "last", "bytes", "free_bytes", "path", "backups")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BACKUPS_FIELD_NUMBER: _ClassVar[int]
    records: int
    began: float
    last: float
    bytes: float
    free_bytes: float
    path: str
    backups: _containers.RepeatedCompositeFieldContainer[Backup]
    def __init__(self, records: _Optional[int] = ..., began: _Optional[float] = ..., last: _Optional[float] = ..., bytes: _Optional[float] = ..., free_bytes: _Optional[float] = ..., path: _Optional[str] = ..., backups: _Optional[_Iterable[_Union[Backup, _Mapping]]] = ...) -> None: ...

class BackUpRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoReply(_message.Message):
    __slots__ = ("version", "api", "policy", "gpus", "machines", "started", "lease_s", "active_apps", "records", "problem", "pid", "unknown_work_s", "user", "admin", "engine", "max_bundle", "http_port", "unready")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    API_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_APPS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_WORK_S_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MAX_BUNDLE_FIELD_NUMBER: _ClassVar[int]
    HTTP_PORT_FIELD_NUMBER: _ClassVar[int]
    UNREADY_FIELD_NUMBER: _ClassVar[int]
    version: str
    api: int
    policy: str
    gpus: int
    machines: int
    started: float
    lease_s: float
    active_apps: int
    records: int
    problem: str
    pid: int
    unknown_work_s: float
    user: str
    admin: bool
    engine: str
    max_bundle: int
    http_port: int
    unready: str
    def __init__(self, version: _Optional[str] = ..., api: _Optional[int] = ..., policy: _Optional[str] = ..., gpus: _Optional[int] = ..., machines: _Optional[int] = ..., started: _Optional[float] = ..., lease_s: _Optional[float] = ..., active_apps: _Optional[int] = ..., records: _Optional[int] = ..., problem: _Optional[str] = ..., pid: _Optional[int] = ..., unknown_work_s: _Optional[float] = ..., user: _Optional[str] = ..., admin: _Optional[bool] = ..., engine: _Optional[str] = ..., max_bundle: _Optional[int] = ..., http_port: _Optional[int] = ..., unready: _Optional[str] = ...) -> None: ...

class AppRef(_message.Message):
    __slots__ = ("app",)
    APP_FIELD_NUMBER: _ClassVar[int]
    app: str
    def __init__(self, app: _Optional[str] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("argv", "cwd", "env", "launch", "grace_s", "stop_signal", "checkpoint_dir", "work_is_time", "bundle", "packages", "modules", "launcher", "checkpoint_url", "outputs")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ARGV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    STOP_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    WORK_IS_TIME_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    PACKAGES_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URL_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    argv: _containers.RepeatedScalarFieldContainer[str]
    cwd: str
    env: _containers.ScalarMap[str, str]
    launch: str
    grace_s: float
    stop_signal: str
    checkpoint_dir: str
    work_is_time: bool
    bundle: str
    packages: str
    modules: _containers.RepeatedScalarFieldContainer[str]
    launcher: str
    checkpoint_url: str
    outputs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, argv: _Optional[_Iterable[str]] = ..., cwd: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., launch: _Optional[str] = ..., grace_s: _Optional[float] = ..., stop_signal: _Optional[str] = ..., checkpoint_dir: _Optional[str] = ..., work_is_time: _Optional[bool] = ..., bundle: _Optional[str] = ..., packages: _Optional[str] = ..., modules: _Optional[_Iterable[str]] = ..., launcher: _Optional[str] = ..., checkpoint_url: _Optional[str] = ..., outputs: _Optional[_Iterable[str]] = ...) -> None: ...

class Regime(_message.Message):
    __slots__ = ("steps", "batch")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    steps: float
    batch: int
    def __init__(self, steps: _Optional[float] = ..., batch: _Optional[int] = ...) -> None: ...

class Dynamic(_message.Message):
    __slots__ = ("mode", "sizes", "regimes")
    MODE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    REGIMES_FIELD_NUMBER: _ClassVar[int]
    mode: str
    sizes: _containers.RepeatedCompositeFieldContainer[BatchSize]
    regimes: int
    def __init__(self, mode: _Optional[str] = ..., sizes: _Optional[_Iterable[_Union[BatchSize, _Mapping]]] = ..., regimes: _Optional[int] = ...) -> None: ...

class BatchSize(_message.Message):
    __slots__ = ("batch", "steps_per_epoch")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    batch: int
    steps_per_epoch: float
    def __init__(self, batch: _Optional[int] = ..., steps_per_epoch: _Optional[float] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "model", "regimes", "gpus_min", "gpus_max", "step_scale", "gpu_types", "program", "cpus", "memory", "dynamic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REGIMES_FIELD_NUMBER: _ClassVar[int]
    GPUS_MIN_FIELD_NUMBER: _ClassVar[int]
    GPUS_MAX_FIELD_NUMBER: _ClassVar[int]
    STEP_SCALE_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPES_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    regimes: _containers.RepeatedCompositeFieldContainer[Regime]
    gpus_min: int
    gpus_max: int
    step_scale: float
    gpu_types: _containers.RepeatedScalarFieldContainer[str]
    program: Program
    cpus: float
    memory: int
    dynamic: Dynamic
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., regimes: _Optional[_Iterable[_Union[Regime, _Mapping]]] = ..., gpus_min: _Optional[int] = ..., gpus_max: _Optional[int] = ..., step_scale: _Optional[float] = ..., gpu_types: _Optional[_Iterable[str]] = ..., program: _Optional[_Union[Program, _Mapping]] = ..., cpus: _Optional[float] = ..., memory: _Optional[int] = ..., dynamic: _Optional[_Union[Dynamic, _Mapping]] = ...) -> None: ...

class Rung(_message.Message):
    __slots__ = ("jobs", "steps")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    steps: float
    def __init__(self, jobs: _Optional[int] = ..., steps: _Optional[float] = ...) -> None: ...

class Bracket(_message.Message):
    __slots__ = ("rungs",)
    RUNGS_FIELD_NUMBER: _ClassVar[int]
    rungs: _containers.RepeatedCompositeFieldContainer[Rung]
    def __init__(self, rungs: _Optional[_Iterable[_Union[Rung, _Mapping]]] = ...) -> None: ...

class Brackets(_message.Message):
    __slots__ = ("brackets",)
    BRACKETS_FIELD_NUMBER: _ClassVar[int]
    brackets: _containers.RepeatedCompositeFieldContainer[Bracket]
    def __init__(self, brackets: _Optional[_Iterable[_Union[Bracket, _Mapping]]] = ...) -> None: ...

class CurveStopping(_message.Message):
    __slots__ = ("check_steps", "keep", "confidence", "warmup", "floor")
    CHECK_STEPS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    check_steps: float
    keep: int
    confidence: float
    warmup: int
    floor: float
    def __init__(self, check_steps: _Optional[float] = ..., keep: _Optional[int] = ..., confidence: _Optional[float] = ..., warmup: _Optional[int] = ..., floor: _Optional[float] = ...) -> None: ...

class SpeedCurve(_message.Message):
    __slots__ = ("gpu_type", "gpus", "steps_per_s")
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    gpu_type: str
    gpus: _containers.RepeatedScalarFieldContainer[int]
    steps_per_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, gpu_type: _Optional[str] = ..., gpus: _Optional[_Iterable[int]] = ..., steps_per_s: _Optional[_Iterable[float]] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("curves", "slowdown", "checkpoint_s")
    CURVES_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_S_FIELD_NUMBER: _ClassVar[int]
    curves: _containers.RepeatedCompositeFieldContainer[SpeedCurve]
    slowdown: _containers.RepeatedScalarFieldContainer[float]
    checkpoint_s: float
    def __init__(self, curves: _Optional[_Iterable[_Union[SpeedCurve, _Mapping]]] = ..., slowdown: _Optional[_Iterable[float]] = ..., checkpoint_s: _Optional[float] = ...) -> None: ...

class After(_message.Message):
    __slots__ = ("app", "when")
    APP_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    app: str
    when: str
    def __init__(self, app: _Optional[str] = ..., when: _Optional[str] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("key", "name", "user", "weight", "jobs", "brackets", "curve", "retries", "deadline_s", "profile", "after", "walltime_s", "at_once")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    BRACKETS_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WALLTIME_S_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    key: str
    name: str
    user: str
    weight: float
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    brackets: Brackets
    curve: CurveStopping
    retries: int
    deadline_s: float
    profile: Profile
    after: _containers.RepeatedCompositeFieldContainer[After]
    walltime_s: float
    at_once: int
    def __init__(self, key: _Optional[str] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., weight: _Optional[float] = ..., jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., brackets: _Optional[_Union[Brackets, _Mapping]] = ..., curve: _Optional[_Union[CurveStopping, _Mapping]] = ..., retries: _Optional[int] = ..., deadline_s: _Optional[float] = ..., profile: _Optional[_Union[Profile, _Mapping]] = ..., after: _Optional[_Iterable[_Union[After, _Mapping]]] = ..., walltime_s: _Optional[float] = ..., at_once: _Optional[int] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("app", "name")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    app: int
    name: str
    def __init__(self, app: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class JobFile(_message.Message):
    __slots__ = ("key", "text", "source", "folder", "user")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    key: str
    text: str
    source: str
    folder: str
    user: str
    def __init__(self, key: _Optional[str] = ..., text: _Optional[str] = ..., source: _Optional[str] = ..., folder: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class JobFileReply(_message.Message):
    __slots__ = ("apps", "notes")
    APPS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    apps: _containers.RepeatedCompositeFieldContainer[SubmitReply]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, apps: _Optional[_Iterable[_Union[SubmitReply, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class App(_message.Message):
    __slots__ = ("id", "name", "user", "state", "gpus", "demand", "jobs", "jobs_ended", "progress", "submitted", "ended", "rho", "gpu_hours", "weight", "reason", "waits", "warning", "elapsed_s", "walltime_s", "steps_known", "nodes", "jobs_done")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    JOBS_ENDED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    WALLTIME_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    JOBS_DONE_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    user: str
    state: str
    gpus: int
    demand: int
    jobs: int
    jobs_ended: int
    progress: float
    submitted: float
    ended: float
    rho: float
    gpu_hours: float
    weight: float
    reason: str
    waits: str
    warning: str
    elapsed_s: float
    walltime_s: float
    steps_known: bool
    nodes: _containers.RepeatedScalarFieldContainer[str]
    jobs_done: int
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., state: _Optional[str] = ..., gpus: _Optional[int] = ..., demand: _Optional[int] = ..., jobs: _Optional[int] = ..., jobs_ended: _Optional[int] = ..., progress: _Optional[float] = ..., submitted: _Optional[float] = ..., ended: _Optional[float] = ..., rho: _Optional[float] = ..., gpu_hours: _Optional[float] = ..., weight: _Optional[float] = ..., reason: _Optional[str] = ..., waits: _Optional[str] = ..., warning: _Optional[str] = ..., elapsed_s: _Optional[float] = ..., walltime_s: _Optional[float] = ..., steps_known: _Optional[bool] = ..., nodes: _Optional[_Iterable[str]] = ..., jobs_done: _Optional[int] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("number", "ending", "cause", "code", "seconds", "steps", "killed", "message", "ended")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    number: int
    ending: str
    cause: str
    code: int
    seconds: float
    steps: float
    killed: bool
    message: str
    ended: float
    def __init__(self, number: _Optional[int] = ..., ending: _Optional[str] = ..., cause: _Optional[str] = ..., code: _Optional[int] = ..., seconds: _Optional[float] = ..., steps: _Optional[float] = ..., killed: _Optional[bool] = ..., message: _Optional[str] = ..., ended: _Optional[float] = ...) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("id", "name", "state", "attempt", "gpus", "nodes", "steps", "total", "until", "command", "attempts", "outcome", "gpu_hours", "elapsed_s", "walltime_s", "steps_known", "last_lines")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    WALLTIME_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    state: str
    attempt: int
    gpus: _containers.RepeatedScalarFieldContainer[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    steps: float
    total: float
    until: float
    command: _containers.RepeatedScalarFieldContainer[str]
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    outcome: str
    gpu_hours: float
    elapsed_s: float
    walltime_s: float
    steps_known: bool
    last_lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., attempt: _Optional[int] = ..., gpus: _Optional[_Iterable[int]] = ..., nodes: _Optional[_Iterable[str]] = ..., steps: _Optional[float] = ..., total: _Optional[float] = ..., until: _Optional[float] = ..., command: _Optional[_Iterable[str]] = ..., attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., outcome: _Optional[str] = ..., gpu_hours: _Optional[float] = ..., elapsed_s: _Optional[float] = ..., walltime_s: _Optional[float] = ..., steps_known: _Optional[bool] = ..., last_lines: _Optional[_Iterable[str]] = ...) -> None: ...

class AppReply(_message.Message):
    __slots__ = ("app",)
    APP_FIELD_NUMBER: _ClassVar[int]
    app: App
    def __init__(self, app: _Optional[_Union[App, _Mapping]] = ...) -> None: ...

class ShowReply(_message.Message):
    __slots__ = ("app", "jobs", "runs", "sweep", "sentence")
    APP_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    app: App
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    runs: _containers.RepeatedCompositeFieldContainer[RunId]
    sweep: bool
    sentence: str
    def __init__(self, app: _Optional[_Union[App, _Mapping]] = ..., jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[RunId, _Mapping]]] = ..., sweep: _Optional[bool] = ..., sentence: _Optional[str] = ...) -> None: ...

class Trial(_message.Message):
    __slots__ = ("job", "name", "state", "outcome", "parameters", "steps", "last_loss", "best_loss", "best_steps", "stopped", "why_stopped", "elapsed_s", "gpu_hours")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LAST_LOSS_FIELD_NUMBER: _ClassVar[int]
    BEST_LOSS_FIELD_NUMBER: _ClassVar[int]
    BEST_STEPS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    WHY_STOPPED_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    job: int
    name: str
    state: str
    outcome: str
    parameters: str
    steps: float
    last_loss: float
    best_loss: float
    best_steps: float
    stopped: float
    why_stopped: str
    elapsed_s: float
    gpu_hours: float
    def __init__(self, job: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., outcome: _Optional[str] = ..., parameters: _Optional[str] = ..., steps: _Optional[float] = ..., last_loss: _Optional[float] = ..., best_loss: _Optional[float] = ..., best_steps: _Optional[float] = ..., stopped: _Optional[float] = ..., why_stopped: _Optional[str] = ..., elapsed_s: _Optional[float] = ..., gpu_hours: _Optional[float] = ...) -> None: ...

class TrialsReply(_message.Message):
    __slots__ = ("app", "trials")
    APP_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    app: App
    trials: _containers.RepeatedCompositeFieldContainer[Trial]
    def __init__(self, app: _Optional[_Union[App, _Mapping]] = ..., trials: _Optional[_Iterable[_Union[Trial, _Mapping]]] = ...) -> None: ...

class AppsRequest(_message.Message):
    __slots__ = ("user", "ended", "limit")
    USER_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    user: str
    ended: bool
    limit: int
    def __init__(self, user: _Optional[str] = ..., ended: _Optional[bool] = ..., limit: _Optional[int] = ...) -> None: ...

class AppsReply(_message.Message):
    __slots__ = ("apps",)
    APPS_FIELD_NUMBER: _ClassVar[int]
    apps: _containers.RepeatedCompositeFieldContainer[App]
    def __init__(self, apps: _Optional[_Iterable[_Union[App, _Mapping]]] = ...) -> None: ...

class NodesRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class NodeRef(_message.Message):
    __slots__ = ("node", "deadline_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    deadline_s: float
    def __init__(self, node: _Optional[str] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "state", "gpu_type", "gpus", "leased", "apps", "until", "niceness", "trust", "containment", "limits", "withheld", "withheld_pids", "withheld_reason", "rejected")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    APPS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    NICENESS_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    CONTAINMENT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_PIDS_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_REASON_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    gpu_type: str
    gpus: int
    leased: int
    apps: _containers.RepeatedScalarFieldContainer[str]
    until: float
    niceness: int
    trust: str
    containment: str
    limits: _containers.RepeatedScalarFieldContainer[str]
    withheld: int
    withheld_pids: _containers.RepeatedScalarFieldContainer[int]
    withheld_reason: str
    rejected: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., gpu_type: _Optional[str] = ..., gpus: _Optional[int] = ..., leased: _Optional[int] = ..., apps: _Optional[_Iterable[str]] = ..., until: _Optional[float] = ..., niceness: _Optional[int] = ..., trust: _Optional[str] = ..., containment: _Optional[str] = ..., limits: _Optional[_Iterable[str]] = ..., withheld: _Optional[int] = ..., withheld_pids: _Optional[_Iterable[int]] = ..., withheld_reason: _Optional[str] = ..., rejected: _Optional[str] = ...) -> None: ...

class NodesReply(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class NodeReply(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: Node
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class UsersRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class UserShare(_message.Message):
    __slots__ = ("user", "apps", "gpus", "share", "fair", "rho_worst", "rho_median", "gpu_hours", "private_gpu_hours", "between", "rho_reference_worst", "rho_reference_median", "rho_attainable_worst")
    USER_FIELD_NUMBER: _ClassVar[int]
    APPS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    FAIR_FIELD_NUMBER: _ClassVar[int]
    RHO_WORST_FIELD_NUMBER: _ClassVar[int]
    RHO_MEDIAN_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_FIELD_NUMBER: _ClassVar[int]
    RHO_REFERENCE_WORST_FIELD_NUMBER: _ClassVar[int]
    RHO_REFERENCE_MEDIAN_FIELD_NUMBER: _ClassVar[int]
    RHO_ATTAINABLE_WORST_FIELD_NUMBER: _ClassVar[int]
    user: str
    apps: int
    gpus: int
    share: float
    fair: float
    rho_worst: float
    rho_median: float
    gpu_hours: float
    private_gpu_hours: float
    between: str
    rho_reference_worst: float
    rho_reference_median: float
    rho_attainable_worst: float
    def __init__(self, user: _Optional[str] = ..., apps: _Optional[int] = ..., gpus: _Optional[int] = ..., share: _Optional[float] = ..., fair: _Optional[float] = ..., rho_worst: _Optional[float] = ..., rho_median: _Optional[float] = ..., gpu_hours: _Optional[float] = ..., private_gpu_hours: _Optional[float] = ..., between: _Optional[str] = ..., rho_reference_worst: _Optional[float] = ..., rho_reference_median: _Optional[float] = ..., rho_attainable_worst: _Optional[float] = ...) -> None: ...

class ShareReply(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserShare]
    def __init__(self, users: _Optional[_Iterable[_Union[UserShare, _Mapping]]] = ...) -> None: ...

class UserCourse(_message.Message):
    __slots__ = ("user", "entitled", "leased", "balance", "since")
    USER_FIELD_NUMBER: _ClassVar[int]
    ENTITLED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    user: str
    entitled: _containers.RepeatedScalarFieldContainer[float]
    leased: _containers.RepeatedScalarFieldContainer[float]
    balance: float
    since: float
    def __init__(self, user: _Optional[str] = ..., entitled: _Optional[_Iterable[float]] = ..., leased: _Optional[_Iterable[float]] = ..., balance: _Optional[float] = ..., since: _Optional[float] = ...) -> None: ...

class Loan(_message.Message):
    __slots__ = ("lender", "borrower", "gpu_hours")
    LENDER_FIELD_NUMBER: _ClassVar[int]
    BORROWER_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    lender: str
    borrower: str
    gpu_hours: float
    def __init__(self, lender: _Optional[str] = ..., borrower: _Optional[str] = ..., gpu_hours: _Optional[float] = ...) -> None: ...

class FairnessReply(_message.Message):
    __slots__ = ("start", "width", "until", "users", "loans", "whole", "between")
    START_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    LOANS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_FIELD_NUMBER: _ClassVar[int]
    start: float
    width: float
    until: float
    users: _containers.RepeatedCompositeFieldContainer[UserCourse]
    loans: _containers.RepeatedCompositeFieldContainer[Loan]
    whole: bool
    between: str
    def __init__(self, start: _Optional[float] = ..., width: _Optional[float] = ..., until: _Optional[float] = ..., users: _Optional[_Iterable[_Union[UserCourse, _Mapping]]] = ..., loans: _Optional[_Iterable[_Union[Loan, _Mapping]]] = ..., whole: _Optional[bool] = ..., between: _Optional[str] = ...) -> None: ...

class BudgetUse(_message.Message):
    __slots__ = ("name", "of", "per", "used", "soft", "hard", "ends", "currency", "users")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    PER_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    SOFT_FIELD_NUMBER: _ClassVar[int]
    HARD_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    of: str
    per: str
    used: float
    soft: float
    hard: float
    ends: float
    currency: str
    users: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., of: _Optional[str] = ..., per: _Optional[str] = ..., used: _Optional[float] = ..., soft: _Optional[float] = ..., hard: _Optional[float] = ..., ends: _Optional[float] = ..., currency: _Optional[str] = ..., users: _Optional[_Iterable[str]] = ...) -> None: ...

class BudgetsReply(_message.Message):
    __slots__ = ("budgets",)
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    budgets: _containers.RepeatedCompositeFieldContainer[BudgetUse]
    def __init__(self, budgets: _Optional[_Iterable[_Union[BudgetUse, _Mapping]]] = ...) -> None: ...

class UsageRequest(_message.Message):
    __slots__ = ("user", "since", "until", "by", "utc")
    USER_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    UTC_FIELD_NUMBER: _ClassVar[int]
    user: str
    since: float
    until: float
    by: _containers.RepeatedScalarFieldContainer[str]
    utc: bool
    def __init__(self, user: _Optional[str] = ..., since: _Optional[float] = ..., until: _Optional[float] = ..., by: _Optional[_Iterable[str]] = ..., utc: _Optional[bool] = ...) -> None: ...

class UserUsage(_message.Message):
    __slots__ = ("user", "apps", "completed", "cancelled", "failed", "gpu_hours", "group", "day", "gpu_type", "useful_hours", "restart_hours", "lost_hours", "idle_hours", "cost", "currency")
    USER_FIELD_NUMBER: _ClassVar[int]
    APPS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    USEFUL_HOURS_FIELD_NUMBER: _ClassVar[int]
    RESTART_HOURS_FIELD_NUMBER: _ClassVar[int]
    LOST_HOURS_FIELD_NUMBER: _ClassVar[int]
    IDLE_HOURS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    user: str
    apps: int
    completed: int
    cancelled: int
    failed: int
    gpu_hours: float
    group: str
    day: str
    gpu_type: str
    useful_hours: float
    restart_hours: float
    lost_hours: float
    idle_hours: float
    cost: float
    currency: str
    def __init__(self, user: _Optional[str] = ..., apps: _Optional[int] = ..., completed: _Optional[int] = ..., cancelled: _Optional[int] = ..., failed: _Optional[int] = ..., gpu_hours: _Optional[float] = ..., group: _Optional[str] = ..., day: _Optional[str] = ..., gpu_type: _Optional[str] = ..., useful_hours: _Optional[float] = ..., restart_hours: _Optional[float] = ..., lost_hours: _Optional[float] = ..., idle_hours: _Optional[float] = ..., cost: _Optional[float] = ..., currency: _Optional[str] = ...) -> None: ...

class UsageReply(_message.Message):
    __slots__ = ("users", "zone")
    USERS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserUsage]
    zone: str
    def __init__(self, users: _Optional[_Iterable[_Union[UserUsage, _Mapping]]] = ..., zone: _Optional[str] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("user", "since", "until", "state", "reason", "limit")
    USER_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    user: str
    since: float
    until: float
    state: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    limit: int
    def __init__(self, user: _Optional[str] = ..., since: _Optional[float] = ..., until: _Optional[float] = ..., state: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class RunId(_message.Message):
    __slots__ = ("tracker", "run", "job", "attempt")
    TRACKER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    tracker: str
    run: str
    job: int
    attempt: int
    def __init__(self, tracker: _Optional[str] = ..., run: _Optional[str] = ..., job: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class PastAttempt(_message.Message):
    __slots__ = ("job", "name", "attempt", "gpus", "gpu_type", "since", "started", "ended", "cause", "ending", "code", "message", "gpu_hours", "useful_hours", "restart_hours", "lost_hours", "idle_hours", "idle_by", "cost", "currency")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    USEFUL_HOURS_FIELD_NUMBER: _ClassVar[int]
    RESTART_HOURS_FIELD_NUMBER: _ClassVar[int]
    LOST_HOURS_FIELD_NUMBER: _ClassVar[int]
    IDLE_HOURS_FIELD_NUMBER: _ClassVar[int]
    IDLE_BY_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    job: int
    name: str
    attempt: int
    gpus: int
    gpu_type: str
    since: float
    started: float
    ended: float
    cause: str
    ending: str
    code: int
    message: str
    gpu_hours: float
    useful_hours: float
    restart_hours: float
    lost_hours: float
    idle_hours: float
    idle_by: str
    cost: float
    currency: str
    def __init__(self, job: _Optional[int] = ..., name: _Optional[str] = ..., attempt: _Optional[int] = ..., gpus: _Optional[int] = ..., gpu_type: _Optional[str] = ..., since: _Optional[float] = ..., started: _Optional[float] = ..., ended: _Optional[float] = ..., cause: _Optional[str] = ..., ending: _Optional[str] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., gpu_hours: _Optional[float] = ..., useful_hours: _Optional[float] = ..., restart_hours: _Optional[float] = ..., lost_hours: _Optional[float] = ..., idle_hours: _Optional[float] = ..., idle_by: _Optional[str] = ..., cost: _Optional[float] = ..., currency: _Optional[str] = ...) -> None: ...

class PastApp(_message.Message):
    __slots__ = ("id", "name", "user", "group", "state", "reason", "jobs", "submitted", "started", "ended", "rho", "gpu_hours", "useful_hours", "restart_hours", "lost_hours", "idle_hours", "cost", "currency", "gpu_types", "attempts", "runs")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    USEFUL_HOURS_FIELD_NUMBER: _ClassVar[int]
    RESTART_HOURS_FIELD_NUMBER: _ClassVar[int]
    LOST_HOURS_FIELD_NUMBER: _ClassVar[int]
    IDLE_HOURS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    user: str
    group: str
    state: str
    reason: str
    jobs: int
    submitted: float
    started: float
    ended: float
    rho: float
    gpu_hours: float
    useful_hours: float
    restart_hours: float
    lost_hours: float
    idle_hours: float
    cost: float
    currency: str
    gpu_types: _containers.RepeatedScalarFieldContainer[str]
    attempts: _containers.RepeatedCompositeFieldContainer[PastAttempt]
    runs: _containers.RepeatedCompositeFieldContainer[RunId]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., group: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., jobs: _Optional[int] = ..., submitted: _Optional[float] = ..., started: _Optional[float] = ..., ended: _Optional[float] = ..., rho: _Optional[float] = ..., gpu_hours: _Optional[float] = ..., useful_hours: _Optional[float] = ..., restart_hours: _Optional[float] = ..., lost_hours: _Optional[float] = ..., idle_hours: _Optional[float] = ..., cost: _Optional[float] = ..., currency: _Optional[str] = ..., gpu_types: _Optional[_Iterable[str]] = ..., attempts: _Optional[_Iterable[_Union[PastAttempt, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[RunId, _Mapping]]] = ...) -> None: ...

class HistoryReply(_message.Message):
    __slots__ = ("apps",)
    APPS_FIELD_NUMBER: _ClassVar[int]
    apps: _containers.RepeatedCompositeFieldContainer[PastApp]
    def __init__(self, apps: _Optional[_Iterable[_Union[PastApp, _Mapping]]] = ...) -> None: ...

class UserRef(_message.Message):
    __slots__ = ("user", "admin")
    USER_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    user: str
    admin: bool
    def __init__(self, user: _Optional[str] = ..., admin: _Optional[bool] = ...) -> None: ...

class UserToken(_message.Message):
    __slots__ = ("user", "token")
    USER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    user: str
    token: str
    def __init__(self, user: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class User(_message.Message):
    __slots__ = ("user", "admin", "added", "method", "ends")
    USER_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    user: str
    admin: bool
    added: float
    method: str
    ends: float
    def __init__(self, user: _Optional[str] = ..., admin: _Optional[bool] = ..., added: _Optional[float] = ..., method: _Optional[str] = ..., ends: _Optional[float] = ...) -> None: ...

class UserReply(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: User
    def __init__(self, user: _Optional[_Union[User, _Mapping]] = ...) -> None: ...

class UsersReply(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[User]
    def __init__(self, users: _Optional[_Iterable[_Union[User, _Mapping]]] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("after", "follow", "limit", "user")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    after: int
    follow: bool
    limit: int
    user: str
    def __init__(self, after: _Optional[int] = ..., follow: _Optional[bool] = ..., limit: _Optional[int] = ..., user: _Optional[str] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("number", "time", "kind", "json")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: float
    kind: str
    json: str
    def __init__(self, number: _Optional[int] = ..., time: _Optional[float] = ..., kind: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("app", "job", "rank", "follow", "attempt")
    APP_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    app: str
    job: int
    rank: int
    follow: bool
    attempt: int
    def __init__(self, app: _Optional[str] = ..., job: _Optional[int] = ..., rank: _Optional[int] = ..., follow: _Optional[bool] = ..., attempt: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("data", "attempt")
    DATA_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    attempt: int
    def __init__(self, data: _Optional[bytes] = ..., attempt: _Optional[int] = ...) -> None: ...

class WhyReply(_message.Message):
    __slots__ = ("json", "code", "sentence", "position", "of", "rho", "ahead", "start_median", "start_earliest", "start_latest", "simulations", "between", "weight", "fair", "warning", "rho_reference", "rho_attainable", "reference_end", "expected_end", "lent_gpu_hours", "lent_back")
    JSON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    START_MEDIAN_FIELD_NUMBER: _ClassVar[int]
    START_EARLIEST_FIELD_NUMBER: _ClassVar[int]
    START_LATEST_FIELD_NUMBER: _ClassVar[int]
    SIMULATIONS_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    FAIR_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    RHO_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    RHO_ATTAINABLE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_END_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_END_FIELD_NUMBER: _ClassVar[int]
    LENT_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    LENT_BACK_FIELD_NUMBER: _ClassVar[int]
    json: str
    code: str
    sentence: str
    position: int
    of: int
    rho: float
    ahead: _containers.RepeatedCompositeFieldContainer[Ahead]
    start_median: float
    start_earliest: float
    start_latest: float
    simulations: int
    between: str
    weight: float
    fair: float
    warning: str
    rho_reference: float
    rho_attainable: float
    reference_end: float
    expected_end: float
    lent_gpu_hours: float
    lent_back: float
    def __init__(self, json: _Optional[str] = ..., code: _Optional[str] = ..., sentence: _Optional[str] = ..., position: _Optional[int] = ..., of: _Optional[int] = ..., rho: _Optional[float] = ..., ahead: _Optional[_Iterable[_Union[Ahead, _Mapping]]] = ..., start_median: _Optional[float] = ..., start_earliest: _Optional[float] = ..., start_latest: _Optional[float] = ..., simulations: _Optional[int] = ..., between: _Optional[str] = ..., weight: _Optional[float] = ..., fair: _Optional[float] = ..., warning: _Optional[str] = ..., rho_reference: _Optional[float] = ..., rho_attainable: _Optional[float] = ..., reference_end: _Optional[float] = ..., expected_end: _Optional[float] = ..., lent_gpu_hours: _Optional[float] = ..., lent_back: _Optional[float] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("policies", "add_gpus", "remove", "without", "horizon_s", "simulations", "no_arrivals")
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    ADD_GPUS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    HORIZON_S_FIELD_NUMBER: _ClassVar[int]
    SIMULATIONS_FIELD_NUMBER: _ClassVar[int]
    NO_ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedScalarFieldContainer[str]
    add_gpus: _containers.RepeatedScalarFieldContainer[str]
    remove: _containers.RepeatedScalarFieldContainer[str]
    without: _containers.RepeatedScalarFieldContainer[str]
    horizon_s: float
    simulations: int
    no_arrivals: bool
    def __init__(self, policies: _Optional[_Iterable[str]] = ..., add_gpus: _Optional[_Iterable[str]] = ..., remove: _Optional[_Iterable[str]] = ..., without: _Optional[_Iterable[str]] = ..., horizon_s: _Optional[float] = ..., simulations: _Optional[int] = ..., no_arrivals: _Optional[bool] = ...) -> None: ...

class WhatIfTimes(_message.Message):
    __slots__ = ("case", "later", "low_s", "median_s", "high_s", "difference_s")
    CASE_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    LOW_S_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_S_FIELD_NUMBER: _ClassVar[int]
    HIGH_S_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_S_FIELD_NUMBER: _ClassVar[int]
    case: str
    later: bool
    low_s: float
    median_s: float
    high_s: float
    difference_s: float
    def __init__(self, case: _Optional[str] = ..., later: _Optional[bool] = ..., low_s: _Optional[float] = ..., median_s: _Optional[float] = ..., high_s: _Optional[float] = ..., difference_s: _Optional[float] = ...) -> None: ...

class WhatIfApp(_message.Message):
    __slots__ = ("app", "name", "user", "state", "forecasts")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FORECASTS_FIELD_NUMBER: _ClassVar[int]
    app: int
    name: str
    user: str
    state: str
    forecasts: _containers.RepeatedCompositeFieldContainer[WhatIfTimes]
    def __init__(self, app: _Optional[int] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., state: _Optional[str] = ..., forecasts: _Optional[_Iterable[_Union[WhatIfTimes, _Mapping]]] = ...) -> None: ...

class WhatIfCase(_message.Message):
    __slots__ = ("policy", "compared", "sooner", "later", "worst_s", "best_s", "sentence", "problem")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    SOONER_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    WORST_S_FIELD_NUMBER: _ClassVar[int]
    BEST_S_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    policy: str
    compared: int
    sooner: int
    later: int
    worst_s: float
    best_s: float
    sentence: str
    problem: str
    def __init__(self, policy: _Optional[str] = ..., compared: _Optional[int] = ..., sooner: _Optional[int] = ..., later: _Optional[int] = ..., worst_s: _Optional[float] = ..., best_s: _Optional[float] = ..., sentence: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class WhatIfReply(_message.Message):
    __slots__ = ("now", "policy", "changes", "horizon_s", "simulations", "arrivals", "calibrated", "basis", "columns", "apps", "cases")
    NOW_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    HORIZON_S_FIELD_NUMBER: _ClassVar[int]
    SIMULATIONS_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    CALIBRATED_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    APPS_FIELD_NUMBER: _ClassVar[int]
    CASES_FIELD_NUMBER: _ClassVar[int]
    now: float
    policy: str
    changes: str
    horizon_s: float
    simulations: int
    arrivals: bool
    calibrated: bool
    basis: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    apps: _containers.RepeatedCompositeFieldContainer[WhatIfApp]
    cases: _containers.RepeatedCompositeFieldContainer[WhatIfCase]
    def __init__(self, now: _Optional[float] = ..., policy: _Optional[str] = ..., changes: _Optional[str] = ..., horizon_s: _Optional[float] = ..., simulations: _Optional[int] = ..., arrivals: _Optional[bool] = ..., calibrated: _Optional[bool] = ..., basis: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., apps: _Optional[_Iterable[_Union[WhatIfApp, _Mapping]]] = ..., cases: _Optional[_Iterable[_Union[WhatIfCase, _Mapping]]] = ...) -> None: ...

class Ahead(_message.Message):
    __slots__ = ("app", "name", "user", "rho")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    app: int
    name: str
    user: str
    rho: float
    def __init__(self, app: _Optional[int] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., rho: _Optional[float] = ...) -> None: ...

class DumpRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DumpChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class AgentEvent(_message.Message):
    __slots__ = ("welcome", "probe", "offer", "award", "lease", "goodbye")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    AWARD_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    probe: Probe
    offer: Offer
    award: Award
    lease: Lease
    goodbye: Goodbye
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., award: _Optional[_Union[Award, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("app", "name", "answer_s", "misses", "rows")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ANSWER_S_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    app: int
    name: str
    answer_s: float
    misses: int
    rows: int
    def __init__(self, app: _Optional[int] = ..., name: _Optional[str] = ..., answer_s: _Optional[float] = ..., misses: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class AgentJob(_message.Message):
    __slots__ = ("job", "left", "gpus_min", "gpus_max", "held", "expiring", "gpu_types")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    GPUS_MIN_FIELD_NUMBER: _ClassVar[int]
    GPUS_MAX_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    EXPIRING_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPES_FIELD_NUMBER: _ClassVar[int]
    job: int
    left: float
    gpus_min: int
    gpus_max: int
    held: int
    expiring: int
    gpu_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[int] = ..., left: _Optional[float] = ..., gpus_min: _Optional[int] = ..., gpus_max: _Optional[int] = ..., held: _Optional[int] = ..., expiring: _Optional[int] = ..., gpu_types: _Optional[_Iterable[str]] = ...) -> None: ...

class Picture(_message.Message):
    __slots__ = ("elapsed", "t_id", "rho", "lease_s", "jobs")
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    T_ID_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    elapsed: float
    t_id: float
    rho: float
    lease_s: float
    jobs: _containers.RepeatedCompositeFieldContainer[AgentJob]
    def __init__(self, elapsed: _Optional[float] = ..., t_id: _Optional[float] = ..., rho: _Optional[float] = ..., lease_s: _Optional[float] = ..., jobs: _Optional[_Iterable[_Union[AgentJob, _Mapping]]] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("round", "answer_s", "app")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ANSWER_S_FIELD_NUMBER: _ClassVar[int]
    APP_FIELD_NUMBER: _ClassVar[int]
    round: int
    answer_s: float
    app: Picture
    def __init__(self, round: _Optional[int] = ..., answer_s: _Optional[float] = ..., app: _Optional[_Union[Picture, _Mapping]] = ...) -> None: ...

class EstimateRequest(_message.Message):
    __slots__ = ("app", "round", "rho")
    APP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    app: str
    round: int
    rho: float
    def __init__(self, app: _Optional[str] = ..., round: _Optional[int] = ..., rho: _Optional[float] = ...) -> None: ...

class EstimateReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OfferedGpus(_message.Message):
    __slots__ = ("node", "rack", "gpu_type", "gpus")
    NODE_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    node: str
    rack: str
    gpu_type: str
    gpus: int
    def __init__(self, node: _Optional[str] = ..., rack: _Optional[str] = ..., gpu_type: _Optional[str] = ..., gpus: _Optional[int] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("round", "answer_s", "app", "gpus", "rows")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ANSWER_S_FIELD_NUMBER: _ClassVar[int]
    APP_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    round: int
    answer_s: float
    app: Picture
    gpus: _containers.RepeatedCompositeFieldContainer[OfferedGpus]
    rows: _containers.RepeatedCompositeFieldContainer[BidRow]
    def __init__(self, round: _Optional[int] = ..., answer_s: _Optional[float] = ..., app: _Optional[_Union[Picture, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[OfferedGpus, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[BidRow, _Mapping]]] = ...) -> None: ...

class BidRow(_message.Message):
    __slots__ = ("gangs", "span", "gpu_type", "anchor", "rho")
    GANGS_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    gangs: _containers.RepeatedScalarFieldContainer[int]
    span: str
    gpu_type: str
    anchor: str
    rho: float
    def __init__(self, gangs: _Optional[_Iterable[int]] = ..., span: _Optional[str] = ..., gpu_type: _Optional[str] = ..., anchor: _Optional[str] = ..., rho: _Optional[float] = ...) -> None: ...

class BidRequest(_message.Message):
    __slots__ = ("app", "round", "rho", "rows", "jobs")
    APP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    app: str
    round: int
    rho: float
    rows: _containers.RepeatedCompositeFieldContainer[BidRow]
    jobs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, app: _Optional[str] = ..., round: _Optional[int] = ..., rho: _Optional[float] = ..., rows: _Optional[_Iterable[_Union[BidRow, _Mapping]]] = ..., jobs: _Optional[_Iterable[int]] = ...) -> None: ...

class BidReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Award(_message.Message):
    __slots__ = ("round", "bid", "won", "kept", "leftover")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BID_FIELD_NUMBER: _ClassVar[int]
    WON_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LEFTOVER_FIELD_NUMBER: _ClassVar[int]
    round: int
    bid: bool
    won: int
    kept: float
    leftover: int
    def __init__(self, round: _Optional[int] = ..., bid: _Optional[bool] = ..., won: _Optional[int] = ..., kept: _Optional[float] = ..., leftover: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("what", "job", "gpus", "nodes", "until", "cause")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    what: str
    job: int
    gpus: _containers.RepeatedScalarFieldContainer[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    until: float
    cause: str
    def __init__(self, what: _Optional[str] = ..., job: _Optional[int] = ..., gpus: _Optional[_Iterable[int]] = ..., nodes: _Optional[_Iterable[str]] = ..., until: _Optional[float] = ..., cause: _Optional[str] = ...) -> None: ...
