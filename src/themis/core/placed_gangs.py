"""What a decision is made of on its way from an answer to leases: gangs, and gangs on exact GPUs."""

from __future__ import annotations

from typing import NamedTuple

from themis.model.units import NONE, Seconds
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


class Placed(NamedTuple):
    """A gang on exact GPUs."""

    job: int
    gpus: tuple[int, ...]
    seat: int
    until: Seconds
