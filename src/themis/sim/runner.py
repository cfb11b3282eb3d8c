"""Trace-driven simulation: workload -> events -> core -> simulated executor -> events, with every record logged.

Solves and bids are answered inline and bounded by work, never by seconds, so that one seed gives one log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from themis.core.changes import policy_of
from themis.core.driver import Decision, Driver
from themis.core.scheduler import Scheduler
from themis.errors import InvariantBroken, ThemisError
from themis.model.answers import Ask, Solved
from themis.model.bids import Bids
from themis.model.cluster import Cluster, reaches
from themis.model.events import (
    SCHEMA,
    AppCancelled,
    AppFinished,
    AppHeld,
    AppResumed,
    AppSubmitted,
    BidsCollected,
    Command,
    Event,
    FairnessSet,
    Grant,
    Header,
    JobEnded,
    MachineFailed,
    MachineJoined,
    MachineResized,
    MachineReturned,
    Revoke,
    SettingsChanged,
    UserWeightsSet,
    Wake,
)
from themis.model.settings import Settings
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.model.workload import Workload
from themis.policies.api import Policy, Workbench, forecaster_of, logged_params
from themis.policies.tuning.app_agent import answer_ask
from themis.sim.kernel import Kernel
from themis.sim.simulated_executor import SimulatedExecutor
from themis.traces.profiles.assumed import Assumptions, alone
from themis.version import __version__

MACHINERY = frozenset({Wake, BidsCollected})
"""Events that no log holds."""

Record = Header | Event | Command
Sink = Callable[[Seconds, Record], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A machine fails at ``time`` and is back ``lasts`` seconds later."""

    time: Seconds
    machine: int
    lasts: Seconds


def outages(cluster: Cluster, *, mtbf_s: Seconds, lasts_s: Seconds, until: Seconds, seed: int) -> tuple[Outage, ...]:
    """Random machine failures: exponential times between failures of one machine with mean ``mtbf_s``."""
    rng = np.random.default_rng(seed)
    out = []
    for n in range(len(cluster.machines)):
        time = float(rng.exponential(mtbf_s))
        while time < until:
            out.append(Outage(time=time, machine=n, lasts=lasts_s))
            time += lasts_s + float(rng.exponential(mtbf_s))
    return tuple(sorted(out, key=lambda o: (o.time, o.machine)))


Change: TypeAlias = (
    SettingsChanged | MachineResized | MachineJoined | UserWeightsSet | AppCancelled | AppHeld | AppResumed
)
"""What users and administrators do during a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All inputs of a run; equal simulations give equal logs, byte for byte."""

    workload: Workload
    cluster: Cluster
    book: ProfileBook
    policy_name: str
    policy: Policy
    settings: Settings = field(default_factory=Settings)
    outages: Sequence[Outage] = ()
    estimated: ProfileBook | None = None
    """Initial speed estimates of the scheduler, where they differ from the truth in ``book``; jobs then report measured
    speeds.
    """
    unknown: bool = False
    """True: the work of apps is unknown to the scheduler; its estimate is an assumption."""
    start_s: Sequence[Seconds] = ()
    """Actual cost of changes of GPUs, where it differs from ``settings.container_s``; seconds, 0 or more.

    Each start takes the next of them, and after the last the first again. Where all starts cost the same, identical
    jobs of an app stay in step for ever, which real ones never do, and bids see a tie that does not exist.
    """
    finish_s: Sequence[Seconds] = ()
    """Seconds from a gang's last step to its report, cycled over jobs as above; 0 if empty."""
    stop_s: Sequence[Seconds] = ()
    """Seconds that a preempted gang takes to release its GPUs, in turn as above; 0 where empty."""
    changes: Sequence[tuple[Seconds, Change]] = ()
    """Changes by users during the run, and their times."""

    def header(self) -> Header:
        """First record of the log."""
        return Header(
            schema=SCHEMA,
            version=__version__,
            simulated=True,
            policy=self.policy_name,
            params=logged_params(self.policy),
            seed=self.settings.seed,
            workload=self.workload.name,
            source=self.workload.source,
            cluster=self.cluster.name,
            settings=self.settings.in_header,
            profiles=(self.estimated or self.book).fingerprint,
        )

    def run(
        self,
        sink: Sink = lambda time, record: None,
        progress: Callable[[int, Seconds], None] = lambda finished, now: None,
        bench: Workbench | None = None,
        drop_bench: Callable[[], bool] = lambda: False,
        until: Seconds = math.inf,
    ) -> Scheduler:
        """Run to the end of the last app, or to the instant ``until``.

        Parameters
        ----------
        sink : gets every log record. progress : called with (apps finished, simulated seconds) after each finish.
        drop_bench : asked before each solve whether to drop the caches (a test that it changes nothing).

        Raises
        ------
        InvariantBroken : apps remain but nothing will ever happen again.
        """
        return _Run(self, sink, progress, bench or Workbench(), drop_bench).run(until)


