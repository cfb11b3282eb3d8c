"""Number of rounds of the window for each job: a multiple-choice knapsack, solved to a proven gap.

1. At a price of a GPU for a round, and with H's price split between its two terms, every job's best choice stands by
   itself; the sum of these is a bound on the optimum (Lagrange). The prices of the least bound are found by bisection.
2. The choices at these prices, made to fit, are a plan.
3. If its gap is not small enough: an integer program over the choices that could still be part of a better plan.

``value`` need not be concave in rounds (jobs that speed up): step 1 takes any shape, step 3 closes what gap that leaves.

Leaves out: which rounds (``themis.policies.planning.order``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from themis.errors import NotSolved
from themis.model.units import Bool, Float, Int, Seconds
from themis.optimize.rounds.window import Window
from themis.optimize.rounds.window_program import best_of_choices

NODES = 2000
"""Branch-and-bound nodes of the integer program, where it is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The choice of each job, ``n`` Int[J] (in a window of single rounds: its rounds), with a proof.

    Attributes
    ----------
    objective, bound : ``objective <= optimum <= bound``. ``idle`` : the objective without any rounds.
    price : of one GPU for one round, in units of the objective. ``shared`` : the part of ``pull`` for all work left, as in
        ``PricedJobs``; both prove the bound.
    contested : whether jobs want more than the window has; otherwise every job gets all that it can use, and no problem is solved.
    """

    n: Int
    objective: float
    bound: float
    idle: float
    price: float = 0.0
    shared: float
    contested: bool = True

    @property
    def gap(self) -> float:
        """Proven gap, relative to all that the window could gain over idling."""
        most = self.bound - self.idle
        return (self.bound - self.objective) / most if most > 0 else 0.0

    def chances(self, window: Window, objective: float) -> tuple[Bool, Int]:
        """``PricedJobs.chances`` at these prices."""
        return PricedJobs(Choices(window), self.price, self.shared).chances(objective)


def best_counts(
    window: Window, *, gap: float = 1e-3, nodes: int = NODES, seconds: Seconds = math.inf, seed: int = 0
) -> Counts:
    """The best counts to a relative ``gap``, or the best found within ``nodes``, with the gap that is proven.

    Parameters
    ----------
    seconds : of the integer program, for the live service; steps 1 and 2 are of bounded work and always done, so that there is
        a plan and a bound whatever the limits are.
    seed : of HiGHS' own choices.
    """
    w = window
    nothing = np.zeros(w.jobs, dtype=np.int64)
    idle = w.objective(nothing)
    if int(w.gpus @ w.takes(w.useful)) <= w.room:
        # Everybody gets all that is useful, and nothing could be better.
        best = w.objective(w.useful)
        return Counts(n=w.useful, objective=best, bound=best, idle=idle, shared=w.pull, contested=False)
    search = _PriceSearch(Choices(w), idle, gap)
    search.run()
    n, objective, bound = search.n, search.objective, search.bound
    if bound - objective > gap * (bound - idle):
        try:
            chance, floor = search.best.chances(objective)
            better, proven = best_of_choices(
                w, chance, floor, n, gap=0.5 * gap * (bound - idle), nodes=nodes, seconds=seconds, seed=seed
            )
        except NotSolved:
            better, proven = n, bound  # the plan and the bound at hand stand
        bound = min(bound, max(proven, objective))
        if (value := w.objective(better)) > objective:
            n, objective = better, value
    at, bound = search.best, max(bound, objective)
    return Counts(n=n, objective=objective, bound=bound, idle=idle, price=at.price, shared=at.shared)


class Choices:
    """The window in the form that prices are applied to.

    Attributes
    ----------
    value : [J, C+1], -inf past the useful rounds. ``use`` : GPU-rounds. ``work`` : each choice's part of H's first term.
    long : jobs that may be the longest left. ``caps`` : Float[H], rising, seconds that the longest job may have left.
    needs : Int[L, H], choice that each long job needs to stay within each cap.
    """

    def __init__(self, window: Window) -> None:
        w = self.window = window
        self.value = np.where(np.arange(w.value.shape[1]) <= w.useful[:, None], w.value, -np.inf)
        self.use = w.gpus[:, None] * w.spent.astype(np.float64)
        self.work = w.gpus[:, None] / w.capacity * w.left
        least = float(w.left[:, -1].max())
        self.long = np.flatnonzero(w.left[:, 0] > least) if w.pull > 0 else np.zeros(0, dtype=np.int64)
        levels = w.left[self.long]
        self.caps = np.unique(np.append(levels[levels >= least], least))
        needs = [np.searchsorted(-row, -self.caps, side="left") for row in levels]
        self.needs = np.array(needs, dtype=np.int64).reshape(-1, len(self.caps))

    def floor(self, cap: int) -> Int:
        """[J], choice that each job needs to stay within this cap (its number)."""
        out = np.zeros(self.window.jobs, dtype=np.int64)
        out[self.long] = self.needs[:, cap]
        return out


class PricedJobs:
    """Best choice of each job by itself, at a ``price`` of a GPU for a round.

    ``shared`` is the part of ``pull`` that is charged for all work left; the rest is charged for the longest job, once for
    each value that it may have (the caps): jobs then get at least what keeps them within.

    Attributes
    ----------
    cap_bound : Float[H], bound of the plans whose longest job has exactly this cap left. ``bound`` : of all plans.
    """

    def __init__(self, choices: Choices, price: float, shared: float) -> None:
        self.choices, self.price, self.shared = choices, price, shared
        w = choices.window
        self.worth = choices.value - price * choices.use
        if shared > 0:
            self.worth -= shared * choices.work
        self.free = self.worth.max(axis=1)
        rest = w.pull - shared
        total = float(self.free.sum()) + price * w.room
        if rest <= 0:
            self.cap_bound = np.array([total])
            self.cap = -1
        else:
            # The best of at least n rounds, of long jobs.
            rows = self.worth[choices.long]
            self.ahead = np.maximum.accumulate(rows[:, ::-1], axis=1)[:, ::-1]
            held = np.take_along_axis(self.ahead, choices.needs, axis=1).sum(axis=0)
            self.cap_bound = total - float(self.free[choices.long].sum()) + held - rest * choices.caps
            self.cap = int(np.argmax(self.cap_bound))
        self.bound = float(self.cap_bound.max())
        self.n = self.picks(self.cap)

    def picks(self, cap: int) -> Int:
        """[J], each job's best choice within this cap; -1 for none."""
        n: Int = self.worth.argmax(axis=1)
        if cap < 0 or not len(self.choices.long):
            return n
        long = self.choices.long
        rounds = np.arange(self.worth.shape[1])
        rows = np.where(rounds >= self.choices.needs[:, cap][:, None], self.worth[long], -np.inf)
        n[long] = rows.argmax(axis=1)
        return n

    @property
    def spare(self) -> int:
        """GPU-rounds that these picks leave over; negative where they do not fit."""
        w = self.choices.window
        return w.room - int(w.gpus @ w.takes(self.n))

    @property
    def tilt(self) -> float:
        """Excess of H's second term over the first at these picks: whether ``shared`` is too large."""
        w, c = self.choices.window, self.choices
        left = w.left[np.arange(w.jobs), self.n]
        longest = float(left.max()) if self.cap < 0 else float(c.caps[self.cap])
        return longest - float(w.gpus @ left) / w.capacity

    def plans(self, tries: int) -> list[Int]:
        """Counts that fit, from the caps of highest bound."""
        w, c = self.choices.window, self.choices
        if self.cap < 0:
            return [fitting(w, self.n, np.zeros(w.jobs, dtype=np.int64))]
        caps = np.argsort(-self.cap_bound, kind="stable")[:tries].tolist()
        return [fitting(w, self.picks(cap), c.floor(cap)) for cap in caps]

    def chances(self, objective: float) -> tuple[Bool, Int]:
        """[J, C+1], whether a plan with this choice could beat ``objective``; and the least choice of each job, [J]."""
        c = self.choices
        out: Bool = self.bound - self.free[:, None] + self.worth > objective
        if self.cap < 0:
            return out, np.zeros(len(out), dtype=np.int64)
        rounds = np.arange(out.shape[1])
        for row, j in enumerate(c.long.tolist()):
            needs = c.needs[row]
            others = np.maximum.accumulate((self.cap_bound - self.ahead[row, needs])[::-1])[::-1]
            first = np.searchsorted(-needs, -rounds, side="left")
            best = others[np.minimum(first, len(c.caps) - 1)]
            out[j] = (first < len(c.caps)) & (best + self.worth[j] > objective)
        able = np.flatnonzero(self.cap_bound > objective)
        floor = c.floor(int(able[-1]) if len(able) else self.cap)
        return out & (rounds >= floor[:, None]), floor


