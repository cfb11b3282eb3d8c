"""The answer to a what-if: when each app ends today and under each case, differences, and a sentence for each case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from themis.core.state import State
from themis.core.tables import Status
from themis.errors import InputError, counted
from themis.model.units import Float, Seconds
from themis.sim.forward.arrivals import says_rates
from themis.sim.forward.past import Correction, corrected, learn, spread
from themis.sim.forward.present_state import Present
from themis.sim.forward.question import CURRENT, Question
from themis.sim.forward.what_if_run import Ends, is_unknown, simulate

ALIKE = 0.02
"""Differences below this share of the time ahead, or below ``ALIKE_S``, count as equal."""
ALIKE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds from now to an app's end: the median and an 80 % interval. Infinity: not within the horizon; NaN: left out.

    ``difference`` : median over the simulations of this end less today's in the same simulation; 0 of today's.
    """

    low: Seconds
    median: Seconds
    high: Seconds
    difference: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppRow:
    """An app and its times, today's first and then those of each case.

    Attributes
    ----------
    state : running, waiting, held, to come, or unknown: nothing was said of its work, so its times are NaN.
    happened : seconds from now to its end as the log has it, where it is known.
    """

    app: int
    name: str
    user: str
    state: str
    times: Sequence[Times]
    happened: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A case over all compared apps: number of sooner, later and equal ends, and the largest differences.

    ``worst``, ``best`` : differences in seconds; NaN without any, infinity beyond the horizon. ``problem`` : why it could not be
    simulated.
    """

    policy: str
    compared: int
    sooner: int
    later: int
    worst: Seconds
    best: Seconds
    sentence: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a what-if.

    Attributes
    ----------
    now : in seconds of the log. ``policy`` : the one in force. ``changes`` : in words. ``columns`` : names of today and the cases.
    simulations : of each case. ``correction`` : what the past of the log taught.
    assumed : where no app's work is known, seconds from now until the last would end if all took what is assumed, by case; NaN
        where it was not simulated.
    """

    now: Seconds
    policy: str
    changes: str
    horizon_s: Seconds
    simulations: int
    arrivals: bool
    columns: Sequence[str]
    apps: Sequence[AppRow]
    summaries: Sequence[Summary]
    correction: Correction
    assumed: Sequence[Seconds] = ()

    @property
    def basis(self) -> str:
        """Basis of the figures, as a sentence."""
        if self.assumed:
            cases = ["today", *(f"under {name}" for name in self.columns[1:])]
            ends = [f"{_within(end)} {case}" for case, end in zip(cases, self.assumed) if not math.isnan(end)]
            given = f"the work of {counted(len(self.apps), 'app')} was not given (docs/jobs.md#how-much-work-a-job-has)"
            assumed = f" If each takes what unknown_work assumes, the last ends {', '.join(ends)}." if ends else ""
            return f"{given}, so no end is known.{assumed}"
        further = "with further arrivals as in the past" if self.arrivals else "without further arrivals"
        runs = f"{counted(self.simulations, 'simulation')} of each case, {further}"
        if unknown := sum(row.state == "unknown" for row in self.apps):
            runs += (
                f". Of {counted(unknown, 'app')} the end is unknown: the work was not given "
                "(docs/jobs.md#how-much-work-a-job-has); it is simulated as the setting unknown_work assumes"
            )
        c = self.correction
        if not c.learned:
            return f"{runs}. Intervals are not calibrated: {counted(c.ended, 'past forecast')} of this log came true."
        return f"{runs}. 80 % intervals, calibrated by {counted(c.ended, 'past forecast')} of the same log."

    def of_user(self, user: str) -> Answer:
        """Part of the answer that a user who is no administrator may see: own apps, and sentences about all that name
        no other app.
        """
        return replace(self, apps=[row for row in self.apps if row.user == user])

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; infinity and NaN are null, with ``later`` where an end is beyond the horizon."""
        return {
            "now": self.now,
            "policy": self.policy,
            "changes": self.changes,
            "horizon_s": self.horizon_s,
            "simulations": self.simulations,
            "arrivals": self.arrivals,
            "basis": self.basis,
            "calibrated": self.correction.learned,
            "calibration": asdict(self.correction),
            "columns": list(self.columns),
            "apps": [
                {
                    "app": row.app,
                    "name": row.name,
                    "user": row.user,
                    "state": row.state,
                    "happened_s": row.happened,
                    "forecasts": [_times(name, times) for name, times in zip(self.columns, row.times)],
                }
                for row in self.apps
            ],
            "cases": [_case(summary) for summary in self.summaries],
        }


def answer(
    present: Present,
    asked: Question,
    *,
    allowed_s: Seconds = 3600.0,
    learn_s: Seconds = 60.0,
    most_apps: int = 100_000,
    processes: int = 1,
    by: Correction | None = None,
) -> Answer:
    """Simulate, correct by the past, compare.

    Parameters
    ----------
    allowed_s : for simulations. ``learn_s`` : for those of the past, 0 for no correction. ``most_apps`` : in the system.
    processes : in parallel. ``by`` : a correction that is known; None: it is learned.

    Raises
    ------
    InputError, UnknownName : the question does not fit the state, no app is in it, or there are too many.
    """
    state = present.core().state
    count = int(state.apps.active[: state.apps.size].sum()) + len(present.coming)
    if not count:
        raise InputError("no app is in the system, so there is nothing to forecast.")
    if count > most_apps:
        raise InputError(f"{count} apps are in the system; a what-if takes at most {most_apps}.")
    ends = simulate(present, asked, allowed_s, processes)
    if by is None:
        known = not all(is_unknown(present, state, a) for a in ends.apps)
        by = learn(present, learn_s, processes) if learn_s > 0 and known else Correction()
    return _answer(present, asked, state, ends, by)


def _answer(present: Present, asked: Question, state: State, ends: Ends, by: Correction) -> Answer:
    begins = np.array([_begin(present, state, ends.now, a) for a in ends.apps])
    ahead = corrected(spread(ends.ends) - begins, by)  # [3, C, A]
    difference = _differences(ends.ends) * by.middle
    rows = [
        _row(present, state, a, float(begins[i]), ahead[:, :, i], difference[:, i]) for i, a in enumerate(ends.apps)
    ]
    policy = present.dump.policy
    columns = ["today" if not present.coming else policy, *(_label(case.policy, policy) for case in ends.cases[1:])]
    unknown = all(row.state == "unknown" for row in rows)
    summaries = [_summary(rows, c, columns[c], asked, ends.problems.get(c, "")) for c in range(1, len(ends.cases))]
    return Answer(
        now=ends.now,
        policy=policy,
        changes=asked.words(),
        horizon_s=asked.horizon_s,
        simulations=len(ends.ends),
        arrivals=asked.arrivals and says_rates(present.history, present.began, ends.now),
        columns=columns,
        apps=rows,
        summaries=summaries,
        correction=by,
        assumed=[float(end) for end in np.fmax.reduce(ends.ends[0] - begins, axis=1)] if unknown else (),
    )


def _within(seconds: Seconds) -> str:
    return "after the time ahead" if math.isinf(seconds) else f"in {short(seconds)}"


def _begin(present: Present, state: State, now: Seconds, app: int) -> Seconds:
    """Start of an app's time: now, or its future arrival."""
    return present.coming[app - state.apps.size].time if app >= state.apps.size else now


