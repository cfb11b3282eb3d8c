"""Odd parameters, floods and expired sessions against the console, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from fake import request
from test_console_attacks import TOKEN, Site
from test_console_attacks import site as site

from themis.service.api.access import Access
from themis.service.api.submission import Limit, submit
from themis.service.web.live import FOLLOWERS_OF_USER
from themis.service.web.routes import ROUTES
from themis.service.web.sessions import MOST_OF_TOKEN, MOST_SESSIONS, OVERLAP_S, ROTATE_S, WRONG_OF_ALL, Sessions

ODD = (
    "",
    "0",
    "-1",
    "1e400",
    "NaN",
    "inf",
    "9" * 400,
    "%00",
    "%ff%fe",
    "..",
    "%2e%2e%2f",
    "%E2%80%AE",
    "a" * 3000,
    "<b>",
)
WRITES = [route for route in ROUTES if route.method == "POST"]


def enter(site: Site, name: str) -> None:
    """Submit an app."""
    api = site.console.api
    api.arbiter.ask(lambda: submit(api.arbiter, request(name), api.access.owner))


# ---- every write route, also those that come later -------------------------------------------------------------------


@pytest.mark.parametrize("route", WRITES, ids=lambda route: route.path)
def test_no_route_writes_for_a_foreign_page_or_without_its_token(site: Site, route: object) -> None:
    path = "/console" + route.path.replace("{app}", "0").replace("{change}", "cancel")  # type: ignore[attr-defined]
    cookie = site.sign_in()
    before = site.console.api.last_record()
    csrf = site.csrf(cookie)
    tried = [
        site.ask("POST", path, {"a": "b"}, Cookie=cookie),
        site.ask("POST", path, {"csrf": csrf[:-1]}, Cookie=cookie),
        site.ask("POST", path, {"csrf": csrf}, Cookie=cookie, Origin="https://evil.example"),
        site.ask("POST", path, {"csrf": csrf}, Cookie=cookie, Origin=f"http://127.0.0.1:{site.port + 1}"),
        site.ask("POST", path, {"csrf": csrf}, Cookie=cookie, Sec_Fetch_Site="same-site"),
        site.ask("POST", f"{path}?{urlencode({'csrf': csrf})}", {"a": "b"}, Cookie=cookie),
    ]
    assert [answer.status for answer in tried] == [403] * len(tried)
    assert site.ask("POST", path, {"csrf": csrf}).status == 401
    assert site.console.api.last_record() == before


@pytest.mark.parametrize("route", [route for route in ROUTES if route.admin], ids=lambda r: f"{r.method} {r.path}")
def test_no_page_of_administrators_is_for_others(site: Site, route: object) -> None:
    cookie = site.sign_in(site.console.api.access.add("carol", admin=False))
    form = {"csrf": site.csrf(cookie), "node": "m000", "user": "carol", "admin": "1", "name": "lease", "value": "1s"}
    method = route.method  # type: ignore[attr-defined]
    answer = site.ask(
        method,
        "/console" + route.path,
        form if method == "POST" else None,
        Cookie=cookie,  # type: ignore[attr-defined]
    )
    assert answer.status == 403
    assert "only administrators" in answer.text


# ---- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [r for r in ROUTES if r.method == "GET" and r.stream is None], ids=lambda r: r.path)
def test_odd_parameters_are_answered_without_a_fault(site: Site, route: object) -> None:
    cookie = site.sign_in()
    enter(site, "one")
    path = "/console" + route.path  # type: ignore[attr-defined]
    names = ("user", "show", "days", "done", "job", "rank", "after")
    asked = [(path.replace("{app}", "0"), value) for value in (ODD if not path.endswith("/why") else ())]
    asked += [(path.replace("{app}", value), "") for value in ODD if "{app}" in path]
    for place, value in asked:
        answer = site.ask("GET", f"{place}?{'&'.join(f'{name}={value}' for name in names)}", Cookie=cookie)
        assert answer.status in (200, 400, 403, 404), (place, value, answer.status, answer.text[-400:])
        assert "a bug in Themis" not in answer.text


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("policies", "fair_finsh", "Did you mean &#39;fair_finish&#39;?"),
        ("policies", ",,,", ""),
        ("policies", "drf(", "drf"),
        ("add", "-8", "-8"),
        ("add", "0", "0"),
        ("add", "1000000000", "1000000000"),
        ("add", "9" * 300, ""),
        ("add", "NaN", "NaN"),
        ("add", "8@h2o", "h2o"),
        ("add", "1.5", "1.5"),
        ("add", ",".join(["1"] * 500), ""),
        ("remove", "-1", "-1"),
        ("remove", "1000000000", ""),
        ("remove", "no-such-machine", "no-such-machine"),
        ("without", "no-such-app", "no-such-app"),
        ("without", "-1", "-1"),
        ("horizon", "NaN", "NaN"),
        ("horizon", "1000000d", "1000000d"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_sentence(site: Site, field: str, value: str, words: str) -> None:
    cookie = site.sign_in()
    enter(site, "one")
    form = {"csrf": site.csrf(cookie), "policies": "drf", "horizon": "6h", field: value}
    answer = site.ask("POST", "/console/what-if", form, Cookie=cookie)
    assert answer.status in (400, 404), (answer.status, answer.text[-300:])
    assert words in answer.text
    assert "a bug in Themis" not in answer.text


# ---- sessions and streams ----------------------------------------------------------------------------------------------


def test_a_user_who_signs_in_again_and_again_ends_sessions_of_nobody_else(tmp_path: Path) -> None:
    now = [0.0]
    access = Access(tmp_path, TOKEN, "owner")
    token = access.add("carol", admin=False)
    sessions = Sessions(access, lambda: now[0])
    owners = sessions.sign_in(TOKEN, "here")
    assert owners is not None
    for _ in range(MOST_SESSIONS + 50):
        now[0] += 0.001
        newest = sessions.sign_in(token, "there")
    assert newest is not None
    assert sessions.find(newest) is not None
    assert sessions.find(owners) is not None
    assert len(sessions._by_key) == MOST_OF_TOKEN + 1


def test_a_cookie_whose_successor_was_lost_on_its_way_goes_on(tmp_path: Path) -> None:
    now = [0.0]
    sessions = Sessions(Access(tmp_path, TOKEN, "owner"), lambda: now[0])
    old = sessions.sign_in(TOKEN, "here")
    assert old is not None
    found = sessions.find(old)
    assert found is not None
    now[0] += ROTATE_S
    lost = sessions.rotate(found[0])  # the browser left the page before the answer came
    now[0] += 10 * OVERLAP_S
    assert sessions.find(old) is not None
    now[0] += ROTATE_S
    new = sessions.rotate(found[0])
    assert new not in (None, old, lost)
    assert new is not None
    assert sessions.find(new) is not None
    now[0] += OVERLAP_S + 1
    assert lost is not None
    assert sessions.find(old) is sessions.find(lost) is None


def test_a_user_follows_in_so_many_windows_and_others_still_follow(site: Site) -> None:
    live, access = site.console.live, site.console.api.access
    access.add("carol", admin=False)
    access.add("dora", admin=False)
    carol, dora = (_caller(site, name) for name in ("carol", "dora"))

    async def flood() -> tuple[list[bytes], bytes, bytes]:
        streams = [live.follow(carol, lambda: True) for _ in range(FOLLOWERS_OF_USER)]
        first = [await anext(stream) for stream in streams]
        more = await anext(live.follow(carol, lambda: True))
        other = await anext(live.follow(dora, lambda: True))
        for stream in streams:
            await _close(stream)
        again = await anext(live.follow(carol, lambda: True))
        return [*first, other], more, again

    served, refused, again = asyncio.run(flood())
    assert {*served, again} == {b"retry: 2000\n\n"}
    assert refused.startswith(b"event: full")
    assert b"close one of its windows" in refused


def _caller(site: Site, name: str) -> object:
    token = site.console.api.access.add(name, admin=False)
    found = site.console.api.access.caller(f"Bearer {token}")
    assert found is not None
    return found


async def _close(stream: AsyncIterator[bytes]) -> None:
    await stream.aclose()  # type: ignore[attr-defined]


def test_a_form_sent_after_the_session_ended_says_so_and_leads_back_to_its_page(site: Site) -> None:
    cookie = site.sign_in()
    csrf = site.csrf(cookie)
    site.console.sessions._by_key.clear()  # as a restart does
    page = f"http://127.0.0.1:{site.port}/console/admin/settings"
    form = {"csrf": csrf, "name": "lease", "value": "9s"}
    answer = site.ask("POST", "/console/admin/settings", form, Cookie=cookie, Referer=page)
    assert answer.status == 401
    assert "was not sent" in answer.text
    assert 'href="/console/sign-in?after=/admin/settings"' in answer.text
    for elsewhere in ("https://evil.example/x", "http://[", "javascript:alert(1)"):
        text = site.ask("POST", "/console/admin/settings", form, Cookie=cookie, Referer=elsewhere).text
        assert 'href="/console/sign-in?after="' in text


def test_files_of_another_version_are_not_kept_by_browsers(site: Site) -> None:
    url = site.console.static.url("look.css")
    assert "immutable" in site.ask("GET", url).headers["cache-control"]
    old = url.replace(url.split("/")[3], "0" * 12)
    assert site.ask("GET", old).headers["cache-control"] == "no-store"


def test_sign_in_from_many_addresses_with_wrong_tokens_leaves_sessions_alone(tmp_path: Path) -> None:
    sessions = Sessions(Access(tmp_path, TOKEN, "owner"), lambda: 0.0)
    mine = sessions.sign_in(TOKEN, "here")
    assert mine is not None
    for n in range(WRONG_OF_ALL):
        assert sessions.sign_in(f"wrong-{n}", f"address-{n}") is None
    with pytest.raises(Limit, match="Too many wrong tokens"):
        sessions.sign_in("wrong", "another-address")
    assert sessions.find(mine) is not None


@pytest.fixture
def many(site: Site) -> Site:
    for n in range(500):
        enter(site, f"app-{n}")
    return site


def test_pages_of_500_apps_are_whole_and_bounded(many: Site) -> None:
    cookie = many.sign_in()
    for path in ("/now", "/apps", "/users", "/fairness", "/what-if", "/apps/499", "/admin"):
        answer = many.ask("GET", f"/console{path}", Cookie=cookie)
        assert answer.status == 200, path
        assert len(answer.text) < 400_000, path
    text = many.ask("GET", "/console/apps", Cookie=cookie).text
    assert "The newest 200" in text
