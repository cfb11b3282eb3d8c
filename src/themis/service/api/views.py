"""Views for callers: rows made from core state and journal, in the arbiter's thread."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np

from themis.core import take_snapshot as snapshots
from themis.core.state import State
from themis.core.tables import ENDED, HELD, OUTCOMES, RUNNING, Status
from themis.errors import InputError, UnknownName
from themis.fairness.finish_time import FinishTime, Form
from themis.machines.engines.program import Program, layout
from themis.model.units import NONE, Float, Int, Seconds
from themis.schema import messages as schema
from themis.service.api import reasons, wait_reasons
from themis.service.api.accounts import run_ids
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.journal import Entry
from themis.sim import dump

MOST_APPS = 1000
OVER = ("completed", "cancelled", "failed")
"""States of finished apps."""
_GIVEN_UP = np.isin(OUTCOMES, ("cancelled", "failed"))
"""Whether an outcome leaves work undone, by its number."""
_JOB_STATES = {
    Status.WAITING: "waiting",
    Status.RUNNING: "running",
    Status.PAUSED: "paused",
    Status.ENDED: "ended",
    Status.HELD: "held",
}


def find_app(arbiter: Arbiter, ref: str) -> int:
    """The number of an app that is named by number or name.

    Raises
    ------
    UnknownName : no such app.
    """
    if is_number(ref) and int(ref) < arbiter.state.apps.size:
        return int(ref)
    found = arbiter.journal.apps("name = ?", ref)
    if found:
        return found[0].app
    last = [app.name for app in arbiter.state.app_specs[-20:]]
    raise UnknownName("app", ref[:100], last or ["none was submitted yet"])


def is_number(ref: str) -> bool:
    """True if it may be an app's number."""
    return ref.isascii() and ref.isdecimal() and len(ref) < 10


def find_machine(arbiter: Arbiter, name: str) -> int:
    """The number of a machine; UnknownName if there is none."""
    found = {arbiter.state.machines[n].name: n for n in listed(arbiter.state)}
    if name not in found:
        raise UnknownName("node", name[:100], found)
    return found[name]


def listed(state: State) -> list[int]:
    """Machines that are there, and those that were removed and on which jobs still end."""
    return [n for n in range(len(state.machines)) if n not in state.removed or state.occupants(n)]


def state_now(arbiter: Arbiter) -> State:
    """The core's state as of now, to look at: what is kept up with time moves on, the core itself does not."""
    return arbiter.state.at(arbiter.instant)


def rho_now(state: State) -> dict[int, float]:
    """Finish-time fairness of every active app of known work, if the present allocation lasted (Themis §4.1)."""
    view = snapshots.take(state)
    if not view.apps:
        return {}
    with np.errstate(all="ignore"):
        rho = FinishTime(view, Form.PAPER).rho
    # Where no machine is in service there is no ideal to compare with.
    known = np.isfinite(rho) & ~view.app_unknown
    return {a: value for a, value, known in zip(view.app_id.tolist(), rho.tolist(), known.tolist()) if known}


def app_row(arbiter: Arbiter, s: State, entry: Entry) -> schema.App:
    """One line of the queue."""
    return app_rows(arbiter, s, [entry])[0]


