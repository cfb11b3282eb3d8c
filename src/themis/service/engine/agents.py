"""External agents of apps: connections, questions, and answers in time (Themis §4.2).

A decision has at most two windows: first the connected agents report their rho (the visibility phase), then the GPUs are
offered to those of the apps that the policy lets bid. A window closes when all agents answered, or when its time is over. An
answer that is missing or invalid then has a consequence for its own app only:

- no rho: the service's own estimate is used;
- no valid bid: the app wins nothing in this auction (it may still get leftovers);
- too many misses in a row: the agent is disconnected, and the service's own agent bids for the app again.

An agent that disconnects is treated as if it had never connected. Callers' threads leave their answers here; the arbiter's
thread opens and closes windows and never waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock

import numpy as np

from themis.errors import InputError
from themis.fairness.finish_time import FinishTime, Form
from themis.model.answers import Ask
from themis.model.bids import Bids
from themis.model.events import AgentBid
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Seconds
from themis.policies.tuning.app_agent import ROWS
from themis.policies.tuning.outside import OutsideBid, Terms, check_bid, check_rho, terms
from themis.schema import messages as schema
from themis.service.engine.wire_bids import Names, agent_view, offer_message, read_bid

MOST_UNREAD = 100_000
"""Messages that an agent may leave unread; more would fill the arbiter's memory."""


@dataclass(slots=True, eq=False)
class Session:
    """A connected agent; ``outbox`` ends with None."""

    app: int
    outbox: SimpleQueue[schema.AgentEvent | None] = field(default_factory=SimpleQueue)
    misses: int = 0

    def end(self, reason: str) -> None:
        """Disconnect the agent."""
        self.outbox.put(schema.AgentEvent(goodbye=schema.Goodbye(reason=reason)))
        self.outbox.put(None)


@dataclass(slots=True)
class _Window:
    """One question to some agents, and their answers so far."""

    round: int
    until: Seconds
    asked: set[int]
    terms: Mapping[int, Terms] = field(default_factory=dict)
    """Terms of the bids; empty while rho is requested."""
    rho: dict[int, float] = field(default_factory=dict)
    bids: dict[int, OutsideBid] = field(default_factory=dict)
    wrong: set[int] = field(default_factory=set)

    @property
    def missing(self) -> set[int]:
        return self.asked - (self.bids.keys() if self.terms else self.rho.keys())


