"""The kinds of answer that a policy may give, and the proof that goes with it.

Whatever its kind, an answer takes one road through the core: ``intend -> place -> lease``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from themis.model.units import Bool, Float, Int, Seconds

CUT = "cut short"
"""Prefix of the method of a proof whose search ended at its limit."""
UNCONTESTED = "nothing to solve"
"""Prefix of the method of a proof where all demands fit: no problem was solved, so no gap is proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Why this answer: what ``themis explain`` shows and the log keeps.

    Attributes
    ----------
    objective, bound : of the optimisation, if there was one; ``bound - objective`` is the proven gap.
    method : how it was solved; begins with ``CUT`` where the search ended at its limit with a larger gap than was asked for.
    app : app ids of the rows below. ``rho`` : current finish-time fairness, ``bid`` : took part in the auction,
        ``won`` : GPUs won, ``kept`` : share kept after the hidden payment with its interval, ``leftover`` : GPUs from leftovers.
    job : job ids of the rows of a plan. ``starts`` : when each is to run next, seconds, inf if not in the plan's window;
        ``ends`` : when it is forecast to end.
    stretched, stretch : ids of apps that end later than on their own share of the cluster whatever is done now, and by how many
        seconds at least; all other such dues can still be kept.
    late : ids of jobs whose deadline is given up, as it cannot be kept together with the others' or at all.
    """

    objective: float = 0.0
    bound: float = 0.0
    method: str = ""
    offered: int = 0
    app: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rho: Float = field(default_factory=lambda: np.zeros(0))
    bid: Bool = field(default_factory=lambda: np.zeros(0, dtype=bool))
    won: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    kept: Float = field(default_factory=lambda: np.zeros(0))
    kept_low: Float = field(default_factory=lambda: np.zeros(0))
    kept_high: Float = field(default_factory=lambda: np.zeros(0))
    leftover: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    job: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    starts: Float = field(default_factory=lambda: np.zeros(0))
    ends: Float = field(default_factory=lambda: np.zeros(0))
    late: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    stretched: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    stretch: Float = field(default_factory=lambda: np.zeros(0))

    @property
    def gap(self) -> float:
        """``bound - objective`` of the problem that was solved; NaN where there was none to solve."""
        return math.nan if self.method.startswith(UNCONTESTED) else self.bound - self.objective


NOTHING_TO_DECIDE = Proof(method=f"{UNCONTESTED}: every lease that ends is renewed, and what waits fits")
"""The proof of a ``Renewal``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """Fraction of time of each job, or pair of jobs sharing GPUs, on each GPU type (Gavel §3.1).

    Attributes
    ----------
    combos : Int[C, 2], job ids; the second is -1 for a job alone.
    gpus : Int[C], gang size while the combo runs (both jobs of a pair use the same GPUs).
    x : Float[C, K], in [0, 1]; a job's sum over its combos and types is at most 1.
    round_s : seconds of a round; shares are realised round by round.
    due : Float[C], part of x, in [0, 1], that the objective needs; what it left over may wait. None: all equally.
    apart : Float[C, K], the part of x, at most x, for which the gang may be spread over machines; for the rest it is to be on one.
        None: nothing is planned about it.
    """

    combos: Int
    gpus: Int
    x: Float
    round_s: Seconds
    due: Float | None = None
    apart: Float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The jobs of each of the next rounds (Shockwave §6).

    Attributes
    ----------
    job : Int[J], job ids. ``gpus`` : Int[J], gang size of each while it runs.
    run : Bool[J, R]; column 0 is the round that starts now.
    round_s : seconds of a round.
    """

    job: Int
    gpus: Int
    run: Bool
    round_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGrant:
    """GPUs of each machine to each app, gang by gang, after payments and leftovers (Themis pseudocode 1).

    The sparse form of Int[A, N]: one row per (gang, machine).

    Attributes
    ----------
    app : Int[W], app ids. ``gang`` : Int[W], rows of one gang share a number. ``machine``, ``gpus`` : Int[W].
    until : Float[W], end of the lease. ``extend`` : Int[W], id of the running job that the gang's GPUs are added to, or -1.
    declined : Int[D], ids of apps whose own agents want no more than they got: nothing that is left over is given to them.
    job : Int[W], id of the waiting job that gets the gang; None where the apps' own schedulers choose.
    """

    app: Int
    gang: Int
    machine: Int
    gpus: Int
    until: Float
    extend: Int
    declined: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    job: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Every job whose lease ends keeps its GPUs: the answer where nothing is left to decide (decision 93).

    Attributes
    ----------
    until : end of the renewed leases. ``new`` : gangs of the jobs that wait; None without one.
    """

    until: Seconds
    new: GpuGrant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Fill this column for these apps and call me again: a decision in two phases, still a pure function.

    Attributes
    ----------
    column : name of an optional snapshot column, ``bids``.
    apps : Int[B], rows of the snapshot's apps, rising. ``offer`` : Int[N], GPUs offered on each machine.
    form : the form of finish-time fairness to bid in, ``paper`` or ``exact``.
    """

    column: str
    apps: Int
    offer: Int
    form: str = "paper"


Answer: TypeAlias = TimeShare | RoundPlan | GpuGrant | Renewal | Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A policy's answer with its proof."""

    answer: Answer
    proof: Proof = field(default_factory=Proof)
