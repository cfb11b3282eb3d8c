"""What is decided is delivered: GPUs that idle although a waiting job fits, and newcomers' time to their first GPU.

    python reproduction/delivered_idle.py [idle|newcomers] [--quick] [--before] [--policies NAME,NAME] [--seeds N]

Prints the tables of docs/reproduction/delivered.md. Simulated, Themis' speed model, every start costs 35 s and a checkpoint.
``idle``: two generated workloads on sim-64, every policy but those that idle on purpose. ``newcomers``: two users' long jobs
hold all 64 GPUs while others' short jobs come. ``--before``: as before decision 21, where nothing was given out that a policy
left over.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from themis.model.settings import Settings
from themis.model.units import Float, Locality, Seconds
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import make_policy, policy_names
from themis.report.idle import IdleFold, IdleTime
from themis.report.intervals import t_interval
from themis.sim.runner import Record, Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

WORKLOADS = (
    "themis2:apps=30,load=1.4,gpus=64,scale=0.1",
    "themis1:apps=20,load=2,gpus=64,scale=0.1",
)
QUICK = ("themis2:apps=6,load=1.4,gpus=8,scale=0.02",)
NEWCOMERS = ("themis", "themis:f=0", "drf", "optimus", "tiresias", "gandiva")
SHORTEST_S: Seconds = 180.0
"""The live service's default."""
LEASES = {"one length (600 s)": 0.0, "shorter under contention (180 s)": SHORTEST_S}
IDLE_HEAD = (
    "| workload | policy | idle with a fitting waiter, GPU-s | of capacity % | idle in all, GPU-s | stopped for idle GPUs |\n"
    "|---|---|---|---|---|---|"
)
NEW_HEAD = (
    "| gangs held | policy | leases | first GPU mean s | 90 % s | worst s | newcomers' JCT s | starts |\n"
    "|---|---|---|---|---|---|---|---|"
)


def conserving() -> list[str]:
    """Policies that leave no GPU idle on purpose."""
    return [name for name in policy_names() if make_policy(name).pace.spare]


def idle_time(workload: str, policy: str, settings: Settings, cluster: str = "sim-64") -> IdleTime:
    """One run's idle time."""
    name, _, rest = workload.partition(":")
    options = dict(part.split("=") for part in rest.split(","))
    fold = IdleFold()
    Simulation(
        workload=load_workload(name, seed=settings.seed, **options),
        cluster=load_cluster(cluster),
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=settings,
    ).run(fold)
    return fold.result()


def idle_rows(policies: Sequence[str], *, quick: bool = False, before: bool = False) -> Iterator[str]:
    """The table "Idle GPUs", row by row."""
    yield IDLE_HEAD
    for workload in QUICK if quick else WORKLOADS:
        for policy in policies:
            found = idle_time(workload, policy, Settings(renew_idle=not before), "2x4" if quick else "sim-64")
            yield (
                f"| {workload.partition(':')[0]} | {policy} | {found.fitting:,.0f} | {100 * found.share:.3f} | {found.idle:,.0f} "
                f"| {found.stopped_idle} |"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What newcomers met: seconds to their first GPU and to their end, and the run's starts."""

    first: Float
    jct: Float
    starts: int


def newcomers(policy: str, gang: int, shortest_s: Seconds, seed: int, *, gpus: int = 64, count: int = 60) -> Arrivals:
    """Two residents with jobs of ``gang`` GPUs hold the cluster; single-GPU jobs of 5 minutes come every 4 minutes on average."""
    rng = np.random.default_rng(seed)
    machines = gpus // 8
    times = 1200.0 + np.cumsum(rng.exponential(240.0, count))
    rate = DEFAULT_BOOK.rate("generic", 0, "gpu", 1, Locality.SLOT)

    def jobs(number: int, size: int, seconds: float) -> tuple[Job, ...]:
        steps = seconds * rate * size
        return tuple(
            Job(name=f"j{k}", model="generic", regimes=(Regime(steps=steps),), gpus_min=size, gpus_max=size)
            for k in range(number)
        )

    residents = [App(name=f"r{i}", user=f"r{i}", arrival=0.0, jobs=jobs(gpus // gang, gang, 20000.0)) for i in range(2)]
    others = [App(name=f"n{i}", user=f"n{i}", arrival=t, jobs=jobs(1, 1, 300.0)) for i, t in enumerate(times.tolist())]
    fold, ends = IdleFold(), dict[int, Seconds]()
    starts = 0

    def sink(time: Seconds, record: Record) -> None:
        nonlocal starts
        fold.add(time, record)
        kind = type(record).__name__
        starts += kind == "Grant"
        if kind == "AppFinished":
            ends[record.app] = record.jct  # type: ignore[union-attr]

    Simulation(
        workload=Workload(name="newcomers", apps=(*residents, *others), source="two residents and newcomers"),
        cluster=load_cluster(f"{machines}x8"),
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(seed=seed, shortest_lease_s=shortest_s),
    ).run(sink)
    first = np.array(fold.result().first_gpu[2:])
    return Arrivals(first=first, jct=np.array([ends[a] for a in range(2, 2 + count)]), starts=starts)


def newcomer_rows(policies: Sequence[str], seeds: int, *, quick: bool = False) -> Iterator[str]:
    """The table "Newcomers", row by row; then how much sooner they get GPUs, paired by seed."""
    yield NEW_HEAD
    gains = []
    for gang in (1,) if quick else (1, 8):
        for policy in policies:
            means = []
            for label, shortest_s in LEASES.items():
                size = {"gpus": 8, "count": 6} if quick else {}
                runs = [newcomers(policy, gang, shortest_s, seed, **size) for seed in range(seeds)]
                first, jct = (np.concatenate([getattr(r, name) for r in runs]) for name in ("first", "jct"))
                means.append(np.array([r.first.mean() for r in runs]))
                yield (
                    f"| {gang} | {policy} | {label} | {first.mean():.0f} | {np.quantile(first, 0.9):.0f} | {first.max():.0f} "
                    f"| {jct.mean():.0f} | {np.mean([r.starts for r in runs]):.0f} |"
                )
            difference = t_interval((means[0] - means[1]).tolist())
            interval = f"{difference.mean:.0f} s ({difference.low:.0f} to {difference.high:.0f})"
            gains.append(f"gangs of {gang}, {policy}: first GPU sooner by {interval}, 95 % over {seeds} seeds")
    yield ""
    yield from gains


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("idle", "newcomers"))
    parser.add_argument("--quick", action="store_true", help="tiny workloads, for tests")
    parser.add_argument("--before", action="store_true", help="idle: without what decision 21 gives out")
    parser.add_argument("--policies", default="", help="names, joined by commas")
    parser.add_argument("--seeds", type=int, default=5, help="newcomers: runs of each row")
    given = parser.parse_args(arguments)
    chosen = given.policies.split(",") if given.policies else None
    if given.what != "newcomers":
        for row in idle_rows(chosen or conserving(), quick=given.quick, before=given.before):
            print(row, flush=True)
    if given.what != "idle":
        for row in newcomer_rows(chosen or NEWCOMERS, given.seeds, quick=given.quick):
            print(row, flush=True)


if __name__ == "__main__":
    main()
