"""Agents of apps that are programs of others: who is there, what they are asked, what they answered in time (Themis §4.2).

A decision has two windows at most: first those who are there say their rho (the visibility phase), then those whom the
policy lets bid are offered the GPUs. A window closes when everybody answered, or when its time is over; what is missing
or wrong then costs its sender, and only its sender, the round:

- no rho: the service's own estimate serves;
- no valid bid: the app wins nothing in this auction (it may still get leftovers);
- so many misses in a row: the agent is sent away, and the service's own agent bids for the app again.

An agent that hangs up is as if it had never come. Callers' threads leave their answers here; the arbiter's thread opens and
closes windows and never waits for anybody.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock

import numpy as np

from themis.auction.bids import Bids
from themis.client import themis_pb2 as pb
from themis.errors import InputError
from themis.fairness.finish_time import FinishTime, Form
from themis.model.answers import Ask
from themis.model.events import AgentBid
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Seconds
from themis.service.engine.wire_bids import offer_message, picture_message, read_bid
from themis.tuning.agent import ROWS
from themis.tuning.outside import OutsideBid, Terms, check_bid, check_rho, terms

MOST_UNREAD = 100_000
"""Messages that an agent may leave unread; one that reads nothing must not fill the arbiter's memory."""


class TooLate(InputError):
    """The round that was meant is over, or was never this app's."""


@dataclass(slots=True, eq=False)
class Seat:
    """A connected agent; ``outbox`` ends with None."""

    app: int
    outbox: SimpleQueue[pb.AgentEvent | None] = field(default_factory=SimpleQueue)
    misses: int = 0

    def end(self, reason: str) -> None:
        """Say goodbye."""
        self.outbox.put(pb.AgentEvent(goodbye=pb.Goodbye(reason=reason)))
        self.outbox.put(None)


