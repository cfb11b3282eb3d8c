"""Sign-in to the console with an OIDC provider of another site, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from chromium import Seen, chromium, page_of
from daemon import QUICK, Daemon, daemon
from oidcprovider import SmallProvider, small_provider

from themis.client.home import read_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.long]


@dataclass
class World:
    service: Daemon
    lab: SmallProvider
    browser: Any
    base: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("oidc-console") / "home"
    home.mkdir()
    # To a browser localhost is another site than 127.0.0.1, so that cookies behave as between two hosts.
    with small_provider("localhost") as lab, chromium() as browser:
        lab.users = {"ann": {}, "boss": {"groups": ["chiefs"]}}
        (home / "config.yaml").write_text(
            f"oidc: {{issuer: '{lab.issuer}', client_id: themis, client_secret: s3cret & more, admins: [chiefs]}}\n"
        )
        options = ("--machines", "1x2", "--set", "single_trust=true", "--config", str(home / "config.yaml"))
        with daemon(home, options=options, settings=QUICK) as service:
            yield World(service, lab, browser, read_endpoint(home).http)


@pytest.fixture
def seen(world: World) -> Iterator[Seen]:
    with page_of(world.browser, world.base) as found:
        yield found
        assert found.errors == []
        assert all(url.startswith((world.lab.issuer, f"http://localhost:{world.lab.port}/")) for url in found.foreign)


def sign_in(seen: Seen, user: str, path: str = "/") -> None:
    seen.go(path)
    seen.page.click("#oidc")
    seen.page.fill("#user", user)
    seen.page.click("button")


def test_a_user_signs_in_at_the_provider_and_reaches_the_page_that_was_asked_for(world: World, seen: Seen) -> None:
    sign_in(seen, "ann", "/console/apps?show=finished")
    seen.page.wait_for_url("**/console/apps?show=finished")
    assert "ann" in seen.page.inner_text("header")
    cookies = {cookie["name"]: cookie for cookie in seen.page.context.cookies()}
    assert set(cookies) == {"themis_session"}
    assert cookies["themis_session"]["sameSite"] == "Strict"
    assert cookies["themis_session"]["httpOnly"]
    seen.page.reload()
    assert "ann" in seen.page.inner_text("header")
    # Its changes are recorded as its own, with the address.
    seen.page.click("text=Sign out")
    seen.page.wait_for_url("**/console/sign-in")
    with world.service.client() as client:
        entries = client.audit("ann")
        assert [(e.method, e.address, e.action, e.target) for e in entries] == [
            ("oidc", "127.0.0.1", "SignIn", "console")
        ]
        assert client.users("ann") == []


def test_an_administrator_at_the_provider_is_one_in_the_console(world: World, seen: Seen) -> None:
    sign_in(seen, "boss", "/console/admin/users")
    seen.page.wait_for_url("**/console/admin/users")
    assert "OIDC" in seen.page.inner_text("tbody")


def test_an_answer_that_was_not_begun_in_this_browser_leads_back_to_sign_in(world: World, seen: Seen) -> None:
    with page_of(world.browser, world.base) as thief:
        thief.go("/console/sign-in")
        thief.page.click("#oidc")
        thief.page.wait_for_selector("#user")
        query = dict(part.split("=", 1) for part in thief.page.url.split("?", 1)[1].split("&"))
    back = world.lab.agree({**query, "redirect_uri": f"{world.base}/console/sign-in/oidc/done"}, "boss")
    seen.go(back.removeprefix(world.base))
    assert "not begun in this browser" in seen.page.inner_text("[role=alert]")
    assert seen.page.context.cookies() == []
    # Chromium reports the status 401 of the page itself.
    assert all("401" in error for error in seen.errors)
    seen.errors.clear()


def test_a_user_whom_the_provider_does_not_know_is_refused_in_words(world: World, seen: Seen) -> None:
    sign_in(seen, "mallory")
    seen.page.wait_for_selector("[role=alert]")
    assert "not known here" in seen.page.inner_text("[role=alert]")
    seen.errors.clear()


def test_the_token_still_signs_in(world: World, seen: Seen) -> None:
    seen.sign_in((world.service.home / "token").read_text().strip())
