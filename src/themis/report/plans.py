"""Forecasts of each job's start and finish by plans, and their accuracy: a fold over proofs (``Proof.starts``,
``ends``).

A forecast finish comes with an interval that is learnt from the log itself: by what factor the time to the finish, as
first forecast, turned out longer or shorter, calibrated such that four jobs of five end within it
(``report.calibrated``). The report gives the share that did. Only past records are used. A forecast start likewise has
an interval, learnt from the waits of jobs that had started by then; a job that is forecast to start immediately has no
wait.

Leaves out: policies that plan nothing. At 32 forecasts of a job every other one is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.model.answers import CUT, UNCONTESTED, Proof
from themis.model.units import Float, Seconds
from themis.report.calibrated import Calibrated, Interval
from themis.report.columns import HOUR, PER_CENT, cell

_SAME = 1e-6
"""Seconds below which two instants are one."""
MOST = 32
"""Forecasts kept of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """A job's forecast: the first one of an ended job, the latest of an active one. NaN if there is none."""

    job: str = cell(title="job", scale=0)
    told: Seconds = cell(
        "When the forecast was made: the first of a job that ended, the latest of one that did not.",
        title="forecast at h",
        scale=HOUR,
    )
    starts: Seconds = cell("When the job was to start, or to go on.", title="start, forecast h", scale=HOUR)
    start_low: Seconds = cell(
        "10th percentile of its start, by how far off first forecasts were of jobs that had started by then.",
        title="from h",
        scale=HOUR,
    )
    start_high: Seconds = cell("90th percentile of its start, likewise.", title="to h", scale=HOUR)
    started: Seconds = cell("When it was first granted GPUs.", title="start h", scale=HOUR)
    ends: Seconds = cell("When it was to end.", title="finish, forecast h", scale=HOUR)
    low: Seconds = cell(
        "10th percentile of its finish, by how far off first forecasts of jobs were that had ended by then.",
        title="from h",
        scale=HOUR,
    )
    high: Seconds = cell("90th percentile of its finish, likewise.", title="to h", scale=HOUR)
    ended: Seconds = cell("When it ended; none where it was given up.", title="finish h", scale=HOUR)
    off: float = cell(
        "Finish less forecast finish, over the time from the forecast to the finish.",
        title="later by %",
        scale=PER_CENT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """Plan forecasts of a run.

    Attributes
    ----------
    rows : by job. ``cut`` : plans whose search ended at its limit, short of the gap that was asked for. ``made`` : all plans.
    ``uncontested`` : plans in which every job got all it could use, so that there was nothing to solve and no gap is proven.
    life, off : Float[F], of all forecasts kept of jobs that completed: share of the time from the first forecast to the finish
        that had passed, and (finish - forecast finish) over that whole time.
    """

    rows: tuple[PlanRow, ...] = ()
    cut: int = 0
    made: int = 0
    uncontested: int = 0
    life: Float = field(default_factory=lambda: np.zeros(0))
    off: Float = field(default_factory=lambda: np.zeros(0))

    @property
    def error(self) -> float:
        """Median of |off| over jobs that ended, as first forecast; NaN if there are none."""
        off = [abs(row.off) for row in self.rows if not math.isnan(row.off)]
        return float(np.median(off)) if off else math.nan

    @property
    def within(self) -> float:
        """Share of the jobs that ended, and had an interval, that ended within it."""
        kept = [row.low <= row.ended <= row.high for row in self.rows if not math.isnan(row.ended + row.low)]
        return float(np.mean(kept)) if kept else math.nan

    @property
    def started_within(self) -> float:
        """Coverage of start intervals: share of ended jobs with a forecast wait that started within their interval."""
        waited = [r for r in self.rows if r.starts > r.told and not math.isnan(r.ended + r.started + r.start_low)]
        kept = [row.start_low - _SAME <= row.started <= row.start_high + _SAME for row in waited]
        return float(np.mean(kept)) if kept else math.nan


@dataclass(slots=True)
class _Forecasts:
    """Forecasts of one job: (time, start, end), the first with its intervals of start and end."""

    kept: list[tuple[Seconds, Seconds, Seconds]]
    first: tuple[Interval, Interval]
    start: int
    end: int
    """Numbers of the first forecast's start, -1 without a wait, and finish."""
    every: int = 1
    seen: int = 1
    started: Seconds = math.nan
    ended: Seconds = math.nan


class Plans:
    """Fold of proofs, starts and ends in order of time."""

    def __init__(self) -> None:
        self.forecasts: dict[int, _Forecasts] = {}
        self.finishes, self.waits = Calibrated(), Calibrated()
        self.cut = self.made = self.uncontested = 0

    def add(self, time: Seconds, proof: Proof) -> None:
        """A plan was made."""
        self.cut += proof.method.startswith(CUT)
        self.made += bool(len(proof.job))
        self.uncontested += proof.method.startswith(UNCONTESTED)
        for job, starts, ends in zip(proof.job.tolist(), proof.starts.tolist(), proof.ends.tolist()):
            if not (math.isfinite(starts) and math.isfinite(ends)):
                continue
            known = self.forecasts.get(job)
            if known is None:
                within = self.start_within(time, starts), self.end_within(time, ends)
                start = self.waits.add(time, starts - time, "plan") if starts > time else -1
                end = self.finishes.add(time, ends - time, "plan")
                self.forecasts[job] = _Forecasts([(time, starts, ends)], within, start, end)
                continue
            known.seen += 1
            if known.seen % known.every == 0:
                known.kept.append((time, starts, ends))
            if len(known.kept) > MOST:
                known.kept, known.every = known.kept[::2], 2 * known.every

    def start(self, job: int, time: Seconds) -> None:
        """A job was granted GPUs."""
        known = self.forecasts.get(job)
        if known is not None and math.isnan(known.started):
            known.started = time
            if known.start >= 0:
                self.waits.end(known.start, time)

    def end(self, job: int, time: Seconds) -> None:
        """A job completed."""
        known = self.forecasts.get(job)
        if known is None:
            return
        known.ended = time
        self.finishes.end(known.end, time)

    def table(self, names: Sequence[str]) -> PlanTable:
        """Table of the forecasts so far; ``names`` of jobs by id."""
        rows, life, off = [], [], []
        for job, known in sorted(self.forecasts.items()):
            over = not math.isnan(known.ended)
            made_at, starts, ends = known.kept[0 if over else -1]
            begin, end = known.first if over else (self.start_within(made_at, starts), self.end_within(made_at, ends))
            forecast = {"told": made_at, "starts": starts, "ends": ends}
            forecast |= dict(zip(("start_low", "start_high", "low", "high"), (*begin, *end)))
            late = (known.ended - ends) / (known.ended - made_at) if known.ended > made_at else math.nan
            rows.append(PlanRow(job=names[job], started=known.started, ended=known.ended, off=late, **forecast))
            if over and known.ended > made_at:
                whole = known.ended - made_at
                life += [(at - made_at) / whole for at, _, _ in known.kept]
                off += [(known.ended - forecast) / whole for _, _, forecast in known.kept]
        return PlanTable(
            rows=tuple(rows),
            cut=self.cut,
            made=self.made,
            uncontested=self.uncontested,
            life=np.array(life),
            off=np.array(off),
        )

    def start_within(self, time: Seconds, starts: Seconds) -> Interval:
        """Interval of a start as forecast at ``time``; NaN while too few jobs have started."""
        return self.waits.interval(time, starts - time, "plan") if starts > time else (starts, starts)

    def end_within(self, time: Seconds, ends: Seconds) -> Interval:
        """Interval of a finish as forecast at ``time``; NaN while too few jobs have ended."""
        return self.finishes.interval(time, ends - time, "plan")
