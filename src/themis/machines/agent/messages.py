"""Messages between the arbiter and a node agent: frozen dataclasses, independent of the transport.

    agent -> arbiter    Hello, Renew, TaskState, TaskReport, TaskRuns, TaskIdle, GpusOccupied, Intrusions, DiskUse,
                        Fetch, FindCopy, Upload, Leaving
    arbiter -> agent    Lease, Prepare, Go, Stop, Tell, Forget, Piece, CopyFound, Uploaded, Rejected
    bridge  -> arbiter  NodeFound, NodeLeaves, NodeLies
    arbiter -> bridge   EndNodes, NodeReleased

Every message may be lost with its connection and every one may be repeated: both sides compare what should be with
what is (``Hello`` lists every task) and send again what is missing. ``encode`` and ``decode`` give JSON objects.

Fields that a machine sends have their limit (``themis.limits``) in their type: a value outside is a ``ProtocolError``. Text that
only explains is cut and made printable in place of that, for jobs have a say in it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeAlias

from themis import limits
from themis.errors import InputError

PROTOCOL = 9
"""Raised when one side no longer understands the other's last version. 2: files, packages, launchers and checkpoints of jobs.
3: copies of checkpoints and outputs that the service keeps. 4: what tasks have on the disk. 5: exported variables and secrets.
6: bytes of files follow their message. 7: machines that leave with notice. 8: tokens of machines. 9: copies of every machine of a
gang."""
PIECE = 1 << 20
"""Bytes of a file in one message. A renewal of the machine's lease waits for at most one piece."""
THROUGH_SERVICE = "themis://"
"""The ``checkpoint_url`` of checkpoints that are copied through the service."""
NEARLY_URL = re.compile(r"[a-z][a-z0-9+.-]{1,30}:/")
"""Pattern for text that is no checkpoint URL and probably no folder either: a slash is missing."""


class ProtocolError(InputError):
    """The other side sent something that is not in the protocol."""


class Cut(NamedTuple):
    """Limit to which text is truncated and made printable; longer text is not refused."""

    text: limits.Text


