"""Writes over HTTP: rights, limits and sentences, and what changes as server-sent events."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fake import World, request, world

from processes import PATIENCE_S, wait_until
from themis.client.client import Client
from themis.errors import InputError
from themis.schema import messages as schema
from themis.schema.wire import as_dict, read
from themis.service.api import http_app
from themis.service.api.access import Access
from themis.service.api.call_limits import CallLimit
from themis.service.api.http_server import HttpServer, serve_http
from themis.service.api.methods import Api
from themis.service.api.setting_calls import Door
from themis.service.api.submission import Limit
from themis.service.engine.config import Config
from themis.service.operations.changing import changed

TOKEN = "t"


class Caller:
    """Calls of one user."""

    def __init__(self, port: int, token: str = TOKEN) -> None:
        self.port, self.token = port, token

    def __call__(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Status and value; ``body`` : JSON, or bytes as they are."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            kind = {} if data is None else {"Content-Type": "application/json"}
            connection.request(method, path, data, {"Authorization": f"Bearer {self.token}", **kind, **headers})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """A reply that is read as it comes."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}", **headers})
            with connection.getresponse() as answer:
                yield answer


@contextmanager
def serving(home: Path, door: Door | None = None, **more: Any) -> Iterator[tuple[World, HttpServer]]:
    """A world of 2 x 2 GPUs with its own HTTP server."""
    with world(home, 2, 2, retries=0, **more) as w:
        api = Api(w.arbiter, home, Access(home, TOKEN, "u"), door)
        server = serve_http(api, "127.0.0.1", 0)
        w.arbiter.start()
        try:
            yield w, server
        finally:
            api.ending.set()
            server.close()
            w.arbiter.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[World, HttpServer]]:
    with serving(tmp_path) as made:
        yield made


def app(name: str, **more: Any) -> dict[str, Any]:
    """A submission as JSON."""
    out: dict[str, Any] = {key: value for key, value in as_dict(request(name, **more)).items() if value}
    return out


def test_a_whole_life_over_http(served: tuple[World, HttpServer]) -> None:
    call = Caller(served[1].port)
    assert call("POST", "/v1/apps", app("a", key="k")) == (201, {"app": 0, "name": "a", "layout": ""})
    assert call("POST", "/v1/apps", app("a", key="k")) == (201, {"app": 0, "name": "a", "layout": ""}), (
        "the same key, the same app"
    )
    assert [row["name"] for row in call("GET", "/v1/apps")[1]] == ["a"]
    assert call("POST", "/v1/apps/a/hold")[1]["app"]["state"] == "held"
    assert [row["name"] for row in call("GET", "/v1/apps?state=held")[1]] == ["a"]
    assert call("POST", "/v1/apps/0/resume", {})[1]["app"]["state"] == "waiting"
    assert call("GET", "/v1/apps/a/why")[1]["code"]
    assert call("POST", "/v1/nodes/m0/drain", {"deadline_s": 60})[1]["node"]["state"] in ("draining", "drained")
    assert call("POST", "/v1/nodes/m0/undrain")[1]["node"]["state"] == "up"
    assert call("POST", "/v1/nodes/m0/remove")[1]["node"]["state"] == "leaving"
    assert call("POST", "/v1/apps/a/cancel")[0] == 200
    assert [row["name"] for row in call("GET", "/v1/apps?state=cancelled")[1]] == ["a"]
    assert call("GET", "/v1/apps?state=waiting")[1] == []
    assert call("GET", "/v1/dump")[1][:2] == b"\x1f\x8b"


