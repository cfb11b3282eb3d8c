"""The app agent: turns an app's state into one bid on an offer (Themis §4.3).

A bid is at most 64 exclusive rows. A row asks for gangs (as the app's scheduler would split them, ``policies.tuning.split``)
that each lie within a span, and says what rho would become: the row's gangs together with those held beyond this
instant, for ever. Rows that do not strictly lower rho are not bid.

Apps with waiting jobs bid for gangs for these; an app whose jobs all run bids to enlarge the one with most left, if it
is elastic. All gangs of a row are priced at the row's span.

The agents of one process answer together: single jobs, of which there may be thousands, as arrays, the others one by
one over plain lists (bags need a schedule per row; on the real trace this is faster than arrays of a few entries).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from themis.fairness.finish_time import FinishTime, Form, list_schedule
from themis.model.answers import Ask
from themis.model.bids import Bids
from themis.model.snapshot import Kind, Snapshot
from themis.model.units import NONE, Bool, Float, Int, Locality
from themis.policies.tuning import bid_rows as rows
from themis.policies.tuning import shared, singles
from themis.policies.tuning.bid_rows import ExclusiveRow, bids_of_singles
from themis.policies.tuning.ladders import ladder
from themis.policies.tuning.singles import SPANS, distinct_spans

ROWS = 64
"""Most rows of one bid."""

BETTER = 1 - 1e-9
"""A row must leave less than this share of the seconds left without it."""

SINGLE, BAG = int(Kind.SINGLE), int(Kind.BAG)
"""Plain integers: numpy takes ten times as long to compare with an enumeration member."""

Gang = tuple[int, int, int]
"""(GPUs, GPU type, locality) of one gang for a waiting job."""


def answer_ask(snapshot: Snapshot, ask: Ask) -> Bids:
    """The bids of all apps asked, as their agents would make them."""
    return Agents.of(snapshot, Form(ask.form)).bid(ask.apps, ask.offer)


def growing_job(s: Snapshot, a: int) -> int:
    """The running job of app row ``a`` that should grow first: the most work left; -1 if none can."""
    at = slice(int(s.job_ptr[a]), int(s.job_ptr[a + 1]))
    room = (s.job_held[at] > 0) & (s.job_held[at] < s.job_gpus_max[at])
    rows = np.flatnonzero(room)
    return int(s.job_id[at][rows[np.argmax(s.job_left[at][rows])]]) if len(rows) else NONE


class Agents:
    """The agents of a snapshot's apps."""

    @classmethod
    def of(cls, snapshot: Snapshot, form: Form) -> Agents:
        """The same ones for all who ask of this snapshot."""
        finish = FinishTime.of(snapshot, form)
        return snapshot.once((cls, form), lambda columns: cls(columns, finish))

    def __init__(self, snapshot: Snapshot, finish: FinishTime) -> None:
        self.s = snapshot
        self.finish = finish
        #: Seconds left if the app wins nothing.
        self.without: Float = finish.left
        self.limit: Float = self.without * BETTER - 1e-9
        """A row must leave less than this."""

    # Lists for columns with single reads; waiting single jobs need none of them.

    @cached_property
    def worth(self) -> list[float]:
        """[J], reference GPUs that each gang held is worth."""
        out: list[float] = shared.job_worth(self.s).tolist()
        return out

    @cached_property
    def left(self) -> list[float]:
        """[J], work left."""
        out: list[float] = self.s.job_left.tolist()
        return out

    @cached_property
    def held(self) -> list[int]:
        """[J], GPUs held."""
        out: list[int] = self.s.job_held.tolist()
        return out

    @cached_property
    def cold(self) -> list[bool]:
        """[J], holds nothing that it could keep."""
        out: list[bool] = (self.s.job_expiring == 0).tolist()
        return out

    @cached_property
    def low(self) -> list[int]:
        """[J], fewest GPUs."""
        out: list[int] = self.s.job_gpus_min.tolist()
        return out

    @cached_property
    def high(self) -> list[int]:
        """[J], most GPUs."""
        out: list[int] = self.s.job_gpus_max.tolist()
        return out

    @cached_property
    def ptr(self) -> list[int]:
        """[A + 1], each app's first job."""
        out: list[int] = self.s.job_ptr.tolist()
        return out

    def would_take(self, a: int, offer: Int) -> list[int] | None:
        """Gangs that an app would take of an offer if it could have it all, none if nothing of it lowers its rho.

        None for an app without a waiting job: what it takes enlarges a gang, see ``best``.
        """
        size = singles.wanted(self.s, a)
        if size:
            return [size] if singles.serves(self.s, self.limit.item(a), a, self._offered(offer)) else []
        if not any(not self.held[j] for j in range(self.ptr[a], self.ptr[a + 1])):
            return None
        best = self.best(a, offer)
        return best.sizes if best else []

    def gains(self, a: int, given: Sequence[Gang], gang: Gang) -> bool:
        """True if one gang more for a waiting job strictly lowers the rho of an app that was given these."""
        return _Agent(self, a, [], given).gains(gang)

    def bid(self, apps: Int, offer: Int) -> Bids:
        """Bids of these app rows (rising) on the offer, Int[N]."""
        s, offered = self.s, self._offered(offer)
        single = (s.app_kind[apps] == SINGLE) & (s.job_held[s.job_ptr[apps]] == 0)
        of_singles = singles.rows(s, self.limit, apps, single.nonzero()[0], offered)
        if single.all():
            return bids_of_singles(s, self.finish, apps, of_singles)
        fluid = ~single & self._fluid(apps)
        bidder: list[int] = []
        alone: list[ExclusiveRow] = []
        for b in np.flatnonzero(~single & ~fluid).tolist():
            for row in self._one_by_one(int(apps[b]), offer, offered):
                bidder.append(b)
                alone.append(row)
        together = shared.rows(s, self.finish, self.limit, apps, fluid.nonzero()[0], offered, ROWS)
        parts = [rows.as_columns(bidder, alone), rows.of_singles(of_singles), together]
        return rows.bids_of(s, self.finish, apps, rows.joined(parts))

    def _fluid(self, apps: Int) -> Bool:
        """True for each of these app rows that has a waiting job and shares GPUs freely: all except rigid bags."""
        s = self.s
        waits: Bool = s.once("apps that wait", lambda s: np.logical_or.reduceat(s.job_held == 0, s.job_ptr[:-1]))
        out: Bool = waits[apps] & ~(s.app_rigid[apps] & (s.app_kind[apps] == BAG))
        return out

    def best(self, a: int, offer: Int) -> ExclusiveRow | None:
        """Row that an app would take if it could have the whole offer; None if nothing of it lowers its rho."""
        found = self.rows(a, offer, self._offered(offer))
        return min(found, key=lambda row: (row.left, row.gpus), default=None)

    def rows(self, a: int, offer: Int, offered: list[int]) -> list[ExclusiveRow]:
        """All rows of one app that strictly lower its rho; ``offered`` is the offer per GPU type."""
        apps = np.array([a])
        if not self._fluid(apps)[0]:
            return self._one_by_one(a, offer, offered)
        return shared.rows(self.s, self.finish, self.limit, apps, np.zeros(1, dtype=np.int64), offered, ROWS).listed()

    def _one_by_one(self, a: int, offer: Int, offered: list[int]) -> list[ExclusiveRow]:
        """Rows of one app that is a rigid batch or has no waiting job."""
        found = _Agent(self, a, offered).rows(offer)
        limit = float(self.limit[a])
        return [row for row in found if row.left < limit]

    def _offered(self, offer: Int) -> list[int]:
        s = self.s
        out: list[int] = np.bincount(s.machine_type, offer, len(s.gpu_types)).astype(np.int64).tolist()
        return out


