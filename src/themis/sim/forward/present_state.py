"""Start of a what-if: a state, the apps that came before it, and earlier states of the log to learn errors from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from themis.core.retire import is_pruned
from themis.core.scheduler import Scheduler
from themis.errors import InputError
from themis.model.events import AppFinished, AppSubmitted, Header
from themis.model.log import read_log
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.policies.api import make_policy
from themis.sim import dump
from themis.sim.dump import Dump
from themis.sim.forward.arrivals import Arrival
from themis.sim.replay import Record, replay_records

PAST = 8
"""Earlier states that errors are learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """End of an app, in seconds of the log, and its outcome."""

    time: Seconds
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A state to continue from.

    Attributes
    ----------
    dump : the state. ``now`` : where simulations begin, not before the state's own time; None: there.
    history : apps that came up to now. ``began`` : from when on they are known.
    coming : apps that will come for certain, in order. ``waits`` : apps that an app has to wait for, by its number.
    past : earlier states, in order. ``ended`` : when apps ended, of all that the log knows, later than now too.
    unknown : names of apps of whose work nothing was said.
    """

    dump: Dump
    now: Seconds | None = None
    history: Sequence[Arrival] = ()
    began: Seconds = 0.0
    coming: Sequence[Arrival] = ()
    waits: Mapping[int, Sequence[int]] = field(default_factory=dict)
    past: Sequence[Dump] = ()
    ended: Mapping[int, Ended] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()

    def core(self) -> Scheduler:
        """The scheduler as it was, fresh."""
        return self.dump.core(make_policy(self.dump.policy))


class Submissions:
    """The apps of a log: when they came and when they ended."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.ended: dict[int, Ended] = {}
        self.unknown: set[str] = set()

    def add(self, time: Seconds, record: object) -> None:
        """Take one record in."""
        if isinstance(record, AppSubmitted):
            self.arrivals.append(Arrival(time=time, app=record.app, weight=record.weight))
            if record.unknown:
                self.unknown.add(record.app.name)
        elif isinstance(record, AppFinished):
            self.ended[record.app] = Ended(time=time, outcome=record.outcome)

    def over(self) -> bool:
        """True if there were apps and all of them ended."""
        return bool(self.arrivals) and len(self.ended) == len(self.arrivals)

    def models(self) -> set[str]:
        """The models of all jobs."""
        return {job.model for arrival in self.arrivals for job in arrival.app.jobs}


@dataclass(slots=True)
class Samples:
    """States of a log on the way, ``PAST`` of them after about equally many records."""

    policy: str
    first: int
    last: int
    states: list[bytes] = field(default_factory=list)

    def seen(self, number: int, core: Scheduler) -> None:
        """The state after a record, when nothing that follows from it is left to do."""
        due = self.first + (self.last - self.first) * (len(self.states) + 1) / (PAST + 1)
        if len(self.states) < PAST and due <= number < self.last and core.solving is None:
            s = core.state
            if s.apps.active[: s.apps.size].any():
                self.states.append(dump.write(core, policy_of(core, self.policy)))

    def parsed(self) -> list[Dump]:
        """The states."""
        return [dump.parse(data) for data in self.states]


def policy_of(core: Scheduler, begun_with: str) -> str:
    """The policy that a core is under."""
    return core.state.policy[0] if core.state.policy is not None else begun_with


def of_dump(path: Path) -> Present:
    """A file of ``themis dump``: its history are the apps that it remembers, and it has no past.

    Raises
    ------
    InputError : no such file, or no dump.
    """
    return of_state(dump.read(path))


def of_state(found: Dump) -> Present:
    """A state without its log."""
    s = Present(dump=found).core().state
    known = [a for a, app in enumerate(s.app_specs) if not is_pruned(app)]
    history = [Arrival(time=s.app_specs[a].arrival, app=s.app_specs[a], weight=float(s.apps.given[a])) for a in known]
    began = min((one.time for one in history), default=0.0)
    return Present(dump=found, history=history, began=began if len(known) < s.apps.size else 0.0)


def of_log(path: Path, at: Seconds | None = None, book: ProfileBook | None = None) -> Present:
    """An event log, of a simulation or exported from a service.

    Parameters
    ----------
    at : the instant, in seconds of the log; None: its end, or, if all of its apps had ended by then, the state before its first
        app, with all its apps to come. ``book`` : models' speeds, where they are not shipped ones.

    Raises
    ------
    InputError : the file is no log, or does not replay.
    """
    found, header, last = Submissions(), None, 0
    for number, (time, record) in enumerate(read_log(path), start=1):
        header = header or record
        found.add(time, record)
        last = number if at is None or time <= at else last
    if not isinstance(header, Header):
        raise InputError(f"{path} does not begin with a header, expected a log written by themis simulate --out.")
    samples, coming = Samples(header.policy, 1, last), list[Arrival]()
    records: Iterable[tuple[Seconds, Record]] = _until(read_log(path), at)
    if at is None and found.over():
        at, coming = found.arrivals[0].time, found.arrivals
        samples.last = 0
        records = _before_apps(read_log(path))
    replayed = replay_records(records, name=str(path), book=book, seen=samples.seen)
    if replayed.difference is not None and replayed.difference.logged is not None:
        raise InputError(f"{path} does not replay: {replayed.difference}.")
    core = replayed.core
    now = core.state.now if at is None else at
    return Present(
        dump=dump.parse(dump.write(core, policy_of(core, header.policy), found.models())),
        now=now,
        history=[] if coming else [one for one in found.arrivals if one.time <= now],
        began=0.0,
        coming=coming,
        past=samples.parsed(),
        ended=found.ended,
    )


def _until(records: Iterable[tuple[Seconds, Record]], at: Seconds | None) -> Iterator[tuple[Seconds, Record]]:
    """The records up to an instant."""
    for time, record in records:
        if at is not None and time > at:
            return
        yield time, record


def _before_apps(records: Iterable[tuple[Seconds, Record]]) -> Iterator[tuple[Seconds, Record]]:
    """The records before the first app."""
    for time, record in records:
        if isinstance(record, AppSubmitted):
            return
        yield time, record
