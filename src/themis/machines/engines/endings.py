"""Ending of an attempt, from the machines' reports on its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from themis.machines.agent.messages import TaskState
from themis.machines.engines.gang import Gang, could_not_save, lost_work, went_wrong
from themis.machines.engines.gang_lifecycle import GangState
from themis.machines.engines.program import AttemptEnded, Ending, ending_of
from themis.model.events import Grant
from themis.model.workload import Job

Pace = Callable[[Job, Grant, str], float]
"""Believed steps per second of a job under a grant on a GPU type, for jobs that report nothing."""


@dataclass(frozen=True, slots=True)
class _Reason:
    ending: Ending
    cause: str
    code: int | None
    unsaved: str
    """Sentence on the work that a failed save lost; empty if no save failed."""
    asked: bool
    """The scheduler asked for it, and ranks were signalled for it."""


def how_it_ended(gang: Gang, *, saved: float, pace: Pace | None, gpu_type: str) -> AttemptEnded:
    """The end of a gang of which no process is left.

    Parameters
    ----------
    saved : steps in the job's checkpoint as last reported. ``pace`` : for programs that report nothing.
    gpu_type : of the gang's GPUs.
    """
    states = gang.part_states
    reason, grant = _reason(gang, states), gang.grant
    return AttemptEnded(
        app=grant.app,
        job=grant.job,
        attempt=grant.attempt,
        ending=reason.ending,
        cause=reason.cause,
        code=reason.code,
        seconds=max(s.seconds for s in states),
        steps=_steps(gang, reason.ending, saved, pace, gpu_type),
        saved=any(s.saved for s in states),
        killed=any(s.killed for s in states),
        message=gang.why
        or next((s.message for s in states if s.message), "")
        or reason.unsaved
        or lost_work(reason.asked, gang, states),
    )


def _reason(gang: Gang, states: list[TaskState]) -> _Reason:
    # Parts that were stopped because of another say nothing about why the gang ended.
    failed_part = next((s for s in states if went_wrong(s) and s.cause != "gang"), None)
    # Supervisors report the cause before they signal. If none had to signal, the end is the gang's own, whatever was asked.
    untouched = all(state.cause in ("", "peer") for state in states)
    asked = gang.state is GangState.PREEMPTED and not untouched
    unsaved = could_not_save(gang.last) if asked else ""
    if unsaved:
        code = next((s.first for s in states if s.first is not None), None)
        return _Reason(Ending.FAILED, gang.cause, code, unsaved, asked)
    code = failed_part.first if failed_part else None
    own = (untouched or failed_part is not None) and not asked and gang.state is not GangState.TIMED_OUT
    cause = gang.cause if not own else failed_part.cause if failed_part else ""
    return _Reason(ending_of(asked=asked, cause=cause, code=code), cause, code, "", asked)


def _steps(gang: Gang, ending: Ending, saved: float, pace: Pace | None, gpu_type: str) -> float:
    """Steps that the next attempt begins with.

    A program that ends with 0 without a report that it reached its target did all of its work. One that reports nothing but
    saved something is taken to have trained at the believed pace.
    """
    target, report, states = gang.grant.target, gang.report, gang.part_states
    if ending is Ending.FINISHED:
        return target if report is not None and report.reached else gang.job.steps
    if report is not None:
        return min(saved, target)
    if pace is not None and any(s.saved for s in states):
        trained = max(s.seconds for s in states) * pace(gang.job, gang.grant, gpu_type)
        return min(gang.base + trained, target)
    return gang.base
