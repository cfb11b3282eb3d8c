"""A policy whose answers come later, as those of the service's worker do, and random steps of a service that has it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import numpy as np
from fake import World, request

from themis.errors import InputError
from themis.model.events import JobProgress, JobStopped, MachineFailed, MachineReturned
from themis.model.snapshot import Snapshot
from themis.policies.api import Policy, Workbench
from themis.service.api.submission import submit
from themis.service.api.views import rho_now, state_now
from themis.service.engine.config import Config
from themis.service.engine.setting_changes import with_values
from themis.service.engine.solving import Reply, Task, decide

WEIGHTS = (0.37, 1 / 3, 0.1, 1.0, 0.7, 1e-3)


@dataclass
class LateSolver:
    """Answers when the test says so."""

    policy: Policy
    view: Snapshot | None = None
    waiting: list[Task] = field(default_factory=list)

    def start(self, task: Task) -> None:
        self.waiting = [task]

    def overdue(self) -> str:
        return ""

    def ready(self) -> None:
        pass

    def close(self) -> None:
        pass

    def follow(self, policy: Policy) -> None:
        self.policy, self.waiting = policy, []

    def limit(self, seconds: float) -> None:
        pass

    def reply(self) -> Reply | None:
        """The answer to what is waited for, or None."""
        if not self.waiting:
            return None
        task = self.waiting.pop()
        if task.snapshot is not None:
            self.view = task.snapshot
        assert self.view is not None
        if task.bids is not None:
            self.view = replace(self.view, bids=task.bids)
        return decide(self.policy, self.view, task.version, Workbench())


def answer(w: World) -> None:
    """The policy's answer comes, if one is waited for."""
    solver = w.arbiter.engine.solver
    assert isinstance(solver, LateSolver)
    if (reply := solver.reply()) is not None:
        w.arbiter.queue.put(reply)
        w.turn()


_weights = cycle(WEIGHTS)


def something(w: World, rng: np.random.Generator) -> None:
    """One of the things that happen to a service, at an odd moment."""
    w.clock[0] += float(rng.exponential(0.7))
    state = w.arbiter.state
    running = sorted(state.job_gpus)
    match int(rng.integers(11)):
        case 0 | 1:
            weight = WEIGHTS[int(rng.integers(len(WEIGHTS)))]
            more = {"weight": weight, "user": f"u{rng.integers(3)}"}
            low = int(rng.integers(1, 3))
            gpus = (low, low + int(rng.integers(3)))
            w.ask(lambda a: submit(a, request("app", gpus=gpus, jobs=int(rng.integers(1, 4)), **more)))
        case 2 if running:
            w.finish(int(rng.choice(running)))
        case 3 if running:
            j = int(rng.choice(running))
            w.say(JobProgress(job=j, attempt=int(state.jobs.attempt[j]), steps=float(rng.uniform(0, 90))))
        case 4 if running:
            j = int(rng.choice(running))
            w.say(JobStopped(job=j, attempt=int(state.jobs.attempt[j]), steps=float(rng.uniform(0, 90))))
        case 5:
            n = int(rng.integers(2))
            w.say(MachineFailed(machine=n) if state.machine_up[n] else MachineReturned(machine=n))
        case 6:
            active = np.flatnonzero(state.apps.active[: state.apps.size])
            if len(active):
                a = int(rng.choice(active))
                w.ask(lambda arbiter: [arbiter.cancel, arbiter.hold, arbiter.resume][int(rng.integers(3))](a))
        case 7:
            w.ask(lambda arbiter: rho_now(state_now(arbiter)))
        case 8:
            w.turn(float(rng.uniform(0, 3)))
        case _:
            answer(w)


CHANGES = (
    {"policy": ("themis", "themis:f=0.4", "drf", "max_min_fairness", "shockwave", "tiresias", "fair_finish")},
    {"lease": (2.0, 5.0, 0.7), "tick": (1.0, 0.5)},
    {"step": (0.0, 1.0), "gather": (0.0, 0.1), "container": (0.0, 0.3)},
    {"between": ("apps", "users", "groups")},
    {"users.u0.weight": (0.37, 3.0, 1 / 3), "users.u1.gpus": (1, 2, None)},
    {"groups.g.weight": (0.1, 7.0), "users.u2.group": ("g", None), "others.weight": (0.7, 1.0)},
    {"machines": ((2, 2), (4, 2), (1, 2), (2, 1, 3), (2,), (5, 3))},
)
"""Settings that change together, with values that each may get."""


def change_something(w: World, rng: np.random.Generator) -> None:
    """An administrator changes some settings; what cannot be is refused, and changes nothing."""
    texts = CHANGES[int(rng.integers(len(CHANGES)))]
    values = {name: known[int(rng.integers(len(known)))] for name, known in texts.items()}
    if "machines" in values:
        machines = [{"name": f"m{n}", "gpus": gpus} for n, gpus in enumerate(values.pop("machines"))]
        values |= {"gpus": 0, "machines": {"name": "test", "machines": machines}}
    for user in ("u0", "u1", "u2"):
        if f"users.{user}.gpus" in values or f"users.{user}.group" in values:
            values.setdefault(f"users.{user}.weight", 1.0)
    with suppress(TooShort):
        w.ask(lambda a: a.change(lambda config: wanted(config, values), "ann"))


class TooShort(InputError):
    """A lease that is shorter than a tick, which is refused."""


def wanted(config: Config, values: dict[str, Any]) -> Config:
    """The settings in force with these."""
    try:
        return with_values(config, values)
    except InputError as error:
        if "shorter than tick" in str(error):
            raise TooShort(str(error)) from None
        raise
