"""The whole service in one look, for the console: who holds each GPU, the queue with its reasons, users' shares, the last day.

``overview`` runs in the arbiter's thread and shows at most ``MOST_ROWS`` apps of each kind; ``last_day`` reads the journal from
any thread. What it shows is what every user may see.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from themis.core.state import State
from themis.model.units import NONE, Float, Int, Seconds
from themis.schema import messages as schema
from themis.service.api import reasons, views
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.journal import Entry, first_record

MOST_ROWS, MOST_REASONS = 60, 20
"""Apps of each kind; of those that wait for GPUs, how many are examined further."""
DAY_S = 86400.0
BINS = 144
"""Number of bins for the last day, 10 minutes each; shorter if the service is younger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRow:
    """A machine: its state (as of ``Node``), GPUs that get no job because a process holds them, and the app of each seat.

    ``apps`` : for each GPU, the numbers of the apps on it, at most two.
    """

    name: str
    gpu_type: str
    state: str
    withheld: int
    apps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The service at an instant.

    Attributes
    ----------
    record : number of the last record of the journal. ``at`` : seconds since 1970.
    gpus, leased : in service, and held by jobs. ``running``, ``waiting`` : apps with GPUs and without; ``..._rows`` : some of them.
    users : as ``Share`` has them, with each user's number in ``number``. ``names`` : app -> (name, user) of apps that hold GPUs.
    """

    record: int
    at: Seconds
    began: Seconds
    policy: str
    problem: str
    gpus: int
    leased: int
    running: int
    waiting: int
    lease_s: Seconds
    machines: tuple[MachineRow, ...]
    run_rows: tuple[schema.App, ...]
    wait_rows: tuple[schema.App, ...]
    users: tuple[schema.UserShare, ...]
    number: dict[str, int]
    names: dict[int, tuple[str, str]] = field(default_factory=dict)


def last_record(arbiter: Arbiter) -> int:
    """The number of the last record; if unchanged, nothing has happened."""
    return arbiter.journal.last()[0]


def overview(arbiter: Arbiter) -> Overview:
    """Overview as of now."""
    s = views.state_now(arbiter)
    machines, holders = _machines(arbiter, s)
    active = np.flatnonzero(s.apps.active[: s.apps.size])
    leased = s.apps.leased[active]
    run, wait = active[leased > 0], active[leased == 0]
    most = run[np.argsort(-s.apps.leased[run], kind="stable")][:MOST_ROWS]
    entries = _entries(arbiter, [*most.tolist(), *wait[:MOST_ROWS].tolist()])
    rows = {row.id: row for row in views.app_rows(arbiter, s, entries)}
    for row in [row for row in rows.values() if row.waits == "gpus"][:MOST_REASONS]:
        row.reason = row.reason or reasons.of_gpus(arbiter.engine, row.id, s).sentence
    for row in rows.values():
        if row.jobs_ended:  # of other users' apps, messages of failures are hidden, and all users see the same page
            row.reason = ""
    return Overview(
        record=last_record(arbiter),
        at=arbiter.epoch + s.now,
        began=arbiter.epoch,
        policy=arbiter.config.policy,
        problem=arbiter.engine.problem,
        gpus=len(s.open_gpus()),
        leased=sum(bool(gpu) for machine in machines for gpu in machine.apps),
        running=len(run),
        waiting=len(wait),
        lease_s=arbiter.settings.lease_s,
        machines=machines,
        run_rows=tuple(rows[a] for a in most.tolist() if a in rows),
        wait_rows=tuple(rows[a] for a in wait[:MOST_ROWS].tolist() if a in rows),
        users=tuple(views.share(arbiter).users),
        number=dict(s.users),
        names={a: (s.app_specs[a].name, s.app_specs[a].user) for a in holders},
    )


def _entries(arbiter: Arbiter, apps: list[int]) -> list[Entry]:
    marks = ", ".join("?" * len(apps))
    return arbiter.journal.apps(f"app IN ({marks})", *apps, programs=False) if apps else []


def _machines(arbiter: Arbiter, s: State) -> tuple[tuple[MachineRow, ...], list[int]]:
    """All machines, and the apps that hold GPUs."""
    jobs = s.gpu_job
    held: Int = np.where(jobs == NONE, NONE, s.jobs.app[np.maximum(jobs, 0)])
    of_machine: dict[int, list[tuple[int, ...]]] = {}
    for machine, seats in zip(s.gpu_machine.tolist(), held.tolist()):
        of_machine.setdefault(machine, []).append(tuple(dict.fromkeys(a for a in seats if a != NONE)))
    drained = arbiter.journal.drained()
    rows = tuple(
        MachineRow(
            name=s.machines[n].name,
            gpu_type=s.machines[n].gpu_type,
            state=views.machine_state(s, n, drained),
            withheld=len(s.withheld[n][0]) if n in s.withheld else 0,
            apps=tuple(of_machine.get(n, ())[: int(s.machine_size[n])]),
        )
        for n in views.listed(s)
    )
    return rows, sorted({int(a) for a in np.unique(held) if a != NONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """GPUs leased, mean of each bin, and decisions in it. ``start`` : seconds since 1970. ``width`` : of a bin, seconds."""

    start: Seconds
    width: Seconds
    leased: tuple[float, ...]
    decisions: tuple[int, ...]


def last_day(journal: Path, epoch: Seconds, now: Seconds) -> Day:
    """The last day, or as long as the service is there; for any thread.

    ``epoch``, ``now`` : begin of the journal and this instant, in seconds since 1970.
    """
    end = now - epoch
    start = max(end - DAY_S, 0.0)
    width = max((end - start) / BINS, 1.0)
    bins = max(int(np.ceil((end - start) / width - 1e-9)), 1)
    edges = start + width * np.arange(bins + 1)
    with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as db:
        leases = db.execute(
            "SELECT since, ended, gpus FROM leases WHERE ended IS NULL OR ended > ?", (start,)
        ).fetchall()
        first = first_record(db, start)
        times = db.execute("SELECT t FROM records WHERE number >= ? AND kind = 'Allocated'", (first,)).fetchall()
    counted, _ = np.histogram([t for (t,) in times], edges)
    edges = np.minimum(edges, end)  # of the last bin, only what has passed counts
    area = np.zeros(bins + 1)
    if leases:
        since, ended, gpus = (np.array(column, dtype=float) for column in zip(*leases))
        # GPU-seconds before each edge, over all leases.
        area = _before(edges, since, gpus) - _before(edges, ended, gpus)
    leased = np.diff(area) / np.maximum(np.diff(edges), 1e-9)
    return Day(
        start=epoch + start,
        width=width,
        leased=tuple(np.maximum(np.round(leased, 2), 0.0).tolist()),
        decisions=tuple(int(n) for n in counted),
    )


def _before(edges: Float, starts: Float, gpus: Float) -> Float:
    """Sum of gpus x (edge - start) over the starts before each edge; a start of NaN never happens."""
    known = np.isfinite(starts)
    order = np.argsort(starts[known])
    at, weight = starts[known][order], gpus[known][order]
    sums, moments = np.concatenate([[0.0], np.cumsum(weight)]), np.concatenate([[0.0], np.cumsum(weight * at)])
    place = np.searchsorted(at, edges)
    out: Float = edges * sums[place] - moments[place]
    return out
