"""`themis why`: one stable code, who is ahead, and when an app may begin; `themis dump` and `replay` of a running service."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake import World, request, world

from processes import wait_until
from themis.cli import main
from themis.client.client import Client
from themis.model.events import MachineFailed
from themis.schema import messages as schema
from themis.service.api import views
from themis.service.api.reasons import Code
from themis.service.api.submission import submit
from themis.service.engine.config import Config
from themis.service.operations.up import running
from themis.sim.dump import parse
from themis.sim.onward import starts


def enter(w: World, name: str = "a", **more: object) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


def why(w: World, app: int) -> tuple[schema.WhyReply, bytes]:
    _, _, reply, dumped = w.ask(lambda a: views.why(a, str(app)))
    return reply, dumped


def code(w: World, app: int) -> str:
    return why(w, app)[0].code


def test_codes_are_those_that_were_promised() -> None:
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
    for name in Code:
        assert f"`{name}`" in page, f"docs/service.md does not say what {name} is"


def test_every_state_of_an_app_has_its_code(tmp_path: Path) -> None:
    with world(tmp_path, 2, policy="fifo") as w:
        first = enter(w, "first", gpus=(2, 2))
        assert code(w, first) == Code.RUNNING
        second = enter(w, "second", gpus=(2, 2), jobs=2)
        reply, dumped = why(w, second)
        assert reply.code == Code.ALL_LEASED
        assert (reply.position, reply.of, len(reply.ahead)) == (1, 1, 0)
        assert starts(parse(dumped), second, allowed_s=30.0, runs=3)
        third = enter(w, "third", gpus=(1, 1))
        reply, _ = why(w, third)
        assert (reply.position, reply.of) in ((1, 2), (2, 2))
        w.ask(lambda a: a.hold(second))
        assert code(w, second) == Code.HELD
        w.finish(0)
        assert code(w, first) == Code.ENDED
        assert code(w, third) == Code.RUNNING
        w.ask(lambda a: a.resume(second))
        assert code(w, second) == Code.ALL_LEASED
        w.say(MachineFailed(machine=0))
        assert code(w, second) == Code.MACHINES_AWAY


def test_an_app_whose_jobs_cannot_all_run_is_told_so(tmp_path: Path) -> None:
    with world(tmp_path, 3, policy="fifo") as w:
        app = enter(w, "many", gpus=(2, 2), jobs=2)
        assert code(w, app) == Code.PARTLY_RUNNING
        assert "1 more of its jobs wait" in why(w, app)[0].sentence


def test_gpus_on_which_others_are_stopping_are_waited_for(tmp_path: Path) -> None:
    with world(tmp_path, 1, silent=True) as w:
        enter(w, "first")
        second = enter(w, "second")
        w.ask(lambda a: a.cancel(0))
        assert code(w, second) in (Code.ALL_LEASED, Code.WAITING_FOR_RELEASE)


def test_a_decision_under_way_is_one(tmp_path: Path) -> None:
    with world(tmp_path, 1, policy="themis") as w:
        app = enter(w, "mine", jobs=2)
        w.arbiter.agents.register(app, "mine")
        w.turn(3.0)
        assert w.arbiter.engine.decision is not None
        other = enter(w, "other")
        assert code(w, other) == Code.DECIDING


def test_what_simulations_say_becomes_an_estimate_and_its_range() -> None:
    for found, expected in (
        ([1.0, 2.0, 3.0], (101.0, 102.0, 103.0)),
        ([1.0, 2.0, None], (101.0, 102.0, None)),
        ([1.0, None, None], (101.0, None, None)),
        ([None], (None, None, None)),
        ([], (None, None, None)),
    ):
        reply = schema.WhyReply()
        views.add_estimate(reply, found, 100.0)
        assert (reply.start_earliest, reply.start_median, reply.start_latest) == expected
        assert reply.simulations == len(found)


@pytest.mark.slow
def test_why_and_dump_of_a_running_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    config = Config(policy="themis", gpus=1, port=0, lease_s=60, allow_root=os.geteuid() == 0)
    with running(home, config), Client(home) as client:
        first = client.run(["sleep", "600"], hours=0.1, name="first").app
        second = client.run(["sleep", "600"], hours=0.1, name="second").app
        found = decided(client, second)
        assert found.code == Code.ALL_LEASED
        main(["why", str(second), "--home", str(home)])
        said = capsys.readouterr().out
        assert said.startswith("waiting: the only GPU is leased; the next lease ends in ")
        assert "Next GPUs expected at" in said
        file = tmp_path / "state.json.gz"
        main(["dump", str(file), "--home", str(home)])
        main(["replay", str(file), "--json"])
        decision = json.loads(capsys.readouterr().out.partition("\n")[2])
        assert {row["name"] for row in decision["apps"]} == {"first", "second"}
        main(["replay", str(file), "-p", "drf"])
        assert "drf at" in capsys.readouterr().out
        client.cancel(first)
        client.cancel(second)


@pytest.mark.slow
def test_why_tells_of_a_planned_job_when_it_starts_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A waiting job of a policy that plans: its start by plan, and the interval of it by simulations."""
    home = tmp_path / "home"
    config = Config(gpus=1, port=0, policy="shockwave:round_s=20", allow_root=os.geteuid() == 0)
    with running(home, config), Client(home) as client:
        first = client.run(["sleep", "600"], hours=0.1, name="first").app
        second = client.run(["sleep", "600"], hours=0.2, name="second").app
        decided(client, second)
        steps = list[dict[str, float]]()

        def planned() -> bool:
            steps[:] = [step for step in json.loads(client.why(second).story)["steps"] if step["starts"] is not None]
            return bool(steps)

        wait_until(planned, "the second app is planned")  # not yet, where the first one's lease alone was decided
        assert steps[-1]["time"] < steps[-1]["starts"] < steps[-1]["ends"]
        main(["why", str(second), "--home", str(home)])
        said = capsys.readouterr().out
        assert "Next GPUs expected at" in said
        assert "it runs next at" in said
        client.cancel(first)
        client.cancel(second)


def decided(client: Client, app: int) -> schema.WhyReply:
    """Why it waits, once that is known; with an interval of its start by simulations."""
    wait_until(lambda: client.why(app).code not in (Code.DECIDING, Code.WAITING), "it was decided on")
    found = client.why(app)
    assert found.simulations > 0
    assert found.start_earliest <= found.start_median <= found.start_latest
    return found
