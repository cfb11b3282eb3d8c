"""The limits on values that users, machines, agents and files give: one table, and the checks against it.

A field names its limit: ``steps: Annotated[float, limits.STEPS]``. Pydantic and the reader of machines' messages check it, OpenAPI
shows it, and the sentence about a wrong value is the same everywhere. ``check`` returns a value or raises that sentence.
Within these limits no quantity that the core computes overflows, is divided by zero or becomes NaN.
``check_json`` bounds depth and size of JSON before it is parsed. The documentation's page on limits is made from this table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from themis.errors import InputError

V = TypeVar("V")

LONGEST_S = 10 * 366 * 86400.0
"""Seconds of any duration: ten years."""
SHOWN = 60
"""Characters of a wrong value in a message."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that no text may have: control characters except tab and line feed, changes of direction, half surrogate pairs."""
_LINE = re.compile(r"[\t\n]")


class Limit:
    """A limit; in ``Annotated``, pydantic checks values with it and has its ends in the JSON Schema."""

    __slots__ = ()
    name: str
    what: str

    def problem(self, value: object) -> str:
        """The predicate of a sentence about a value that is not within the limit; empty for one that is."""
        raise NotImplementedError

    def ends(self) -> dict[str, Any]:
        """The limit in JSON Schema."""
        raise NotImplementedError

    def plain(self, value: Any) -> Any:
        """A value of the same meaning in the limit's own type."""
        return value

    def holds(self, value: object) -> bool:
        """True for a value within the limit."""
        return not self.problem(value)

    def check(self, value: V, where: str = "") -> V:
        """The value.

        Parameters
        ----------
        where : its place in the input, for the message; by default the limit's name.

        Raises
        ------
        InputError : it is not within the limit, or of another type.
        """
        if problem := self.problem(value):
            raise InputError(f"{where or self.name} {problem}.")
        return value

    def __get_pydantic_core_schema__(self, kind: Any, inner: Callable[[Any], Any]) -> Any:
        from pydantic_core import PydanticCustomError, core_schema

        def checked(value: Any) -> Any:
            plain = self.plain(value)
            if self.problem(plain):
                raise PydanticCustomError("limit", "{problem}", {"problem": self.problem(value)})
            return plain

        return core_schema.no_info_before_validator_function(checked, inner(kind))

    def __get_pydantic_json_schema__(self, made: Any, inner: Callable[[Any], Any]) -> Any:
        about = {"description": self.what} if self.what else {}
        return {**inner(made), **self.ends(), **about}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Limit):
    """The range of a number.

    Attributes
    ----------
    name : of the quantity, in messages and in the documentation. ``what`` : its meaning and unit.
    least, most : the range, both included; finite. ``whole`` : no fractions. ``zero`` : 0 too, for "none".
    """

    name: str
    what: str
    least: float
    most: float
    whole: bool = False
    zero: bool = False

    def problem(self, value: object) -> str:
        right = isinstance(value, int if self.whole else (int, float)) and not isinstance(value, bool)
        if right and (self.least <= value <= self.most or (self.zero and value == 0)):  # type: ignore[operator]
            return ""
        return f"is {shown(value)}, expected {self.expected}"

    def plain(self, value: Any) -> Any:
        """2.0 or another library's 2 for the whole number 2, and 2 for the number 2.0."""
        if isinstance(value, (bool, str)):
            return value
        if not self.whole:
            return float(value) if isinstance(value, int) and abs(value) <= self.most else value
        if isinstance(value, float):
            return int(value) if value.is_integer() else value
        return value.__index__() if hasattr(value, "__index__") else value

    @property
    def expected(self) -> str:
        """The range in words."""
        kind = "a whole number" if self.whole else "a number"
        least, most = (f"{end:.0f}" if self.whole else f"{end:.12g}" for end in (self.least, self.most))
        return f"{'0, or ' if self.zero else ''}{kind} from {least} to {most}"

    def ends(self) -> dict[str, Any]:
        kind = int if self.whole else float
        return {"minimum": 0 if self.zero else kind(self.least), "maximum": kind(self.most)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Limit):
    """The length of a text, in characters; ``lines``: it may have tabs and line feeds. ``empty`` : it may be empty."""

    name: str
    what: str
    longest: int
    lines: bool = False
    empty: bool = True

    def problem(self, value: object) -> str:
        if not isinstance(value, str):
            return f"is {shown(value)}, expected text"
        if len(value) > self.longest:
            return f"has {len(value)} characters, expected at most {self.longest}"
        if not value and not self.empty:
            return f"is empty, expected a text of at most {self.longest} characters"
        if found := CONTROL.search(value) or (None if self.lines else _LINE.search(value)):
            return f"is {shown(value)}, which has the character U+{ord(found[0]):04X}; expected printable text"
        return ""

    def cut(self, value: str) -> str:
        """The text as it may be shown: other characters than printable ones replaced, cut to its length.

        For text that explains what happened, which is better shortened than refused.
        """
        text = CONTROL.sub("\ufffd", value[: self.longest])
        return text if self.lines else _LINE.sub(" ", text)

    def ends(self) -> dict[str, Any]:
        return {"maxLength": self.longest} if self.empty else {"minLength": 1, "maxLength": self.longest}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Limit):
    """The length of a list, or of a mapping."""

    name: str
    what: str
    most: int

    def problem(self, value: object) -> str:
        size = len(value) if isinstance(value, Sized) and not isinstance(value, str) else 0
        return f"has {size} entries, expected at most {self.most}" if size > self.most else ""

    def ends(self) -> dict[str, Any]:
        return {"maxItems": self.most}


