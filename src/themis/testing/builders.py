"""Small worlds for tests: a workload drawn at random, a state at some instant, the snapshots of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from themis.core import take_snapshot as snapshots
from themis.core.app_lifecycle import add_app
from themis.core.state import State
from themis.model.cluster import Cluster, Machine
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.speed import ANY_TYPE, ProfileBook, linear
from themis.model.units import NONE, Seconds
from themis.model.workload import (
    App,
    Bag,
    CurveStopping,
    Halving,
    Hyperband,
    Job,
    LossCurve,
    Regime,
    Rung,
    Workload,
)
from themis.policies.api import Policy
from themis.sim.runner import Outage, Simulation

BOOK = ProfileBook.of(
    [
        linear("flat", 1.0, slowdown=(1.0, 1.0, 1.0, 1.0)),
        linear("chatty", 1.0, slowdown=(1.0, 1.0, 1.3, 1.6)),
        linear("two_speeds", 1.0, type_speed={"fast": 3.0}),
    ]
)
"""One second per step on one GPU; ``flat`` never slows down, ``chatty`` does across machines."""


def shared_book(share: float) -> ProfileBook:
    """The same models, each of which keeps this share of its speed with any partner on one GPU."""
    names = tuple(BOOK.profiles)
    return ProfileBook.of(
        replace(BOOK.get(name), beside={(ANY_TYPE, 0, other, 0): share for other in names}) for name in names
    )


NO_OVERHEAD = Settings(container_s=0.0, validate=True)


def machines(*gpus: int, per_rack: int = 8, gpu_type: str = "gpu") -> Cluster:
    """A cluster of machines with these numbers of GPUs, in racks of ``per_rack``."""
    return Cluster(
        name="test",
        machines=tuple(
            Machine(name=f"m{i}", gpus=g, rack=f"r{i // per_rack}", gpu_type=gpu_type) for i, g in enumerate(gpus)
        ),
    )


def job(steps: float, gpus: int | tuple[int, int] = 1, *, model: str = "flat", **more: object) -> Job:
    """A job of this many steps; ``gpus`` is a number or (fewest, most)."""
    low, high = (gpus, gpus) if isinstance(gpus, int) else gpus
    given = {"name": "j", "step_scale": 1.0, **more}
    return Job(model=model, regimes=(Regime(steps=steps),), gpus_min=low, gpus_max=high, **given)  # type: ignore[arg-type]


def app(name: str, jobs: Sequence[Job], arrival: Seconds = 0.0, *, user: str = "u", **more: object) -> App:
    """An app of these jobs."""
    return App(name=name, user=user, arrival=arrival, jobs=tuple(jobs), **more)  # type: ignore[arg-type]


def state_at(
    cluster: Cluster,
    apps: Sequence[App],
    *,
    held: Sequence[tuple[int, tuple[int, ...], Seconds]] = (),
    now: Seconds = 0.0,
    settings: Settings = NO_OVERHEAD,
    book: ProfileBook = BOOK,
) -> State:
    """A state in which all apps have arrived and jobs hold GPUs: (job id, GPU ids, until), training since time 0.

    ``now`` is when it is looked at.
    """
    state = State(book, settings)
    for machine in cluster.machines:
        state.add_machine(machine)
    for spec in sorted(apps, key=lambda a: a.arrival):
        state.advance(spec.arrival)
        add_app(state, spec, spec.weight)
    for j, gpus, until in held:
        state.lease(j, gpus, 0, until, state.locality(gpus))
        state.occupy(j, gpus, 0)
        state.start(j)
    state.advance(now)
    return state


def snapshot_of(cluster: Cluster, apps: Sequence[App], **more: object) -> Snapshot:
    """The snapshot of ``state_at``."""
    return snapshots.take(state_at(cluster, apps, **more))  # type: ignore[arg-type]


def random_workload(seed: int, *, apps: int = 12, span: Seconds = 4000.0, largest: int = 4) -> Workload:
    """Single jobs, bags, elastic bags and sweeps of every kind, a few thousand GPU-seconds each."""
    rng = np.random.default_rng(seed)
    return Workload(
        name=f"random-{seed}",
        apps=tuple(_random_app(rng, i, float(rng.uniform(0, span)), largest) for i in range(apps)),
        source="themis.testing",
    )


def _random_app(rng: np.random.Generator, i: int, arrival: Seconds, largest: int) -> App:
    count = 6 if i % 6 in (3, 5) else int(rng.choice([1, 2, 4, 6]))
    low = int(rng.choice([g for g in (1, 1, 2, 4) if g <= largest]))
    high = low if rng.random() < 0.6 else min(2 * low, largest)
    model = str(rng.choice(["flat", "chatty"]))
    jobs = [
        job(
            float(rng.integers(200, 3000)),
            (low, high),
            model=model,
            name=f"j{k}",
            step_scale=float(rng.uniform(0.8, 1.2)),
            loss=LossCurve(a=1.0, b=0.01, c=float(rng.uniform(0, 0.5))),
        )
        for k in range(count)
    ]
    if count == 4 and rng.random() < 0.7:
        rungs = tuple(Rung(jobs=n, steps=float(rng.integers(100, 600))) for n in (4, 2, 1))
        total = sum(r.steps for r in rungs)
        jobs = [job(total, (low, high), model=model, name=f"j{k}", loss=jobs[k].loss) for k in range(count)]
        return app(f"a{i}", jobs, arrival, user=f"u{i % 3}", tuner=Halving(rungs=rungs))
    if i % 6 == 3:
        tuner = CurveStopping(check_steps=float(rng.integers(60, 150)), keep=int(rng.integers(1, 3)), noise=0.02)
        return app(f"a{i}", jobs, arrival, user=f"u{i % 3}", tuner=tuner)
    if i % 6 == 5:
        brackets = tuple(
            Halving(rungs=tuple(Rung(jobs=n, steps=float(rng.integers(100, 500))) for n in sizes))
            for sizes in ((4, 2, 1), (2, 1))
        )
        return app(f"a{i}", jobs, arrival, user=f"u{i % 3}", tuner=Hyperband(brackets=brackets))
    return app(f"a{i}", jobs, arrival, user=f"u{i % 3}", tuner=Bag(), weight=float(rng.choice([1.0, 1.0, 2.0])))


def random_simulation(
    policy: Policy, seed: int, *, name: str = "policy", failures: bool = True, mixed: bool = False, beside: float = 0.0
) -> Simulation:
    """A simulation of a random workload on a small, uneven cluster, with failures, every invariant checked.

    ``mixed``: machines of two types, with jobs that may use one of them only or could use more GPUs than either has.
    ``beside``: share of its speed that any job keeps beside another on one GPU; 0: none can share.
    """
    book = shared_book(beside) if beside else BOOK
    cluster, workload = machines(4, 4, 2, 2, 1, 1, per_rack=3), random_workload(seed)
    if mixed:
        cluster, workload = _two_types(cluster), _choosy(workload)
    broken = (Outage(time=1500.0, machine=0, lasts=900.0), Outage(time=2222.0, machine=4, lasts=5000.0))
    return Simulation(
        workload=workload,
        cluster=cluster,
        book=book,
        policy_name=name,
        policy=policy,
        settings=Settings(lease_s=300.0, tick_s=30.0, seed=seed, validate=True),
        outages=broken if failures else (),
    )


def uneven_simulation(policy: Policy, seed: int, *, name: str = "policy") -> Simulation:
    """A random workload with odd weights and gangs of up to 8 GPUs on machines of three types, every second one with failures."""
    rng = np.random.default_rng(seed)
    types = ("slow", "fast", "odd")
    sizes = (8, 4, 4, 2, 1)
    cluster = machines(*sizes, per_rack=2)
    cluster = replace(
        cluster, machines=tuple(replace(m, gpu_type=types[n % 3]) for n, m in enumerate(cluster.machines))
    )
    apps = []
    for i, spec in enumerate(random_workload(seed, span=1500.0).apps):
        only = (types[i % 3],) if i % 5 == 0 else ()
        gang = int(rng.choice([1, 3, 8])) if len(spec.jobs) == 1 else 0
        jobs = tuple(
            replace(j, gpu_types=only or j.gpu_types, gpus_min=min(j.gpus_min, 2), gpus_max=min(j.gpus_max, 2))
            if only
            else replace(j, gpus_min=gang or j.gpus_min, gpus_max=gang or j.gpus_max)
            for j in spec.jobs
        )
        apps.append(replace(spec, jobs=jobs, weight=float(rng.choice([0.37, 1 / 3, 1.0, 7.0]))))
    broken = (Outage(time=700.0, machine=1, lasts=600.0),) if seed % 2 else ()
    return Simulation(
        workload=Workload(name=f"uneven-{seed}", apps=tuple(apps), source="themis.testing"),
        cluster=cluster,
        book=BOOK,
        policy_name=name,
        policy=policy,
        settings=Settings(lease_s=300.0, tick_s=30.0, seed=seed, validate=True),
        outages=broken,
    )


def _two_types(cluster: Cluster) -> Cluster:
    types = ("slow", "fast")
    return Cluster(
        name=cluster.name, machines=tuple(replace(m, gpu_type=types[n % 2]) for n, m in enumerate(cluster.machines))
    )


def _choosy(workload: Workload) -> Workload:
    """Every third app may use one type only, and elastic jobs could use three times the GPUs."""
    apps = []
    for i, spec in enumerate(workload.apps):
        only = ("slow",) if i % 6 == 0 else ("fast",) if i % 3 == 0 else ()
        jobs = (
            replace(
                j,
                gpu_types=only,
                gpus_max=j.gpus_max * (1 if j.gpus_max == j.gpus_min else 3),
                model="two_speeds" if i % 4 == 1 else j.model,
            )
            for j in spec.jobs
        )
        apps.append(replace(spec, jobs=tuple(jobs)))
    return replace(workload, apps=tuple(apps))


def leased_twice(log: Sequence[tuple[Seconds, object]]) -> list[int]:
    """GPUs that a log grants to two jobs on one seat at the same time; empty for every correct log."""
    from themis.model.events import Grant, Revoke

    holder: dict[tuple[int, int], int] = {}
    where: dict[int, list[tuple[int, int]]] = {}
    wrong = []
    for _, record in log:
        if isinstance(record, Revoke):
            for key in where.pop(record.job, []):
                holder.pop(key, None)
        elif isinstance(record, Grant):
            keys = [(g, record.seat) for g in record.gpus]
            wrong += [g for g, seat in keys if holder.get((g, seat), NONE) != NONE]
            holder.update(dict.fromkeys(keys, record.job))
            where[record.job] = keys
    return wrong
