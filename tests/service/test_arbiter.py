"""The arbiter over a fake executor: what it decides, what it writes down, what a restart brings back."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake import World, request, world

from audit import as_written
from themis.cli import main
from themis.core.scheduler import Scheduler
from themis.errors import InputError, NotSolved, UnknownName
from themis.machines.agent.channel import LONGEST
from themis.machines.agent.messages import Prepare, encode
from themis.machines.engines.hosts import task_specs
from themis.machines.engines.program import AttemptEnded, Ending, Measurement
from themis.model.cluster import Machine
from themis.model.events import (
    Allocated,
    Command,
    Event,
    Grant,
    Header,
    JobProgress,
    JobStopped,
    MachineFailed,
    MachineJoined,
    MachineReturned,
    Renew,
    Revoke,
)
from themis.model.settings import Settings
from themis.model.units import Locality
from themis.policies.api import make_policy
from themis.schema import messages as schema
from themis.service.api import views
from themis.service.api.submission import Limit, _free_name, submit
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import GroupSettings, UserSettings
from themis.service.engine.engine import Engine
from themis.service.engine.journal import Journal, export, read_records
from themis.service.engine.pending_calls import Call, Closed
from themis.service.engine.speed_estimator import LEAST
from themis.sim.replay import replay, replay_records
from themis.sim.runner import Simulation
from themis.testing.builders import BOOK, NO_OVERHEAD, machines, random_workload
from themis.traces.profiles.models import DEFAULT_BOOK


def enter(w: World, name: str = "a", **more: object) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


def ended(job: int, attempt: int, ending: Ending, code: int | None = None) -> AttemptEnded:
    return AttemptEnded(
        app=job,
        job=job,
        attempt=attempt,
        ending=ending,
        cause="",
        code=code,
        seconds=1.0,
        steps=0.0,
        saved=False,
        killed=False,
        message="",
    )


# ---- decisions -------------------------------------------------------------------------------------------------------


def test_a_submitted_app_gets_gpus_and_ends_when_its_job_does(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        app = enter(w, gpus=(2, 2))
        assert len(w.held()[0]) == 2
        w.finish(0)
        assert w.arbiter.journal.apps("app = ?", app)[0].outcome == "completed"
        assert isinstance(w.executor.commands[-1], Revoke)


@pytest.mark.parametrize("policy", ["themis", "drf", "max_min_fairness", "tiresias"])
@pytest.mark.parametrize("seed", range(2))
def test_live_and_simulated_schedulers_give_the_same_commands(tmp_path: Path, policy: str, seed: int) -> None:
    """One workload through both: the simulator's events, fed to the engine at their times, give the simulator's log."""
    simulated: list[tuple[float, object]] = []
    world_ = Simulation(
        workload=random_workload(seed, apps=8),
        cluster=machines(4, 4),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=NO_OVERHEAD,
    )
    world_.run(lambda time, record: simulated.append((time, record)))
    journal = Journal(tmp_path / "journal.db")
    engine = Engine(journal, Scheduler(BOOK, NO_OVERHEAD, world_.policy.pace), world_.policy)
    live: list[tuple[float, object]] = []
    engine.announce = lambda time, command: live.append((time, command))
    expected: list[tuple[float, object]] = []
    with journal.transaction():
        journal.append(0.0, world_.header())
        for time, record in simulated[1:]:
            if not is_event(record):
                expected.append((time, record))
                if len(live) < len(expected):
                    engine.advance(time)
            elif not isinstance(record, Allocated):
                engine.advance(float(np.nextafter(time, 0.0)))
                engine.feed(record, time)  # type: ignore[arg-type]
    assert len(expected) > 20
    assert live == expected
    journal.close()


def is_event(record: object) -> bool:
    return isinstance(record, Event) and not isinstance(record, Command)


def test_leases_end_and_are_renewed_while_nothing_else_happens(tmp_path: Path) -> None:
    with world(tmp_path, 1) as w:
        enter(w, "a")
        for _ in range(8):
            w.turn(1.0)
        assert [type(c) for c in w.executor.commands[1:]] == [Renew] * (len(w.executor.commands) - 1)
        assert len(w.executor.commands) >= 4


@pytest.mark.parametrize("policy", ["themis", "tiresias", "srtf"])
def test_nobody_loses_gpus_before_the_lease_is_over_whoever_waits(tmp_path: Path, policy: str) -> None:
    with world(tmp_path, 1, policy=policy, lease_s=10.0, step_s=10.0) as w:
        enter(w, "first", steps=1000.0)
        w.turn(3.0)
        enter(w, "second", steps=5.0)
        w.turn(6.5)
        assert set(w.held()) == {0}
        w.turn(2.0)
        assert set(w.held()) == {1}


@pytest.mark.parametrize("policy", ["themis", "tiresias"])
def test_nobody_is_stopped_for_a_gang_before_all_its_gpus_can_be_had(tmp_path: Path, policy: str) -> None:
    with world(tmp_path, 4, policy=policy, lease_s=4.0) as w:
        for n in (0, 1):
            enter(w, f"small{n}", gpus=(2, 2), steps=1000.0)
            w.turn(1.5)
        large = enter(w, "large", gpus=(4, 4), steps=10.0)
        while large not in w.held():
            assert w.clock[0] < 1020.0, "it never got its turn"
            told = len(w.executor.commands)
            w.turn(1.5)
            new = w.executor.commands[told:]
            assert sum(map(len, w.held().values())) == 4
            assert large in w.held() or not any(isinstance(c, Revoke) for c in new), new


def test_commands_go_out_only_after_they_are_on_disk(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        seen = []
        other = sqlite3.connect(tmp_path / "journal.db")
        inner = w.executor.submit

        def submit_(command: object) -> None:
            seen.append(other.execute("SELECT count(*) FROM records WHERE kind = 'Grant'").fetchone()[0])
            inner(command)  # type: ignore[arg-type]

        w.executor.submit = submit_  # type: ignore[method-assign, assignment]
        enter(w)
        other.close()
        assert seen == [1]


def test_where_the_policy_cannot_decide_another_does_and_the_reason_is_kept(tmp_path: Path) -> None:
    class Fails:
        needs: frozenset[str] = frozenset()

        def __call__(self, *_: object) -> object:
            raise NotSolved("no proof within the gap.")

    with world(tmp_path, policy="gandiva") as w:
        w.arbiter.engine.policy = Fails()  # type: ignore[assignment]
        enter(w)
        assert w.held() == {0: (0,)}
        assert "no proof within the gap" in w.arbiter.engine.problem


def test_a_job_that_fails_too_often_ends_its_app(tmp_path: Path) -> None:
    with world(tmp_path, retries=1) as w:
        enter(w)
        for attempt in (1, 2):
            w.say(ended(0, attempt, Ending.FAILED, 5), JobStopped(job=0, attempt=attempt, steps=0.0))
        entry = w.arbiter.journal.apps()[0]
        assert (entry.outcome, entry.reason) == ("failed", "job j0 failed 2 times, at last: exit code 5")
        assert w.held() == {}


def test_preemptions_and_lost_machines_are_no_failures(tmp_path: Path) -> None:
    with world(tmp_path, retries=0) as w:
        enter(w)
        for attempt, ending in enumerate((Ending.NODE_LOST, Ending.REQUEUED, Ending.TERMINATED), start=1):
            end = replace(ended(0, attempt, ending), seconds=60.0)
            w.say(end, JobStopped(job=0, attempt=attempt, steps=0.0))
        assert w.held() == {0: (0,)}


def test_a_held_app_gives_its_gpus_back_until_it_is_resumed(tmp_path: Path) -> None:
    with world(tmp_path, 1) as w:
        enter(w, "a")
        enter(w, "b")
        assert w.held() == {0: (0,)}
        w.ask(lambda a: a.hold(0))
        assert w.held() == {1: (0,)}
        assert w.ask(lambda a: views.apps(a, views.schema.AppsRequest())).apps[0].state == "held"
        w.finish(1)
        w.turn(10.0)
        assert w.held() == {}
        w.ask(lambda a: a.resume(0))
        assert w.held() == {0: (0,)}


def test_parts_by_weight_add_up_to_one_whoever_is_on_hold(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        for name in ("a", "b", "c"):
            enter(w, name)
        w.ask(lambda a: a.hold(2))
        assert sum(user.fair for user in w.ask(views.share).users) == pytest.approx(1.0)


def test_shares_tell_what_apps_had_beside_what_their_own_part_would_have_given(tmp_path: Path) -> None:
    def rows(w: World) -> dict[str, tuple[float, float]]:
        """GPU-seconds of each user: had, and on 1/N."""
        return {u.user: (u.gpu_hours * 3600, u.private_gpu_hours * 3600) for u in w.ask(views.share).users}

    with world(tmp_path, 4, policy="fifo", lease_s=1000.0) as w:
        enter(w, "a", gpus=(4, 4), steps=1e6, user="ada")
        assert rows(w)["ada"] == pytest.approx((0.0, 0.0), abs=0.01)
        w.turn(10.0)
        assert rows(w)["ada"] == pytest.approx((40.0, 40.0)), "alone, its part is the whole"
        enter(w, "b", gpus=(1, 1), steps=1e6, user="ben")
        w.turn(10.0)
        both = rows(w)
        # N_avg of the first: 1 for 10 s and 2 for 10 s. A part of two GPUs gives one to a job that can use one.
        assert both["ada"] == pytest.approx((80.0, 4 / 1.5 * 20.0))
        assert both["ben"] == pytest.approx((0.0, 10.0), abs=0.01)
        w.ask(lambda a: a.hold(0))
        w.turn(10.0)
        later = rows(w)
        assert later["ada"] == pytest.approx(both["ada"]), "time on hold is the user's own"
        assert later["ben"] == pytest.approx((10.0, 20.0))
        w.ask(lambda a: a.resume(0))
        w.turn(10.0)
        assert rows(w)["ada"][1] == pytest.approx(4 / (50.0 / 30.0) * 30.0)


def test_jobs_that_ended_early_are_done_as_far_as_progress_goes(tmp_path: Path) -> None:
    rungs = schema.Brackets(
        brackets=[schema.Bracket(rungs=[schema.Rung(jobs=2, steps=10.0), schema.Rung(jobs=1, steps=90.0)])]
    )
    with world(tmp_path, 2) as w:
        enter(w, jobs=2, brackets=rungs)
        for job in (0, 1):
            w.finish(job, steps=10.0)
        row = w.ask(lambda a: views.apps(a, views.schema.AppsRequest())).apps[0]
        assert (row.jobs_ended, row.progress) == (1, pytest.approx(0.5, abs=0.01)), "the other one begins its next rung"


@pytest.mark.parametrize("outcome", ["cancelled", "failed"])
def test_an_app_that_was_given_up_shows_what_it_did_and_which_jobs_are_done(tmp_path: Path, outcome: str) -> None:
    with world(tmp_path, 2, retries=0) as w:
        enter(w, jobs=2, steps=100.0)
        w.finish(0)
        w.say(JobProgress(job=1, attempt=1, steps=40.0))
        if outcome == "cancelled":
            w.ask(lambda a: a.cancel(0))
        else:
            w.say(replace(ended(1, 1, Ending.FAILED, 5), app=0), JobStopped(job=1, attempt=1, steps=40.0))
        row = w.ask(lambda a: views.apps(a, views.schema.AppsRequest(ended=True))).apps[0]
        assert row.state == outcome
        assert (row.jobs, row.jobs_ended, row.jobs_done) == (2, 2, 1)
        assert row.progress == pytest.approx(0.7, abs=0.01)


def test_rows_of_the_queue_are_those_of_each_app_alone(tmp_path: Path) -> None:
    """Apps of one to nine jobs that run on two machines, wait, are held, were cancelled, and failed once."""
    with world(tmp_path, 2, 3, policy="fifo", retries=3) as w:
        for n, jobs in enumerate((1, 3, 2, 9, 1)):
            enter(w, f"a{n}", jobs=jobs, steps=1e4, user=f"u{n % 2}")
        enter(w, "later", user="u0", after=[schema.After(app="a0", when="ok")])
        w.turn(7.0)
        w.say(replace(ended(1, 1, Ending.FAILED, 5), app=1), JobStopped(job=1, attempt=1, steps=1.0))
        w.turn(5.0)
        w.finish(2, steps=1e4)
        w.ask(lambda a: a.hold(2))
        w.ask(lambda a: a.cancel(4))

        def rows(a: Arbiter) -> tuple[list[schema.App], list[schema.App]]:
            s, entries = views.state_now(a), a.journal.apps()
            return views.app_rows(a, s, entries), [views.app_row(a, s, entry) for entry in entries]

        together, alone = w.ask(rows)
        assert together == alone
        assert [row.state for row in together] == ["running", "running", "held", "running", "cancelled", "waiting"]
        assert [row.jobs for row in together] == [1, 3, 2, 9, 1, 1]
        assert [row.jobs_done for row in together] == [0, 1, 0, 0, 0, 0]
        assert {name for row in together for name in row.nodes} == {"m0", "m1"}
        assert [round(row.gpu_hours * 3600) for row in together[:2]] == [12, 31]
        assert [round(row.elapsed_s) for row in together[:2]] == [12, 12]
        assert together[5].waits == "after"


def test_without_a_machine_in_service_there_is_no_rho(tmp_path: Path) -> None:
    with world(tmp_path, 1) as w:
        enter(w, gpus=(1, 1))
        assert w.ask(views.share).users[0].rho_worst is not None
        w.ask(lambda a: a.drain(0, True))
        assert w.ask(views.share).users[0].rho_worst is None


def test_a_held_app_can_be_cancelled_but_not_one_that_is_over(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w)
        w.ask(lambda a: a.hold(0))
        w.ask(lambda a: a.cancel(0))
        assert w.arbiter.journal.apps()[0].outcome == "cancelled"
        with pytest.raises(InputError, match="is finished, so it cannot be held"):
            w.ask(lambda a: a.hold(0))


def test_drained_machines_are_empty_and_stay_so_when_they_return_by_themselves(tmp_path: Path) -> None:
    with world(tmp_path, 1, 1) as w:
        enter(w, "a", gpus=(2, 2))
        w.ask(lambda a: a.drain(1, True))
        assert w.held() == {}
        w.say(MachineFailed(machine=1), MachineReturned(machine=1))
        assert w.held() == {}
        assert [n.state for n in w.ask(views.nodes).nodes] == ["up", "drained"]
        w.ask(lambda a: a.drain(1, False))
        assert w.held() == {0: (0, 1)}


# ---- submissions -----------------------------------------------------------------------------------------------------


def test_machines_of_an_engine_join_while_it_runs_and_are_known_after_a_restart(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, clock=clock, engine="ray") as w:
        w.say(MachineJoined(machine=Machine(name="x", gpus=2)))
        w.ask(lambda a: submit(a, request(gpus=(2, 2), jobs=2)))
        w.turn(1.0)
        assert w.held() == {0: (0, 1)}
        w.say(*[MachineJoined(machine=Machine(name=name, gpus=2)) for name in ("x", "y")])
        w.turn(1.0)
        assert w.held() == {0: (0, 1), 1: (2, 3)}
        assert [m.name for m in w.executor.joined] == ["x", "y"]
    with world(tmp_path, clock=clock, engine="ray") as w:
        assert [m.name for m in w.executor.joined] == ["x", "y"], "before gangs are handed over"
        assert w.held() == {0: (0, 1), 1: (2, 3)}
        w.say(MachineJoined(machine=Machine(name="x", gpus=2)))
        assert len(w.arbiter.state.machines) == 2


def test_a_repeated_submission_enters_one_app(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        assert [enter(w, key="k"), enter(w, key="k"), enter(w, key="other")] == [0, 0, 1]
        assert [entry.name for entry in w.arbiter.journal.apps()] == ["a", "a-2"]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"name": "no spaces"}, InputError, "the name of the app is 'no spaces'"),
        ({"user": ""}, InputError, "the name of the user is ''"),
        ({"gpus": (9, 9)}, InputError, "wants at least 9 GPUs"),
        ({"steps": 0.0}, InputError, "steps is 0.0"),
        ({"steps": 1e-320}, InputError, "steps is 1e-320"),
        ({"name": "9"}, InputError, "is an app's number"),
        ({"steps": float("inf")}, InputError, "steps is inf"),
        ({"weight": -1.0}, InputError, "weight is -1.0"),
        ({"jobs": 0}, InputError, "has no jobs"),
        ({"jobs": 4}, Limit, "has 4 jobs, the limit is 3"),
    ],
)
def test_bad_submissions_are_refused_in_one_sentence_and_change_nothing(
    tmp_path: Path, change: dict[str, object], kind: type[Exception], words: str
) -> None:
    with world(tmp_path, max_jobs=3) as w:
        before = w.arbiter.journal.last()
        with pytest.raises(kind, match=words):
            enter(w, **{"name": "a", **change})  # type: ignore[arg-type]
        assert w.arbiter.journal.last() == before
        assert w.executor.admitted == []


def test_models_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    bad = request()
    bad.jobs[0].model = "resnet51"
    with world(tmp_path) as w, pytest.raises(UnknownName, match="unknown model 'resnet51'"):
        w.ask(lambda a: submit(a, bad))


def test_users_and_the_arbiter_have_a_most_of_active_apps(tmp_path: Path) -> None:
    with world(tmp_path, max_apps=3, max_apps_per_user=2) as w:
        enter(w), enter(w)
        with pytest.raises(Limit, match="user 'u' has 2 apps"):
            enter(w)
        enter(w, user="v")
        with pytest.raises(Limit, match="3 apps are queued"):
            enter(w, user="w")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"argv": ["echo", "x" * (128 << 10)]}, "131072 bytes"),
        ({"argv": ["echo"], "env": {f"V{i}": "x" * 100_000 for i in range(11)}}, "have 11[0-9]+ bytes together"),
        ({"argv": [""] * 120_000}, "the limits are [0-9]+ and [0-9]+. Write them to a file"),
        ({"argv": ["echo"], "grace_s": 601.0}, "asks for a grace period of 601 s, the maximum is 600 s"),
    ],
)
def test_programs_that_no_machine_can_start_or_stop_in_time_are_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    big = request()
    big.jobs[0].program = schema.Program(**change)
    with world(tmp_path, max_grace_s=600.0) as w, pytest.raises(Limit, match=words):
        w.ask(lambda a: submit(a, big))


def test_whatever_is_taken_fits_into_a_message_to_a_node_agent(tmp_path: Path) -> None:
    big = request()
    big.jobs[0].program = schema.Program(argv=["echo", *["\1" * 100_000] * 10], cwd="/tmp")
    with world(tmp_path) as w:
        w.ask(lambda a: submit(a, big))
        program = w.arbiter.programs["a"][0]
        (grant,) = [c for c in w.executor.commands if isinstance(c, Grant)]
        (spec,) = task_specs(grant, program, w.arbiter.hosts, "/ckpt", 1000).values()
        assert 4 << 20 < len(json.dumps(encode(Prepare(spec=spec)))) < LONGEST


def test_a_home_may_have_any_name(tmp_path: Path) -> None:
    home = tmp_path / "100% #1?mode=rwc"
    home.mkdir()
    with world(home) as w:
        enter(w)
        assert "Grant" in [kind for _, _, kind, _ in read_records(w.arbiter.journal.path)]
        assert export(w.arbiter.journal.path, tmp_path / "log.jsonl") > 2


def test_one_more_run_of_a_name_finds_a_free_one_however_many_there_were() -> None:
    taken, asked = {"a", *(f"a-{i}" for i in range(2, 5001)), "a-9000"}, []

    def is_taken(name: str) -> bool:
        asked.append(name)
        return name in taken

    for expected in ("a-5001", "a-5002"):
        asked.clear()
        assert _free_name("a", is_taken) == expected
        assert len(asked) < 40
        taken.add(expected)


def test_nothing_that_a_restart_does_not_need_stays_in_memory_of_apps_that_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("themis.service.engine.state_snapshots.maybe_take.__kwdefaults__", {"every": 1})
    with world(tmp_path, 2) as w:
        for name in "abc":
            enter(w, name)
        w.finish(0), w.finish(1)
        w.turn(1.0)
        engine = w.arbiter.engine
        assert set(w.held()) == {2}
        assert set(w.arbiter.programs) == {"c"}
        for known in (engine.grants, engine.revokes, engine.saved, engine.started):
            assert {*known} <= {2}
        enter(w, "d")
        assert set(w.held()) == {2, 3}
    with world(tmp_path, 2) as w:
        assert set(w.arbiter.programs) == {"c", "d"}
        assert set(w.held()) == {2, 3}


def test_gangs_grow_to_the_cluster_at_most_and_users_have_weights(tmp_path: Path) -> None:
    users, groups = {"u": UserSettings(weight=1.5, group="g")}, {"g": GroupSettings(weight=2.0)}
    with world(tmp_path, 2, users=users, groups=groups) as w:
        enter(w, gpus=(1, 1_000_000), weight=2.0)
        state = w.arbiter.state
        assert (state.job_specs[0].gpus_max, state.apps.given[0]) == (2, 6.0)
        assert state.apps.weight[0] == 3.0  # its user's times its group's: fairness is between users


def test_speeds_of_a_submission_are_believed_and_outlive_a_restart(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, clock=clock) as w:
        fast = request()
        fast.profile = schema.Profile(curves=[schema.SpeedCurve(gpu_type="*", gpus=[1], steps_per_s=[50.0])])
        w.ask(lambda a: submit(a, fast))
        w.turn(1.0)
        assert w.ask(views.state_now).steps_now(np.array([0]))[0] == pytest.approx(50.0, rel=1e-3)
    with world(tmp_path, clock=clock) as w:
        assert w.arbiter.state.job_specs[0].model == "u/a"


def test_machines_may_forget_an_attempt_once_its_end_is_on_disk(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        seen = []
        other = sqlite3.connect(tmp_path / "journal.db")

        def recorded(job: int, attempt: int) -> None:
            stopped = other.execute("SELECT count(*) FROM records WHERE kind = 'JobStopped'").fetchone()[0]
            seen.append((job, attempt, stopped))

        w.executor.recorded = recorded  # type: ignore[method-assign]
        enter(w)
        w.say(JobStopped(job=0, attempt=1, steps=5.0))
        w.finish(0)
        other.close()
        assert [(job, attempt) for job, attempt, _ in seen] == [(0, 1), (0, 1), (0, 2)], (
            "it says twice that the first one died"
        )
        assert [stopped for _, _, stopped in seen] == [1, 2, 3]


def test_a_bug_in_a_call_is_its_callers_alone_before_and_after_something_was_written(tmp_path: Path) -> None:
    def half(a: Arbiter) -> None:
        a.journal.set_meta("half", "done")
        raise ZeroDivisionError

    with world(tmp_path, faulty=True) as w:
        early: Future[None] = Future()
        w.arbiter.queue.put(Call(lambda: 1 / 0, early))
        w.turn()
        assert isinstance(early.exception(0), ZeroDivisionError)
        enter(w)
        assert set(w.held()) == {0}
        other: Future[schema.SubmitReply] = Future()
        w.arbiter.queue.put(Call(lambda: submit(w.arbiter, request("b")), other))
        with pytest.raises(ZeroDivisionError):
            w.ask(half)
        assert w.arbiter.journal.meta("half") is None
        assert set(w.held()) == {0, other.result(0).app}
        assert not w.arbiter.quarantine.off


# ---- going on --------------------------------------------------------------------------------------------------------


def test_a_restart_brings_the_same_state_back_and_hands_every_gang_over(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, 2, clock=clock) as w:
        for name in "abcd":
            enter(w, name, gpus=(1, 2), jobs=2)
            w.turn(0.7)
        w.finish(0)
        w.ask(lambda a: a.hold(3))
        held, attempts = w.held(), w.arbiter.state.jobs.attempt[:8].tolist()
        wakes, done = sorted(w.arbiter.engine.wakes), w.arbiter.state.jobs.done[:8].tolist()
    with world(tmp_path, 2, 2, clock=clock) as w:
        assert w.held() == held
        assert w.arbiter.state.jobs.attempt[:8].tolist() == attempts
        assert w.arbiter.state.jobs.done[:8].tolist() == done
        assert sorted(w.arbiter.engine.wakes) == wakes
        assert {g.job: g.gpus for g, _, _ in w.executor.restored} == held
        assert all(started for _, _, started in w.executor.restored)
        assert w.executor.admitted == [(0, "a"), (2, "b"), (4, "c"), (6, "d")]


def test_gangs_that_were_told_to_stop_are_told_again(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 1, clock=clock, silent=True) as w:
        enter(w)
        w.ask(lambda a: a.cancel(0))
    with world(tmp_path, 1, clock=clock) as w:
        assert [(g.job, started) for g, _, started in w.executor.restored] == [(0, False)]
        assert [(c.job, c.cause) for c in w.executor.commands if isinstance(c, Revoke)] == [(0, "cancelled")]


def test_what_was_due_while_no_arbiter_ran_is_settled_once(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 1, clock=clock) as w:
        enter(w)
    clock[0] += 3600.0
    with world(tmp_path, 1, clock=clock) as w:
        w.turn()
        renewed = [c for c in w.executor.commands if isinstance(c, Renew)]
        assert len(renewed) == 1
        assert renewed[0].until > 3600.0


def test_a_lost_machine_is_lost_after_a_restart_until_it_says_otherwise(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 1, 1, clock=clock) as w:
        w.say(MachineFailed(machine=1))
    with world(tmp_path, 1, 1, clock=clock) as w:
        assert w.executor.lost == [1]
        enter(w, gpus=(2, 2))
        assert w.held() == {}
        w.say(MachineReturned(machine=1))
        assert w.held() == {0: (0, 1)}


def test_time_never_goes_back_where_the_wall_clock_does(tmp_path: Path) -> None:
    with world(tmp_path, clock=[1000.0]) as w:
        w.turn(500.0)
        enter(w)
        last = w.arbiter.journal.last()[1]
    with world(tmp_path, clock=[900.0]) as w:
        assert w.arbiter.now() >= last


@pytest.mark.unfoldable
def test_a_journal_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w)
    journal = Journal(tmp_path / "journal.db")
    journal.db.execute("""UPDATE records SET line = replace(line, '"gpus":[0]', '"gpus":[1]') WHERE kind = 'Grant'""")
    as_written(journal)
    journal.close()
    with pytest.raises(InputError, match="a Grant does not follow from the records before it"), world(tmp_path):
        pass


def test_the_journal_is_an_event_log_that_replays(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        for name in "abc":
            enter(w, name)
            w.turn(1.3)
        w.finish(1)
        w.turn(3.0)
        log = [(t, r) for t, r in w.arbiter.journal.records() if type(r).__name__ != "Wake"]
        done = replay_records(log)  # type: ignore[arg-type]
        assert done.difference is None
        assert any(isinstance(r, Grant) for _, r in log)


def test_a_home_replays_with_the_speeds_that_submissions_brought(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = request("fast", steps=1000.0)
    fast.profile = schema.Profile(curves=[schema.SpeedCurve(gpu_type="*", gpus=[1], steps_per_s=[50.0])])
    with world(tmp_path, 1) as w:
        w.ask(lambda a: submit(a, fast))
        w.turn(3.0)
        export(w.arbiter.journal.path, tmp_path / "log.jsonl")
        with pytest.raises(InputError, match="replay the service's data directory instead"):
            replay(tmp_path / "log.jsonl")
        main(["replay", str(tmp_path), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["equal"]
    assert said["jobs"] == 1


def test_settings_of_the_core_are_those_of_the_configuration(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        assert w.arbiter.settings == Settings(lease_s=2.0, tick_s=1.0, container_s=0.0, validate=True)
        _, header = next(w.arbiter.journal.records())
        assert isinstance(header, Header)
        assert header.profiles == DEFAULT_BOOK.fingerprint


def test_an_app_can_be_withdrawn_while_no_machine_is_there(tmp_path: Path) -> None:
    with world(tmp_path, 1) as w:
        enter(w)
        w.say(MachineFailed(machine=0))
        w.ask(lambda a: a.cancel(0))
        assert w.arbiter.journal.apps()[0].outcome == "cancelled"


@pytest.mark.parametrize("clean", [False, True])
def test_speeds_that_jobs_measured_reach_the_core_and_outlive_a_restart(tmp_path: Path, clean: bool) -> None:
    clock = [1000.0]
    profile = request("fast")
    profile.profile = schema.Profile(curves=[schema.SpeedCurve(gpu_type="*", gpus=[1], steps_per_s=[1.0])])
    with world(tmp_path, 1, clock=clock) as w:
        w.ask(lambda a: submit(a, profile))
        seen = Measurement(
            job=0, attempt=1, model="u/fast", gpu_type="gpu", gpus=1, locality=Locality.SLOT, steps_per_s=4.0, batch=0
        )
        for _ in range(LEAST):
            w.say(seen)
        w.turn(2.0)
        speeds = w.arbiter.state.speeds
        rate = speeds.rate(*(np.array([x]) for x in (speeds.index["u/fast", 0], 0, 1, 0)))
        assert rate == pytest.approx([4.0])
        if clean:
            w.arbiter.close()
    with world(tmp_path, 1, clock=clock) as w:
        again = w.arbiter.state.speeds
        assert again.scale.tolist() == speeds.scale.tolist()
        assert w.arbiter.book.rate("u/fast", 0, "gpu", 1, Locality.SLOT) == pytest.approx(4.0)


def test_whoever_waits_for_an_arbiter_that_breaks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(now: float) -> None:
        raise sqlite3.OperationalError("no such thing")

    with world(tmp_path) as w, monkeypatch.context() as patch:
        patch.setattr(w.arbiter.housekeeping, "run", fails)
        reply: Future[Any] = Future()
        w.arbiter.queue.put(Call(lambda: 1, reply))
        with pytest.raises(sqlite3.OperationalError, match="no such thing"):
            w.arbiter._transaction()
        assert isinstance(reply.exception(1.0), Closed)
