"""What happens in one simulated history, drawn from its seed: what users and operators do, and which faults come when.

All of it is drawn before anything runs, so that a history without some of its faults can be told again (``shrink``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from simulation.bodies import Behaviour
from simulation.disk import MOMENTS

ACTIVE_S = 30.0
"""Everything begins within these seconds; then faults end, and the service has to bring every app to its end."""
POLICIES = ("fair_finish", "themis", "fifo", "drf", "tiresias", "max_min_fairness")
WEIGHTS = (1.0, 0.37, 1 / 3, 0.1, 0.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A user submits an app of equal jobs."""

    at: float
    key: str
    jobs: int
    gpus: tuple[int, int]
    weight: float
    grace_s: float
    behaviour: Behaviour

    def __str__(self) -> str:
        b = self.behaviour
        more = [f"ignores SIGTERM (grace {self.grace_s:g} s)"] if b.save_s == np.inf else []
        more += [f"starts a process with an empty environment after {b.escape_s:.1f} s"] if b.escape_s else []
        more += [f"which hangs in the kernel for {b.stuck_s:.0f} s"] if b.stuck_s else []
        more += [f"fails {b.fails} times"] if b.fails else []
        size = f"{self.jobs} jobs of {self.gpus[0]} to {self.gpus[1]} GPUs, {b.work_s:.1f} s of work"
        return f"submit {self.key}: {size}{''.join(f', {m}' for m in more)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A user or the operator does something.

    Attributes
    ----------
    what : cancel, hold, resume, drain, undrain; ``set``, as ``themis set`` takes it; ``edit`` the settings file, ``reload`` it;
        ``configure``, what the next start is given.
    target : an app's key, a machine's number, or settings.
    """

    at: float
    what: str
    target: str

    def __str__(self) -> str:
        return f"{self.what} {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something goes wrong.

    Attributes
    ----------
    what : one of ``FAULTS``. ``lasts`` : seconds, where it has a duration. ``where`` : picks a machine and a process, in [0, 1).
    moment : of a crash in the journal, after ``count`` more of its kind.
    """

    at: float
    what: str
    lasts: float = 0.0
    where: float = 0.0
    moment: str = ""
    count: int = 0

    def __str__(self) -> str:
        if self.moment:
            return f"{self.what} {self.moment} (number {self.count} from here)"
        return f"{self.what} for {self.lasts:.1f} s" if self.lasts else self.what


FAULTS = (
    ("service crashes", 3.0),
    ("service killed", 1.5),
    ("machine of the service loses power", 1.0),
    ("service stops in good order", 0.7),
    ("service crashes and its disk loses the end of the journal", 0.5),
    ("service crashes and its journal is missing", 0.3),
    ("service pauses", 1.0),
    ("disk is full", 1.0),
    ("disk is read-only", 0.7),
    ("agent killed", 1.5),
    ("agent pauses", 1.0),
    ("supervisor killed", 2.0),
    ("supervisor pauses", 1.0),
    ("supervisor asked to end", 0.4),
    ("rank killed", 0.7),
    ("machine loses power", 0.7),
    ("machine has no room for processes", 0.6),
    ("network drops connections", 1.5),
    ("network is partitioned", 1.0),
    ("network holds messages back", 1.0),
    ("network is slow", 1.0),
    ("network repeats messages", 1.0),
    ("clock of the service's machine is set", 0.7),
)
"""Each with its weight."""
LASTING = (
    "pauses",
    "is full",
    "read-only",
    "partitioned",
    "holds",
    "slow",
    "repeats",
    "loses power",
    "no room",
    "clock",
)

Event = Submission | Action | Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One history.

    Attributes
    ----------
    machines : GPUs of each. ``solve_s`` : mean time until the policy answers.
    events : in order of time.
    """

    seed: int
    machines: tuple[int, ...]
    policy: str
    solve_s: float
    events: tuple[Event, ...] = field(repr=False)

    @property
    def names(self) -> list[str]:
        """Machines that are there at the start, and one that may join."""
        return [f"m{n}" for n in range(len(self.machines) + 1)]

    @property
    def submissions(self) -> tuple[Submission, ...]:
        """The apps of this history."""
        return tuple(e for e in self.events if isinstance(e, Submission))

    def only(self, keeps: Callable[[Event], bool]) -> Plan:
        """The same history without some of its events."""
        return replace(self, events=tuple(e for e in self.events if keeps(e)))


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = np.random.default_rng(seed)
    machines = ((2,), (2, 2), (1, 2), (4, 2))[int(rng.integers(4))]
    apps = [_submission(rng, n, max(machines)) for n in range(int(rng.integers(2, 8)))]
    events: list[Event] = [*apps, *_actions(rng, apps, len(machines)), *_faults(rng)]
    return Plan(
        seed=seed,
        machines=machines,
        policy=str(rng.choice(POLICIES)),
        solve_s=float(rng.choice([0.0, 0.1, 0.6])),
        events=tuple(sorted(events, key=lambda e: e.at)),
    )


def _submission(rng: np.random.Generator, number: int, largest: int) -> Submission:
    low = int(rng.integers(1, largest + 1))
    escapes = rng.random() < 0.25
    return Submission(
        at=float(rng.uniform(0.5, 0.7 * ACTIVE_S)),
        key=f"a{number}",
        jobs=int(rng.integers(1, 3)),
        gpus=(low, int(rng.integers(low, largest + 1))),
        weight=float(rng.choice(WEIGHTS)),
        grace_s=float(rng.uniform(0.5, 3.0)),
        behaviour=Behaviour(
            work_s=float(rng.uniform(0.5, 7.0)),
            save_s=float(rng.choice([0.0, 0.3, 1.0, np.inf])),
            escape_s=float(rng.uniform(0.1, 3.0)) if escapes else 0.0,
            stuck_s=float(rng.uniform(4.0, 15.0)) if escapes and rng.random() < 0.3 else 0.0,
            fails=int(rng.random() < 0.15),
        ),
    )


def _actions(rng: np.random.Generator, apps: list[Submission], machines: int) -> list[Event]:
    out: list[Event] = []
    for app in apps:
        at = app.at + float(rng.exponential(5.0))
        match int(rng.integers(8)):
            case 0:
                out.append(Action(at=at, what="cancel", target=app.key))
            case 1:
                out.append(Action(at=at, what="hold", target=app.key))
                out.append(Action(at=at + float(rng.exponential(4.0)), what="resume", target=app.key))
    if rng.random() < 0.3:
        at, machine = float(rng.uniform(1.0, ACTIVE_S)), str(rng.integers(machines))
        out.append(Action(at=at, what="drain", target=machine))
        out.append(Action(at=at + float(rng.exponential(5.0)), what="undrain", target=machine))
    return out


def _faults(rng: np.random.Generator) -> list[Event]:
    names, weights = zip(*FAULTS)
    chosen = rng.choice(names, size=int(rng.integers(1, 9)), p=np.array(weights) / sum(weights))
    return [_fault(rng, str(name)) for name in chosen]


def _fault(rng: np.random.Generator, name: str) -> Fault:
    return Fault(
        at=float(rng.uniform(1.0, ACTIVE_S)),
        what=name,
        lasts=float(rng.exponential(4.0)) + 0.2 if any(word in name for word in LASTING) else 0.0,
        where=float(rng.random()),
        moment=str(rng.choice(MOMENTS)) if name in ("service crashes", "machine of the service loses power") else "",
        count=int(rng.integers(12)),
    )
