"""Shockwave (NSDI'23): a market over time. The next rounds are planned for progress, fairness and makespan at once.

    maximise  1/(N M) sum_j rho_j^k log UTIL_j(n_j)  -  lambda/Z0 * H(n)                     (§6, eq. 11)

over the rounds n_j of each job: UTIL_j is its progress over the forecast regimes, rho_j^k its budget, H the lower bound of
the makespan. Two planners (decisions 0010 and 0029):

- ``plan=market`` is the paper's: a window of T rounds that holds less than all work, so that the market decides who gets how
  many; within the window the job with the largest budget goes first, as in the published code.
- ``plan=promises``: the window holds all work at hand where no ``window`` is given, so everybody gets all its rounds and the
  objective decides nothing. Which rounds these are does: they are given in order of the finishes that jobs are promised
  (``themis.policies.planning.promise``), arrival plus P N where that can be kept.

A job of weight w has w shares: its budget is w times as large, and its N as much less.

Leaves out: GPUs of different speed (one pool of equal GPUs).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.fairness.forecasts.rules import Forecaster, Rule
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Seconds
from themis.policies.api import ADDED, Cadence, Granularity, Workbench
from themis.policies.planned import Effort, View, solved
from themis.policies.planning.promise import Claims, promised
from themis.policies.planning.round_window import budgets, forecast_rho

WINDOW = 20
"""The paper's T (§6.1)."""


class PlanKind(StrEnum):
    """Kind of plan: the paper's market, or promised finishes."""

    PROMISES = "promises"
    MARKET = "market"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shockwave:
    """Plan the next rounds as a market over time.

    Attributes
    ----------
    round_s : length of a round, D. ``window`` : rounds planned ahead, T, to 1000; 0 for as many as all work at hand takes.
    patience : factor by which a job may exceed the least finish-time fairness that all jobs could keep, so that others end sooner;
        1 to 1000.
    power : k, budgets are the forecast finish-time fairness to this power, 0 to 20.
    makespan : lambda, price of the makespan's lower bound, 0 or more.
    forecast, noise : see ``themis.fairness.forecasts.rules.Forecaster``.
    reactive : a change of batch size ends the plan in force; otherwise it continues to the next arrival or completion.
    backfill : GPUs that fall free in mid-round go to a waiting job immediately; otherwise they idle to the round's end.
    gap : relative gap at which a solve ends, 0 to 1. ``nodes`` : of its integer program at most, 1 or more.
    seed : of the solver's own choices, 0 to 2147483647.
    """

    round_s: Seconds = 120.0
    plan: PlanKind = field(default=PlanKind.PROMISES, metadata=ADDED)
    window: int = 0
    patience: float = 1.0
    power: float = 5.0
    makespan: float = 0.1
    forecast: Rule = Rule.POSTERIOR
    noise: float = 0.0
    reactive: bool = True
    backfill: bool = True
    gap: float = 1e-3
    nodes: int = 2000
    seed: int = 0

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"ahead"})
    level: ClassVar[Granularity] = Granularity.JOB

    def __post_init__(self) -> None:
        ranges = (
            ("window", 0, 1000),
            ("patience", 1, 1000),
            ("power", 0, 20),
            ("makespan", 0, 1e6),
            ("noise", 0, 1),
            ("gap", 0, 1),
            ("nodes", 1, 1e9),
            ("seed", 0, 2**31 - 1),
        )
        for name, low, high in ranges:
            if not low <= getattr(self, name) <= high:
                raise InputError(f"policy shockwave: {name} is {getattr(self, name)}, expected {low} to {high:g}.")

    @property
    def pace(self) -> Cadence:
        """Rounds; a plan holds until a job comes, ends or, if reactive, changes its speed."""
        return Cadence(self.round_s, backfill=self.backfill, replan_on_regime=self.reactive)

    @property
    def forecaster(self) -> Forecaster:
        """The forecasts that it plans on."""
        return Forecaster(rule=self.forecast, noise=self.noise)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Rounds for every job that fits the cluster, laid out, and GPUs that are left over given to who waits."""
        view = View.of(snapshot, self.round_s)
        capacity = int(snapshot.machine_gpus.sum())
        scale = max(len(view.rows) * capacity, 1)
        budget = self.budgets(view)
        # Equation 11 times N M.
        window = view.window(
            self.window or (WINDOW if self.plan is PlanKind.MARKET else 0),
            weight=budget,
            capacity=capacity,
            pull=self.makespan * scale / max(float(view.ahead.isolated_s.sum()), 1e-9),
        )
        due = -budget if self.plan is PlanKind.MARKET else self._promised(view, max(capacity, 1))
        effort = Effort(gap=self.gap, nodes=self.nodes, seconds=bench.seconds, seed=self.seed)
        # §7: jobs run in one piece, and a running job continues, where the counts leave that open.
        stay = self.plan is PlanKind.MARKET
        return solved(snapshot, view, window, due=due, stay=stay, effort=effort, scale=scale)

    def budgets(self, view: View) -> Float:
        """[J], budgets in the market, their mean is 1."""
        return budgets(forecast_rho(view.ahead, view.elapsed), self.power, view.weight)

    def _promised(self, view: View, capacity: int) -> Float:
        """Seconds to the finish that each job is promised, [J]."""
        ahead = view.ahead
        claims = Claims(
            since=view.elapsed + (view.begin - view.now),
            fair=ahead.isolated_s * np.maximum(ahead.contention * view.allowance, 1.0),
            left=np.maximum(ahead.left_s - view.started, 0.0),
            gpus=view.gpus,
            capacity=capacity,
        )
        return promised(claims, self.patience)