class _Agent:
    """One app's agent; ``given`` is what the app was dealt at this instant already."""

    def __init__(self, agents: Agents, a: int, offered: list[int], given: Sequence[Gang] = ()) -> None:
        s = self.s = agents.s
        self.agents, self.a = agents, a
        first, end = agents.ptr[a], agents.ptr[a + 1]
        self.running = [j for j in range(first, end) if agents.held[j]]
        # The order in which the app's scheduler will start them: warm ones, then the longest.
        waiting = [j for j in range(first, end) if not agents.held[j]]
        self.waiting = sorted(waiting, key=lambda j: (agents.cold[j], -agents.left[j], j))
        config = int(s.job_config[first])
        self.scale: list[list[float]] = s.speeds.scale[config].tolist()
        self.slowdown: list[float] = s.speeds.slowdown[config].tolist()
        self.held = sum(agents.worth[j] for j in self.running)
        self.busy = [(agents.left[j] / agents.worth[j], agents.worth[j]) for j in self.running]
        """(Seconds until the gang is free, its speed) of each gang."""
        for j, gang in zip(self.waiting, given):
            speed = self._speed(gang)
            self.held += speed
            self.busy.append((agents.left[j] / speed, speed))
        self.waiting = self.waiting[len(given) :]
        allowed: Bool = np.atleast_1d(s.job_allowed[first:end].any(axis=0))
        self.types = [(k, count) for k, count in enumerate(offered) if count and allowed[k]]

    def rows(self, offer: Int) -> Iterable[ExclusiveRow]:
        """Rows, not all of them improvements."""
        if not self.waiting:
            return self._extensions(offer)
        return self._bag()

    def gains(self, gang: Gang) -> bool:
        """True if a gang for the next waiting job strictly lowers rho."""
        if not self.waiting:
            return False
        speed = self._speed(gang)
        if self._is_rigid_bag:
            works = sorted((self.agents.left[j] for j in self.waiting), reverse=True)
            before, after = list_schedule(self.busy, works), list_schedule([*self.busy, (0.0, speed)], works)
        else:
            most = self.scale[gang[1]][int(self.s.app_gang_max[self.a])] / self.slowdown[gang[2]]
            shared = np.array([self.held, self.held + speed])
            before, after = self.agents.finish.left_on(shared, np.full(2, most), self.a).tolist()
        return after < before * BETTER - 1e-9

    def _speed(self, gang: Gang) -> float:
        size, k, span = gang
        return self.scale[k][size] / self.slowdown[Locality.MACHINE if size == 1 else span]

    @property
    def _is_rigid_bag(self) -> bool:
        return bool(self.s.app_rigid[self.a]) and self.s.app_kind[self.a] == Kind.BAG

    def _spans(self, gang: int) -> list[int]:
        return distinct_spans(gang, self.slowdown)

    def _bag(self) -> Iterator[ExclusiveRow]:
        """Rigid bags: list scheduling, longest first, on the gangs held and the new ones."""
        agents, gang = self.agents, self.agents.low[self.waiting[0]]
        works = sorted((agents.left[j] for j in self.waiting), reverse=True)
        held = self.busy
        busy = max((t for t, _ in held), default=0.0)
        spans = self._spans(gang)
        for k, offered in self.types:
            for span in spans:
                speed = self.scale[k][gang] / self.slowdown[span]
                floor = max(works[0] / speed, busy) * (1 + 1e-12)
                best = math.inf
                for count in ladder(min(len(works), offered // gang), ROWS // (len(spans) * len(self.types))):
                    seconds = list_schedule(held + [(0.0, speed)] * count, works)
                    if seconds < best:
                        yield ExclusiveRow(((gang, count),), int(span), k, seconds)
                        best = seconds
                    if seconds <= floor:
                        break

    def _extensions(self, offer: Int) -> Iterator[ExclusiveRow]:
        """All jobs run: enlarge the one with the most left, which costs it a restart."""
        s = self.s
        grower = growing_job(s, self.a)
        if grower == NONE:
            return
        j = int(np.searchsorted(s.job_id, grower))
        restart = s.restart_s + float(s.speeds.checkpoint_s[s.job_config[j]])
        if s.job_until[j] - s.now < 2 * restart:
            return
        machine, k = int(s.gpu_machine[s.gangs[grower][0]]), int(s.job_gpu_type[j])
        rest = self.held - self.agents.worth[j]
        for span in SPANS:
            if span < s.job_locality[j]:
                continue
            anchor = (machine, int(s.machine_rack[machine]), NONE)[span - 1]
            within = (s.machine_rack >= 0, s.machine_rack == anchor, s.machine_rack >= 0)[span - 1] & (
                s.machine_type == k
            )
            offered = int(offer[machine]) if span == Locality.MACHINE else int(offer[within].sum())
            most = self.scale[k][int(s.app_gang_max[self.a])] / self.slowdown[span]
            for more in range(1, min(self.agents.high[j] - self.agents.held[j], offered) + 1):
                speed = self.scale[k][self.agents.held[j] + more] / self.slowdown[span]
                left = self.agents.finish.left_on(np.array(rest + speed), np.array(most), self.a)
                yield ExclusiveRow(((more, 1),), int(span), k, restart + float(left), anchor)
