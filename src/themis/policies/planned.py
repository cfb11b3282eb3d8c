"""Parts common to policies that plan rounds: a snapshot's view of the next rounds, and a plan laid out in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from themis.model.answers import CUT, UNCONTESTED, Proof, RoundPlan, Solved
from themis.model.forecast import Ahead
from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float, Int, Seconds, round_end
from themis.optimize.rounds.gang_rounds import best_rounds, rounds_of
from themis.optimize.rounds.knapsack import Counts, best_counts
from themis.optimize.rounds.window import Window
from themis.policies.placement.packing import most_gpus
from themis.policies.planning.order import Schedule, evenly, in_time, ordered
from themis.policies.planning.round_window import all_work, columns, needed, window_of
from themis.policies.shares import allowances, weights

HANDED_OUT = 20
"""Rounds of a plan that the core receives: an event long before their end causes a new plan. At most this many columns
of a window are single rounds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """``gap`` : relative, at which a solve ends. ``nodes``, ``seconds`` : of its integer program at most, seconds live only.

    ``seed`` : of the solver's own choices.
    """

    gap: float = 1e-3
    nodes: int = 2000
    seconds: Seconds = math.inf
    seed: int = 0


def solved(
    s: Snapshot, view: View, window: Window, *, due: Float, stay: bool, effort: Effort, scale: float = 1.0
) -> Solved:
    """Counts, their layout, with idle GPUs given to waiting jobs; objective and bound are divided by ``scale``.

    Parameters
    ----------
    due : [J], of two jobs the one with the lower goes first. stay : but a running job continues before either.
    """
    counts = best_counts(window, gap=effort.gap, nodes=effort.nodes, seconds=effort.seconds, seed=effort.seed)
    plan, bound = _laid_out(window, counts, view.running, due, stay, effort)
    run = view.columns(s, plan.run[:, :HANDED_OUT].astype(bool), due)
    out = np.zeros((s.jobs, run.shape[1]), dtype=bool)
    out[view.rows] = run
    starts, ends = view.forecast(run[:, 0], plan, window)
    proof = Proof(
        objective=(counts.objective - plan.loss) / scale,
        bound=bound / scale,
        method=_method(counts, plan.loss, bound, effort),
        job=s.job_id[view.rows],
        starts=starts,
        ends=ends,
    )
    return Solved(answer=RoundPlan(job=s.job_id, gpus=most_gpus(s), run=out, round_s=view.round_s), proof=proof)


def _laid_out(
    window: Window, counts: Counts, running: Bool, due: Float, stay: bool, effort: Effort
) -> tuple[Schedule, float]:
    """Rounds of the counts, by rank; by size if gangs do not fit by rank; else the best that fit. With a bound on all rounds.

    Where ranks go before who runs, they are what the plan is for: it keeps their order, and the proof says what that costs.
    """
    most = effort.gap * (counts.bound - counts.idle)
    plan = ordered(window, counts.n, running=running, rank=due, stay=stay, by_rank=HANDED_OUT, accept=most)
    accept = max(most - (counts.bound - counts.objective), 0.0)
    if plan.loss <= accept or not stay or window.lengths.max() > 1:
        return plan, counts.bound

    def better(sets: Bool, times: Int) -> Schedule:
        run = in_time(window, sets, times, running=running, rank=due, stay=stay)
        loss = counts.objective - window.objective(window.reached(run.sum(axis=1)))
        return min(plan, Schedule(run=run, until=run.astype(np.float64), loss=loss), key=lambda schedule: schedule.loss)

    plan = better(*rounds_of(evenly(window, counts.n)))
    if plan.loss <= accept:
        return plan, counts.bound
    choice, floor = counts.chances(window, counts.objective - plan.loss)
    found = best_rounds(
        window,
        plan.run,
        choice,
        floor,
        bound=counts.bound,
        gap=most,
        nodes=effort.nodes,
        seconds=effort.seconds,
        seed=effort.seed,
    )
    return better(found.sets, found.times), found.bound


