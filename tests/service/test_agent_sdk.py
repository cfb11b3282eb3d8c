"""Agents over the loopback: the example of the documentation, and agents that misbehave."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from processes import PATIENCE_S
from themis import Agent
from themis.client.agent import Bid, Offer, Row
from themis.client.client import Client
from themis.errors import InputError
from themis.schema import messages as schema
from themis.service.engine.config import Config
from themis.service.operations.up import Service, running

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "examples" / "agent.py").read_text(encoding="utf-8")


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    assert code == EXAMPLE.split("from __future__ import annotations\n\n")[1]
    assert len(code.splitlines()) <= 30


def test_answers_that_agents_make_during_a_request_go_together_in_the_next(tmp_path: Path) -> None:
    """A hundred agents of one process answered by a request each, which took the service's and their own time four times over."""
    requests: list[list[dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answers = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["answers"]
            requests.append(answers)
            wait(lambda: len(requests) > 1 or len(client.unsent) == 9)
            self.send_response(200)
            self.end_headers()
            refused = ["app 7 is wrong" if answer["app"] == "7" else "" for answer in answers]
            self.wfile.write(json.dumps({"refused": refused}).encode())

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Client(tmp_path, address=f"127.0.0.1:{server.server_port}", token="t") as client:
            agents = [Agent(client, app) for app in range(10)]
            probe = schema.AgentEvent(probe=schema.Probe(round=3, app=schema.Picture(rho=2.0)))
            threads = [threading.Thread(target=agent.take, args=(probe,)) for agent in agents]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
        server.shutdown()
    assert [len(answers) for answers in requests] == [1, 9]
    assert sorted(int(answer["app"]) for answers in requests for answer in answers) == list(range(10))
    assert [agent.refused for agent in agents] == [["app 7 is wrong"] if app == 7 else [] for app in range(10)]


def test_a_row_that_cannot_be_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    class Wrong(Agent):
        def bid(self, offer: Offer) -> Bid:
            return Bid(rows=[Row(gangs=[1], rho=float("nan"))])

    with Client(tmp_path, address="127.0.0.1:1", token="t") as client:
        agent = Wrong(client, 1)
        agent.take(schema.AgentEvent(offer=schema.Offer(app=schema.Picture())))
        assert agent.refused == ["rho is nan, expected a number from 0 to 1e+300."]


# ---- a service ---------------------------------------------------------------------------------------------------------

slow = pytest.mark.slow
QUICK = {
    "lease_s": 2,
    "tick_s": 1,
    "container_s": 0.2,
    "grace_s": 1,
    "node_renew_s": 1,
    "node_lease_s": 10,
    "retries": 0,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    known: dict[str, Any] = {"gpus": 2, "port": 0, "allow_root": os.geteuid() == 0, "validate": True}
    config = Config(policy="themis", agent_s=1.0, **known, **QUICK)
    with running(home, config) as up:
        yield up


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.arbiter.journal.path.parent) as client:
        yield client


def sweep(client: Client, *seconds: float) -> int:
    """An app of jobs that sleep so long."""
    jobs = [
        schema.Job(
            name=f"j{i}",
            gpus_min=1,
            gpus_max=1,
            regimes=[schema.Regime(steps=s)],
            program=schema.Program(argv=["sleep", str(s)], cwd="/tmp"),
        )
        for i, s in enumerate(seconds)
    ]
    return client.submit(schema.SubmitRequest(name="sweep", jobs=jobs)).app


def full(client: Client) -> int:
    """An app that has all GPUs for as long as nobody cancels it."""
    app = client.run(["sleep", "600"], gpus=2, hours=0.2).app
    wait(lambda: client.show(app).app.gpus == 2)
    return app


def wait(holds: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


class Running:
    """An agent in a thread of its own."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.ended = agent, ""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        wait(lambda: agent.number is not None)

    def _run(self) -> None:
        self.ended = self.agent.run()

    def end(self) -> str:
        self.thread.join(60)
        return self.ended


@slow
def test_the_example_runs_its_shortest_job_first(client: Client) -> None:
    kind = runpy.run_path(str(ROOT / "examples" / "agent.py"))["ShortestFirst"]
    blocker = full(client)
    app = sweep(client, 3.0, 2.0, 1.0)
    agent = Running(kind(client, app))
    client.cancel(blocker)
    assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
    assert agent.end() == "over"
    assert agent.agent.refused == []
    assert min(client.show(app).jobs, key=lambda j: j.attempts[0].ended).id == 2


@slow
def test_the_example_with_curl_bids_until_its_app_is_over(service: Service, client: Client) -> None:
    client.set(agent_wait="30s")  # on a busy machine a process starts late
    blocker = full(client)
    app = sweep(client, 1.0, 1.0)
    command = ["sh", str(ROOT / "examples" / "agent.sh"), str(app)]
    environment = {**os.environ, "THEMIS_DATA_DIR": str(client.home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as agent:
        wait(lambda: service.arbiter.agents.present([app]) == [app])
        client.cancel(blocker)
        assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
        said, errors = agent.communicate(timeout=PATIENCE_S)
    assert said.splitlines()[-1] == '{"goodbye":{"reason":"over"}}', errors
    assert '"lease":{"what":"granted"' in said
    bids = [r.record for r in client.events() if r.kind == "AgentBid" and r.record["app"] == app]
    client.set(agent_wait="1s")
    assert "bid" in {bid["said"] for bid in bids}, errors


@slow
def test_an_agent_that_answers_nothing_right_delays_only_itself(client: Client) -> None:
    class Wrong(Agent):
        def rho(self, probe: schema.Probe) -> float:
            return float("nan")

        def bid(self, offer: Offer) -> Bid:
            return Bid(rows=[Row(gangs=[99], rho=0.5)])

    blocker = full(client)
    wrong, right = sweep(client, 1.0), sweep(client, 1.0)
    agent = Running(Wrong(client, wrong))
    client.cancel(blocker)
    assert client.wait(right, timeout_s=PATIENCE_S).state == "completed"
    assert client.wait(wrong, timeout_s=PATIENCE_S).state == "completed"
    assert agent.end() in ("over", "silent")
    assert any("expected a number" in sentence for sentence in agent.agent.refused)
    assert any("more than is offered" in sentence for sentence in agent.agent.refused) or agent.ended == "silent"


@slow
def test_agents_of_apps_that_are_over_or_unknown_are_refused(client: Client) -> None:
    app = sweep(client, 0.1)
    client.wait(app, timeout_s=PATIENCE_S)
    with pytest.raises(InputError, match="is finished, so no agent can bid for it"):
        Agent(client, app).run()
    with pytest.raises(InputError, match="unknown app"):
        Agent(client, "nothing").run()
    answers = [schema.AgentAnswer(app=ref, round=1, rho=1.0) for ref in (str(app), "nothing")]
    refused = client.call("Answer", schema.AnswersRequest(answers=answers)).refused
    assert [sentence.partition(";")[0].partition(" '")[0] for sentence in refused] == [
        "no agent is connected for this app",
        "unknown app",
    ]


@slow
def test_an_agent_that_hangs_up_frees_its_place(service: Service, client: Client) -> None:
    blocker = full(client)
    app = sweep(client, 0.1)
    stream = client.stream("Attend", schema.AppRef(app=str(app)))
    assert next(stream).welcome.app == app
    assert service.arbiter.agents.present([app]) == [app]
    stream.close()  # type: ignore[attr-defined]
    wait(lambda: service.arbiter.agents.present([app]) == [])
    client.cancel(blocker)
    client.cancel(app)
