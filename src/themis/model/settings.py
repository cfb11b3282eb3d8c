"""The few numbers that a whole installation shares."""

from __future__ import annotations

from dataclasses import dataclass, fields

from themis.errors import InputError, UnknownName
from themis.model.units import Seconds

BETWEEN = ("apps", "users", "groups")
"""Units of fairness: entities with equal shares, up to their weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Leases and overheads, all in seconds.

    Attributes
    ----------
    lease_s : longest lease, and the time over which a decision pays for moves and starts (Themis §6.4: 10 minutes).
    tick_s : expiries fall on multiples of it.
    step_s : leases end together, at multiples of it, and are decided again then, under every policy that grants GPUs but `themis`
        (decision 138); 0, the default: as the policy says (``Cadence.ticks``), at each tick or when ``lease_s`` are over.
    least_steps : a lease in which a gang starts lasts at least as long as its start and this number of its steps, as measured of
        the job (decision 120); 0, the default, as in the papers: start and steps do not count.
    container_s : cost of a real change of GPUs (§6.2.3: 35 s median); the model's checkpoint cost comes on top.
    gather_s : events within this time are decided on together; equal jobs end a little apart in real life.
    checkpoint_every_s : a crash loses at most the work since the last multiple of it.
    between : unit of fairness, apps (the papers'), users or groups; decision 0020.
    renew_idle : leases that end on GPUs which a policy leaves free are renewed, and waiting jobs
        that fit get the rest (decision 21). False: as before there was this rule.
    validate : check every invariant after every step (tests).
    """

    lease_s: Seconds = 600.0
    tick_s: Seconds = 60.0
    step_s: Seconds = 0.0
    container_s: Seconds = 35.0
    gather_s: Seconds = 0.0
    checkpoint_every_s: Seconds = 600.0
    seed: int = 0
    between: str = "apps"
    renew_idle: bool = True
    least_steps: int = 0
    validate: bool = False

    def __post_init__(self) -> None:
        if self.between not in BETWEEN:
            raise UnknownName("unit of fairness (between)", self.between, BETWEEN)
        for name in _TIMES:  # a whole number would end a lease at 9 where its record, read again, says 9.0
            object.__setattr__(self, name, float(getattr(self, name)))
        for name in ("lease_s", "tick_s", "checkpoint_every_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}, expected more than 0 seconds.")
        for name in ("container_s", "gather_s", "step_s", "least_steps"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}, expected 0 or more.")
        if self.lease_s < self.tick_s:
            raise InputError(
                f"lease_s is {self.lease_s}, shorter than tick_s {self.tick_s}; make the lease at least one tick."
            )

    @property
    def in_header(self) -> dict[str, float]:
        """The settings that the header of a log and of a journal has."""
        names = (
            "lease_s",
            "tick_s",
            "step_s",
            "container_s",
            "gather_s",
            "checkpoint_every_s",
            "renew_idle",
            "least_steps",
        )
        return {name: getattr(self, name) for name in names}


_TIMES = tuple(field.name for field in fields(Settings) if field.type == "Seconds")
