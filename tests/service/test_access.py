"""Who may do what: the home's owner everything, users what concerns their own apps."""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake import request, world

from processes import PATIENCE_S
from themis.cli import main
from themis.client.client import Client, user_name
from themis.client.home import log_in, read_token
from themis.errors import InputError, UnknownName
from themis.machines.engines.local import LocalExecutor
from themis.schema.messages import UserRef
from themis.schema.routes import ANYONE, CALLS
from themis.service.api.access import Access, Caller, Forbidden
from themis.service.api.methods import Api
from themis.service.api.submission import _signed, submit
from themis.service.engine.config import Config
from themis.service.operations.rights import let_pass
from themis.service.operations.up import Service, running

# ---- whose rights jobs have ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("root", "would run as root. Submit it as another system user, or start the service with --allow-root"),
        ("", "the service's own user, which is root. Start it as another user, or with --allow-root"),
        ("no-such-user", "user 'no-such-user' does not exist on this machine"),
    ],
)
def test_jobs_that_no_agent_would_start_are_refused_when_they_are_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, expected: str
) -> None:
    local = SimpleNamespace(allow_root=False)
    with world(tmp_path / "home", 1, single_trust=not user) as w:
        monkeypatch.setattr(w.executor, "check_user", lambda name: LocalExecutor.check_user(local, name))
        monkeypatch.setattr("os.geteuid", lambda: 0)
        with pytest.raises(InputError, match=re.escape(expected)):
            w.ask(lambda a: submit(a, request("a", user=user or "ada")))
        assert w.arbiter.state.apps.size == 0
        local.allow_root = True
        if user in ("root", ""):
            w.ask(lambda a: submit(a, request("a", user=user or "ada")))
            assert w.arbiter.state.apps.size == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="jobs of a service of root alone run as their users")
def test_a_user_whose_account_does_not_exist_is_not_added_unless_it_submits_no_jobs(tmp_path: Path) -> None:
    with world(tmp_path, 1) as w:
        w.executor.check_user = lambda name: LocalExecutor.check_user(SimpleNamespace(allow_root=False), name)  # type: ignore[method-assign, arg-type, assignment]
        access = Access(tmp_path, "token", "owner")
        api = Api(w.arbiter, tmp_path, access)
        with pytest.raises(InputError) as refused:
            api.AddUser(UserRef(user="nobdy"))
        assert str(refused.value) == (
            "user 'nobdy' does not exist on this machine. Did you mean 'nobody'? Create it, or name another. "
            "For a token of a program that submits no jobs, add --no-jobs."
        )
        assert access.accounts() == {}
        api.AddUser(UserRef(user="nobdy", no_jobs=True))
        api.AddUser(UserRef(user="nobody"))
        assert [*access.accounts()] == ["nobdy", "nobody"]


# ---- tokens -------------------------------------------------------------------------------------------------------------


def test_a_token_stands_for_its_user_until_it_is_replaced_or_removed(tmp_path: Path) -> None:
    access = Access(tmp_path, "own", "owner")
    first = access.add("bob", admin=False)
    assert access.caller("Bearer own") == Caller(user="owner", admin=True)
    assert access.caller(f"Bearer {first}") == Caller(user="bob", admin=False)
    second = access.add("bob", admin=True)
    assert access.caller(f"Bearer {first}") is None
    assert access.caller(f"Bearer {second}") == Caller(user="bob", admin=True)
    assert Access(tmp_path, "own", "owner").caller(f"Bearer {second}") == Caller(user="bob", admin=True)
    access.remove("bob")
    assert access.caller(f"Bearer {second}") is None
    with pytest.raises(UnknownName, match="unknown user 'bob'"):
        access.remove("bob")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's jobs run as others")