class _PriceSearch:
    """Bisection on both prices, until the gap is small enough or the prices are as good as they get."""

    PRICE_STEPS, SHARE_STEPS, TRIES = 40, 14, 6

    def __init__(self, choices: Choices, idle: float, gap: float) -> None:
        self.choices, self.idle, self.gap = choices, idle, gap
        w = choices.window
        self.n = np.zeros(w.jobs, dtype=np.int64)
        self.objective, self.bound = idle, np.inf
        self.best: PricedJobs
        # More than any choice gains per GPU-round: no job would buy.
        steps = np.diff(w.value, axis=1) - w.pull * np.diff(w.left, axis=1)
        self.max_cost = float((steps / (w.gpus[:, None] * np.maximum(np.diff(w.spent, axis=1), 1))).max()) + 1e-12

    def run(self) -> None:
        """Search the split of lambda between the terms of H; a term that outweighs the other carries the whole price."""
        pull = self.choices.window.pull
        low, high = 0.0, pull
        at = self._settle(high)
        if self._done() or at.tilt <= 0 or pull == 0:
            return
        at = self._settle(low)
        if self._done() or at.tilt >= 0:
            return
        for _ in range(self.SHARE_STEPS):
            middle = 0.5 * (low + high)
            at = self._settle(middle)
            if self._done():
                return
            low, high = (low, middle) if at.tilt > 0 else (middle, high)

    def _settle(self, shared: float) -> PricedJobs:
        """The price at which what is picked just fits, for this split."""
        low, high = 0.0, self.max_cost
        found = best = PricedJobs(self.choices, low, shared)
        if found.spare < 0:
            for _ in range(self.PRICE_STEPS):
                found = PricedJobs(self.choices, 0.5 * (low + high), shared)
                if found.bound < best.bound:
                    best = found
                if found.spare == 0 or (high - low) <= 1e-6 * high:
                    break
                low, high = (low, found.price) if found.spare > 0 else (found.price, high)
        self._keep(best)
        return best

    def _keep(self, priced: PricedJobs) -> None:
        if priced.bound < self.bound:
            self.bound, self.best = priced.bound, priced
        w = self.choices.window
        for n in priced.plans(self.TRIES):
            if (value := w.objective(n)) > self.objective:
                self.n, self.objective = n, value

    def _done(self) -> bool:
        return self.bound - self.objective <= self.gap * (self.bound - self.idle)


