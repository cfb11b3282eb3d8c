"""The accounts of a journal: the fold of ``themis.report.accounts``, written in the transaction of the records that it follows.

    leases    each attempt on its GPUs: who, what, when, how it ended, what it cost
    usage     totals by day, user, group, GPU type and currency, in UTC and in the service's time zone

Totals stay when records are dropped. A journal from before there were accounts is folded once, when it is opened; time of which the
records are gone is charged to the GPU type ``unknown`` on the day that its app ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any

from themis.core.state import State
from themis.errors import InputError
from themis.model.events import AppFinished, Compacted, Grant
from themis.model.log import decode
from themis.model.units import Seconds
from themis.report.accounts.charges import Amounts, Charge, ChargedLease, Payer
from themis.report.accounts.days import by_day, zone_of
from themis.report.accounts.fold import CHARGED, Accounts
from themis.service.engine.records import Record, Records

DONE = "accounts"
"""Entry of ``meta``: the tables hold what all records come to."""
LEAST_S = 1e-6
"""GPU-seconds below which nothing is missing."""
_COLUMNS = (
    "job, attempt, app, user, user_group, gpu_type, currency, gpus, since, started, ended, booked, cause, price, lost, idle, "
    "idle_by, cost"
)
_SAVE = f"INSERT OR REPLACE INTO leases ({_COLUMNS}) VALUES ({', '.join('?' * 18)})"
_KEY = "zone, day, user, user_group, gpu_type, currency"
_ADD = (
    f"INSERT INTO usage ({_KEY}, leased, restart, lost, idle, cost) VALUES ({', '.join('?' * 11)}) ON CONFLICT ({_KEY}) DO UPDATE "
    "SET leased = leased + excluded.leased, restart = restart + excluded.restart, lost = lost + excluded.lost, "
    "idle = idle + excluded.idle, cost = cost + excluded.cost"
)

Total = tuple[str, Payer, Amounts]
"""Day, account, amounts."""


@dataclass(slots=True)
class Books:
    """Leases and totals of a journal. It writes nothing before ``open``."""

    journal: Records
    accounts: Accounts | None = None
    epoch: Seconds = 0.0
    """Begin of the journal, seconds since 1970."""
    version: int = 0
    """Rises with each change."""
    _dirty: dict[tuple[int, int], ChargedLease] = field(default_factory=dict)
    _added: dict[tuple[str, str, Payer], Amounts] = field(default_factory=dict)

    # ---- writing ------------------------------------------------------------------------------------------------------

    def open(self, state: State, grants: Iterable[Grant] = ()) -> None:
        """Load what is open; fold the records of a journal that has no accounts yet. In a transaction.

        Parameters
        ----------
        state : what the records come to. ``grants`` : of leases that are held, where their records are gone.
        """
        self.epoch = float(self.journal.meta("epoch") or 0.0)
        self.accounts = accounts = Accounts(self)
        if self.journal.meta(DONE) is None:
            for _, time, record in self.journal.numbered():
                accounts.add(time, record)
            self._settle(accounts, state, {grant.job: grant for grant in grants})
            self.journal.set_meta(DONE, "1")
        else:
            kept = ("Header", "MachineJoined", "MachineResized", "SettingsChanged", "AccountingSet")
            for line in self.journal.lines_of(kept):
                accounts.add(0.0, decode(line)[1])
            accounts.users = dict(enumerate(app.user for app in state.app_specs))
            accounts.leases.held = {lease.job: lease for lease in self.leases("ended IS NULL")}
        self.journal.last_writes = self.flush

    def add(self, time: Seconds, record: Record) -> None:
        """A record was written."""
        if self.accounts is not None and type(record).__name__ in CHARGED:
            self.accounts.add(time, record)

    def close_others(self, held: Iterable[int]) -> None:
        """Close leases that a repaired state does not have, at the time of their last charge."""
        assert self.accounts is not None
        for job in sorted(self.accounts.leases.held.keys() - set(held)):
            lease = self.accounts.leases.held.pop(job)
            lease.ended, lease.cause = lease.booked, "unknown"
            self.save(lease)

    def charge(self, charge: Charge) -> None:
        """Add to the totals of the days that it falls on."""
        self.version += 1
        for zone, name in ((UTC, "utc"), (self.zone, "local")):
            for day, amounts in by_day(charge, self.epoch, zone):
                key = name, day, charge.account
                self._added[key] = self._added.get(key, Amounts()).plus(amounts)

    def save(self, lease: ChargedLease) -> None:
        """Write a lease with the transaction."""
        self._dirty[lease.job, lease.attempt] = lease
        self.version += 1

    def flush(self) -> None:
        """Write what the transaction came to."""
        for lease in self._dirty.values():
            self.journal.write(_SAVE, row_of(lease))
        for (zone, day, account), amounts in self._added.items():
            self.journal.write(_ADD, (zone, day, *account, *amounts))
        self._dirty, self._added = {}, {}

    def _settle(self, accounts: Accounts, state: State, grants: dict[int, Grant]) -> None:
        """Charge what the state knows of apps' GPU time and the records that are left do not, where some were dropped."""
        dropped = [time for _, time, record in self.journal.numbered() if isinstance(record, Compacted)]
        if not dropped:
            return
        now, known = state.now, dict[int, float]()
        for job in sorted(state.job_gpus.keys() & grants.keys() - accounts.leases.held.keys()):
            since = float(state.jobs.since[job])
            accounts.add(since, grants[job])
            accounts.leases.held[job].started = since
        for lease in accounts.leases.held.values():
            known[lease.app] = known.get(lease.app, 0.0) + lease.gpus * (now - lease.since)
        for lease in self._dirty.values():
            if not math.isnan(lease.ended):
                known[lease.app] = known.get(lease.app, 0.0) + lease.gpus * (lease.ended - lease.since)
        ended = {record.app: time for _, time, record in self.journal.numbered() if isinstance(record, AppFinished)}
        for app, seconds in enumerate(state.at(now).apps_attained().tolist()):
            rest = seconds - known.get(app, 0.0)
            if rest > LEAST_S and state.apps.arrival[app] <= max(dropped):
                accounts.settle(app, int(state.apps.first_job[app]), ended.get(app, now), rest)

    # ---- reading ------------------------------------------------------------------------------------------------------

    @property
    def zone(self) -> tzinfo:
        """Time zone of the service's days."""
        return zone_called(self.accounts.tariff.zone if self.accounts else "UTC")

    def leases(self, where: str, *values: object) -> list[ChargedLease]:
        """Leases for which an SQL condition holds, in order of job and attempt."""
        rows = self.journal.db.execute(f"SELECT {_COLUMNS} FROM leases WHERE {where} ORDER BY job, attempt", values)
        return [_lease(row) for row in rows]

    def sum_since(self, day: str, users: Iterable[str], column: str) -> float:
        """Sum charged to these users since a day in the service's time zone; ``column`` : ``leased`` (GPU-seconds) or
        ``cost``."""
        members = sorted(users)
        row = self.journal.db.execute(
            f"SELECT total({column}) FROM usage WHERE zone = 'local' AND day >= ? AND user IN ({', '.join('?' * len(members))})",
            (day, *members),
        ).fetchone()
        return float(row[0])

    def totals(self, now: Seconds, since: str, until: str, *, utc: bool = False, user: str = "") -> list[Total]:
        """Amounts by day and account, of leases that are held up to ``now``.

        Parameters
        ----------
        since, until : first and last day, such as ``2026-11-23``. ``user`` : only this one's; empty: all.
        """
        out = dict[tuple[str, Payer], Amounts]()
        rows = self.journal.db.execute(
            "SELECT day, user, user_group, gpu_type, currency, leased, restart, lost, idle, cost FROM usage "
            "WHERE zone = ? AND day >= ? AND day <= ? AND (?4 = '' OR user = ?4)",
            ("utc" if utc else "local", since, until, user),
        )
        for day, *rest in rows:
            out[day, Payer(*rest[:4])] = Amounts(*rest[4:])
        zone = UTC if utc else self.zone
        for lease in self.accounts.leases.held.values() if self.accounts else ():
            if user in ("", lease.account.user):
                for day, amounts in by_day(lease.charge(now), self.epoch, zone):
                    if since <= day <= until:
                        key = day, lease.account
                        out[key] = out.get(key, Amounts()).plus(amounts)
        return [(day, account, amounts) for (day, account), amounts in sorted(out.items())]


