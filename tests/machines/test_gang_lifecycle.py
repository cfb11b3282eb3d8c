"""A gang's state machine: every row of the table is driven through messages, and no other pair can happen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from live import grant, revoke
from test_gangs import SETTINGS, gangs, started, state

from themis.errors import InvariantBroken
from themis.machines.agent.messages import Go, Hello, Prepare, Stop, TaskReport
from themis.machines.engines.gang import Gang
from themis.machines.engines.gang_lifecycle import (
    MISSING,
    TRANSITIONS,
    GangEvent,
    GangState,
    Goal,
    PartState,
    diagram,
    transition,
)
from themis.machines.engines.gangs import Gangs, Out, Send
from themis.machines.engines.program import AttemptEnded, Ending

S, E = GangState, GangEvent


def one(book: Gangs) -> Gang:
    (gang,) = book.of_task.values()
    return gang


def granted() -> Gangs:
    """Two machines were sent ``Prepare``."""
    book = gangs()
    book.command(grant(1, (1, 2, 3), target=100.0), 0.0)
    return book


def launched() -> Gangs:
    book = granted()
    for n in (0, 1):
        book.handle_message(n, state("prepared", port=20000 + n), 0.0)
    return book


def preempted() -> Gangs:
    book = started(gangs())
    book.command(revoke(1, "preempted"), 1.0)
    return book


def failing() -> Gangs:
    book = started(gangs())
    book.handle_message(0, state("ended", first=1), 1.0)
    return book


def revoked() -> Gangs:
    book = failing()
    book.command(revoke(1, "preempted"), 1.5)
    return book


def timed_out() -> Gangs:
    book = granted()
    book.handle_message(1, state("preparing"), 1.0)
    for n in (0, 1):
        book.nodes[n].lease_until = 1e9
    book.tick(SETTINGS.prepare_s + 1.0)
    return book


def reached() -> Gangs:
    book = started(gangs())
    for n in (0, 1):
        book.handle_message(n, state("ended"), 1.0)
    return book


REACH: dict[GangState, Callable[[], Gangs]] = {
    S.PREPARING: granted,
    S.LAUNCHING: launched,
    S.RUNNING: lambda: started(gangs()),
    S.PREEMPTED: preempted,
    S.FAILING: failing,
    S.REVOKED: revoked,
    S.TIMED_OUT: timed_out,
    S.REACHED: reached,
}


def messages(*phases: tuple[int, str, dict[str, object]]) -> Callable[[Gangs], list[Out]]:
    def drive(book: Gangs) -> list[Out]:
        return [o for n, phase, more in phases for o in book.handle_message(n, state(phase, **more), 2.0)]

    return drive


def ask(book: Gangs) -> list[Out]:
    return book.command(revoke(1, "preempted"), 2.0)


def time_passes(book: Gangs) -> list[Out]:
    for n in (0, 1):
        book.nodes[n].lease_until = 1e9
    return book.tick(SETTINGS.prepare_s + 1.0)


FAILED = messages((1, "ended", {"first": 1}))
ALL_DONE = messages((0, "ended", {}), (1, "ended", {}))
SIGNALLED = {"first": -15, "cause": "preempted"}
DRIVE: dict[tuple[GangState, GangEvent], Callable[[Gangs], list[Out]]] = {
    (S.PREPARING, E.ALL_PREPARED): messages((0, "prepared", {}), (1, "prepared", {})),
    (S.PREPARING, E.PART_FAILED): FAILED,
    (S.PREPARING, E.STOP_ASKED): ask,
    (S.PREPARING, E.TIMEOUT): time_passes,
    (S.PREPARING, E.FINISHED): ALL_DONE,
    (S.LAUNCHING, E.ALL_BEGAN): messages((0, "running", {}), (1, "running", {})),
    (S.LAUNCHING, E.PART_FAILED): FAILED,
    (S.LAUNCHING, E.STOP_ASKED): ask,
    (S.RUNNING, E.PART_FAILED): FAILED,
    (S.RUNNING, E.STOP_ASKED): ask,
    (S.RUNNING, E.FINISHED): ALL_DONE,
    (S.PREEMPTED, E.PART_FAILED): FAILED,
    (S.PREEMPTED, E.STOP_ASKED): lambda book: book.stop_all("ending"),
    (S.PREEMPTED, E.ENDED): messages((0, "ended", SIGNALLED), (1, "ended", SIGNALLED)),
    (S.PREEMPTED, E.FINISHED): ALL_DONE,
    (S.FAILING, E.PART_FAILED): messages((1, "stopping", {"first": 1})),
    (S.FAILING, E.STOP_ASKED): ask,
    (S.FAILING, E.ENDED): messages((1, "ended", {"cause": "gang", "first": -15})),
    # A supervisor that ends because its peers did, all with 0.
    (S.FAILING, E.FINISHED): ALL_DONE,
    (S.REVOKED, E.PART_FAILED): messages((1, "stopping", {"first": 1})),
    (S.REVOKED, E.STOP_ASKED): ask,
    (S.REVOKED, E.ENDED): messages((1, "ended", {"cause": "gang", "first": -15})),
    (S.REVOKED, E.FINISHED): ALL_DONE,
    (S.TIMED_OUT, E.PART_FAILED): messages((1, "stopping", {"first": 1})),
    (S.TIMED_OUT, E.STOP_ASKED): ask,
    (S.TIMED_OUT, E.ENDED): messages((0, "ended", {"cause": "lost"}), (1, "ended", {"cause": "lost"})),
    (S.REACHED, E.STOP_ASKED): ask,
}


def reach(state_: GangState, event: GangEvent) -> Gangs:
    if event is E.FINISHED and state_ in (S.FAILING, S.REVOKED):
        book = started(gangs())
        book.handle_message(0, state("ended", cause="peer"), 1.0)
        if state_ is S.REVOKED:
            ask(book)
        return book
    return REACH[state_]()


@pytest.mark.parametrize(("state_", "event"), sorted(TRANSITIONS), ids=lambda value: str(value).replace(" ", "_"))
def test_every_row_of_the_table_is_what_messages_bring_about(
    state_: GangState, event: GangEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    from themis.machines.engines import gangs as module

    book = reach(state_, event)
    gang, seen = one(book), []
    assert gang.state is state_

    def watch(state: GangState, event: GangEvent) -> object:
        seen.append((state, event))
        return transition(state, event)

    monkeypatch.setattr(module, "transition", watch)
    out = DRIVE[state_, event](book)
    assert (state_, event) in seen
    then = TRANSITIONS[state_, event]
    # Where one message brings about several events, the row is the first or the last of them.
    assert gang.state is then.state or seen[-1] != (state_, event)
    records = [type(o).__name__ for o in out if not isinstance(o, Send)]
    due = [a for s, e in seen for a in TRANSITIONS[s, e].actions]
    known_started = [a for a in due if a != "JobStarted"]
    assert records in (due, known_started)
    assert ("JobStarted" in records) == ("JobStarted" in due and state_ in (S.PREPARING, S.LAUNCHING))
    assert (gang.grant.job in book.gangs) == (gang.state is not S.GONE)


@pytest.mark.parametrize("state_", list(GangState))
def test_a_pair_that_is_not_in_the_table_raises(state_: GangState) -> None:
    for event in GangEvent:
        if (state_, event) in TRANSITIONS:
            assert transition(state_, event) is TRANSITIONS[state_, event]
        else:
            with pytest.raises(InvariantBroken, match=f"a gang that is {state_} cannot have"):
                transition(state_, event)


def test_gpus_are_given_back_once_on_every_way_and_only_after_the_attempt_ended() -> None:
    """Every path through the table that does not stay in place."""

    def walk(state_: GangState, records: tuple[str, ...], depth: int = 0) -> int:
        assert depth < 10
        steps = [(e, t) for (s, e), t in TRANSITIONS.items() if s is state_ and t.state is not state_]
        if not steps:
            assert state_ is S.GONE
            assert records.count("JobStopped") == records.count("AttemptEnded") == 1
            assert records[-1] == "JobStopped"
            return 1
        return sum(walk(t.state, (*records, *t.actions), depth + 1) for _, t in steps)

    assert walk(S.PREPARING, ()) > 10


def test_every_state_can_be_reached_and_left() -> None:
    assert {t.state for t in TRANSITIONS.values()} | {S.PREPARING} == set(GangState)
    assert {s for s, _ in TRANSITIONS} == set(GangState) - {S.GONE}
    assert {s for s in GangState if s.ended} == {S.REACHED, S.GONE}


def test_a_second_request_to_stop_does_not_make_a_preemption_a_failure() -> None:
    """The service ends while a gang is being preempted."""
    book = preempted()
    assert not any(isinstance(o, Send) for o in book.stop_all("ending"))
    out = messages((0, "ended", SIGNALLED), (1, "ended", SIGNALLED))(book)
    (ended,) = (o for o in out if isinstance(o, AttemptEnded))
    assert (ended.ending, ended.cause) == (Ending.STOPPED, "preempted")


# ---- gangs of before an upgrade ---------------------------------------------------------------------------------------

ADOPTED = {
    "preparing": S.PREPARING,
    "prepared": S.LAUNCHING,
    "running": S.RUNNING,
    "stopping": S.PREPARING,
    "ended": S.REACHED,
}
"""The state of a gang, by the phase that the agents of both its machines kept."""


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("phase", ADOPTED)
def test_a_gang_that_was_started_before_an_upgrade_is_adopted_as_its_agents_kept_it(phase: str, known: bool) -> None:
    book = gangs(connect=False)
    book.restore(grant(1, (1, 2, 3), target=100.0), 10.0, 0.0, started=known)
    out = []
    for n in (0, 1):
        out += book.handle_message(n, Hello(node=f"m{n}", trust="single", tasks=(state(phase),)), 1.0)
    gang = one(book)
    assert gang.state is ADOPTED[phase]
    sent = {type(o.message) for o in out if isinstance(o, Send)}
    assert sent == ({Go} if phase == "prepared" else set())
    assert Prepare not in sent
    assert sum(type(o).__name__ == "JobStarted" for o in out) == (not known and phase in ("running", "ended"))
    out = ask(book)
    stops = sum(isinstance(o, Send) and isinstance(o.message, Stop) for o in out)
    assert stops == (2 if phase in ("preparing", "prepared", "running") else 0)


def test_all_phases_that_agents_keep_are_states_of_a_part() -> None:
    assert {PartState(phase) for phase in ADOPTED} == set(PartState) - {PartState.UNREPORTED}
    assert PartState("of a later version") is PartState.RUNNING, "its processes may live"
    assert all(PartState.ENDED not in MISSING[goal] for goal in Goal)


def test_a_report_of_a_gang_that_is_preempted_is_kept_but_is_no_progress() -> None:
    book = preempted()
    report = TaskReport(task="job0-attempt1", steps=30.0, saved=30.0)
    assert book.handle_message(0, report, 5.0) == []
    assert book.saved[0] == 30.0


def test_the_diagram_in_the_docs_is_that_of_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "containment.md"
    assert f"```mermaid\n{diagram()}\n```" in page.read_text(), "paste what lifecycle.diagram() prints"
