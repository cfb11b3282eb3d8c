"""A simulation that begins with a state, not with an empty cluster: leases that are held run on, and jobs keep what they have done.

A shell of the core's driver, as ``sim.runner`` is. What it does not know is taken to stay: machines that are away stay away, and
a job takes as long as the scheduler estimates, times the given factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from themis.core.changes import policy_of
from themis.core.driver import Decision, Driver
from themis.core.scheduler import Scheduler
from themis.core.tables import Status
from themis.model.answers import Ask, Solved
from themis.model.bids import Bids
from themis.model.events import (
    AppSubmitted,
    Command,
    Event,
    Grant,
    JobStarted,
    JobStopped,
    MachineJoined,
    MachineResized,
    Renew,
    Revoke,
    SettingsChanged,
    Wake,
)
from themis.model.units import Locality, Seconds
from themis.model.workload import App
from themis.policies.api import Policy, Workbench
from themis.policies.tuning.app_agent import answer_ask
from themis.sim.kernel import Kernel
from themis.sim.simulated_executor import SimulatedExecutor


class FromState(Driver):
    """One simulation from a state on.

    Parameters
    ----------
    core : the state; it is this simulation's own from now on. ``policy`` : that decides.
    factor : of an app by its number, times that its steps take as long as is estimated. ``now`` : where it begins; None: the
        state's own time.
    """

    def __init__(
        self,
        core: Scheduler,
        policy: Policy,
        factor: Callable[[int], float] = lambda app: 1.0,
        now: Seconds | None = None,
    ) -> None:
        self.core, self.policy, self.bench, self.factor = core, policy, Workbench(), factor
        s = core.state
        if now is not None and now > s.now:
            s.advance(now)
        self.began, self.kernel = s.now, Kernel()
        self.kernel.now = s.now
        gpu_types = [s.gpu_types[k] for k in s.machine_type[s.gpu_machine].tolist()]
        self.executor = SimulatedExecutor(s.book, core.settings, self.kernel, gpu_types)
        for a, app in enumerate(s.app_specs):
            self.executor.admit(int(s.apps.first_job[a]), at_speed(app, factor(a)))
        self._take_over()

    def _take_over(self) -> None:
        """Take over present gangs, which continue training from their steps done; gangs under preemption stop now."""
        s, core, now = self.core.state, self.core, self.kernel.now
        done = s.steps_now(np.arange(s.jobs.size))
        for j, gang in self.executor.gangs.items():
            gang.done = float(done[j])
        for j, (gpus, _) in s.occupied.items():
            attempt = int(s.jobs.attempt[j])
            if j in core.stopping or s.jobs.status[j] != Status.RUNNING:
                self.kernel.schedule(now, JobStopped(job=j, attempt=attempt, steps=float(done[j])))
                continue
            gang = self.executor.gangs[j]
            gang.attempt, gang.target, gang.began, gang.gpus = attempt, float(s.jobs.target[j]), now, gpus
            kind = s.gpu_types[int(s.machine_type[s.gpu_machine[gpus[0]]])]
            gang.where = (kind, len(gpus), Locality(int(s.jobs.locality[j])))
            self.executor.on.setdefault(gpus[0], []).append(j)
            gang.pending = [self.kernel.schedule(now, JobStarted(job=j, attempt=attempt))]
            self.executor._train(j, gang)
        for time in sorted({*core.wakes, now}):
            self.kernel.schedule(max(time, now), Wake())

    def step(self) -> bool:
        """Take the next event in; False if nothing will happen any more."""
        event = self.kernel.pop()
        if event is None:
            return False
        self.feed(event, self.kernel.now)
        return True

    # ---- the driver's shell -----------------------------------------------------------------------------------------

    def record(self, event: Event, now: Seconds) -> Event:
        """Pass an event to the executor and to this shell, as far as they need it."""
        if isinstance(event, AppSubmitted):
            state = self.core.state
            self.executor.admit(state.jobs.size, at_speed(event.app, self.factor(state.apps.size)))
        elif isinstance(event, SettingsChanged):
            self.policy = policy_of(event) or self.policy
            self.bench.clear()
        elif isinstance(event, MachineJoined):
            self.executor.gpu_types += [event.machine.gpu_type] * event.machine.gpus
        elif isinstance(event, MachineResized):
            s, n = self.core.state, event.machine
            self.executor.gpu_types += [s.machines[n].gpu_type] * (event.gpus - len(s.gpus_of[n]))
        return event

    def wake_at(self, time: Seconds, now: Seconds) -> None:
        """Through the kernel."""
        self.kernel.schedule(time, Wake())

    def solve(self, decision: Decision, now: Seconds) -> Solved | None:
        """Solve synchronously."""
        return self.policy(decision.snapshot, self.bench)

    def collect(self, decision: Decision, ask: Ask, now: Seconds) -> Bids | None:
        """The service's own agents bid for all."""
        return answer_ask(decision.snapshot, ask)

    def carry_out(self, command: Command, now: Seconds) -> None:
        """Simulated gangs."""
        if isinstance(command, Grant | Renew | Revoke):
            self.executor.submit(command)


def at_speed(app: App, factor: float) -> App:
    """The app with jobs whose steps take ``factor`` times as long as estimated."""
    if factor == 1.0:
        return app
    return replace(app, jobs=tuple(replace(job, step_scale=job.step_scale * factor) for job in app.jobs))