@dataclass(slots=True)
class _Window:
    """One question to some agents, and their answers so far."""

    round: int
    until: Seconds
    asked: set[int]
    terms: Mapping[int, Terms] = field(default_factory=dict)
    """Of the bids; empty while it is rho that is asked for."""
    rho: dict[int, float] = field(default_factory=dict)
    bids: dict[int, OutsideBid] = field(default_factory=dict)
    wrong: set[int] = field(default_factory=set)

    @property
    def missing(self) -> set[int]:
        return self.asked - (self.bids.keys() if self.terms else self.rho.keys())


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Of the cluster's parts, by their numbers; and each app's first job."""

    machines: Sequence[str]
    racks: Sequence[str]
    first_job: Callable[[int], int]


class Desk:
    """Where agents sit.

    Parameters
    ----------
    names : as of now. ``nudge`` : called, from any thread, when a window has all its answers.
    answer_s : a window's time. ``misses`` : answers in a row that may be missing.
    """

    def __init__(
        self, names: Callable[[], Names], nudge: Callable[[], None], *, answer_s: Seconds, misses: int
    ) -> None:
        self.names, self.nudge, self.answer_s, self.misses = names, nudge, answer_s, misses
        self._lock = Lock()
        self._seats: dict[int, Seat] = {}
        self._window: _Window | None = None
        self._round = secrets.randbits(32)  # so that an answer to an arbiter before this one is recognised
        self._rho: dict[int, float] = {}
        """What agents said in the first window of the decision under way."""
        self._orders: dict[int, tuple[int, ...]] = {}
        self._wrong: set[int] = set()
        """Whose only bids in the last window were malformed."""

    # ---- callers' threads -----------------------------------------------------------------------------------------------

    def attend(self, app: int, name: str) -> Seat:
        """Sit down for an app; whoever sat there is sent away."""
        seat = Seat(app)
        welcome = pb.Welcome(app=app, name=name, answer_s=self.answer_s, misses=self.misses, rows=ROWS)
        seat.outbox.put(pb.AgentEvent(welcome=welcome))
        with self._lock:
            before = self._seats.get(app)
            self._seats[app] = seat
        if before is not None:
            before.end("replaced")
        return seat

    def leave(self, seat: Seat) -> None:
        """The agent hung up."""
        with self._lock:
            if self._seats.get(seat.app) is seat:
                del self._seats[seat.app]

    def estimate(self, app: int, number: int, rho: float) -> None:
        """Take an answer to a probe; raises InputError."""
        with self._lock:
            window = self._mine(app, number)
            if window.terms:
                raise TooLate("rho is not asked for any more, bids are; answer the offer.")
            window.rho[app] = check_rho(rho)
            self._answered(app, window)

    def bid(self, app: int, request: pb.BidRequest) -> None:
        """Take a bid, or say in one sentence what is wrong with it."""
        with self._lock:
            window = self._mine(app, request.round)
            asked = window.terms.get(app)
            if asked is None:
                raise TooLate("no bid is asked for yet, rho is; answer the probe.")
        # Outside the lock: a large bid keeps nobody waiting.
        try:
            default = self._rho.get(app, asked.own.rho)
            found, order = read_bid(request, asked, self.names(), default)
            check_bid(found, asked)
        except InputError:
            with self._lock:
                window.wrong.add(app)
            raise
        with self._lock:
            if self._window is not window:
                raise TooLate(f"round {request.round} is over.")
            window.bids[app] = found
            if order:
                self._orders[app] = order
            self._answered(app, window)

    def _mine(self, app: int, number: int) -> _Window:
        window = self._window
        if app not in self._seats:
            raise TooLate("no agent attends for this app; call Attend and answer what it streams.")
        if window is None or window.round != number or app not in window.asked:
            raise TooLate(f"round {number} is over, or is not this app's.")
        return window

    def _answered(self, app: int, window: _Window) -> None:
        if app in self._seats:  # it may have hung up a moment ago
            self._seats[app].misses = 0
        if not window.missing:
            self.nudge()

    # ---- the arbiter's thread ---------------------------------------------------------------------------------------------

    @property
    def due(self) -> Seconds | None:
        """When the open window closes, if there is one."""
        return self._window.until if self._window else None

    @property
    def round(self) -> int:
        """Number of the last question."""
        return self._round

    def present(self, apps: Iterable[int]) -> list[int]:
        """Those of the apps that have an agent here."""
        with self._lock:
            return [a for a in apps if a in self._seats] if self._seats else []

    def attended(self) -> set[int]:
        """All apps that have an agent here."""
        with self._lock:
            return set(self._seats)

    def probe(self, snapshot: Snapshot, form: str, now: Seconds) -> bool:
        """Ask everybody who has use for GPUs for their rho; False if nobody is there."""
        self._rho, self._orders = {}, {}
        unmet = np.unique(snapshot.job_app[snapshot.job_held < snapshot.job_gpus_max])
        rows = {int(snapshot.app_id[a]): int(a) for a in unmet}
        asked = self.present(list(rows))
        if not asked:
            return False
        finish, names = FinishTime(snapshot, Form(form)), self.names()
        window = self._open(set(asked), now)
        for app in asked:
            picture = picture_message(snapshot, finish, rows[app], names)
            self._say(app, pb.AgentEvent(probe=pb.Probe(round=window.round, answer_s=self.answer_s, app=picture)))
        return True

    def offer(self, snapshot: Snapshot, ask: Ask, own: Bids, now: Seconds) -> bool:
        """Offer the GPUs to the agents of those who may bid; False if none of them has one here."""
        bidders = {int(snapshot.app_id[a]): b for b, a in enumerate(ask.apps.tolist())}
        asked = self.present(list(bidders))
        if not asked:
            return False
        finish, names = FinishTime(snapshot, Form(ask.form)), self.names()
        by_app = {app: terms(snapshot, ask.apps, ask.offer, own, bidders[app]) for app in asked}
        window = self._open(set(asked), now, by_app)
        for app in asked:
            picture = picture_message(snapshot, finish, by_app[app].row, names)
            message = offer_message(by_app[app], names)
            message.round, message.answer_s = window.round, self.answer_s
            message.app.CopyFrom(picture)
            self._say(app, pb.AgentEvent(offer=message))
        return True

    def complete(self, now: Seconds) -> bool:
        """Whether the open window may be closed."""
        with self._lock:
            return self._window is not None and (not self._still_missing(self._window) or now >= self._window.until)

    def close_probe(self, snapshot: Snapshot) -> Float:
        """What was answered, as the column ``rho_said``."""
        window = self._close()
        self._rho = dict(window.rho)
        column: Float = np.array([self._rho.get(int(a), np.nan) for a in snapshot.app_id])
        return column

    def close_offer(self, snapshot: Snapshot, ask: Ask) -> dict[int, OutsideBid | None]:
        """Bids by bidder; None for who lost the round. Who hung up meanwhile is left to the service's agent."""
        window = self._close()
        bidders = {int(snapshot.app_id[a]): b for b, a in enumerate(ask.apps.tolist())}
        here = {*self.present(list(window.asked)), *window.bids}
        return {bidders[app]: window.bids.get(app) for app in sorted(window.asked & here)}

    def rho_records(self, version: int) -> list[AgentBid]:
        """What is written down of the first window."""
        return [AgentBid(version=version, app=app, said="rho", rho=rho) for app, rho in sorted(self._rho.items())]

    def bid_records(
        self, version: int, snapshot: Snapshot, ask: Ask, said: Mapping[int, OutsideBid | None]
    ) -> list[AgentBid]:
        """What is written down of the second window, before the decision is made."""
        out = []
        for b, bid in sorted(said.items()):
            app = int(snapshot.app_id[ask.apps[b]])
            how = "bid" if bid is not None else "malformed" if app in self._wrong else "late"
            rows = tuple((r.gangs, r.span, r.gpu_type, r.anchor, r.rho) for r in bid.rows) if bid else ()
            out.append(AgentBid(version=version, app=app, said=how, rho=bid.rho if bid else None, rows=rows))
        return out

    def orders(self) -> dict[int, tuple[int, ...]]:
        """The order of its jobs that each app asked for with its bid."""
        out, self._orders = self._orders, {}
        return out

    def tell(self, app: int, event: pb.AgentEvent) -> None:
        """A message to an app's agent, if there is one."""
        with self._lock:
            self._say(app, event)

    def finished(self, app: int) -> None:
        """The app is over."""
        with self._lock:
            seat = self._seats.pop(app, None)
        if seat is not None:
            seat.end("over")

    def close(self) -> None:
        """The arbiter ends; agents attend again when it is back."""
        with self._lock:
            seats, self._seats = list(self._seats.values()), {}
        for seat in seats:
            seat.outbox.put(None)

    def _open(self, asked: set[int], now: Seconds, by_app: Mapping[int, Terms] | None = None) -> _Window:
        self._round += 1
        window = _Window(self._round, now + self.answer_s, asked, by_app or {})
        with self._lock:
            self._window = window
        return window

    def _still_missing(self, window: _Window) -> set[int]:
        """Who has not answered and is still here."""
        return window.missing & self._seats.keys()

    def _close(self) -> _Window:
        with self._lock:
            window = self._window
            assert window is not None
            self._window = None
            self._wrong = window.wrong if window.terms else set()
            for app in self._still_missing(window):
                seat = self._seats[app]
                seat.misses += 1
                if seat.misses >= self.misses:
                    del self._seats[app]
                    seat.end("silent")
        return window

    def _say(self, app: int, event: pb.AgentEvent) -> None:
        seat = self._seats.get(app)
        if seat is None:
            return
        if seat.outbox.qsize() >= MOST_UNREAD:
            self._seats.pop(app, None)
            seat.end("silent")
            return
        seat.outbox.put(event)
