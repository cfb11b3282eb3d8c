"""When will an app get GPUs? Short simulations from a dumped state on, as if no other app came (``themis why``).

Each simulation draws how wrong the believed speed of every app is, uniformly within +-20 % (the errors of Themis §6.3,
figure 17); the start times that come out give the estimate and its range. They stop with the app's first gang, after so much
simulated time, or when the time allowed is over.

As a program: a dump on standard input, the app's number and the seconds allowed as arguments, JSON on standard output.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from time import monotonic

import numpy as np

from themis.core.driver import Decision, Driver
from themis.core.tables import Status
from themis.executors.simulated import SimulatedExecutor
from themis.model.answers import Ask, Solved
from themis.model.bids import Bids
from themis.model.events import Command, Grant, JobStarted, JobStopped, Renew, Revoke, Wake
from themis.model.units import Locality, Seconds
from themis.model.workload import App
from themis.policies.api import Policy, Workbench, make_policy
from themis.sim.dump import Dump, parse
from themis.sim.kernel import Kernel
from themis.tuning.agent import answer_ask

ERROR = 0.2
"""How wrong believed speeds may be, as a share."""
RUNS = 9
HORIZON_S = 14 * 86400.0


def starts(
    dump: Dump, app: int, *, runs: int = RUNS, allowed_s: Seconds = 5.0, horizon_s: Seconds = HORIZON_S
) -> list[Seconds]:
    """Seconds from the dump until the app's next gang starts, one for each simulation that got there; rising.

    The first simulation believes what the scheduler does. Simulations that the app never starts in within ``horizon_s``
    give infinity; those for which there was no time are missing.
    """
    policy, end = make_policy(dump.policy), monotonic() + allowed_s
    out: list[Seconds] = []
    for run in range(runs):
        found = _Onward(dump, policy, seed=run).until_started(app, horizon_s, end)
        if found is None:
            break
        out.append(found)
    return sorted(out)


class _Onward(Driver):
    """One simulation from a state on."""

    def __init__(self, dump: Dump, policy: Policy, seed: int) -> None:
        self.policy, self.bench = policy, Workbench()
        self.core = dump.core(policy)
        s = self.core.state
        self.began, self.kernel = s.now, Kernel()
        self.kernel.now = s.now
        gpu_types = [s.gpu_types[k] for k in s.machine_type[s.gpu_machine].tolist()]
        self.executor = SimulatedExecutor(s.book, self.core.settings, self.kernel, gpu_types)
        rng = np.random.default_rng(seed)
        for a, app in enumerate(s.app_specs):
            error = float(rng.uniform(1 - ERROR, 1 + ERROR)) if seed else 1.0
            self.executor.admit(int(s.apps.first_job[a]), _at_speed(app, error))
        self.granted: set[int] = set()
        """Apps that got a gang."""
        self._take_over()

    def _take_over(self) -> None:
        """Gangs that are there train on from what they have done; those that were being preempted stop now."""
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

    def until_started(self, app: int, horizon_s: Seconds, end: float) -> Seconds | None:
        """Seconds until the app gets a gang; infinity if not within the horizon, None if there was no time to see."""
        while app not in self.granted:
            if monotonic() > end:
                return None
            event = self.kernel.pop()
            if event is None or self.kernel.now > self.began + horizon_s or not self.core.state.apps.active[app]:
                return float("inf")
            self.feed(event, self.kernel.now)
        return self.kernel.now - self.began

    # ---- the driver's shell -----------------------------------------------------------------------------------------

    def wake_at(self, time: Seconds, now: Seconds) -> None:
        self.kernel.schedule(time, Wake())

    def solve(self, decision: Decision, now: Seconds) -> Solved | None:
        return self.policy(decision.snapshot, self.bench)

    def collect(self, decision: Decision, ask: Ask, now: Seconds) -> Bids | None:
        return answer_ask(decision.snapshot, ask)

    def carry_out(self, command: Command, now: Seconds) -> None:
        if isinstance(command, Grant):
            self.granted.add(command.app)
        if isinstance(command, Grant | Renew | Revoke):
            self.executor.submit(command)


def _at_speed(app: App, factor: float) -> App:
    """The app with jobs whose steps take ``factor`` times as long as is believed."""
    if factor == 1.0:
        return app
    return replace(app, jobs=tuple(replace(job, step_scale=job.step_scale * factor) for job in app.jobs))


def main() -> None:
    """Estimate for one app."""
    app, allowed_s = int(sys.argv[1]), float(sys.argv[2])
    found = starts(parse(sys.stdin.buffer.read()), app, allowed_s=allowed_s)
    print(json.dumps([time if time < float("inf") else None for time in found]))


if __name__ == "__main__":
    main()
