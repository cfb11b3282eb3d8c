"""The pending reason of an app that does not run, as a code and in words."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from themis.core import quota_limits
from themis.core.state import State
from themis.core.tables import Status
from themis.errors import counted
from themis.model.units import Seconds
from themis.service.engine.budgets import PREFIX
from themis.service.engine.journal import Entry, Journal
from themis.service.engine.quarantine import quarantines


def left_out(s: State) -> dict[int, str]:
    """Reason why the first job of each app without an eligible job waits (backoff | at_once | quota | budget | machines_away)."""
    away = dict.fromkeys(_too_large(s), "machines_away")
    return away | _limited(s) if s.quotas or s.at_once or s.delayed else away


def _too_large(s: State) -> list[int]:
    """Apps that hold no GPUs, and none of whose jobs fits the GPUs in service that it may use."""
    there = np.bincount(s.machine_type[s.gpu_machine[s.open_gpus()]], minlength=len(s.gpu_types))
    jobs = s.present()
    large = jobs[s.jobs.gpus_min[jobs] > (there.min() if len(there) else 0)]
    if not len(large):
        return []
    none = ~(s.allowed(large) & (there >= s.jobs.gpus_min[large, None])).any(axis=1)
    fit = set(s.jobs.app[np.setdiff1d(jobs, large[none])].tolist())
    apps = np.unique(s.jobs.app[large[none]])
    return [a for a in apps[s.apps.leased[apps] == 0].tolist() if a not in fit]


def _limited(s: State) -> dict[int, str]:
    job_id = np.flatnonzero(s.jobs.status[: s.jobs.size] <= Status.RUNNING)
    why, _ = quota_limits.blocked(s, job_id, expired=True)
    apps = s.jobs.app[job_id]
    free = set(apps[why == 0].tolist())
    out: dict[int, str] = {}
    for app, code in zip(apps.tolist(), why.tolist()):
        if app not in free:
            out.setdefault(app, quota_limits.REASONS[code])
    return {a: "budget" if why == "quota" and _over_budget(s, s.app_specs[a].user) else why for a, why in out.items()}


def of_app(journal: Journal, epoch: Seconds, s: State, entry: Entry, left: dict[int, str]) -> tuple[str, str]:
    """The code (quarantined | after | held | budget | quota | at_once | backoff | machines_away | gpus) and the sentence of an app
    that waits.

    ``epoch`` : begin of the journal, in seconds since 1970. ``left`` : what ``left_out`` gives.
    """
    if entry.app in s.quarantined_apps:
        return "quarantined", quarantined(journal, app=entry.app)
    if entry.options.held:
        return "held", f"{entry.options.why or 'held by its user'}; `themis resume` releases it"
    if entry.options.waiting:
        return "after", _after(journal, entry)
    match left.get(entry.app, ""):
        case "budget":
            return "budget", "its budget is used up"
        case "quota":
            return "quota", _quota(s, s.app_specs[entry.app].user)
        case "backoff":
            ready = s.jobs.ready[s.app_jobs(entry.app)]
            at = datetime.fromtimestamp(epoch + float(ready[ready > s.now].min(initial=np.inf)))
            return "backoff", f"its last attempt failed or was short; the next one starts at {at:%H:%M:%S} or later"
        case "machines_away":
            return "machines_away", _away(s, entry.app)
        case code:
            return code or "gpus", ""


def quarantined(journal: Journal, *, app: int | None = None, machine: int | None = None) -> str:
    """Why an app or a machine is quarantined, and what lifts it, in words."""
    found = [r for _, r in quarantines(journal) if (r.app, r.machine) == (app, machine)]
    how = f"`themis resume {app}`" if machine is None else "`themis undrain`"
    return f"quarantined: {found[-1].reason if found else ''}; an administrator lifts it with {how}"


def _after(journal: Journal, entry: Entry) -> str:
    others = [(journal.apps("app = ?", app)[0], when) for app, when in entry.options.after]
    words = {"ok": "to complete", "any": "to end", "failed": "to fail"}
    return "waits for " + ", ".join(f"{other.name} {words[when]}" for other, when in others if not other.outcome)


def _away(s: State, app: int) -> str:
    jobs = s.app_jobs(app)
    jobs = jobs[s.jobs.status[jobs] <= Status.RUNNING]
    least = s.job_specs[int(jobs[np.argmin(s.jobs.gpus_min[jobs])])]
    kinds = f" of type {' or '.join(least.gpu_types)}" if least.gpu_types else ""
    open_ = s.machine_type[s.gpu_machine[s.open_gpus()]].tolist()
    there = sum(not least.gpu_types or s.gpu_types[k] in least.gpu_types for k in open_)
    return (
        f"its smallest job needs {counted(least.gpus_min, 'GPU')}{kinds}, {there} are in service; it waits until machines join or "
        "return"
    )


def _over_budget(s: State, user: str) -> bool:
    return any(name.startswith(PREFIX) and user in members for name, (members, _) in s.quotas.items())


def _quota(s: State, user: str) -> str:
    parts = []
    for name, (members, gpus) in sorted(s.quotas.items()):
        if user in members:
            theirs = np.isin(s.apps.user[: s.apps.size], [s.users[m] for m in members if m in s.users])
            held = int(s.apps.leased[: s.apps.size][theirs].sum())
            parts.append(f"{name} holds {held} of at most {gpus} GPUs")
    return ", ".join(parts)
