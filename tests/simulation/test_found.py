"""Faults that the simulation found, told by hand: without the change that mended it, each breaks a promise again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulation.bodies import Behaviour
from simulation.mutations import MUTATIONS
from simulation.plan import Fault, Plan, Submission
from simulation.world import run

PLAN = Plan(seed=0, machines=(1,), policy="fifo", solve_s=0.0, events=())
JOB = Submission(at=1.0, key="a0", jobs=1, gpus=(1, 1), weight=1.0, grace_s=1.0, behaviour=Behaviour(work_s=8.0))


def _mended(mutation: str, plans: Sequence[Plan], wrong: str) -> None:
    """No plan breaks a promise, and one does with the mutation."""
    assert [run(plan).wrong for plan in plans] == [""] * len(plans)
    with MUTATIONS[mutation]():
        assert wrong in "".join(run(plan).wrong for plan in plans)


def test_a_stray_that_hangs_keeps_its_gpu_although_supervisor_and_agent_were_killed() -> None:
    stray = replace(JOB, behaviour=replace(JOB.behaviour, escape_s=0.5, stuck_s=25.0))
    kills = Fault(at=3.5, what="supervisor killed"), Fault(at=4.1, what="agent killed")
    plans = [replace(PLAN, seed=seed, events=(stray, *kills)) for seed in (1, 2)]
    _mended("what is left is not written down", plans, "GPU 0 of m0 has two")


def test_a_supervisor_that_was_stopped_as_its_gang_was_about_to_start_starts_or_ends_it() -> None:
    pauses = [Fault(at=at, what="supervisor pauses", lasts=6.0) for at in (1.8, 2.1)]
    plans = [replace(PLAN, events=(JOB, pause)) for pause in pauses]
    _mended("a supervisor takes words in order", plans, "not everything ended: ['a0']")