def shown(value: object) -> str:
    """A value for a message: printable, and short however large it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**SHOWN:
        return f"a whole number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        text = repr(value[: SHOWN + 1] if isinstance(value, (str, bytes, list, tuple)) else value)
    except ValueError:  # Python writes no whole number of thousands of digits
        text = "a value with a huge number"
    return text if len(text) <= SHOWN + 2 else f"{text[:SHOWN]}..."


def finite(value: float, where: str) -> float:
    """The value; InputError if it is infinite or NaN."""
    if not math.isfinite(value):
        raise InputError(f"{where} is {value}, expected a finite number.")
    return value


# ---- submissions -----------------------------------------------------------------------------------------------------

STEPS = Number(name="steps", what="steps or epochs of a regime, a rung or a check", least=1e-3, most=1e15)
STEP_SCALE = Number(name="step_scale", what="steps of the model in one of the job's", least=1e-9, most=1e9)
EPOCH_STEPS = Number(name="steps_per_epoch", what="steps in an epoch", least=1e-9, most=1e12)
SPEED = Number(name="speed", what="steps per second", least=1e-9, most=1e12)
WORK_S = Number(name="work", what="seconds of a job on one reference GPU", least=1e-4, most=1e16)
SLOWDOWN = Number(name="slowdown", what="divisor of the speed by locality", least=1.0, most=1e6)
CHECKPOINT_S = Number(name="checkpoint_s", what="seconds to write and read a checkpoint", least=0.0, most=LONGEST_S)
WEIGHT = Number(name="weight", what="weight of an app, a user or a group", least=1e-6, most=1e6)
DEADLINE_S = Number(name="deadline_s", what="seconds from submission to deadline", least=0.0, most=LONGEST_S)
WALLTIME_S = Number(name="walltime_s", what="seconds that a job may run", least=1e-3, most=LONGEST_S)
GRACE_S = Number(name="grace_s", what="seconds from the stop signal to SIGKILL", least=0.0, most=LONGEST_S)
CPUS = Number(name="cpus", what="CPU cores per GPU", least=0.0, most=1e5)
MEMORY = Number(name="memory", what="bytes per GPU", least=0, most=1 << 60, whole=True)
GPUS = Number(name="gpus", what="GPUs of a gang", least=1, most=1_000_000, whole=True)
BATCH = Number(name="batch", what="batch size; 0 is the model's own", least=0, most=10**9, whole=True)
RETRIES = Number(name="retries", what="attempts after failures", least=0, most=1000, whole=True)
AT_ONCE = Number(name="at_once", what="concurrent jobs; 0 is no limit", least=0, most=10_000_000, whole=True)
DYNAMIC_REGIMES = Number(
    name="dynamic.regimes", what="regimes of a dynamic job; 0 is the default", least=0, most=1000, whole=True
)
TRIALS = Number(name="trials", what="trials of a sweep, or that reach a rung", least=1, most=10_000, whole=True)
ETA = Number(name="eta", what="trials of a rung of which one is promoted", least=2, most=1000, whole=True)
SEED = Number(name="seed", what="seed of a sampler", least=0, most=2**63 - 1, whole=True)
KEEP = Number(name="curve.keep", what="jobs that curve stopping never stops", least=1, most=10_000, whole=True)
CONFIDENCE = Number(name="curve.confidence", what="confidence of curve stopping", least=0.5, most=1 - 1e-9)
WARMUP = Number(name="curve.warmup", what="reports before the first forecast", least=4, most=10_000, whole=True)
FLOOR = Number(name="curve.floor", what="loss that no job of a sweep ends below", least=-1e30, most=1e30)

JOBS = Count(name="jobs", what="jobs of an app", most=10_000)
REGIMES = Count(name="regimes", what="regimes of a job", most=1000)
BATCH_SIZES = Count(name="dynamic.sizes", what="batch sizes of a dynamic job", most=1000)
BRACKETS = Count(name="brackets", what="brackets of Hyperband", most=100)
RUNGS = Count(name="rungs", what="rungs of a bracket", most=100)
AFTER = Count(name="after", what="apps that an app waits for", most=100)
GPU_TYPES = Count(name="gpu_types", what="GPU types of a job, or of a speed", most=100)
SPEED_POINTS = Count(name="gpus", what="numbers of GPUs of a speed", most=1000)
MODULES = Count(name="modules", what="environment modules of a job", most=100)

KEY = Text(name="key", what="key of a submission", longest=200)
WORD = Text(name="gpu_type", what="name of a GPU type or a model", longest=200, empty=False)
LIKE = Text(name="like", what="name of a model", longest=200)
PATH = Text(name="path", what="path or URL", longest=4096)

# ---- machines --------------------------------------------------------------------------------------------------------

PID = Number(name="pid", what="process id", least=1, most=2**31 - 1, whole=True)
PORT = Number(name="port", what="port", least=0, most=65535, whole=True)
EXIT_CODE = Number(name="exit code", what="exit code, a signal as minus its number", least=-255, most=255, whole=True)
MACHINE_GPUS = Number(name="machine's gpus", what="GPUs of a machine", least=0, most=1024, whole=True)
GPU_INDEX = Number(name="GPU index", what="position of a GPU on its machine", least=0, most=1023, whole=True)
SEQUENCE = Number(name="sequence", what="number of a message, a copy or a version", least=0, most=2**53, whole=True)
NICENESS = Number(name="niceness", what="niceness of an agent", least=-20, most=19, whole=True)
GPU_SECONDS = Number(name="gpu_seconds", what="GPU-seconds that a machine reports", least=0.0, most=1024 * LONGEST_S)
RANK = Number(name="rank", what="rank of a process", least=0, most=1_000_000, whole=True)
SIZE = Number(name="bytes", what="bytes of a file, a disk or memory", least=0, most=2**62, whole=True)
SECONDS = Number(name="seconds", what="seconds that something took", least=0.0, most=LONGEST_S)
DONE = Number(name="steps done", what="steps that a job reports", least=0.0, most=1e18)
STEP_S = Number(name="step_s", what="seconds per step; 0 is unknown", least=1e-12, most=LONGEST_S, zero=True)
LOSS = Number(name="loss", what="loss that a job reports", least=-1e30, most=1e30)
METRIC = Text(name="metric", what="name of a metric that a job reports", longest=64)
METRICS = Count(name="metrics", what="metrics that a job reports", most=32)
IDS = Count(name="ids", what="processes or GPUs that a message lists", most=4096)
RUNS = Count(name="runs", what="runs of a task, and other short lists of a machine", most=16)
NAMED = Text(name="name", what="name of a machine, a task or a file", longest=300)
REASON = Text(name="reason", what="reason or message of a machine", longest=1000, lines=True)

# ---- agents of apps --------------------------------------------------------------------------------------------------

RHO = Number(name="rho", what="finish-time fairness that an agent says", least=1e-6, most=1e6)
ANSWERS = Count(name="answers", what="answers that agents send together", most=1000)
GANGS = Count(name="gangs", what="gangs of a row of a bid", most=10_000)

# ---- text that is parsed ---------------------------------------------------------------------------------------------

DEEPEST = 40
"""Levels of JSON and YAML."""
MOST_VALUES = 100_000
"""Values of a file in YAML; an alias counts wherever it is used."""
MOST_JOB_VALUES, MOST_DOCUMENTS = 10_000, 500
"""Values and documents of a job file."""
MOST_JSON_VALUES = 200_000
"""Values of a JSON body: about 50 of each of 4,000 jobs."""
LONGEST_FILE = 4_000_000
"""Characters of a file in YAML."""
LONGEST_JOB_FILE = 256 << 10
"""Characters of a job file over the API."""


def read_text(path: Path) -> str:
    """The text of a file; InputError if it cannot be read, or has more than ``LONGEST_FILE`` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_FILE + 1)
        if len(data) > LONGEST_FILE:
            raise InputError(f"{str(path)!r} has more than {LONGEST_FILE} bytes, expected a job file or a script.")
        return data.decode().replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InputError(f"cannot read {str(path)!r}: {why}.") from None


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_json(data: bytes, where: str = "the body", *, deepest: int = DEEPEST, most: int = MOST_JSON_VALUES) -> bytes:
    """The data, if it is neither nested too deeply nor has too many values; whether it is JSON, the parser finds out.

    It takes about 5 ms for 1 MB of text, and more for brackets, which are counted one by one.

    Raises
    ------
    InputError : more than ``deepest`` levels, or more than ``most`` values.
    """
    bare = _STRING.sub(b"", data) if b'"' in data else data
    # Each value but the first of its list or object follows a comma.
    values = 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{")
    if values > most:
        raise InputError(f"{where} has about {values} values, expected at most {most}; send it in parts.")
    depth = 0
    for bracket in bare.translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > deepest:
            raise InputError(f"{where} is nested deeper than {deepest} levels.")
    return data


TABLE: tuple[Number | Text | Count, ...] = tuple(
    limit for limit in list(globals().values()) if isinstance(limit, (Number, Text, Count))
)
"""Every limit, in the order above."""
