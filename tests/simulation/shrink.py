"""The shortest story of a failure: events that it does not need are left out, as long as the same promise is broken.

Delta debugging: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 2002, with complements only.
"""

from __future__ import annotations

import re

from simulation.plan import Plan
from simulation.world import History, run

MOST_RUNS = 150


def kind(wrong: str) -> str:
    """What is wrong without its numbers: a shorter story may break the same promise for another job."""
    return re.sub(r"[\d.]+|'.*", "", wrong)[:40]


def shrink(plan: Plan, most: int = MOST_RUNS) -> tuple[Plan, History]:
    """A plan with as few events as possible that still breaks the promise that ``plan`` breaks, and its history.

    Raises
    ------
    ValueError : the plan breaks none.
    """
    history = run(plan)
    if not history.wrong:
        raise ValueError(f"seed {plan.seed} breaks no promise.")
    runs, size = 1, max(len(plan.events) // 2, 1)
    while size >= 1 and runs < most:
        begin, shorter = 0, False
        while begin < len(plan.events) and runs < most:
            gone = {id(event) for event in plan.events[begin : begin + size]}
            trial = plan.only(lambda event, gone=gone: id(event) not in gone)  # type: ignore[misc]
            other, runs = run(trial), runs + 1
            if other.wrong and kind(other.wrong) == kind(history.wrong):
                plan, history, shorter = trial, other, True
            else:
                begin += size
        if not shorter or size > 1:
            size = size // 2
    return plan, history


def report(plan: Plan) -> str:
    """What a failed test prints: the seed, what is wrong, the events that are needed, and the story."""
    before = len(plan.events)
    shorter, history = shrink(plan)
    needed = "\n".join(f"  {event.at:7.3f} s  {event}" for event in shorter.events)
    return (
        f"seed {plan.seed} breaks a promise: {history.wrong}\n"
        f"{len(shorter.events)} of its {before} events are needed (machines of {_sizes(plan)} GPUs, policy {plan.policy}):\n"
        f"{needed}\nWhat happened:\n"
        + "\n".join(history.story)
        + f"\nAgain: cd tests && python -m simulation {plan.seed} --story"
    )


def _sizes(plan: Plan) -> str:
    return " and ".join(map(str, plan.machines))
