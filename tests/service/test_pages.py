"""The status pages keep to their own description: schemathesis calls every one of them, rightly and wrongly.

Its command runs as a process of its own, and its plugin of pytest is off: both change hypothesis for all that runs beside them.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from fake import World, request, world

from processes import PATIENCE_S
from themis.errors import InputError
from themis.machines.engines.program import AttemptEnded, Ending
from themis.schema import messages as schema
from themis.schema.routes import CALLS, ROUTES, Route
from themis.service.api.access import Access
from themis.service.api.http_server import serve_http
from themis.service.api.methods import Api
from themis.service.api.pages import document, find, request_of
from themis.service.api.submission import submit

TOKEN = "t"
STREAMS = ("/v1/stream", "/v1/apps/{app}/agent")
ALL = os.environ.get("THEMIS_PAGE_PHASES") == "all"
"""Whether all phases of schemathesis run, as in ``make soak``: ``coverage`` tries each limit, ``fuzzing`` random values."""
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,positive_data_acceptance,unsupported_method,ignored_auth"
)


def enter(w: World, name: str, **more: Any) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, str]]:
    """A world that its tests only read."""
    with frozen(tmp_path_factory.mktemp("pages")) as made:
        yield made


@contextmanager
def frozen(home: Path) -> Iterator[tuple[World, str]]:
    """A world with apps of every state, whose time stands still, and the address of its pages."""
    home.mkdir(exist_ok=True)
    with world(home, 2, 2, retries=0) as w:
        for name in ("done", "failing", "cancelled", "running", "held", "waiting"):
            enter(w, name, gpus=(4, 4) if name == "waiting" else (1, 1), jobs=2 if name == "running" else 1)
            w.turn(1.1)
        w.finish(0)
        w.say(
            AttemptEnded(
                app=1,
                job=1,
                attempt=int(w.arbiter.state.jobs.attempt[1]),
                ending=Ending.FAILED,
                cause="",
                code=3,
                seconds=1.0,
                steps=0.0,
                saved=False,
                killed=False,
                message="no such file",
            )
        )
        w.ask(lambda a: a.cancel(2))
        w.ask(lambda a: a.hold(4))
        w.turn(1.1)
        server = serve_http(Api(w.arbiter, home, Access(home, TOKEN, "u")), "127.0.0.1", 0)
        w.arbiter.start()
        try:
            yield w, f"http://127.0.0.1:{server.port}"
        finally:
            server.close()
            w.arbiter.close()


def kept(w: World) -> list[str]:
    """All that is in the journal, and what the core holds."""
    with closing(sqlite3.connect(f"{w.arbiter.journal.path.as_uri()}?mode=ro", uri=True)) as db:
        written = list(db.iterdump())
    jobs = w.arbiter.state.jobs
    return [*written, str(w.held()), str(jobs.status[: jobs.size].tolist()), str(jobs.attempt[: jobs.size].tolist())]


def ask(address: str, target: str, token: str = TOKEN) -> tuple[int, Message, Any]:
    """Status, headers and value of a page."""
    page = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
    with closing(page):
        page.request("GET", target, headers={"Authorization": f"Bearer {token}"})
        answer = page.getresponse()
        return answer.status, answer.headers, json.loads(answer.read())


HOOKS = """
import schemathesis

@schemathesis.hook
def before_call(context, case, kwargs):
    query = case.query or {}
    # The world's apps never end: who follows one would wait for ever. They have one job or two.
    if query.get("follow") == "true":
        query["follow"] = "false"
    if str(query.get("job", "")).isdecimal() and int(query["job"]) < 2**31:
        query["job"] = 0
    # A what-if of a day takes minutes.
    if case.operation.path == "/v1/what-if" and isinstance(case.body, dict):
        for name, least in (("horizon_s", 1.0), ("simulations", 1)):
            if isinstance(case.body.get(name, 0), (int, float)) and case.body.get(name, 0) >= 0:
                case.body[name] = least
"""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Method and path of each page that is found."""
    out: set[tuple[str, str]] = set()

    def spy(method: str, path: str) -> tuple[Route, dict[str, str]]:
        found = find(method, path)
        out.add((method, found[0].path))
        return found

    monkeypatch.setattr("themis.service.api.http_app.find", spy)
    return out


def run_schemathesis(address: str, folder: Path, checks: str, phase: str, *more: str) -> None:
    """Call pages as the description has them, rightly and wrongly, and check the answers."""
    (folder / "hooks_of_pages.py").write_text(HOOKS)
    phases = "examples,coverage,fuzzing" if ALL else f"examples,{phase}"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"]
    command += ["-H", f"Authorization: Bearer {TOKEN}", "--checks", checks, "--mode", "all"]
    command += ["--phases", phases, "--max-examples", "10" if ALL else "2", "--generation-deterministic"]
    command += ["--continue-on-failure", "--no-color", *more]
    command += ["--request-timeout", f"{PATIENCE_S:g}"]  # simulations of what-if take up to 40 s
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks_of_pages", "PYTHONPATH": str(folder)}
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_every_page_that_reads_answers_as_its_description_says_and_changes_nothing(
    there: tuple[World, str], tmp_path: Path, called: set[tuple[str, str]]
) -> None:
    w, address = there
    before = kept(w)
    # Streams of events have no end: tests/service/test_http_api.py and test_agent_sdk.py read them.
    without = [word for path in STREAMS for word in ("--exclude-path", path)]
    run_schemathesis(address, tmp_path, CHECKS, "coverage", "--include-method", "GET", *without)
    assert called >= {(page.method, page.path) for page in ROUTES if page.method == "GET" and page.path not in STREAMS}
    assert w.arbiter.broken is None
    assert kept(w) == before