def test_submitters_pass_through_roots_home_and_nobody_looks_around(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    let_pass(home, Config(single_trust=True))
    assert home.stat().st_mode & 0o777 == 0o700
    tmp_path.chmod(0o700)
    let_pass(home, Config())
    assert home.stat().st_mode & 0o777 == 0o711
    assert "cannot enter" in caplog.text


@pytest.mark.parametrize(
    "given", ["", "own", "bearer own", "Bearer", "Bearer ", "Basic own", "Bearer own ", "Bearer \udcff"]
)
def test_nothing_else_stands_for_anybody(tmp_path: Path, given: str) -> None:
    assert Access(tmp_path, "own", "owner").caller(given) is None


def test_the_file_of_users_holds_no_tokens_and_is_its_owners_alone(tmp_path: Path) -> None:
    token = Access(tmp_path, "own", "owner").add("bob", admin=False)
    path = tmp_path / "users.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert token not in path.read_text()
    path.chmod(0o640)
    with pytest.raises(InputError, match="can be read or written by others"):
        Access(tmp_path, "own", "owner")
    path.chmod(0o600)
    path.write_text("[]")
    with pytest.raises(InputError, match=r"users.json cannot be read"):
        Access(tmp_path, "own", "owner")


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "owner"])
def test_users_have_proper_names_of_their_own(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"the name of the user is|runs this service"):
        Access(tmp_path, "own", "owner").add(name, admin=False)


def test_a_user_submits_under_the_own_name_at_most_weight_one_and_names_no_machine() -> None:
    bob, root = Caller(user="bob", admin=False), Caller(user="root", admin=True)
    assert _signed(request(user=""), bob).user == "bob"
    assert _signed(request(user="ada"), root).user == "ada"
    with pytest.raises(Forbidden, match="only administrators may submit for another user; you are bob, not 'ada'"):
        _signed(request(user="ada"), bob)
    with pytest.raises(Forbidden, match="weight above 1, got 2"):
        _signed(request(user="", weight=2.0), bob)
    with pytest.raises(Forbidden, match="may name a machine, got 'm000'"):
        _signed(request(user="", machine="m000"), bob)


# ---- a service with two users -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    config = Config(
        gpus=2,
        port=0,
        lease_s=2,
        tick_s=1,
        container_s=0.2,
        grace_s=1,
        allow_root=os.geteuid() == 0,
        single_trust=True,
        validate=True,
        retries=0,
        node_renew_s=1,
        node_lease_s=10,
    )
    with running(home, config) as up:
        yield up


@pytest.fixture
def owner(service: Service) -> Iterator[Client]:
    with Client(service.arbiter.journal.path.parent) as client:
        yield client


@pytest.fixture
def bob(service: Service, owner: Client, tmp_path: Path) -> Iterator[Client]:
    log_in(tmp_path / "bob", service.endpoint.address, owner.add_user("bob"))
    with Client(tmp_path / "bob") as client:
        yield client


@pytest.mark.slow
def test_how_a_job_failed_is_its_users_own(owner: Client, bob: Client) -> None:
    made = owner.run(["/root/secret-program"], name="fails").app
    assert "secret-program" in owner.wait(made, timeout_s=PATIENCE_S).reason
    assert (bob.show(made).app.state, bob.show(made).app.reason) == ("failed", "")
    assert [app.id for app in bob.history()] == []
    assert "secret-program" in next(app.reason for app in owner.history() if app.id == made)


@pytest.mark.slow
def test_each_user_acts_as_themselves_and_cannot_touch_the_others_apps(owner: Client, bob: Client) -> None:
    theirs = owner.run(["sh", "-c", "echo secret; sleep 100"], name="theirs").app
    mine = bob.run(["sh", "-c", "echo mine; sleep 100"], name="mine").app
    assert (bob.info().user, bob.info().admin, owner.info().admin) == ("bob", False, True)
    assert {app.name: app.user for app in bob.queue()} == {"theirs": user_name(), "mine": "bob"}
    for what, call in (
        ("cancel it", bob.cancel),
        ("hold it", bob.hold),
        ("resume it", bob.resume),
        ("read its logs", lambda app: list(bob.logs(app))),
    ):
        with pytest.raises(
            InputError, match=f"belongs to user {user_name()}; only {user_name()} and administrators may {what}"
        ):
            call(theirs)
    for call in (
        lambda: bob.drain("x"),
        lambda: bob.undrain("x"),
        lambda: bob.remove_node("x"),
        lambda: bob.add_user("eve"),
        lambda: bob.users(),
    ):
        with pytest.raises(InputError, match=r"only administrators may .*; user bob is not an administrator"):
            call()
    with pytest.raises(InputError, match="only administrators may submit for another user"):
        bob.run(["true"], user=user_name())
    assert list(bob.show(theirs).jobs[0].command) == []
    assert list(bob.show(mine).jobs[0].command) != []
    assert bob.hold(mine).state == "held"
    assert owner.cancel(mine).state == "cancelled"
    owner.cancel(theirs)


