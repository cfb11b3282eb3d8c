"""CPU seconds of simulations by this checkout over another one's, in alternating pairs.

    git worktree add ../before 502719d && make -C ../before install
    python benchmarks/cpu_pairs.py ../before [--pairs N] [--policies NAME,NAME]

Each checkout has its environment in .venv. Each run is a process of its own; its process time around ``Simulation.run`` counts,
without imports, log and metrics. Pairs run one after the other, first one checkout, then the other, and in the reverse order in
every second pair, as a shared machine's speed drifts. ``--other POLICY``: the other checkout runs that policy; with ``.`` as the
other checkout, two policies of this one are compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from themis.report.intervals import t_interval

WORKLOADS = {"themis1": "apps=20,load=2,gpus=64,scale=0.1", "themis2": "apps=30,load=1.4,gpus=64,scale=0.1"}
POLICIES = ("themis", "drf", "max_min_fairness")
RUN = """
import sys, time
from themis.model.settings import Settings
from themis.policies.api import make_policy
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
name, rest, policy = sys.argv[1:]
options = dict(part.split("=") for part in rest.split(","))
simulation = Simulation(
    workload=load_workload(name, seed=0, **options), cluster=load_cluster("sim-64"), book=DEFAULT_BOOK,
    policy_name=policy, policy=make_policy(policy), settings=Settings(seed=0),
)
began = time.process_time()
simulation.run(lambda time, record: None)
print(time.process_time() - began)
"""


def seconds(checkout: Path, workload: str, policy: str) -> float:
    """CPU seconds of one simulation by the code of ``checkout``, in a process of its own."""
    found = subprocess.run(
        [checkout.resolve() / ".venv" / "bin" / "python", "-c", RUN, workload, WORKLOADS[workload], policy],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(found.stdout.split()[-1])  # older commits let HiGHS introduce itself before


def row(before: Path, after: Path, workload: str, policies: tuple[str, str], pairs: int) -> str:
    """One line of the table: medians, and the mean of the pairs' log ratios with its 95 % interval."""
    times = np.zeros((pairs, 2))
    sides = list(zip((before, after), policies, strict=True))
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            times[pair, side] = seconds(sides[side][0], workload, sides[side][1])
    ratio = t_interval(np.log(times[:, 1] / times[:, 0]).tolist())
    mid, low, high = np.exp([ratio.mean, ratio.low, ratio.high])
    first, second = np.median(times, axis=0)
    return f"| {policies[1]}, {workload} | {pairs} | {first:.2f} | {second:.2f} | {mid:.2f} ({low:.2f} to {high:.2f}) |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, joined by commas")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="names, joined by commas")
    parser.add_argument("--other", default="", help="the other checkout's policy, where it is not the same")
    given = parser.parse_args(arguments)
    after = Path(__file__).resolve().parents[1]
    print("| policy, workload | pairs | before s | now s | ratio (95 %) |\n|---|---|---|---|---|")
    for policy in given.policies.split(","):
        for workload in given.workloads.split(","):
            print(row(given.before, after, workload, (given.other or policy, policy), given.pairs), flush=True)


if __name__ == "__main__":
    main()
