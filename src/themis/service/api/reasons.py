"""Why does this app not run (more) now? One stable code, a sentence, who is ahead, and when it may begin: ``themis why``.

Back-off after a failure, quotas and apps that must end first are in ``wait_reasons``.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import orjson

from themis.core import take_snapshot as snapshots
from themis.core.offer import free_gpus
from themis.core.state import State
from themis.core.tables import Status
from themis.fairness.filtering import service_rank, worst_first
from themis.fairness.finish_time import FinishTime, Form
from themis.model.units import Seconds
from themis.service.api import wait_reasons
from themis.service.engine.engine import Engine
from themis.service.engine.journal import Journal

MOST_AHEAD = 20
_WAITS = {"at_once": "its limit of concurrent jobs is reached"}


class Code(StrEnum):
    """Why an app is where it is; names are never changed."""

    ENDED = "ended"
    QUARANTINED = "quarantined"
    """An error of the service was caused by it; an administrator resumes it."""
    HELD = "held"
    AFTER = "after"
    """Other apps must end first."""
    QUOTA = "quota"
    BUDGET = "budget"
    """The budget of its user or group for this period is used up."""
    AT_ONCE = "at_once"
    BACKOFF = "backoff"
    """Its last attempt failed, or ended after a few seconds and requested another; the next one waits."""
    RUNNING = "running"
    """All its jobs that can run do, on as many GPUs as they can use."""
    PARTLY_RUNNING = "partly_running"
    WAITING_FOR_RELEASE = "waiting_for_release"
    """It has GPUs on which other jobs are still stopping."""
    DECISIONS_OFF = "decisions_off"
    """An error that no app, machine or policy caused, or the start, turned decisions off."""
    DECIDING = "deciding"
    MACHINES_AWAY = "machines_away"
    """Too few GPUs that it may use are in service."""
    ALL_LEASED = "all_leased"
    """Too few GPUs are free; they are offered when leases end."""
    NO_ROOM = "no_room"
    """Enough GPUs are free, but not together on a type that it may use."""
    AGENT_LATE = "agent_late"
    """Its own agent gave no valid answer in the last auction."""
    BETTER_OFF = "better_off"
    """Filtered out: others were worse off in the last auction."""
    OUTBID = "outbid"
    NOTHING_TO_RUN = "nothing_to_run"
    """Its tuner has no job to run now."""
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A code, or one that a gate adds, and a sentence."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Position of an app in the queue.

    Attributes
    ----------
    position : among ``of`` apps that want GPUs, those without any first, then the worst off; 0: it wants none.
    rho : its finish-time fairness if things went on as they are. ``ahead`` : (app, rho) of those before it.
    """

    position: int
    of: int
    rho: float
    ahead: tuple[tuple[int, float], ...] = field(default=())


def reason(engine: Engine, epoch: Seconds, app: int, s: State) -> Reason:
    """The first thing that keeps an app from running (more).

    ``epoch`` : begin of the journal, in seconds since 1970. ``s`` : the engine's state as of now.
    """
    status = s.jobs.status[s.app_jobs(app)]
    if not s.apps.active[app]:
        return Reason(code=Code.ENDED, sentence="the app is finished.")
    if not (status == Status.RUNNING).any():
        entry = engine.journal.apps("app = ?", app)[0]
        code, sentence = wait_reasons.of_app(engine.journal, epoch, s, entry, wait_reasons.left_out(s))
        if code != "gpus":
            return Reason(code=code, sentence=f"{sentence or _WAITS.get(code, code)}.")
    return of_gpus(engine, app, s)


def of_gpus(engine: Engine, app: int, s: State) -> Reason:
    """The reason why an app does not run (more) when only GPUs are missing; ``reason`` checks all other reasons
    first."""
    status = s.jobs.status[s.app_jobs(app)]
    if not (status <= Status.RUNNING).any():
        if (status == Status.HELD).any():
            return Reason(code=Code.HELD, sentence="the app is held; `themis resume` releases it.")
        return Reason(
            code=Code.NOTHING_TO_RUN, sentence="none of its jobs can run now: its tuner paused or stopped them."
        )
    if any(grant.app == app for _, grant in engine.core.leases.held_back.values()):
        return Reason(
            code=Code.WAITING_FOR_RELEASE,
            sentence="GPUs are assigned to it; jobs of other apps are still stopping on them.",
        )
    if not (status == Status.WAITING).any():
        return Reason(code=Code.RUNNING, sentence="all its jobs that can run are running.")
    if (status == Status.RUNNING).any():
        more = int((status == Status.WAITING).sum())
        return Reason(code=Code.PARTLY_RUNNING, sentence=f"the app runs; {more} more of its jobs wait for GPUs.")
    return _waiting(engine, app, s)


