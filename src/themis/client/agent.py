"""``themis.Agent``: bid for an app, instead of the service's own agent (docs/agents.md).

class Patient(Agent):
    def bid(self, offer: Offer) -> Bid:
        return Bid(rows=[row for row in offer.rows if sum(row.gangs) <= 4])

with Client() as client:
    Patient(client, "my-sweep").run()
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from themis.client.calls import made
from themis.client.client import Client, Unavailable
from themis.errors import InputError
from themis.faults import faults_of
from themis.schema import messages as schema
from themis.schema.messages import BidRow as Row

MOST_TOGETHER = 100
"""Answers in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """A bid of at most 64 rows, of which the app gets one or none.

    Attributes
    ----------
    rho : finish-time fairness without new GPUs; None: the answer of ``Agent.rho``, or the service's estimate.
    jobs : order in which waiting jobs get gangs from now on; positions in the app.
    """

    rows: Sequence[Row] = ()
    rho: float | None = None
    jobs: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """GPUs offered to several apps; ``message`` is the whole offer, see ``schema.messages``."""

    message: schema.Offer

    @property
    def app(self) -> schema.Picture:
        """The app as the service sees it: elapsed and ideal seconds, rho, and jobs with their remaining work."""
        return self.message.app

    @property
    def gpus(self) -> int:
        """Total number of offered GPUs."""
        return sum(part.gpus for part in self.message.gpus)

    @property
    def rows(self) -> list[Row]:
        """The bid that the service would make."""
        return self.message.rows

    def rho_after(self, seconds: float) -> float:
        """Finish-time fairness if the app needed ``seconds`` from now on (Themis eq. 1)."""
        return (self.app.elapsed + seconds) / self.app.t_id


class Agent:
    """An app's agent; override ``rho`` and ``bid``, and the methods of events that you need.

    Parameters
    ----------
    client : a connection. ``app`` : number or name of the app.
    """

    def __init__(self, client: Client, app: int | str) -> None:
        self.client, self.app = client, app
        self.number: int | None = None
        """Number of the app; None until the agent is connected."""
        self.refused: list[str] = []
        """Messages of answers that the arbiter rejected."""

    def rho(self, probe: schema.Probe) -> float | None:
        """The app's finish-time fairness with its present GPUs; None: the service's estimate."""
        return None

    def bid(self, offer: Offer) -> Bid:
        """The bid for an offer; by default the one that the service would make."""
        return Bid(rows=offer.rows)

    def award(self, award: schema.Award) -> None:
        """Called with the result of a decision in which the app bid."""

    def lease(self, lease: schema.Lease) -> None:
        """Called when one of the app's jobs gets, renews or loses a lease."""

    def run(self) -> str:
        """Serve the app until it ends, also through restarts of the arbiter; returns the reason: finished, replaced or
        silent.

        Raises
        ------
        InputError : there is no such app, or it has ended. Unavailable : the arbiter does not answer any more.
        """
        while True:
            try:
                for event in self._events():
                    if event.goodbye is not None:
                        return event.goodbye.reason
                    self.take(event)
            except Unavailable:
                pass
            # The stream ended without a goodbye: the arbiter restarts, or has ended.
            self.client.info()
            time.sleep(0.2)

    def _events(self) -> Iterator[schema.AgentEvent]:
        return cast("Iterator[schema.AgentEvent]", self.client.stream("Attend", schema.AppRef(app=str(self.app))))

    def take(self, event: schema.AgentEvent) -> None:
        """Answer one message of the arbiter."""
        if event.welcome is not None:
            self.number = event.welcome.app
        elif event.probe is not None:
            rho = self.rho(event.probe)
            # Without an answer, the decision would wait for the timeout of agents.
            rho = event.probe.app.rho if rho is None else rho
            self._answer(round=event.probe.round, rho=rho)
        elif event.offer is not None:
            try:
                bid = self.bid(Offer(event.offer))
            except ValidationError as error:  # of a row
                self.refused.append(next(faults_of(error, Row))[1])
                return
            rows = [vars(row) for row in bid.rows]
            self._answer(round=event.offer.round, jobs=list(bid.jobs), rho=bid.rho, rows=rows)
        elif event.award is not None:
            self.award(event.award)
        elif event.lease is not None:
            self.lease(event.lease)

    @property
    def _ref(self) -> str:
        return str(self.app if self.number is None else self.number)

    def _answer(self, **fields: Any) -> None:
        """Send an answer; the rejection of a wrong or late one affects this round alone."""
        try:
            refused = self._sent(made(schema.AgentAnswer, app=self._ref, **fields))
        except InputError as error:
            refused = str(error)
        if refused:
            self.refused.append(refused)

    def _sent(self, answer: schema.AgentAnswer) -> str:
        """Why an answer was refused. Those that agents of one client make during a request go together in the next."""
        unsent, refused = self.client.unsent, Future[str]()
        unsent.append((answer, refused))
        with self.client.sending:
            while not refused.done():
                together = [unsent.popleft() for _ in range(min(len(unsent), MOST_TOGETHER))]
                request = schema.AnswersRequest(answers=[one for one, _ in together])
                try:
                    reply = self.client.call("Answer", request)
                except BaseException as error:
                    for _, waits in together:
                        waits.set_exception(error)
                else:
                    for (_, waits), sentence in zip(together, reply.refused, strict=True):
                        waits.set_result(sentence)
        return refused.result()


__all__ = ["Agent", "Bid", "Offer", "Row"]
