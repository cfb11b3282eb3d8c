"""``themis.Agent``: bid for an app yourself, in place of the service's own agent (docs/agents.md).

class Patient(Agent):
    def bid(self, offer: Offer) -> Bid:
        return Bid(rows=[row for row in offer.rows if sum(row.gangs) <= 4])

with Client() as client:
    Patient(client, "my-sweep").run()
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from themis.client import themis_pb2 as pb
from themis.client.client import Client, Unavailable
from themis.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One wish: ``gangs`` of so many GPUs, each for one job, beside what is held, would bring rho to ``rho``.

    Attributes
    ----------
    span : how far each gang may reach: ``machine``, ``rack`` or ``anywhere``.
    gpu_type : of all its GPUs; may be left out where there is one type.
    anchor : the node (span ``machine``) or rack (span ``rack``) that all gangs must lie in; empty for any.
    """

    gangs: Sequence[int]
    rho: float
    span: str = "anywhere"
    gpu_type: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """At most 64 rows, of which the app gets one or none.

    Attributes
    ----------
    rho : of winning nothing; left out, it is what ``Agent.rho`` said, or the service's estimate.
    jobs : which waiting jobs should get gangs first, from now on; positions in the app.
    """

    rows: Sequence[Row] = ()
    rho: float | None = None
    jobs: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """GPUs that several apps are offered; ``message`` is the whole of it, as ``themis.proto`` describes it."""

    message: pb.Offer

    @property
    def app(self) -> pb.Picture:
        """The app as the service sees it: elapsed and ideal seconds, rho, jobs with what is left of them."""
        return self.message.app

    @property
    def gpus(self) -> int:
        """GPUs on offer in all."""
        return sum(part.gpus for part in self.message.gpus)

    @property
    def rows(self) -> list[Row]:
        """The bid that the service would make."""
        return [
            Row(gangs=tuple(r.gangs), rho=r.rho, span=r.span, gpu_type=r.gpu_type, anchor=r.anchor)
            for r in self.message.rows
        ]

    def rho_after(self, seconds: float) -> float:
        """Finish-time fairness if the app needed so many seconds from now on (Themis eq. 1)."""
        return (self.app.elapsed + seconds) / self.app.t_id


class Agent:
    """An app's agent; override ``rho`` and ``bid``, and what else you want to hear of.

    Parameters
    ----------
    client : a connection. ``app`` : number or name of the app.
    """

    def __init__(self, client: Client, app: int | str) -> None:
        self.client, self.app = client, app
        self.number: int | None = None
        """Of the app; known once the arbiter welcomed the agent."""
        self.refused: list[str] = []
        """Sentences in which the arbiter refused answers."""

    def rho(self, probe: pb.Probe) -> float | None:
        """The app's finish-time fairness with the GPUs that it holds; None leaves it to the service."""
        return None

    def bid(self, offer: Offer) -> Bid:
        """What the app would take of an offer; by default what the service would bid for it."""
        return Bid(rows=offer.rows)

    def award(self, award: pb.Award) -> None:
        """How the decision went in which the app bid."""

    def lease(self, lease: pb.Lease) -> None:
        """What one of the app's jobs got or lost."""

    def run(self) -> str:
        """Attend until the app is over, also through restarts of the arbiter; returns why it ended: over, replaced or silent.

        Raises
        ------
        InputError : there is no such app, or it is over. Unavailable : no arbiter answers any more.
        """
        while True:
            try:
                for event in self._events():
                    if event.WhichOneof("kind") == "goodbye":
                        return event.goodbye.reason
                    self.take(event)
            except Unavailable:
                pass
            # The stream broke without a goodbye: the arbiter starts anew, or is gone for good.
            self.client.info()
            time.sleep(0.2)

    def _events(self) -> Iterator[pb.AgentEvent]:
        return cast("Iterator[pb.AgentEvent]", self.client.stream("Attend", pb.AppRef(app=str(self.app))))

    def take(self, event: pb.AgentEvent) -> None:
        """Answer one message."""
        match event.WhichOneof("kind"):
            case "welcome":
                self.number = event.welcome.app
            case "probe":
                rho = self.rho(event.probe)
                # Silence would keep everybody waiting for as long as agents may take.
                rho = event.probe.app.rho if rho is None else rho
                self._answer("Estimate", pb.EstimateRequest(app=self._ref, round=event.probe.round, rho=rho))
            case "offer":
                self._answer("Bid", self._request(event.offer, self.bid(Offer(event.offer))))
            case "award":
                self.award(event.award)
            case "lease":
                self.lease(event.lease)

    @property
    def _ref(self) -> str:
        return str(self.app if self.number is None else self.number)

    def _request(self, offer: pb.Offer, bid: Bid) -> pb.BidRequest:
        request = pb.BidRequest(app=self._ref, round=offer.round, jobs=bid.jobs, rows=[
            pb.BidRow(gangs=row.gangs, span=row.span, gpu_type=row.gpu_type, anchor=row.anchor, rho=row.rho)
            for row in bid.rows
        ])  # fmt: skip
        if bid.rho is not None:
            request.rho = bid.rho
        return request

    def _answer(self, method: str, request: Any) -> None:
        """An answer that is refused, because it is wrong or late, costs this round only."""
        try:
            self.client.call(method, request)
        except InputError as error:
            self.refused.append(str(error))


__all__ = ["Agent", "Bid", "Offer", "Row"]
