"""The kit for executors: the simulated and the local one pass it, and it catches those that break a rule."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from live import SHORT, script

from fleetmachines import machines, port_for
from processes import PATIENCE_S
from raycluster import RayCluster
from themis.core.executor import Executor
from themis.machines.engines.fleet import FleetExecutor, FleetSettings
from themis.machines.engines.hosts import Host
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.members import authority_folder, members_file
from themis.machines.engines.ray import RayExecutor, RaySettings
from themis.model.cluster import Machine
from themis.model.events import Command, Event, JobStarted, JobStopped, MachineJoined, Renew, Revoke
from themis.model.settings import Settings
from themis.model.workload import App
from themis.sim.kernel import Kernel
from themis.sim.simulated_executor import SimulatedExecutor
from themis.testing.builders import BOOK
from themis.testing.executors import MakeRig, check_executor, check_renewal, check_stops_once, checks


@dataclass
class Simulated:
    """Simulated gangs; the kernel is their clock."""

    executor: Executor
    kernel: Kernel

    def next(self) -> Event | None:
        return self.kernel.pop()


@contextmanager
def simulated(spec: App, wrap: Callable[[Executor, Kernel], Executor] = lambda e, k: e) -> Iterator[Simulated]:
    """A rig without processes."""
    kernel = Kernel()
    executor = SimulatedExecutor(BOOK, Settings(container_s=1.0), kernel, ["gpu"] * 4)
    yield Simulated(wrap(executor, kernel), kernel)


@dataclass
class Real:
    """Real processes; events come through a queue."""

    executor: Executor
    events: queue.SimpleQueue[Event]

    def next(self) -> Event | None:
        try:
            return self.events.get(timeout=PATIENCE_S)
        except queue.Empty:
            return None


def local_rig(root: Path) -> MakeRig:
    """A rig of real processes."""

    @contextmanager
    def make(spec: App) -> Iterator[Real]:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        executor = LocalExecutor(
            root,
            [Host(machine=Machine(name="m0", gpus=4))],
            lambda app, i: script("steps.py", int(spec.jobs[i].steps), 0.05),
            events.put,
            settings=SHORT,
            allow_root=os.geteuid() == 0,
        )
        with executor:
            yield Real(executor, events)

    return make


def test_the_simulated_executor_conforms() -> None:
    check_executor(simulated)


@pytest.mark.slow
@pytest.mark.parametrize("check", checks(), ids=lambda check: check.__name__)
def test_the_local_executor_conforms(check: Callable[[MakeRig], None], tmp_path: Path) -> None:
    check(local_rig(tmp_path))


def ray_rig(root: Path, cluster: RayCluster) -> MakeRig:
    """A rig of real processes on a Ray cluster's nodes, which have four GPUs in all."""

    @contextmanager
    def make(spec: App) -> Iterator[Real]:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        executor = RayExecutor(
            root,
            lambda app, i: script("steps.py", int(spec.jobs[i].steps), 0.05),
            events.put,
            # On a busy machine Ray may take seconds to bring a renewal: none of the checks is about lost machines.
            settings=replace(SHORT, lease_s=30.0),
            ray=RaySettings(address=cluster.address, owner="kit", node_root=str(root / "on-nodes")),
            allow_root=os.geteuid() == 0,
        )
        with executor:
            for _ in cluster.nodes:
                joined = events.get(timeout=PATIENCE_S)
                assert isinstance(joined, MachineJoined)
                executor.join(joined.machine)
            yield Real(executor, events)

    return make


ON_RAY = ("check_finishes", "check_renewal", "check_resizes")
"""Checks that cross the bridge and the relay with each command; ``make soak`` runs all on Ray (``THEMIS_RAY_FORMS=all``)."""


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize(
    "check",
    [check for check in checks() if check.__name__ in ON_RAY or os.environ.get("THEMIS_RAY_FORMS") == "all"],
    ids=lambda check: check.__name__,
)
def test_the_ray_executor_conforms(check: Callable[[MakeRig], None], tmp_path: Path, ray_nodes: RayCluster) -> None:
    check(ray_rig(tmp_path, ray_nodes))


def fleet_rig(root: Path) -> MakeRig:
    """A rig of real processes on two machines that joined over TLS."""

    @contextmanager
    def make(spec: App) -> Iterator[Real]:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        home = root / "home"
        executor = FleetExecutor(
            home / "run",
            lambda app, i: script("steps.py", int(spec.jobs[i].steps), 0.05),
            events.put,
            settings=replace(SHORT, lease_s=30.0),
            fleet=FleetSettings(owner="kit", members=members_file(home), authority=authority_folder(home)),
            allow_root=os.geteuid() == 0,
        )
        with executor, port_for(executor), machines(home, root / "machines") as fleet:
            for name in ("m0", "m1"):
                fleet.add(name, 2)
                joined = events.get(timeout=PATIENCE_S)
                assert isinstance(joined, MachineJoined)
                executor.join(joined.machine)
            yield Real(executor, events)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("check", checks(), ids=lambda check: check.__name__)
def test_the_fleet_executor_conforms(check: Callable[[MakeRig], None], tmp_path: Path) -> None:
    check(fleet_rig(tmp_path))


@dataclass
class Broken(Executor):
    """Starts a gang again on every renewal, or says twice that it stopped."""

    inner: Executor
    kernel: Kernel

    def admit(self, first_job: int, app: App) -> None:
        self.inner.admit(first_job, app)

    def submit(self, command: Command) -> None:
        if isinstance(command, Renew):
            self.kernel.schedule(self.kernel.now, JobStarted(job=command.jobs[0], attempt=1))
        if isinstance(command, Revoke):
            self.kernel.schedule(self.kernel.now, JobStopped(job=command.job, attempt=command.attempt, steps=99.0))
        self.inner.submit(command)


@pytest.mark.parametrize(("check", "complaint"), [(check_renewal, "2 starts"), (check_stops_once, "99")])
def test_the_kit_names_the_rule_that_was_broken(check: Callable[[MakeRig], None], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(lambda spec: simulated(spec, Broken))
