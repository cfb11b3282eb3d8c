"""The event log on disk: one JSON object a line, ``{"t": time, "kind": "Grant", ...fields}``, plain or gzipped.

The codec is exact: ``decode(encode(t, r)) == (t, r)`` for every kind of record. Three savings keep long traces small:
fields of workloads and proofs that have their default are left out, constant columns of a grant are written once, and
proofs of very many rows keep only those that bid or got leftovers (``rows`` then says how many there were and ``at``
which of them are left). JSON has no infinity: such numbers are written ``{"~": "inf"}``.

Leaves out: what the records mean (``themis.model.events``) and any interpretation (``themis.report``).
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any, TypeAlias, cast

import numpy as np
import orjson

from themis.errors import InputError, ThemisError
from themis.model import events
from themis.model.answers import Answer, Ask, GpuGrant, Proof, RoundPlan, Solved, TimeShare
from themis.model.cluster import Machine
from themis.model.events import SCHEMA, Allocated, AppSubmitted, Command, Event, Grant, Header, MachineJoined
from themis.model.specs import read_app, to_fields
from themis.model.units import NONE, Bool, Seconds

Record: TypeAlias = Header | Event | Command
Fields: TypeAlias = dict[str, Any]

PROOF_ROWS = 256
"""Proofs of more rows than this are cut."""

_FLAT = (
    Header, Grant, events.Renew, events.Revoke, events.JobStarted, events.JobProgress, events.JobStopped, events.JobReached,
    events.SpeedMeasured,
    events.BatchChanged, events.LossReported, events.JobEnded, events.CurveStopped, events.AppCancelled, events.AppFinished,
    events.AppHeld, events.AppResumed, events.JobDelayed, events.JobGivenUp, events.QuotaSet,
    events.MachineFailed, events.MachineReturned, events.MachineDraining, events.AgentBid, events.JobsOrdered, events.Compacted,
)  # fmt: skip


def is_record(record: Record) -> bool:
    """Whether it belongs into the log: no machinery, and no answer that only asks for bids."""
    return type(record) in _ENCODERS and not (type(record) is Allocated and isinstance(record.solved.answer, Ask))


def encode(time: Seconds, record: Record, rows: int = PROOF_ROWS) -> bytes:
    """One line of the log, without its line break.

    Parameters
    ----------
    rows : proofs with more rows keep only those that bid or got leftovers.

    Raises
    ------
    InputError : the log does not hold records of this kind.
    """
    try:
        kind, write = _ENCODERS[type(record)]
    except KeyError:
        raise InputError(f"a log holds no {type(record).__name__}; ask is_record first.") from None
    out: Fields = {"t": time, "kind": kind}
    write(out, record, rows)
    line = orjson.dumps(out, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in line:
        # Either a true None or a number that JSON cannot say; only then is the slow walk worth it.
        line = orjson.dumps(_spell(out))
    return line


def decode(line: bytes | str) -> tuple[Seconds, Record]:
    """The time and record of one line.

    Raises
    ------
    InputError : the line is no record; says why.
    """
    return to_record(parse(line))


def parse(line: bytes | str) -> Fields:
    """The fields of one line as JSON has them, ``t`` and ``kind`` included."""
    try:
        out = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InputError(f"this is not JSON ({error}); the log was cut off or edited there.") from None
    if not isinstance(out, dict) or not isinstance(out.get("kind"), str) or "t" not in out:
        raise InputError('expected an object with "t" and "kind"; this is not a line of an event log.')
    raw = line if isinstance(line, bytes) else line.encode()
    return cast(Fields, _unspell(out) if b'{"~":' in raw else out)


def to_record(line: Fields) -> tuple[Seconds, Record]:
    """The time and record of a parsed line; raises InputError as ``decode`` does."""
    out = dict(line)
    time, kind = out.pop("t"), out.pop("kind")
    if kind not in _DECODERS:
        raise InputError(f"unknown kind of record {kind!r}; the log is of another version of Themis.")
    try:
        return float(time), _DECODERS[kind](out)
    except ThemisError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"this is no {kind}: {reason}.") from None


# ---- files ----------------------------------------------------------------------------------------------------------


class LogWriter:
    """Writes records to a file as they come; a name that ends in ``.gz`` is compressed. Equal runs give equal bytes.

    Use it as a context manager; it is also a sink: ``simulation.run(writer)``.
    """

    def __init__(self, path: str | Path, *, rows: int = PROOF_ROWS) -> None:
        self.path, self.rows = Path(path), rows
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._raw = open(self.path, "wb", buffering=1 << 20)  # noqa: SIM115 - closed in close()
        except OSError as error:
            raise InputError(f"cannot write the log {self.path}: {error.strerror}.") from None
        self._file: IO[bytes] = self._raw
        if self.path.suffix == ".gz":
            # No name and no time in the gzip header: they would make equal runs differ.
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=self._raw, mtime=0, compresslevel=6)
            self._file = cast(IO[bytes], io.BufferedWriter(cast(io.RawIOBase, packed), 1 << 20))

    def __call__(self, time: Seconds, record: Record) -> None:
        """Append a record; what is no record is passed over."""
        if is_record(record):
            self._file.write(encode(time, record, self.rows) + b"\n")

    def close(self) -> None:
        """Everything is on disk."""
        self._file.close()
        self._raw.close()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_log(path: str | Path) -> Iterator[tuple[Seconds, Record]]:
    """Every (time, record) of a log, first its header.

    Raises
    ------
    InputError : no such file, another schema, or a broken line; names file and line.
    """
    for number, line in read_lines(path):
        try:
            record = to_record(line)
        except ThemisError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        yield record


def read_lines(path: str | Path) -> Iterator[tuple[int, Fields]]:
    """Every line of a log as (line number, parsed fields), for readers that want few kinds; raises as ``read_log``."""
    number = 0
    try:
        with gzip.open(path, "rb") if Path(path).suffix == ".gz" else open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                line = parse(raw) if number > 1 else _first(raw)
                yield number, line
    except ThemisError as error:
        raise InputError(f"{path}, line {number}: {error}") from None
    except EOFError:
        raise InputError(f"{path}, line {number + 1}: the compressed file ends too early; it was cut off.") from None
    except zlib.error as error:
        raise InputError(f"{path}, line {number + 1}: the compressed file is damaged ({error}).") from None
    except OSError as error:
        raise InputError(f"cannot read the log {path}: {error.strerror or error}.") from None
    if number == 0:
        raise InputError(f"{path} is empty, expected an event log that begins with a Header.")


def _first(raw: bytes) -> Fields:
    try:
        line = parse(raw)
    except InputError:
        raise InputError("this is no event log of Themis, expected a Header as a JSON object.") from None
    _check_header(line)
    return line


def _check_header(line: Fields) -> None:
    if line["kind"] != "Header":
        raise InputError(f"the first record is a {line['kind']}, expected a Header; this is no event log of Themis.")
    if line.get("schema") != SCHEMA:
        schema = line.get("schema")
        raise InputError(f"the log has schema {schema}, this Themis reads {SCHEMA}; use the version that wrote it.")


# ---- infinities and NaN, which JSON lacks ---------------------------------------------------------------------------


def _spell(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {"~": str(float(value))}
    if isinstance(value, Mapping):
        return {name: _spell(v) for name, v in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return [_spell(v) for v in value] if isinstance(value, list | tuple) else value


def _unspell(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["~"]) if value.keys() == {"~"} else {name: _unspell(v) for name, v in value.items()}
    return [_unspell(v) for v in value] if isinstance(value, list) else value


# ---- flat records ---------------------------------------------------------------------------------------------------


def _flat_encoder(kind: type[Any]) -> Callable[[Fields, Any, int], None]:
    names = tuple(f.name for f in fields(kind))
    if len(names) == 1:
        name = names[0]
        return lambda out, record, rows: out.__setitem__(name, getattr(record, name))
    values = attrgetter(*names)
    return lambda out, record, rows: out.update(zip(names, values(record)))


def _write_stopped(out: Fields, record: events.JobStopped, rows: int) -> None:
    out.update(job=record.job, attempt=record.attempt, steps=record.steps)
    if record.own:
        out["own"] = True


def _agent_bid(d: Fields) -> events.AgentBid:
    rows = tuple((tuple(gangs), span, kind, anchor, rho) for gangs, span, kind, anchor, rho in d.get("rows", ()))
    return events.AgentBid(**{**d, "rows": rows})


def _grant(d: Fields) -> Grant:
    return Grant(**{**d, "gpus": tuple(d["gpus"])})


# ---- machines and apps: see ``themis.model.specs`` -------------------------------------------------------------------


def _write_app(out: Fields, record: AppSubmitted, rows: int) -> None:
    out["app"] = to_fields(record.app)
    if record.weight != 1.0:
        out["weight"] = record.weight


def _read_app(d: Fields) -> AppSubmitted:
    return AppSubmitted(app=read_app(d["app"]), weight=d.get("weight", 1.0))


# ---- answers and proofs: columns ------------------------------------------------------------------------------------

_PROOF_SCALARS: Mapping[str, Any] = MappingProxyType({"objective": 0.0, "bound": 0.0, "method": "", "offered": 0})
_PROOF_COLUMNS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "app": np.int64, "rho": np.float64, "bid": np.bool_, "won": np.int64, "kept": np.float64,
        "kept_low": np.float64, "kept_high": np.float64, "leftover": np.int64, "job": np.int64, "starts": np.float64,
        "ends": np.float64, "late": np.int64,
    }
)  # fmt: skip


def _write_allocated(out: Fields, record: Allocated, rows: int) -> None:
    out["version"] = record.version
    out["answer"] = _write_answer(record.solved.answer)
    proof = _write_proof(record.solved.proof, rows)
    if proof:
        out["proof"] = proof


def _read_allocated(d: Fields) -> Allocated:
    answer, proof = _read_answer(d["answer"]), _read_proof(d.get("proof", {}))
    return Allocated(version=d["version"], solved=Solved(answer=answer, proof=proof))


def _write_proof(proof: Proof, rows: int) -> Fields:
    out: Fields = {n: v for n, default in _PROOF_SCALARS.items() if (v := getattr(proof, n)) != default}
    count = len(proof.app)
    keep = _rows_kept(proof) if count > rows else None
    if keep is not None:
        out["rows"], out["at"] = count, np.flatnonzero(keep)
    for name in _PROOF_COLUMNS:
        column = getattr(proof, name)
        if keep is not None and len(column) == count:
            column = column[keep]
        if len(column):
            out[name] = column.astype(np.int8) if name == "bid" else np.ascontiguousarray(column)
    return out


def _rows_kept(proof: Proof) -> Bool:
    keep = np.zeros(len(proof.app), dtype=bool)
    for column in (proof.bid, proof.leftover):
        if len(column) == len(keep):
            keep |= column > 0
    return keep


def _read_proof(d: Fields) -> Proof:
    values: Fields = {name: d[name] for name in _PROOF_SCALARS if name in d}
    columns = {name: np.array(d[name], dtype=dtype) for name, dtype in _PROOF_COLUMNS.items() if name in d}
    return Proof(**(values | columns))


def _write_answer(answer: Answer) -> Fields:
    match answer:
        case GpuGrant():
            return {
                "kind": "gpus", "app": answer.app, "gang": answer.gang, "machine": answer.machine, "gpus": answer.gpus,
                "until": _once(answer.until), "extend": _once(answer.extend),
            }  # fmt: skip
        case TimeShare():
            pairs = bool((answer.combos[:, 1] >= 0).any())
            who = {"combos": answer.combos.ravel()} if pairs else {"job": np.ascontiguousarray(answer.combos[:, 0])}
            x = answer.x.ravel()
            types = answer.x.shape[1]
            due = {} if answer.due is None else {"due": answer.due}
            return {
                "kind": "share",
                **who,
                "gpus": answer.gpus,
                "x": x,
                "types": types,
                "round_s": answer.round_s,
                **due,
            }
        case RoundPlan():
            digits = ["".join("1" if cell else "0" for cell in row) for row in answer.run.tolist()]
            return {
                "kind": "plan", "job": answer.job, "gpus": answer.gpus, "run": digits, "rounds": answer.run.shape[1],
                "round_s": answer.round_s,
            }  # fmt: skip
        case Ask():
            raise InputError("a log holds no answer that asks for bids; ask is_record first.")


def _once(column: Any) -> Any:
    """A column whose rows are all alike, as one number."""
    return column[0].item() if len(column) and (column == column[0]).all() else column


def _read_answer(d: Fields) -> Answer:
    def column(name: str, dtype: type[Any] = np.int64) -> Any:
        value = d[name]
        return np.array(value, dtype=dtype) if isinstance(value, list) else np.full(len(d["app"]), value, dtype=dtype)

    match d["kind"]:
        case "gpus":
            return GpuGrant(
                app=column("app"), gang=column("gang"), machine=column("machine"), gpus=column("gpus"),
                until=column("until", np.float64), extend=column("extend"),
            )  # fmt: skip
        case "share":
            x = column("x", np.float64).reshape(-1, d["types"])
            alone = "job" in d
            combos = column("job")[:, None] * [1, 0] + [0, NONE] if alone else column("combos").reshape(-1, 2)
            due = column("due", np.float64) if "due" in d else None
            return TimeShare(combos=combos, gpus=column("gpus"), x=x, round_s=d["round_s"], due=due)
        case "plan":
            cells = [c == "1" for row in d["run"] for c in row]
            run = np.array(cells, dtype=bool).reshape(len(d["run"]), d["rounds"])
            return RoundPlan(job=column("job"), gpus=column("gpus"), run=run, round_s=d["round_s"])
    raise ValueError(f"unknown kind of answer {d['kind']!r}")


_ENCODERS: Mapping[type[Any], tuple[str, Callable[[Fields, Any, int], None]]] = MappingProxyType(
    {kind: (kind.__name__, _flat_encoder(kind)) for kind in _FLAT}
    | {
        MachineJoined: ("MachineJoined", lambda out, record, rows: out.update(machine=to_fields(record.machine))),
        AppSubmitted: ("AppSubmitted", _write_app),
        Allocated: ("Allocated", _write_allocated),
        events.JobStopped: ("JobStopped", _write_stopped),
    }
)
_DECODERS: Mapping[str, Callable[[Fields], Record]] = MappingProxyType(
    {kind.__name__: (lambda d, kind=kind: kind(**d)) for kind in _FLAT}
    | {
        "Grant": _grant,
        "AgentBid": _agent_bid,
        "JobsOrdered": lambda d: events.JobsOrdered(app=d["app"], jobs=tuple(d["jobs"])),
        "QuotaSet": lambda d: events.QuotaSet(**{**d, "users": tuple(d["users"])}),
        "MachineJoined": lambda d: MachineJoined(machine=Machine(**d["machine"])),
        "AppSubmitted": _read_app,
        "Allocated": _read_allocated,
    }
)
