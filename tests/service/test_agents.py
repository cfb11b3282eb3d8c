"""Agents of apps that are programs of others: what they say counts; what they do not say costs nobody else anything."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake import World, request
from fake import world as any_world

from themis.errors import InputError
from themis.model.answers import Ask
from themis.model.events import AgentBid, Allocated, JobsOrdered, JobStopped, MachineFailed, Renew
from themis.policies.tuning.outside import merge
from themis.schema import messages as schema
from themis.schema.wire import changed
from themis.service.api.submission import submit
from themis.service.engine.agents import AgentRegistry, Session
from themis.service.engine.wire_bids import Names
from themis.sim.replay import replay_records

world = partial(any_world, policy="themis")
"""The auction asks for bids; the default policy does not."""


def enter(w: World, name: str = "a", **more: object) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


def told(session: Session) -> list[schema.AgentEvent]:
    """What was sent to an agent since it was asked last."""
    out = []
    while not session.outbox.empty():
        event = session.outbox.get()
        out.append(schema.AgentEvent() if event is None else event)
    return out


def kinds(session: Session) -> list[str]:
    return [schema.what(event) for event in told(session)]


def last(session: Session, kind: str) -> Any:
    found = [getattr(e, kind) for e in told(session) if schema.what(e) == kind]
    assert found, f"no {kind}"
    return found[-1]


def records(w: World, kind: type) -> list[Any]:
    return [r for _, r in w.arbiter.journal.records() if isinstance(r, kind)]


class Scene:
    """An app of two jobs that waits on a full machine, and its agent's session."""

    def __init__(self, w: World, **more: object) -> None:
        self.w, self.desk = w, w.arbiter.agents
        self.other = enter(w, "other", gpus=(2, 2))
        self.app = enter(w, "mine", gpus=(1, 2), jobs=2, **more)
        assert w.held() == {0: (0, 1)}
        self.session = self.desk.register(self.app, "mine")
        told(self.session)

    def free(self) -> None:
        """The other app ends: its GPUs are to be decided on."""
        self.w.finish(0)

    def probed(self) -> schema.Probe:
        self.free()
        probe: schema.Probe = last(self.session, "probe")
        return probe

    def offered(self, rho: float = 4.0) -> schema.Offer:
        self.desk.answer(self.app, schema.AgentAnswer(round=self.probed().round, rho=rho))
        self.w.turn()
        offer: schema.Offer = last(self.session, "offer")
        return offer

    def bid(self, offer: schema.Offer, *rows: tuple[list[int], float], **more: Any) -> None:
        message = schema.AgentAnswer(app=str(self.app), round=offer.round, **more)
        for gangs, rho in rows:
            message.rows.append(schema.BidRow(gangs=gangs, span="machine", rho=rho))
        self.desk.answer(self.app, message)
        self.w.turn()


# ---- two phases ------------------------------------------------------------------------------------------------------


