"""Errors in a transaction end at the app, the machine, the policy or the call that caused them; decision 73."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake import World, request, world

from audit import audit
from themis.client.home import Endpoint, write_endpoint
from themis.core import app_lifecycle, regimes
from themis.core.leases import Leases
from themis.core.scheduler import Scheduler
from themis.core.state import State
from themis.errors import InputError
from themis.machines.engines.program import ExecutorBroke
from themis.model.events import GpusWithheld, JobReached, JobStopped, MachineReturned, Quarantined, Revoke
from themis.schema import messages as schema
from themis.service.api import reasons, views
from themis.service.api.submission import Limit, submit
from themis.service.engine import arbiter as arbiter_module
from themis.service.engine.notifications import notify
from themis.service.engine.quarantine import quarantines
from themis.service.operations import doctor


def enter(w: World, name: str, **more: Any) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


def fails(*_: object, **__: object) -> None:
    raise LookupError("injected")


def fails_for(app: int, real: Any, position: int = 1) -> Any:
    """A function that fails for one app, which is its argument at a position."""

    def instead(*given: Any, **more: Any) -> Any:
        if given[position] == app:
            raise LookupError("injected")
        return real(*given, **more)

    return instead


def fails_after(seconds: float, real: Any) -> Any:
    """A method of the core that fails from then on; what came before can still be folded."""

    def instead(core: Scheduler, *given: Any) -> Any:
        if core.state.now > seconds:
            raise LookupError("injected")
        return real(core, *given)

    return instead


def recorded(w: World) -> list[Quarantined]:
    return [record for _, record in quarantines(w.arbiter.journal)]


def test_an_app_whose_end_fails_is_quarantined_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock, faulty=True) as w:
        bad, good = enter(w, "bad", user="mallory"), enter(w, "good", user="ann")
        with monkeypatch.context() as patch:
            patch.setattr(app_lifecycle, "finish_app", fails_for(bad, app_lifecycle.finish_app))
            w.finish(0)
        (record,) = recorded(w)
        assert (record.app, record.machine) == (bad, None)
        assert record.reason.startswith("LookupError: injected at test_quarantined.py:")
        assert record.frames[-1] == "LookupError"
        assert set(w.held()) == {good}
        assert set(w.arbiter.state.occupied) == {good}
        assert not w.arbiter.quarantine.off
        why = w.ask(lambda a: reasons.reason(a.engine, a.epoch, bad, views.state_now(a)))
        assert why.code == "quarantined"
        assert "LookupError: injected" in why.sentence
        third = enter(w, "third")
        assert set(w.held()) == {good, third}
        w.finish(1), w.finish(2)
    with world(tmp_path, 2, clock=clock) as w:
        w.turn(1.0)
        assert w.arbiter.state.quarantined_apps == {bad}
        w.ask(lambda a: a.resume(bad))
        assert set(w.held()) == {0}
        w.finish(0)
        assert {entry.outcome for entry in w.arbiter.journal.apps()} == {"completed"}


def test_what_a_quarantined_app_reports_later_is_ignored_but_the_end_of_its_gang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, 2, silent=True, faulty=True) as w:
        bad = enter(w, "bad")
        with monkeypatch.context() as patch:
            patch.setattr(regimes, "report", fails_for(0, regimes.report))
            w.finish(0)
            assert w.arbiter.state.quarantined_apps == {bad}
            assert isinstance(w.executor.commands[-1], Revoke)
            before = w.arbiter.journal.last()[0]
            w.finish(0)
            assert w.arbiter.journal.last()[0] == before
            assert w.arbiter.state.occupied
            w.say(JobStopped(job=0, attempt=1, steps=5.0))
            assert not w.arbiter.state.occupied
        assert len(recorded(w)) == 1


def test_a_gang_whose_end_cannot_be_taken_in_lets_go_of_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, 1, silent=True, faulty=True) as w:
        enter(w, "bad"), enter(w, "good", user="ann")
        monkeypatch.setattr(regimes, "report", fails_for(0, regimes.report))
        w.say(JobStopped(job=0, attempt=1, steps=5.0))
        w.turn(1.0)
        assert [(q.app, q.machine) for q in recorded(w)] == [(0, None)]
        assert set(w.arbiter.state.occupied) == {1}
        assert w.executor.settled == [(0, 1)]


def test_a_machine_whose_message_fails_is_drained_and_jobs_elsewhere_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, 1, 1, faulty=True) as w:
        enter(w, "a"), enter(w, "b")
        w.turn(1.0)
        elsewhere = {job for job, gpus in w.held().items() if gpus == (1,)}
        with monkeypatch.context() as patch:
            patch.setattr(State, "withhold", fails)
            w.say(GpusWithheld(machine=0, gpus=(0,)))
        assert [(q.app, q.machine) for q in recorded(w)] == [(None, 0)]
        assert set(w.held()) == elsewhere
        assert views.node_row(w.arbiter, 0).state == "drained"
        w.say(MachineReturned(machine=0), GpusWithheld(machine=0, gpus=(0,)))
        assert not w.arbiter.state.machine_up[0]
        w.ask(lambda a: a.drain(0, False))
        w.turn(1.0)
        assert len(w.held()) == 2
        assert not w.arbiter.state.quarantined_machines


def test_what_the_service_itself_causes_turns_decisions_off_and_leases_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock, faulty=True) as w:
        enter(w, "a"), enter(w, "b"), enter(w, "c")
        held = w.held()
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "settle", fails_after(1.0, Scheduler.settle))
            w.turn(5.0)
        assert "LookupError: injected" in w.arbiter.quarantine.off
        w.turn(100.0)
        assert w.held() == held
        assert not recorded(w)
        w.ask(lambda a: a.cancel(0))
        w.ask(lambda a: a.hold(1))
        assert not w.held()
        assert not w.arbiter.state.occupied
        why = w.ask(lambda a: reasons.reason(a.engine, a.epoch, 2, views.state_now(a)))
        assert why.code == "decisions_off"
    with world(tmp_path, 2, clock=clock) as w:
        w.turn(1.0)
        assert set(w.held()) == {2}


def test_the_same_error_of_two_apps_turns_decisions_off_and_quarantines_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, 3, faulty=True) as w:
        for name in "abc":
            enter(w, name)
        monkeypatch.setattr(app_lifecycle, "finish_app", fails)
        for job in range(3):
            w.finish(job)
        assert [q.app for q in recorded(w)] == [0]
        assert "several apps or machines" in w.arbiter.quarantine.off
        assert set(w.held()) == {1, 2}


def test_a_third_quarantine_within_ten_minutes_turns_decisions_off_across_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, at = [1000.0], ((app_lifecycle, "finish_app"), (regimes, "report"), (Leases, "revoke"))
    for app, (where, name) in enumerate(at):
        with world(tmp_path, 4, clock=clock, faulty=True) as w:
            for name_of in "abcd" if not app else "":
                enter(w, name_of)
            w.turn(60.0)
            with monkeypatch.context() as patch:
                patch.setattr(where, name, fails_once(getattr(where, name)))
                w.finish(app)
            assert [q.app for q in recorded(w)] == list(range(app + 1))
            assert bool(w.arbiter.quarantine.off) == (app == 2)


def fails_once(real: Any) -> Any:
    """A function whose first call fails."""
    calls: list[object] = []

    def instead(*given: Any, **more: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise LookupError("injected")
        return real(*given, **more)

    return instead


def test_a_wrong_answer_of_the_policy_is_replaced_by_the_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, 2, faulty=True, policy="gandiva") as w:  # it is asked where one job waits
        monkeypatch.setattr(Scheduler, "allocated", fails_once(Scheduler.allocated))
        enter(w, "a")
        w.turn(1.0)
        assert set(w.held()) == {0}
        assert "LookupError: injected" in w.arbiter.engine.problem
        assert not w.arbiter.quarantine.off
        assert not recorded(w)


def test_a_cancel_that_fails_when_it_changes_the_app_quarantines_it_and_tells_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, 2, faulty=True) as w:
        enter(w, "bad"), enter(w, "good")
        monkeypatch.setattr(app_lifecycle, "finish_app", fails)
        with pytest.raises(LookupError):
            w.ask(lambda a: a.cancel(0))
        assert [q.app for q in recorded(w)] == [0]
        assert set(w.held()) == {1}


def test_a_command_that_the_executor_cannot_take_quarantines_its_app(tmp_path: Path) -> None:
    with world(tmp_path, 2, faulty=True) as w:
        real = w.executor.submit
        w.executor.submit = fails_once(real)  # type: ignore[method-assign]
        enter(w, "bad")
        enter(w, "good")
        w.turn(1.0)
        assert [q.app for q in recorded(w)] == [0]
        assert set(w.held()) == {1}


def test_nothing_is_taken_back_or_done_twice_after_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path, 2, faulty=True) as w:
        with monkeypatch.context() as patch:
            patch.setattr("themis.service.engine.arbiter.notify", fails_once(notify))
            assert enter(w, "a") == 0
        assert not w.arbiter.quarantine.off
        with monkeypatch.context() as patch:
            patch.setattr(w.arbiter.journal, "_watch_log", fails)
            assert enter(w, "b") == 1
        assert "LookupError: injected" in w.arbiter.quarantine.off
        assert [entry.name for entry in w.arbiter.journal.apps()] == ["a", "b"]
        assert w.executor.admitted == [(0, "a"), (1, "b")]
        w.finish(0)
        assert w.arbiter.journal.apps()[0].outcome == "completed"


def test_a_service_started_with_safe_decides_nothing_and_cancels(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock) as w:
        enter(w, "a"), enter(w, "b")
    with world(tmp_path, 2, clock=clock, start={"safe": True}) as w:
        enter(w, "c")
        w.turn(50.0)
        assert set(w.held()) == {0, 1}
        w.ask(lambda a: a.cancel(0))
        w.ask(lambda a: a.drain(0, True))
        w.turn(1.0)
        assert not w.held()
        write_endpoint(tmp_path, Endpoint("127.0.0.1:1", "", 1))
        there = doctor.Running(schema.InfoReply(unready=w.arbiter.unready()), [])
        assert doctor._arbiter(tmp_path, there)[0] == "wrong"
        assert "decisions are off" in doctor._arbiter(tmp_path, there)[1]


def test_a_service_started_without_an_app_quarantines_it(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock) as w:
        enter(w, "a"), enter(w, "b")
    with world(tmp_path, 2, clock=clock, start={"without": ("a",)}) as w:
        w.turn(1.0)
        assert set(w.held()) == {1}
        assert w.arbiter.state.quarantined_apps == {0}
    for unknown in ("x", "", "9" * 30, "\u0661", "\udcff"):
        with pytest.raises(InputError, match="no app of this name"), world(tmp_path, 2, start={"without": (unknown,)}):
            pass


def test_a_record_that_cannot_be_folded_is_skipped_and_its_app_quarantined_by_every_later_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that wrote it could."""
    clock = [1000.0]
    with world(tmp_path, 2, 1, clock=clock, silent=True) as w:
        bad, good = enter(w, "bad", gpus=(2, 2)), enter(w, "good")
        w.turn(0.3)
        w.finish(0)
    monkeypatch.setattr(app_lifecycle, "finish_app", fails_for(bad, app_lifecycle.finish_app))
    skipped_once(tmp_path, clock, bad, good)