def app_rows(arbiter: Arbiter, s: State, entries: Sequence[Entry]) -> list[schema.App]:
    """Lines of the queue, [A], from columns of all of them."""
    if not entries:
        return []
    t, apps = s.apps, np.array([entry.app for entry in entries])
    counts = t.jobs[apps]
    starts = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(apps)), counts)
    jobs = np.repeat(t.first_job[apps] - starts, counts) + np.arange(len(row))
    status = s.jobs.status[jobs]
    ended, running = status == ENDED, status == RUNNING
    done = ended & ~_GIVEN_UP[s.jobs.outcome[jobs]]
    parts = np.array([ended, done, running, status <= RUNNING, status == HELD], dtype=np.int64)
    jobs_ended, jobs_done, runs, may_run, held = np.add.reduceat(parts, starts, axis=1)
    progress = np.where(done, 1.0, np.clip(s.steps_now(jobs) / np.maximum(s.jobs.total[jobs], 1e-9), 0.0, 1.0))
    columns = {
        "gpus": t.leased[apps],
        "demand": t.demand[apps],
        "jobs": counts,
        "jobs_ended": jobs_ended,
        "jobs_done": jobs_done,
        "weight": t.weight[apps],
        "progress": np.bincount(row, progress) / counts,
        "gpu_hours": s.apps_attained()[apps] / 3600,
        "elapsed_s": np.maximum.reduceat(ran_s(arbiter, s, jobs), starts),
    }
    machines: list[set[int]] = [set() for _ in entries]
    for n, j in zip(row[running].tolist(), jobs[running].tolist()):
        machines[n].update(map(s.gpu_machine.data.__getitem__, s.job_gpus.get(j, ())))
    stop = np.isin(apps, s.jobs.app[list(arbiter.engine.core.stopping)])
    states = np.select([(held > 0) & (may_run == 0), runs > 0, stop], ["held", "running", "stopping"], "waiting")
    warnings = _warnings(arbiter, {entry.app: entry.user for entry in entries if entry.ended is None})
    left_out = wait_reasons.left_out(s)
    out = []
    for entry, state, on, *values in zip(entries, states.tolist(), machines, *(c.tolist() for c in columns.values())):
        if entry.options.waiting and not entry.options.held:
            state = "waiting"
        waits = why = ""
        if entry.ended is None and state in ("waiting", "held"):
            waits, why = wait_reasons.of_app(arbiter.journal, arbiter.epoch, s, entry, left_out)
            why = _budget_words(arbiter, entry.user, waits) or why
        line = schema.App(
            id=entry.app,
            name=entry.name,
            user=entry.user,
            state=entry.outcome or state,
            submitted=arbiter.epoch + entry.submitted,
            ended=None if entry.ended is None else arbiter.epoch + entry.ended,
            rho=None if t.one.unknown[entry.app] else entry.rho,
            reason=entry.reason or why,
            waits=waits,
            warning=warnings.get(entry.app, ""),
            walltime_s=entry.options.walltime_s,
            steps_known=entry.own_steps,
            nodes=sorted(s.machines[m].name for m in on),
            **dict(zip(columns, values)),
        )
        out.append(line)
    return out


def _budget_words(arbiter: Arbiter, user: str, code: str) -> str:
    """The budget that is used up, with its figures; empty where an app waits for something else."""
    return arbiter.housekeeping.budgets.of(user, arbiter.instant, hard=True) if code == reasons.Code.BUDGET else ""


def _warnings(arbiter: Arbiter, users: Mapping[int, str]) -> dict[int, str]:
    """Budgets over their soft limit, idle GPUs, use of GPUs of others, quotas of disks, by app; empty if there are none.

    ``users`` : of the apps.
    """
    keeping, now = arbiter.housekeeping, arbiter.instant
    soft, own = {user: keeping.budgets.of(user, now, hard=False) for user in {*users.values()}}, keeping.warnings(now)
    return {app: "; ".join(filter(None, (soft[user], *own.get(app, ())))) for app, user in users.items()}


def ran_s(arbiter: Arbiter, s: State, jobs: Int) -> Float:
    """Seconds that jobs, whose numbers rise, ran over all their attempts."""
    t = s.jobs
    running = t.status[jobs] == RUNNING
    out: Float = np.where(running, np.maximum(s.now - t.since[jobs], 0.0), 0.0)
    again = jobs[t.attempt[jobs] > running]  # attempts have ended
    ran = arbiter.journal.ran(again.tolist()) if len(again) else []
    for job, seconds in ran:
        out[np.searchsorted(jobs, job)] += seconds
    return out


def apps(arbiter: Arbiter, request: schema.AppsRequest) -> schema.AppsReply:
    """The queue, or finished apps."""
    ended = request.ended or request.state in OVER
    where, values = "ended IS NOT NULL" if ended else "ended IS NULL", list[object]()
    if request.user:
        # Without the sign SQLite would rather look through all apps that the user ever had than through the queue.
        where, values = f"{where} AND {'' if ended else '+'}user = ?", [request.user]
    entries = arbiter.journal.apps(where, *values, last=request.limit or MOST_APPS, programs=False)
    return schema.AppsReply(apps=app_rows(arbiter, state_now(arbiter), entries))


def layout_of(s: State, entry: Entry) -> str:
    """How the gangs of an app run, by its first job; empty for one GPU."""
    first = s.apps.first_job[entry.app]
    return layout(entry.programs[0].launch, int(s.jobs.gpus_min[first]), int(s.jobs.gpus_max[first]))


