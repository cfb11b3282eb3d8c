"""The bookkeeping between core and node agents, without processes: what is said, when, and what is never said."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from live import grant, revoke

from themis.errors import InputError, InvariantBroken
from themis.machines.agent.messages import (
    Forget,
    Go,
    Hello,
    Lease,
    Leaving,
    Message,
    Metric,
    Prepare,
    Renew,
    Stop,
    TaskReport,
    TaskRuns,
    TaskState,
)
from themis.machines.engines.gangs import Gangs, Out, Send
from themis.machines.engines.hosts import NO_TARGET, Host, NodeSettings
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.program import AttemptEnded, Ending, Measurement, Program, RunReported, ending_of
from themis.model.cluster import Machine
from themis.model.dynamic import Dynamic, Mode
from themis.model.events import (
    BatchChanged,
    JobProgress,
    JobReached,
    JobStarted,
    JobStopped,
    LossReported,
    MachineFailed,
    MachineReturned,
    MetricsReported,
)
from themis.model.workload import CurveStopping, Job, Regime
from themis.testing.builders import app, job

SETTINGS = NodeSettings(lease_s=30.0, renew_s=10.0, margin_s=5.0, progress_s=10.0)
PROGRAM = Program(argv=("train",), grace_s=60.0)
TASK = "job0-attempt1"


def gangs(machines: int = 2, *, now: float = 0.0, connect: bool = True, **more: object) -> Gangs:
    """Machines of two GPUs, connected unless told otherwise; one elastic job of 100 steps is admitted."""
    hosts = [
        Host(machine=Machine(name=f"m{n}", gpus=2), address=f"10.0.0.{n}", devices=("0", "1")) for n in range(machines)
    ]
    book = Gangs(hosts, lambda app, index: PROGRAM, SETTINGS, now=now, checkpoints="/ckpt")
    book.admit(0, app("a", [job(100.0, (1, 4))], **more))
    for n in range(machines if connect else 0):
        book.handle_message(n, Hello(node=f"m{n}", trust="single"), now)
        book.handle_message(n, Renew(sequence=1), now)
    return book


def said(out: list[Out], kind: type[Message]) -> list[int]:  # type: ignore[type-arg]
    """Machines that were told this."""
    return [o.machine for o in out if isinstance(o, Send) and isinstance(o.message, kind)]


def state(phase: str, **more: object) -> TaskState:
    """The gang's part on a machine."""
    return TaskState(task=TASK, phase=phase, **more)  # type: ignore[arg-type]


def started(book: Gangs) -> Gangs:
    """A gang over both machines that runs."""
    book.command(grant(1, (1, 2, 3), target=100.0), 0.0)
    for phase in ("prepared", "running"):
        for n in (0, 1):
            book.handle_message(n, state(phase, port=20000 + n), 0.0)
    return book


def test_no_rank_runs_before_all_machines_are_prepared() -> None:
    book = gangs()
    out = book.command(grant(1, (1, 2, 3)), 0.0)
    assert said(out, Prepare) == [0, 1]
    first, second = (o.message.spec for o in out if isinstance(o, Send) and isinstance(o.message, Prepare))
    assert (first.ranks, first.devices, second.ranks, second.devices) == ((0,), ("1",), (1, 2), ("0", "1"))
    assert first.checkpoint_dir == second.checkpoint_dir == "/ckpt/app0/job0"
    assert book.handle_message(0, state("prepared", port=20001), 1.0) == []
    out = book.handle_message(1, state("prepared", port=20002), 2.0)
    assert said(out, Go) == [0, 1]
    assert {tuple(o.message.env.items()) for o in out if isinstance(o, Send) and isinstance(o.message, Go)} == {
        (("MASTER_ADDR", "10.0.0.0"), ("MASTER_PORT", "20001"))
    }
    assert book.handle_message(0, state("running"), 3.0) == []
    assert book.handle_message(1, state("running"), 3.0) == [JobStarted(job=0, attempt=1)]