def test_records_of_two_apps_that_cannot_be_folded_are_skipped_by_every_later_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = [1000.0], app_lifecycle.finish_app
    with world(tmp_path, 2, 2, 1, clock=clock, silent=True) as w:
        bad, worse, good = (enter(w, name, gpus=(n, n)) for name, n in (("bad", 2), ("worse", 2), ("good", 1)))
        w.turn(0.3)
        w.finish(0)
        w.turn(0.3)
        w.finish(1)
    monkeypatch.setattr(app_lifecycle, "finish_app", fails_for(bad, fails_for(worse, real)))
    for life in range(3):
        with world(tmp_path, 2, 2, 1, clock=clock, faulty=not life) as w:
            w.turn(0.5)
            assert w.arbiter.state.quarantined_apps == {bad, worse}
            assert set(w.held()) == ({good} if not life else set())
            if not life:
                assert [q.app for q in recorded(w)] == [bad, worse]
                w.finish(good)
        audit(tmp_path / "journal.db")


def test_without_an_app_a_start_goes_on_where_the_fold_fails_at_a_record_of_no_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = [1000.0], Scheduler.settle

    def settle(core: Scheduler) -> None:
        if core.state.now > 4 and len(core.state.app_specs) == 2 and bad not in core.state.quarantined_apps:
            raise LookupError("injected")
        real(core)

    with world(tmp_path, 2, 1, clock=clock, silent=True) as w:
        bad, good = enter(w, "bad", gpus=(2, 2)), enter(w, "good")
        w.turn(5.0)
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "settle", settle)
        refused = pytest.raises(InputError, match=r"a Wake does not follow .* \(LookupError: injected")
        with refused, world(tmp_path, 2, 1, clock=clock, faulty=True):
            pass
        skipped_once(tmp_path, clock, bad, good, without=("bad",))


