"""Themis (NSDI'20): finish-time fairness by round-by-round partial-allocation auctions (§3.3, pseudocode 1).

1. Filter: of the apps with unmet demand, the fraction 1 - f with the worst current rho takes part. An app of weight w
   counts as w apps; where weights differ, apps whose share is less than a gang take part in turns (``policies.placement.turns``).
2. Bid: their agents price the offer (``Ask`` for the column ``bids``).
3. Clear: the proportionally fair allocation by weight, proven, and each winner's hidden payment (decision 0019).
4. Leftovers go to apps outside the auction, one gang at a time in random order, by weight where weights differ, then back to those
   who paid.

Differs from the paper where it leaves points open (decision 0003): payments are made in lease time by default, so that
no gang is broken and nothing is rounded.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

import numpy as np

from themis.errors import InputError, UnknownName
from themis.fairness.filtering import bidder_count, fraction, service_rank, worst_first
from themis.fairness.finish_time import FinishTime, Form
from themis.model.answers import Ask, Proof, Solved
from themis.model.bids import Bids
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Bool, Float, Int, Locality, Seconds
from themis.optimize.winners.auction_problem import Supply
from themis.optimize.winners.work_limits import Limits
from themis.policies.api import Cadence, Granularity, Renews, Workbench
from themis.policies.auction.clearing import clear
from themis.policies.auction.outcome import Outcome
from themis.policies.auction.payment import DRAWN, FORMS, pay
from themis.policies.placement.grants import Allocator, demand_of, least_waiting
from themis.policies.placement.packing import Counts, narrowest
from themis.policies.placement.turns import Turns
from themis.policies.tuning.app_agent import Agents, growing_job
from themis.policies.tuning.bid_rows import ExclusiveRow


class Waiting(StrEnum):
    """Value of an app without GPUs to itself (open point of the specification)."""

    SHARE = "share"
    UNBOUNDED = "unbounded"


UNSERVED = 40.0
"""Nats that make serving one app more outweigh any product of gains, with ``Waiting.UNBOUNDED``."""


NODES = 100
"""Branch-and-bound nodes of one integer program: past it, the auction keeps the best choice found and its proven gap."""

FREE = math.exp(-UNSERVED / 2)
"""Shares below this one belong to winners whose absence would let more apps be served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Themis:
    """The auction.

    Attributes
    ----------
    f : fairness knob in [0, 1]; the worst 1 - f of the apps bid, at least one (§6.4: 0.8).
    rho : the form of finish-time fairness that is bid and sorted by.
    payment : how the hidden payment is made: time, floor, randomised or lottery.
    waiting : rho of an app that holds and wins nothing: ``unbounded``, where first the number of served apps counts and
        then the product of gains over a 1/N share, or ``share``, finite (one lease of waiting, then its 1/N).
    decline : apps decline leftovers that do not strictly lower their rho: these go last, in the order of the core's
        leftovers; otherwise any waiting job takes them in turn.
    """

    f: float = 0.8
    rho: Form = Form.PAPER
    payment: str = "time"
    waiting: Waiting = Waiting.UNBOUNDED
    decline: bool = True

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving", "grows_elastic_jobs"})
    needs: ClassVar[frozenset[str]] = frozenset({"bids", "rho_said"})
    level: ClassVar[Granularity] = Granularity.APP

    def __post_init__(self) -> None:
        if not 0 <= self.f <= 1:
            raise InputError(f"policy themis: f is {self.f}, expected 0 (all apps bid) to 1 (only the worst one bids).")
        if self.payment not in FORMS:
            raise UnknownName("payment of policy themis", self.payment, FORMS)

    @property
    def pace(self) -> Cadence:
        """Decide whenever GPUs are free."""
        return Cadence(renews=Renews.SINGLE_ON_ONE_TYPE, apart=True)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """First ask for bids, then clear."""
        finish = FinishTime.of(snapshot, self.rho)
        reported = snapshot.rho_said
        own = finish.rho_by_weight
        rho = own if reported is None else np.where(np.isnan(reported), own, reported)
        if reported is None:
            queue = snapshot.once((type(self), self.waiting, self.rho), lambda columns: self._queue(columns, rho))
        else:
            queue = self._queue(snapshot, rho)
        if snapshot.weighted:
            waits = snapshot.once(Turns, Turns.of).waits(int(snapshot.free.sum()))[queue]
            queue = np.concatenate([queue[~waits], queue[waits]])
            most = max(len(queue) - int(waits.sum()), 1)
            count = min(bidder_count(snapshot.app_weight[queue], self.f), most)
        else:
            count = fraction(len(queue), self.f)
        bidders = np.sort(queue[:count])
        if snapshot.bids is None:
            return Solved(answer=Ask(column="bids", apps=bidders, offer=snapshot.free, form=self.rho.value))
        return _Round(self, snapshot, finish, rho, queue, bidders).solve(
            snapshot.bids, Limits(seconds=bench.seconds, nodes=NODES, allow_gap=True)
        )

    def _queue(self, s: Snapshot, rho: Float) -> Int:
        """Apps with unmet demand: those that wait without GPUs first, then the worst rho, ties by arrival and id."""
        unmet = np.logical_or.reduceat(s.job_held < s.job_gpus_max, s.job_ptr[:-1]).nonzero()[0]
        served = None
        if self.waiting is Waiting.UNBOUNDED:
            served = service_rank(s)[unmet]
        out: Int = unmet[worst_first(rho[unmet], s.app_arrival[unmet], s.app_id[unmet], served)]
        return out