def test_a_machine_that_cannot_prepare_its_ranks_ends_the_gang_everywhere_unstarted() -> None:
    book = gangs()
    book.command(grant(1, (1, 2)), 0.0)
    book.handle_message(0, state("prepared"), 0.0)
    out = book.handle_message(1, state("ended", cause="not_started", message="no such program"), 0.0)
    assert said(out, Stop) == [0]
    assert said(out, Go) == []
    out = book.handle_message(0, state("ended", cause="gang", first=-15), 1.0)
    ended, stopped = (o for o in out if not isinstance(o, Send))
    assert isinstance(ended, AttemptEnded)
    assert (ended.ending, ended.message) == (Ending.NOT_STARTED, "no such program")
    assert stopped == JobStopped(job=0, attempt=1, steps=0.0)


def test_a_silent_machine_has_failed_at_its_lease_but_holds_its_gpus_until_the_grace_is_over() -> None:
    book = started(gangs())
    book.handle_message(0, Renew(sequence=2), 10.0)
    assert book.tick(29.9) == []
    assert book.tick(30.0) == [MachineFailed(machine=1)]
    out = book.command(revoke(1, "failed"), 30.0)
    assert said(out, Stop) == [0, 1], "if it should hear after all"
    book.handle_message(0, Renew(sequence=3), 31.0)
    book.handle_message(0, state("ended", cause="failed", first=-15), 40.0)
    book.handle_message(0, Renew(sequence=4), 60.0)
    book.handle_message(0, Renew(sequence=5), 80.0)
    assert book.tick(94.9) == [], "lease 30 + grace 60 + margin 5"
    assert [o for o in book.tick(95.0) if not isinstance(o, Send | AttemptEnded)] == [
        JobStopped(job=0, attempt=1, steps=0.0)
    ]


def test_a_machine_that_comes_back_with_its_gang_running_loses_nothing() -> None:
    book = started(gangs())
    book.disconnected(1)
    assert book.tick(29.0) == []
    assert book.handle_message(1, Hello(node="m1", trust="single", tasks=(state("running"),)), 29.0) == []
    out = book.handle_message(1, Renew(sequence=9), 29.0)
    assert out == [Send(machine=1, message=Lease(sequence=9, lease_s=30.0))]


def test_what_a_job_said_while_nobody_listened_is_heard_before_its_end() -> None:
    book = gangs(1, connect=False)
    book.restore(grant(1, (0,), target=50.0), 10.0, 0.0)
    report = TaskReport(task=TASK, steps=50.0, saved=50.0, reached=True)
    out = book.handle_message(0, Hello(node="m0", trust="single", tasks=(state("ended"),), reports=(report,)), 5.0)
    assert [o.steps for o in out if isinstance(o, JobReached)] == [50.0], "the rung's target, not the job's 100 steps"


def test_a_machine_that_comes_back_without_its_gang_lost_it_and_the_rest_is_stopped() -> None:
    book = started(gangs())
    book.disconnected(1)
    out = book.handle_message(1, Hello(node="m1", trust="single"), 5.0)
    assert said(out, Stop) == [0]
    out = book.handle_message(0, state("ended", cause="gang", first=-15), 6.0)
    assert next(o for o in out if isinstance(o, AttemptEnded)).ending is Ending.NODE_LOST


def test_a_machine_that_was_given_up_is_reported_back_when_it_renews() -> None:
    book = gangs()
    assert book.tick(31.0) == [MachineFailed(machine=0), MachineFailed(machine=1)]
    book.handle_message(0, Hello(node="m0", trust="single"), 40.0)
    assert MachineReturned(machine=0) in book.handle_message(0, Renew(sequence=1), 40.0)
    assert book.tick(60.0) == []


