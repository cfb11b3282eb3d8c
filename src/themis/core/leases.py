"""Placement -> commands: the difference to what is held, and grants that wait until the previous gang has released its GPUs.

A gang that was sent ``Stop`` must report ``JobStopped`` before its GPUs, or its job's next attempt, serve again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeAlias

from themis.core import least_lease, regimes
from themis.core.job_lifecycle import RELEASE, JobChange
from themis.core.placed_gangs import Placed
from themis.core.state import EPS, State
from themis.core.tables import ENDED
from themis.errors import InvariantBroken
from themis.model.events import Command, Grant, JobStopped, Renew, Revoke
from themis.model.units import NONE, Seconds, next_tick

Freed: TypeAlias = tuple[tuple[int, ...], Seconds, int]
"""GPUs that a job held, the end of its lease, and the seat."""

_number = itemgetter(0)


class Leases:
    """Changes who holds what; ``wake`` asks for a ``Wake`` at a lease's end."""

    def __init__(self, state: State, wake: Callable[[Seconds], None]) -> None:
        self.state, self.wake = state, wake
        self.out: list[Command] = []
        """Commands of the current step; the scheduler's list."""
        self.held_back: dict[int, tuple[int, Grant]] = {}
        """By job, in order of number: grants that wait until the GPUs, or the job's last attempt, are released."""
        self.held = 0
        self.awaited: dict[int, list[int]] = {}
        """Jobs whose grants wait, by GPU."""
        self.stopping: dict[int, Seconds] = {}
        """Jobs whose gang was asked to stop, with the time of the request."""

    def change(self, placed: Sequence[Placed], by: Seconds, tick_s: Seconds = 0.0) -> None:
        """Leases that end ``by`` then go first, then renewals, then new gangs.

        ``tick_s`` : new leases end on its multiples; 0: as placed.
        """
        s = self.state
        if tick_s or by < s.now:
            end = {until: self._until(until, by, tick_s) for until in {p.until for p in placed}}
            placed = [Placed(p.job, p.gpus, p.seat, end[p.until]) for p in placed]
        expiring, holds = s.ends.by(by + EPS), s.job_gpus
        renewals: dict[Seconds, list[int]] = {}
        fresh: list[Placed] = []
        renewed, wanted, seats = set[int](), set[int](), s.job_seat
        for p in placed:
            j = p.job
            if holds.get(j) == p.gpus and seats[j] == p.seat:
                renewals.setdefault(p.until, []).append(j)
                renewed.add(j)
            else:
                fresh.append(p)
                wanted.add(j)
        over = {*expiring, *(j for j in wanted if j in holds)} - renewed
        for j in sorted(over):
            self.revoke(j, "moved" if j in wanted else "expired", RELEASE)
        together = len(renewals) == 1 and renewed.issubset(expiring)
        for end_s, jobs in renewals.items():
            if together:
                s.renew_all(jobs, by + EPS, end_s)
            else:
                for j in jobs:
                    s.renew(j, end_s)
            self.out.append(Renew(jobs=tuple(jobs), until=end_s))
        for p in fresh:
            if p.job in holds:
                raise InvariantBroken(f"job {p.job} was placed twice in one decision.")
            self.grant(p)

    def renew(self, jobs: Sequence[int], until: Seconds, by: Seconds, tick_s: Seconds) -> None:
        """``change`` where exactly the jobs whose leases end ``by`` then keep their GPUs."""
        if jobs:
            until = self._until(until, by, tick_s)
            self.state.renew_all(jobs, by + EPS, until)
            self.out.append(Renew(jobs=tuple(jobs), until=until))

    def _until(self, until: Seconds, by: Seconds, tick_s: Seconds) -> Seconds:
        now = self.state.now
        if until <= now:
            until += now - by  # the answer took longer than the lease that it gives
        return max(next_tick(until, tick_s), now + EPS) if tick_s else until

    def revoke(self, j: int, cause: str, change: JobChange) -> Freed:
        """Revoke a lease because of this change; returns the job's GPUs. A started gang must still release them."""
        s = self.state
        t = s.jobs.one
        freed = s.job_gpus[j], t.until[j], s.job_seat[j]
        s.release(j, change)
        if j in self.held_back:
            self._forget(j)
            return freed
        self.stopping[j] = s.now
        self.out.append(Revoke(app=t.app[j], job=j, attempt=t.attempt[j], cause=cause))
        return freed

    def grant(self, placed: Placed) -> None:
        """Lease the GPUs to the job; its gang starts as soon as no other gang occupies them."""
        s, t, j = self.state, self.state.jobs.one, placed.job
        locality = int(s.locality(placed.gpus))
        s.lease(j, placed.gpus, placed.seat, placed.until, locality)
        grant = Grant(
            app=t.app[j],
            job=j,
            attempt=t.attempt[j],
            gpus=placed.gpus,
            seat=placed.seat,
            until=placed.until,
            locality=locality,
            target=t.target[j],
            score=1.0 / s.worth(t.config[j], t.gpu_type[j], len(placed.gpus), locality)[1],
        )
        self.wake(placed.until)
        if self._clear(grant):
            self._issue(grant)
            return
        self.held += 1
        self.held_back[j] = self.held, grant
        for g in grant.gpus:
            self.awaited.setdefault(g, []).append(j)

    def extend(self, j: int, until: Seconds) -> None:
        """Extend a lease until then, if that is later than its end."""
        if until > self.state.jobs.one.until[j]:
            self.state.renew(j, until)
            self.out.append(Renew(jobs=(j,), until=until))
            self.wake(until)

    def stopped(self, event: JobStopped) -> bool:
        """A gang released its GPUs; send the grants that waited for them. Returns whether it stopped later than requested."""
        s, j = self.state, event.job
        since = self.stopping.pop(j, None)
        if since is None:
            if not s.runs(j, event.attempt):
                return False
            # It was not asked to stop: the gang died, or ended to be run again. It waits for another lease.
            s.release(j, RELEASE)
            cause = "own" if event.own else "failed"
            self.out.append(Revoke(app=int(s.jobs.app[j]), job=j, attempt=event.attempt, cause=cause))
        else:
            self.out += least_lease.stopped(s, j, event.steps)
        left = s.vacate(j)
        if s.jobs.one.status[j] != ENDED and s.jobs.one.app[j] not in s.quarantined_apps:
            regimes.report(s, j, event.steps)
        if self.held_back:
            waits = {w for g in left if g in self.awaited for w in self.awaited[g]}
            if j in self.held_back:
                waits.add(j)
            if waits:
                self._let_in(waits)
        return since is None or since < s.now

    def _let_in(self, jobs: set[int]) -> None:
        """Grants of these jobs whose GPUs are free now, in the order of the grants."""
        if len(jobs) == 1:
            (j,) = jobs
            grant = self.held_back[j][1]
            if self._clear(grant):
                self._forget(j)
                self._issue(grant)
            return
        waited = [grant for _, grant in sorted((self.held_back[j] for j in jobs), key=_number)]
        for grant in [grant for grant in waited if self._clear(grant)]:
            self._forget(grant.job)
            self._issue(grant)

    def _clear(self, grant: Grant) -> bool:
        """True if no gang is still stopping on these GPUs, and this job is not stopping elsewhere."""
        if grant.job in self.stopping:
            return False
        on, seat = self.state.occupied_by, grant.seat
        here, beside, neighbour = on[seat], on[1 - seat], self.state.leased_to[1 - seat]
        for g in grant.gpus:
            other = beside[g]
            if here[g] != NONE or (other != NONE and other != neighbour[g]):
                return False
        return True

    def _issue(self, grant: Grant) -> None:
        self.state.occupy(grant.job, grant.gpus, grant.seat)
        least_lease.granted(self.state, grant.job)
        self.out.append(grant)

    def _forget(self, j: int) -> None:
        """A grant is held back no longer."""
        for g in self.held_back.pop(j)[1].gpus:
            self.awaited[g].remove(j)
            if not self.awaited[g]:
                del self.awaited[g]