@pytest.mark.slow
def test_every_page_that_writes_keeps_to_its_description(
    there: tuple[World, str], tmp_path: Path, called: set[tuple[str, str]]
) -> None:
    """What is right by its schema may be refused by its meaning, so acceptance of right data is not asked for.

    Each limit of these schemas is tried by ``make soak``: that costs 40 CPU s.
    """
    checks = CHECKS.replace("positive_data_acceptance,", "")
    with frozen(tmp_path / "world") as (w, address):
        methods = [word for name in ("POST", "PUT", "DELETE") for word in ("--include-method", name)]
        run_schemathesis(address, tmp_path, checks, "fuzzing", *methods)
        assert called >= {(page.method, page.path) for page in ROUTES if page.method != "GET"}
        assert w.arbiter.broken is None


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("/v1/events?limit=1001", 400, "limit is 1001, expected a whole number from 1 to 1000."),
        ("/v1/apps?usr=u", 400, "unknown parameter 'usr'. Did you mean 'user'?"),
        ("/v1/apps/0?app=1", 400, "unknown parameter 'app'. This page has none."),
        ("/v1/apps?user=u&user=v", 400, "user is given twice."),
        ("/v1/apps/no%2Fsuch", 404, "unknown app 'no/such'"),
        ("/v1/info/0", 404, "unknown page '/v1/info/0'"),
    ],
)
def test_what_a_page_cannot_answer_it_refuses_in_a_sentence(
    there: tuple[World, str], target: str, code: int, said: str
) -> None:
    found, _, value = ask(there[1], target)
    assert found == code
    assert said in value["error"]


def test_an_address_that_is_none_is_refused_too(there: tuple[World, str]) -> None:
    host, _, port = there[1].removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET http://[x HTTP/1.0\r\n\r\n")
        with connection.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"400"


def test_the_description_needs_no_token_and_all_that_is_said_does(there: tuple[World, str]) -> None:
    assert ask(there[1], "/openapi.json", token="")[2] == document()
    found, headers, _ = ask(there[1], "/v1/info", token="")
    assert (found, headers["WWW-Authenticate"]) == (401, "Bearer")
    pages = [(path, method, page) for path, of in document()["paths"].items() for method, page in of.items()]
    public = {(path, method) for path, method, page in pages if not page["security"]}
    assert public == {("/healthz", "get"), ("/readyz", "get"), ("/openapi.json", "get"), ("/v1/sign-in", "post")}


def test_machines_and_records_of_a_user(there: tuple[World, str]) -> None:
    everybody, nobody = (ask(there[1], f"/v1/nodes?user={user}")[2] for user in ("u", "v"))
    in_use = [node for node in ask(there[1], "/v1/nodes")[2] if node["leased"]]
    assert (everybody, nobody) == (in_use, [])
    assert in_use
    assert {row["kind"] for row in ask(there[1], "/v1/events?user=u")[2]} >= {"AppSubmitted", "AppCancelled"}
    assert ask(there[1], "/v1/events?user=v")[2] == []


def test_an_arbiter_that_broke_is_not_well(there: tuple[World, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(there[1], "/healthz")[2] == {"status": "ok"}
    monkeypatch.setattr(there[0].arbiter, "broken", ValueError())
    assert ask(there[1], "/healthz")[0] == 503


def test_parameters_may_be_missing_repeated_or_any_number() -> None:
    usage = CALLS["Usage"]
    assert request_of(usage, {}, "") == schema.UsageRequest()
    many = schema.UsageRequest(since=1.5, by=["day", "user"], utc=True)
    assert request_of(usage, {}, "since=1.5&by=day&by=user&utc=true") == many
    for query, words in (
        ("since=x", "since is 'x', expected a number from"),
        ("since=1e12", "since is 1000000000000.0, expected a number from -62135510400 to 253402128000"),
        ("utc=1", "utc is '1', expected true or false"),
        ("by=dya", "Did you mean 'day'"),
        ("a=1", "unknown parameter 'a'"),
    ):
        with pytest.raises(InputError, match=words):
            request_of(usage, {}, query)
    with pytest.raises(InputError, match="since is given twice"):
        request_of(usage, {}, "since=1&since=2")
    described = document()["paths"]["/v1/apps/{app}/logs"]["get"]["parameters"]
    assert [parameter["in"] for parameter in described] == ["path", *["query"] * 4]
