"""GPUs that a gang holds and does not use: by NVML where machines have it, else by the job's own reports of steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from themis.machines.agent.messages import TaskIdle, TaskReport
from themis.machines.engines.program import GangIdle
from themis.model.events import Grant
from themis.model.units import GpuSeconds, Seconds

SLOW = 3.0
"""Time without a step after which a job counts as idle, in multiples of its mean step time."""


@dataclass(slots=True)
class IdleGang:
    """Idle time of one gang.

    Attributes
    ----------
    added : GPU-seconds since the last ``GangIdle``. ``by_machine`` : idle seconds of each GPU, by NVML.
    moved_at : time at which its steps last increased; NaN before its first report.
    """

    added: GpuSeconds = 0.0
    by_machine: dict[int, tuple[Seconds, ...]] = field(default_factory=dict)
    steps: float = 0.0
    step_s: Seconds = 0.0
    moved_at: Seconds = math.nan
    counted_to: Seconds = math.nan
    said_at: Seconds = -math.inf
    said: Seconds = 0.0

    def measured(self, machine: int, message: TaskIdle) -> None:
        """NVML reported."""
        self.added += message.gpu_seconds
        self.by_machine[machine] = message.each_s

    def reported(self, report: TaskReport, now: Seconds) -> None:
        """The job reported; steps that do not rise are no sign of work."""
        self.step_s = max(self.step_s, report.step_s)
        if math.isnan(self.moved_at) or report.steps > self.steps:
            self.steps, self.moved_at = report.steps, now

    def look(self, grant: Grant, now: Seconds, *, after_s: Seconds, every_s: Seconds) -> GangIdle | None:
        """The idle time to report, at most once per ``every_s`` seconds; ``after_s`` : seconds without new steps after
        which a job counts as idle."""
        each_s = tuple(seconds for _, gpus in sorted(self.by_machine.items()) for seconds in gpus)
        if each_s:
            by, idle_s = "nvml", min(each_s)
        elif math.isnan(self.moved_at):
            return None  # it never reported a step, so nothing is known
        else:
            by, idle_s = "reports", now - self.moved_at
            if idle_s < max(after_s, SLOW * self.step_s):
                idle_s = 0.0
            else:
                since = self.moved_at if math.isnan(self.counted_to) else max(self.counted_to, self.moved_at)
                self.added += len(grant.gpus) * (now - since)
                self.counted_to = now
        # The end of idle time is reported too.
        if now < self.said_at + every_s or (self.added <= 0 and idle_s <= 0 and self.said <= 0):
            return None
        added, self.added, self.said, self.said_at = self.added, 0.0, idle_s, now
        return GangIdle(
            app=grant.app,
            job=grant.job,
            attempt=grant.attempt,
            gpu_seconds=added,
            idle_s=idle_s,
            by=by,
            each_s=each_s,
        )
