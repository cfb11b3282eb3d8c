"""What gangs receive under time shares where machines have no room for all of them, with placement in the shares and without.

    python reproduction/delivered_placement.py [SEEDS] [measured]

12 machines of 4 GPUs; 16 to 24 gangs of 2 to 4 GPUs, half of them slower across machines (network-bound), half not, and single
jobs, drawn from a seed; endless jobs, 100 rounds. Useful GPU-seconds of all and of network-bound gangs; received over entitled.
With ``measured`` the jobs are of seven models with Gavel's measured rates, together and apart.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass

import numpy as np

from themis.model.cluster import Cluster, Machine
from themis.model.settings import Settings
from themis.model.speed import ProfileBook, linear
from themis.model.units import Seconds
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import make_policy
from themis.report.metrics import Fold
from themis.sim.runner import Record, Simulation
from themis.traces.profiles.measured import gavel_book

ROUND = 360.0
BOOK = ProfileBook.of(
    [
        linear("network", 1.0, slowdown=(1.0, 1.0, 3.0, 4.0)),
        linear("compute", 1.0, slowdown=(1.0, 1.0, 1.0, 1.0)),
    ]
)
MODELS = ("LM", "ResNet-18", "Transformer", "ResNet-50", "A3C", "CycleGAN", "Recommendation")
"""The first three lose a quarter and more of their speed across machines."""
POLICIES = (
    "max_min_fairness",
    "max_min_water_filling",
    "finish_time_fairness",
    "makespan",
    "max_throughput",
    "sjf_hetero",
    "fifo_hetero",
)


class _Over(Exception):
    """The run is long enough."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Useful GPU-seconds of all jobs and of the network-bound gangs, and received over entitled: the least, and the mean."""

    useful: float
    network: float
    worst: float
    mean: float


def jobs_of(seed: int, *, measured: bool = False) -> list[App]:
    """Apps of one endless job each; named network-... where they are slower across machines."""
    rng = np.random.default_rng(seed)
    sizes = [int(g) for g in rng.choice([2, 3, 3, 3, 4], size=int(rng.integers(16, 25)))]
    models = ["network" if i % 2 else "compute" for i in range(len(sizes))]
    sizes, models = [*sizes, *[1] * 6], [*models, *["compute"] * 6]
    kinds = list(models)
    if measured:
        models = [MODELS[i] for i in rng.integers(len(MODELS), size=len(sizes))]
        kinds = ["network" if m in MODELS[:3] and g > 1 else "compute" for m, g in zip(models, sizes)]
    return [
        App(
            name=f"{kind}-{i}",
            user=f"u{i}",
            arrival=0.0,
            jobs=(Job(name="j", model=model, regimes=(Regime(steps=1e12),), gpus_min=g, gpus_max=g),),
        )
        for i, (g, model, kind) in enumerate(zip(sizes, models, kinds))
    ]


def run(policy: str, apps: list[App], machines: int = 12, rounds: int = 100, book: ProfileBook = BOOK) -> Found:
    """Simulate so many rounds."""
    fold = Fold()

    def sink(now: Seconds, record: Record) -> None:
        fold.add(now, record)
        if now >= rounds * ROUND:
            raise _Over

    on = Cluster(name="c", machines=tuple(machine_of(n) for n in range(machines)))
    with contextlib.suppress(_Over):
        Simulation(
            workload=Workload(name="placement", apps=tuple(apps), source="generated"),
            cluster=on,
            book=book,
            policy_name=policy,
            policy=make_policy(policy),
            settings=Settings(),
        ).run(sink)
    found = [(app.name, *fold.delivered(a)[:2]) for a, app in enumerate(apps)]
    parts = np.array([got / due for _, due, got in found if due > 0])
    return Found(
        useful=sum(got for *_, got in found),
        network=sum(got for name, _, got in found if name.startswith("network")),
        worst=float(parts.min()),
        mean=float(parts.mean()),
    )


def machine_of(number: int) -> Machine:
    """A machine of 4 P100, eight to a rack."""
    return Machine(name=f"m{number}", gpus=4, rack=f"r{number // 8}", gpu_type="P100")


def main(seeds: int, *, measured: bool = False) -> None:
    """Print a table."""
    book = gavel_book() if measured else BOOK
    print(
        "| policy | useful before | after | network-bound before | after | least part before | after | mean before | after |"
    )
    for policy in POLICIES:
        before, after = (
            [run(f"{policy}:placement={on}", jobs_of(seed, measured=measured), book=book) for seed in range(seeds)]
            for on in ("false", "true")
        )
        cells = []
        for name in ("useful", "network", "worst", "mean"):
            one, two = (np.array([getattr(found, name) for found in runs]) for runs in (before, after))
            scale = 1e6 if name in ("useful", "network") else 1.0
            change = (two - one) / scale
            half = 1.96 * change.std(ddof=1) / np.sqrt(len(change)) if len(change) > 1 else np.nan
            cells += [f"{one.mean() / scale:.3f}", f"{two.mean() / scale:.3f} ({change.mean():+.3f} ± {half:.3f})"]
        print(f"| {policy} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, measured="measured" in sys.argv[2:])
