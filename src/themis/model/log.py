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
from typing import IO, Any, TypeAlias, cast, get_args

import msgspec
import numpy as np
import orjson

from themis.errors import InputError, ThemisError
from themis.model import events
from themis.model.answers import Ask
from themis.model.events import SCHEMA, Allocated, AppSubmitted, Command, Event, Header, MachineJoined
from themis.model.log_decisions import Fields, read_allocated, write_allocated
from themis.model.specs import read_app, to_fields
from themis.model.units import Seconds

Record: TypeAlias = Header | Event | Command

PROOF_ROWS = 256
"""Proofs of more rows than this are cut."""

_UNLOGGED = {events.BidsCollected, events.Wake, events.WakeAt, events.Solve, events.Forced, events.CollectBids}
"""Machinery of the core, which no log holds."""
_KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {kind.__name__: kind for kind in get_args(Record) if kind not in _UNLOGGED}
)


def is_record(record: Record) -> bool:
    """True if it belongs into the log: no machinery, and no answer that only asks for bids."""
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
    time, kind = line["t"], line["kind"]
    if kind not in _DECODERS:
        raise InputError(f"unknown kind of record {kind!r}; the log is of another version of Themis.")
    try:
        return float(time), _DECODERS[kind](line)
    except ThemisError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"this is no {kind}: {reason}.") from None


# ---- files ----------------------------------------------------------------------------------------------------------


class LogWriter:
    """Writer of records to a file; a name that ends in ``.gz`` is compressed. Equal runs give equal bytes.

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
        """Flush and close the file."""
        self._file.close()
        self._raw.close()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_log(path: str | Path) -> Iterator[tuple[Seconds, Record]]:
    """All (time, record) pairs of a log, its header first.

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
    """All lines of a log as (line number, parsed fields), for readers of few kinds; raises as ``read_log``."""
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


def _write_failed(out: Fields, record: events.MachineFailed, rows: int) -> None:
    out["machine"] = record.machine
    if record.drained:
        out["drained"] = True
    if record.reason:
        out["reason"] = record.reason


def _flat_decoder(kind: type[Any]) -> Callable[[Fields], Record]:
    """A reader that checks each field's type and makes tuples of lists."""
    names, convert = frozenset(["t", "kind", *(f.name for f in fields(kind))]), msgspec.convert

    def read(d: Fields) -> Record:
        if not names.issuperset(d):
            raise ValueError(f"unknown field {min(d.keys() - names)}")
        out: Record = convert(d, kind)
        return out

    return read


# ---- machines and apps: see ``themis.model.specs`` -------------------------------------------------------------------


def _write_app(out: Fields, record: AppSubmitted, rows: int) -> None:
    out["app"] = to_fields(record.app)
    if record.weight != 1.0:
        out["weight"] = record.weight
    if record.assumed is not None:
        out["assumed"] = [list(speed) for speed in record.assumed]
    if record.alone is not None:
        out["alone"] = list(record.alone)
    if record.unknown:
        out["unknown"] = True


def _read_app(d: Fields) -> AppSubmitted:
    assumed = d.get("assumed")
    return AppSubmitted(
        app=read_app(d["app"]),
        weight=d.get("weight", 1.0),
        assumed=None if assumed is None else tuple(events.AssumedSpeed(*speed) for speed in assumed),
        alone=(float(d["alone"][0]), float(d["alone"][1])) if "alone" in d else None,
        unknown=d.get("unknown", False),
    )


_ENCODERS: Mapping[type[Any], tuple[str, Callable[[Fields, Any, int], None]]] = MappingProxyType(
    {kind: (name, _flat_encoder(kind)) for name, kind in _KINDS.items()}
    | {
        MachineJoined: ("MachineJoined", lambda out, record, rows: out.update(machine=to_fields(record.machine))),
        AppSubmitted: ("AppSubmitted", _write_app),
        Allocated: ("Allocated", write_allocated),
        events.JobStopped: ("JobStopped", _write_stopped),
        events.MachineFailed: ("MachineFailed", _write_failed),
    }
)
_DECODERS: Mapping[str, Callable[[Fields], Record]] = MappingProxyType(
    {name: _flat_decoder(kind) for name, kind in _KINDS.items()}
    | {"AppSubmitted": _read_app, "Allocated": read_allocated}
)
