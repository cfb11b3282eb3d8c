"""Sign-in with a provider that answers over HTTP: what is believed of its tokens, and what a thief or a liar may try."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from joserfc import jwt
from oidcprovider import CLIENT, SECRET, SmallProvider, ec, rsa, small_provider

from themis.schema import messages as schema
from themis.service.api import oidc as doors
from themis.service.api.access import Access, Caller, hash_of
from themis.service.api.audit import Audit
from themis.service.api.oidc import Done, Oidc
from themis.service.api.sign_ins import MOST_OF_USER, SignIns
from themis.service.api.submission import Limit
from themis.trust.oidc import provider as providers
from themis.trust.oidc.asking import ProviderDown
from themis.trust.oidc.provider import Provider
from themis.trust.oidc.provider_settings import OidcSettings
from themis.trust.oidc.tokens import Identity, SignInRefused

HERE = "https://themis.example.org/console/sign-in/oidc/done"
FROM = "10.1.2.3"


@pytest.fixture(scope="module")
def running() -> Iterator[SmallProvider]:
    with small_provider() as found:
        yield found


@pytest.fixture
def lab(running: SmallProvider) -> SmallProvider:
    running.users = {"ann": {"groups": ["staff", "vision"]}, "eve": {"groups": []}, "boss": {"groups": ["chiefs"]}}
    running.keys, running.forge, running.changed = running.keys[:1], None, {}
    running.asked.clear()
    return running


class Door:
    """Sign-ins of a data directory, and a browser that keeps what it is given."""

    def __init__(self, home: Path, lab: SmallProvider, **settings: Any) -> None:
        given = {"client_secret": SECRET, "admins": ("chiefs",), **settings}
        self.settings = OidcSettings(issuer=lab.issuer, client_id=CLIENT, **given)
        self.home, self.lab, self.placed = home, lab, list[Identity]()
        self.now = time.time()
        self.sign_ins = SignIns(home, lab.issuer, self.settings.session_s, lambda: self.now)
        self.access = Access(home, "the owner's", "owner")
        self.access.signed_in = self.sign_ins
        self.audit = Audit(home)
        self.oidc = Oidc(Provider(self.settings), self.sign_ins, "owner", self.audit, self.placed.append)

    def browse(self, user: str) -> tuple[str, dict[str, str]]:
        """Until the browser comes back: what it kept, and its query."""
        url, kept = self.oidc.begin_console(HERE, "/apps/3", FROM)
        back = self.lab.agree(dict(parse_qsl(urlsplit(url).query)), user)
        return kept, dict(parse_qsl(urlsplit(back).query))

    def sign_in(self, user: str) -> Done:
        return self.oidc.end_console(*self.browse(user), FROM)

    def on_device(self, user: str) -> schema.SignInReply:
        begun = self.oidc.call(schema.SignInRequest(), FROM)
        waiting = self.oidc.call(schema.SignInRequest(handle=begun.handle), FROM)
        assert waiting.token == ""
        self.lab.allow(begun.code, user)
        return self.oidc.call(schema.SignInRequest(handle=waiting.handle), FROM)

    def who(self, token: str) -> Caller | None:
        return self.access.caller(f"Bearer {token}")


@pytest.fixture
def door(tmp_path: Path, lab: SmallProvider) -> Door:
    return Door(tmp_path, lab)


def test_a_browser_signs_in_and_its_groups_say_what_it_may(door: Door) -> None:
    done = door.sign_in("ann")
    assert (done.user, done.after) == ("ann", "/apps/3")
    assert door.who(done.token) == Caller(user="ann", admin=False)
    assert door.who(door.sign_in("boss").token) == Caller(user="boss", admin=True)
    assert door.placed[0].groups == ("staff", "vision")
    entries = door.audit.read()
    assert [(e.user, e.method, e.address, e.action, e.outcome) for e in entries] == [
        ("boss", "oidc", FROM, "SignIn", "ok"),
        ("ann", "oidc", FROM, "SignIn", "ok"),
    ]


def test_the_address_of_the_provider_carries_state_nonce_and_challenge_but_no_secret(door: Door) -> None:
    url, kept = door.oidc.begin_console(HERE, "", FROM)
    query = parse_qs(urlsplit(url).query)
    assert set(query) == {
        "response_type",
        "client_id",
        "redirect_uri",
        "scope",
        "state",
        "nonce",
        "code_challenge",
        "code_challenge_method",
    }
    assert query["state"][0] not in kept
    assert SECRET not in url


def test_a_command_line_signs_in_with_a_code_on_another_device(door: Door) -> None:
    reply = door.on_device("ann")
    assert reply.user == "ann"
    assert door.who(reply.token) == Caller(user="ann", admin=False)
    assert reply.ends == pytest.approx(door.now + 12 * 3600, abs=5)


def test_a_user_who_declines_gets_no_token(door: Door) -> None:
    begun = door.oidc.call(schema.SignInRequest(), FROM)
    door.lab.allow(begun.code, "")
    with pytest.raises(SignInRefused, match="declined"):
        door.oidc.call(schema.SignInRequest(handle=begun.handle), FROM)


def test_a_handle_of_another_service_is_refused(door: Door, tmp_path: Path, lab: SmallProvider) -> None:
    (tmp_path / "other").mkdir()
    begun = Door(tmp_path / "other", lab).oidc.call(schema.SignInRequest(), FROM)
    for handle in (begun.handle, begun.handle[:-2] + "AA", "x", "é"):
        with pytest.raises(SignInRefused, match="not known"):
            door.oidc.call(schema.SignInRequest(handle=handle), FROM)


# ---- tokens that are not believed --------------------------------------------------------------------------------------


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def none(lab: SmallProvider, claims: dict[str, Any]) -> str:
    return f"{packed(json.dumps({'alg': 'none'}).encode())}.{packed(json.dumps(claims).encode())}."


def hmac_with_the_public_key(lab: SmallProvider, claims: dict[str, Any]) -> str:
    key = lab.keys[-1]
    text = f"{packed(json.dumps({'alg': 'HS256', 'kid': key.kid}).encode())}.{packed(json.dumps(claims).encode())}"
    return f"{text}.{packed(hmac.digest(key.as_pem(private=False), text.encode(), 'sha256'))}"


def another_key_of_the_same_name(lab: SmallProvider, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": "k1"}, claims, rsa("k1"))


def a_key_in_the_header(lab: SmallProvider, claims: dict[str, Any]) -> str:
    key = rsa("mine")
    header = {"alg": "RS256", "kid": "mine", "jwk": key.as_dict(private=False)}
    return jwt.encode(header, claims, key)


def changed_after_the_signature(lab: SmallProvider, claims: dict[str, Any]) -> str:
    head, _, signature = jwt.encode({"alg": "RS256", "kid": "k1"}, claims, lab.keys[-1]).split(".")
    return f"{head}.{packed(json.dumps({**claims, 'sub': 'id of boss'}).encode())}.{signature}"


def no_text(lab: SmallProvider, claims: dict[str, Any]) -> Any:
    return {"id": "token"}


FORGERIES = {
    none: "'none'",
    hmac_with_the_public_key: "'HS256'",
    another_key_of_the_same_name: "signature is not valid",
    a_key_in_the_header: "does not publish",
    changed_after_the_signature: "signature is not valid",
    no_text: "no ID token",
}


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forged_token_is_refused(door: Door, forge: Any) -> None:
    door.lab.forge = forge
    with pytest.raises(SignInRefused, match=FORGERIES[forge]):
        door.sign_in("ann")
    assert door.sign_ins.newest() == {}
    assert door.audit.read()[0].outcome == "refused"


NOW = int(time.time())
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"aud": "another"}, "another client"),
    ({"aud": [CLIENT, "another"]}, "another client"),
    ({"aud": [CLIENT, "another"], "azp": "another"}, "another client"),
    ({"aud": None}, "another client"),
    ({"iss": "https://evil.example.org"}, "issuer"),
    ({"iss": None}, "issuer"),
    ({"exp": NOW - 120}, "expired"),
    ({"exp": None}, "exp is"),
    ({"exp": "tomorrow"}, "exp is"),
    ({"iat": NOW + 86400}, "not valid yet"),
    ({"nbf": NOW + 86400}, "not valid yet"),
    ({"nonce": None}, "nonce"),
    ({"nonce": "of another sign-in"}, "nonce"),
    ({"nonce": 7}, "nonce"),
    ({"sub": None}, "no subject"),
    ({"sub": ["ann"]}, "no subject"),
    ({"preferred_username": None}, "no claim"),
    ({"preferred_username": None, "email": "ann@example.org"}, "not verified"),
    ({"preferred_username": "ann@example.org"}, "your name at the provider"),
    ({"preferred_username": "../ann"}, "your name at the provider"),
    ({"preferred_username": ["ann"]}, "no claim"),
    ({"preferred_username": "owner"}, "service's owner"),
]


@pytest.mark.parametrize(("changed", "says"), WRONG, ids=[f"{n} {says}" for n, (_, says) in enumerate(WRONG)])
def test_a_token_whose_claims_are_wrong_is_refused(door: Door, changed: dict[str, Any], says: str) -> None:
    door.lab.changed = changed
    with pytest.raises(SignInRefused, match=says):
        door.sign_in("ann")
    assert door.sign_ins.newest() == {}


def test_clocks_may_differ_by_less_than_the_leeway(door: Door) -> None:
    door.lab.changed = {"exp": int(time.time()) - 30, "iat": int(time.time()) + 30}
    assert door.sign_in("ann").user == "ann"


# ---- flows that are not this browser's ----------------------------------------------------------------------------------


def test_an_answer_for_another_browser_is_refused(door: Door) -> None:
    (mine, my_query), (theirs, their_query) = door.browse("ann"), door.browse("eve")
    for kept, query in ((mine, their_query), (theirs, my_query), ("", my_query), (mine, {**my_query, "state": ""})):
        with pytest.raises(SignInRefused, match="not begun in this browser"):
            door.oidc.end_console(kept, query, FROM)
    assert "authorization_code" not in door.lab.asked
    assert door.oidc.end_console(mine, my_query, FROM).user == "ann"


def test_a_browser_that_comes_back_twice_signs_in_once(door: Door) -> None:
    kept, query = door.browse("ann")
    door.oidc.end_console(kept, query, FROM)
    with pytest.raises(SignInRefused, match="is done"):
        door.oidc.end_console(kept, query, FROM)


def test_a_code_of_another_sign_in_is_refused_by_its_challenge_and_nonce(door: Door) -> None:
    kept, mine = door.browse("eve")
    _, stolen = door.browse("boss")
    with pytest.raises(SignInRefused, match="refuses the sign-in"):
        door.oidc.end_console(kept, {**mine, "code": stolen["code"]}, FROM)


def test_an_answer_that_comes_late_is_refused(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, query = door.browse("ann")
    monkeypatch.setattr(doors, "FLOW_S", -1.0)
    with pytest.raises(SignInRefused, match="took too long"):
        door.oidc.end_console(kept, query, FROM)


def test_an_answer_of_another_provider_is_refused_by_its_issuer(door: Door) -> None:
    kept, query = door.browse("ann")
    with pytest.raises(SignInRefused, match="not from the provider"):
        door.oidc.end_console(kept, {**query, "iss": "https://evil.example.org"}, FROM)


def test_one_address_cannot_ask_without_end(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "MOST_OF_ADDRESS", 3)
    for _ in range(3):
        door.oidc.begin_console(HERE, "", FROM)
    with pytest.raises(Limit):
        door.oidc.begin_console(HERE, "", FROM)
    door.oidc.begin_console(HERE, "", "10.9.9.9")


# ---- keys and the provider ------------------------------------------------------------------------------------------------


def test_a_new_key_is_fetched_when_a_token_names_it_and_an_old_one_ends(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "AGAIN_S", 0.0)
    door.sign_in("ann")
    door.sign_in("ann")
    assert door.lab.asked.count("keys") == 1
    old = door.lab.keys[0]
    door.lab.keys.append(ec("k2"))
    door.sign_in("ann")
    assert door.lab.asked.count("keys") == 2
    del door.lab.keys[0]
    door.lab.forge = lambda lab, claims: jwt.encode({"alg": "RS256", "kid": "k9"}, claims, old)
    with pytest.raises(SignInRefused, match="does not publish"):
        door.sign_in("ann")
    # With the set that was fetched then, the key that was taken back is no longer one.
    door.lab.forge = lambda lab, claims: jwt.encode({"alg": "RS256", "kid": "k1"}, claims, old)
    with pytest.raises(SignInRefused, match="does not publish"):
        door.sign_in("ann")
    door.lab.keys[:] = [old]


def test_tokens_with_unknown_keys_cause_no_flood_of_requests(door: Door) -> None:
    door.lab.forge = a_key_in_the_header
    for _ in range(5):
        with pytest.raises(SignInRefused):
            door.sign_in("ann")
    assert door.lab.asked.count("keys") == 1


def test_a_provider_that_is_down_is_named_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "AGAIN_S", 0.0)
    with small_provider() as lab:
        port, issuer = lab.port, lab.issuer
    door = Door(tmp_path, lab)
    with pytest.raises(ProviderDown, match=r"does not answer at http://127.0.0.1:\d+/realms/lab"):
        door.sign_in("ann")
    with small_provider(port=port) as again:
        assert again.issuer == issuer
        again.users = {"ann": {}}
        door.lab = again
        done = door.sign_in("ann")
        kept, query = door.browse("ann")
    # Who is signed in stays so; who signs in must wait.
    with pytest.raises(ProviderDown):
        door.oidc.end_console(kept, query, FROM)
    assert door.who(done.token) is not None


def test_a_description_of_another_issuer_is_refused(tmp_path: Path, lab: SmallProvider) -> None:
    settings = OidcSettings(issuer=lab.issuer + "/", client_id=CLIENT)
    with pytest.raises(ProviderDown, match=r"correct oidc\.issuer"):
        Provider(settings).description()


def test_a_wrong_secret_is_said(tmp_path: Path, lab: SmallProvider) -> None:
    door = Door(tmp_path, lab, client_secret="wrong")
    with pytest.raises(SignInRefused, match="invalid_client"):
        door.sign_in("ann")


# ---- names, groups, ends --------------------------------------------------------------------------------------------------


def test_only_groups_that_are_allowed_sign_in(tmp_path: Path, lab: SmallProvider) -> None:
    door = Door(tmp_path, lab, allow=("staff",))
    assert door.sign_in("ann").user == "ann"
    with pytest.raises(SignInRefused, match="none of the groups"):
        door.sign_in("eve")


def test_a_domain_is_taken_off_names_and_others_are_refused(tmp_path: Path, lab: SmallProvider) -> None:
    door = Door(tmp_path, lab, domain="example.org", users="email")
    lab.changed = {"email": "ann@Example.org", "email_verified": True}
    assert door.sign_in("ann").user == "ann"
    for email in ("ann@example.com", "ann", "ann@evil.org@example.org"):
        lab.changed = {"email": email, "email_verified": True}
        with pytest.raises(SignInRefused, match="not of the domain"):
            door.sign_in("ann")


def test_a_name_stays_with_the_account_that_had_it_first(door: Door) -> None:
    first = door.sign_in("ann")
    door.lab.changed = {"preferred_username": "ann"}
    with pytest.raises(SignInRefused, match="belongs to another account"):
        door.sign_in("eve")
    assert door.sign_ins.remove("ann") is not None
    assert door.who(first.token) is None
    assert door.sign_in("eve").user == "ann"


def test_a_sign_in_ends_and_is_renewed_only_while_the_provider_knows_the_user(door: Door) -> None:
    reply = door.on_device("ann")
    door.now += door.settings.session_s + 1
    assert door.who(reply.token) is None
    door.lab.users["ann"]["groups"] = ["chiefs"]
    renewed = door.oidc.call(schema.SignInRequest(token=reply.token), FROM)
    assert door.who(renewed.token) == Caller(user="ann", admin=True)
    with pytest.raises(SignInRefused, match="cannot be renewed"):
        door.oidc.call(schema.SignInRequest(token=reply.token), FROM)
    del door.lab.users["ann"]
    with pytest.raises(SignInRefused, match="invalid_grant"):
        door.oidc.call(schema.SignInRequest(token=renewed.token), FROM)
    door.now += door.settings.session_s + 1
    assert door.who(renewed.token) is None


def test_the_token_of_a_browser_and_an_unknown_one_are_not_renewed(door: Door) -> None:
    for token in (door.sign_in("ann").token, "x"):
        with pytest.raises(SignInRefused, match="cannot be renewed"):
            door.oidc.call(schema.SignInRequest(token=token), FROM)


def test_sign_ins_outlive_a_restart_but_neither_another_issuer_nor_its_removal(door: Door) -> None:
    token = door.on_device("ann").token
    assert SignIns(door.home, door.lab.issuer, 60.0).holder(hash_of(token)) == Caller(user="ann", admin=False)
    assert SignIns(door.home, "https://other.example.org", 60.0).holder(hash_of(token)) is None
    assert Access(door.home, "the owner's", "owner").caller(f"Bearer {token}") is None


def test_a_reader_of_the_file_finds_neither_tokens_nor_refresh_tokens(door: Door) -> None:
    token = door.on_device("ann").token
    path = door.home / "sign-ins.json"
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert token not in text
    assert not any(refresh in text for refresh in door.lab.refresh)


def test_a_user_has_so_many_sign_ins_and_the_oldest_ends(door: Door) -> None:
    who = Identity(issuer=door.lab.issuer, subject="id of ann", user="ann", groups=(), admin=False)
    tokens = []
    for _ in range(MOST_OF_USER + 2):
        door.now += 1
        tokens.append(door.sign_ins.begin(who)[0])
    assert [door.who(token) is None for token in tokens] == [True] * 2 + [False] * MOST_OF_USER
    other = door.sign_ins.begin(replace(who, user="bob", subject="id of bob"))[0]
    assert door.who(other) is not None
    assert door.who(tokens[-1]) is not None
