"""Do apps receive GPU time by weight? The tables of docs/reproduction/delivered.md, section "Weights and users".

.venv/bin/python reproduction/delivered_weights.py auction     one app of weight 3 among ten, by filter f
.venv/bin/python reproduction/delivered_weights.py policies    weights 0.37, 1 and 7 on few GPUs, every sharing policy
.venv/bin/python reproduction/delivered_weights.py users       users with 1, 3 and 30 apps, every sharing policy
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

from themis.model.cluster import Cluster, Machine
from themis.model.events import AppSubmitted, Grant, Revoke
from themis.model.settings import Settings
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import make_policy
from themis.sim.runner import Simulation
from themis.traces.profiles.models import DEFAULT_BOOK

SHARING = (
    "themis",
    "themis:f=0",
    "themis:f=0.4",
    "drf",
    "gandiva",
    "tiresias",
    "round_robin",
    "shockwave",
    "proportional",
    "gandiva_fair",
    "max_min_fairness",
    "max_min_water_filling",
    "hierarchical",
    "finish_time_fairness",
    "isolated",
)
"""Policies that share by weight."""


class _Over(Exception):
    """The window that is measured has passed."""


def received(simulation: Simulation, until: float) -> dict[str, float]:
    """GPU-seconds that each app held leases for in the first ``until`` seconds, by name."""
    names: list[str] = []
    running: dict[int, tuple[float, int, int]] = {}
    out: dict[str, float] = defaultdict(float)

    def end(job: int, time: float) -> None:
        since, gpus, app = running.pop(job)
        out[names[app]] += gpus * max(min(time, until) - since, 0.0)

    def sink(time: float, record: object) -> None:
        if time > until:
            raise _Over
        match record:
            case AppSubmitted():
                names.append(record.app.name)
            case Grant():
                running[record.job] = (time, len(record.gpus), record.app)
            case Revoke():
                end(record.job, time)

    with contextlib.suppress(_Over):
        simulation.run(sink)
    for job in list(running):
        end(job, until)
    return {name: out[name] for name in names}


def world(apps: Sequence[App], machines: Sequence[int], policy: str, seed: int = 0, **settings: object) -> Simulation:
    """These apps on machines of these sizes, all in one rack, with the settings' defaults but for ``settings``."""
    cluster = Cluster(
        name="cluster", machines=tuple(Machine(name=f"m{n}", gpus=g, rack="r") for n, g in enumerate(machines))
    )
    return Simulation(
        workload=Workload(name="weights", apps=tuple(apps), source="generated"),
        cluster=cluster,
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(seed=seed, **settings),  # type: ignore[arg-type]
    )


def app_of(name: str, jobs: int, seconds: float, *, user: str = "", weight: float = 1.0, arrival: float = 0.0) -> App:
    """Jobs of one GPU and this length, whose speed does not depend on where they run."""
    each = tuple(
        Job(name=f"j{j}", model="generic", regimes=(Regime(steps=seconds),), gpus_min=1, gpus_max=1)
        for j in range(jobs)
    )
    return App(name=name, user=user or name, arrival=arrival, jobs=each, weight=weight)


def auction(policy: str, seed: int = 0) -> float:
    """GPU time of one app of weight 3 over the mean of nine of weight 1, first 15,000 s; ten apps of 16 jobs on 2x8."""
    apps = [app_of(f"a{i}", 16, 6000.0, weight=3.0 if i == 0 else 1.0) for i in range(10)]
    got = list(received(world(apps, (8, 8), policy, seed), 15_000.0).values())
    return got[0] / (sum(got[1:]) / 9)


USERS = (1, 3, 30)
WEIGHTS = (0.37, 1.0, 7.0)
WORLDS: Mapping[str, tuple[int, int, tuple[int, ...]]] = {
    "1 GPU, an app of one job for each weight": (1, 1, (1,)),
    "2 GPUs, two apps of one job for each weight": (2, 1, (2,)),
    "4 GPUs, an app of eight jobs for each weight": (1, 8, (4,)),
}
"""Apps of each weight, jobs of each app, machines."""


def by_weight(
    policy: str, of_weight: int, jobs: int, machines: Sequence[int], until: float, seed: int = 0
) -> list[float]:
    """GPU time of the apps of each weight over their share by weight, 1 where they had just that."""
    apps = [app_of(f"a{w:g}-{i}", jobs, 1e6, weight=w) for i in range(of_weight) for w in WEIGHTS]
    got = received(world(apps, machines, policy, seed), until)
    total = sum(got.values())
    return [sum(got[f"a{w:g}-{i}"] for i in range(of_weight)) / total / (w / sum(WEIGHTS)) for w in WEIGHTS]


def by_user(
    policy: str, between: str, machines: Sequence[int] = (4,), until: float = 120_000.0, seed: int = 0
) -> list[float]:
    """GPU time of users with 1, 3 and 30 apps of two jobs over a third of all, 1 where all users had the same."""
    apps = [app_of(f"u{n}-{i}", 2, 1e6, user=f"u{n}") for n in USERS for i in range(n)]
    got = received(world(apps, machines, policy, seed, between=between), until)
    total = sum(got.values())
    return [sum(x for name, x in got.items() if name.startswith(f"u{n}-")) / total * len(USERS) for n in USERS]


def main(what: str) -> None:
    """Print one table."""
    if what == "auction":
        for policy in ("drf", "themis", "themis:f=0", "themis:f=0.4", "themis:f=0.8"):
            print(f"| {policy} |" + "|".join(f" {auction(policy, seed):.2f} " for seed in range(3)) + "|", flush=True)
    if what == "policies":
        print("| policy |" + "|".join(f" {name}: {WEIGHTS} " for name in WORLDS) + "|")
        for policy in SHARING:
            cells = [by_weight(policy, *setting, 120_000.0) for setting in WORLDS.values()]
            print(
                f"| {policy} | " + " | ".join(" / ".join(f"{x:.2f}" for x in cell) for cell in cells) + " |", flush=True
            )
    if what == "users":
        print(f"| policy | between apps: users of {USERS} apps | between users |")
        for policy in SHARING:
            cells = [by_user(policy, between) for between in ("apps", "users")]
            print(
                f"| {policy} | " + " | ".join(" / ".join(f"{x:.2f}" for x in cell) for cell in cells) + " |", flush=True
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
