"""Quarantine: an error in a transaction ends at the app or the machine that caused it (decision 73).

    error before COMMIT   roll back, rebuild the core from the journal, take the other items in again, record the quarantine
    of an app's item      the app is quarantined: its leases end, and it waits for an administrator
    of a machine's item   the machine is quarantined: drained, and what it reports is ignored
    of the policy         the fallback decides
    of a call             the caller gets the error; an app that it was changing is quarantined
    of none of these      decisions are off until the next start; jobs run on, and cancel, hold and drain work

The brake: errors with the same frames of two owners, or three quarantines within ten minutes, turn decisions off, and nothing
more is quarantined.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import themis
from themis.core.state import State
from themis.model.cluster import Machine
from themis.model.events import Quarantined
from themis.model.log import decode
from themis.model.units import NONE, Seconds
from themis.service.engine.records import Records

WINDOW_S: Seconds = 600.0
MOST = 3
"""Quarantines within ``WINDOW_S`` from which on decisions are off."""
LONGEST = 300
"""Characters of an error's message that are kept."""
MOST_FRAMES = 40
_ROOT = Path(themis.__file__).parent

log = logging.getLogger("themis.service")


@dataclass(frozen=True, slots=True)
class Owner:
    """The app or the machine (``kind``) with this number."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}" if self.kind in ("app", "machine") else f"the {self.kind}"


POLICY = Owner("policy", 0)
SERVICE = Owner("service", 0)
"""Owner of errors that no app, machine or policy causes: in the clock, decisions at an instant, housekeeping, the
commit."""
_SHELL = frozenset(("Wake", "BidsCollected", "Compacted", "Header"))


def blame(error: Exception, owner: Owner | None) -> None:
    """Record the party that caused an error, unless a function further inside has; None: unknown here."""
    if owner is not None and not hasattr(error, "owner"):
        error.owner = owner  # type: ignore[attr-defined]


def owner_of(item: object, state: State) -> Owner | None:
    """The owner of an event or a message; None if it names neither an app nor a machine."""
    kind = type(item).__name__
    if kind in _SHELL:
        return SERVICE
    if kind in ("Allocated", "Reply"):
        return POLICY
    app, job, machine = (getattr(item, name, None) for name in ("app", "job", "machine"))
    if app is None and isinstance(job, int):
        app = int(state.jobs.app[job]) if 0 <= job < state.jobs.size else NONE
    if isinstance(app, int):
        return Owner("app", app)
    if isinstance(machine, Machine):
        names = [known.name for known in state.machines]
        machine = names.index(machine.name) if machine.name in names else NONE
    return Owner("machine", machine) if isinstance(machine, int) else None


def frames_of(error: BaseException) -> tuple[str, ...]:
    """The error's frames, outermost first, the same on every machine; of a long traceback the innermost."""
    out = []
    for frame in traceback.extract_tb(error.__traceback__)[-MOST_FRAMES:]:
        path = Path(frame.filename)
        name = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name
        out.append(f"{name}:{frame.lineno} {frame.name}")
    return tuple(out)


def words_of(error: BaseException) -> str:
    """The error in one line of printable characters, with where it came up."""
    text = "".join(c if c.isprintable() else " " for c in str(error)[:LONGEST])
    inner = frames_of(error)[-1:]
    return f"{type(error).__name__}{': ' * bool(text)}{text}{' at ' * bool(inner)}{''.join(inner)}"


@dataclass(frozen=True, slots=True)
class Fault:
    """An app or a machine to be quarantined with the next transaction; the arguments as of ``Quarantined``."""

    owner: Owner
    reason: str
    frames: tuple[str, ...] = ()
    skipped: tuple[int, ...] = ()

    @property
    def record(self) -> Quarantined:
        """The record of this quarantine for the journal."""
        app, machine = (self.owner.number if self.owner.kind == kind else None for kind in ("app", "machine"))
        return Quarantined(app=app, machine=machine, reason=self.reason, frames=self.frames, skipped=self.skipped)