def _method(counts: Counts, loss: float, bound: float, effort: Effort) -> str:
    """Method shown in the proof; it says if the plan's gap is wider than was asked for."""
    if not counts.contested and loss <= 0.0:
        return f"{UNCONTESTED}: every job gets all the rounds that it can use"
    gap = (bound - counts.objective + loss) / max(bound - counts.idle, 1e-300)
    if gap <= effort.gap + 1e-9:
        return "plan"
    return f"{CUT}: a plan with a gap of {gap:.2%}, asked for {effort.gap:.2%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Columns of a snapshot that the plan reads, for the jobs that fit.

    ``start_s`` : seconds that a job's start takes, 0 for running jobs. ``started`` : seconds that jobs which hold GPUs
    train before the next round begins at ``begin``. ``weight`` : its app's. ``allowance`` : how much longer than a job
    of mean weight it may take (``shares.allowances``).
    """

    ahead: Ahead
    gpus: Int
    held: Bool
    running: Bool
    start_s: Float
    started: Float
    elapsed: Float
    weight: Float
    allowance: Float
    rows: Int
    begin: Seconds
    now: Seconds
    round_s: Seconds

    def window(self, rounds: int, *, weight: Float, pull: float, capacity: int) -> Window:
        """The planning problem; ``rounds`` in its window, 0 for one that holds all work."""
        need = needed(self.ahead, self.start_s, self.started, self.round_s)
        lengths = (
            np.ones(rounds, dtype=np.int64) if rounds else columns(all_work(need, self.gpus, capacity), HANDED_OUT)
        )
        return window_of(
            self.ahead,
            self.gpus,
            weight=weight,
            skipped=self.start_s,
            started=self.started,
            lengths=lengths,
            round_s=self.round_s,
            pull=pull,
            capacity=capacity,
        )

    @classmethod
    def of(cls, s: Snapshot, round_s: Seconds) -> View:
        """Build a view of the jobs whose gangs fit the GPUs in service."""
        size = most_gpus(s)
        rows = np.flatnonzero((size > 0) & (size <= s.machine_gpus.sum()))
        gpus, forecast = size[rows], s.need("ahead")
        assert isinstance(forecast, Ahead)
        ahead = forecast.of(rows)
        end = round_end(s.now, round_s, s.origin)
        begin = s.now if end - s.now > round_s - 1e-6 else end
        held = s.job_held[rows] > 0
        running = held | (s.job_expiring[rows] > 0)
        # Time that its user held the app is no part of its life: neither waited, nor due.
        arrival = (s.app_arrival + s.app_away)[s.job_app[rows]]
        return cls(
            ahead=ahead,
            gpus=gpus,
            held=held,
            running=running,
            start_s=np.where(running, 0.0, _start_seconds(s)[rows]),
            started=np.where(held, begin - s.now, 0.0),
            elapsed=s.now - arrival,
            weight=weights(s)[rows],
            allowance=allowances(s)[rows],
            rows=rows,
            begin=begin,
            now=s.now,
            round_s=round_s,
        )

    def columns(self, s: Snapshot, run: Bool, due: Float) -> Bool:
        """The plan's first rounds as columns, the first one from now on; GPUs that it leaves idle now go to who waits."""
        if self.begin > s.now:
            run = np.concatenate([np.zeros((len(run), 1), dtype=bool), run], axis=1)
            soon = run[:, 1] if run.shape[1] > 1 else run[:, 0]
        else:
            run, soon = run.copy(), run[:, 0].copy()
        room = int(s.free.sum())
        # Jobs that hold GPUs into this round keep them; then come jobs by plan, then by running, then by due.
        first = np.zeros(len(run), dtype=bool)
        for j in np.lexsort((due, ~self.running, ~soon)).tolist():
            if not self.held[j] and self.gpus[j] <= room and (soon[j] or self._worth_a_start(j)):
                first[j] = True
                room -= int(self.gpus[j])
        run[:, 0] = first
        return run

    def _worth_a_start(self, j: int) -> bool:
        return self.begin == self.now or self.begin - self.now > self.start_s[j]

    def forecast(self, now: Bool, plan: Schedule, window: Window) -> tuple[Float, Float]:
        """Forecast start and end of each job; ``now`` [J], jobs that run from this moment on.

        What is left after the window goes on at 1 / N of the time (eq. 9); who has no round in the window starts after it.
        """
        early = self.begin - self.now  # seconds before the first round of the plan
        rounds, until = plan.run.copy(), plan.until.copy()
        if early <= 0 and rounds.shape[1]:
            rounds[:, 0] = until[:, 0] = now
        begins = self.begin + self.round_s * (np.cumsum(window.lengths) - window.lengths)
        over = self.begin + self.round_s * window.rounds
        first = np.argmax(rounds > 0, axis=1)
        jobs = np.arange(len(rounds))
        starts = begins[first] + self.round_s * (until - rounds)[jobs, first]
        starts = np.where((rounds > 0).any(axis=1), starts, over)
        starts = np.where(self.held | now, self.now, starts)
        # A job that starts now also trains before the first round.
        before = np.where(now, np.maximum(early - self.start_s, 0.0), self.started)
        start_left = np.where(now & (early > 0), np.maximum(self.start_s - early, 0.0), self.start_s)
        trains = np.maximum(np.cumsum(rounds, axis=1) * self.round_s - start_left[:, None], 0.0) + before[:, None]
        left = self.ahead.left_s
        done = np.greater_equal(trains, left[:, None] - 1e-6)
        last = np.argmax(done, axis=1)
        within = begins[last] + self.round_s * until[jobs, last] - (trains[jobs, last] - left)
        beyond = over + (left - trains[:, -1]) * self.ahead.contention
        ends = np.where(np.any(done, axis=1), within, beyond)
        begun = np.where(now, self.start_s, 0.0)
        return starts, np.where(before >= left, self.now + begun + left, ends)


def _start_seconds(s: Snapshot) -> Float:
    """[J], cost of a start: the container, and reading a checkpoint if there is one."""
    out: Float = s.restart_s + np.where(s.job_attained > 0, s.speeds.checkpoint_s[s.job_config], 0.0)
    return out