def test_an_agent_is_asked_for_rho_then_for_a_bid_and_told_what_it_won(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        scene = Scene(w)
        offer = scene.offered(rho=4.0)
        assert w.held() == {}
        assert [(g.node, g.gpu_type, g.gpus) for g in offer.gpus] == [("m0", "gpu", 2)]
        assert [(j.job, j.gpus_min, j.gpus_max, j.held) for j in offer.app.jobs] == [(0, 1, 2, 0), (1, 1, 2, 0)]
        assert {tuple(row.gangs) for row in offer.rows} == {(1,), (1, 1), (2,)}
        scene.bid(offer, ([2], 1.0))
        assert w.held() == {1: (0, 1)}
        events = told(scene.session)
        assert [schema.what(e) for e in events] == ["award", "lease"]
        assert (events[0].award.bid, events[0].award.won) == (True, 2)
        assert (events[1].lease.what, events[1].lease.job, list(events[1].lease.gpus)) == ("granted", 0, [0, 1])


def test_the_split_that_an_agent_bids_is_made_and_its_order_of_jobs_kept(tmp_path: Path) -> None:
    with world(tmp_path, 3) as w:
        other = enter(w, "other", gpus=(3, 3))
        app = enter(w, "mine", gpus=(1, 2), jobs=3)
        session = w.arbiter.agents.register(app, "mine")
        w.finish(other)
        w.arbiter.agents.answer(app, schema.AgentAnswer(round=last(session, "probe").round, rho=4.0))
        w.turn()
        offer = last(session, "offer")
        bid = schema.AgentAnswer(app=str(app), round=offer.round, jobs=[2, 0])
        bid.rows.append(schema.BidRow(gangs=[1, 2], span="machine", rho=0.5))
        w.arbiter.agents.answer(app, bid)
        w.turn()
        assert {j: len(gpus) for j, gpus in w.held().items()} == {3: 2, 1: 1}
        assert records(w, JobsOrdered) == [JobsOrdered(app=app, jobs=(3, 1))]
        w.finish(3)
        assert 1 in w.held()


def test_the_rho_that_is_said_is_what_apps_are_sorted_by_and_written_down(tmp_path: Path) -> None:
    with world(tmp_path, 2, policy="themis:f=1") as w:
        scene = Scene(w)
        third = enter(w, "third", gpus=(1, 1))
        # Only the worst app bids; this one says that it does very well.
        scene.desk.answer(scene.app, schema.AgentAnswer(round=scene.probed().round, rho=0.001))
        w.turn()
        assert "offer" not in kinds(scene.session)
        assert third in {int(w.arbiter.state.jobs.app[j]) for j in w.held()}
        assert [(r.app, r.said, r.rho) for r in records(w, AgentBid)] == [(scene.app, "rho", 0.001)]
        proof = records(w, Allocated)[-1].solved.proof
        assert dict(zip(proof.app.tolist(), proof.rho.tolist()))[scene.app] == 0.001


# ---- late, silent, wrong ------------------------------------------------------------------------------------------------


def test_a_silent_agent_delays_the_decision_by_its_time_and_loses_only_its_own_round(tmp_path: Path) -> None:
    with world(tmp_path, 2, agent_s=3.0) as w:
        scene = Scene(w)
        third = enter(w, "third", gpus=(1, 1))
        scene.offered()
        assert w.held() == {}
        w.turn(2.9)
        assert w.held() == {}
        w.turn(0.2)
        assert third in {int(w.arbiter.state.jobs.app[j]) for j in w.held()}
        assert [(r.app, r.said, r.rho, r.rows) for r in records(w, AgentBid)] == [
            (scene.app, "rho", 4.0, ()),
            (scene.app, "late", None, ()),
        ]


def test_a_round_without_rho_goes_on_with_the_services_own_estimate(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        scene = Scene(w)
        scene.probed()
        w.turn(2.1)
        offer = last(scene.session, "offer")
        scene.bid(offer, ([1], offer.app.rho / 2))
        said = records(w, AgentBid)
        assert [r.said for r in said] == ["bid"]
        assert said[0].rho == pytest.approx(offer.app.rho)


def test_after_so_many_misses_the_services_agent_takes_over(tmp_path: Path) -> None:
    with world(tmp_path, 1, agent_misses=3, agent_s=0.5) as w:
        app = enter(w, "mine", gpus=(1, 1), jobs=3)
        session = w.arbiter.agents.register(app, "mine")
        seen: list[str | None] = []
        for _ in range(12):
            w.turn(0.6)
            seen += kinds(session)
        assert seen[-1] == ""
        assert "goodbye" in seen
        assert w.arbiter.agents.present([app]) == []
        before = len(records(w, AgentBid))
        w.turn(3.0)
        assert len(records(w, AgentBid)) == before
        assert len(w.held()) == 1


def test_an_answer_puts_the_count_of_misses_back(tmp_path: Path) -> None:
    with world(tmp_path, 2, agent_misses=2) as w:
        scene = Scene(w)
        scene.probed()
        w.turn(2.1)
        offer = last(scene.session, "offer")
        assert scene.session.misses == 1
        scene.bid(offer, ([1], 0.01))
        assert scene.session.misses == 0


def test_an_agent_that_hangs_up_is_as_if_it_had_never_come(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        scene = Scene(w)
        scene.offered()
        scene.desk.disconnect(scene.session)
        w.turn(0.1)
        assert len(w.held()) == 2
        assert all(r.said != "late" for r in records(w, AgentBid))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([([3], "machine", "", "", 0.5)], "3 GPUs in gangs of"),
        ([([1], "galaxy", "", "", 0.5)], "row 0: span is 'galaxy', expected machine, rack or anywhere"),
        ([([1], "machine", "H200", "", 0.5)], "row 0: gpu_type is 'H200', expected one of gpu"),
        ([([1], "machine", "", "m7", 0.5)], "row 0: anchor, a node is 'm7', expected one of m0"),
        ([([1], "anywhere", "", "m0", 0.5)], "may lie anywhere has none"),
        ([([1], "machine", "", "", float("nan"))], "row 0: rho is nan"),
        ([([], "machine", "", "", 0.5)], r"row 0: gangs are \[\]"),
        ([([1], "machine", "", "", 0.5)] * 2, "row 1 asks for the same as row 0"),
        ([([1], "machine", "", "", 0.5)] * 65, "has 65 rows"),
    ],
)
def test_a_malformed_bid_is_refused_at_once_and_another_may_follow(
    tmp_path: Path, rows: list[tuple[list[int], str, str, str, float]], words: str
) -> None:
    with world(tmp_path, 2) as w:
        scene = Scene(w)
        offer = scene.offered()
        bad = schema.AgentAnswer(app=str(scene.app), round=offer.round)
        for gangs, span, kind, anchor, rho in rows:
            row = schema.BidRow(gangs=gangs, span=span, gpu_type=kind, anchor=anchor, rho=1.0)
            bad.rows.append(changed(row, rho=rho))
        with pytest.raises(InputError, match=words):
            scene.desk.answer(scene.app, bad)
        w.turn()
        assert w.held() == {}
        scene.bid(offer, ([1], 0.5))
        assert len(w.held()) >= 1
        assert records(w, AgentBid)[-1].said == "bid"


def test_jobs_that_an_agent_may_not_order_are_refused(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        scene = Scene(w)
        offer = scene.offered()
        for jobs, words in (([2], "names 2, which is no job"), ([-1], "names -1"), ([0, 0], "names a job twice")):
            with pytest.raises(InputError, match=words):
                scene.bid(offer, jobs=jobs)
        assert w.arbiter.state.jobs.order[:3].tolist() == [0, 0, 0]


def test_answers_out_of_turn_are_refused_in_words(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        scene = Scene(w)
        with pytest.raises(InputError, match="is over, or is not this app's"):
            scene.desk.answer(scene.app, schema.AgentAnswer(round=1, rho=1.0))
        probe = scene.probed()
        with pytest.raises(InputError, match="not yet for bids"):
            scene.desk.answer(scene.app, schema.AgentAnswer(round=probe.round))
        with pytest.raises(InputError, match="no agent is connected for this app"):
            scene.desk.answer(scene.other, schema.AgentAnswer(round=probe.round, rho=1.0))
        with pytest.raises(InputError, match="rho is inf"):
            scene.desk.answer(scene.app, changed(schema.AgentAnswer(round=probe.round), rho=float("inf")))
        w.turn(2.1)
        offer = last(scene.session, "offer")
        with pytest.raises(InputError, match="is over"):
            scene.desk.answer(scene.app, schema.AgentAnswer(round=probe.round, rho=1.0))
        w.turn(2.1)
        with pytest.raises(InputError, match="is over"):
            scene.desk.answer(scene.app, schema.AgentAnswer(round=offer.round))


def test_a_later_agent_of_the_same_app_takes_the_seat(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        scene = Scene(w)
        second = scene.desk.register(scene.app, "mine")
        assert next(e.goodbye.reason for e in told(scene.session)) == "replaced"
        scene.desk.disconnect(scene.session)
        assert scene.desk.present([scene.app]) == [scene.app]
        scene.free()
        assert kinds(second) == ["welcome", "probe"]


def test_agents_go_home_when_their_app_is_over(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        scene = Scene(w)
        w.ask(lambda a: a.cancel(scene.app))
        assert "over" in [e.goodbye.reason for e in told(scene.session) if e.goodbye]


# ---- what goes on meanwhile ----------------------------------------------------------------------------------------------


def test_events_are_taken_in_while_agents_think_and_what_no_longer_fits_is_solved_again(tmp_path: Path) -> None:
    with world(tmp_path, 2, 2) as w:
        other = enter(w, "other", gpus=(4, 4))
        app = enter(w, "mine", gpus=(2, 2), jobs=2)
        session = w.arbiter.agents.register(app, "mine")
        w.finish(other)
        w.arbiter.agents.answer(app, schema.AgentAnswer(round=last(session, "probe").round, rho=4.0))
        w.turn()
        offer = last(session, "offer")
        w.say(MachineFailed(machine=0))
        late = enter(w, "late", gpus=(2, 2))
        bid = schema.AgentAnswer(app=str(app), round=offer.round)
        bid.rows.append(schema.BidRow(gangs=[2], span="machine", anchor="m0", rho=1.0))
        w.arbiter.agents.answer(app, bid)
        w.turn()
        # What it won is gone; everybody is asked again about what is left.
        probe = last(session, "probe")
        assert probe.round > offer.round
        w.turn(2.1)
        w.turn(2.1)
        assert w.held() == {int(w.arbiter.state.apps.first_job[late]): (2, 3)}


def test_running_leases_go_on_while_agents_think(tmp_path: Path) -> None:
    with world(tmp_path, 1, agent_s=30.0, agent_misses=100) as w:
        app = enter(w, "mine", gpus=(1, 1), jobs=2)
        w.arbiter.agents.register(app, "mine")
        w.turn(10.0)
        assert w.held() == {0: (0,)}
        assert not any(isinstance(c, Renew) for c in w.executor.commands)
        w.turn(61.0)
        w.turn(61.0)
        assert len(w.held()) == 1


def test_a_restart_in_the_middle_of_a_decision_decides_anew(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, clock=clock) as w:
        scene = Scene(w)
        scene.offered()
        assert w.held() == {}
    with world(tmp_path, 2, clock=clock) as w:
        w.turn(0.1)
        assert len(w.held()) >= 1


def test_the_bids_of_a_decision_follow_from_the_log(tmp_path: Path) -> None:
    """What outsiders said is logged; with it the allocation can be solved again offline, to the same objective."""
    with world(tmp_path, 2) as w:
        scene = Scene(w)
        offer = scene.offered(rho=8.0)
        snapshot, asked = w.arbiter.engine.decision.snapshot, w.arbiter.engine.reply  # type: ignore[union-attr]
        scene.bid(offer, ([2], 1.0), ([1], 2.0))
        log = [(t, r) for t, r in w.arbiter.journal.records() if type(r).__name__ != "Wake"]
        assert replay_records(log).difference is None  # type: ignore[arg-type]
        said = records(w, AgentBid)[-1]
        assert asked is not None
        assert isinstance(asked.solved.answer, Ask)
        assert asked.bids is not None
        from dataclasses import replace

        from themis.policies.api import Workbench
        from themis.policies.tuning.outside import OutsideBid, OutsideRow

        rows = tuple(OutsideRow(gangs=g, span=s, gpu_type=k, anchor=n, rho=rho) for g, s, k, n, rho in said.rows)
        bidder = asked.solved.answer.apps.tolist().index(snapshot.app_id.tolist().index(said.app))
        bids = merge(asked.bids, {bidder: OutsideBid(rho=said.rho, rows=rows)})
        again = w.arbiter.engine.policy(replace(snapshot, bids=bids), Workbench())
        logged = records(w, Allocated)[-1].solved
        assert again.proof.objective == logged.proof.objective
        assert np.array_equal(again.answer.gpus, logged.answer.gpus)  # type: ignore[union-attr]


def test_what_stopped_jobs_hold_is_never_offered_twice(tmp_path: Path) -> None:
    with world(tmp_path, 2, silent=True) as w:
        scene = Scene(w)
        w.finish(0)
        w.turn(5.0)
        assert "probe" not in kinds(scene.session)
        w.say(JobStopped(job=0, attempt=1, steps=100.0))
        assert "probe" in kinds(scene.session)


def test_an_agent_that_reads_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("themis.service.engine.agents.MOST_UNREAD", 5)
    desk = AgentRegistry(
        lambda: Names(machines=[], racks=[], first_job=lambda app: 0), lambda: None, answer_s=1.0, misses=3
    )
    session = desk.register(0, "a")
    for _ in range(10):
        desk.send(0, schema.AgentEvent(lease=schema.Lease(what="renewed")))
    assert desk.present([0]) == []
    said = [session.outbox.get() for _ in range(session.outbox.qsize())]
    assert len(said) == 5 + 2
    assert said[-2] is not None
    assert (said[-2].goodbye.reason, said[-1]) == ("silent", None)
