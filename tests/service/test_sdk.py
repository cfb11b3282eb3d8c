"""The Python clients: docs/sdk.md runs, both have the same methods, sweeps are those of job files, answers are tables."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from processes import PATIENCE_S
from themis.client.adapters.apps import request
from themis.client.aio import AsyncClient
from themis.client.client import Client, StillActive, Unavailable
from themis.client.command import run_request
from themis.client.notebook import COLUMNS, MOST_ROWS, Listing
from themis.client.submit_requests import read_requests
from themis.errors import InputError, UnknownName
from themis.schema import messages as schema
from themis.schema.routes import CALLS
from themis.service.engine.config import Config
from themis.service.operations.up import running

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text(encoding="utf-8")
TRAIN = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


def public(kind: type) -> dict[str, object]:
    return {name: method for name, method in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


# ---- without a service -------------------------------------------------------------------------------------------------


def test_the_page_has_every_method() -> None:
    table = PAGE.partition("| method | |")[2].partition("\n\n")[0]
    first = "\n".join(row.split("|")[1] for row in table.splitlines()[1:])
    assert set(re.findall(r"`(\w+)`", first)) == public(Client).keys()
    assert all(inspect.getdoc(method) for method in public(Client).values())


def test_each_call_is_written_once_for_both_clients() -> None:
    own = {"close"}  # of the connection
    assert public(Client).keys() == public(AsyncClient).keys()
    assert {name for name, method in public(Client).items() if public(AsyncClient)[name] is not method} == own
    assert list(inspect.signature(Client.drain).parameters) == ["self", "node", "deadline_s"]
    assert inspect.signature(Client).parameters == inspect.signature(AsyncClient).parameters


def test_calls_wait_for_no_stream_and_keep_their_connection_however_many_are_open(tmp_path: Path) -> None:
    """Each stream has a connection of its own: with a hundred agents in one process no answer was sent, and all were late; then
    each answer opened a new connection, because httpx keeps none where many are open.
    """
    done, connections = threading.Event(), set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            if "info" in self.path:
                connections.add(self.client_address)
                self.send_header("Content-Length", "2")
            else:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"{}" if "info" in self.path else b'id: 1\ndata: {"number": 1}\n\n')
            self.wfile.flush()
            assert "info" in self.path or done.wait(PATIENCE_S)

        def log_message(self, format: str, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        request_queue_size, daemon_threads = 128, True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Client(tmp_path, address=f"127.0.0.1:{server.server_port}", token="t", timeout_s=5.0) as client:
            streams = [client.events(follow=True) for _ in range(101)]
            assert {next(stream).number for stream in streams} == {1}
            assert [client.info().policy for _ in range(5)] == [""] * 5
            assert len(connections) == 1
            done.set()
        server.shutdown()


def test_every_method_of_the_api_has_a_method_of_the_clients() -> None:
    names = {"Apps": "queue"}
    agents = {"Attend", "Answer"}  # of ``themis.client.agent``
    read_here = {"SubmitFile"}  # ``submit_file`` reads the file itself, with the folders of this machine
    streams = {"Dump"}  # a request without fields
    pages = {
        "Health",
        "Ready",
        "OpenApi",
        "Metrics",
        "Records",
        "Bundle",
        "Upload",
        "Copies",
        "Copy",
    }  # sent and fetched
    for method in CALLS.keys() - agents - read_here - streams - pages:
        name = names.get(method) or re.sub(r"(?<=[a-z])([A-Z])", r"_\1", method).lower()
        assert name in public(Client), method
    assert streams <= {name.title() for name in public(Client)}


def made(command: str = "python train.py --lr {lr}", **more: object) -> schema.SubmitRequest:
    given = {
        "parameters": {"lr": [0.1, 0.2]},
        "budget": 90,
        "seed": 3,
        "name": "s",
        "user": "ada",
        "cwd": Path("/work"),
    }
    with Client("/nowhere", address="127.0.0.1:1", token="x") as client:
        steps = inspect.unwrap(Client.sweep)(client, command, **given | more)
        next(steps)  # asks for the assumed run time
        sent = steps.send(httpx.Response(200, json={"unknown_work_s": 3600.0}))
    return schema.SubmitRequest.model_validate_json(sent["content"]).model_copy(update={"key": ""})


def test_a_sweep_is_that_of_a_job_file(tmp_path: Path) -> None:
    """The same keys, the same trials, the same message."""
    (tmp_path / "sweep.yaml").write_text(
        "name: s\ncommand: python train.py --lr {lr}\ngpus: 2..4\nwalltime: 2h\nsteps_per_epoch: 10\nsweep:\n"
        "  parameters: {lr: {loguniform: [1e-5, 1e-1]}, layers: {int: [2, 12]}}\n"
        "  trials: 9\n  budget: 9 epochs\n  seed: 3\n  tuner: {kind: halving, eta: 3}\n"
    )
    (written,) = read_requests(tmp_path / "sweep.yaml", "ada", folder=Path("/work"), unknown_work_s=3600.0)
    assert written == made(
        parameters={"lr": {"loguniform": [1e-5, 1e-1]}, "layers": {"int": [2, 12]}},
        trials=9,
        budget="9 epochs",
        tuner={"kind": "halving", "eta": 3},
        gpus=(2, 4),
        walltime="2h",
        steps_per_epoch=10,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"command": "python x.py {rate}", "trials": 2}, "sweep: key 'command': unknown placeholder '{rate}'"),
        ({"budget": "9 weeks"}, "sweep: sweep.budget is '9 weeks', expected"),
        ({"waltime": "1h"}, "sweep: unknown key 'waltime'. Did you mean 'walltime'?"),
        ({"parameters": {"lr": {1, 2}}}, "sweep: a value cannot be written to a job file"),
        ({"parameters": {"lr": {"uniform": [0, float("inf")]}}}, "sweep: .* expected two numbers"),
        ({"tuner": "halfing", "trials": 4}, "sweep: sweep.tuner.kind is 'halfing'"),
        ({"gpus": (4, 2)}, "sweep: gpus is '4..2'"),
    ],
)
def test_a_wrong_sweep_names_the_key(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(**wrong)  # type: ignore[arg-type]


def test_an_unknown_option_of_run_is_reported_with_what_was_meant(tmp_path: Path) -> None:
    client = Client(tmp_path, address="127.0.0.1:1", token="x", timeout_s=1)
    with client, pytest.raises(UnknownName, match=r"unknown option of run 'retrys'\. Did you mean 'retries'"):
        client.run("true", retrys=1)  # type: ignore[call-arg]


def test_a_data_directory_may_be_given_as_text(tmp_path: Path) -> None:
    with Client(str(tmp_path), address="127.0.0.1:1", token="x") as client:
        assert client.home == tmp_path


def test_every_value_of_a_table_is_escaped() -> None:
    html = Listing([schema.App(id=1, name="<script>", user="a&b", state="running")])._repr_html_()
    assert "<td>&lt;script&gt;</td><td>a&amp;b</td>" in html
    assert "<script>" not in html
    assert schema.App(name="<b>")._repr_html_().count("<tr>") == 2  # type: ignore[attr-defined]
    assert Listing([], "machines")._repr_html_() == "<p>No machines.</p>"
    many = Listing([schema.User(user=f"u{i}") for i in range(MOST_ROWS + 5)])._repr_html_()
    assert many.endswith("<p>5 more.</p>")
    shown = schema.ShowReply(app=schema.App(id=1), jobs=[schema.JobInfo(id=1, name="<i>")])
    assert "&lt;i&gt;" in shown._repr_html_()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [*COLUMNS, "UserUsage", "InfoReply", "Record", "Attempt"])
def test_every_table_draws_an_empty_message(name: str) -> None:
    assert getattr(schema, name)()._repr_html_().startswith("<table>")


def test_a_message_without_columns_shows_the_fields_that_are_set() -> None:
    rows = Listing([schema.UserUsage(user="a&b", apps=2, gpu_hours=1 / 3), schema.UserUsage(user="c", failed=1)])
    head = "<th>user</th><th>apps</th><th>failed</th><th>gpu hours</th>"
    assert head in rows._repr_html_()
    assert "<tr><td>a&amp;b</td><td>2</td><td>0</td><td>0.33</td></tr>" in rows._repr_html_()


# ---- with a service ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    root = os.geteuid() == 0
    config = Config(
        gpus=2,
        port=0,
        lease_s=2,
        tick_s=1,
        container_s=0.2,
        grace_s=1,
        allow_root=root,
        single_trust=True,
        retries=0,
    )
    with pytest.MonkeyPatch.context() as patch:
        # Jobs find `python` on the PATH of the service.
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        with running(home, config):
            yield home


@pytest.mark.slow
def test_the_examples_of_the_page_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THEMIS_DATA_DIR", str(home))
    (script,) = re.findall(r'```python title="train.py"\n(.*?)```', TRAIN, flags=re.DOTALL)
    (tmp_path / "train.py").write_text(script.replace("time.sleep(0.1)", "pass"))
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "sdk.md", "exec"), names)
    said = capfd.readouterr().out
    assert "first completed" in said
    assert "rank 0 of" in said
    assert "app 1 is still" in said
    assert len(re.findall(r"^lr-search-\d \w+ \d+ steps \{.*\}$", said, flags=re.MULTILINE)) == 4
    (shown,) = re.findall(r"^```text\n(sweep: .*?)```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert shown in said
    assert "<table><thead><tr><th>app</th>" in said
    assert "['completed', 'completed']" in said
    client = names["client"]
    assert isinstance(client, Client)
    client.close()


@pytest.mark.slow
def test_the_asynchronous_client_runs_and_follows_jobs_side_by_side(home: Path, tmp_path: Path) -> None:
    """Streams, waits and errors; other tasks go on during a wait."""

    async def main() -> None:
        async with AsyncClient(home, timeout_s=PATIENCE_S) as client:
            long = await client.run(["sh", "-c", "echo begin; sleep 100"], cwd=tmp_path)
            pieces: list[bytes] = []

            async def follow() -> None:
                async for data in client.logs(long.app, follow=True):
                    pieces.append(data)

            following = asyncio.create_task(follow())
            short = await client.run("echo short", cwd=tmp_path)
            assert (await client.wait(short.app, PATIENCE_S)).state == "completed"
            with pytest.raises(StillActive, match=rf"app {long.app} is still \w+ after 0.1 s"):
                await client.wait(long.app, 0.1, poll_s=0.2)
            assert long.app in [app.id for app in await client.queue()]
            with pytest.raises(InputError, match="unknown app 'nosuch'"):
                await client.show("nosuch")
            assert (await client.cancel(long.app)).state == "cancelled"
            await asyncio.wait_for(following, PATIENCE_S)
            assert b"".join(pieces).startswith(b"begin\n")
            assert [record.kind async for record in client.events(limit=1)] == ["Header"]
            assert len(await client.dump()) > 0
            (node,) = await client.nodes()
            assert node.gpus == 2

    asyncio.run(main())


@pytest.mark.slow
def test_an_asynchronous_call_to_no_service_says_so(tmp_path: Path) -> None:
    said: list[str] = []

    async def main() -> None:
        async with AsyncClient(
            tmp_path, address="127.0.0.1:1", token="x", timeout_s=0.6, on_wait=said.append
        ) as client:
            await client.info()

    with pytest.raises(Unavailable, match=r"the service at 127\.0\.0\.1:1 does not answer; check that"):
        asyncio.run(main())
    assert said == ["The service at 127.0.0.1:1 does not answer. Retrying for up to 0.6 s."]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"gpus": (0, 0)}, "gpus is (0, 0), expected a number of at least 1"),
        ({"gpus": (4, 2)}, "gpus is (4, 2), expected"),
        ({"env": {"A": 1}}, "env has 1 for 'A', expected text, such as '1'."),
    ],
)
def test_wrong_gpus_and_variables_are_not_submitted(more: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"gpus": (1, 1), "hours": 1.0, "name": "a", "model": "", "env": {}, "cwd": None} | more
    with pytest.raises(InputError) as error:
        run_request(["id"], **given)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_an_option_of_an_adapter_of_another_type_is_named_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"the call cannot be sent: retries is '3', expected a whole number"):
        request("trials", {"0": ["train"]}, key="", name="a", env={}, gpus=1, hours=1.0, retries="3")