class _Run(Driver):
    def __init__(
        self,
        simulation: Simulation,
        sink: Sink,
        progress: Callable[[int, Seconds], None],
        bench: Workbench,
        drop_bench: Callable[[], bool],
    ) -> None:
        self.sim, self.sink, self.progress, self.bench, self.drop_bench = simulation, sink, progress, bench, drop_bench
        self.kernel = Kernel()
        policy = simulation.policy
        self.core = Scheduler(
            simulation.estimated or simulation.book,
            simulation.settings,
            policy.pace,
            policy.needs,
            forecaster_of(policy),
        )
        self.policy = policy
        self.executor = SimulatedExecutor(
            simulation.book,
            simulation.settings,
            self.kernel,
            [],
            measures=simulation.estimated is not None,
            start_s=simulation.start_s,
            finish_s=simulation.finish_s,
            stop_s=simulation.stop_s,
        )
        self.finished = 0

    def run(self, until: Seconds = math.inf) -> Scheduler:
        sim, kernel = self.sim, self.kernel
        self.sink(0.0, sim.header())
        for machine in sim.cluster.machines:
            self.feed(MachineJoined(machine=machine), 0.0)
        for app in sim.workload.apps:
            self.core.state.check_fits(app)
        if sim.settings.between != "apps":
            self.feed(FairnessSet(between=sim.settings.between, groups=sim.workload.members()), 0.0)
        self._schedule_inputs()
        total = len(sim.workload.apps)
        while self.finished < total:
            event = kernel.pop()
            if event is None:
                raise InvariantBroken(
                    f"the simulation of {sim.policy_name} stopped at {kernel.now:.0f} s: {total - self.finished} of {total} apps "
                    "are unfinished and nothing will happen any more."
                )
            if kernel.now > until:
                break
            self.feed(event, kernel.now)
        return self.core

    def _schedule_inputs(self) -> None:
        assumptions = Assumptions(self.sim.estimated or self.sim.book)
        gpu_types, reach = self.sim.cluster.gpu_types, reaches(self.sim.cluster.machines)
        for app in self.sim.workload.apps:
            assumed = assumptions.of(app, gpu_types)
            event = AppSubmitted(
                app=app,
                weight=self.sim.workload.weight(app),
                assumed=assumed,
                alone=alone(assumptions.book, app, reach),
                unknown=self.sim.unknown,
            )
            self.kernel.schedule(app.arrival, event)
        for outage in self.sim.outages:
            self.kernel.schedule(outage.time, MachineFailed(machine=outage.machine))
            self.kernel.schedule(outage.time + outage.lasts, MachineReturned(machine=outage.machine))
        for time, change in self.sim.changes:
            self.kernel.schedule(time, change)

    # ---- the driver's shell -----------------------------------------------------------------------------------------

    def record(self, event: Event, now: Seconds) -> Event:
        if type(event) not in MACHINERY:
            self.sink(now, event)
        if isinstance(event, AppSubmitted):
            self.executor.admit(self.core.state.jobs.size, event.app)
        elif isinstance(event, SettingsChanged):
            self.policy = policy_of(event) or self.policy
        elif isinstance(event, MachineJoined):
            self.executor.gpu_types += [event.machine.gpu_type] * event.machine.gpus
        elif isinstance(event, MachineResized):
            s, n = self.core.state, event.machine
            self.executor.gpu_types += [s.machines[n].gpu_type] * (event.gpus - len(s.gpus_of[n]))
        return event

    def wake_at(self, time: Seconds, now: Seconds) -> None:
        self.kernel.schedule(time, Wake())

    def solve(self, decision: Decision, now: Seconds) -> Solved | None:
        if self.drop_bench():
            self.bench.clear()
            self.core.drop_caches()
        return self.policy(decision.snapshot, self.bench)

    def collect(self, decision: Decision, ask: Ask, now: Seconds) -> Bids | None:
        return answer_ask(decision.snapshot, ask)

    def carry_out(self, command: Command, now: Seconds) -> None:
        self.sink(now, command)
        kind = type(command)
        if kind is Grant:
            self.executor.start(command)  # type: ignore[arg-type]
        elif kind is Revoke:
            self.executor.stop(command)  # type: ignore[arg-type]
        elif kind is JobEnded:
            self.executor.forget(command.job)  # type: ignore[union-attr]
        elif kind is AppFinished:
            self.finished += 1
            self.progress(self.finished, now)

    def annotate(self, error: ThemisError, doing: str, now: Seconds) -> None:
        error.add_note(f"at {now:.3f} s, on {doing}, policy {self.sim.policy_name}, seed {self.sim.settings.seed}")