@pytest.mark.slow
def test_a_key_is_its_users_own(owner: Client, bob: Client) -> None:
    asked = request("same", user="", key="k")
    one, other = owner.submit(asked), bob.submit(asked)
    assert one.app != other.app
    assert (owner.submit(asked).app, bob.submit(asked).app) == (one.app, other.app)
    for app in (one.app, other.app):
        owner.cancel(app)


@pytest.mark.slow
def test_a_removed_user_is_refused_at_once_on_both_ports(service: Service, owner: Client, bob: Client) -> None:
    def status() -> int:
        call = urllib.request.Request(
            service.endpoint.http + "/v1/info", headers={"Authorization": f"Bearer {read_token(bob.home)}"}
        )
        try:
            with urllib.request.urlopen(call, timeout=PATIENCE_S) as answer:
                assert json.load(answer)["user"] == "bob"
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert status() == 200
    assert [user.user for user in owner.users()] == ["bob"]
    follows = bob.events(follow=True)
    next(follows)
    owner.remove_user("bob")
    assert status() == 401
    owner.cancel(owner.run(["true"]).app)
    # What was on its way is still heard, and nothing after that.
    with pytest.raises(InputError, match="has no valid token"):
        list(follows)
    with pytest.raises(InputError, match="has no valid token"):
        bob.info()


@pytest.mark.slow
def test_no_route_but_the_public_ones_answers_without_a_token(service: Service) -> None:
    public = {name for name, route in CALLS.items() if route.rights == ANYONE}
    assert public == {"SignIn", "Health", "Ready", "OpenApi"}
    host = service.endpoint.address
    for name in CALLS.keys() - public:
        route = CALLS[name]
        for headers in ({}, {"Authorization": "Bearer nothing"}):
            with closing(http.client.HTTPConnection(host, timeout=PATIENCE_S)) as connection:
                connection.request(route.method, route.filled(dict.fromkeys(route.inside, "0")), headers=headers)
                assert connection.getresponse().status == 401, name


@pytest.mark.slow
def test_users_are_added_listed_and_log_in_by_command(
    service: Service, owner: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def themis(*words: str) -> int:
        try:
            main(list(words))
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    home = str(owner.home)
    assert themis("user", "add", "eve", "--home", home) == 0
    said = capfd.readouterr()
    token = said.out.strip()
    assert f"themis login {service.endpoint.address}" in " ".join(said.err.split())
    monkeypatch.setattr("sys.stdin", StringIO(token + "\n"))
    assert themis("login", service.endpoint.address, "--home", str(tmp_path / "eve")) == 0
    assert capfd.readouterr().out.startswith("You are eve")
    assert (tmp_path / "eve" / "token").stat().st_mode & 0o777 == 0o600
    assert themis("queue", "--home", str(tmp_path / "eve"), "-o", "json") == 0
    assert json.loads(capfd.readouterr().out) == []
    assert themis("user", "list", "--home", str(tmp_path / "eve")) == 2
    assert "only administrators may list users" in " ".join(capfd.readouterr().err.split())
    assert themis("user", "list", "--home", home, "-o", "json") == 0
    assert "eve" in [user["user"] for user in json.loads(capfd.readouterr().out)]
    assert themis("user", "remove", "evve", "--home", home) == 2
    assert "Did you mean 'eve'" in capfd.readouterr().err
    assert themis("user", "remove", "eve", "--home", home) == 0
    monkeypatch.setattr("sys.stdin", StringIO(token + "\n"))
    assert themis("login", service.endpoint.address, "--home", str(tmp_path / "eve2")) == 2
    assert not (tmp_path / "eve2").exists()
    monkeypatch.setattr("sys.stdin", StringIO("\n"))
    assert themis("login", service.endpoint.address, "--home", home) == 2
