"""Decisions in the event log: answers and proofs as columns (``themis.model.log``)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from themis.errors import InputError
from themis.model.answers import NOTHING_TO_DECIDE, Answer, Ask, GpuGrant, Proof, Renewal, RoundPlan, Solved, TimeShare
from themis.model.events import Allocated
from themis.model.units import NONE, Bool

Fields: TypeAlias = dict[str, Any]

_PROOF_SCALARS: Mapping[str, Any] = MappingProxyType({"objective": 0.0, "bound": 0.0, "method": "", "offered": 0})
_PROOF_COLUMNS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "app": np.int64,
        "rho": np.float64,
        "bid": np.bool_,
        "won": np.int64,
        "kept": np.float64,
        "kept_low": np.float64,
        "kept_high": np.float64,
        "leftover": np.int64,
        "job": np.int64,
        "starts": np.float64,
        "ends": np.float64,
        "late": np.int64,
        "stretched": np.int64,
        "stretch": np.float64,
    }
)


def write_allocated(out: Fields, record: Allocated, rows: int) -> None:
    """The fields of a decision; of a proof with more rows than ``rows`` only those that bid or got leftovers."""
    out["version"] = record.version
    out["answer"] = _write_answer(record.solved.answer)
    answer, proof = record.solved.answer, record.solved.proof
    if isinstance(answer, Renewal) and proof.method == NOTHING_TO_DECIDE.method:
        return
    if written := _write_proof(proof, rows):
        out["proof"] = written


def read_allocated(d: Fields) -> Allocated:
    """The decision of its fields; raises KeyError, TypeError or ValueError if they are malformed."""
    answer = _read_answer(d["answer"])
    given = d.get("proof", {})
    proof = NOTHING_TO_DECIDE if isinstance(answer, Renewal) and not given else _read_proof(given)
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
                "kind": "gpus",
                "app": answer.app,
                "gang": answer.gang,
                "machine": answer.machine,
                "gpus": answer.gpus,
                "until": _once(answer.until),
                "extend": _once(answer.extend),
                **({"declined": answer.declined} if len(answer.declined) else {}),
                **({} if answer.job is None else {"job": answer.job}),
            }
        case Renewal():
            return {
                "kind": "renewal",
                "until": answer.until,
                **({} if answer.new is None else {"new": _write_answer(answer.new)}),
            }
        case TimeShare():
            pairs = bool((answer.combos[:, 1] >= 0).any())
            who = {"combos": answer.combos.ravel()} if pairs else {"job": np.ascontiguousarray(answer.combos[:, 0])}
            x = answer.x.ravel()
            types = answer.x.shape[1]
            due = {} if answer.due is None else {"due": answer.due}
            apart = {} if answer.apart is None else {"apart": answer.apart.ravel()}
            return {
                "kind": "share",
                **who,
                "gpus": answer.gpus,
                "x": x,
                "types": types,
                "round_s": answer.round_s,
                **due,
                **apart,
            }
        case RoundPlan():
            digits = ["".join("1" if cell else "0" for cell in row) for row in answer.run.tolist()]
            return {
                "kind": "plan",
                "job": answer.job,
                "gpus": answer.gpus,
                "run": digits,
                "rounds": answer.run.shape[1],
                "round_s": answer.round_s,
            }
        case Ask():
            raise InputError("a log holds no answer that asks for bids; ask is_record first.")


def _once(column: Any) -> Any:
    """A constant column as one number."""
    return column[0].item() if len(column) and (column == column[0]).all() else column


def _read_answer(d: Fields) -> Answer:
    if d["kind"] == "renewal":
        new = _read_answer(d["new"]) if "new" in d else None
        if not isinstance(new, GpuGrant | None):
            raise ValueError(f"the new gangs are a {type(new).__name__}, expected a grant")
        return Renewal(until=float(d["until"]), new=new)

    def column(name: str, dtype: type[Any] = np.int64) -> Any:
        value = d[name]
        return np.array(value, dtype=dtype) if isinstance(value, list) else np.full(len(d["app"]), value, dtype=dtype)

    match d["kind"]:
        case "gpus":
            return GpuGrant(
                app=column("app"),
                gang=column("gang"),
                machine=column("machine"),
                gpus=column("gpus"),
                until=column("until", np.float64),
                extend=column("extend"),
                declined=np.array(d.get("declined", ()), dtype=np.int64),
                job=column("job") if "job" in d else None,
            )
        case "share":
            x = column("x", np.float64).reshape(-1, d["types"])
            alone = "job" in d
            combos = column("job")[:, None] * [1, 0] + [0, NONE] if alone else column("combos").reshape(-1, 2)
            due = column("due", np.float64) if "due" in d else None
            apart = column("apart", np.float64).reshape(x.shape) if "apart" in d else None
            return TimeShare(combos=combos, gpus=column("gpus"), x=x, round_s=d["round_s"], due=due, apart=apart)
        case "plan":
            cells = [c == "1" for row in d["run"] for c in row]
            run = np.array(cells, dtype=bool).reshape(len(d["run"]), d["rounds"])
            return RoundPlan(job=column("job"), gpus=column("gpus"), run=run, round_s=d["round_s"])
    raise ValueError(f"unknown kind of answer {d['kind']!r}")
