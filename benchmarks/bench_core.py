"""CPU seconds of whole decisions, and how they grow from 100 to 1,000 to 10,000 active apps.

    python benchmarks/bench_core.py [--quick] [--sizes 100,1000] [--gpus 10000] [--policies themis,drf]

A decision is what happens at one tick, as users run it: snapshot, policy (`themis`: filter, bids, winners with payments),
gangs, exact GPUs, what is left over. Writing the leases down is left out, as it would change the state. The state is a
busy cluster of 10 GPUs for every 4 apps on which a tenth of the leases end now. Single thread, medians. The state is frozen for the
garbage collector first (`gc.freeze`), because in a scheduler that runs it is old and rarely visited.
For `fair_finish` the reference is forecast in each decision, as after an arrival; otherwise it is known from the one before.
The reference in the same run reads the same columns: each is copied, and the jobs are sorted by app and work left.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

import numpy as np

from themis.core import reference
from themis.core import take_snapshot as snapshots
from themis.core.app_lifecycle import add_app
from themis.core.conserve import left_over
from themis.core.intend import adopt, intend
from themis.core.offer import FreeGpus
from themis.core.place import place
from themis.core.placed_gangs import Placed
from themis.core.state import State
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.snapshot_columns import columns_of
from themis.model.units import Int
from themis.model.workload import App, Job, Regime
from themis.policies.api import Workbench, make_policy
from themis.testing.policies import decide
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

POLICIES = ("themis", "fair_finish", "drf", "tiresias", "fifo", "gandiva", "max_min_fairness", "isolated")
SIZES = (100, 1000, 10_000)


def elastic_sweeps(apps: int, seed: int) -> Sequence[App]:
    """Sweeps of elastic jobs, half of them of either mix of the Themis paper."""
    half = load_workload("themis1", seed=seed, apps=apps // 2, load=2.0).apps
    return [*half, *load_workload("themis2", seed=seed, apps=apps - apps // 2, load=2.0).apps]


def rigid_gangs(apps: int, seed: int) -> Sequence[App]:
    """Apps of 1 to 3 rigid jobs of 1, 2, 4 or 8 GPUs, an hour to three days of work each."""
    rng = np.random.default_rng(seed)
    names = sorted(DEFAULT_BOOK.profiles)
    made = []
    for i in range(apps):
        model = names[int(rng.integers(len(names)))]
        jobs = [
            Job(
                name=f"j{k}",
                model=model,
                regimes=(Regime(steps=float(rng.uniform(1, 72)) * 3600.0),),
                gpus_min=gang,
                gpus_max=gang,
            )
            for k, gang in enumerate(rng.choice([1, 2, 4, 8], int(rng.integers(1, 4))).tolist())
        ]
        made.append(App(name=f"a{i}", user="u", arrival=float(i), jobs=tuple(jobs)))
    return made


KINDS: dict[str, tuple[Callable[[int, int], Sequence[App]], float]] = {
    "elastic": (elastic_sweeps, 2.5),
    "rigid": (rigid_gangs, 1.0),
}
"""Apps of each kind, and GPUs for each app."""


def busy_state(apps: int, seed: int = 0, total: int = 0, kind: str = "elastic") -> State:
    """A state with this many active apps, all GPUs leased, a tenth of the leases ending now.

    ``total`` is the number of GPUs; 0 takes the number that belongs to the kind of app.
    """
    rng = np.random.default_rng(seed)
    make, each = KINDS[kind]
    cluster = load_cluster(f"{max((total or int(apps * each)) // 8, 4)}x8")
    workload = make(apps, seed)
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


def one_decision(state: State, policy: str) -> list[Placed]:
    """Snapshot, answer, gangs, exact GPUs, what is left over; what would be leased."""
    made = make_policy(policy)
    reference.keep(state, "reference" in made.needs)
    view = snapshots.take(state, needs=made.needs)
    offer = FreeGpus(state=state, by=state.now)
    answer = decide(made, view, Workbench()).answer
    adopt(state, answer, state.version)
    intent = intend(state, answer, offer)
    placed = place(state, intent.gangs, offer)
    return placed + left_over(state, intent, offer, placed)


def read_columns(view: Snapshot) -> Int:
    """The reference: every column of the snapshot once, and the order of all jobs."""
    for name in columns_of(Snapshot):
        column = getattr(view, name)
        if isinstance(column, np.ndarray):
            column.copy()
    return np.lexsort((view.job_left, view.job_app))


def seconds(work: Callable[[], object], times: int) -> float:
    """CPU seconds of a call, median, after one that is not counted."""
    work()
    spent = []
    for _ in range(times):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return median(spent)


def rows(
    sizes: Sequence[int], policies: Sequence[str], times: int = 5, gpus: int = 0, kind: str = "elastic"
) -> Iterator[str]:
    """The table's lines."""
    yield "| policy | apps | CPU s | / reference | times the size before |"
    yield "|---|---|---|---|---|"
    before: dict[str, float] = {}
    for n in sizes:
        state = busy_state(n, total=gpus, kind=kind)
        gc.collect()
        gc.freeze()
        view = snapshots.take(state)
        columns = seconds(partial(read_columns, view), times)
        at = f"{view.jobs:,} jobs, {len(view.gpu_free):,} GPUs, {int(view.free.sum()):,} on offer"
        yield f"| the reference ({at}) | {n:,} | {columns:.4f} | 1 | |"
        for policy in policies:
            spent = seconds(partial(one_decision, state, policy), times)
            growth = f"{spent / before[policy]:.1f}" if policy in before else ""
            before[policy] = spent
            yield f"| {policy} | {n:,} | {spent:.4f} | {spent / columns:.1f} | {growth} |"
        gc.unfreeze()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 and 1,000 apps only")
    parser.add_argument("--sizes", help="numbers of apps, separated by commas")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of the cluster; without it 10 for every 4 apps")
    parser.add_argument("--kind", choices=sorted(KINDS), default="elastic", help="elastic sweeps or rigid gangs")
    parser.add_argument("--policies", default=",".join(POLICIES))
    options = parser.parse_args(arguments)
    sizes = [int(n) for n in options.sizes.split(",")] if options.sizes else SIZES[: 2 if options.quick else None]
    for line in rows(sizes, options.policies.split(","), gpus=options.gpus, kind=options.kind):
        print(line, flush=True)


if __name__ == "__main__":
    main()