Name = Annotated[str, limits.NAMED]
Said = Annotated[str, Cut(limits.REASON)]
Count = Annotated[int, limits.SEQUENCE]
Bytes = Annotated[int, limits.SIZE]
Seconds = Annotated[float, limits.SECONDS]
Done = Annotated[float, limits.DONE]
Code = Annotated[int, limits.EXIT_CODE]
Niceness = Annotated[int, limits.NICENESS]
Gpus = Annotated[int, limits.MACHINE_GPUS]
Names = Annotated[tuple[Name, ...], limits.RUNS]
MANY = limits.IDS
Uuids = Annotated[tuple[Name, ...], MANY]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One gang's ranks on one machine.

    Attributes
    ----------
    task : name of this attempt of this job, permanently unique.
    ranks : global ranks of the processes to start here; ``world_size`` counts them over all machines.
    devices : the machine's GPUs of the gang, as CUDA_VISIBLE_DEVICES names them; empty names are not shown.
    gpus : GPUs of the whole gang. ``machine`` : position of this machine in the gang, of ``machines``.
    user : system user to run as; only an agent that runs as root can and must get one.
    grace_s : seconds between the stop signal and SIGKILL.
    make_checkpoint_dir : the folder is the scheduler's own, for the agent to make and hand over; otherwise it is the
        user's, made with the user's rights.
    target : steps after which this attempt should end.
    slots : positions of the gang's GPUs on this machine, from 0. cpus, memory, processes : limits of all these ranks together,
        CPUs, bytes, and processes with their threads; 0 for none.
    inherits : variables of the agent's environment that it gets, besides those that every job gets.
    bundle : SHA-256 of the archive of the job's files, empty for none; ``cwd`` is then a folder in it.
    packages : file that describes packages, relative to ``cwd``. ``modules`` : to load. ``launcher`` : wraps the command.
    checkpoint_url : where each machine of the gang copies its checkpoint folder, empty for nowhere; the folder is then each
        machine's own, below the agent's. ``copy_every_s`` : between two copies while it runs. ``copy_s`` : for one.
    outputs : files and folders relative to ``cwd`` that each machine copies to the service; only with a bundle.
    exports, secrets : as in ``engines.program.Program``.
    setup_s : for fetching the bundle, and again for unpacking it and preparing the environment.
    """

    task: str
    app: int
    job: int
    attempt: int
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    user: str
    ranks: tuple[int, ...]
    world_size: int
    devices: tuple[str, ...]
    gpus: int
    machine: int
    machines: int
    per_machine: bool
    grace_s: float
    stop_signal: str
    checkpoint_dir: str
    make_checkpoint_dir: bool
    target: float
    log_bytes: int
    slots: tuple[int, ...] = ()
    cpus: float = 0.0
    memory: int = 0
    processes: int = 0
    inherits: tuple[str, ...] = ()
    bundle: str = ""
    packages: str = ""
    modules: tuple[str, ...] = ()
    launcher: str = ""
    setup_s: float = 0.0
    checkpoint_url: str = ""
    copy_every_s: float = 600.0
    copy_s: float = 600.0
    outputs: tuple[str, ...] = ()
    exports: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()

    @property
    def copied(self) -> bool:
        """True if its checkpoints or outputs are copied; the service knows the copies."""
        return bool(self.outputs or self.checkpoint_url)

    @property
    def protocol(self) -> int:
        """The oldest protocol version that covers all fields of this task."""
        if self.copied or self.bundle:
            return 9
        if self.exports or self.secrets:
            return 5
        return 2 if self.packages or self.modules or self.launcher else 1


# ---- from the agent ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """A task's phase: preparing | prepared | running | stopping | ended, and once ended how.

    Attributes
    ----------
    port : a free port of this machine, for MASTER_PORT if rank 0 runs here.
    codes : exit codes by rank, a signal as minus its number; ``first`` the first that was not 0, None if all were.
    cause : why its ranks stop: what ``Stop`` named, or lease | peer | keeper | lost | not_started |
        absent (what the job names is not there) | broken (it cannot run anywhere) |
        machine (it lacked room or processes to start them) |
        memory (they exceeded the job's memory).
    saved : whether anything was written to the checkpoint folder.
    """

    task: Name
    phase: Name
    port: Annotated[int, limits.PORT] = 0
    cause: Name = ""
    codes: Annotated[tuple[Code, ...], MANY] = ()
    first: Code | None = None
    killed: bool = False
    saved: bool = False
    seconds: Seconds = 0.0
    message: Said = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """I am alive and want my lease renewed; counted so that the answer can be timed from when this was sent.

    ``heard`` : of the last ``Lease`` that I have received; None from agents of before.
    """

    sequence: Count
    heard: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric that rank 0 reported; None is a value that is no number."""

    name: Annotated[str, limits.METRIC]
    value: Annotated[float, limits.LOSS] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """Progress that rank 0 reported: steps done, steps in its checkpoint, loss, recent mean seconds per step (0:
    unknown)."""

    task: Name
    steps: Done
    saved: Done
    loss: Annotated[float, limits.LOSS] | None = None
    step_s: Annotated[float, limits.STEP_S] = 0.0
    reached: bool = False
    """True if it reached its target and ends now."""
    epochs: Done = 0.0
    """Epochs done, and in the checkpoint; ``batch`` : global batch size that it trains with. 0 where it did not report it."""
    saved_epochs: Done = 0.0
    batch: Annotated[int, limits.BATCH] = 0
    unsaved: Done = 0.0
    """Steps at which it tried to save last and could not, 0 for none; more than ``saved`` if nothing was saved since."""
    total: Done = 0.0
    """Steps that the program will do, by itself; 0 where it did not report them."""
    metrics: Annotated[tuple[Metric, ...], limits.METRICS] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRuns:
    """The runs that rank 0 reported, last of each tracker: ``mlflow:ID``, ``wandb:ID``."""

    task: Name
    runs: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdle:
    """Idle time of a task's GPUs by NVML: idle GPU-seconds since the last message; by GPU, seconds since it was busy."""

    task: Name
    gpu_seconds: Annotated[float, limits.GPU_SECONDS]
    each_s: Annotated[tuple[Seconds, ...], limits.IDS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """GPUs of this machine, by position, that cannot be given to a gang now: these processes live on them, or they are sick.

    ``reason`` says why. ``whole`` : all GPUs of the machine but ``gpus``, whose gangs run on.
    """

    gpus: Annotated[tuple[Annotated[int, limits.GPU_INDEX], ...], MANY]
    pids: Annotated[tuple[Annotated[int, limits.PID], ...], MANY]
    reason: Said
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusOccupied:
    """All such GPUs of this machine now; empty once there are none."""

    items: Annotated[tuple[Occupied, ...], MANY] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Intrusion:
    """Processes of a task on a GPU of this machine, by position, that the task's gang does not hold."""

    task: Name
    gpu: Annotated[int, limits.GPU_INDEX]
    pids: Annotated[tuple[Annotated[int, limits.PID], ...], limits.RUNS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intrusions:
    """All such processes now; empty once there are none."""

    items: Annotated[tuple[Intrusion, ...], MANY] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUse:
    """Disk usage of a task: bytes in the folders that the service made, and growth in bytes of these and the user's own
    folders over ``seconds``."""

    task: Name
    bytes: Bytes
    grew: Bytes
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Usage of the disk that holds the agent's folder: id of the disk, free bytes, total bytes, and usage of each
    running task."""

    disk: Name
    free: Bytes
    size: Bytes
    tasks: Annotated[tuple[TaskUse, ...], MANY] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First message of a connection: who I am and everything that I keep."""

    node: Name
    trust: Name
    """per_user: jobs run as their submitters' system users | single: all as the agent's own | root: some may run as root."""
    tasks: Annotated[tuple[TaskState, ...], MANY] = ()
    reports: Annotated[tuple[TaskReport, ...], MANY] = ()
    """Last reports of the ranks, without their speed; to be handled before their exit."""
    niceness: Niceness = 0
    """Niceness of the agent and of all processes that it starts: -20 to 19; above 0, other processes there have
    priority."""
    containment: Name = ""
    """Containment of gangs: cgroup | namespace | none (``machines.agent.cells``)."""
    limits: Names = ()
    """Resources of jobs that are limited there: memory, cpus, processes, devices (``machines.agent.means``)."""
    occupied: Annotated[tuple[Occupied, ...], MANY] = ()
    intrusions: Annotated[tuple[Intrusion, ...], MANY] = ()
    protocol: Count = 1
    """Protocol version of the agent: it ignores unknown fields of a task, which must then not be given to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Request the rest of a bundle from this byte on; answered by one ``Piece``, before which it is not repeated."""

    bundle: Name
    offset: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCopy:
    """Ask which copy this task begins with, on each machine of the gang. ``waited_s`` : seconds since the first request."""

    task: Name
    waited_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A machine's archive of what a task saved: at most ``PIECE`` bytes from ``offset`` on; answered by one ``Uploaded``.

    All of it once more, without bytes, says that the checkpoint folder is still as it was packed.

    Attributes
    ----------
    number : of the archive, rising. ``size``, ``sha256`` : of the whole; 0 and empty where nothing was to be packed for the
        service. ``url_sha256``, ``url_bytes`` : likewise of the archive at the job's URL.
    final : the ranks have ended, and no archive of this task follows. ``problem`` : why there is none.
    seen : ``at`` of the last answer.
    """

    task: Name
    number: Count
    offset: Bytes
    size: Bytes
    final: bool
    sha256: Name = ""
    url_sha256: Name = ""
    url_bytes: Bytes = 0
    data: bytes = b""
    problem: Said = ""
    seen: Seconds = 0.0


# ---- from the arbiter -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The machine may run jobs until ``lease_s`` after it sent the ``Renew`` of this sequence."""

    sequence: int
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Bring these ranks to where they can start at the same moment, and report it."""

    spec: TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """All machines are prepared: run. ``env`` is what only the whole gang could know (MASTER_ADDR, MASTER_PORT)."""

    task: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Signal, wait for the grace, kill. A repeated stop may only shorten the grace. ``message`` : for the job's owner."""

    task: str
    cause: str
    grace_s: float
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """A line for the log of the task's first rank."""

    task: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The task's end is recorded; its folder may go (its log stays)."""

    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A message of yours is not accepted, and why; the connection ends, and for some seconds you get no other."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a bundle: at most ``PIECE`` bytes; ``size`` : of the whole, below 0 where it is not there.

    ``problem`` : why there is none.
    """

    bundle: str
    offset: int
    size: int
    data: bytes = b""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Archives of one machine of a gang from an attempt: the one in the service, and the one at the job's URL; empty for none."""

    attempt: int
    machine: int
    number: int
    sha256: str = ""
    url_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFound:
    """A task begins with this copy, none where it is empty. ``wait`` : the last one may still come, ask again. ``note`` : for its
    log."""

    task: str
    parts: tuple[Part, ...] = ()
    wait: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """An archive is here up to ``offset``; ``over``: all of it, or it is refused because of a ``problem``.

    ``at`` : time of the answer, on the service's clock. ``whole`` : number of the machine's archive in the newest whole copy.
    """

    task: str
    number: int
    offset: int
    over: bool = False
    problem: str = ""
    at: float = 0.0
    whole: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The machine is taken away in ``within_s`` seconds, or once nothing runs on it; it is back with its agent's next ``Hello``."""

    within_s: Seconds


# ---- from and to a bridge, which reaches the agents of an engine's nodes ---------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFound:
    """A machine of the engine's cluster with GPUs for us; ``address`` is where other machines' ranks reach it."""

    node: Name
    gpus: Gpus
    gpu_type: Name
    rack: Name
    address: Name
    devices: Uuids = ()
    gpus_per_slot: Gpus = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeaves:
    """The engine removes a machine: now, after a failure (``dead``), or in ``within_s`` seconds (0: no deadline)."""

    node: Name
    dead: bool
    within_s: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLies:
    """A machine sent a message that breaks the protocol or that it may not send; the message was dropped."""

    node: Name
    reason: Said


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNodes:
    """Ask the bridge to end agents and return the machines' GPUs to the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReleased:
    """Report to the bridge that no job is left on a machine that is to be removed."""

    node: str


Message: TypeAlias = (
    Hello
    | Renew
    | TaskState
    | TaskReport
    | TaskRuns
    | TaskIdle
    | GpusOccupied
    | Intrusions
    | DiskUse
    | Fetch
    | Piece
    | FindCopy
    | CopyFound
    | Upload
    | Uploaded
    | Lease
    | Prepare
    | Go
    | Stop
    | Tell
    | Forget
    | Rejected
    | Leaving
    | NodeFound
    | NodeLeaves
    | NodeLies
    | EndNodes
    | NodeReleased
)
_KINDS: dict[str, type] = {kind.__name__: kind for kind in typing.get_args(Message)}


def encode(message: Message) -> dict[str, Any]:
    """Encode as an object of JSON, with the message's name under ``kind``; bytes stay bytes."""
    return {"kind": type(message).__name__, **dataclasses.asdict(message)}


def packed(message: Message) -> bytes:
    """A line of JSON. The bytes of a message's ``data`` follow it as they are, and the line has their number."""
    found = encode(message)
    raw: bytes = found.get("data", b"")
    return json.dumps({**found, "data": len(raw)} if "data" in found else found).encode() + b"\n" + raw


def raw_bytes(data: object) -> int:
    """Bytes that follow the line of a message.

    Raises
    ------
    ProtocolError : more than ``PIECE``.
    """
    count = data.get("data", 0) if isinstance(data, dict) and data.get("kind") in ("Piece", "Upload") else 0
    if type(count) is not int or not 0 <= count <= PIECE:
        raise ProtocolError(f"a message announces {limits.shown(count)} bytes, expected at most {PIECE}.")
    return count


def decode(data: object) -> Message:
    """The message of a JSON object.

    Raises
    ------
    ProtocolError : an unknown kind, a missing field, a value of another type or outside its limit.
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in _KINDS:
        found = limits.shown(data if kind is None else kind)
        raise ProtocolError(f"a message is {found}, expected an object whose kind is one of {', '.join(_KINDS)}.")
    message: Message = build(_KINDS[kind], data)
    return message


def parsed(text: bytes) -> object:
    """The JSON of a message; depth and number of values are checked before it is parsed.

    Raises
    ------
    ProtocolError : it is nested too deeply, has too many values, or is not JSON.
    """
    try:
        # As UTF-8 and nothing else: by its bytes, text in UTF-16 can hide brackets.
        return json.loads(limits.check_json(text, "a message", deepest=DEEPEST).decode())
    except InputError as error:
        raise ProtocolError(str(error)) from None
    except ValueError as error:
        raise ProtocolError(f"a message is not JSON: {str(error)[:200]}.") from None


def build(kind: type, data: object) -> Any:
    """A dataclass from the JSON object of its fields; unknown fields are left out, so that a newer side may send more.

    Raises
    ------
    ProtocolError : as for ``decode``.
    """
    if not isinstance(data, Mapping):
        raise ProtocolError(f"a {kind.__name__} is {limits.shown(data)}, expected an object.")
    try:
        given = {name: read(data[name]) for name, read in _readers(kind) if name in data}
        return kind(**given)
    except TypeError as error:
        raise ProtocolError(f"a {kind.__name__} message lacks fields: {error}.") from error
    except ProtocolError:
        raise
    except InputError as error:
        raise ProtocolError(str(error)) from None


Read: TypeAlias = Callable[[Any], Any]


@functools.cache
def _readers(kind: type) -> tuple[tuple[str, Read], ...]:
    """The reader of each field of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((name, _reader(f"{kind.__name__}.{name}", hint)) for name, hint in hints.items())


def _reader(where: str, hint: Any, limit: Any = None) -> Read:
    """The reader of values of a type; ``limit`` : a limit of ``themis.limits``, or ``Cut``."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _reader(where, args[0], args[1])
    if origin in (types.UnionType, typing.Union):
        some = _reader(where, args[0])
        return lambda value: None if value is None else some(value)
    if origin is tuple:
        return _tuple_reader(where, _reader(where, args[0]), limit)
    if origin is not None and issubclass(origin, Mapping):
        item = _reader(where, args[1])
        return lambda value: {key: item(v) for key, v in _typed(where, value, dict).items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return lambda value: build(hint, value)
    if hint is bool or hint is bytes:
        return lambda value: _typed(where, value, hint)
    if hint is str:
        return _text_reader(where, limit)
    return _number_reader(where, hint, limit or (_WHOLE if hint is int else _FINITE))


def _typed(where: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ProtocolError(f"{where} is {limits.shown(value)}, expected {kind.__name__}.")
    return value


def _tuple_reader(where: str, item: Read, limit: limits.Count | None) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ProtocolError(f"{where} is {limits.shown(value)}, expected a list.")
        if limit is not None:
            limit.check(value, where)
        return tuple(map(item, value))

    return read


def _text_reader(where: str, limit: limits.Text | Cut | None) -> Read:
    if limit is None:
        return lambda value: _typed(where, value, str)
    if isinstance(limit, Cut):
        return lambda value: limit.text.cut(_typed(where, value, str))
    return lambda value: limit.check(value, where)


def _number_reader(where: str, kind: Any, limit: limits.Number) -> Read:
    least, most = limit.least, limit.most

    def read(value: Any) -> Any:
        if not (type(value) is kind and least <= value <= most):
            limit.check(value, where)
        return kind(value)

    return read


DEEPEST = 8
"""Levels of a message."""
_WHOLE = limits.Number(name="number", what="", least=-(2**63), most=2**63 - 1, whole=True)
_FINITE = limits.Number(name="number", what="", least=-1e300, most=1e300)