def test_a_grant_waits_for_an_agent_that_is_not_there_yet_and_is_given_up_in_the_end() -> None:
    book = gangs(1, connect=False)
    assert book.command(grant(1, (0,)), 0.0) == []
    book.handle_message(0, Hello(node="m0", trust="single"), 1.0)
    assert said(book.handle_message(0, Renew(sequence=1), 1.0), Prepare) == [0]
    late = gangs(1, connect=False)
    late.command(grant(1, (0,)), 0.0)
    late.disconnected(0)
    ended = [o for o in late.tick(60.0) if isinstance(o, AttemptEnded)]
    assert [e.ending for e in ended] == [Ending.NODE_LOST]


def test_a_message_that_was_lost_with_its_connection_is_said_again() -> None:
    book = gangs(1)
    book.command(grant(1, (0,)), 0.0)
    book.disconnected(0)
    book.handle_message(0, Hello(node="m0", trust="single"), 1.0)
    assert said(book.handle_message(0, Renew(sequence=2), 1.0), Prepare) == [0]
    book.disconnected(0)
    out = book.handle_message(0, Hello(node="m0", trust="single", tasks=(state("prepared"),)), 2.0)
    assert said(out, Go) == [0]


def test_a_restored_gang_is_never_started_a_second_time() -> None:
    book = gangs(2, connect=False)
    book.restore(grant(1, (0, 2), target=100.0), 40.0, 0.0)
    for n in (0, 1):
        assert book.handle_message(n, Hello(node=f"m{n}", trust="single", tasks=(state("running"),)), 1.0) == []
        assert said(book.handle_message(n, Renew(sequence=1), 1.0), Prepare) == []
    gone = gangs(1, connect=False)
    gone.restore(grant(1, (0,), target=100.0), 40.0, 0.0)
    out = gone.handle_message(0, Hello(node="m0", trust="single"), 1.0)
    assert JobStopped(job=0, attempt=1, steps=40.0) in out


def test_a_task_that_nobody_knows_is_stopped_and_then_forgotten() -> None:
    book = gangs(1)
    other = TaskState(task="job9-attempt3", phase="running")
    assert said(book.handle_message(0, other, 0.0), Stop) == [0]
    assert said(book.handle_message(0, replace(other, phase="ended"), 0.0), Forget) == [0]


def test_nothing_starts_beside_a_task_that_should_be_gone() -> None:
    book = started(gangs())
    book.handle_message(0, Renew(sequence=2), 10.0)
    book.tick(30.0)
    book.command(revoke(1, "failed"), 30.0)
    book.handle_message(0, state("ended", cause="failed", first=-15), 31.0)
    assert JobStopped(job=0, attempt=1, steps=0.0) in book.tick(95.0), "the GPUs of m1 count as free"
    book.disconnected(1)
    for n in (0, 1):
        out = book.handle_message(
            n, Hello(node=f"m{n}", trust="single", tasks=(state("stopping"),) if n else ()), 100.0
        )
        assert said(out, Stop) == [n] * n, "its rank hangs in its driver, and holds its GPUs still"
    assert book.handle_message(0, Renew(sequence=9), 100.0)[1:] == [MachineReturned(machine=0)]
    assert len(book.handle_message(1, Renew(sequence=9), 100.0)) == 1
    assert said(book.command(grant(2, (0, 2)), 101.0), Prepare) == [0]
    out = book.handle_message(1, state("ended", cause="lease", first=-9), 110.0)
    assert said(out, Prepare) == [1]
    assert MachineReturned(machine=1) in out


def test_reports_become_progress_and_the_checkpoint_is_what_a_stop_returns() -> None:
    book = started(gangs())
    out = book.handle_message(0, TaskReport(task=TASK, steps=20.0, saved=15.0, loss=0.5, step_s=0.5), 1.0)
    assert JobProgress(job=0, attempt=1, steps=20.0) in out
    assert book.handle_message(0, TaskReport(task=TASK, steps=21.0, saved=15.0), 2.0) == [], "not too often"
    book.command(revoke(1), 3.0)
    out = [o for n in (0, 1) for o in book.handle_message(n, state("ended", cause="expired", first=-15), 4.0)]
    assert JobStopped(job=0, attempt=1, steps=15.0) in out
    assert book.command(revoke(1), 5.0) == [], "a repeated command is carried out once"


