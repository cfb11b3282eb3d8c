"""A gang's life as a state machine: its states, what happens to it, and the table of transitions.

A state's ``goal`` is what every machine of the gang should bring about; ``Gangs`` sends each agent what is missing for it, again
after each reconnection. A transition's actions are the records that it writes. The diagram in ``docs/containment.md`` is
generated from the table (``diagram``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from themis.errors import InvariantBroken


class Goal(StrEnum):
    """Goal of a gang for the agents of its machines."""

    PREPARE = "prepare"
    RUN = "run"
    STOP = "stop"


class GangState(StrEnum):
    """State of a job's attempt."""

    PREPARING = "preparing"
    """Its machines bring their ranks to the barrier."""
    LAUNCHING = "launching"
    """All ranks were prepared; not all are known to run."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    """The scheduler asked for its end: a preemption, a cancel, a rung, a service that ends."""
    FAILING = "failing"
    """One of its parts ended by itself or was lost; the others are stopped."""
    REVOKED = "revoked"
    """Same as failing, and the scheduler has revoked the gang since: no other ``Revoke`` will come."""
    TIMED_OUT = "timed_out"
    """It was not prepared in time; it is stopped."""
    REACHED = "reached"
    """No process is left, and the job reached its target: the scheduler releases the GPUs with a ``Revoke``."""
    GONE = "gone"
    """No process is left, and its GPUs were released."""

    @property
    def goal(self) -> Goal:
        """The goal for the agents of its machines."""
        return _GOALS.get(self, Goal.STOP)

    @property
    def ended(self) -> bool:
        """True if nothing of it is left on any machine."""
        return self in (GangState.REACHED, GangState.GONE)


_GOALS = {GangState.PREPARING: Goal.PREPARE, GangState.LAUNCHING: Goal.RUN, GangState.RUNNING: Goal.RUN}


class GangEvent(StrEnum):
    """Event in the life cycle of a gang."""

    ALL_PREPARED = "all prepared"
    """All ranks wait at the barrier, or some run already (a gang that was adopted)."""
    ALL_BEGAN = "all began"
    PART_FAILED = "part failed"
    """A part ended by itself, or was lost."""
    TIMEOUT = "timeout"
    """``prepare_s`` is over."""
    STOP_ASKED = "stop asked"
    ENDED = "ended"
    """No process is left on any machine, and the job did not reach its target."""
    FINISHED = "finished"
    """No process is left on any machine, and the job reached its target."""


class Action(StrEnum):
    """A record that a transition writes."""

    STARTED = "JobStarted"
    """Skipped if an earlier arbiter wrote it already."""
    ATTEMPT_ENDED = "AttemptEnded"
    REACHED = "JobReached"
    STOPPED = "JobStopped"
    """Gives the GPUs back."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The state that follows, and the records that are written in this order."""

    state: GangState
    actions: tuple[Action, ...] = ()


def _table() -> Mapping[tuple[GangState, GangEvent], Transition]:
    s, e, a = GangState, GangEvent, Action
    gone = Transition(s.GONE, (a.ATTEMPT_ENDED, a.STOPPED))
    reached = Transition(s.REACHED, (a.ATTEMPT_ENDED, a.STARTED, a.REACHED))
    table = {
        (s.PREPARING, e.ALL_PREPARED): Transition(s.LAUNCHING),
        (s.PREPARING, e.TIMEOUT): Transition(s.TIMED_OUT),
        (s.LAUNCHING, e.ALL_BEGAN): Transition(s.RUNNING, (a.STARTED,)),
        (s.FAILING, e.FINISHED): reached,
        (s.REACHED, e.STOP_ASKED): Transition(s.GONE, (a.STOPPED,)),
    }
    for state in (s.PREPARING, s.LAUNCHING, s.RUNNING):
        table[state, e.PART_FAILED] = Transition(s.FAILING)
        table[state, e.STOP_ASKED] = Transition(s.PREEMPTED)
    # One that was adopted may have finished while no arbiter ran.
    table[s.PREPARING, e.FINISHED] = table[s.RUNNING, e.FINISHED] = reached
    # Their Revoke came already.
    table[s.PREEMPTED, e.FINISHED] = table[s.REVOKED, e.FINISHED] = Transition(
        s.GONE, (a.ATTEMPT_ENDED, a.STARTED, a.REACHED, a.STOPPED)
    )
    for state in (s.PREEMPTED, s.FAILING, s.REVOKED, s.TIMED_OUT):
        # What stops it first says why it ended.
        table[state, e.PART_FAILED] = table[state, e.STOP_ASKED] = Transition(state)
        table[state, e.ENDED] = gone
    table[s.FAILING, e.STOP_ASKED] = Transition(s.REVOKED)
    return MappingProxyType(table)


TRANSITIONS = _table()
"""Transition by state and event; a pair that is missing here cannot happen."""


def transition(state: GangState, event: GangEvent) -> Transition:
    """The transition for an event in a state.

    Raises
    ------
    InvariantBroken : the event cannot happen in this state.
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise InvariantBroken(f"a gang that is {state} cannot have the event {event!r}.")
    return found


class PartState(StrEnum):
    """State of a gang's ranks on one machine; the values are the phases of ``machines.agent.messages.TaskState``."""

    UNREPORTED = ""
    PREPARING = "preparing"
    PREPARED = "prepared"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"

    @classmethod
    def _missing_(cls, value: object) -> PartState:
        """A phase that this version does not know: its processes may live."""
        return cls.RUNNING

    @property
    def began(self) -> bool:
        """True if its ranks passed the barrier, or ended without it."""
        return self in (PartState.RUNNING, PartState.STOPPING, PartState.ENDED)


MISSING: Mapping[Goal, frozenset[PartState]] = MappingProxyType(
    {
        Goal.PREPARE: frozenset({PartState.UNREPORTED}),
        Goal.RUN: frozenset({PartState.PREPARED}),
        Goal.STOP: frozenset(
            {PartState.UNREPORTED, PartState.PREPARING, PartState.PREPARED, PartState.RUNNING},
        ),
    }
)
"""The states in which a part's agent has to be sent the gang's goal (``Prepare``, ``Go``, ``Stop``)."""


def diagram() -> str:
    """The table as a Mermaid state diagram: an arrow for each transition that changes the state, with its records."""
    lines = ["stateDiagram-v2", f"    [*] --> {GangState.PREPARING}"]
    for (state, event), then in sorted(TRANSITIONS.items()):
        if then.state is not state:
            records = f" / {', '.join(then.actions)}" if then.actions else ""
            lines.append(f"    {state} --> {then.state} : {event}{records}")
    return "\n".join([*lines, f"    {GangState.GONE} --> [*]"])
