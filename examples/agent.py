"""An app's own agent: it wants the app's shortest jobs first, each on its fewest GPUs. Run: python examples/agent.py APP

The service asks agents for bids under the policy `themis` only: themis up --policy themis
"""

from __future__ import annotations

import sys

from themis import Agent, Client
from themis.client.agent import Bid, Offer, Row


class ShortestFirst(Agent):
    """Bids for as many of its shortest waiting jobs as the offer has room for."""

    def bid(self, offer: Offer) -> Bid:
        """A row for each number of jobs that could begin now."""
        waiting = sorted((job for job in offer.app.jobs if not job.held), key=lambda job: job.left)
        work = sum(job.left for job in offer.app.jobs)
        held = sum(job.held for job in offer.app.jobs)
        rows: list[Row] = []
        for count in range(1, len(waiting) + 1):
            gangs = [job.gpus_min for job in waiting[:count]]
            rho = offer.rho_after(work / (held + sum(gangs)))
            if sum(gangs) <= offer.gpus and rho < offer.app.rho:
                rows.append(Row(gangs=gangs, rho=rho))
        return Bid(rows=rows[:64], jobs=[job.job for job in waiting])


if __name__ == "__main__":
    with Client() as client:
        print(ShortestFirst(client, sys.argv[1]).run())
