"""Shockwave (NSDI'23): a market over time. The next rounds are planned for progress, fairness and makespan at once.

    maximise  1/(N M) sum_j rho_j^k log UTIL_j(n_j)  -  lambda/Z0 * H(n)                     (§6, eq. 11)

over the rounds n_j of each job: UTIL_j is its progress over the forecast regimes, rho_j^k its budget, H the lower bound of
the makespan. Which rounds these are changes nothing in the objective, and is decided by the fair finish of a job, its arrival
plus P N, which finish-time fairness compares with: who would miss it by waiting comes first, then who is due first.

Differs from the paper: decision 0010. Leaves out: GPUs of different speed (one pool of GPUs that are alike).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.forecast.rules import Forecaster, Rule
from themis.model.ahead import Ahead
from themis.model.answers import Proof, RoundPlan, Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float, Int, Seconds, round_end
from themis.placement.packing import most_gpus
from themis.planning.counts import best_counts
from themis.planning.order import ordered
from themis.planning.window import Window, budgets, forecast_rho, window_of
from themis.policies.api import Level, Pace, Workbench

HANDED_OUT = 20
"""Rounds of a plan that the core is given: long before they are over something happens, and it is planned anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shockwave:
    """Plan the next rounds as a market over time.

    Attributes
    ----------
    round_s : length of a round, D. ``window`` : rounds planned ahead, T, 1 to 1000 (decision 0010 says why so many).
    power : k, budgets are the forecast finish-time fairness to this power, 0 to 10.
    makespan : lambda, price of the makespan's lower bound, 0 or more.
    forecast, noise : see ``themis.forecast.rules.Forecaster``.
    reactive : a change of batch size ends the plan in force; otherwise it goes on to the next arrival or completion.
    backfill : GPUs that fall free in mid-round go to a waiting job at once; otherwise they idle to the round's end.
    gap : relative gap at which a solve ends, 0 to 1. ``nodes`` : of its integer program at most, 1 or more.
    """

    round_s: Seconds = 120.0
    window: int = 120
    power: float = 5.0
    makespan: float = 0.1
    forecast: Rule = Rule.RESTATEMENT
    noise: float = 0.0
    reactive: bool = True
    backfill: bool = True
    gap: float = 1e-3
    nodes: int = 2000

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"ahead"})
    level: ClassVar[Level] = Level.JOB

    def __post_init__(self) -> None:
        ranges = (
            ("window", 1, 1000), ("power", 0, 10), ("makespan", 0, 1e6), ("noise", 0, 1), ("gap", 0, 1), ("nodes", 1, 1e9),
        )  # fmt: skip
        for name, low, high in ranges:
            if not low <= getattr(self, name) <= high:
                raise InputError(f"policy shockwave: {name} is {getattr(self, name)}, expected {low} to {high:g}.")

    @property
    def pace(self) -> Pace:
        """Rounds; a plan holds until a job comes, ends or, if reactive, changes its speed."""
        return Pace(self.round_s, backfill=self.backfill, replan_on_regime=self.reactive)

    @property
    def forecaster(self) -> Forecaster:
        """The forecasts that it plans on."""
        return Forecaster(rule=self.forecast, noise=self.noise)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Rounds for every job that fits the cluster, laid out, and GPUs that are left over given to who waits."""
        s, gpus = snapshot, most_gpus(snapshot)
        capacity = int(s.machine_gpus.sum())
        rows = np.flatnonzero((gpus > 0) & (gpus <= capacity))
        ahead = s.need("ahead")
        assert isinstance(ahead, Ahead)
        view = _View.of(s, rows, ahead.of(rows), gpus[rows], self.round_s)
        scale = max(len(rows) * capacity, 1)
        window = self._window(view, capacity, scale)
        counts = best_counts(window, gap=self.gap, nodes=self.nodes)
        accept = self.gap * (counts.bound - counts.idle)
        plan = ordered(
            window, counts.n, running=view.running, rank=view.due, slack=view.slack, by_rank=HANDED_OUT, accept=accept
        )
        run = view.columns(s, plan.run)
        out = np.zeros((s.jobs, min(run.shape[1], HANDED_OUT + 1)), dtype=bool)
        out[rows] = run[:, : out.shape[1]]
        starts, ends = view.forecast(run, window)
        proof = Proof(
            objective=(counts.objective - plan.loss) / scale, bound=counts.bound / scale, method="plan", job=s.job_id[rows],
            starts=starts, ends=ends,
        )  # fmt: skip
        return Solved(answer=RoundPlan(job=s.job_id, gpus=gpus, run=out, round_s=self.round_s), proof=proof)

    def _window(self, view: _View, capacity: int, scale: int) -> Window:
        """Equation 11 times N M."""
        rho = forecast_rho(view.ahead, view.elapsed)
        return window_of(
            view.ahead, view.gpus, weight=budgets(rho, self.power), skipped=view.start_s, started=view.started,
            rounds=self.window, round_s=self.round_s, capacity=capacity,
            pull=self.makespan * scale / max(float(view.ahead.isolated_s.sum()), 1e-9),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What the plan reads of a snapshot, for the jobs that fit.

    ``start_s`` : seconds that a job's start takes, 0 for those that run. ``started`` : seconds that those who hold GPUs
    train before the next round begins at ``begin``. ``due`` : the fair finish.
    """

    ahead: Ahead
    gpus: Int
    held: Bool
    running: Bool
    start_s: Float
    started: Float
    elapsed: Float
    due: Float
    rows: Int
    begin: Seconds
    now: Seconds
    round_s: Seconds

    @property
    def slack(self) -> Float:
        """Rounds that each job may still wait without missing its fair finish; 0 or less: it must run, or is late."""
        out: Float = (self.due - self.begin - self.ahead.left_s) / self.round_s
        return out

    @classmethod
    def of(cls, s: Snapshot, rows: Int, ahead: Ahead, gpus: Int, round_s: Seconds) -> _View:
        end = round_end(s.now, round_s)
        begin = s.now if end - s.now > round_s - 1e-6 else end
        held = s.job_held[rows] > 0
        running = held | (s.job_expiring[rows] > 0)
        arrival = s.app_arrival[s.job_app[rows]]
        return cls(
            ahead=ahead, gpus=gpus, held=held, running=running,
            start_s=np.where(running, 0.0, _start_seconds(s)[rows]),
            started=np.where(held, begin - s.now, 0.0), elapsed=s.now - arrival,
            due=arrival + ahead.isolated_s * ahead.contention, rows=rows, begin=begin, now=s.now, round_s=round_s,
        )  # fmt: skip

    def columns(self, s: Snapshot, run: Bool) -> Bool:
        """The plan's rounds as columns, the first one from now on; GPUs that it leaves idle now go to who waits."""
        if self.begin > s.now:
            run = np.concatenate([np.zeros((len(run), 1), dtype=bool), run], axis=1)
            soon = run[:, 1] if run.shape[1] > 1 else run[:, 0]
        else:
            run, soon = run.copy(), run[:, 0].copy()
        room = int(s.free.sum())
        # Who holds GPUs into this round keeps them; of the others, who is next in the plan, then who ran, then who is due.
        first = np.zeros(len(run), dtype=bool)
        for j in np.lexsort((self.due, ~self.running, ~soon)).tolist():
            if not self.held[j] and self.gpus[j] <= room and (soon[j] or self._worth_a_start(j)):
                first[j] = True
                room -= int(self.gpus[j])
        run[:, 0] = first
        return run

    def _worth_a_start(self, j: int) -> bool:
        return self.begin == self.now or self.begin - self.now > self.start_s[j]

    def forecast(self, run: Bool, window: Window) -> tuple[Float, Float]:
        """When each job runs next, and when it is forecast to end.

        What is left after the window goes on at 1 / N of the time (eq. 9); who has no round in the window starts after it.
        """
        jobs, over = np.arange(len(run)), self.begin + self.round_s * window.rounds
        begins = over - self.round_s * np.arange(run.shape[1], 0, -1)
        begins[0] = self.now
        lasts = np.append(np.diff(begins), self.round_s)
        starts = np.where(run.any(axis=1), begins[run.argmax(axis=1)], over)
        starts = np.where(self.held, self.now, starts)
        trains = np.cumsum(run * lasts, axis=1)
        trains = np.maximum(trains - self.start_s[:, None], 0.0) + self.started[:, None]
        left = self.ahead.left_s
        done = np.greater_equal(trains, left[:, None] - 1e-6)
        last = np.argmax(done, axis=1)
        within = begins[last] + lasts[last] - (trains[jobs, last] - left)
        beyond = over + (left - trains[:, -1]) * self.ahead.contention
        ends = np.where(np.any(done, axis=1), within, beyond)
        return starts, np.where(self.started >= left, self.now + left, ends)


def _start_seconds(s: Snapshot) -> Float:
    """[J], what it costs to start: the container, and to read a checkpoint if there is one."""
    out: Float = s.restart_s + np.where(s.job_attained > 0, s.speeds.checkpoint_s[s.job_config], 0.0)
    return out