def fitting(w: Window, n: Int, floor: Int) -> Int:
    """Feasible counts: jobs with least loss per GPU-round give rounds, then those with the largest gain get them."""
    n = np.minimum(n, w.useful)
    room = w.room - int(w.gpus @ w.takes(n))
    (gain, use), jobs = _gains(w), np.arange(w.jobs)
    for lowest in (floor, np.zeros_like(floor)):
        # One entry changes at a time: what the last choice of each job gained.
        last = np.where(n > lowest, gain[jobs, np.maximum(n - 1, 0)], np.inf)
        while room < 0:
            j = int(last.argmin())
            if n[j] <= lowest[j]:
                break
            n[j] -= 1
            room += int(use[j, n[j]])
            last[j] = gain[j, n[j] - 1] if n[j] > lowest[j] else np.inf
    columns = gain.shape[1] - 1
    following = np.where(n < w.useful, gain[jobs, np.minimum(n, columns)], -np.inf)
    takes = np.where(n < w.useful, use[jobs, np.minimum(n, columns)], w.room + 1)
    while room > 0:
        fits = takes <= room
        if not fits.any():
            break
        j = int(np.where(fits, following, -np.inf).argmax())
        room -= int(takes[j])
        n[j] += 1
        more = n[j] < w.useful[j]
        following[j], takes[j] = (gain[j, n[j]], use[j, n[j]]) if more else (-np.inf, w.room + 1)
    return n


def _gains(w: Window) -> tuple[Float, Int]:
    """[J, C], what each step to the next choice is worth per GPU-round, by progress and by work done, and its GPU-rounds."""
    use: Int = w.gpus[:, None] * np.diff(w.spent, axis=1)
    shared = (w.pull * w.gpus / w.capacity)[:, None] * (w.left[:, :-1] - w.left[:, 1:])
    with np.errstate(divide="ignore", invalid="ignore"):  # steps past the useful ones, which are never taken
        gain: Float = (np.diff(w.value, axis=1) + shared) / use
    return gain, use
