"""The promises, checked after each step, at each start, and at the end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from audit import audit
from simulation.bodies import Keeper, Rank
from simulation.kernel import Process
from themis.service.engine.journal import read_records

if TYPE_CHECKING:
    from simulation.world import World

SLACK_S = 2.0
"""Seconds that a supervisor's steps may take in addition to lease and grace."""


class Broken(AssertionError):
    """A promise is broken."""


class Checks:
    """Looks at the process tables and the journal; shares no state with what it looks at."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stops: dict[str, str] = {}

    def require(self, holds: bool, otherwise: Callable[[], str]) -> None:
        """Raise ``Broken`` with a sentence unless it holds."""
        if not holds:
            raise Broken(otherwise())

    def after_turn(self) -> None:
        """What really runs: no GPU has processes of two attempts, nothing runs beyond its lease and grace."""
        for kernel in self.world.kernels:
            users: dict[int, Process] = {}
            for process in kernel.table.values():
                if process.code is None:
                    for slot in process.slots:
                        other = users.setdefault(slot, process)
                        self.require(
                            other.task == process.task,
                            lambda k=kernel, s=slot, a=other, b=process: (
                                f"GPU {s} of {k.name} has two: {a.name} {a.pid} of {a.task} and {b.name} {b.pid} of {b.task}"
                            ),
                        )
                    self._lease(process)

    def _lease(self, process: Process) -> None:
        kept = process.body.supervisor if isinstance(process.body, Keeper) else None
        if kept is None or self.world.now < process.stopped_until + SLACK_S:
            return
        clock = kept.system.clock()
        if clock < kept.deadline + kept.task["grace_s"] + SLACK_S:
            return
        ranks = [r.pid for r in kept.ranks if (p := kept.system.table.get(r.pid)) and p.code is None and p.slots]  # type: ignore[attr-defined]
        self.require(not ranks, lambda: f"{process.task} runs {clock - kept.deadline:.1f} s after its machine's lease")

    def killed(self, sender: Process | None, victim: Process) -> None:
        """A SIGKILL: a rank that was asked to stop by its supervisor had its grace."""
        if sender is None or sender.name != "supervisor" or not isinstance(victim.body, Rank):
            return
        asked, kept = victim.body.asked_at, sender.body.supervisor  # type: ignore[attr-defined]
        if asked is None:
            return
        had = victim.body.kernel.clock() - asked
        self.require(
            had >= victim.body.grace_s - 0.3,
            lambda: f"{victim.task} was killed {had:.1f} s after SIGTERM ({kept.status.cause}), its grace is {victim.body.grace_s:.1f} s",  # type: ignore[attr-defined]
        )

    def after_start(self) -> None:
        """Every acknowledged submission is there, under its number and name."""
        arbiter = self.world.service.arbiter
        assert arbiter is not None
        there = {entry.key.partition("/")[2]: (entry.app, entry.name) for entry in arbiter.journal.apps()}
        for key, known in self.world.users.acknowledged.items():
            self.require(
                there.get(key) == known, lambda k=key, a=known: f"{k} was acknowledged as {a}, now it is {there.get(k)}"
            )

    def at_end(self) -> None:
        """The journal folds whole to the same bits; every app ended as it should; leases are disjoint by the journal too."""
        path = self.world.disk.path
        found = audit(path)
        self.require(found.near == 0, lambda: f"{found.near} records agree only within the tolerance")
        ends: dict[str, str] = {}
        for _, _, _, line in read_records(path):
            pass
        from themis.service.engine.journal import Journal

        journal = Journal(path)
        try:
            ends = {entry.key.partition("/")[2]: entry.outcome for entry in journal.apps()}
        finally:
            journal.close()
        for key in self.world.users.acknowledged:
            expected = {"completed", "cancelled"} if key in self.world.users.cancelled else {"completed"}
            self.require(ends[key] in expected, lambda k=key: f"{k} ended as {ends[k]!r}")
        for kernel in self.world.kernels:
            self.require(not kernel.living("rank"), lambda k=kernel: f"{k.name} still runs {k.living('rank')[0].task}")


NUMBER = signal.SIGKILL
