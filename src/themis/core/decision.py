"""The decision: from events to leases of GPUs. ``Decider.decide`` is the whole of it, step by step.

Within one instant the events come first; then ``settle`` makes one decision on everything that is free. Where the policy has
to be asked, the decision stops (``Solve``), and goes on with the answer (``Allocated``), at the same instant in a simulation
and later in a live service.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from themis.core import take_snapshot as snapshots
from themis.core.conserve import left_over
from themis.core.intend import adopt, in_force, intend
from themis.core.leases import Leases
from themis.core.least_lease import long_enough
from themis.core.offer import FreeGpus
from themis.core.place import place
from themis.core.placed_gangs import Intent, Placed, WantedGang
from themis.core.quota_limits import within_quotas
from themis.core.state import EPS, State
from themis.core.uncontested import stands, uncontested
from themis.model.answers import Answer, Ask, Renewal
from themis.model.events import Allocated, BidsCollected, CollectBids, Command, Forced, Solve, WakeAt
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Seconds, round_end
from themis.policies.api import Cadence


class Answered(NamedTuple):
    """The policy's answer and the GPUs to carry it out on; ``stale`` : something happened while the policy was asked."""

    answer: Answer
    offer: FreeGpus
    stale: bool


class Decider:
    """Decisions on a state; ``out`` collects the commands of the present step."""

    def __init__(self, state: State, cadence: Cadence, needs: frozenset[str]) -> None:
        self.state, self.pace, self.needs = state, cadence, needs
        self.out: list[Command] = []
        self.leases = Leases(state, self._wake)
        self.solving: Snapshot | Forced | None = None
        self.offer: FreeGpus | None = None
        """GPUs on offer in ``solving``; both are valid while no event but the answers to it arrives."""
        self.memo = snapshots.Memo()
        self.wakes: set[Seconds] = set()
        """Instants for which a ``Wake`` is already on its way."""

    def decide(self, answered: Answered | None = None) -> None:
        """Make one decision. It begins at step 1 when an instant is over; the policy's answer resumes it at step 5."""
        s, pace = self.state, self.pace

        # 1. Take in. The events of this instant are in the state; a decision under way and a round without backfilling go first.
        if answered is None and (self.solving is not None or self._waits_for_round()):
            return

        # 2. Offer: GPUs that are free or whose leases end by now, and the jobs that could use them.
        offer = FreeGpus(state=s, by=s.now) if answered is None else answered.offer

        # 3. Snapshot, unless an earlier answer decides: the plan's next round, or time shares that are still valid.
        answer = self._in_force(offer) if answered is None else answered.answer
        if answered is None and not (offer.free.any() and offer.wanted()):
            return

        # 4. Policy. It is asked with the snapshot, unless nothing is left to decide; the answer enters at step 5.
        if answer is None:
            self._ask(offer)
            return

        # 5. Intend: gangs that are to run, until when, in order of precedence. From here on the kind of answer does not matter.
        intent = intend(s, answer, offer, pace)
        if intent.renewed is not None:
            self.leases.renew(offer.ending, intent.renewed, offer.by, intent.tick)
            return

        # 6. Place: exact GPUs and exact jobs. Gangs that can stay do not move.
        placed = place(s, intent.gangs, offer)

        # 7. Conserve: leftover GPUs go to the gangs that already run there, then to jobs that wait.
        if pace.spare and s.settings.renew_idle:
            placed += left_over(s, intent, offer, placed, stale=answered is not None and answered.stale)

        # 8. Limit: only what quotas allow; no lease is shorter than a start.
        allowed = long_enough(s, within_quotas(s, placed))

        # 9. Lease: the difference to what is held, as Revoke, Renew and Grant.
        self._charge_rounds(intent.gangs, allowed)
        self.leases.change(allowed, offer.by, intent.tick)

        # 10. Look again: when the answer says so, and immediately if a quota left GPUs to others.
        self._look_again(intent, allowed, cut=len(allowed) < len(placed))

    # ---- start and continuation of a decision ------------------------------------------------------------------------

    def settle(self) -> None:
        """End the instant: if GPUs are free and any app could use them, make one decision on all of them."""
        s = self.state
        self.wakes = {time for time in self.wakes if time > s.now}
        s.delayed = {j for j in s.delayed if s.jobs.ready[j] > s.now + EPS}
        self.decide()
        self._wake_for_expiry()

    def allocated(self, event: Allocated) -> None:
        """Handle the policy's answer, or its request for bids."""
        s = self.state
        if isinstance(event.solved.answer, Ask):
            view = self.solving if isinstance(self.solving, Snapshot) else snapshots.take(s, pace=self.pace)
            self.out.append(CollectBids(version=event.version, ask=event.solved.answer, snapshot=view))
            return
        self.decide(self._answered(event.solved.answer))
        s.round += 1
        self._wake_for_expiry()

    def collected(self, event: BidsCollected) -> None:
        """The bids are there: the policy is asked again."""
        if isinstance(self.solving, Snapshot) and event.version == self.solving.version:
            self._solve(self.solving.with_bids(event.bids))

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _waits_for_round(self) -> bool:
        """Without backfilling, what falls free in mid-round waits for the round's end."""
        s, pace = self.state, self.pace
        if pace.backfill or pace.round_s is None:
            return False
        end = round_end(s.now, pace.round_s, 0.0 if pace.clock else s.origin)
        if end - s.now > pace.round_s - EPS:
            return False
        self._wake(end)
        return True

    def _in_force(self, offer: FreeGpus) -> Answer | None:
        answer, look = in_force(self.state, self.pace, offer)
        if look is not None:
            self._wake(look)
        return answer

    def _snapshot(self, offer: FreeGpus) -> Snapshot:
        """The state for the policy; forecasts that had to be computed again for it are recorded."""
        s = self.state
        view, renewed = snapshots.take_renewing(
            s, needs=self.needs, pace=self.pace, free=offer.free, present=offer.present, memo=self.memo
        )
        for a, finish in renewed.items():
            s.apps.finish[a], s.apps.stale[a] = finish, 0
        return view

    def _ask(self, offer: FreeGpus) -> None:
        s, self.offer = self.state, offer
        s.plan_dropped = False
        forced = uncontested(s, self.pace, offer)
        if forced is None:
            self._solve(self._snapshot(offer))
        else:
            self.solving = Forced(version=s.version, now=s.now, solved=forced)
            self.out.append(self.solving)

    def _solve(self, view: Snapshot) -> None:
        self.solving = view
        self.out.append(Solve(version=view.version, snapshot=view))

    def _answered(self, answer: Answer) -> Answered:
        """Put the policy's answer in force. It is stale if time passed while the solve ran (live only).

        Of a stale answer, what still fits is placed. Leases that ran out since were not on offer; they, and whatever else
        happened, are for the next decision.
        """
        s = self.state
        solving, self.solving = self.solving, None
        asked, by = (s.version, s.now) if solving is None else (solving.version, solving.now)
        stale = asked != s.version or self._ran_out(by)
        if stale:
            self._wake(s.now)
        adopt(s, answer, asked)
        offer, self.offer = self.offer, None
        # If the answer came at the same instant, nothing happened since: it is the same offer.
        still = offer is not None and solving is not None and offer.by == by == s.now and asked == s.version
        if offer is None or not still:
            return Answered(answer, FreeGpus(state=s, by=by), stale)
        if isinstance(answer, Renewal) and not offer.stands:
            # Quotas that were lowered cut what is renewed.
            offer.stands = answer.new is None and not s.quotas and stands(s, offer)
        return Answered(answer, offer, stale)

    def _ran_out(self, since: Seconds) -> bool:
        """True if leases expired after ``since`` on which no decision was made yet."""
        if since == self.state.now:
            return False
        return self.state.ends.first(since + EPS) <= self.state.now + EPS

    def _charge_rounds(self, gangs: list[WantedGang], placed: list[Placed]) -> None:
        """Gangs of time shares that found room count as served until their lease ends: with the round, or later."""
        s = self.state
        there = {p.job: p for p in placed}
        for gang in gangs:
            if gang.combo == NONE or gang.job not in there:
                continue
            lease = there[gang.job]
            seconds = max(gang.until, lease.until) - s.now
            if gang.worth:
                s.rounds.make_up(gang.combo, seconds, gang.worth)
            else:
                near = gang.near is not None and len({s.machine_of[g] for g in lease.gpus}) == 1
                s.rounds.add_received(gang.combo, gang.gpu_type, seconds, near=near)

    def _look_again(self, intent: Intent, placed: list[Placed], *, cut: bool) -> None:
        """``cut`` : a quota forbade gangs. A user who has reached it takes no part in the next decision, so this ends."""
        if intent.next_look is not None and not (placed and intent.if_none_placed):
            self._wake(intent.next_look)
        if placed and cut:
            self.state.version += 1
            self._wake(self.state.now)

    # ---- wakes -------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Schedule a decision after an event that may free or request GPUs, together with the events until then."""
        now, due = self.state.now, self.state.now + self.state.settings.gather_s
        self.state.version += 1
        if not any(now <= time <= due for time in self.wakes):
            self.wakes.add(due)
            self.out.append(WakeAt(time=due))

    def _wake(self, time: Seconds) -> None:
        if time not in self.wakes:
            self.wakes.add(time)
            self.out.append(WakeAt(time=time))

    def _wake_for_expiry(self) -> None:
        if (first := self.state.ends.first(self.state.now + EPS)) < math.inf:
            self._wake(first)