def show(arbiter: Arbiter, ref: str) -> schema.ShowReply:
    """An app, its jobs, their attempts."""
    s, a = state_now(arbiter), find_app(arbiter, ref)
    entry = arbiter.journal.apps("app = ?", a)[0]
    jobs = s.app_jobs(a).tolist()
    seconds = ran_s(arbiter, s, s.app_jobs(a)).tolist()
    rows = {j: _job_row(arbiter, s, j, entry.programs[i], seconds[i]) for i, j in enumerate(jobs)}
    for job, number, ended, ending, cause, code, spent, steps, killed, message in arbiter.journal.attempts(jobs):
        rows[job].attempts.append(
            schema.Attempt(
                number=number,
                ending=ending,
                cause=cause,
                code=code,
                seconds=spent,
                steps=steps,
                killed=bool(killed),
                message=message,
                ended=arbiter.epoch + ended,
            )
        )
    if entry.options.walltime_s is not None:
        for job_row in rows.values():
            job_row.walltime_s = entry.options.walltime_s
    sweep = "THEMIS_PARAMS" in entry.programs[0].env
    sentence = "" if entry.ended is not None else reasons.reason(arbiter.engine, arbiter.epoch, a, s).sentence
    row = app_row(arbiter, s, entry)
    return schema.ShowReply(
        app=row,
        jobs=list(rows.values()),
        runs=run_ids(arbiter, a),
        sweep=sweep,
        sentence=sentence,
        layout=layout_of(s, entry),
        assumed=assumed(s, a) if entry.ended is None else [],
    )


def assumed(s: State, a: int) -> list[str]:
    """GPU types on which another model's speeds stand in for those of an app, as no job has measured them yet."""
    profiles = (s.book.get(model) for model in dict.fromkeys(job.model for job in s.app_specs[a].jobs))
    return [f"{kind} (as {model})" for profile in profiles for (kind, _), model in profile.like.items()]


def _job_row(arbiter: Arbiter, s: State, j: int, program: Program, ran: Seconds) -> schema.JobInfo:
    t = s.jobs
    gpus = s.job_gpus.get(j) or s.occupied.get(j, ((), 0))[0]
    row = schema.JobInfo(
        id=j - int(s.apps.first_job[t.app[j]]),
        name=s.job_specs[j].name,
        state=job_state(arbiter, s, j),
        attempt=int(t.attempt[j]),
        gpus=list(gpus),
        nodes=sorted({s.machines[s.gpu_machine[g]].name for g in gpus}),
        command=list(program.argv),
        elapsed_s=ran,
        steps_known=program.own_steps,
        outcome=OUTCOMES[int(t.outcome[j])],
        gpu_hours=float(t.attained[j] + t.gpus[j] * max(s.now - t.since[j], 0.0)) / 3600,
    )
    row.steps, row.total = steps_of(s, j, program)
    if np.isfinite(t.until[j]):
        row.until = arbiter.epoch + float(t.until[j])
    return row


def steps_of(s: State, j: int, program: Program) -> tuple[float | None, float | None]:
    """Steps done and the work of a job whose work is in its program's own steps; others are estimates, and not shown."""
    if not program.own_steps:
        return None, None
    return float(s.steps_now(np.array([j]))[0]), float(s.jobs.total[j])


def job_state(arbiter: Arbiter, s: State, j: int) -> str:
    """``stopping`` while a gang of the job was asked to stop and holds GPUs."""
    return "stopping" if j in arbiter.engine.core.stopping else _JOB_STATES[Status(int(s.jobs.status[j]))]


def machine_state(s: State, n: int, drained: Container[str]) -> str:
    """The machine's state, in the terms of ``Node``. ``drained`` : machines taken out by an administrator."""
    if n in s.removed:
        return "leaving"
    if s.machines[n].name in drained:
        return "drained"
    if not s.machine_up[n]:
        return "away" if n in s.away else "lost"
    return "draining" if n in s.draining else "up"


def node_row(arbiter: Arbiter, n: int) -> schema.Node:
    """One machine."""
    s, machine = arbiter.state, arbiter.state.machines[n]
    holders = s.gpu_job[s.gpu_machine == n]
    names = dict.fromkeys(s.app_specs[int(s.jobs.app[j])].name for j in holders[holders != NONE].tolist())
    withheld, pids, why = s.withheld.get(n, ((), (), ""))
    if n in s.quarantined_machines:
        why = wait_reasons.quarantined(arbiter.journal, machine=n)
    containment, limits = arbiter.executor.containment_of(n)
    return schema.Node(
        name=machine.name,
        state=machine_state(s, n, arbiter.journal.drained()),
        gpu_type=machine.gpu_type,
        gpus=int(s.machine_size[n]),
        leased=int((holders != NONE).any(axis=1).sum()),
        apps=list(names),
        until=arbiter.epoch + s.draining[n] if n in s.draining else None,
        niceness=arbiter.executor.niceness(n),
        trust=arbiter.executor.trust(n),
        containment=containment,
        limits=list(limits),
        withheld=len(withheld),
        withheld_pids=list(pids),
        withheld_reason=why,
        rejected=arbiter.executor.rejected(n) or arbiter.housekeeping.rejected(n),
    )