def _waiting(engine: Engine, app: int, s: State) -> Reason:
    if engine.quarantine.off:
        return Reason(code=Code.DECISIONS_OFF, sentence=f"decisions are off: {engine.quarantine.off}.")
    if engine.decision is not None:
        return Reason(code=Code.DECIDING, sentence="the scheduler is deciding now.")
    jobs = s.app_jobs(app)[s.jobs.status[s.app_jobs(app)] == Status.WAITING]
    allowed, least = s.allowed(jobs), s.jobs.gpus_min[jobs]
    free = np.bincount(s.gpu_machine[free_gpus(s, s.now)], minlength=len(s.machines))
    there = np.bincount(s.machine_type[s.gpu_machine[s.open_gpus()]], minlength=len(s.gpu_types))
    open_ = np.bincount(s.machine_type, free, len(s.gpu_types))
    if not (allowed & (open_ >= least[:, None])).any():
        if open_.sum() >= least.min():
            return Reason(
                code=Code.NO_ROOM,
                sentence=f"GPUs are free, but too few of a type that it may use: {open_.sum():.0f} of {there.sum():.0f}.",
            )
        until = s.jobs.until[: s.jobs.size]
        ends = until[(s.jobs.status[: s.jobs.size] == Status.RUNNING) & np.isfinite(until)]
        when = f"the next lease ends in {max(float(ends.min()) - s.now, 0.0):.0f} s" if len(ends) else "no lease ends"
        total, free_now = int(there.sum()), int(open_.sum())
        taken = (
            f"only {free_now} of {total} GPUs are free"
            if free_now
            else "the only GPU is leased"
            if total == 1
            else f"all {total} GPUs are leased"
        )
        return Reason(code=Code.ALL_LEASED, sentence=f"{taken}; {when}.")
    return _lost(engine.journal, app)


def _lost(journal: Journal, app: int) -> Reason:
    """GPUs that it could use are free: what the last decision says about it."""
    proof, answer = journal.last_proof(), journal.last_said(app)
    at: list[int] = np.flatnonzero(proof.app == app).tolist() if proof is not None and len(proof.bid) else []
    if answer in ("late", "malformed"):
        how = "answered too late" if answer == "late" else "made no valid bid"
        return Reason(code=Code.AGENT_LATE, sentence=f"its own agent {how} in the last auction.")
    if proof is not None and at:
        i = at[0]
        if not proof.bid[i]:
            rho = f" (rho {proof.rho[i]:.2f})" if np.isfinite(proof.rho[i]) else ""
            return Reason(
                code=Code.BETTER_OFF,
                sentence=f"in the last auction, only apps further below their fair share could bid{rho}.",
            )
        if not proof.won[i]:
            return Reason(code=Code.OUTBID, sentence="in the last auction, other apps gained more from the free GPUs.")
    return Reason(code=Code.WAITING, sentence="GPUs are free; the next decision assigns them.")


def standing(s: State, app: int) -> Standing:
    """Position of an app among those that want GPUs."""
    view = snapshots.take(s)
    row = int(np.searchsorted(view.app_id, app))
    if row >= view.apps or view.app_id[row] != app:
        return Standing(position=0, of=0, rho=float("nan"))
    with np.errstate(all="ignore"):
        finish = FinishTime(view, Form.PAPER)
        rho, key = finish.rho, finish.rho_by_weight
    unmet = np.unique(view.job_app[view.job_held < view.job_gpus_max])
    served = service_rank(view)[unmet]
    order = unmet[worst_first(key[unmet], view.app_arrival[unmet], view.app_id[unmet], served)]
    place = np.flatnonzero(order == row)
    if not len(place):
        return Standing(position=0, of=len(order), rho=float(rho[row]))
    ahead = order[: int(place[0])][:MOST_AHEAD]
    return Standing(
        position=int(place[0]) + 1,
        of=len(order),
        rho=float(rho[row]),
        ahead=tuple((int(view.app_id[a]), float(rho[a])) for a in ahead),
    )


def estimate(dump: bytes, app: int, allowed_s: Seconds) -> list[Seconds | None]:
    """Seconds until the app begins, of each simulation from here on; None where it did not within its horizon.

    In a separate process, for it must not slow the service down.
    """
    command = [sys.executable, "-P", "-m", "themis.sim.onward", str(app), str(allowed_s)]
    try:
        done = subprocess.run(command, input=dump, capture_output=True, timeout=allowed_s + 30, check=True)
    except subprocess.SubprocessError:
        return []
    found: list[Seconds | None] = orjson.loads(done.stdout)
    return found