def test_curve_stopping_hears_one_loss_a_check() -> None:
    book = started(gangs(tuner=CurveStopping(check_steps=10.0)))
    steps = (4.0, 11.0, 14.0, 35.0)
    out = [o for s in steps for o in book.handle_message(0, TaskReport(task=TASK, steps=s, saved=0.0, loss=1 / s), s)]
    assert [(o.steps, o.loss) for o in out if isinstance(o, LossReported)] == [(11.0, 1 / 11.0), (35.0, 1 / 35.0)]


def test_an_exit_with_0_is_the_end_of_the_job_unless_it_says_that_only_its_target_was_reached() -> None:
    for report, steps in ((None, 100.0), (TaskReport(task=TASK, steps=30.0, saved=30.0, loss=0.1, reached=True), 30.0)):
        book = gangs(1)
        book.command(grant(1, (0,), target=30.0), 0.0)
        book.handle_message(0, state("prepared"), 0.0)
        book.handle_message(0, state("running"), 0.0)
        if report:
            book.handle_message(0, report, 1.0)
        out = book.handle_message(0, state("ended", codes=(0,)), 2.0)
        assert [o.steps for o in out if isinstance(o, JobReached)] == [steps]
        assert book.command(revoke(1, "finished"), 3.0) == [JobStopped(job=0, attempt=1, steps=steps)]


def test_a_stop_that_was_asked_for_is_never_a_failure_whatever_the_exit_code() -> None:
    for code in (None, 0, 1, 75, 143, -9):
        assert ending_of(asked=True, cause="expired", code=code) is Ending.STOPPED
        assert not Ending.STOPPED.is_failure


def test_a_gang_that_nobody_signalled_ended_by_itself_although_it_was_asked_to_stop() -> None:
    """Its Stop came too late: what it did is not done again, and how it failed is its own failure."""
    for more, ending, kinds in (
        ({}, Ending.FINISHED, [AttemptEnded, JobReached, JobStopped]),
        ({"first": 75}, Ending.REQUEUED, [AttemptEnded, JobStopped]),
        ({"first": -15}, Ending.TERMINATED, [AttemptEnded, JobStopped]),
        ({"first": 1, "cause": "peer"}, Ending.FAILED, [AttemptEnded, JobStopped]),
    ):
        book = started(gangs())
        assert said(book.command(revoke(1), 5.0), Stop) == [0, 1]
        assert book.handle_message(1, state("ended"), 6.0) == []
        out = book.handle_message(0, state("ended", **more), 6.0)
        assert [type(o) for o in out] == kinds, more
        assert isinstance(out[0], AttemptEnded)
        assert (out[0].ending, out[0].cause) == (ending, more.get("cause", ""))
        assert book.gangs == {}
        assert book.recorded(0, 1, 7.0) != []


def test_one_rank_that_was_signalled_makes_it_a_stop() -> None:
    """The others may have ended because of that one."""
    for more in ({}, {"first": 1, "cause": "peer"}):
        book = started(gangs())
        book.command(revoke(1), 5.0)
        book.handle_message(1, state("ended", cause="expired"), 6.0)
        out = book.handle_message(0, state("ended", **more), 6.0)
        assert next(o for o in out if isinstance(o, AttemptEnded)).ending is Ending.STOPPED
        assert not any(isinstance(o, JobReached) for o in out)