def skipped_once(home: Path, clock: list[float], bad: int, good: int, **start: Any) -> None:
    """The start quarantines one app at the record that it skips; every later one comes to the same state."""
    with world(home, 2, 1, clock=clock, faulty=True, start=start) as w:
        w.turn(0.5)
        assert w.arbiter.state.quarantined_apps == {bad}
        assert set(w.held()) == {good}
        (record,) = recorded(w)
        assert len(record.skipped) == 1
        w.finish(good)
    audit(home / "journal.db")
    with world(home, 2, 1, clock=clock) as w:
        w.turn(1.0)
        assert w.arbiter.state.quarantined_apps == {bad}
        assert not w.arbiter.state.occupied


def test_errors_of_one_users_apps_turn_no_decisions_off_for_others_and_refuse_that_users_submissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, 5, faulty=True) as w:
        for name in "abc":
            enter(w, name, user="mallory")
        enter(w, "d", user="ann")
        with monkeypatch.context() as faulty:
            faulty.setattr(app_lifecycle, "finish_app", fails)
            for job in range(3):
                w.finish(job)
        assert [q.app for q in recorded(w)] == [0, 1, 2]
        assert not w.arbiter.quarantine.off
        with pytest.raises(Limit, match="3 apps of user 'mallory' were quarantined"):
            enter(w, "e", user="mallory")
        assert enter(w, "e", user="ann")
        w.finish(3)
        assert w.arbiter.journal.apps()[3].outcome == "completed"