def test_the_submission_that_the_documentation_shows_is_taken(served: tuple[World, HttpServer]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    (body,) = re.findall(r"^  -d '(\{.*\})'$", text, re.MULTILINE)
    assert Caller(served[1].port)("POST", "/v1/apps", body.encode()) == (201, {"app": 0, "name": "a", "layout": ""})


def test_users_have_rights_over_their_own_apps_alone(served: tuple[World, HttpServer]) -> None:
    admin = Caller(served[1].port)
    assert admin("PUT", "/v1/users/eve")[0] == 200
    eve = Caller(served[1].port, admin("PUT", "/v1/users/eve", {})[1]["token"])
    admin("POST", "/v1/apps", app("a"))
    for method, path, words in (
        ("POST", "/v1/apps/a/cancel", "belongs to user u; only u and administrators may cancel it, and you are eve"),
        ("POST", "/v1/nodes/m0/drain", "only administrators may drain machines"),
        ("PUT", "/v1/users/eve2", "only administrators may add users"),
        ("DELETE", "/v1/users/eve", "only administrators may remove users"),
        ("GET", "/v1/users", "only administrators may list users"),
        ("GET", "/v1/dump", "only administrators may dump"),
        ("GET", "/v1/apps/a/logs", "may read its logs"),
    ):
        status, value = eve(method, path)
        assert (status, words in value["error"]) == (403, True), value
    assert [row["user"] for row in admin("GET", "/v1/users")[1]] == ["eve"]
    assert admin("DELETE", "/v1/users/eve")[1]["user"]["user"] == "eve"
    assert eve("GET", "/v1/info")[0] == 401


def test_history_and_usage_are_of_the_caller_alone_unless_an_administrator(served: tuple[World, HttpServer]) -> None:
    admin = Caller(served[1].port)
    eve = Caller(served[1].port, admin("PUT", "/v1/users/eve", {})[1]["token"])
    for caller, name, user in ((admin, "a", "u"), (eve, "b", "eve")):
        assert caller("POST", "/v1/apps", app(name, user=user))[0] == 201
        assert caller("POST", f"/v1/apps/{name}/cancel")[0] == 200
    assert [row["name"] for row in admin("GET", "/v1/history")[1]] == ["a", "b"]
    assert [row["name"] for row in eve("GET", "/v1/history")[1]] == ["b"]
    assert {row["user"] for row in eve("GET", "/v1/usage")[1]} == {"eve"}
    for page in ("history", "usage"):
        status, value = eve("GET", f"/v1/{page}?user=u")
        assert status == 403
        assert f"only u and administrators may see the {page} of u" in value["error"]
    assert [row["name"] for row in admin("GET", "/v1/history?user=u&state=cancelled&state=failed&since=0")[1]] == ["a"]
    assert admin("GET", "/v1/history?state=completed")[1] == admin("GET", "/v1/history?until=5")[1] == []
    assert [row["name"] for row in admin("GET", "/v1/history?limit=1")[1]] == ["b"]
    assert admin("GET", "/v1/history?reason=no+such+thing")[1] == []
    rows = admin("GET", "/v1/usage?by=user&by=day&utc=true&since=0")[1]
    assert {(row["user"], bool(row["day"])) for row in rows} <= {("u", True), ("eve", True)}
    assert "Did you mean 'day'" in admin("GET", "/v1/usage?by=dya")[1]["error"]


def test_settings_are_listed_and_changed_by_administrators(tmp_path: Path) -> None:
    with serving(tmp_path, door=Door(changed, Config)) as (w, server):
        admin = Caller(server.port)
        eve = Caller(server.port, admin("PUT", "/v1/users/eve", {})[1]["token"])
        status, found = admin("PUT", "/v1/settings", {"values": {"policy": "drf", "price.*": "2.5"}})
        assert (status, found) == (200, {"changes": ["policy: fair_finish -> drf", "price.*: none -> 2.5"]})
        rows = {row["name"]: row for row in eve("GET", "/v1/settings")[1]}
        assert (rows["policy"]["value"], rows["policy"]["user"], rows["price.*"]["value"]) == ("drf", "u", "2.5")
        assert rows["port"]["restart"]
        assert (w.arbiter.config.policy, w.arbiter.config.prices) == ("drf", {"*": 2.5})
        for caller, body, code, words in (
            (eve, {"values": {"policy": "themis"}}, 403, "only administrators may change settings"),
            (admin, {"values": {"polcy": "drf"}}, 400, "Did you mean 'policy'"),
            (admin, {"values": {"seed": 3}}, 400, "values.seed is 3, expected text"),
            (admin, {"values": {"seed": "3"}, "reload": True}, 400, "make two calls"),
            (admin, {"valus": {}}, 400, "unknown key 'valus'. Did you mean 'values'?"),
        ):
            status, value = caller("PUT", "/v1/settings", body)
            assert (status, words in value["error"]) == (code, True), value
        assert w.arbiter.config.policy == "drf"


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"{", {}, 400, "the body is not JSON"),
        (b"[]", {}, 400, "the body is [], expected a JSON object"),
        (b'{"name": "a", "name": "b"}', {}, 400, "duplicate key 'name'"),
        (b"\xff", {}, 400, "the body is not UTF-8 at byte 0"),
        (rb'{"name": "\ud800"}', {}, 400, "name has half of a surrogate pair"),
        pytest.param(b"[" * 100_000, {}, 400, "the body is nested deeper than 40 levels", id="deep"),
        pytest.param(b'{"a": [0' + b",0" * 300_000 + b"]}", {}, 400, "the body has about 300003 values", id="wide"),
        (
            b'{"name": "a", "weight": 1' + b"0" * 400 + b"}",
            {},
            400,
            "weight is a whole number of 1329 bits",
        ),
        ({"name": "9"}, {}, 400, "the name of the app is '9', which is an app's number"),
        ({"nmae": "a"}, {}, 400, "unknown key 'nmae'. Did you mean 'name'?"),
        ({"name": None}, {}, 400, "name is null, expected text"),
        ({"jobs": [{"gpus_min": "2"}]}, {}, 400, "jobs[0].gpus_min is '2', expected a whole number from 1 to 1000000"),
        pytest.param(
            b'{"weight": ' + b"9" * 5_000 + b"}", {}, 400, "the body has a number of 5000 digits", id="digits"
        ),
        (
            {"name": "a", "jobs": [{"gpus_min": 3, "gpus_max": 1}]},
            {},
            400,
            "gpus_max is 1, expected at least gpus_min, which is 3",
        ),
        ({"jobs": [{"program": {"env": {"A": 1}}}]}, {}, 400, "jobs[0].program.env.A is 1, expected text"),
        (
            {"brackets": {}, "curve": {"check_steps": 1, "keep": 1, "confidence": 0.9, "warmup": 4}},
            {},
            400,
            "brackets and curve are given",
        ),
        ({"name": "a"}, {}, 400, "has no jobs"),
        (b"name=a", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "expected application/json"),
        (b"{}", {"Content-Type": "application/json; charset=latin-1"}, 415, "expected application/json"),
        (b"{}", {"Host": "evil.example"}, 421, "Host is 'evil.example', expected localhost"),
        (b" " * 2_000_000, {}, 413, "the body has more than 1000000 bytes"),
    ],
)
def test_a_wrong_body_is_refused_in_a_sentence(
    wrong: HttpServer, body: object, headers: dict[str, str], status: int, words: str
) -> None:
    found, value = Caller(wrong.port)("POST", "/v1/apps", body, **headers)
    assert (found, words in value["error"]) == (status, True), value


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A server that refuses all that these tests ask of it."""
    with serving(tmp_path_factory.mktemp("wrong"), max_message_bytes=1_000_000) as (w, server):
        yield server
        assert w.arbiter.state.apps.size == 0


def test_bodies_where_none_belongs_and_cookies_give_nothing(wrong: HttpServer) -> None:
    assert Caller(wrong.port)("DELETE", "/v1/users/x", {})[0] == 400
    assert Caller(wrong.port)("GET", "/v1/info", {})[0] == 400
    assert Caller(wrong.port, "")("GET", "/v1/info", None, Cookie=f"token={TOKEN}")[0] == 401


def dial(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


def test_a_request_with_two_lengths_is_refused_and_what_follows_it_is_no_request(wrong: HttpServer) -> None:
    """A proxy that reads Content-Length would take the second for the body of the first (RFC 9112, 6.1)."""
    with dial(wrong) as smuggler, smuggler.makefile("rb") as answer:
        smuggler.sendall(
            b"POST /v1/apps HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\nContent-Type: application/json\r\n"
            b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n\r\n"
        )
        said = answer.read()
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"expected one of them" in said
    assert said.count(b"HTTP/1.1") == 1


def test_the_sentence_of_a_header_that_cannot_be_read_does_not_quote_its_token(wrong: HttpServer) -> None:
    with dial(wrong) as odd, odd.makefile("rb") as answer:
        odd.sendall(b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\nAuthorization : Bearer secret-token\r\n\r\n")
        said = answer.read()
    assert b"the request cannot be read: illegal header line." in said
    assert b"secret-token" not in said


def test_a_body_that_does_not_come_is_given_up(wrong: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app, "BODY_S", 0.2)
    with dial(wrong) as slow, slow.makefile("rb") as answer:
        slow.sendall(
            b"POST /v1/apps HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n"
            b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert b" 408 " in answer.readline()
    wait_until(lambda: not wrong.app.callers.taken, "its place is given back")


def test_a_body_in_pieces_without_a_length_is_bounded_too(wrong: HttpServer) -> None:
    with dial(wrong) as endless, endless.makefile("rb") as answer:
        endless.sendall(
            b"POST /v1/apps HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(20):
            endless.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert b" 413 " in answer.readline()


@pytest.mark.slow
def test_a_caller_that_takes_no_answer_is_hung_up_on(
    served: tuple[World, HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    from themis.service.api import connections

    monkeypatch.setattr(connections, "ANSWER_S", 0.2)
    monkeypatch.setattr(connections, "HEADERS_S", 0.2)
    server = served[1]
    with dial(server) as lazy:
        lazy.setblocking(False)
        asked = memoryview(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)

        def hung_up() -> bool:
            nonlocal asked
            try:
                asked = asked[lazy.send(asked) :] or asked
            except BlockingIOError:
                return False
            except OSError:
                return True
            return False

        wait_until(hung_up, "the connection is closed")
    assert Caller(server.port)("GET", "/healthz")[0] == 200


# ---- server-sent events ------------------------------------------------------------------------------------------------


def events_of(answer: http.client.HTTPResponse, count: int) -> list[dict[str, Any]]:
    """The next events of a stream, their ids checked."""
    out, number = [], 0
    while len(out) < count:
        line = answer.readline().decode()
        assert line, "the stream ended"
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            out.append(json.loads(line[6:]))
            assert out[-1]["number"] == number
    return out


def test_what_changes_comes_as_events_and_goes_on_after_the_last_one(served: tuple[World, HttpServer]) -> None:
    call = Caller(served[1].port)
    call("POST", "/v1/apps", app("a"))
    with call.stream("/v1/stream") as first:
        assert first.headers["Content-Type"].startswith("text/event-stream")
        seen = events_of(first, 2)
        while seen[-1]["kind"] != "AppSubmitted":
            seen += events_of(first, 1)
    with call.stream("/v1/stream", **{"Last-Event-ID": str(seen[-1]["number"])}) as second:
        call("POST", "/v1/apps", app("b"))
        later = events_of(second, 1)
        while later[-1]["kind"] != "AppSubmitted":
            later += events_of(second, 1)
        assert later[0]["number"] > seen[-1]["number"]
        assert later[-1]["record"]["app"]["name"] == "b"
    assert call("GET", "/v1/stream", **{"Last-Event-ID": "x"})[0] == 400


def test_a_silent_stream_has_a_heartbeat_and_ends_with_its_reader(
    served: tuple[World, HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_app, "HEARTBEAT_S", 0.1)
    call, streams = Caller(served[1].port), served[1].app.api.streams
    with call.stream("/v1/stream?user=nobody") as answer:
        assert [answer.readline() for _ in range(3)] == [b"retry: 2000\n", b"\n", b": nothing new\n"]
        assert streams.taken == {"u": 1}
    wait_until(lambda: not streams.taken, "the stream's place is given back")


def test_a_stream_ends_when_its_token_is_removed(
    served: tuple[World, HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_app, "HEARTBEAT_S", 0.1)
    admin = Caller(served[1].port)
    eve = Caller(served[1].port, admin("PUT", "/v1/users/eve")[1]["token"])
    with eve.stream("/v1/stream?user=nobody") as answer:
        assert answer.readline()
        admin("DELETE", "/v1/users/eve")
        with suppress(http.client.IncompleteRead, ConnectionError):
            while answer.read(1):
                pass


@pytest.mark.slow
def test_streams_of_one_user_are_limited_and_leave_places_for_other_calls(served: tuple[World, HttpServer]) -> None:
    admin = Caller(served[1].port)
    eve = Caller(served[1].port, admin("PUT", "/v1/users/eve")[1]["token"])
    streams = served[1].app.api.streams
    with ExitStack() as open_:
        answers = [open_.enter_context(eve.stream("/v1/stream?user=nobody")) for _ in range(streams.of_user)]
        assert [answer.status for answer in answers] == [200] * streams.of_user
        status, value = eve("GET", "/v1/stream")
        assert (status, "has reached the limit" in value["error"]) == (429, True)
        assert eve("GET", "/v1/info")[0] == 200
    wait_until(lambda: not streams.taken, "the places are given back")


def test_output_of_a_job_is_followed_to_the_end_of_its_app(served: tuple[World, HttpServer]) -> None:
    w, server = served
    call = Caller(server.port)
    call("POST", "/v1/apps", app("a"))
    folder = w.arbiter.journal.path.parent / "nodes" / "m0" / "logs" / "job0-attempt1"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_bytes(b"one\n\xff\n")
    assert call("GET", "/v1/apps/a/logs") == (200, b"one\n\xff\n")
    with call.stream("/v1/apps/a/logs?follow=true") as answer:
        assert answer.readline() == b"one\n"
        with open(folder / "rank-0.log", "ab") as file:
            file.write(b"two\n")
        assert (answer.readline(), answer.readline()) == (b"\xff\n", b"two\n")
        call("POST", "/v1/apps/a/cancel")
        assert answer.read() == b""


def test_messages_as_json_come_back_as_they_were() -> None:
    asked = request("a", gpus=(1, 2), jobs=2)
    asked.jobs[0].memory, asked.weight, asked.retries = 2**60, 0.1, 3
    asked.jobs[1].program.env["A"] = "é" * 3 + os.sep
    asked.curve = schema.CurveStopping(check_steps=2.5, keep=1, confidence=0.9, warmup=4)
    assert read(schema.SubmitRequest, as_dict(asked)) == asked


def test_a_call_that_a_busy_service_refuses_is_repeated_and_one_beyond_a_limit_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [True, True]
    said: list[str] = []

    def check(limit: CallLimit, caller: object) -> None:
        if refusals:
            refusals.pop()
            raise Limit("too many calls.", retry_s=1.0)

    with serving(tmp_path, max_apps=1) as (_, server):
        address = f"127.0.0.1:{server.port}"
        with Client(tmp_path, address=address, token=TOKEN, timeout_s=PATIENCE_S, on_wait=said.append) as client:
            monkeypatch.setattr(CallLimit, "_check", check)
            assert client.info().gpus == 4
            assert (refusals, len(said)) == ([], 1)
            assert "The service refuses the call: too many calls." in said[0]
            client.submit(request("a"))
            with pytest.raises(InputError, match="the limit is 1"):
                client.submit(request("b"))
            assert len(said) == 1
