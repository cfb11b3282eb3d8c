"""Decisions per second of the whole core, and how they grow from 100 to 1,000 to 10,000 active apps.

    python benchmarks/bench_core.py [--quick]

A decision is what happens at one tick: snapshot, filter, bids, winners with payments, exact GPUs. The state is a busy
cluster of 10 GPUs for every 4 apps on which a tenth of the leases end now. Single thread, CPU seconds, medians.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

from themis.core import snapshot as snapshots
from themis.core.intend import intend
from themis.core.lifecycle import add_app
from themis.core.offer import FreeGpus
from themis.core.place import place
from themis.core.state import State
from themis.model.answers import TimeShare
from themis.model.settings import Settings
from themis.policies.api import Workbench, make_policy
from themis.profiles.models import DEFAULT_BOOK
from themis.profiles.presets import load_cluster
from themis.testing.policies import decide
from themis.traces.api import load_workload

POLICIES = ("themis", "drf", "tiresias", "fifo", "gandiva", "isolated")


def busy_state(apps: int, seed: int = 0) -> State:
    """A state with so many active apps, all GPUs leased, a tenth of the leases ending now."""
    rng = np.random.default_rng(seed)
    cluster = load_cluster(f"{max(apps * 5 // 16, 4)}x8")
    half = load_workload("themis1", seed=seed, apps=apps // 2, load=2.0).apps
    workload = [*half, *load_workload("themis2", seed=seed, apps=apps - apps // 2, load=2.0).apps]
    state = State(DEFAULT_BOOK, Settings(seed=seed))
    for machine in cluster.machines:
        state.add_machine(machine)
    for spec in workload:
        state.advance(state.now + 1.0)
        add_app(state, spec, 1.0)
    free = 0
    jobs = rng.permutation(state.jobs.size)
    for j in jobs.tolist():
        size = min(int(rng.integers(state.jobs.gpus_min[j], state.jobs.gpus_max[j] + 1)), cluster.gpus - free)
        if size < state.jobs.gpus_min[j]:
            break
        gpus = tuple(range(free, free + size))
        free += size
        until = state.now + 500.0 if rng.random() < 0.1 else state.now + 560.0
        state.lease(j, gpus, 0, until, state.locality(gpus))
        state.occupy(j, gpus, 0)
        state.start(j)
        if free == cluster.gpus:
            break
    state.advance(state.now + 500.0)
    return state


def one_decision(state: State, policy: str) -> None:
    """Snapshot, answer, gangs, exact GPUs."""
    view = snapshots.take(state)
    offer = FreeGpus(state=state, by=state.now)
    answer = decide(make_policy(policy), view, Workbench()).answer
    if isinstance(answer, TimeShare):
        state.rounds.adopt(answer, state.now, state.version)
    place(state, intend(state, answer, offer), offer)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 and 1,000 apps only")
    sizes = (100, 1000) if parser.parse_args().quick else (100, 1000, 10_000)
    print(f"{'policy':<12}" + "".join(f"{n:>10,} apps /s   x slower" for n in sizes))
    states = {n: busy_state(n) for n in sizes}
    for n, state in states.items():
        view = snapshots.take(state)
        print(
            f"# {n:,} apps: {view.jobs:,} jobs, {len(view.gpu_free):,} GPUs, {int(view.free.sum()):,} on offer, "
            f"snapshot {view.nbytes() / 1e6:.1f} MB"
        )
    for policy in POLICIES:
        line, before = f"{policy:<12}", None
        for n, state in states.items():
            seconds = []
            for _ in range(5 if n < 10_000 else 1):
                start = time.process_time()
                one_decision(state, policy)
                seconds.append(time.process_time() - start)
            spent = median(seconds)
            line += f"{1 / spent:>17.2f} {spent / before if before else 1:>9.1f}x"
            before = spent
        print(line, flush=True)


if __name__ == "__main__":
    main()