def test_what_a_call_wrote_before_its_input_was_refused_is_taken_back(tmp_path: Path) -> None:
    with world(tmp_path, 2, faulty=True) as w:
        enter(w, "a")

        def refused(arbiter: Any) -> None:
            arbiter.journal.set_options(0, held=True)
            raise InputError("wrong after all")

        with pytest.raises(InputError, match="wrong after all"):
            w.ask(refused)
        assert not w.arbiter.journal.apps()[0].options.held
        assert w.arbiter.state.quarantined_apps == set()


@pytest.mark.unfoldable
def test_an_executor_that_broke_ends_the_service(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        w.arbiter.queue.put(ExecutorBroke(error=LookupError("injected")))
        with pytest.raises(LookupError, match="injected"):
            w.turn(1.0)


def test_what_came_in_with_errors_beyond_the_most_rebuilds_is_taken_in_by_the_next_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter_module, "MOST_REBUILDS", 1)
    with world(tmp_path, 2, faulty=True) as w:
        bad, good = enter(w, "bad"), enter(w, "good")
        monkeypatch.setattr(app_lifecycle, "finish_app", fails_for(bad, app_lifecycle.finish_app))
        w.say(*(JobReached(job=job, attempt=1, steps=100.0, loss=0.0) for job in (0, 1)))
        assert w.arbiter.state.quarantined_apps == {bad}
        assert w.arbiter.journal.apps()[good].outcome == "completed"
