"""Pages that are open while the service restarts, the console over TLS, and every action with the keyboard alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chromium import Seen, chromium, page_of
from daemon import QUICK, Daemon, daemon

from themis.client.home import read_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.long]
SETTINGS = (*QUICK, *(["single_trust=true"] if os.geteuid() == 0 else []))
FOCUS = """() => {
  const e = document.activeElement, s = getComputedStyle(e);
  if (e === document.body) return null;
  return [e.tagName, e.name ?? "", e.textContent.trim().slice(0, 40), e.getAttribute("href") ?? "", s.outlineStyle];
}"""


@dataclass
class World:
    service: Daemon
    browser: Any

    @property
    def base(self) -> str:
        return read_endpoint(self.service.home).http

    @property
    def token(self) -> str:
        return (self.service.home / "token").read_text().strip()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[World]:
    home = tmp_path_factory.mktemp("restarts") / "home"
    with daemon(home, settings=SETTINGS) as service:
        with service.client() as client:
            client.run(["sleep", "300"], gpus=2, hours=1.0, name="trains", user="ann")
            client.add_user("bob")
        yield World(service, browser)


def focused(seen: Seen, most: int = 80) -> list[list[str]]:
    """What Tab reaches from the beginning of the page, in order, until it leaves the page."""
    seen.page.evaluate("document.activeElement.blur()")
    found: list[list[str]] = []
    for _ in range(most):
        seen.page.keyboard.press("Tab")
        at = seen.page.evaluate(FOCUS)
        if at is None or (found and at == found[0]):
            break
        found.append(at)
    return found


PAGES = (
    "/now",
    "/apps",
    "/apps/0",
    "/users",
    "/fairness",
    "/what-if",
    "/admin",
    "/admin/users",
    "/admin/settings",
    "/admin/journal",
)


def test_tab_reaches_each_control_and_the_focus_is_seen(world: World) -> None:
    with page_of(world.browser, world.base) as seen:
        seen.enter(world.token)
        for path in PAGES:
            seen.go(f"/console{path}")
            seen.page.wait_for_timeout(500)
            count = seen.page.evaluate(
                """() => [...document.querySelectorAll("main a, main button, main input, main select, main summary")]
                  .filter(e => e.offsetParent !== null && !e.disabled && e.type !== "hidden").length"""
            )
            reached = focused(seen, count + 40)
            inside = [at for at in reached if at[0] in ("A", "BUTTON", "INPUT", "SELECT", "SUMMARY")]
            assert {at[4] for at in reached} <= {"solid", "auto"}, path
            assert reached[0][2] == "Skip to the content", path
            assert len(inside) >= count, path
        seen.check()


def test_the_keyboard_alone_sets_a_setting_drains_a_machine_and_asks_what_if(world: World) -> None:
    with page_of(world.browser, world.base) as seen:
        page = seen.page
        page.on("dialog", lambda dialog: dialog.accept())
        seen.enter(world.token)

        def tab_to(wanted: str) -> None:
            for _ in range(90):
                page.keyboard.press("Tab")
                at = page.evaluate(FOCUS)
                if at is not None and wanted in (at[1], at[2]):
                    return
            raise AssertionError(f"Tab never reaches {wanted!r}")

        seen.go("/console/admin/settings")
        tab_to("name")
        page.keyboard.type("lease")
        tab_to("value")
        page.keyboard.type("4s")
        tab_to("Change")
        page.keyboard.press("Enter")
        page.wait_for_selector(".done >> text=-> 4s")
        seen.go("/console/admin")
        tab_to("Drain")
        page.keyboard.press("Space")
        page.wait_for_url("**done=drained")
        tab_to("Return to service")
        page.keyboard.press("Enter")
        page.wait_for_url("**done=undrained")
        seen.go("/console/what-if")
        tab_to("policies")
        page.keyboard.press("Control+a")
        page.keyboard.type("drf")
        tab_to("arrivals")
        page.keyboard.press("Space")
        tab_to("Simulate")
        page.keyboard.press("Enter")
        page.wait_for_selector("#result section")
        seen.check()


def test_a_user_has_one_colour_on_all_pages(world: World) -> None:
    with world.service.client() as client:
        for name in ("bob", "carol", "dave", "erin"):
            client.run(["sleep", "300"], gpus=2, hours=1.0, name=f"of-{name}", user=name)
    with page_of(world.browser, world.base) as seen:
        seen.enter(world.token)
        found: dict[str, set[str]] = {}
        for path in ("/now", "/apps", "/apps/0", "/apps/1", "/users", "/fairness"):
            seen.go(f"/console{path}")
            pairs = seen.page.evaluate(
                """() => [...document.querySelectorAll("main .user")]
                  .map(e => [e.textContent.trim(), getComputedStyle(e.querySelector("svg")).fill])"""
            )
            assert pairs
            for user, colour in pairs:
                found.setdefault(user, set()).add(colour)
        assert {"ann", "bob", "carol", "dave", "erin"} <= set(found)
        assert all(len(colours) == 1 for colours in found.values())
        assert len({next(iter(colours)) for colours in found.values()}) == len(found)


def test_open_pages_say_that_the_service_is_away_and_lead_to_sign_in_when_it_is_back(world: World) -> None:
    port = world.base.rpartition(":")[2]
    with page_of(world.browser, world.base) as now, page_of(world.browser, world.base) as form:
        for seen in (now, form):
            seen.sign_in(world.token)
        now.page.wait_for_selector("#running >> text=trains")
        form.go("/console/admin/settings")
        form.page.fill("input[name=name]", "lease")
        form.page.fill("form.filter input[name=value]", "5s")
        world.service.kill()
        now.page.wait_for_selector(".stale >> text=Not live")
        world.service.options = (*world.service.options, "--port", port)
        world.service.up()
        now.page.wait_for_url("**/console/sign-in?after=*")
        now.page.fill("#token", world.token)
        now.page.keyboard.press("Enter")
        now.page.wait_for_url("**/console/now")
        now.page.wait_for_selector("#running >> text=trains")
        form.page.click("button:has-text('Change')")
        assert "was not sent" in form.page.inner_text("main")
        form.page.click("main a")
        form.page.fill("#token", world.token)
        form.page.keyboard.press("Enter")
        form.page.wait_for_url("**/console/admin/settings")
        assert now.foreign == form.foreign == []
    with world.service.client() as client:
        assert {row.name: row.value for row in client.settings()}["lease"] != "5s"


def test_over_tls_the_cookie_is_for_tls_alone_and_now_is_live(tmp_path: Path, browser: Any) -> None:
    with daemon(tmp_path / "home", settings=(*SETTINGS, "tls=on")) as service:
        base, token = read_endpoint(service.home).http, (service.home / "token").read_text().strip()
        assert base.startswith("https://")
        with page_of(browser, base, ignore_https_errors=True) as seen:
            seen.sign_in(token)
            (cookie,) = seen.page.context.cookies()
            assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
            with service.client() as client:
                client.run(["sleep", "60"], gpus=1, hours=0.1, name="over-tls")
            seen.page.wait_for_selector("#running >> text=over-tls")
            seen.go("/console/apps/0")
            seen.page.click("text=Hold")
            seen.page.wait_for_selector(".done >> text=Held")
            seen.check()
