"""Histories told by hand: of faults that the simulation found, and of rare mutations.

None breaks a promise; each does so without the change that mended it, or with the fault put into the code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from simulation.bodies import Behaviour
from simulation.mutations import MUTATIONS
from simulation.plan import Action, Event, Fault, Plan, Submission
from simulation.world import run

PLAN = Plan(seed=0, machines=(1,), policy="fifo", solve_s=0.0, events=())
JOB = Submission(at=1.0, key="a0", jobs=1, gpus=(1, 1), weight=1.0, grace_s=1.0, behaviour=Behaviour(work_s=8.0))


STUBBORN = replace(JOB, grace_s=3.0, behaviour=Behaviour(work_s=20.0, save_s=math.inf))
"""It ignores SIGTERM."""
PARTITION = Fault(at=4.0, what="network is partitioned", lasts=15.0)
TOLD: dict[str, tuple[str, tuple[Event, ...]]] = {
    "a silent machine's GPUs are free immediately": ("job 0 has two", (STUBBORN, PARTITION)),
    "supervisors forget the machine's lease": ("after lease and grace of m0", (STUBBORN, PARTITION)),
    "unknown gangs are left alone": (
        "GPU 0 of m0 has two",
        (
            STUBBORN,
            Fault(at=4.0, what="supervisor pauses", lasts=30.0),
            replace(PARTITION, at=4.5, lasts=12.0),
            replace(STUBBORN, at=5.0, key="a1"),
            replace(STUBBORN, at=5.0, key="a2"),
        ),
    ),
    "a removed machine's gangs are taken for ended": (
        "runs on a GPU that m0 has no more",
        (
            Action(at=0.5, what="drain", target="1"),
            STUBBORN,
            Action(at=4.0, what="set", target="machines.m0=none"),
            Action(at=12.0, what="undrain", target="1"),
        ),
    ),
}
"""By mutation: which promise it breaks, and what happens."""


def _mended(mutation: str, plans: Sequence[Plan], wrong: str) -> None:
    """No plan breaks a promise, and one does with the mutation."""
    assert [run(plan).wrong for plan in plans] == [""] * len(plans)
    with MUTATIONS[mutation]():
        assert wrong in "".join(run(plan).wrong for plan in plans)


@pytest.mark.parametrize("mutation", TOLD)
def test_rare_faults_that_are_put_into_the_code_are_found(mutation: str) -> None:
    wrong, events = TOLD[mutation]
    _mended(mutation, [replace(PLAN, machines=(1, 1), events=events)], wrong)


def test_a_submission_that_is_repeated_after_a_crash_is_one_app() -> None:
    crashes = [Fault(at=0.5, what="service crashes", moment="after a commit", count=count) for count in range(3)]
    plans = [replace(PLAN, events=(crash, JOB)) for crash in crashes]
    _mended("repeated submissions are new apps", plans, "not everything ended")


def test_a_stray_that_hangs_keeps_its_gpu_although_supervisor_and_agent_were_killed() -> None:
    stray = replace(JOB, behaviour=replace(JOB.behaviour, escape_s=0.5, stuck_s=25.0))
    kills = Fault(at=3.5, what="supervisor killed"), Fault(at=4.1, what="agent killed")
    plans = [replace(PLAN, seed=seed, events=(stray, *kills)) for seed in (1, 2, 3)]
    _mended("what is left is not written down", plans, "GPU 0 of m0 has two")


def test_a_supervisor_that_was_stopped_as_its_gang_was_about_to_start_starts_or_ends_it() -> None:
    pauses = [Fault(at=at, what="supervisor pauses", lasts=6.0) for at in (1.8, 2.1)]
    plans = [replace(PLAN, events=(JOB, pause)) for pause in pauses]
    _mended("a supervisor takes words in order", plans, "not everything ended: ['a0']")


def test_a_machine_that_is_removed_and_comes_back_serves_when_its_agent_said_what_is_still_there() -> None:
    stray = replace(JOB, grace_s=0.6, behaviour=Behaviour(work_s=2.0, escape_s=0.3, stuck_s=14.0, fails=1))
    gone, back = (
        Action(at=at, what="set", target=f"machines.m0{of}") for at, of in ((7.0, "=none"), (13.0, ".gpus=1"))
    )
    later = replace(JOB, at=12.0, key="a1")
    fill = replace(JOB, at=6.0, key="a2", behaviour=Behaviour(work_s=60.0))
    plans = [
        replace(PLAN, machines=(1, 1), policy="tiresias", seed=seed, events=(stray, fill, gone, later, back))
        for seed in range(4)
    ]
    _mended("a machine that is back serves before its agent speaks", plans, "GPU 0 of m0 has two")


def test_a_machine_returns_when_what_its_agent_sent_before_has_arrived() -> None:
    stray = replace(JOB, grace_s=1.2, behaviour=Behaviour(work_s=9.0, save_s=math.inf, escape_s=0.9, stuck_s=25.0))
    late = [Fault(at=at, what="network holds messages back", lasts=6.9) for at in (5.0, 6.0, 7.0)]
    plans = [replace(PLAN, seed=seed, events=(stray, fault)) for fault in late for seed in range(3)]
    _mended("renewals that were on the way count as new", plans, "GPU 0 of m0 has two")


def test_a_job_gets_gpus_of_a_machine_that_grew_and_a_crash_in_the_change_leaves_all_or_nothing_of_it() -> None:
    grows = Action(at=2.0, what="set", target="machines.m0.gpus=3 lease=6")
    crashes = [
        Fault(at=2.0, what="service crashes", moment=moment, count=count)
        for moment in ("before a write", "within a commit", "after a commit", "before a command")
        for count in range(2)
    ]
    large = replace(JOB, at=4.0, key="a1", gpus=(2, 2), behaviour=Behaviour(work_s=2.0))
    plans = [replace(PLAN, events=(crash, grows, JOB, large)) for crash in crashes]
    _mended("accounts do not know GPUs that came", plans, "an error that nobody injected")


def test_an_agent_that_is_told_to_forget_says_that_the_task_ended() -> None:
    stray = replace(JOB, grace_s=2.8, behaviour=Behaviour(work_s=6.0, escape_s=1.7, stuck_s=6.8))
    pauses = [Fault(at=at, what="agent pauses", lasts=lasts) for at in (4.0, 4.4) for lasts in (7.1, 7.4, 7.7)]
    plans = [replace(PLAN, seed=seed, events=(stray, pause)) for pause in pauses for seed in range(8)]
    _mended("agents forget without a word", plans, "not everything ended: ['a0']")


def test_a_job_that_fails_as_its_supervisor_is_killed_did_not_finish_and_gives_its_gpus_back() -> None:
    fails = replace(
        JOB, gpus=(2, 2), behaviour=Behaviour(work_s=9.0, save_s=math.inf, escape_s=1.3, stuck_s=8.0, fails=1)
    )
    other = replace(JOB, at=4.0, key="a1", gpus=(2, 2), behaviour=Behaviour(work_s=2.0))
    kills = [Fault(at=at, what="supervisor killed") for at in (9.2, 9.5, 9.8, 10.1, 10.4)]
    plans = [
        replace(PLAN, machines=(2,), policy="tiresias", seed=seed, events=(fails, other, kill))
        for kill in kills
        for seed in range(4)
    ]
    _mended("a gang whose supervisor was killed as it failed ends well", plans, "not everything ended: ['a1']")


@pytest.mark.parametrize("seed", range(3))
def test_a_service_ends_in_good_order_although_its_disk_is_read_only(seed: int) -> None:
    disk, end = Fault(at=3.0, what="disk is read-only", lasts=0.8), Fault(at=3.1, what="service stops in good order")
    assert run(replace(PLAN, seed=seed, events=(JOB, disk, end))).wrong == ""


@pytest.mark.parametrize("seed", range(4))
def test_jobs_of_a_machine_that_is_told_to_leave_go_on_elsewhere_and_it_comes_back(seed: int) -> None:
    told = Fault(at=4.0, what="agent told to leave", lasts=20.0), Fault(at=4.3, what="network drops connections")
    stray = replace(JOB, behaviour=replace(JOB.behaviour, escape_s=0.5, stuck_s=25.0))
    for job in (JOB, STUBBORN, stray):
        more = [replace(job, at=at, key=key) for at, key in ((1.1, "a1"), (9.0, "a2"))]
        found = run(replace(PLAN, machines=(1, 1), seed=seed, events=(job, *more, *told)))
        assert not found.wrong
        assert any("agent told to leave" in line for line in found.story)