def test_an_exit_that_asks_for_another_attempt_is_told_from_a_failure() -> None:
    for code, own in ((75, True), (143, True), (1, False)):
        book = gangs(1)
        book.command(grant(1, (0,)), 0.0)
        book.handle_message(0, state("prepared"), 0.0)
        book.handle_message(0, state("running"), 0.0)
        out = book.handle_message(0, state("ended", first=code, codes=(code,)), 2.0)
        assert [o.own for o in out if isinstance(o, JobStopped)] == [own], code


def test_a_gang_that_was_failing_already_has_failed_even_if_its_lease_ends_meanwhile() -> None:
    book = started(gangs())
    book.handle_message(0, state("stopping", cause="peer", first=1), 1.0)
    book.command(revoke(1), 2.0)
    book.handle_message(1, state("ended", cause="gang", first=-15), 3.0)
    out = book.handle_message(0, state("ended", cause="peer", first=1), 3.0)
    ended = next(o for o in out if isinstance(o, AttemptEnded))
    assert (ended.ending, ended.code) == (Ending.FAILED, 1)
    assert JobStopped(job=0, attempt=1, steps=0.0) in out


def test_a_grant_for_an_unknown_job_is_our_own_mistake() -> None:
    with pytest.raises(InvariantBroken, match="job 7"):
        gangs(1).command(grant(1, (0,), job=7), 0.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NodeSettings(lease_s=5.0, renew_s=5.0), "renew_s is 5.0"),
        (lambda: NodeSettings(lease_s=0.0), "lease_s is 0.0"),
        (lambda: Host(machine=Machine(name="m", gpus=2), devices=("0",)), "2 GPUs but 1 device"),
        (lambda: Program(argv=()), "command is empty"),
        (lambda: Program(argv=("x",), cwd="here"), "absolute"),
        (lambda: Program(argv=("x",), launch="rank"), "gpu, machine"),
        (lambda: Program(argv=("x",), grace_s=-1), "grace_s is -1"),
        (lambda: Program(argv=("x",), stop_signal="SIGKILL"), "'SIGKILL'"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(make: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()  # type: ignore[operator]


def test_a_program_whose_work_is_estimated_as_time_gets_no_target_and_its_steps_are_not_believed() -> None:
    """It would end after as many steps as the estimate has seconds, and its progress would be taken for theirs."""
    book = gangs()
    book.programs = lambda app, index: replace(PROGRAM, own_steps=False)
    out = book.command(grant(1, (1, 2, 3), target=100.0), 0.0)
    specs = [o.message.spec for o in out if isinstance(o, Send) and isinstance(o.message, Prepare)]
    assert [spec.target for spec in specs] == [1e18, 1e18]
    for phase in ("prepared", "running"):
        for n in (0, 1):
            book.handle_message(n, state(phase, port=20000 + n), 0.0)
    report = TaskReport(
        task=TASK, steps=600.0, saved=0.0, loss=0.1, step_s=0.01, total=2000.0, metrics=(Metric(name="acc"),)
    )
    (own,) = book.handle_message(0, report, 50.0)
    assert isinstance(own, MetricsReported)
    assert (own.steps, own.total, own.values[0]) == (600.0, 2000.0, ("loss", 0.1))
    assert math.isnan(dict(own.values)["acc"]), "a value that is no number is not left out"
    assert book.handle_message(0, replace(report, steps=601.0), 51.0) == [], "not too often"
    assert 0 not in book.saved
    book.handle_message(0, state("ended"), 60.0)
    ended = [o for o in book.handle_message(1, state("ended"), 60.0) if isinstance(o, JobReached)]
    assert [o.steps for o in ended] == [100.0]


def test_the_last_values_of_a_program_that_counts_no_steps_are_kept() -> None:
    book = gangs(1)
    book.programs = lambda app, index: replace(PROGRAM, own_steps=False)
    book.command(grant(1, (0, 1), target=100.0), 0.0)
    for phase in ("prepared", "running"):
        book.handle_message(0, state(phase, port=20000), 0.0)
    report = TaskReport(task=TASK, steps=0.0, saved=0.0, loss=0.5, step_s=0.01)
    book.handle_message(0, report, 50.0)
    assert book.handle_message(0, replace(report, loss=0.1), 51.0) == [], "not too often"
    out = book.handle_message(0, state("ended"), 52.0)
    assert [o.values for o in out if isinstance(o, MetricsReported)] == [(("loss", 0.1),)]


def test_a_machine_that_joins_gets_the_next_id_and_gangs() -> None:
    book = gangs(1)
    book.join(Host(machine=Machine(name="late", gpus=2), address="10.0.0.9"), 5.0)
    book.handle_message(1, Hello(node="late", trust="single"), 5.0)
    book.handle_message(1, Renew(sequence=1), 5.0)
    assert said(book.command(grant(1, (2, 3)), 6.0), Prepare) == [1]
    assert book.tick(34.9) == [MachineFailed(machine=0)]
    assert book.tick(35.0) == [MachineFailed(machine=1)], "a lease from when it joined"


def test_a_machine_that_its_engine_calls_dead_has_failed_at_once_but_holds_its_gpus_until_lease_and_grace() -> None:
    book = started(gangs())
    book.disconnected(1)
    assert book.leaves(1, 14.0, dead=True) == [MachineFailed(machine=1)]
    book.command(revoke(1, "failed"), 14.0)
    book.handle_message(0, state("ended", cause="failed", first=-15), 15.0)
    for now in (20.0, 45.0, 70.0):
        book.handle_message(0, Renew(sequence=2), now)
    assert book.tick(94.9) == [], "lease 30 + grace 60 + margin 5"
    assert JobStopped(job=0, attempt=1, steps=0.0) in book.tick(95.0)
    assert MachineReturned(machine=1) in book.handle_message(1, Renew(sequence=1), 99.0)


def test_a_drain_has_the_jobs_end_by_its_deadline_and_the_machine_stays_away_until_it_is_found_again() -> None:
    book = started(gangs())
    assert book.leaves(1, 10.0, dead=False, within_s=20.0) == [MachineFailed(machine=1, drained=True)]
    out = book.command(revoke(1, "failed"), 12.0)
    graces = {o.message.grace_s for o in out if isinstance(o, Send) and isinstance(o.message, Stop)}
    assert graces == {18.0}, "of 60 s, up to the deadline"
    assert [o for o in book.handle_message(1, Renew(sequence=2), 13.0) if not isinstance(o, Send)] == []
    book.found(1, book.hosts[1])
    assert MachineReturned(machine=1) in book.handle_message(1, Renew(sequence=3), 14.0)


def test_a_measurement_names_the_partner_that_was_there_since_the_last_report() -> None:
    """Two jobs on one GPU (Gavel §3.1): a pace from before somebody came or left says nothing of the pair, nor of one alone."""
    hosts = [Host(machine=Machine(name="m0", gpus=1, gpu_type="V100"), address="10.0.0.0", devices=("0",))]
    book = Gangs(hosts, lambda app, index: PROGRAM, SETTINGS, now=0.0, checkpoints="/ckpt")
    for j, model in enumerate(("one", "two")):
        book.admit(j, app(f"a{j}", [job(100.0, model=model)]))
    book.handle_message(0, Hello(node="m0", trust="single"), 0.0)
    book.handle_message(0, Renew(sequence=1), 0.0)

    def report(j: int, attempt: int, now: float, steps: float) -> list[tuple[str, str]]:
        out = book.handle_message(0, TaskReport(task=f"job{j}-attempt{attempt}", steps=steps, saved=0, step_s=0.5), now)
        measured = [m for m in out if isinstance(m, Measurement)]
        assert all(m.partner or m.partner_batch == 0 for m in measured)
        return [(m.model, m.partner) for m in measured]

    book.command(grant(1, (0,), job=0, target=100.0), 0.0)
    assert report(0, 1, 5.0, 10) == [("one", "")]
    book.command(replace(grant(1, (0,), job=1, target=100.0), seat=1), 6.0)
    assert report(0, 1, 10.0, 20) == [], "half of it was alone"
    assert report(0, 1, 15.0, 30) == [("one", "two")]
    assert report(1, 1, 15.0, 30) == [("two", "one")]
    book.handle_message(0, TaskState(task="job1-attempt1", phase="ended", first=1), 16.0)
    assert report(0, 1, 20.0, 40) == []
    assert report(0, 1, 25.0, 50) == [("one", "")]


def dynamic_gang() -> Gangs:
    """A running gang of a job of 10 epochs that begins at batch size 8, on both GPUs of one machine."""
    declared = Dynamic(mode=Mode.GNS, epoch_steps=((8, 80.0), (16, 40.0)))
    spec = Job(name="j", model="flat", regimes=(Regime(steps=10.0, batch=8),), gpus_max=2, dynamic=declared)
    book = Gangs(
        [Host(machine=Machine(name="m0", gpus=2))], lambda app, index: PROGRAM, SETTINGS, now=0.0, checkpoints="/c"
    )
    book.admit(0, app("a", [spec]))
    book.handle_message(0, Hello(node="m0", trust="single"), 0.0)
    book.handle_message(0, Renew(sequence=1), 0.0)
    out = book.command(grant(1, (0, 1), target=10.0), 0.0)
    (spoken,) = [o.message.spec for o in out if isinstance(o, Send) and isinstance(o.message, Prepare)]
    assert spoken.target == NO_TARGET, "the program counts steps, its job epochs"
    for phase in ("prepared", "running"):
        book.handle_message(0, state(phase, port=20000), 0.0)
    return book


def reported(**more: float) -> TaskReport:
    return TaskReport(task=TASK, **{"steps": 0.0, "saved": 0.0, **more})  # type: ignore[arg-type]


def test_a_dynamic_job_is_heard_in_epochs_and_says_its_batch_size_once() -> None:
    book = dynamic_gang()
    out = book.handle_message(0, reported(steps=40.0, epochs=0.5, batch=8), 1.0)
    assert out == [BatchChanged(job=0, attempt=1, steps=0.5, batch=8), JobProgress(job=0, attempt=1, steps=0.5)]
    assert book.handle_message(0, reported(steps=80.0, epochs=1.0, batch=8), 2.0) == []
    out = book.handle_message(0, reported(steps=120.0, epochs=2.0, saved_epochs=2.0, saved=120.0, batch=16), 12.0)
    assert out == [BatchChanged(job=0, attempt=1, steps=2.0, batch=16), JobProgress(job=0, attempt=1, steps=2.0)]
    book.handle_message(0, reported(steps=140.0, epochs=2.5, saved_epochs=2.0, batch=16), 13.0)
    book.command(revoke(1), 14.0)
    out = book.handle_message(0, state("ended", cause="expired"), 15.0)
    assert JobStopped(job=0, attempt=1, steps=2.0) in out


def test_the_pace_of_a_dynamic_job_is_measured_in_its_epochs() -> None:
    book = dynamic_gang()
    out = book.handle_message(0, reported(steps=120.0, epochs=2.0, batch=16, step_s=0.5), 1.0)
    (measured,) = [o for o in out if isinstance(o, Measurement)]
    assert (measured.batch, measured.steps_per_s) == (16, pytest.approx(1 / (0.5 * 40)))
    out = book.handle_message(0, reported(steps=160.0, epochs=3.0, batch=32, step_s=0.6), 2.0)
    assert not any(isinstance(o, Measurement) for o in out), "a mean over steps of two sizes"


def test_a_dynamic_job_that_ends_well_did_all_its_epochs() -> None:
    book = dynamic_gang()
    book.handle_message(0, reported(steps=400.0, epochs=10.0, batch=16, reached=True), 1.0)
    out = book.handle_message(0, state("ended"), 2.0)
    assert [o.steps for o in out if isinstance(o, JobReached)] == [10.0]


def test_an_agent_that_cannot_start_is_tried_less_and_less_often_and_ends_nothing(
    tmp_path: Path,
) -> None:
    now, tried = [100.0], []

    def spawn(n: int) -> None:
        tried.append(now[0])
        if len(tried) % 2:
            raise OSError("no more processes")

    hosts = [Host(machine=Machine(name="m0", gpus=2))]
    executor = LocalExecutor(tmp_path, hosts, lambda a, i: PROGRAM, lambda e: None, clock=lambda: now[0])
    executor._spawn = spawn  # type: ignore[method-assign]
    dead = subprocess.Popen(["false"])
    dead.wait()
    executor.agents[0] = dead
    for _ in range(600):
        now[0] += 0.1
        executor._revive()
    executor.close()
    assert 8 <= len(tried) <= 12
    assert tried[1] - tried[0] == pytest.approx(0.5, abs=0.15)
    assert tried[-1] - tried[-2] == pytest.approx(10.0, abs=0.15)


def test_nothing_is_remembered_of_gangs_that_are_settled() -> None:
    """A service that runs for months must not look through every gang that it ever had."""
    book = gangs()
    for attempt in (1, 2):
        book.command(grant(attempt, (1, 2)), 0.0)
        task = f"job0-attempt{attempt}"
        for n in (0, 1):
            book.handle_message(n, TaskState(task=task, phase="prepared", port=20000 + n), 0.0)
        for n in (0, 1):
            out = book.handle_message(n, TaskState(task=task, phase="ended", first=1, cause="exit"), 1.0)
        assert JobStopped(job=0, attempt=attempt, steps=0.0) in out
        assert said(out, Forget) == [], "until its end is on the arbiter's disk"
        assert said(book.handle_message(0, TaskState(task=task, phase="ended", first=1), 1.0), Forget) == []
        assert said(book.recorded(0, attempt, 1.0), Forget) == [0, 1]
        assert (book.gangs, book.of_task, book.running) == ({}, {}, 0)
        assert said(book.handle_message(0, TaskState(task=task, phase="ended", first=1), 2.0), Forget) == [0]


def test_a_gang_reports_each_run_once_and_at_most_sixteen() -> None:
    book = started(gangs())
    out = [o for n in range(40) for o in book.handle_message(0, TaskRuns(task=TASK, runs=(f"mlflow:{n // 2}",)), 1.0)]
    assert [o.run for o in out if isinstance(o, RunReported)] == [str(n) for n in range(16)]


def test_a_machine_that_leaves_with_notice_is_drained_its_grace_ends_with_it_and_its_next_agent_brings_it_back() -> (
    None
):
    book = started(gangs())
    out = book.handle_message(1, Leaving(within_s=20.0), 5.0)
    assert [o for o in out if isinstance(o, MachineFailed)] == [MachineFailed(machine=1, drained=True)]
    out = book.command(revoke(1, cause="failed"), 5.0)
    assert {o.message.grace_s for o in out if isinstance(o, Send) and isinstance(o.message, Stop)} == {20.0}
    assert not [o for o in book.handle_message(1, Renew(sequence=2), 6.0) if isinstance(o, MachineReturned)]
    # The connection was lost: the agent says it again before it renews its lease.
    book.disconnected(1)
    book.handle_message(1, Hello(node="m1", trust="single"), 7.0)
    book.handle_message(1, Leaving(within_s=18.0), 7.0)
    assert not [o for o in book.handle_message(1, Renew(sequence=1), 7.0) if isinstance(o, MachineReturned)]
    book.disconnected(1)
    book.handle_message(1, Hello(node="m1", trust="single"), 60.0)
    assert MachineReturned(machine=1) in book.handle_message(1, Renew(sequence=1), 60.0)
