"""What is decided is delivered: GPUs that idle although a waiting job fits.

    python reproduction/delivered_idle.py [--quick] [--before] [--policies NAME,NAME]

Prints a table of docs/reproduction/delivered.md: two generated workloads on sim-64, every policy but those that idle on purpose.
Simulated, Themis' speed model, every start costs 35 s and a checkpoint. ``--before``: as before decision 21, where nothing was
given out that a policy left over.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from themis.model.settings import Settings
from themis.policies.api import make_policy, policy_names
from themis.report.idle import IdleFold, IdleTime
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

WORKLOADS = (
    "themis2:apps=30,load=1.4,gpus=64,scale=0.1",
    "themis1:apps=20,load=2,gpus=64,scale=0.1",
)
QUICK = ("themis2:apps=6,load=1.4,gpus=8,scale=0.02",)
IDLE_HEAD = (
    "| workload | policy | idle with a fitting waiter, GPU-s | of capacity % | idle in all, GPU-s | stopped for idle GPUs |\n"
    "|---|---|---|---|---|---|"
)


def conserving() -> list[str]:
    """Policies that leave no GPU idle on purpose."""
    return [name for name in policy_names() if make_policy(name).pace.spare]


def idle_time(workload: str, policy: str, settings: Settings, cluster: str = "sim-64") -> IdleTime:
    """One run's idle time."""
    name, _, rest = workload.partition(":")
    options: dict[str, Any] = dict(part.split("=") for part in rest.split(","))
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny workloads, for tests")
    parser.add_argument("--before", action="store_true", help="without what decision 21 gives out")
    parser.add_argument("--policies", default="", help="names, joined by commas")
    given = parser.parse_args(arguments)
    chosen = given.policies.split(",") if given.policies else conserving()
    for row in idle_rows(chosen, quick=given.quick, before=given.before):
        print(row, flush=True)


if __name__ == "__main__":
    main()
