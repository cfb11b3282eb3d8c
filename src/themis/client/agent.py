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
from dataclasses import asdict, dataclass
from typing import Any, cast

from themis.client.calls import made
from themis.client.client import Client, Unavailable
from themis.errors import InputError
from themis.schema import messages as schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a bid: the app's finish-time fairness if it won these gangs in addition to its GPUs.

    Attributes
    ----------
    gangs : GPUs of each gang; each gang is for one job.
    rho : the finish-time fairness, above 0.
    span : locality of each gang: ``machine``, ``rack`` or ``anywhere``.
    gpu_type : type of all GPUs; may be omitted if the cluster has one type.
    anchor : the node (span ``machine``) or rack (span ``rack``) of all gangs; empty for any.
    """

    gangs: Sequence[int]
    rho: float
    span: str = "anywhere"
    gpu_type: str = ""
    anchor: str = ""


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
        return [
            Row(gangs=tuple(r.gangs), rho=r.rho, span=r.span, gpu_type=r.gpu_type, anchor=r.anchor)
            for r in self.message.rows
        ]

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
            self._answer("Estimate", schema.EstimateRequest, app=self._ref, round=event.probe.round, rho=rho)
        elif event.offer is not None:
            bid = self.bid(Offer(event.offer))
            rows = [asdict(row) for row in bid.rows]
            given = {"app": self._ref, "round": event.offer.round, "jobs": list(bid.jobs), "rho": bid.rho, "rows": rows}
            self._answer("Bid", schema.BidRequest, **given)
        elif event.award is not None:
            self.award(event.award)
        elif event.lease is not None:
            self.lease(event.lease)

    @property
    def _ref(self) -> str:
        return str(self.app if self.number is None else self.number)

    def _answer(self, method: str, message: type[schema.Request], **fields: Any) -> None:
        """Send an answer; the rejection of a wrong or late one affects this round alone."""
        try:
            self.client.call(method, made(message, **fields))
        except InputError as error:
            self.refused.append(str(error))


__all__ = ["Agent", "Bid", "Offer", "Row"]
