"""Usage and history: rows made from the journal's accounts, in the arbiter's thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, tzinfo

from themis.errors import InputError, UnknownName
from themis.machines.agent.keeper import CODE
from themis.report.accounts.charges import Amounts, ChargedLease, Payer
from themis.report.accounts.days import day_of
from themis.schema import messages as schema
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.journal import Entry

BY = ("user", "group", "day", "gpu_type")
STATES = ("completed", "cancelled", "failed")
MOST_APPS = 1000
FIRST, LAST = date(1, 1, 1), date(9999, 12, 31)


def usage(arbiter: Arbiter, request: schema.UsageRequest, user: str = "") -> schema.UsageReply:
    """GPU time and cost by user, group, day or GPU type; of ``user``, empty: of all.

    Raises
    ------
    UnknownName : ``by`` names something else. InputError : a time that no calendar has.
    """
    by = list[str](request.by) or ["user"]
    for name in by:
        if name not in BY:
            raise UnknownName("by", name[:100], BY)
    books = arbiter.engine.books
    zone = UTC if request.utc else books.zone
    since = _day(request.since, zone) if request.since is not None else FIRST
    until = _day(request.until, zone) if request.until is not None else LAST
    rows: dict[tuple[str, ...], schema.UserUsage] = {}

    def row(account: Payer, day: str = "") -> schema.UserUsage:
        values = {**account._asdict(), "day": day}
        chosen = {name: values[name] for name in BY if name in by}
        key = (*chosen.values(), account.currency)
        if key not in rows:
            rows[key] = schema.UserUsage(**chosen, currency=account.currency)
        return rows[key]

    if set(by) <= {"user", "group"}:
        _count_apps(arbiter, user, (since, until, zone), row)
    for day, account, amounts in books.totals(
        arbiter.instant, since.isoformat(), until.isoformat(), utc=request.utc, user=user
    ):
        add(row(account, day), amounts)
    name = "UTC" if request.utc or books.accounts is None else books.accounts.tariff.zone
    return schema.UsageReply(users=[rows[key] for key in sorted(rows)], zone=name)


def _day(moment: float, zone: tzinfo) -> date:
    try:
        return day_of(moment, zone)
    except (OverflowError, ValueError, OSError):
        raise InputError(
            f"the time is {moment:g}, expected seconds since 1970, of a day in the years 1 to 9999."
        ) from None


def _count_apps(
    arbiter: Arbiter, user: str, days: tuple[date, date, tzinfo], row: Callable[[Payer], schema.UserUsage]
) -> None:
    """Count the apps that are active, or ended on these days, in the rows of their accounts."""
    since, until, zone = days
    accounts = arbiter.engine.books.accounts
    assert accounts is not None
    for app, name, outcome, ended in arbiter.journal.outcomes(user):
        if ended is not None and not since <= day_of(arbiter.epoch + ended, zone) <= until:
            continue
        found = row(accounts.account(app, "")._replace(user=name))
        found.apps += 1
        if outcome in STATES:
            setattr(found, outcome, getattr(found, outcome) + 1)


def add(row: schema.UserUsage | schema.PastApp | schema.PastAttempt, amounts: Amounts) -> None:
    """Add amounts to a row, in hours."""
    row.gpu_hours += amounts.leased / 3600
    row.useful_hours += amounts.useful / 3600
    row.restart_hours += amounts.restart / 3600
    row.lost_hours += amounts.lost / 3600
    row.idle_hours += amounts.idle / 3600
    row.cost += amounts.cost


# ---- history -----------------------------------------------------------------------------------------------------------


def history(arbiter: Arbiter, request: schema.HistoryRequest, user: str = "") -> schema.HistoryReply:
    """Finished apps with their attempts; of ``user``, empty: of all.

    Raises
    ------
    UnknownName : a state that finished apps do not have. InputError : the limit is below 0.
    """
    where, values = ["ended IS NOT NULL"], list[object]()
    for state in request.state:
        if state not in STATES:
            raise UnknownName("state", state[:100], STATES)
    if request.limit < 0:
        raise InputError(f"the limit is {request.limit}, expected 0 (1000) or more.")
    if request.state:
        where.append(f"outcome IN ({', '.join('?' * len(request.state))})")
        values += request.state
    if user:
        where.append("user = ?")
        values.append(user)
    for name, sign in (("since", ">="), ("until", "<=")):
        if (moment := getattr(request, name)) is not None:
            where.append(f"ended {sign} ?")
            values.append(moment - arbiter.epoch)
    if request.reason:
        where.append(
            "(instr(lower(reason), lower(?)) OR app IN (SELECT app FROM attempts WHERE ending = ? OR cause = ? OR "
            "instr(lower(message), lower(?))))"
        )
        values += [request.reason] * 4
    entries = arbiter.journal.apps(" AND ".join(where), *values, last=request.limit or MOST_APPS, programs=False)
    return schema.HistoryReply(apps=[_past(arbiter, entry) for entry in entries])


def _past(arbiter: Arbiter, entry: Entry) -> schema.PastApp:
    books, s = arbiter.engine.books, arbiter.state
    assert books.accounts is not None
    jobs = s.app_jobs(entry.app).tolist()
    leases = books.leases("app = ?", entry.app)
    last = leases[-1].account if leases else books.accounts.account(entry.app, "")
    out = schema.PastApp(
        id=entry.app,
        name=entry.name,
        user=entry.user,
        group=last.group,
        state=entry.outcome,
        reason=entry.reason,
        jobs=len(jobs),
        submitted=arbiter.epoch + entry.submitted,
        started=arbiter.epoch + min(lease.since for lease in leases) if leases else None,
        ended=arbiter.epoch + (entry.ended or 0.0),
        rho=None if arbiter.state.apps.unknown[entry.app] else entry.rho,
        currency=last.currency,
        gpu_types=sorted({lease.account.gpu_type for lease in leases}),
        runs=[run for run in run_ids(arbiter, entry.app) if run.tracker != CODE],
    )
    for lease in leases:
        add(out, lease.amounts(arbiter.instant))
    ends = {(job, number): rest for job, number, *rest in arbiter.journal.attempts(jobs)}
    out.attempts.extend(_attempt(arbiter, lease, ends.get((lease.job, lease.attempt))) for lease in leases)
    return out


def _attempt(arbiter: Arbiter, lease: ChargedLease, end: Sequence[object] | None) -> schema.PastAttempt:
    row = schema.PastAttempt(
        job=lease.job - int(arbiter.state.apps.first_job[lease.app]),
        name=arbiter.state.job_specs[lease.job].name,
        attempt=lease.attempt,
        gpus=lease.gpus,
        gpu_type=lease.account.gpu_type,
        since=arbiter.epoch + lease.since,
        started=None if math.isnan(lease.started) else arbiter.epoch + lease.started,
        ended=None if math.isnan(lease.ended) else arbiter.epoch + lease.ended,
        cause=lease.cause,
        idle_by=lease.idle_by,
        currency=lease.account.currency,
    )
    add(row, lease.amounts(arbiter.instant))
    if end is not None:
        _, ending, _, code, _, _, _, message = end
        row.ending, row.message = str(ending), str(message)
        if isinstance(code, int):
            row.code = code
    return row


def run_ids(arbiter: Arbiter, app: int) -> list[schema.RunId]:
    """Runs in MLflow and Weights & Biases that an app's jobs reported, and scripts that changed since the submission."""
    first = int(arbiter.state.apps.first_job[app])
    return [
        schema.RunId(job=job - first, attempt=attempt, tracker=tracker, run=run)
        for job, attempt, tracker, run in arbiter.journal.run_ids(app)
    ]