def nodes(arbiter: Arbiter, user: str = "") -> schema.NodesReply:
    """All machines, or those that run this user's apps."""
    rows = [node_row(arbiter, n) for n in listed(arbiter.state)]
    theirs = {app.name for app in arbiter.state.app_specs if app.user == user} if user else set()
    return schema.NodesReply(nodes=[row for row in rows if not user or not theirs.isdisjoint(row.apps)])


def owners(arbiter: Arbiter) -> tuple[list[str], list[int]]:
    """The user of each app, and the app of each job."""
    state = arbiter.state
    return [app.user for app in state.app_specs], state.jobs.app[: state.jobs.size].tolist()


def share(arbiter: Arbiter, user: str = "", rho: dict[int, float] | None = None) -> schema.ShareReply:
    """Present and past use of each user; ``fair`` is the user's part of the weight in the system.

    ``rho`` : result of ``rho_now``, computed if it is not given.
    """
    s = state_now(arbiter)
    rho = rho_now(s) if rho is None else rho
    total = max(s.weight_in_system, 1e-9)
    by_user: dict[str, list[int]] = {}
    for a in np.flatnonzero(s.apps.active[: s.apps.size]).tolist():
        by_user.setdefault(s.app_specs[a].user, []).append(a)
    # Apps on hold, or that wait for other apps, do not contend.
    weight = np.where(s.apps.held[: s.apps.size] == 0, s.apps.weight[: s.apps.size], 0.0)
    had, private = s.apps_attained() / 3600, s.private_service() / 3600
    out = []
    for name, members in sorted(by_user.items()):
        gpus = int(s.apps.leased[members].sum())
        row = schema.UserShare(
            user=name,
            apps=len(members),
            gpus=gpus,
            share=gpus / max(s.capacity, 1.0),
            fair=float(weight[members].sum()) / total,
            gpu_hours=float(had[members].sum()),
            private_gpu_hours=float(private[members].sum()),
            between=s.between,
        )
        known = [rho[a] for a in members if a in rho]
        if known:
            row.rho_worst, row.rho_median = max(known), float(np.median(known))
        out.append(row)
    return schema.ShareReply(users=[row for row in out if user in ("", row.user)])


def machine_of(arbiter: Arbiter, ref: str) -> int:
    """Same as ``find_machine``, but refuses an empty name with a sentence."""
    if not ref:
        raise InputError("no node was named; `themis nodes` lists them.")
    return find_machine(arbiter, ref)


def why(arbiter: Arbiter, ref: str, *, whole: bool = True) -> tuple[int, str, schema.WhyReply, bytes]:
    """An app's number, its name, why it waits, and, of the ``whole`` answer, the state to simulate from if it does."""
    app, s = find_app(arbiter, ref), state_now(arbiter)
    found, place = reasons.reason(arbiter.engine, arbiter.epoch, app, s), reasons.standing(s, app)
    user = s.app_specs[app].user
    budget = _budget_words(arbiter, user, found.code)
    reply = schema.WhyReply(
        code=found.code,
        sentence=f"{budget}." if budget else found.sentence,
        position=place.position,
        of=place.of,
        between=s.between,
        warning=_warnings(arbiter, {app: user})[app] if s.apps.active[app] else "",
        assumed=assumed(s, app) if s.apps.active[app] else [],
    )
    if s.apps.active[app] and not s.apps.held[app]:
        reply.weight = float(s.apps.weight[app])
        reply.fair = reply.weight / max(s.weight_in_system, 1e-9)
    if np.isfinite(place.rho):
        reply.rho = place.rho
    for other, rho in place.ahead:
        spec = s.app_specs[other]
        reply.ahead.append(schema.Ahead(app=other, name=spec.name, user=spec.user, rho=rho))
    pending = whole and s.apps.active[app] and (s.jobs.status[s.app_jobs(app)] == Status.WAITING).any()
    dumped = dump.write(arbiter.engine.core, arbiter.config.policy) if pending else b""
    return app, s.app_specs[app].name, reply, dumped


def add_estimate(reply: schema.WhyReply, found: Sequence[float | None], now: float) -> None:
    """Add the app's expected start, from simulations."""
    reply.simulations = len(found)
    known = sorted(time for time in found if time is not None)
    if not known:
        return
    reply.start_earliest = now + known[0]
    if len(known) * 2 > len(found):
        reply.start_median = now + known[len(found) // 2]
    if len(known) == len(found):
        reply.start_latest = now + known[-1]
