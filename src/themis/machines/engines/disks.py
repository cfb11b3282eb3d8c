"""Disk protection of machines: quotas by user, and the choice of the job to stop when a disk is nearly full.

Agents report how much their tasks have on the disk, and how fast that grows (``machines.agent.usage``). A user over the
quota is notified, and one of their jobs that still writes is stopped after ``GRACE_S``. If less than the reserve is
free, or will be within ``AHEAD_S``, the fastest-growing job of the user whose jobs grow fastest is stopped immediately,
even within the quota. A job that does not write is never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from themis.machines.agent.messages import DiskUse
from themis.machines.engines.gang import Gang
from themis.machines.engines.gang_lifecycle import Goal
from themis.machines.engines.program import DISK
from themis.model.units import Seconds

GRACE_S: Seconds = 60.0
"""Seconds from the warning until a job is stopped."""
AHEAD_S: Seconds = 2.0
"""Seconds until a stopped job writes no more: writes within this time count against the reserve."""
PART = 20
"""The reserve is at most a part of a disk (1 / PART)."""
LEAST, LEAST_PART = 1 << 20, 1000
"""Growth of a job below this many bytes, and below a part of the disk (1 / LEAST_PART), fills no disk."""


@dataclass(frozen=True, slots=True)
class DiskNotice:
    """Message about a gang to its user or to the arbiter. ``stop`` : the gang is also stopped. An empty ``sentence``
    withdraws a warning."""

    gang: Gang
    sentence: str
    stop: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    gang: Gang
    bytes: int
    grew: int
    rate: float
    """Bytes in a second."""


def limit_of(quota: float, size: int) -> int:
    """The bytes of a quota, which is bytes, or up to 1 a share of a disk of this size; 0: none."""
    return int(quota * size if quota <= 1 else quota)


@dataclass(slots=True)
class Disks:
    """The latest disk reports of the agents, and the rules applied to them.

    Attributes
    ----------
    quota, reserve : ``NodeSettings.user_disk`` and ``disk_reserve``. ``name`` : returns the name of a machine.
    one_host : all agents are on one machine, and may share a disk.
    at_rest : returns the id of the service's own disk, and the bytes that each user has there; for one host.
    """

    quota: float
    reserve: int
    name: Callable[[int], str]
    one_host: bool = False
    at_rest: Callable[[], tuple[str, Mapping[str, int]]] = lambda: ("", {})
    uses: dict[int, DiskUse] = field(default_factory=dict)
    warned: dict[tuple[str, str], Seconds] = field(default_factory=dict)
    """Time of the last warning to a user about the quota of a disk."""

    def take(self, machine: int, use: DiskUse, gangs: Mapping[str, Gang], now: Seconds) -> list[DiskNotice]:
        """An agent reported; ``gangs`` : by task. What follows."""
        self.uses[machine] = use
        disk = self._disk(machine)
        machines = [n for n in self.uses if self._disk(n) == disk]
        parts = [
            _Part(gang, one.bytes, one.grew, one.grew / max(one.seconds, 0.1))
            for n in machines
            for one in self.uses[n].tasks
            if (gang := gangs.get(one.task)) is not None and n in gang.parts and not gang.parts[n].ended
        ]
        out = self._over_quota(machine, disk, use, parts, now)
        stopping = any(part.gang.cause == DISK for part in parts) or any(notice.stop for notice in out)
        running = [part for part in parts if part.gang.goal is not Goal.STOP]
        return out if stopping else out + self._fastest(machine, use, running)

    def forget(self, machine: int) -> None:
        """Discard the reports of a machine that is gone, or connects again."""
        self.uses.pop(machine, None)

    def _disk(self, machine: int) -> str:
        # What a machine of a fleet says of its disk is not believed: it could name another's.
        return self.uses[machine].disk if self.one_host else str(machine)

    def _over_quota(self, machine: int, disk: str, use: DiskUse, parts: list[_Part], now: Seconds) -> list[DiskNotice]:
        limit = limit_of(self.quota, use.size)
        there, rest = self.at_rest()
        have: dict[str, int] = dict(rest) if limit and self.one_host and there == disk else {}
        for part in parts:
            have[part.gang.app.user] = have.get(part.gang.app.user, 0) + part.bytes
        out = []
        for user in sorted({part.gang.app.user for part in parts}):
            mine = [part for part in parts if part.gang.app.user == user]
            since = self.warned.get((disk, user))
            if not limit or have[user] <= limit:
                if self.warned.pop((disk, user), None) is not None:
                    out += [DiskNotice(part.gang, "") for part in mine]
                continue
            what = (
                f"user {user} has {size_words(have[user])} on the disk of {self.name(machine)}, over the quota of "
                f"{size_words(limit)} (user_disk)"
            )
            worst = max(mine, key=lambda part: (part.gang.goal is not Goal.STOP, part.rate, part.bytes))
            if since is None:
                self.warned[disk, user] = now
                then = f"{what}; remove checkpoints, or what still writes is stopped after {GRACE_S:.0f} s"
                out += [DiskNotice(part.gang, then) for part in mine]
            elif now >= since + GRACE_S and worst.grew >= _least(use.size) and worst.gang.goal is not Goal.STOP:
                out.append(
                    DiskNotice(worst.gang, f"{what}, and this job still writes to {folder_of(worst.gang)}", stop=True)
                )
        return out

    def _fastest(self, machine: int, use: DiskUse, parts: list[_Part]) -> list[DiskNotice]:
        if not self.reserve or not parts:
            return []
        reserve = min(self.reserve, use.size // PART)
        if use.free >= reserve + AHEAD_S * sum(part.rate for part in parts):
            return []
        rates: dict[str, float] = {}
        for part in parts:
            rates[part.gang.app.user] = rates.get(part.gang.app.user, 0.0) + part.rate
        user = max(sorted(rates), key=lambda name: rates[name])
        worst = max((part for part in parts if part.gang.app.user == user), key=lambda part: part.rate)
        if worst.grew < _least(use.size):
            return []
        sentence = (
            f"user {user} fills the disk of {self.name(machine)}: this job wrote {size_words(worst.grew)}, to "
            f"{folder_of(worst.gang)} or elsewhere there, and {size_words(use.free)} of {size_words(use.size)} are free, with a "
            f"reserve of {size_words(reserve)} (disk_reserve)"
        )
        return [DiskNotice(worst.gang, sentence, stop=True)]


def folder_of(gang: Gang) -> str:
    """Name of the place where a gang saves, in words."""
    spec = next(iter(gang.parts.values())).spec
    return "its checkpoint folder" if spec.checkpoint_url else spec.checkpoint_dir


def size_words(size: float) -> str:
    """Bytes in readable form: ``3.2 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def _least(size: int) -> int:
    return min(LEAST, size // LEAST_PART)