def _label(policy: str, own: str) -> str:
    return own if policy == CURRENT else policy


def _differences(ends: Float) -> Float:
    """[C, A], median over simulations of each end less that of the first case; both beyond the horizon are equal."""
    first = ends[:, :1, :]
    with np.errstate(invalid="ignore"):
        each = np.where(np.isinf(ends) & np.isinf(first), 0.0, ends - first)
    out: Float = np.sort(each, axis=0)[(len(ends) - 1) // 2]
    return out


def _row(present: Present, state: State, a: int, begin: Seconds, ahead: Float, difference: Float) -> AppRow:
    coming = a >= state.apps.size
    spec = present.coming[a - state.apps.size].app if coming else state.app_specs[a]
    unknown = is_unknown(present, state, a)
    status = "unknown" if unknown else "to come" if coming else _state(state, a)
    if unknown:
        ahead, difference = np.full_like(ahead, np.nan), np.full_like(difference, np.nan)
    ended = present.ended.get(a)
    times = [
        Times(low=float(low), median=float(middle), high=float(high), difference=float(by))
        for (low, middle, high), by in zip(ahead.T, difference)
    ]
    return AppRow(
        app=a,
        name=spec.name,
        user=spec.user,
        state=status,
        times=times,
        happened=None if ended is None else ended.time - begin,
    )


def _state(state: State, a: int) -> str:
    if state.apps.held[a]:
        return "held"
    return "running" if (state.jobs.status[state.app_jobs(a)] == Status.RUNNING).any() else "waiting"


def _summary(rows: Sequence[AppRow], c: int, policy: str, asked: Question, problem: str) -> Summary:
    changes = asked.words()
    under = f"Under {policy}{', ' + changes if changes else ''}"
    if problem:
        return Summary(
            policy=policy,
            compared=0,
            sooner=0,
            later=0,
            worst=math.nan,
            best=math.nan,
            sentence=f"{under}: not simulated, {problem}",
            problem=problem,
        )
    found = [(row, row.times[c]) for row in rows if not math.isnan(row.times[c].difference) and row.state != "held"]
    sooner = [times.difference for row, times in found if _apart(row.times[0], times) and times.difference < 0]
    later = [times.difference for row, times in found if _apart(row.times[0], times) and times.difference > 0]
    worst, best = max(later, default=0.0), min(sooner, default=0.0)
    parts = [f"{len(sooner)} of {counted(len(found), 'app')} would finish sooner, {len(later)} later"]
    parts += [f"worst {signed(worst)}"] if later else []
    parts += [f"best {signed(best)}"] if sooner else []
    return Summary(
        policy=policy,
        compared=len(found),
        sooner=len(sooner),
        later=len(later),
        worst=worst if found else math.nan,
        best=best if found else math.nan,
        sentence=f"{under} {'; '.join(parts)}." if found else f"{under} no end can be compared.",
    )


def _apart(today: Times, times: Times) -> bool:
    """True if the difference is one."""
    least = max(ALIKE_S, ALIKE * today.median if math.isfinite(today.median) else 0.0)
    return abs(times.difference) > least


def signed(seconds: Seconds) -> str:
    """``+2.1 h``, ``-35 s``, ``+20 d``; ``+later`` beyond the horizon."""
    if math.isnan(seconds):
        return ""
    sign = "-" if seconds < 0 else "+"
    return sign + ("later" if math.isinf(seconds) else short(abs(seconds)))


def short(seconds: Seconds) -> str:
    """``35 s``, ``12 min``, ``2.1 h``, ``3.4 d``, in six characters or so; ``later`` for infinity, nothing for NaN."""
    if math.isnan(seconds):
        return ""
    if math.isinf(seconds):
        return "later"
    for unit, size, most in (("s", 1.0, 99.5), ("min", 60.0, 99.5 * 60), ("h", 3600.0, 48 * 3600)):
        if seconds < most:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 9.95 and unit != "s" else f"{value:.0f} {unit}"
    return f"{seconds / 86400:.1f} d"


def _times(name: str, times: Times) -> dict[str, Any]:
    return {
        "case": name,
        "later": math.isinf(times.median),
        "low_s": _finite(times.low),
        "median_s": _finite(times.median),
        "high_s": _finite(times.high),
        "difference_s": _finite(times.difference),
    }


def _case(summary: Summary) -> dict[str, Any]:
    fields = {name: _finite(value) for name, value in asdict(summary).items()}
    return {"worst_s" if name == "worst" else "best_s" if name == "best" else name: v for name, v in fields.items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
