"""The winners' machines: renewals first, best fit, large free blocks kept whole. Deterministic.

A bidder's claim on a machine is what it held there until now. Others are kept off a claim while they have a choice,
so that a winner finds its own GPUs and moves nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from themis.errors import NotSolved
from themis.optimize.winners.auction_problem import IN_RACK, ON_MACHINE, WinnerProblem
from themis.optimize.winners.gang_packing import Floor, Packer, PackingGang

Grants = dict[tuple[int, int], int]
"""GPUs by (bidder, machine)."""

Claims = Mapping[int, Mapping[int, int]]
"""GPUs that each winner held, by bidder and machine; empty where no winner held any."""


class Winner(NamedTuple):
    """A winning row, as plain numbers: see ``WinnerProblem``."""

    who: int
    kind: int
    place: int
    gpus: int


def assign(problem: WinnerProblem, packer: Packer, rows: Sequence[int], places: Sequence[int] | None = None) -> Grants:
    """Assign machines to winning `rows`.

    Parameters
    ----------
    problem, rows
        Rows that can be packed together.
    packer
        Packing questions about the problem, with its limit of steps.
    places
        Machine or rack of each gang of `packer.gangs(rows)`, when known.

    Raises
    ------
    NotSolved
        When no packing is found within the steps.
    """
    grants: Grants = {}
    claims = _claims(problem, rows)
    for kind in sorted({int(problem.type[r]) for r in rows}):
        mine = [r for r in rows if problem.type[r] == kind]
        floor = packer.floor(mine, kind)
        if floor is None:
            raise NotSolved("winning rows overlap on an anchored machine or rack")
        winners = {
            r: Winner(*(int(x[r]) for x in (problem.who, problem.kind, problem.place, problem.gpus))) for r in mine
        }
        table = Assignment(winners, floor, claims)
        gangs = packer.gangs(mine)
        known = table.choose(gangs)
        if known is None and places is not None:
            known = [p for g, p in zip(packer.gangs(rows), places) if problem.type[g.row] == kind]
        elif known is None:
            found = packer.places(floor, mine, kind)
            if not isinstance(found, list):
                raise NotSolved(
                    f"no packing of the winning rows was found in {packer.steps} steps; raise Limits.packing"
                )
            known = found
        table.fill(gangs, known)
        grants.update(table.grants)
    return grants


def _claims(problem: WinnerProblem, rows: Sequence[int]) -> Claims:
    held = problem.held
    if held is None:
        return {}
    who = {int(problem.who[r]) for r in rows}
    return {b: {n: int(held[b, n]) for n in held[b].nonzero()[0].tolist()} for b in who}


class Assignment:
    """GPUs of one type being handed out to ``winners``, by row."""

    def __init__(self, winners: Mapping[int, Winner], floor: Floor, claims: Claims) -> None:
        self.winners, self.floor = winners, floor
        self.claims = {b: dict(held) for b, held in claims.items()}
        self.grants: Grants = {}
        self.machines = frozenset(floor.machines)
        self.claimed = [0] * len(floor.free)
        for winner in winners.values():
            for n, gpus in self.claims.get(winner.who, {}).items():
                self.claimed[n] += gpus

    def choose(self, gangs: Sequence[PackingGang]) -> list[int] | None:
        """Best fit that prefers own GPUs and spares others' claims; None when a gang finds no place."""
        rack, free, room = self.floor.rack, list(self.floor.free), list(self.floor.room)
        own = {b: dict(held) for b, held in self.claims.items()}
        claimed, places = list(self.claimed), []
        alike: dict[tuple[int, int], list[int]] = {}
        """Machines, rising, by their free GPUs that no winner claims and their free GPUs."""
        for n in sorted(self.floor.machines):
            alike.setdefault((max(0, free[n] - claimed[n]), free[n]), []).append(n)
        for g in gangs:
            mine = own.get(self.winners[g.row].who, {})
            if g.racked:
                racks = [x for x, gpus in enumerate(room) if gpus >= g.size]
                again = {x: sum(h for n, h in mine.items() if rack[n] == x) for x in racks} if mine else {}
                best = min(racks, key=lambda x: (-min(g.size, again.get(x, 0)), room[x], x), default=-1)
            else:
                best = self._machine(g.size, mine, alike, free, claimed, room)
            if best < 0:
                return None
            places.append(best)
            room[best if g.racked else rack[best]] -= g.size
            if not g.racked:
                same = alike[max(0, free[best] - claimed[best]), free[best]]
                del same[bisect_left(same, best)]
                again_here = min(g.size, mine.get(best, 0))
                free[best] -= g.size
                if again_here:
                    mine[best] -= again_here
                    claimed[best] -= again_here
                insort(alike.setdefault((max(0, free[best] - claimed[best]), free[best]), []), best)
        return places

    def _machine(
        self,
        size: int,
        mine: Mapping[int, int],
        alike: Mapping[tuple[int, int], list[int]],
        free: Sequence[int],
        claimed: Sequence[int],
        room: Sequence[int],
    ) -> int:
        """Machine for a gang whose app holds `mine`: its own GPUs, then fewest GPUs that others claim, then best fit; or -1."""
        rack = self.floor.rack
        best: tuple[int, int, int, int] | None = None
        for n in mine:
            if n in self.machines and free[n] >= size and room[rack[n]] >= size:
                again = min(size, mine[n])
                key = (-again, max(0, size - again - max(0, free[n] - claimed[n])), free[n], n)
                best = key if best is None else min(best, key)
        if best is not None and best[0] < 0:
            return best[3]
        for (spare, gpus), machines in alike.items():
            start = (0, max(0, size - spare), gpus, -1)
            if gpus < size or (best is not None and start > best):
                continue
            n = next((n for n in machines if room[rack[n]] >= size), -1)
            if n >= 0 and (best is None or (*start[:3], n) < best):
                best = (*start[:3], n)
        return -1 if best is None else best[3]

    def fill(self, gangs: Sequence[PackingGang], places: Sequence[int]) -> None:
        """Hand out: anchored machines, machine gangs, then what a rack or the whole offer may supply."""
        rack, winners = self.floor.rack, self.winners
        left = {r: w.gpus for r, w in winners.items()}
        for r, w in winners.items():
            if w.kind == ON_MACHINE:
                self._book(r, w.place, left.pop(r))
        loose: list[tuple[int, int, list[int]]] = []
        for g, spot in zip(gangs, places):
            left[g.row] -= g.size
            if g.racked:
                loose.append((g.row, g.size, [n for n in self.floor.machines if rack[n] == spot]))
            else:
                self.floor.free[spot] -= g.size
                self._book(g.row, spot, g.size)
        for r, gpus in left.items():
            if winners[r].kind == IN_RACK:
                loose.append((r, gpus, [n for n in self.floor.machines if rack[n] == winners[r].place]))
        wide = [(r, gpus, self.floor.machines) for r, gpus in left.items() if gpus and winners[r].kind != IN_RACK]
        self._pour(loose, wide)

    def _pour(self, loose: list[tuple[int, int, list[int]]], wide: list[tuple[int, int, list[int]]]) -> None:
        """Own GPUs for everyone first; then racks, since only theirs will do; then the rest.

        Wide rows renew only what the racks can spare.
        """
        free, rack = self.floor.free, self.floor.rack
        spare = [0] * (1 + max(rack, default=0))
        for n in self.floor.machines:
            spare[rack[n]] += free[n]
        for _, gpus, machines in loose:
            if machines:
                spare[rack[machines[0]]] -= gpus
        needs = []
        for is_wide, (r, gpus, machines) in [(False, x) for x in loose] + [(True, x) for x in wide]:
            mine = self.claims.get(self.winners[r].who, {})
            for n in machines if mine else ():
                take = min(gpus, free[n], mine.get(n, 0), spare[rack[n]] if is_wide else gpus)
                if take > 0:
                    gpus -= take
                    spare[rack[n]] -= take if is_wide else 0
                    self._take(r, n, take)
            needs.append((r, gpus, machines))
        for r, gpus, machines in needs[: len(loose)]:
            for sparing in (True, False) if self.claims else (False,):
                for n in sorted(machines, key=free.__getitem__) if gpus else ():
                    take = min(gpus, max(0, free[n] - self.claimed[n]) if sparing else free[n])
                    if take > 0:
                        gpus -= take
                        self._take(r, n, take)
        self._pour_anywhere([(r, gpus) for r, gpus, _ in needs[len(loose) :] if gpus])

    def _pour_anywhere(self, needs: list[tuple[int, int]]) -> None:
        """GPUs of any machines, of those with fewest free ones first; others' claims are avoided if possible."""
        free, nothing = self.floor.free, [0] * len(self.claimed)
        kept = (self.claimed, nothing) if self.claims else (nothing,)
        shelves = [_Shelf(self.floor.machines, free, of) for of in kept] if needs else []
        for r, gpus in needs:
            for shelf in shelves:
                if not gpus:
                    break
                touched: list[tuple[int, int]] = []
                for room, _, n in shelf.order:
                    take = min(gpus, free[n] - shelf.kept[n])
                    gpus -= take
                    self._take(r, n, take)
                    touched.append((n, room))
                    if not gpus:
                        break
                for each in shelves:
                    for n, room in touched:
                        each.move(n, room)

    def _take(self, row: int, machine: int, gpus: int) -> None:
        self.floor.free[machine] -= gpus
        self._book(row, machine, gpus)

    def _book(self, row: int, machine: int, gpus: int) -> None:
        who = self.winners[row].who
        key = (who, machine)
        self.grants[key] = self.grants.get(key, 0) + gpus
        mine = self.claims.get(who)
        if mine and mine.get(machine, 0):
            again = min(gpus, mine[machine])
            mine[machine] -= again
            self.claimed[machine] -= again


class _Shelf:
    """Machines with free GPUs beyond those ``kept`` for others, the fewest free ones first, as GPUs are taken."""

    def __init__(self, machines: Sequence[int], free: list[int], kept: Sequence[int]) -> None:
        self.free, self.kept = free, kept
        self.rank = {n: i for i, n in enumerate(machines)}
        self.order = sorted((free[n], i, n) for n, i in self.rank.items() if free[n] > kept[n])

    def move(self, machine: int, before: int) -> None:
        """Update for a machine that had this many free GPUs before."""
        old = (before, self.rank[machine], machine)
        at = bisect_left(self.order, old)
        if at < len(self.order) and self.order[at] == old:
            del self.order[at]
        if self.free[machine] > self.kept[machine]:
            insort(self.order, (self.free[machine], self.rank[machine], machine))


def arrays(grants: Grants) -> tuple[list[int], list[int], list[int]]:
    """Bidders, machines and GPUs, sorted."""
    cells = sorted(grants.items())
    return [b for (b, _), _ in cells], [n for (_, n), _ in cells], [g for _, g in cells]
