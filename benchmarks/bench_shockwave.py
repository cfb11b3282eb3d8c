"""How fast Shockwave's plans are made, as a table and ratios; asserts no seconds.

    python benchmarks/bench_shockwave.py [--quick]

110, 420, 850 and 2,000 active jobs on 32, 128, 256 and 512 GPUs: CPU seconds and proven gap of the planner, at the paper's
20 rounds, at 120, and at the default window, of all work in ever longer columns, with what jobs are promised; and, at 20
rounds, the paper's formulation, a binary a job and round (appendix G; the same objective, gangs and rows of capacity), in the
same HiGHS to the same gap. Its search is stopped after a minute of CPU time; what it had proven by then is printed. Jobs are drawn;
half have begun, later regimes are up to twice as fast or slower.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import highspy
import numpy as np

from themis.optimize.rounds.knapsack import best_counts
from themis.optimize.rounds.window import Window
from themis.policies.planned import HANDED_OUT
from themis.policies.planning.order import ordered
from themis.policies.planning.promise import Claims, promised
from themis.policies.shockwave import Shockwave

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "policies"))
from windows import random_window

SCALES = ((110, 32), (420, 128), (850, 256), (2000, 512))
PRICE = Shockwave().makespan
GAP, LIMIT_S = 1e-3, 60.0
ALL = 1000
"""Rounds: more than the drawn work takes on any of the scales."""


def planned(window: Window) -> tuple[float, float, float]:
    """(CPU seconds for counts, promises and layout, proven gap, share of the gain lost in the layout)."""
    jobs = window.jobs
    began = time.process_time()
    counts = best_counts(window, gap=GAP)
    # Fair finishes at three jobs a GPU, all met so far by half: so much more than the cluster can keep.
    fair, since = 3.0 * window.left[:, 0], 1.5 * window.left[:, 0]
    claims = Claims(since=since, fair=fair, left=window.left[:, 0], gpus=window.gpus, capacity=window.capacity)
    plan = ordered(
        window,
        counts.n,
        running=np.arange(jobs) % 4 == 0,
        rank=promised(claims, 1.0),
        stay=False,
        by_rank=HANDED_OUT,
        accept=GAP * (counts.bound - counts.idle),
    )
    took = time.process_time() - began
    return took, counts.gap, plan.loss / (counts.bound - counts.idle)


def binaries(window: Window) -> tuple[float, float, float, bool]:
    """(CPU seconds to build the model, to solve it, gap, whether it finished) of a binary x[j, t] a job and round.

    The log of progress is interpolated between all whole numbers of rounds, as the published program does between its breakpoints;
    f_j is made concave for it, without which it would need as many binaries again.
    """
    w = window
    began = time.process_time()
    highs = highspy.Highs()
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        highs.setOptionValue(name, value)
    inf = highspy.kHighsInf
    x = {}
    gain = np.minimum.accumulate(np.diff(w.value, axis=1), axis=1)
    column = 0
    for j in range(w.jobs):
        for t in range(w.rounds):
            highs.addVar(0.0, 1.0)
            highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
            x[j, t] = column
            column += 1
    utility = list(range(column, column + w.jobs))
    for _ in utility:
        highs.addVar(-inf, inf)
    column += w.jobs
    for j, u in enumerate(utility):
        highs.changeColCost(u, 1.0)
        low = float(w.value[j, 0])
        for n in range(w.rounds):
            # u <= value[n] + gain[n] (sum_t x - n)
            own = [x[j, t] for t in range(w.rounds)]
            slope = float(gain[j, n])
            at = low + float(gain[j, :n].sum())
            highs.addRow(-inf, at - slope * n, len(own) + 1, np.array([u, *own]), np.array([1.0] + [-slope] * len(own)))
    highs.addVar(0.0, inf)
    longest = column
    highs.changeColCost(longest, -w.pull)
    for t in range(w.rounds):
        highs.addRow(-inf, float(w.capacity), w.jobs, np.array([x[j, t] for j in range(w.jobs)]), w.gpus.astype(float))
    step = float(-np.diff(w.left, axis=1).min())
    every = np.array([*x.values(), longest])
    weights = np.array([step * w.gpus[j] / w.capacity for j, _ in x] + [1.0])
    highs.addRow(float(w.gpus @ w.left[:, 0]) / w.capacity, inf, len(every), every, weights)
    for j in range(w.jobs):
        own = [x[j, t] for t in range(w.rounds)]
        highs.addRow(
            float(w.left[j, 0]), inf, len(own) + 1, np.array([*own, longest]), np.array([step] * len(own) + [1.0])
        )
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
    idle = w.objective(np.zeros(w.jobs, dtype=np.int64))
    most = best_counts(w, gap=GAP).bound - idle
    highs.setOptionValue("mip_abs_gap", GAP * most)
    highs.setOptionValue("mip_rel_gap", 0.0)
    built = time.process_time()
    # HiGHS' own limit is by the clock, which on a busy machine is another one each time.
    highs.HandleUserInterrupt = True
    highs.startSolve()
    while not highs.wait(0.2)[0]:
        if time.process_time() - built > LIMIT_S:
            highs.cancelSolve()
    info = highs.getInfo()
    finished = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    gap = (info.mip_dual_bound - info.objective_function_value) / most
    return built - began, time.process_time() - built, gap, finished


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the two smaller scales, without the reference")
    quick = parser.parse_args().quick
    planned(
        random_window(1, jobs=110, capacity=32, rounds=20, price=PRICE)
    )  # what the first call loads is not the planner's
    print("| jobs | GPUs | rounds | CPU s | proven gap | lost in layout |\n|---|---|---|---|---|---|")
    for jobs, gpus in SCALES[: 2 if quick else None]:
        for rounds in (20, 120, ALL):
            window = random_window(
                0, jobs=jobs, capacity=gpus, rounds=rounds, price=PRICE, fine=20 if rounds == ALL else None
            )
            took, gap, lost = planned(window)
            said = f"all work, in {len(window.lengths)} columns" if rounds == ALL else str(rounds)
            print(f"| {jobs:,} | {gpus} | {said} | {took:.3f} | {gap:.4%} | {max(lost, 0.0):.4%} |", flush=True)
    if not quick:
        print(
            "\n| jobs | GPUs | ours, CPU s | model | binaries: search | gap | finished | ratio |\n|---|---|---|---|---|---|---|---|"
        )
        for jobs, gpus in SCALES:
            window = random_window(0, jobs=jobs, capacity=gpus, rounds=20, price=PRICE)
            took, _, _ = planned(window)
            model, search, gap, finished = binaries(window)
            proven = f"{gap:.4%}" if 0 <= gap < 1e6 else "no plan yet"
            said = f"{(model + search) / took:,.0f}x" if finished else f"above {(model + search) / took:,.0f}x"
            how = "yes" if finished else f"no, stopped after {LIMIT_S:.0f} CPU s"
            print(
                f"| {jobs:,} | {gpus} | {took:.3f} | {model:.2f} | {search:.2f} | {proven} | {how} | {said} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
