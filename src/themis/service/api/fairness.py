"""``Fairness`` and ``Budgets``: users' entitlement and use over time, loans between users, used part of budgets.

The course is a fold over the journal (``report.lending``) that goes on where it stopped; it runs in callers' threads, and reads a
bounded number of records in one call.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from themis.model.events import Compacted
from themis.model.log import decode
from themis.model.units import Float, Seconds
from themis.report.lending import KINDS, Course, Lending
from themis.report.outlook import Outlook
from themis.report.reference_finish import Reference
from themis.schema import messages as schema
from themis.service.api.access import Caller
from themis.service.engine.arbiter import Arbiter

Answer = TypeVar("Answer")
MOST_RECORDS = 20_000
"""Records that one call reads."""
MOST_USERS = 100
"""Users with a row of their own; the others are in the row of all others."""


@dataclass(slots=True)
class Courses:
    """The fold of one service's journal, for any thread."""

    path: Path
    lending: Lending = field(default_factory=Lending)
    _after: int = 0
    _last: Seconds = 0.0
    _compacted: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def course(self, now: Seconds, records: int) -> tuple[Course, bool]:
        """The course, and whether it reaches until now.

        Parameters
        ----------
        now : seconds since the journal began. ``records`` : number of the last record at that time.
        """
        with self._lock:
            whole = self._catch_up(records)
            return self.lending.course(max(now, self._last) if whole else self._last), whole

    def ask(self, work: Callable[[Reference, Outlook], Answer], records: int) -> Answer | None:
        """The result of ``work`` on the reference and the forecasts; None if records are missing or too many are left to read."""
        with self._lock:
            whole = self._catch_up(records)
            return work(self.lending.reference, self.lending.outlook) if whole and not self._compacted else None

    def _catch_up(self, records: int) -> bool:
        """Take in records up to this one; whether all are."""
        rows = self._read(records)
        for number, line in rows:
            self._last, record = decode(line)
            self._compacted |= isinstance(record, Compacted)
            self.lending.add(self._last, record)
            self._after = number
        whole = len(rows) < MOST_RECORDS
        if whole:
            self._after = max(self._after, records)
        return whole

    def _read(self, until: int) -> list[tuple[int, bytes]]:
        kinds = sorted(KINDS | {"Compacted"})
        with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return db.execute(
                f"SELECT number, line FROM records WHERE number > ? AND number <= ? AND kind IN ({', '.join('?' * len(kinds))}) "
                "ORDER BY number LIMIT ?",
                (self._after, until, *kinds, MOST_RECORDS),
            ).fetchall()


def reply(course: Course, whole: bool, epoch: Seconds, caller: Caller, user: str, between: str) -> schema.FairnessReply:
    """The part of a course that a caller may see: administrators see all users, users see themselves and the sum of all
    others.

    Parameters
    ----------
    user : user whose row is requested; empty: all that the caller may see.
    """
    out = schema.FairnessReply(
        start=epoch + course.start, width=course.width, until=epoch + course.end, whole=whole, between=between
    )
    balance = course.balance[-1] if len(course.leased) else np.zeros(len(course.users))
    order = np.argsort(balance, kind="stable").tolist()
    known = [u for u in order if user in ("", course.users[u]) and (caller.admin or course.users[u] == caller.user)]
    if len(known) > MOST_USERS:
        known = sorted(known, key=lambda u: -abs(float(balance[u])))[:MOST_USERS]
        known.sort(key=lambda u: float(balance[u]))
    for u in known:
        since = course.since(u)
        row = schema.UserCourse(user=course.users[u], **_hours(course.entitled[:, u], course.leased[:, u]))
        if not math.isnan(since):
            row.since = epoch + since
        out.users.append(row)
    others = [u for u in order if u not in known]
    if others and not user:
        out.users.append(
            schema.UserCourse(**_hours(course.entitled[:, others].sum(axis=1), course.leased[:, others].sum(axis=1)))
        )
    for lender, borrower, size in course.loans():
        names = course.users[lender], course.users[borrower]
        if (caller.admin or caller.user in names) and user in ("", *names):
            out.loans.append(schema.Loan(lender=names[0], borrower=names[1], gpu_hours=size / 3600))
    return out


def _hours(entitled: Float, leased: Float) -> dict[str, Any]:
    return {
        "entitled": (entitled / 3600).tolist(),
        "leased": (leased / 3600).tolist(),
        "balance": float((leased - entitled).sum()) / 3600,
    }


def budgets(arbiter: Arbiter, user: str = "") -> schema.BudgetsReply:
    """Use of the budgets that apply to ``user`` (empty: of all budgets)."""
    books, now = arbiter.engine.books, arbiter.instant
    currency = books.accounts.tariff.currency if books.accounts else ""
    out = schema.BudgetsReply()
    for standing in arbiter.housekeeping.budgets.standings.values():
        if user and user not in standing.members:
            continue
        budget = standing.budget
        row = schema.BudgetUse(
            name=standing.name,
            of=budget.of,
            per=budget.per,
            used=standing.used + standing.rate * (now - standing.at),
            soft=budget.soft,
            hard=budget.hard,
            currency=currency if budget.of == "cost" else "",
            users=sorted(standing.members),
        )
        if math.isfinite(standing.ends):
            row.ends = arbiter.epoch + standing.ends
        out.budgets.append(row)
    return out