def zone_called(name: str) -> tzinfo:
    """A time zone that was known when it was recorded; UTC where this machine does not know it."""
    try:
        return zone_of(name)
    except InputError:
        return UTC


def row_of(lease: ChargedLease) -> tuple[object, ...]:
    """The lease as the journal keeps it: without the ids of its GPUs."""
    return (
        lease.job,
        lease.attempt,
        lease.app,
        *lease.account,
        lease.gpus,
        lease.since,
        None if math.isnan(lease.started) else lease.started,
        None if math.isnan(lease.ended) else lease.ended,
        lease.booked,
        lease.cause,
        lease.price,
        lease.lost,
        lease.idle,
        lease.idle_by,
        lease.cost,
    )


def _lease(row: tuple[Any, ...]) -> ChargedLease:
    job, attempt, app, user, group, kind, currency, gpus, since, started, ended, booked, *rest = row
    cause, price, lost, idle, idle_by, cost = rest
    return ChargedLease(
        job=job,
        attempt=attempt,
        app=app,
        account=Payer(user, group, kind, currency),
        gpus=gpus,
        gpu_type=kind,
        since=since,
        booked=booked,
        started=math.nan if started is None else started,
        ended=math.nan if ended is None else ended,
        cause=cause,
        price=price,
        lost=lost,
        idle=idle,
        idle_by=idle_by,
        cost=cost,
    )
