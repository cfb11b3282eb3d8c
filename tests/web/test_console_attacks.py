"""What a hostile page, a hostile user or a thief may try against the console, over real sockets."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
from fake import world

from processes import PATIENCE_S
from themis.service.api.access import Access
from themis.service.api.http_server import serve_http
from themis.service.api.methods import Api
from themis.service.web.console import COOKIE, Console
from themis.service.web.routes import ROUTES
from themis.service.web.sessions import LONGEST_S, OVERLAP_S, ROTATE_S, WRONG_OF_ADDRESS, Sessions

TOKEN = "the-owner's-token"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    cookies: list[str]
    text: str


@dataclass
class Site:
    port: int
    console: Console

    def ask(self, method: str, path: str, form: dict[str, str] | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, None if form is None else urlencode(form), {**(FORM if form else {}), **sent})
        answer = connection.getresponse()
        text = answer.read().decode()
        named = {name.lower(): value for name, value in answer.getheaders()}
        cookies = answer.headers.get_all("Set-Cookie") or []
        connection.close()
        return Answer(answer.status, named, cookies, text)

    def sign_in(self, token: str = TOKEN, **headers: str) -> str:
        answer = self.ask("POST", "/console/sign-in", {"token": token}, **headers)
        assert answer.status == 303, answer.text
        return answer.cookies[-1].split(";")[0]

    def csrf(self, cookie: str) -> str:
        return self.ask("GET", "/console/now", Cookie=cookie).text.split('name="csrf" value="')[1].split('"')[0]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "home").mkdir()
    with world(tmp_path / "home") as w:
        api = Api(w.arbiter, tmp_path, Access(tmp_path, TOKEN, "owner"))
        console = Console(api, ROUTES)
        server = serve_http(api, "127.0.0.1", 0, site=console)
        w.arbiter.start()
        try:
            yield Site(server.port, console)
        finally:
            api.ending.set()
            server.close()
            w.arbiter.close()


def test_without_a_session_every_page_leads_to_sign_in_and_scripts_get_401(site: Site) -> None:
    for path in ("/console/now", "/console/apps", "/console/apps/0", "/console/now/machines", "/console/now/stream"):
        answer = site.ask("GET", path)
        assert (answer.status, answer.headers["location"].split("?")[0]) == (303, "/console/sign-in")
        assert site.ask("GET", path, X_Themis="1").status == 401
    assert site.ask("POST", "/console/apps/0/cancel", {"csrf": ""}).status == 401
    assert site.ask("GET", "/").headers["location"] == "/console/now"


def test_a_bearer_token_is_no_session_and_a_cookie_is_no_bearer_token(site: Site) -> None:
    assert site.ask("GET", "/console/now", Authorization=f"Bearer {TOKEN}").status == 303
    assert site.ask("GET", "/v1/info", Cookie=site.sign_in()).status == 401


def test_the_cookie_is_for_this_site_alone_and_says_nothing_of_the_token(site: Site) -> None:
    answer = site.ask("POST", "/console/sign-in", {"token": TOKEN})
    words = [word.strip().lower() for word in answer.cookies[0].split(";")]
    assert {"httponly", "samesite=strict", "path=/console"} <= set(words)
    assert TOKEN not in answer.cookies[0]


def test_every_answer_forbids_frames_inline_scripts_and_other_hosts(site: Site) -> None:
    cookie = site.sign_in()
    style = site.ask("GET", "/console/now", Cookie=cookie).text.split('rel="stylesheet" href="')[1].split('"')[0]
    for path in ("/console/now", "/console/sign-in", "/console/none", "/console/apps/none", style):
        headers = site.ask("GET", path, Cookie=cookie).headers
        rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["form-action"] == "'self'"
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
    text = site.ask("GET", "/console/now", Cookie=cookie).text
    assert "<style" not in text
    assert " style=" not in text
    assert " on" not in {part[:3] for part in text.split('="')}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_form_of_another_page_changes_nothing_even_with_the_right_csrf_token(
    site: Site, headers: dict[str, str]
) -> None:
    cookie = site.sign_in()
    form = {"csrf": site.csrf(cookie)}
    assert site.ask("POST", "/console/apps/0/cancel", form, Cookie=cookie, **headers).status == 403
    assert site.ask("POST", "/console/sign-in", {"token": TOKEN}, **headers).status == 403
    assert site.ask("POST", "/console/apps/0/cancel", form, Cookie=cookie).status == 404  # there is no app


def test_a_form_without_this_sessions_csrf_token_changes_nothing(site: Site) -> None:
    cookie, other = site.sign_in(), site.sign_in()
    for given in (
        {},
        {"csrf": ""},
        {"csrf": "x"},
        {"csrf": site.csrf(other)},
        {"csrf": "\udcff".encode("utf-8", "replace").decode()},
    ):
        form = {"a": "b", **given}
        assert site.ask("POST", "/console/apps/0/cancel", form, Cookie=cookie).status == 403
    assert site.ask("GET", "/console/apps/0/cancel", Cookie=cookie).status == 405
    json = {"Content_Type": "application/json"}
    assert site.ask("POST", "/console/apps/0/cancel", {"csrf": site.csrf(cookie)}, Cookie=cookie, **json).status == 415


def test_a_cookie_that_was_planted_before_sign_in_never_becomes_a_session(site: Site) -> None:
    planted = f"{COOKIE}=planted-by-somebody"
    got = site.sign_in(Cookie=planted)
    assert got != planted
    assert site.ask("GET", "/console/now", Cookie=planted).status == 303
    again = site.sign_in(Cookie=got)  # a second sign-in ends the first session
    assert again != got
    assert site.ask("GET", "/console/now", Cookie=got).status == 303
    assert site.ask("GET", "/console/now", Cookie=again).status == 200


def test_after_sign_out_and_after_the_token_is_revoked_the_cookie_opens_nothing(site: Site) -> None:
    cookie = site.sign_in()
    assert site.ask("POST", "/console/sign-out", {"csrf": site.csrf(cookie)}, Cookie=cookie).status == 303
    assert site.ask("GET", "/console/now", Cookie=cookie).status == 303
    access = site.console.api.access
    cookie = site.sign_in(access.add("carol", admin=False))
    assert site.ask("GET", "/console/now", Cookie=cookie).status == 200
    access.remove("carol")
    assert site.ask("GET", "/console/now", Cookie=cookie).status == 303


def test_sign_in_leads_nowhere_else(site: Site) -> None:
    for after in (
        "//evil.example",
        "https://evil.example",
        "\\\\evil.example",
        "/\\evil.example",
        "/now\r\nSet-Cookie: a=b",
    ):
        answer = site.ask("POST", f"/console/sign-in?{urlencode({'after': after})}", {"token": TOKEN})
        assert answer.headers["location"].startswith("/console/"), after
        assert len(answer.cookies) == 1


def test_wrong_tokens_wait_and_so_does_the_right_one(site: Site) -> None:
    tried = [site.ask("POST", "/console/sign-in", {"token": f"wrong-{n}"}).status for n in range(WRONG_OF_ADDRESS + 2)]
    assert tried == [401] * WRONG_OF_ADDRESS + [429] * 2
    assert site.ask("POST", "/console/sign-in", {"token": TOKEN}).status == 429


def test_a_name_in_an_address_is_text_on_the_page_of_an_error(site: Site) -> None:
    cookie = site.sign_in()
    for path in (
        "/console/apps/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/console/%3Cb%3E",
        "/console/apps?user=%22%3E%3Cb%3E",
    ):
        text = site.ask("GET", path, Cookie=cookie).text
        assert "<script>alert" not in text
        assert "<b>" not in text.lower()
    assert "<b>" not in site.ask("GET", "/console/sign-in?after=%22%3E%3Cb%3E").text


def test_files_outside_of_the_static_folder_are_not_served(site: Site) -> None:
    for path in ("../console.py", "..%2f..%2fconsole.py", "%2e%2e/console.py", "a/SHA256SUMS", "/etc/passwd"):
        assert site.ask("GET", f"/console/static/{path}").status == 404


def test_large_and_strange_forms_are_refused(site: Site) -> None:
    assert site.ask("POST", "/console/sign-in", {"token": "x" * (1 << 19)}).status == 413
    assert site.ask("POST", "/console/sign-in", {str(n): "" for n in range(300)}).status == 400
    assert site.ask("PUT", "/console/now").status == 405


def test_a_cookie_is_replaced_after_a_while_and_the_old_one_soon_ends(tmp_path: Path) -> None:
    now = [0.0]
    sessions = Sessions(Access(tmp_path, TOKEN, "owner"), lambda: now[0])
    old = sessions.sign_in(TOKEN, "here")
    assert old is not None
    found = sessions.find(old)
    assert found is not None
    assert sessions.rotate(found[0]) is None
    now[0] += ROTATE_S
    new = sessions.rotate(found[0])
    assert new not in (None, old)
    assert sessions.find(old) is not None  # of requests that are on their way
    assert new is not None
    assert sessions.find(new) is not None
    now[0] += OVERLAP_S + 1
    assert sessions.find(old) is None
    assert sessions.find(new) is not None
    while now[0] < LONGEST_S - 3600:
        now[0] += 3600
        assert sessions.find(new) is not None
    now[0] = LONGEST_S + 1
    assert sessions.find(new) is None


def test_values_that_no_page_expects_are_refused_in_a_sentence(site: Site) -> None:
    cookie = site.sign_in()
    csrf, failed = site.csrf(cookie), []
    fields = ("job", "rank", "user", "node", "within", "change", "days", "show", "name", "value", "horizon", "remove")
    for odd in ("%FF", "%ED%A0%80", "%00", "-1", "0.5", "1e400", "9" * 30):
        for route in (route for route in ROUTES if route.answer is not None):
            path = "/console" + re.sub(r"{\w+}", odd, route.path)
            values = "&".join(f"{name}={odd}" for name in fields)
            if route.method == "GET":
                answer = site.ask("GET", f"{path}?{values}", Cookie=cookie)
            else:
                form = dict(parse_qsl(values)) | {"csrf": csrf}
                answer = site.ask("POST", path, form, Cookie=cookie)
            failed += [f"{route.method} {path}"] if answer.status >= 500 else []
    assert not failed
