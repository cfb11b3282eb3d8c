"""The forms of a decision on its way from an answer to leases: an intent, its gangs, and gangs on exact GPUs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from themis.model.units import NONE, Int, Seconds
from themis.policies.placement.packing import Counts


class WantedGang(NamedTuple):
    """GPUs that one job, or one pair of jobs, is to get together or not at all.

    Attributes
    ----------
    job : its job, or -1 where the app's own scheduler chooses. ``partner`` : the job that shares the GPUs, or -1.
    counts : GPUs on each machine, or None where placement chooses. ``gpu_type`` : the type to use, or -1 for any.
    extend : the GPUs are added to those that ``job`` holds. ``combo`` : row of the time shares, or -1.
    worth : of a round that makes up for missed ones: seconds on each type that do as much work as one second of it.
    near : seconds that time shares owe it on one machine, where they plan placement; 0: it may be spread. None: nothing is planned.
    """

    app: int
    gpus: int
    until: Seconds
    job: int = NONE
    partner: int = NONE
    counts: Counts | None = None
    gpu_type: int = NONE
    extend: bool = False
    combo: int = NONE
    worth: tuple[float, ...] = ()
    near: Seconds | None = None


class Intent(NamedTuple):
    """The gangs that an answer wants, and everything else that its kind decides.

    Attributes
    ----------
    gangs : in order of precedence.
    round_end : when the round ends; None for leases, which end when each says.
    tick : seconds; new leases end on its multiples. 0: they end as placed.
    step : seconds; leases end together on its multiples. 0: each by itself.
    declined : ids of apps to which nothing that is left over is given.
    next_look : when to decide again even if no lease ends by then; None: no need.
    if_none_placed : ``next_look`` counts only if no gang is placed.
    renewed : until when each gang whose lease ends keeps its GPUs, where there are no other ``gangs`` ; None: as ``gangs`` say.
    """

    gangs: list[WantedGang]
    round_end: Seconds | None = None
    tick: Seconds = 0.0
    declined: Int = np.zeros(0, dtype=np.int64)
    next_look: Seconds | None = None
    if_none_placed: bool = False
    step: Seconds = 0.0
    renewed: Seconds | None = None


class Placed(NamedTuple):
    """A gang on exact GPUs."""

    job: int
    gpus: tuple[int, ...]
    seat: int
    until: Seconds
