"""What keeps jobs from running, in a live arbiter: quotas, most jobs at once, waits after failures, walltimes, order, holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from fake import World, request, world
from test_arbiter import ended, enter

from themis.errors import InputError, UnknownName
from themis.machines.engines.program import ABSENT, Ending
from themis.model.cluster import Machine
from themis.model.events import Grant, JobStarted, JobStopped, MachineJoined, Revoke
from themis.schema import messages as schema
from themis.service.api import views
from themis.service.api.submission import submit
from themis.service.engine.config import GroupSettings, UserSettings
from themis.service.engine.journal import Entry

POLICIES = ("themis", "fifo", "drf", "max_min_fairness")
VISION: dict[str, Any] = {
    "users": {"ada": UserSettings(group="vision", gpus=2), "alan": UserSettings(group="vision")},
    "groups": {"vision": GroupSettings(gpus=3)},
    "others": GroupSettings(gpus=1),
}


def row(w: World, app: int) -> schema.App:
    """The app as callers see it."""
    return w.ask(lambda a: views.app_row(a, views.state_now(a), a.journal.apps("app = ?", app)[0]))


def entry(w: World, app: int) -> Entry:
    return w.arbiter.journal.apps("app = ?", app)[0]


def held_by(w: World, *users: str) -> int:
    """GPUs that these users hold."""
    s = w.arbiter.state
    return sum(len(gpus) for job, gpus in w.held().items() if s.app_specs[int(s.jobs.app[job])].user in users)


def after(app: str, *others: str, when: Literal["ok", "failed", "any"] = "ok") -> Any:
    asked = request(app)
    asked.after.extend(schema.After(app=other, when=when) for other in others)
    return asked


# ---- quotas -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_users_and_groups_never_hold_more_than_their_quota_and_others_get_the_rest(tmp_path: Path, policy: str) -> None:
    with world(tmp_path, 8, policy=policy, **VISION) as w:
        for user in ("ada", "alan", "zoe"):
            for i in range(2):
                enter(w, f"{user}{i}", user=user, jobs=3, steps=1000.0)
        for _ in range(6):
            w.turn(1.1)
            assert held_by(w, "ada") <= 2
            assert held_by(w, "ada", "alan") == 3
            assert held_by(w, "zoe") == 1
        assert not w.arbiter.engine.problem


def test_gangs_of_any_size_are_cut_to_what_the_quota_leaves(tmp_path: Path) -> None:
    with world(tmp_path, 8, **VISION) as w:
        enter(w, "a", user="ada", gpus=(1, 8), steps=1000.0)
        enter(w, "b", user="bob", gpus=(1, 8), steps=1000.0)
        for _ in range(4):
            w.turn(1.1)
        assert (held_by(w, "ada"), held_by(w, "bob")) == (2, 1)


def test_what_waits_for_its_quota_says_so(tmp_path: Path) -> None:
    with world(tmp_path, 4, **VISION) as w:
        enter(w, "a", user="zoe")
        enter(w, "b", user="zoe")
        w.turn(1.1)
        waiting = row(w, 1)
        assert (waiting.state, waiting.waits) == ("waiting", "quota")
        assert waiting.reason == "user zoe holds 1 of at most 1 GPUs"
        assert row(w, 0).waits == ""
        w.finish(0)
        w.turn(0.1)
        assert held_by(w, "zoe") == 1
        enter(w, "c", user="big", gpus=(2, 2))
        w.turn(1.1)
        assert row(w, 2).waits == "quota"


def test_quotas_may_change_between_two_starts_and_leases_then_run_out(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 4, clock=clock) as w:
        enter(w, "a", user="zoe", jobs=4, steps=1000.0)
        assert held_by(w, "zoe") == 4
    with world(tmp_path, 4, clock=clock, others=GroupSettings(gpus=1)) as w:
        for _ in range(4):
            w.turn(1.1)
        assert held_by(w, "zoe") == 1
    with world(tmp_path, 4, clock=clock) as w:
        for _ in range(3):
            w.turn(1.1)
        assert held_by(w, "zoe") == 4


# ---- arrays, failures, walltime -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_an_array_has_at_most_so_many_jobs_at_once(tmp_path: Path, policy: str) -> None:
    with world(tmp_path, 8, policy=policy) as w:
        asked = request("a", jobs=6, steps=1000.0)
        asked.at_once = 2
        w.ask(lambda a: submit(a, asked))
        for _ in range(3):
            w.turn(1.1)
            assert len(w.held()) == 2
        done = next(iter(w.held()))
        w.finish(done, 1000.0)
        w.turn(1.1)
        assert len(w.held()) == 2
        assert done not in w.held()


def test_the_rest_of_an_array_counts_as_work_to_come(tmp_path: Path) -> None:
    rho = []
    for name, most in (("free", 0), ("bound", 2)):
        (tmp_path / name).mkdir()
        with world(tmp_path / name, 8) as w:
            asked = request("a", jobs=8, steps=1000.0)
            asked.at_once = most
            w.ask(lambda a, asked=asked: submit(a, asked))
            w.turn(1.1)
            rho.append(w.ask(lambda a: views.rho_now(views.state_now(a)))[0])
    # Both have the ideal of their own demand: 8 jobs beside each other, or 4 times 2 after each other.
    assert rho[1] == pytest.approx(rho[0], rel=0.05)


def waits_for(w: World, seconds: float) -> None:
    """The only job is run again after so long, and not before."""
    if seconds:
        assert w.held() == {}
        assert row(w, 0).waits == "backoff"
        w.turn(seconds - 0.5)
        assert w.held() == {}
        w.turn(0.6)
    assert w.held() == {0: (0,)}


def test_a_failed_job_waits_longer_after_each_failure(tmp_path: Path) -> None:
    with world(tmp_path, retries=3, backoff_s=10.0, backoff_most_s=15.0) as w:
        enter(w)
        for attempt, wait in ((1, 10.0), (2, 15.0), (3, 15.0)):
            w.say(ended(0, attempt, Ending.FAILED, 5), JobStopped(job=0, attempt=attempt, steps=0.0))
            waits_for(w, wait)


def test_a_job_that_asks_at_once_to_be_run_again_waits_longer_each_time_and_never_fails(tmp_path: Path) -> None:
    with world(tmp_path, retries=0, backoff_s=10.0) as w:
        enter(w)
        endings = (
            (Ending.REQUEUED, 1.0, 10.0),
            (Ending.TERMINATED, 9.0, 20.0),
            (Ending.REQUEUED, 11.0, 0.0),
            (Ending.REQUEUED, 1.0, 10.0),
            (Ending.NODE_LOST, 1.0, 0.0),
            (Ending.REQUEUED, 1.0, 10.0),
        )
        for attempt, (ending, seconds, wait) in enumerate(endings, start=1):
            w.say(replace(ended(0, attempt, ending), seconds=seconds), JobStopped(job=0, attempt=attempt, steps=0.0))
            waits_for(w, wait)


def test_a_machine_that_cannot_start_a_job_costs_no_retry_but_a_wait(tmp_path: Path) -> None:
    with world(tmp_path, retries=0, backoff_s=10.0) as w:
        enter(w)
        for attempt, wait in ((1, 10.0), (2, 20.0)):
            end = replace(ended(0, attempt, Ending.NODE_LOST), cause="machine", seconds=0.0, message="No space left")
            w.say(end, JobStopped(job=0, attempt=attempt, steps=0.0))
            waits_for(w, wait)
        assert entry(w, 0).outcome == ""


ABSENT_END = {"cause": ABSENT, "message": "program 'x' is not on PATH '/bin'"}


def test_a_program_that_is_not_there_is_not_looked_for_again_on_the_same_machine(tmp_path: Path) -> None:
    with world(tmp_path, retries=2, backoff_s=10.0) as w:
        enter(w, jobs=2)
        w.say(replace(ended(0, 1, Ending.NOT_STARTED), **ABSENT_END), JobStopped(job=0, attempt=1, steps=0.0))
        assert set(w.held()) == {1}
        w.finish(1)
        assert entry(w, 0).outcome == "failed"
        assert entry(w, 0).reason == "job j0 cannot be started: program 'x' is not on PATH '/bin'"


def test_a_program_that_one_node_lacks_is_looked_for_on_others(tmp_path: Path) -> None:
    with world(tmp_path, retries=2, backoff_s=10.0, engine="ray") as w:
        w.say(MachineJoined(machine=Machine(name="m0", gpus=4)))
        enter(w)
        w.say(replace(ended(0, 1, Ending.NOT_STARTED), **ABSENT_END), JobStopped(job=0, attempt=1, steps=0.0))
        waits_for(w, 10.0)


def test_a_job_without_retries_ends_and_its_app_goes_on_and_fails_at_last(tmp_path: Path) -> None:
    with world(tmp_path, retries=0) as w:
        enter(w, jobs=2)
        w.say(replace(ended(1, 1, Ending.FAILED, 5), app=0), JobStopped(job=1, attempt=1, steps=0.0))
        assert set(w.held()) == {0}
        assert row(w, 0).state == "running"
        w.finish(0)
        assert (entry(w, 0).outcome, entry(w, 0).reason) == ("failed", "job j1 failed once: exit code 5")


def test_a_sweep_goes_on_without_a_job_that_was_given_up(tmp_path: Path) -> None:
    with world(tmp_path, 4, retries=0) as w:
        asked = request("a", jobs=3, steps=20.0)
        asked.brackets = schema.Brackets(
            brackets=[schema.Bracket(rungs=[schema.Rung(jobs=3, steps=10.0), schema.Rung(jobs=1, steps=10.0)])]
        )
        w.ask(lambda a: submit(a, asked))
        w.finish(0, 10.0)
        w.finish(1, 10.0)
        w.say(replace(ended(2, 1, Ending.FAILED, 5), app=0), JobStopped(job=2, attempt=1, steps=0.0))
        w.turn(1.1)
        assert len(w.held()) == 1
        w.finish(next(iter(w.held())), 20.0)
        assert entry(w, 0).outcome == "failed"


def test_walltime_counts_all_attempts_and_ends_the_job(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, clock=clock, backoff_s=0.0) as w:
        asked = request(steps=1000.0)
        asked.walltime_s = 30.0
        w.ask(lambda a: submit(a, asked))
        w.turn(19.0)
        w.say(ended(0, 1, Ending.REQUEUED), JobStopped(job=0, attempt=1, steps=0.0))  # says that it ran for 1 s
        w.turn(15.0)
        assert set(w.held()) == {0}
    clock[0] += 5.0
    with world(tmp_path, clock=clock, backoff_s=0.0) as w:
        w.turn(8.0)
        assert set(w.held()) == {0}
        w.turn(1.5)
        assert w.held() == {}
        assert [c.cause for c in w.executor.commands if isinstance(c, Revoke)] == ["walltime"]
        assert (entry(w, 0).outcome, entry(w, 0).reason) == ("failed", "job j0 ran for 30s, its walltime")


def test_a_night_without_an_arbiter_is_no_walltime(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, clock=clock, silent=True, node_lease_s=30.0) as w:
        asked = request(steps=1000.0)
        asked.walltime_s = 60.0
        w.ask(lambda a: submit(a, asked))
        w.say(JobStarted(job=0, attempt=1))
        w.turn(10.0)
    clock[0] += 8 * 3600.0
    with world(tmp_path, clock=clock, node_lease_s=30.0) as w:
        w.turn()
        assert entry(w, 0).reason == "", "its machine stopped it with its lease and will say so"
        w.say(ended(0, 1, Ending.NODE_LOST), JobStopped(job=0, attempt=1, steps=0.0))
        w.turn(1.0)
        assert set(w.held()) == {0}


# ---- order among apps -----------------------------------------------------------------------------------------------------


def test_an_app_starts_when_those_that_it_waits_for_have_completed(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, clock=clock) as w:
        enter(w, "one"), enter(w, "two")
        w.ask(lambda a: submit(a, after("last", "one", "1")))
        assert set(w.held()) == {0, 1}
        assert (row(w, 2).state, row(w, 2).waits) == ("waiting", "after")
        assert row(w, 2).reason == "waits for one to complete, two to complete"
        w.finish(0)
        assert set(w.held()) == {1}
        assert row(w, 2).reason == "waits for two to complete"
    with world(tmp_path, clock=clock) as w:
        w.finish(1)
        assert set(w.held()) == {2}
        w.finish(2)
        assert entry(w, 2).outcome == "completed"


@pytest.mark.parametrize(("when", "starts"), [("ok", False), ("any", True), ("failed", True)])
def test_a_cancelled_dependency_ends_or_frees_who_waits_for_it_and_those_behind(
    tmp_path: Path, when: str, starts: bool
) -> None:
    with world(tmp_path) as w:
        enter(w, "one")
        w.ask(lambda a: submit(a, after("two", "one", when=when)))
        w.ask(lambda a: submit(a, after("three", "two", when=when)))
        w.ask(lambda a: a.cancel(0))
        if starts:
            assert set(w.held()) == {1}
            return
        assert [entry(w, app).outcome for app in (1, 2)] == ["cancelled", "cancelled"]
        assert entry(w, 1).reason == "app 'one' is cancelled, so its dependency can never be met"
        assert w.held() == {}


def test_what_can_never_start_or_is_not_ones_own_is_refused(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w, "one")
        w.ask(lambda a: a.cancel(0))
        enter(w, "theirs", user="somebody")
        for asked, kind, words in (
            (after("two", "one"), InputError, "app 'one' is cancelled, so app 'two', which waits for it, would never"),
            (after("two", "onne"), UnknownName, "unknown app of yours to wait for, 'onne'. Did you mean 'one'?"),
            (after("two", "theirs"), UnknownName, "unknown app of yours"),
        ):
            with pytest.raises(kind, match=words):
                w.ask(lambda a, asked=asked: submit(a, asked))
        assert w.ask(lambda a: submit(a, after("two", "one", when="failed"))).app == 2
        assert 2 in w.held()


def test_a_held_app_that_waits_for_another_needs_both_to_start(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w, "one")
        w.ask(lambda a: submit(a, after("two", "one")))
        w.ask(lambda a: a.hold(1))
        assert (row(w, 1).state, row(w, 1).waits) == ("held", "held")
        w.ask(lambda a: a.resume(1))
        assert row(w, 1).waits == "after"
        assert 1 not in w.held()
        w.ask(lambda a: a.hold(1))
        w.finish(0)
        assert w.held() == {}
        w.ask(lambda a: a.resume(1))
        assert set(w.held()) == {1}


# ---- holds ----------------------------------------------------------------------------------------------------------------


def test_time_on_hold_is_no_part_of_an_apps_life_nor_of_the_others_contention(tmp_path: Path) -> None:
    figures = []
    for name, hold in (("never", False), ("held", True)):
        (tmp_path / name).mkdir()
        with world(tmp_path / name, 1, lease_s=60.0) as w:
            enter(w, "a", steps=10.0)
            if hold:
                w.ask(lambda a: a.hold(0))
                w.turn(1000.0)
                w.ask(lambda a: a.resume(0))
            w.turn(10.0)
            w.finish(0, 10.0)
            done = entry(w, 0)
            assert done.ended is not None
            figures.append((done.rho, done.ended - done.submitted))
    assert figures[1][0] == pytest.approx(figures[0][0], rel=1e-3)
    assert figures[1][1] == pytest.approx(figures[0][1] + 1000.0, rel=1e-3)


def test_nobody_contends_with_a_held_app(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        enter(w, "a"), enter(w, "b")
        assert w.arbiter.state.apps.weight[:2].tolist() == [0.5, 0.5]
        assert w.arbiter.state.weight_in_system == 1.0
        w.ask(lambda a: a.hold(0))
        w.ask(lambda a: a.hold(0))
        assert w.arbiter.state.weight_in_system == 1.0
        w.ask(lambda a: a.cancel(0))
        assert w.arbiter.state.weight_in_system == 1.0
        w.ask(lambda a: a.resume(1))
        assert w.arbiter.state.weight_in_system == 1.0


# ---- CPUs and memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (
            {"cpus": 2.5},
            "job 'j0' asks for 2.5 CPUs per GPU, the machines have 2 per GPU. Lower cpus, or ask for more GPUs.",
        ),
        ({"memory": 3 << 30}, "job 'j0' asks for 3 GiB per GPU, the machines have 2 GiB per GPU."),
    ],
)
def test_what_no_gpu_has_beside_it_is_refused(tmp_path: Path, asks: dict[str, Any], words: str) -> None:
    with world(tmp_path, 4, cpus=8, memory=8 << 30) as w:
        for figures, refused in ((asks, True), ({"cpus": 2.0, "memory": 2 << 30}, False)):
            asked = request()
            for name, value in figures.items():
                setattr(asked.jobs[0], name, value)
            if refused:
                with pytest.raises(InputError, match=words):
                    w.ask(lambda a, asked=asked: submit(a, asked))
            else:
                w.ask(lambda a, asked=asked: submit(a, asked))
        assert [type(c) for c in w.executor.commands] == [Grant]