class AgentRegistry:
    """The connected agents, and their answers.

    Parameters
    ----------
    names : gives the cluster's names as of now. ``wake_up`` : called, from any thread, when a window has all its answers.
    answer_s : a window's time. ``misses`` : answers in a row that may be missing.
    """

    def __init__(
        self, names: Callable[[], Names], wake_up: Callable[[], None], *, answer_s: Seconds, misses: int
    ) -> None:
        self.names, self.wake_up, self.answer_s, self.misses = names, wake_up, answer_s, misses
        self._lock = Lock()
        self._sessions: dict[int, Session] = {}
        self._window: _Window | None = None
        self._round = secrets.randbits(32)  # so that an answer to an arbiter before this one is recognised
        self._rho: dict[int, float] = {}
        """Rho that agents reported in the first window of the pending decision."""
        self._orders: dict[int, tuple[int, ...]] = {}
        self._wrong: set[int] = set()
        """Apps whose bids in the last window were all malformed."""

    # ---- callers' threads -----------------------------------------------------------------------------------------------

    def register(self, app: int, name: str) -> Session:
        """Register an agent for an app, replacing any existing one."""
        session = Session(app)
        welcome = schema.Welcome(app=app, name=name, answer_s=self.answer_s, misses=self.misses, rows=ROWS)
        session.outbox.put(schema.AgentEvent(welcome=welcome))
        with self._lock:
            before = self._sessions.get(app)
            self._sessions[app] = session
        if before is not None:
            before.end("replaced")
        return session

    def disconnect(self, session: Session) -> None:
        """The agent disconnected."""
        with self._lock:
            if self._sessions.get(session.app) is session:
                del self._sessions[session.app]

    def answer(self, app: int, request: schema.AgentAnswer) -> None:
        """Take the answer to a probe or to an offer; raises InputError where it is invalid."""
        with self._lock:
            window = self._mine(app, request.round)
            asked = window.terms.get(app)
            if asked is None:
                if request.rho is None or request.rows or request.jobs:
                    raise InputError("the round still asks for rho alone, not yet for bids; answer the probe.")
                window.rho[app] = check_rho(request.rho)
                self._answered(app, window)
                return
        # Outside the lock: a large bid delays no other agent.
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
                raise InputError(f"round {request.round} is over.")
            window.bids[app] = found
            if order:
                self._orders[app] = order
            self._answered(app, window)

    def _mine(self, app: int, number: int) -> _Window:
        window = self._window
        if app not in self._sessions:
            raise InputError("no agent is connected for this app; call Attend and answer what it streams.")
        if window is None or window.round != number or app not in window.asked:
            raise InputError(f"round {number} is over, or is not this app's.")
        return window

    def _answered(self, app: int, window: _Window) -> None:
        if app in self._sessions:  # it may have disconnected a moment ago
            self._sessions[app].misses = 0
        if not window.missing:
            self.wake_up()

    # ---- the arbiter's thread ---------------------------------------------------------------------------------------------

    @property
    def due(self) -> Seconds | None:
        """Closing time of the open window, if there is one."""
        return self._window.until if self._window else None

    @property
    def round(self) -> int:
        """Number of the last question."""
        return self._round

    def present(self, apps: Iterable[int]) -> list[int]:
        """The apps, of those given, that have a connected agent."""
        with self._lock:
            return [a for a in apps if a in self._sessions] if self._sessions else []

    def connected(self) -> set[int]:
        """All apps that have a connected agent."""
        with self._lock:
            return set(self._sessions)

    def probe(self, snapshot: Snapshot, form: str, now: Seconds) -> bool:
        """Ask the agents of all apps that can use more GPUs for their rho; False if there are none."""
        self._rho, self._orders = {}, {}
        unmet = np.unique(snapshot.job_app[snapshot.job_held < snapshot.job_gpus_max])
        rows = {int(snapshot.app_id[a]): int(a) for a in unmet}
        asked = self.present(list(rows))
        if not asked:
            return False
        finish, names = FinishTime(snapshot, Form(form)), self.names()
        window = self._open(set(asked), now)
        for app in asked:
            view = agent_view(snapshot, finish, rows[app], names)
            self._send(app, schema.AgentEvent(probe=schema.Probe(round=window.round, answer_s=self.answer_s, app=view)))
        return True

    def offer(self, snapshot: Snapshot, ask: Ask, own: Bids, now: Seconds) -> bool:
        """Offer the GPUs to the agents of the apps that may bid; False if there are none."""
        bidders = {int(snapshot.app_id[a]): b for b, a in enumerate(ask.apps.tolist())}
        asked = self.present(list(bidders))
        if not asked:
            return False
        finish, names = FinishTime(snapshot, Form(ask.form)), self.names()
        by_app = {app: terms(snapshot, ask.apps, ask.offer, own, bidders[app]) for app in asked}
        window = self._open(set(asked), now, by_app)
        for app in asked:
            view = agent_view(snapshot, finish, by_app[app].row, names)
            message = offer_message(by_app[app], names, view)
            message.round, message.answer_s = window.round, self.answer_s
            self._send(app, schema.AgentEvent(offer=message))
        return True

    def complete(self, now: Seconds) -> bool:
        """True if the open window may be closed."""
        with self._lock:
            return self._window is not None and (not self._still_missing(self._window) or now >= self._window.until)

    def close_probe(self, snapshot: Snapshot) -> Float:
        """The answers as the column ``rho_said``."""
        window = self._close()
        self._rho = dict(window.rho)
        column: Float = np.array([self._rho.get(int(a), np.nan) for a in snapshot.app_id])
        return column

    def close_offer(self, snapshot: Snapshot, ask: Ask) -> dict[int, OutsideBid | None]:
        """Bids by bidder; None for one that lost the round. Apps whose agent disconnected get the service's bid."""
        window = self._close()
        bidders = {int(snapshot.app_id[a]): b for b, a in enumerate(ask.apps.tolist())}
        here = {*self.present(list(window.asked)), *window.bids}
        return {bidders[app]: window.bids.get(app) for app in sorted(window.asked & here)}

    def give_up(self) -> None:
        """Discard the open window; no agent counts as having missed an answer."""
        with self._lock:
            self._window = None

    def rho_records(self, version: int) -> list[AgentBid]:
        """The records of the first window."""
        return [AgentBid(version=version, app=app, said="rho", rho=rho) for app, rho in sorted(self._rho.items())]

    def bid_records(
        self, version: int, snapshot: Snapshot, ask: Ask, outside_bids: Mapping[int, OutsideBid | None]
    ) -> list[AgentBid]:
        """The records of the second window, written before the decision is made."""
        out = []
        for b, bid in sorted(outside_bids.items()):
            app = int(snapshot.app_id[ask.apps[b]])
            how = "bid" if bid is not None else "malformed" if app in self._wrong else "late"
            rows = tuple((r.gangs, r.span, r.gpu_type, r.anchor, r.rho) for r in bid.rows) if bid else ()
            out.append(AgentBid(version=version, app=app, said=how, rho=bid.rho if bid else None, rows=rows))
        return out

    def orders(self) -> dict[int, tuple[int, ...]]:
        """The order of its jobs that each app asked for with its bid."""
        out, self._orders = self._orders, {}
        return out

    def send(self, app: int, event: schema.AgentEvent) -> None:
        """Send a message to an app's agent, if there is one."""
        with self._lock:
            self._send(app, event)

    def finished(self, app: int) -> None:
        """The app is finished."""
        with self._lock:
            session = self._sessions.pop(app, None)
        if session is not None:
            session.end("over")

    def close(self) -> None:
        """The arbiter ends; agents connect again when it is back."""
        with self._lock:
            sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.outbox.put(None)

    def _open(self, asked: set[int], now: Seconds, by_app: Mapping[int, Terms] | None = None) -> _Window:
        self._round += 1
        window = _Window(self._round, now + self.answer_s, asked, by_app or {})
        with self._lock:
            self._window = window
        return window

    def _still_missing(self, window: _Window) -> set[int]:
        """The apps whose agent has not answered and is still connected."""
        return window.missing & self._sessions.keys()

    def _close(self) -> _Window:
        with self._lock:
            window = self._window
            assert window is not None
            self._window = None
            self._wrong = window.wrong if window.terms else set()
            for app in self._still_missing(window):
                session = self._sessions[app]
                session.misses += 1
                if session.misses >= self.misses:
                    del self._sessions[app]
                    session.end("silent")
        return window

    def _send(self, app: int, event: schema.AgentEvent) -> None:
        session = self._sessions.get(app)
        if session is None:
            return
        if session.outbox.qsize() >= MOST_UNREAD:
            self._sessions.pop(app, None)
            session.end("silent")
            return
        session.outbox.put(event)
