"""Offers and bids between the wire, where parts of the cluster have names, and the auction, where they have numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from themis.core.state import State
from themis.errors import InputError
from themis.fairness.finish_time import FinishTime
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Locality
from themis.policies.tuning.app_agent import ROWS
from themis.policies.tuning.outside import OutsideBid, OutsideRow, Terms
from themis.schema import messages as schema

SPANS = {"machine": Locality.MACHINE, "rack": Locality.RACK, "anywhere": Locality.CROSS_RACK}
_SPAN_NAMES = {int(span): name for name, span in SPANS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of the cluster's machines and racks by number, and the number of each app's first job."""

    machines: Sequence[str]
    racks: Sequence[str]
    first_job: Callable[[int], int]


def names_of(state: State) -> Names:
    """The names as of now."""
    return Names(
        machines=[machine.name for machine in state.machines],
        racks=list(state.racks),
        first_job=lambda app: int(state.apps.first_job[app]),
    )


def agent_view(s: Snapshot, finish: FinishTime, a: int, names: Names) -> schema.Picture:
    """App row ``a`` as its own agent sees it."""
    first = names.first_job(int(s.app_id[a]))
    at = range(int(s.job_ptr[a]), int(s.job_ptr[a + 1]))
    return schema.Picture(
        elapsed=float(s.now - s.app_arrival[a]),
        t_id=float(finish.t_id[a]),
        rho=float(finish.rho[a]),
        lease_s=s.lease_s,
        jobs=[
            schema.AgentJob(
                job=int(s.job_id[j]) - first,
                left=float(s.job_left[j]),
                gpus_min=int(s.job_gpus_min[j]),
                gpus_max=int(s.job_gpus_max[j]),
                held=int(s.job_held[j]),
                expiring=int(s.job_expiring[j]),
                gpu_types=[t for t, ok in zip(s.gpu_types, s.job_allowed[j].tolist()) if ok],
            )
            for j in at
        ],
    )


def offer_message(asked: Terms, names: Names, view: schema.Picture) -> schema.Offer:
    """The GPUs on offer, and the bid that the service would make. ``view`` : the app, as ``agent_view`` has it."""
    s = asked.snapshot
    return schema.Offer(
        app=view,
        gpus=[
            schema.OfferedGpus(
                node=names.machines[n],
                rack=names.racks[int(s.machine_rack[n])],
                gpu_type=s.gpu_types[int(s.machine_type[n])],
                gpus=int(asked.offer[n]),
            )
            for n in np.flatnonzero(asked.offer).tolist()
        ],
        rows=[
            schema.BidRow(
                gangs=list(row.gangs),
                span=_SPAN_NAMES[row.span],
                gpu_type=s.gpu_types[row.gpu_type],
                rho=row.rho,
                anchor="" if row.anchor == NONE else (names.machines, names.racks)[row.span - 1][row.anchor],
            )
            for row in asked.own.rows
        ],
    )


def read_bid(request: schema.AgentAnswer, asked: Terms, names: Names, rho: float) -> tuple[OutsideBid, tuple[int, ...]]:
    """A bid with numbers for names, not yet checked against the terms, and the ids of the jobs that should go first.

    Parameters
    ----------
    rho : of winning nothing, where the bid says none.

    Raises
    ------
    InputError : an unknown name, or too many rows.
    """
    if len(request.rows) > ROWS:
        raise InputError(f"the bid has {len(request.rows)} rows, expected at most {ROWS}.")
    rows = tuple(_row(row, number, asked.snapshot, names) for number, row in enumerate(request.rows))
    return OutsideBid(rho=request.rho if request.rho is not None else rho, rows=rows), _order(request, asked, names)


def _row(row: schema.BidRow, number: int, s: Snapshot, names: Names) -> OutsideRow:
    where = f"row {number}"
    if row.span not in SPANS:
        raise InputError(f"{where}: span is {row.span[:40]!r}, expected machine, rack or anywhere.")
    span = SPANS[row.span]
    if not row.gpu_type and len(s.gpu_types) > 1:
        raise InputError(f"{where}: it names no gpu_type, expected one of {', '.join(s.gpu_types)}.")
    kind = _find(row.gpu_type or s.gpu_types[0], s.gpu_types, f"{where}: gpu_type")
    anchor = NONE
    if row.anchor:
        if span is Locality.CROSS_RACK:
            raise InputError(
                f"{where}: anchor is {row.anchor[:40]!r}, but a row whose gangs may lie anywhere has none."
            )
        what = ("node", "rack")[span - 1]
        anchor = _find(row.anchor, (names.machines, names.racks)[span - 1], f"{where}: anchor, a {what}")
    return OutsideRow(
        gangs=tuple(row.gangs),
        span=int(span),
        gpu_type=kind,
        anchor=anchor,
        rho=row.rho,
    )


def _find(name: str, known: Sequence[str], where: str) -> int:
    if name not in known:
        some = ", ".join(sorted(known)[:8]) + (", ..." if len(known) > 8 else "")
        raise InputError(f"{where} is {name[:40]!r}, expected one of {some}.")
    return list(known).index(name)


def _order(request: schema.AgentAnswer, asked: Terms, names: Names) -> tuple[int, ...]:
    """Ids of the jobs that should go first."""
    s, a = asked.snapshot, asked.row
    first = names.first_job(int(s.app_id[a]))
    runnable = set(s.job_id[s.job_ptr[a] : s.job_ptr[a + 1]].tolist())
    order = tuple(first + job for job in request.jobs)
    for job in order:
        if job not in runnable:
            raise InputError(f"jobs names {job - first}, which is no job of this app that can run.")
    if len(set(order)) != len(order):
        raise InputError("jobs names a job twice.")
    return order