def relative_weight(weight: Float) -> Float | None:
    """Weights over the largest of them, None where all are equal: only their ratios matter to an auction."""
    most = float(weight.max())
    return None if (weight == most).all() else weight / most


def _end(s: Snapshot, starving: bool) -> Seconds:
    """End of full leases given now.

    While a bidder's gang is larger than the offer they end with the last lease that runs, so that all GPUs are on offer together;
    no lease is cut short (decision 4).
    """
    full = s.now + s.lease_s
    running = s.job_until[s.job_held > 0]
    return min(full, max(float(running.max()), s.now + s.tick_s)) if starving and len(running) else full


class _Round:
    """One auction, from bids to grants."""

    def __init__(self, policy: Themis, s: Snapshot, finish: FinishTime, rho: Float, queue: Int, bidders: Int) -> None:
        self.policy, self.s, self.finish, self.queue, self.bidders = policy, s, finish, queue, bidders
        self.rho = rho
        """Rho by which apps were sorted: reported by their own agents, or computed from the snapshot."""
        self.allocator = Allocator(s)
        self.offered = self.allocator.left
        self.until = _end(s, starving=bool((s.app_gang_min[bidders] > self.offered).any()))
        self.returned: list[tuple[int, Counts, int]] = []
        """Gangs that payments took away: (app row, counts, job to extend)."""
        self.leftover = np.zeros(s.apps, dtype=np.int64)

    @cached_property
    def rng(self) -> np.random.Generator:
        """All random draws of the round; most rounds draw nothing, and seeding takes as long as a small auction."""
        return np.random.default_rng((self.s.seed, self.s.round))

    def solve(self, bids: Bids, limits: Limits) -> Solved:
        s = self.s
        offer = Supply(free=s.free, machine_rack=s.machine_rack, machine_type=s.machine_type)
        weight = relative_weight(s.app_weight[self.bidders])
        if weight is not None:
            bids = bids.weighted(weight)
        if self.policy.waiting is Waiting.UNBOUNDED:
            # Sets with equally many served apps are compared by each app's gain over its 1/N share: V has no scale of
            # its own.
            bids = bids.lowered(np.where(s.app_held[self.bidders] == 0, UNSERVED, 0.0))
        unbounded = self.policy.waiting is Waiting.UNBOUNDED
        outcome = clear(offer, bids, limits, forgiven=FREE if unbounded else 0.0, weight=weight)
        kept = self._kept(outcome).tolist()
        won: dict[int, list[tuple[int, int]]] = {}
        for b, n, gpus in zip(outcome.win_bidder.tolist(), outcome.win_machine.tolist(), outcome.win_gpus.tolist()):
            won.setdefault(b, []).append((n, gpus))
        for b, seats in won.items():
            self._pay_out(b, seats, bids.gangs(int(outcome.row[b])), kept[b])
        self._leftovers()
        return Solved(answer=replace(self.allocator.grant(), declined=self._declined()), proof=self._proof(outcome))

    def _declined(self) -> Int:
        """Ids of apps with external agents that answered: they want no more than they bid for."""
        reported = self.s.rho_said
        return np.zeros(0, dtype=np.int64) if reported is None else self.s.app_id[~np.isnan(reported)]

    def _pay_out(self, b: int, seats: list[tuple[int, int]], wanted: dict[int, int], kept_share: float) -> None:
        """Grant the winner the gangs that it keeps of ``wanted``, {size: count}, and return the rest; ``seats`` :
        (machine, GPUs) won.
        """
        a = int(self.bidders[b])
        counts = np.array(list(wanted.values()), dtype=np.int64)
        rng = self.rng if self.policy.payment in DRAWN else None
        paid = pay(self.policy.payment, kept_share, counts, self.until - self.s.now, rng)
        extend = NONE if self._has_waiting(a) else growing_job(self.s, a)
        cut = self._cut(seats, [size for size, count in wanted.items() for _ in range(count)])
        for count, kept in zip(counts.tolist(), paid.gangs.tolist()):
            for i, gang in enumerate(cut[:count]):
                if i < kept:
                    self.allocator.give(a, gang, self.s.now + paid.lease, extend)
                else:
                    self.returned.append((a, gang, extend))
            del cut[:count]

    def _cut(self, seats: list[tuple[int, int]], sizes: list[int]) -> list[Counts]:
        """The seats are the app's own now: its gangs are cut from them as narrowly as they allow."""
        if len(seats) == len(sizes) == 1:
            return [tuple(seats)]
        won, out = np.zeros_like(self.s.free), []
        won[[n for n, _ in seats]] = [gpus for _, gpus in seats]
        for size in sizes:
            found = narrowest(won, self.s.machine_rack, size, won > 0)
            assert found is not None
            for n, c in found[0]:
                won[n] -= c
            out.append(found[0])
        return out

    def _kept(self, outcome: Outcome) -> Float:
        """c_a of every bidder. With ``Waiting.UNBOUNDED`` products over different sets of served apps do not compare.

        So a winner without whom more apps would be served pays nothing, as in the usual extension of maximum Nash
        welfare; otherwise the same ratio as ever, over the same set.
        """
        return np.where(self._free_of_charge(outcome), 1.0, outcome.kept)

    def _free_of_charge(self, outcome: Outcome) -> Bool:
        unbounded = self.policy.waiting is Waiting.UNBOUNDED
        free: Bool = (np.exp(-outcome.cost) < FREE) & unbounded
        return free

    def _has_waiting(self, a: int) -> bool:
        held = self.s.job_held[self.s.job_ptr.item(a) : self.s.job_ptr.item(a + 1)]
        return 0 in held.tolist()

    def _leftovers(self) -> None:
        """Leftovers go to apps outside the auction; then payments go back, which refunds them; then to bidders without
        GPUs; then to apps with more waiting jobs.
        """
        self._allocate(np.sort(self.queue[len(self.bidders) :]))
        for a, counts, extend in self.returned:
            if all(self.allocator.free[n] >= c for n, c in counts):
                self.allocator.give(a, counts, self.until, extend)
                self.leftover[a] += sum(c for _, c in counts)
        if self.allocator.left:
            served = np.zeros(self.s.apps, dtype=bool)
            served[self.allocator.served()] = True
            self._allocate(self.bidders[~served[self.bidders]])
        if self.allocator.left:
            self._deal_on()

    def _deal_on(self) -> None:
        """Give apps with an allocation more gangs for their waiting jobs, one smallest gang at a time.

        Bids price all gangs of a row at one span, and what an app would have taken at first may have found no room.
        """
        s = self.s
        if s.jobs == s.apps:
            return  # no app has another job
        waiting = np.add.reduceat(s.job_held == 0, s.job_ptr[:-1], dtype=np.int64)
        if waiting.max() < 2:
            return
        agents = Agents.of(s, self.policy.rho)
        # An external agent's bid is its demand.
        ours = np.ones(s.apps, dtype=bool) if s.rho_said is None else np.isnan(s.rho_said)
        more = {a: given for a, given in self.allocator.given().items() if waiting[a] > len(given) and ours[a]}
        for a in self.rng.permutation(sorted(more)).tolist() if more else ():
            given = more[a]
            for size in demand_of(s, a).low[len(given) :]:
                found = self.allocator.best_place(a, size) if size <= self.allocator.left else None
                if found is None:
                    continue
                gang = (size, int(s.machine_type[found[0][0][0]]), int(found[1]))
                if agents.gains(a, given, gang) and self.allocator.put(a, size, self.until):
                    self.leftover[a] += size
                    given.append(gang)

    def _allocate(self, apps: Int) -> None:
        """One gang at a time, apps in random order."""
        if not self.allocator.left or not len(apps):
            return
        agents = Agents.of(self.s, self.policy.rho)
        takes: dict[int, list[int]] = {}
        least = self._least
        shuffled = self.rng.permutation(apps) if len(apps) > 1 else apps  # of one there is nothing to draw
        order = [a for a in shuffled.tolist() if least[a] <= self.allocator.left]
        if self.s.weighted and len(order) > 1:
            self._draw(agents, order, takes)
            return
        while self.allocator.left and order:
            again = []
            for a in order:
                if not self.allocator.left:
                    break
                if least[a] > self.allocator.left:
                    continue
                if a not in takes:
                    takes[a] = self._takes(agents, a)
                if takes[a] and self._one(a, takes[a].pop(0)):
                    again.append(a)
            order = again

    def _draw(self, agents: Agents, order: list[int], takes: dict[int, list[int]]) -> None:
        """One gang at a time to an app drawn with the chance of its weight (exponential clocks)."""
        weight = self.s.app_weight
        clock = [(float(self.rng.exponential()) / float(weight[a]), a) for a in order]
        heapq.heapify(clock)
        while self.allocator.left and clock:
            time, a = heapq.heappop(clock)
            if self._least[a] > self.allocator.left:
                continue
            if a not in takes:
                takes[a] = self._takes(agents, a)
            if takes[a] and self._one(a, takes[a].pop(0)):
                heapq.heappush(clock, (time + float(self.rng.exponential()) / float(weight[a]), a))

    @cached_property
    def _least(self) -> list[int]:
        out: list[int] = least_waiting(self.s).tolist()
        return out

    def _takes(self, agents: Agents, a: int) -> list[int]:
        """Gangs that the app accepts, in order."""
        if not self.policy.decline and self._has_waiting(a):
            return demand_of(self.s, a).low
        gangs = agents.would_take(a, self.allocator.free)
        if gangs is not None:
            return gangs
        best = agents.best(a, self.allocator.free)
        if best is not None:
            self._extend(a, best)
        return []

    def _one(self, a: int, gang: int) -> bool:
        allocated = self.allocator.stay_or_put(a, gang, self.until)
        if allocated:
            self.leftover[a] += gang
        return allocated

    def _extend(self, a: int, row: ExclusiveRow) -> None:
        """Leftovers that enlarge a running job go where its agent priced them."""
        s = self.s
        near = (s.machine_rack >= 0, s.machine_rack == row.anchor, s.machine_rack >= 0)[row.span - 1]
        if row.span == Locality.MACHINE:
            near = np.arange(len(s.free)) == row.anchor
        found = narrowest(self.allocator.free, s.machine_rack, row.gpus, near & (s.machine_type == row.gpu_type))
        if found is not None:
            self.allocator.give(a, found[0], self.until, growing_job(s, a))
            self.leftover[a] += row.gpus

    def _proof(self, outcome: Outcome) -> Proof:
        s, rows, bidders = self.s, self.queue, len(self.bidders)
        at = np.searchsorted(self.bidders, rows[:bidders])
        gpus = np.bincount(outcome.win_bidder, weights=outcome.win_gpus, minlength=bidders).astype(np.int64)
        bid, won = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=np.int64)
        bid[:bidders], won[:bidders] = True, gpus[at]
        kept, low, high = np.ones((3, len(rows)))
        if outcome.method != "all":  # there no app pays
            pays = ~self._free_of_charge(outcome)[at]
            for column, share in ((kept, outcome.kept), (low, outcome.kept_low), (high, outcome.kept_high)):
                column[:bidders] = np.where(pays, share[at], 1.0)
        return Proof(
            objective=outcome.objective,
            bound=outcome.bound,
            method=outcome.method,
            offered=self.offered,
            app=s.app_id[rows],
            rho=self.rho[rows],
            bid=bid,
            won=won,
            kept=kept,
            kept_low=low,
            kept_high=high,
            leftover=self.leftover[rows],
        )
