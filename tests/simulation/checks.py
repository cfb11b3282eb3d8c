"""The promises, checked after each step, at each start, and at the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from audit import audit, audit_accounts, copy
from simulation.bodies import Agent, Keeper, Rank
from simulation.kernel import Kernel, Process
from themis.machines.agent.keeper import MEMBERS_S
from themis.model.events import Grant, JobStopped, MachineJoined, MachineResized, Renew, Revoke
from themis.service.engine.journal import Journal, read_records

if TYPE_CHECKING:
    from simulation.world import World

SLACK_S = 2.0
"""Seconds that a supervisor's steps may take in addition to lease and grace."""


def unseen(process: Process) -> bool:
    """Whether a process is one that nobody can know of, without containment (docs/containment.md).

    It was forked less than a second before its supervisor was killed, and the agent was killed before it looked.
    """
    return not process.seen and process.orphaned_at - process.born < MEMBERS_S + 0.7


class Broken(AssertionError):
    """A promise is broken."""


class Checks:
    """Looks at the process tables and the journal; shares no state with what it looks at."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leases: dict[str, float] = {}
        """Until when each machine had a lease at the latest, on its clock."""
        self.paused: set[str] = set()
        """Tasks whose supervisor was stopped by a signal: nobody keeps their lease then."""
        self.removed: dict[tuple[str, int], float] = {}
        """Since when a process runs on a removed GPU that the service takes for free, by machine and pid."""

    def require(self, holds: bool, otherwise: Callable[[], str]) -> None:
        """Raise ``Broken`` with a sentence unless it holds."""
        if not holds:
            raise Broken(otherwise())

    # ---- after each step ------------------------------------------------------------------------------------------

    def after_turn(self) -> None:
        """What really runs: no GPU serves two attempts, no job runs twice, nothing runs beyond its lease and grace."""
        running: dict[int, Process] = {}
        for kernel in self.world.kernels:
            users: dict[int, Process] = {}
            for process in kernel.living():
                for slot in () if unseen(process) else process.slots:
                    self._alone(f"GPU {slot} of {kernel.name}", users.setdefault(slot, process), process)
                if isinstance(process.body, Agent):
                    now = kernel.clock()
                    self.leases[kernel.name] = max(self.leases.get(kernel.name, now), process.body.agent.deadline)
                elif isinstance(process.body, Keeper) and process.stopped_until > self.world.now:
                    self.paused.add(process.task)
                elif isinstance(process.body, Rank) and process.slots and process.task not in self.paused:
                    job = process.body.job
                    self._alone(f"job {job}", running.setdefault(job, process), process)
                    self._lease(kernel, process, process.body)
                    self._removed(kernel, process, job)

    def _alone(self, where: str, a: Process, b: Process) -> None:
        self.require(
            a.task == b.task, lambda: f"{where} has two: {a.name} {a.pid} of {a.task} and {b.name} {b.pid} of {b.task}"
        )

    def _lease(self, kernel: Kernel, process: Process, rank: Rank) -> None:
        over = kernel.clock() - self.leases.get(kernel.name, kernel.clock()) - rank.grace_s
        self.require(over < SLACK_S, lambda: f"{process.task} runs {over:.1f} s after lease and grace of {kernel.name}")

    def _removed(self, kernel: Kernel, process: Process, job: int) -> None:
        """What runs on GPUs that were removed is a gang that the service waits for, and not longer than a step or two."""
        service = self.world.service
        if service.arbiter is None or service.within:
            return
        state = service.arbiter.state
        ids = [n for n, machine in enumerate(state.machines) if machine.name == kernel.name]
        size = max((int(state.machine_size[n]) for n in ids), default=0)
        ends = any(state.gpu_machine[gpu] in ids for gpu in state.occupied.get(job, ((), 0))[0])
        if ends or all(slot < size for slot in process.slots):
            self.removed.pop((kernel.name, process.pid), None)
            return
        since = self.removed.setdefault((kernel.name, process.pid), self.world.now)
        self.require(
            self.world.now < since + SLACK_S, lambda: f"{process.task} runs on a GPU that {kernel.name} has no more"
        )

    def powered_off(self, kernel: Kernel) -> None:
        """The machine's clock begins again."""
        self.leases.pop(kernel.name, None)

    def killed(self, sender: Process | None, victim: Process) -> None:
        """A SIGKILL: a rank that was asked to stop by its supervisor had its grace."""
        if sender is None or not isinstance(sender.body, Keeper) or not isinstance(victim.body, Rank):
            return
        rank, kept = victim.body, sender.body.supervisor
        if rank.asked_at is None or kept is None or not rank.running:
            return
        had = rank.kernel.clock() - rank.asked_at
        self.require(
            had >= rank.grace_s - 0.3,
            lambda: (
                f"{victim.task} was killed {had:.1f} s after SIGTERM ({kept.status.cause}); its grace is {rank.grace_s:.1f} s"
            ),
        )

    # ---- at each start, and at the end ----------------------------------------------------------------------------

    def after_start(self) -> None:
        """Every acknowledged submission is there, under its number and name; so are settings; accounts fit the records."""
        arbiter = self.world.service.arbiter
        assert arbiter is not None
        there = {entry.key.partition("/")[2]: (entry.app, entry.name) for entry in arbiter.journal.apps()}
        for key, known in self.world.users.acknowledged.items():
            self.require(
                there.get(key) == known,
                lambda k=key, a=known: f"{k} was acknowledged as {a}, after a start it is {there.get(k)}",
            )
        self.world.settings.after_start(arbiter, self.require)
        with TemporaryDirectory(dir=self.world.root) as folder:
            path = copy(self.world.disk.path, Path(folder))
            with closing(Journal(path)) as journal:
                audit_accounts(journal, arbiter.engine, whole=True, where="the accounts after a start")

    def at_end(self) -> str:
        """The journal folds whole to the same bits; leases are kept by it; every app ended as it should; nothing runs.

        Returns the number of records, and a digest of all but the header, which names the journal's folder.
        """
        path = self.world.disk.path
        found = audit(path)
        self.require(found.near == 0, lambda: f"{found.near} records agree only within the tolerance")
        with closing(Journal(path)) as journal:
            ends = {entry.key.partition("/")[2]: entry.outcome for entry in journal.apps()}
            self._by_the_journal(journal)
        for key in self.world.users.acknowledged:
            expected = {"completed", "cancelled"} if key in self.world.users.cancelled else {"completed"}
            self.require(ends[key] in expected, lambda k=key: f"{k} ended as {ends[k]!r}")
        for kernel in self.world.kernels:
            self.require(not kernel.living("rank"), lambda k=kernel: f"{k.name} still runs {k.living('rank')[0].task}")
        lines = [line for _, _, kind, line in read_records(path) if kind != "Header"]
        return f"{len(lines)} {blake2b(''.join(lines).encode(), digest_size=8).hexdigest()}"

    def _by_the_journal(self, journal: Journal) -> None:
        """A second fold, of leases and machines: from a grant to its end GPUs are its own; none expires before it is over."""
        held: dict[int, Grant] = {}
        until: dict[int, float] = {}
        gpus_of: list[list[int]] = []
        there: list[set[int]] = []
        for time, record in journal.records():
            match record:
                case MachineJoined() | MachineResized():
                    _resized(record, gpus_of, there)
                case Grant():
                    serving = set().union(*there)
                    self.require(serving.issuperset(record.gpus), lambda r=record: f"leased after it was removed: {r}")
                    taken = {gpu for grant in held.values() for gpu in grant.gpus}
                    self.require(taken.isdisjoint(record.gpus), lambda r=record: f"leased twice: {r}")
                    self.require(record.job not in held, lambda r=record: f"job {r.job} has two leases")
                    held[record.job], until[record.job] = record, record.until
                case Renew():
                    until.update(dict.fromkeys(record.jobs, record.until))
                case Revoke(cause="expired"):
                    early = until[record.job] - time
                    self.require(early < 1e-6, lambda r=record, e=early: f"{r} comes {e:.3f} s before its lease ends")
                case JobStopped() if record.job in held and held[record.job].attempt == record.attempt:
                    del held[record.job]
                case _:
                    pass


def _resized(record: MachineJoined | MachineResized, gpus_of: list[list[int]], there: list[set[int]]) -> None:
    """Which GPUs each machine ever had, and has."""
    if isinstance(record, MachineJoined):
        gpus_of.append([])
        there.append(set())
        n, gpus = len(gpus_of) - 1, record.machine.gpus
    else:
        n, gpus = record.machine, record.gpus
    first = sum(map(len, gpus_of))
    gpus_of[n] += range(first, first + gpus - len(gpus_of[n]))
    there[n] = set(gpus_of[n][:gpus])
