"""Translation of the report of a running gang into a measurement of its speed and its progress for the core."""

from __future__ import annotations

import math
from collections.abc import Sequence

from themis.machines.agent.messages import TaskReport
from themis.machines.engines.gang import Gang
from themis.machines.engines.program import Measurement
from themis.model.events import BatchChanged, Event, JobProgress, LossReported, MetricsReported
from themis.model.units import Locality, Seconds
from themis.model.workload import CurveStopping


def measurement(
    gang: Gang, report: TaskReport, now: Seconds, *, sharing: Sequence[Gang], gpu_type: str
) -> Measurement | None:
    """The speed since the gang's last report; None if the gang ran under several conditions since then.

    Parameters
    ----------
    sharing : gangs that are on its GPUs too. ``gpu_type`` : of its GPUs.
    """
    # A mean over steps of two batch sizes is the speed of neither.
    if report.step_s <= 0 or (gang.batch and gang.training_batch != gang.batch):
        return None
    begun, gang.reported_at = max(gang.reported_at, gang.since), now
    if gang.neighbours_at > begun:
        return None
    partner = sharing[0] if sharing else None
    return Measurement(
        job=gang.grant.job,
        attempt=gang.grant.attempt,
        model=gang.job.model,
        gpu_type=gpu_type,
        gpus=len(gang.grant.gpus),
        locality=Locality(gang.grant.locality),
        steps_per_s=1.0 / (report.step_s * gang.model_steps),
        batch=gang.training_batch,
        partner=partner.job.model if partner else "",
        partner_batch=partner.training_batch if partner else 0,
    )


def progress_events(gang: Gang, report: TaskReport, now: Seconds, *, every_s: Seconds) -> list[Event]:
    """Events for the core: a new batch size; a loss if curve stopping needs one, else new steps; one per ``every_s``."""
    out: list[Event] = []
    job, attempt = gang.grant.job, gang.grant.attempt
    steps = min(gang.progress(report)[0], gang.grant.target)
    tuner, dynamic = gang.app.tuner, gang.job.dynamic
    if dynamic and dynamic.hidden and report.batch not in (0, gang.batch):
        # Each attempt reports where it begins: the one before may have ended before its last change arrived.
        gang.batch = report.batch
        out.append(BatchChanged(job=job, attempt=attempt, steps=steps, batch=report.batch))
    if isinstance(tuner, CurveStopping) and report.loss is not None and steps < gang.grant.target:
        check = int(steps / tuner.check_steps + 1e-6)
        if check > gang.check:
            gang.check = check
            out.append(LossReported(job=job, attempt=attempt, steps=steps, loss=report.loss))
    elif now >= gang.progress_at + every_s and steps > gang.base:
        gang.progress_at = now
        out.append(JobProgress(job=job, attempt=attempt, steps=steps))
    return out


def metrics_events(gang: Gang, report: TaskReport, now: Seconds, *, every_s: Seconds) -> list[Event]:
    """The record of what a program counts and measures by itself: one per ``every_s``, and the first and the last one."""
    if not gang.started or (now < gang.metrics_at + every_s and not report.reached):
        return []
    values = [] if report.loss is None else [("loss", report.loss)]
    values += [(m.name, math.nan if m.value is None else m.value) for m in report.metrics]
    new = MetricsReported(
        job=gang.grant.job,
        attempt=gang.grant.attempt,
        steps=report.steps,
        total=report.total,
        values=tuple(dict(values).items()),
    )
    # Steps of a job that counts the app's own are in its progress.
    nothing = not values and (gang.program.own_steps or not report.steps)
    if nothing or new == gang.metrics:
        return []
    gang.metrics_at, gang.metrics = now, new
    return [new]
