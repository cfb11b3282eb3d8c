"""No user takes the service away from others: places for streams, reads and questions, and silent connections."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from fake import request

from processes import PATIENCE_S, wait_until
from themis.client.client import Client
from themis.client.home import log_in
from themis.errors import InputError
from themis.service.api import connections
from themis.service.api import methods as limits
from themis.service.api.access import Caller
from themis.service.api.call_limits import CallLimit
from themis.service.api.costs import BUCKET_S, SHARE, Costs
from themis.service.api.http_app import MOST_CALLERS
from themis.service.api.submission import Limit
from themis.service.engine.config import Config
from themis.service.operations.up import Service, running

EVE, BOB = Caller(user="eve", admin=False), Caller(user="bob", admin=False)
ADMIN, OTHER = Caller(user="ada", admin=True), Caller(user="alan", admin=True)


# ---- the arithmetic of places --------------------------------------------------------------------------------------------


def test_a_user_has_so_many_places_all_users_leave_the_reserve_and_places_come_back() -> None:
    places = CallLimit(6, 3, 2, "follow", "end one")
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(places.take(EVE))
        with pytest.raises(Limit, match=r"user eve has reached the limit of 3 concurrent calls to follow; end one\."):
            places.take(EVE).__enter__()
        held.enter_context(places.take(BOB))
        with pytest.raises(Limit, match="the limit of 4 concurrent calls to follow"):
            places.take(BOB).__enter__()
        for _ in range(2):
            held.enter_context(places.take(ADMIN))
        with pytest.raises(Limit, match="the limit of 6 concurrent calls to follow"):
            places.take(OTHER).__enter__()
    assert places.taken.total() == 0
    with ExitStack() as held:
        for _ in range(6):  # an administrator who is alone may have them all
            held.enter_context(places.take(ADMIN))


def test_a_place_comes_back_when_its_call_fails() -> None:
    places = CallLimit(1, 1, 0, "ask", "wait")
    for _ in range(3):
        with pytest.raises(ValueError, match="x"), places.take(BOB):
            raise ValueError("x")
    assert places.taken == {}


def test_what_reading_took_is_paid_comes_back_slowly_and_is_nobody_elses() -> None:
    now, spent = [0.0], [0.0]
    costs = Costs(lambda: now[0], lambda: spent[0])
    with costs.reading(EVE):
        spent[0] += BUCKET_S + 1.0
    with pytest.raises(Limit, match=r"user eve took more than 10 CPU seconds lately; try again in 10 s") as error:
        costs.reading(EVE).__enter__()
    assert error.value.retry_s == pytest.approx(1.0 / SHARE)
    for caller in (BOB, ADMIN):
        with costs.reading(caller):
            spent[0] += 1.0
    now[0] += 1.0 / SHARE + 0.1
    with suppress(InputError), costs.reading(EVE):
        spent[0] += 1.0
        raise InputError("what is refused costs as much.")
    with pytest.raises(Limit):
        costs.reading(EVE).__enter__()


def test_requests_of_one_user_are_read_one_after_the_other_and_others_meanwhile() -> None:
    costs, read = Costs(), threading.Event()
    with costs.reading(EVE):
        second = threading.Thread(target=lambda: costs.reading(EVE).__enter__() or read.set(), daemon=True)
        second.start()
        with costs.reading(BOB), costs.reading(ADMIN):
            assert not read.is_set()
    second.join(PATIENCE_S)
    assert read.is_set()


# ---- a service with two users --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    config = Config(
        gpus=1,
        port=0,
        lease_s=2,
        tick_s=1,
        container_s=0.2,
        grace_s=1,
        allow_root=os.geteuid() == 0,
        single_trust=True,
        retries=0,
        node_renew_s=1,
        node_lease_s=10,
    )
    with running(home, config) as up:
        yield up


@pytest.fixture(scope="module")
def owner(service: Service) -> Iterator[Client]:
    with Client(service.arbiter.journal.path.parent) as client:
        yield client


@pytest.fixture(scope="module")
def users(service: Service, owner: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client]]:
    homes = tmp_path_factory.mktemp("users")
    with ExitStack() as clients:
        made = []
        for name in ("eve", "bob"):
            log_in(homes / name, service.endpoint.address, owner.add_user(name))
            made.append(clients.enter_context(Client(homes / name)))
        yield made[0], made[1]


@pytest.mark.slow
def test_one_user_who_follows_all_that_may_be_followed_keeps_nobody_else_from_it(
    service: Service, owner: Client, users: tuple[Client, Client]
) -> None:
    eve, bob = users
    mine = owner.run(["echo", "hello"], name="mine").app
    owner.wait(mine, timeout_s=PATIENCE_S)
    streams = [eve.events(follow=True) for _ in range(limits.STREAMS_OF_USER)]
    for stream in streams:
        next(stream)
    with pytest.raises(
        InputError,
        match=f"eve has reached the limit of {limits.STREAMS_OF_USER} concurrent calls to follow events or logs",
    ):
        next(eve.events(follow=True))
    assert list(eve.events(limit=1)), "what ends by itself needs no place among those that follow"
    for other in (owner, bob):
        follows = other.events(follow=True)
        assert next(follows).number >= 1
        follows.close()
    assert b"".join(owner.logs(mine)) == b"hello\n"
    for stream in streams:
        stream.close()
    wait_until(lambda: service.api.streams.taken.total() == 0, "the places come back")
    assert limits.STREAMS > limits.STREAMS_OF_USER + limits.STREAMS_KEPT


@pytest.mark.slow
def test_logs_that_are_not_followed_take_no_place_of_those_that_are(service: Service, owner: Client) -> None:
    mine = owner.run(["echo", "hello"], name="read").app
    owner.wait(mine, timeout_s=PATIENCE_S)
    with ExitStack() as full:
        for _ in range(limits.STREAMS):
            full.enter_context(service.api.streams.take(ADMIN))
        assert b"".join(owner.logs(mine)) == b"hello\n"
        assert list(owner.events(limit=1))
        with pytest.raises(
            InputError,
            match=r"all users together have reached the limit of [0-9]* concurrent calls to follow events or logs",
        ):
            next(owner.events(follow=True))


@pytest.mark.slow
def test_a_user_who_asks_why_in_a_loop_is_refused_before_the_scheduler_does_anything(
    service: Service, owner: Client, users: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    eve, bob = users
    app = eve.run(["sleep", "1000"], name="waits").app
    asked = 0

    def why(*_: object) -> None:
        nonlocal asked
        asked += 1

    with ExitStack() as busy:
        for _ in range(limits.WHYS_OF_USER):
            busy.enter_context(service.api._whys.take(EVE))
        with monkeypatch.context() as patch:
            patch.setattr("themis.service.api.views.why", why)
            with pytest.raises(
                InputError, match=r"user eve has reached the limit of [0-9]* concurrent calls to ask why"
            ):
                eve.why(app)
        assert asked == 0
        for other in (bob, owner):
            assert other.why(app).code
    eve.cancel(app)


@pytest.mark.slow
def test_bytes_that_are_no_message_are_the_callers_mistake(
    service: Service, owner: Client, caplog: pytest.LogCaptureFixture
) -> None:
    token = (service.arbiter.journal.path.parent / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for garbage in (b"\xff\xff\xff\xff", b"\x0a\x05ab", b"[" * 40):
        connection = http.client.HTTPConnection(service.endpoint.address, timeout=PATIENCE_S)
        connection.request("POST", "/v1/apps", garbage, headers)
        assert connection.getresponse().status == 400
        connection.close()
    assert owner.info().gpus
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# ---- the status pages ----------------------------------------------------------------------------------------------------


def page(service: Service, path: str = "/healthz", token: str = "") -> tuple[int, object]:
    connection = http.client.HTTPConnection("127.0.0.1", service.http.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def dial(service: Service) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.http.port), timeout=PATIENCE_S)


@pytest.mark.slow
def test_connections_that_say_nothing_or_not_all_take_nothing_from_the_status_pages(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADERS_S", 1000.0)  # it is not their end that lets others in
    before = threading.active_count()
    with ExitStack() as open_:
        silent = [open_.enter_context(dial(service)) for _ in range(2 * MOST_CALLERS)]
        for connection in silent[::2]:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        for _ in range(5):
            assert page(service) == (200, {"status": "ok"})
        assert threading.active_count() <= before + 2
        for connection in silent[:2]:  # one goes on after all, byte by byte; the other says nothing yet
            for byte in b"y\r\n\r\n" if connection is silent[0] else b"GET /healthz HTTP/1.0\n\n":
                connection.sendall(bytes([byte]))
            with connection.makefile("rb") as answer:
                assert b"200" in answer.readline()


@pytest.mark.slow
def test_a_connection_has_a_short_time_for_its_headers_however_it_trickles(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADERS_S", 0.3)
    with dial(service) as silent, dial(service) as slow:
        slow.settimeout(0.05)
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE_S:
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break  # hung up on
        else:
            raise AssertionError("a connection that never ends its headers was kept")
        assert silent.recv(1) == b""
    assert connections.HEADERS_S < 10


@pytest.mark.slow
def test_of_too_many_silent_connections_the_oldest_goes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_WAITING", 4)
    with ExitStack() as open_:
        silent = [open_.enter_context(dial(service)) for _ in range(8)]
        assert silent[0].recv(1) == b""
        assert page(service)[0] == 200


@pytest.mark.slow
def test_requests_of_one_user_leave_places_for_others_and_headers_without_end_are_refused(
    service: Service, owner: Client, users: tuple[Client, Client]
) -> None:
    callers = service.http.app.callers
    tokens = [(client.home / "token").read_text().strip() for client in (*users, owner)]
    with ExitStack() as busy:
        for _ in range(callers.of_user):
            busy.enter_context(callers.take(EVE))
        assert [page(service, "/v1/info", token)[0] for token in tokens] == [429, 200, 200]
    with dial(service) as endless, endless.makefile("rb") as answer:
        endless.sendall(b"GET /healthz HTTP/1.0\r\n" + b"X: y\r\n" * (1 << 16))
        assert b"431" in answer.readline()


@pytest.mark.slow
def test_a_user_who_has_spent_too_much_is_refused_and_can_still_cancel(
    service: Service, users: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    eve, bob = users
    app = eve.submit(request("paid", user="")).app
    monkeypatch.setattr("themis.service.api.costs.BUCKET_S", -1.0)
    monkeypatch.setattr(service.api, "costs", Costs())
    with pytest.raises(InputError, match="reading the requests of user eve took more than"):
        eve.submit(request("more", user=""))
    connection = http.client.HTTPConnection("127.0.0.1", service.http.port, timeout=PATIENCE_S)
    headers = {**eve._headers, "Content-Type": "application/json"}
    connection.request("POST", "/v1/apps", json.dumps({"name": "more", "key": "k" * 2000}), headers)
    reply = connection.getresponse()
    sentence = json.loads(reply.read())["error"]
    connection.close()
    assert (reply.status, reply.headers["Retry-After"]) == (429, "10")
    assert "user eve" in sentence
    assert eve.cancel(app).state == "cancelled"
    assert bob.info().user == "bob"