@dataclass(slots=True)
class Quarantine:
    """Pending quarantines, and whether decisions are made.

    Attributes
    ----------
    off : reason why no decisions are made; empty while they are. Readable from any thread.
    waiting : faults to record with the next transaction. ``ignored`` : owners whose input is ignored, without a record.
    """

    off: str = ""
    waiting: list[Fault] = field(default_factory=list)
    ignored: set[Owner] = field(default_factory=set)
    faults: int = 0
    """Errors that were contained, with or without a quarantine, since the service started."""
    _seen: list[tuple[Seconds, tuple[str, ...], Owner]] = field(default_factory=list)

    def recall(self, records: Iterable[tuple[Seconds, Quarantined]]) -> None:
        """Count quarantines of the lives before."""
        for at, record in records:
            if record.frames:
                self._seen.append((at, record.frames, of_record(record)))

    @property
    def skips(self) -> dict[int, Quarantined]:
        """Quarantines that are not recorded yet, and hold in place of records with these numbers."""
        return {number: fault.record for fault in self.waiting for number in fault.skipped}

    def skip(self, number: int, owner: Owner, error: Exception) -> None:
        """Quarantine an owner from a record on that cannot be folded, and leave that record out."""
        before = next((fault for fault in self.waiting if fault.owner == owner), None)
        if before is not None:
            self.waiting.remove(before)
        skipped = (*(before.skipped if before else ()), number)
        self.waiting.append(Fault(owner, words_of(error), (*frames_of(error), type(error).__name__), skipped))

    def turn_off(self, why: str) -> None:
        """Make no decisions from now on."""
        if not self.off:
            self.off = why
            log.error(
                "decisions are off: %s. Jobs run on, and apps can be cancelled and held; a restart turns decisions on again.",
                why,
            )

    def out(self, owner: Owner, state: State) -> bool:
        """True if an app or a machine takes no part, or is about to take none."""
        if owner in self.ignored or any(fault.owner == owner for fault in self.waiting):
            return True
        if owner.kind == "app":
            return owner.number in state.quarantined_apps
        return owner.kind == "machine" and owner.number in state.quarantined_machines

    def of_user(self, user: str, state: State, now: Seconds) -> int:
        """Number of a user's apps that were quarantined lately."""
        recent = {owner.number for at, _, owner in self._seen if owner.kind == "app" and at > now - WINDOW_S}
        return sum(state.app_specs[app].user == user for app in recent if app < state.apps.size)

    def judge(self, error: Exception, owner: Owner, state: State, now: Seconds) -> None:
        """Quarantine the owner of an error, or turn decisions off. ``state`` : without what the error came in with."""
        if owner == SERVICE:
            self.turn_off(words_of(error))
            return
        if self.out(owner, state) or not _is_there(owner, state):
            return
        frames = (*frames_of(error), type(error).__name__)
        recent = [seen for seen in self._seen if seen[0] > now - WINDOW_S]
        self._seen = [*recent, (now, frames, owner)]
        party = _parties(state, owner)
        if any(seen[1] == frames and party(seen[2]) != party(owner) for seen in recent):
            self.turn_off(f"the same error was caused by several apps or machines ({words_of(error)})")
        if self.off:
            return
        self.waiting.append(Fault(owner, words_of(error), frames))
        if len({party(seen[2]) for seen in self._seen}) >= MOST:
            self.turn_off(f"{MOST} apps or machines were quarantined within {WINDOW_S / 60:.0f} minutes")


def _parties(state: State, owner: Owner) -> Callable[[Owner], Owner | str]:
    """Unit that the brake counts: all apps of a user, so that no user turns decisions off for others; otherwise each owner."""
    here = {state.app_specs[a].user for a in np.flatnonzero(state.apps.active[: state.apps.size]).tolist()}
    if owner.kind != "app" or not here - {state.app_specs[owner.number].user}:
        return lambda other: other
    return lambda other: state.app_specs[other.number].user if other.kind == "app" else other


def of_record(record: Quarantined) -> Owner:
    """The owner in a quarantine record."""
    return Owner("app", record.app) if record.app is not None else Owner("machine", record.machine or 0)


def _is_there(owner: Owner, state: State) -> bool:
    if owner.kind == "app":
        return 0 <= owner.number < state.apps.size and bool(state.apps.active[owner.number])
    return 0 <= owner.number < len(state.machines)


def quarantines(journal: Records) -> list[tuple[Seconds, Quarantined]]:
    """All records of quarantines, with their times, in order."""
    found: list[tuple[Seconds, Any]] = [decode(line) for line in journal.lines_of(("Quarantined",))]
    return found
