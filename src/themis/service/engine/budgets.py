"""Budgets: limits of use by users and groups in a day, week, month or in total, by the journal's accounts.

From a hard limit on, a quota of no GPUs stands for the budget until the period ends (``QuotaSet`` of the name ``budget ...``):
waiting jobs get no lease, running ones end with theirs. So the core knows no budgets, and a fold of the records has the same
state. A soft limit only warns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from themis.model.events import QuotaSet
from themis.model.units import Seconds
from themis.report.accounts.days import by_day, day_of, midnight
from themis.service.engine.config import Budget, Config
from themis.service.engine.engine import Engine

PREFIX = "budget "
"""Prefix for names of quotas that implement budgets."""
NEAR = 1e-9
"""Relative; so close to its limit a budget is used up, for the instant that it was forecast for may be rounded."""
LEAST_S = 0.1
"""Seconds between two looks at a budget that nothing changed."""
_WORDS = {"day": "today", "week": "this week", "month": "this month", "total": "in total"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A budget now.

    Attributes
    ----------
    used : in GPU hours or cost, ``at`` that time. ``rate`` : what is added to it in a second. ``ends`` : of the period. Times in
        seconds since the log began.
    """

    name: str
    members: frozenset[str]
    budget: Budget
    used: float
    at: Seconds
    rate: float
    ends: Seconds

    @property
    def over_hard(self) -> bool:
        """True if the hard limit is reached."""
        return self.budget.hard is not None and self.used >= self.budget.hard * (1 - NEAR)

    @property
    def over_soft(self) -> bool:
        """True if the soft limit is reached."""
        return self.budget.soft is not None and self.used >= self.budget.soft * (1 - NEAR)

    def due(self, now: Seconds) -> Seconds:
        """Time of its next change: a limit is reached, or the period ends."""
        limits = [limit for limit in (self.budget.hard, self.budget.soft) if limit is not None and limit > self.used]
        reached = [now + max((limit - self.used) / self.rate, LEAST_S) for limit in limits if self.rate > 0]
        return min([self.ends, *reached])

    def words(self, now: Seconds, currency: str, epoch: Seconds) -> str:
        """``user ada has used 12.5 of 10 GPU hours this month; the budget is renewed on 2026-12-01``."""
        unit = "GPU hours" if self.budget.of == "gpu_hours" else currency or "of cost"
        limit = self.budget.hard if self.over_hard else self.budget.soft
        kind = "" if self.over_hard else " (soft limit)"
        amount = self.used + self.rate * (now - self.at)
        used = f"{self.name} has used {amount:.1f} of {limit:g} {unit}{kind} {_WORDS[self.budget.per]}"
        if not math.isfinite(self.ends):
            return used
        return f"{used}; the budget is renewed on {datetime.fromtimestamp(epoch + self.ends):%Y-%m-%d %H:%M}"


@dataclass(slots=True)
class Budgets:
    """The standing of all budgets of users who submitted something. ``due`` : when ``run`` has something to do."""

    engine: Engine
    config: Config
    due: Seconds | None = None
    standings: dict[str, Standing] = field(default_factory=dict)
    _seen: int = -1
    """Version of the accounts that the standings are of."""

    def change(self, config: Config) -> None:
        """Other settings are in force; the next ``run`` looks at every budget again."""
        self.config, self._seen = config, -1

    def run(self, now: Seconds) -> None:
        """Set and lift the quotas of budgets where limits are reached and periods end."""
        books, state = self.engine.books, self.engine.core.state
        budgets = {name: b for user in sorted(state.users) for name, b in self.config.budgets(user).items()}
        set_ = {name for name in state.quotas if name.startswith(PREFIX)}
        changed = books.version != self._seen or budgets.keys() != self.standings.keys()
        if not (budgets or set_ or self.standings) or not (changed or (self.due is not None and now >= self.due)):
            return
        self._seen = books.version
        self.standings = {name: self._standing(name, *budget, now) for name, budget in sorted(budgets.items())}
        over = {PREFIX + name: s.members for name, s in self.standings.items() if s.over_hard}
        for name in sorted(set_ - over.keys()):
            self.engine.feed(QuotaSet(name=name, users=tuple(state.quotas[name][0]), gpus=None), now)
        for name, members in sorted(over.items()):
            wanted = tuple(sorted(members)), 0
            if state.quotas.get(name) != wanted:
                self.engine.feed(QuotaSet(name=name, users=wanted[0], gpus=0), now)
        self.due = min((s.due(now) for s in self.standings.values()), default=None)
        if self.due is not None and not math.isfinite(self.due):
            self.due = None

    def of(self, user: str, now: Seconds, *, hard: bool) -> str:
        """Sentence about the budgets of which a user has reached the hard limit, or only the soft one; empty without any."""
        accounts = self.engine.books.accounts
        currency = accounts.tariff.currency if accounts else ""
        found = [s for s in self.standings.values() if user in s.members]
        return "; ".join(
            s.words(now, currency, self.engine.books.epoch)
            for s in found
            if (s.over_hard if hard else s.over_soft and not s.over_hard)
        )

    def _standing(self, name: str, members: frozenset[str], budget: Budget, now: Seconds) -> Standing:
        books = self.engine.books
        books.flush()
        day = day_of(books.epoch + now, books.zone)
        begin, end = period(day, budget.per)
        seconds = budget.of == "gpu_hours"
        used = books.sum_since(begin.isoformat(), members, "leased" if seconds else "cost") / (3600 if seconds else 1)
        rate = 0.0
        for lease in books.accounts.leases.held.values() if books.accounts else ():
            if lease.account.user in members:
                for on, amounts in by_day(lease.charge(now), books.epoch, books.zone):
                    if on >= begin.isoformat():
                        used += amounts.leased / 3600 if seconds else amounts.cost
                rate += lease.gpus / 3600 * (1 if seconds else lease.price)
        ends = midnight(end, books.zone) - books.epoch if end is not None else math.inf
        return Standing(name=name, members=members, budget=budget, used=used, at=now, rate=rate, ends=ends)


def period(day: date, per: str) -> tuple[date, date | None]:
    """First day of the period that a day is in, and the first day after it; None: it has no end."""
    match per:
        case "day":
            return day, day + timedelta(days=1)
        case "week":
            first = day - timedelta(days=day.weekday())
            return first, first + timedelta(days=7)
        case "month":
            first = day.replace(day=1)
            return first, (first + timedelta(days=32)).replace(day=1)
        case _:
            return date(1, 1, 1), None
