"""What a live run's event log says of its changes' costs, and where a simulation of the run decides otherwise."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from themis.model.units import Locality


@dataclass(frozen=True, slots=True)
class Costs:
    """What a live run paid for changes, in seconds each, in order of the grants and of the orders to stop.

    Attributes
    ----------
    starts : of each attempt: from its grant until it trains. A preempted one's follows from the steps that it had done when it
        was told to stop; that of one that reached its target from when its reports came, at the earliest.
    finishes : of each attempt too: from its last step to the report of its target. Of one that was preempted, the mean.
    stops : of each gang that was preempted: from the order to its GPUs' return.
    """

    starts: tuple[float, ...]
    finishes: tuple[float, ...]
    stops: tuple[float, ...]

    def later(self, share: float) -> Costs:
        """The same, beginning with those that came after this share of them, and ending with the first ones."""
        first = [int(share * len(values)) for values in (self.starts, self.finishes, self.stops)]
        return Costs(*(v[at:] + v[:at] for v, at in zip((self.starts, self.finishes, self.stops), first)))

    def shaken(self, by: float, rng: np.random.Generator) -> Costs:
        """Each cost more or less by up to so much, and not below 0."""
        return Costs(
            *(
                tuple(np.maximum(np.array(v) + rng.uniform(-by, by, len(v)), 0.0).tolist())
                for v in (self.starts, self.finishes, self.stops)
            )
        )


@dataclass(slots=True, eq=False)
class _Attempt:
    """One gang's, as far as the log was read; seconds, NaN where unknown."""

    granted: float
    pace: float
    before: float
    """Steps done before it."""
    trains: float = math.nan
    """After its grant, at the latest."""
    told: float = math.nan
    """When it was told to stop."""
    spent: float = math.nan
    """From its grant to that, or to the report of its target, less its steps' own time."""
    stopping: float = math.nan

    def without_steps(self, t: float, steps: float) -> float:
        """Of the time since the grant, what was not spent on its steps."""
        return t - self.granted - (steps - self.before) * self.pace

    @property
    def finish(self) -> float:
        """From its last step to its report."""
        return self.spent - min(self.trains, self.spent) if math.isnan(self.told) else math.nan


def costs(log: Path, rate: float, across: float) -> Costs:
    """Read them off a live log of gangs that do ``rate`` steps/s on each GPU, ``across`` times less over several machines."""
    done: dict[int, float] = {}
    attempts: list[_Attempt] = []
    latest: dict[int, _Attempt] = {}
    for record in records(log):
        kind, t = record["kind"], record["t"]
        if kind == "Grant":
            pace = (across if record["locality"] >= Locality.RACK else 1.0) / (rate * len(record["gpus"]))
            latest[record["job"]] = _Attempt(t, pace, done.get(record["job"], 0.0))
            attempts.append(latest[record["job"]])
        elif kind in ("Revoke", "JobProgress", "JobReached", "JobStopped"):
            attempt, steps = latest[record["job"]], record.get("steps", 0.0)
            if kind == "JobProgress":
                attempt.trains = float(np.fmin(attempt.trains, attempt.without_steps(t, steps)))
            elif kind == "Revoke" and record["cause"] not in ("finished", "rung"):
                attempt.told = t
            elif kind != "Revoke":
                if steps > attempt.before and math.isnan(attempt.spent):
                    attempt.spent = attempt.without_steps(float(np.fmin(t, attempt.told)), steps)
                if kind == "JobStopped":
                    attempt.stopping = t - attempt.told
                done[record["job"]] = steps
    known = [a for a in attempts if not math.isnan(a.spent)]
    finishes = np.array([a.finish for a in known])
    preempted = np.array([not math.isnan(a.told) for a in known], dtype=bool)
    usual = float(np.nanmean(finishes)) if not np.isnan(finishes).all() else 0.0
    finishes = np.where(np.isnan(finishes), usual, finishes)
    starts = np.array([a.spent for a in known]) - np.where(preempted, 0.0, finishes)
    stops = sorted((a.told, a.stopping) for a in attempts if not math.isnan(a.stopping))
    return Costs(tuple(starts.tolist()), tuple(finishes.tolist()), tuple(seconds for _, seconds in stops))


def records(log: Path) -> Iterator[dict[str, Any]]:
    """Of an event log, as they are written."""
    return map(json.loads, log.read_text().splitlines())


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer of the policy: at ``time`` each gang went to this app, with so many GPUs on these machines."""

    time: float
    gangs: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]

    def __str__(self) -> str:
        wins: dict[int, list[str]] = {}
        for app, seats in self.gangs:
            wins.setdefault(app, []).append("+".join(str(gpus) for _, gpus in seats))
        gives = ", ".join(f"{' and '.join(sizes)} to app {app}" for app, sizes in wins.items())
        return f"at {self.time:.2f} s {gives or 'nothing'}"


def decisions(log: Path) -> list[Decision]:
    """All decisions of a log, in order. A renewal of all leases is not one."""
    out = []
    for record in records(log):
        if record["kind"] == "Allocated":
            answer, gangs = record["answer"], dict[int, tuple[int, list[tuple[int, int]]]]()
            grant = answer if "app" in answer else answer.get("new")
            if grant is None:
                continue  # all leases were renewed: nothing was decided
            for app, gang, machine, gpus in zip(*(grant[key] for key in ("app", "gang", "machine", "gpus"))):
                gangs.setdefault(gang, (app, []))[1].append((machine, gpus))
            out.append(Decision(record["t"], tuple(sorted((app, tuple(seats)) for app, seats in gangs.values()))))
    return out


def compared_decisions(live: Path, simulated: Path) -> str:
    """How many decisions two logs have alike from the first on, and the first that differs: who got what."""
    ours, theirs = decisions(live), decisions(simulated)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0].gangs == pair[1].gangs, zip(ours, theirs)))
    if alike == len(ours) == len(theirs):
        return f"all {alike} decisions alike"
    first, other = (str(side[alike]) if alike < len(side) else "none any more" for side in (ours, theirs))
    return f"{alike} of {len(ours)} decisions alike; then, in GPUs of each gang, live {first}, simulated {other}"
