"""The page What if in a real Chromium, over a real service whose jobs are real processes."""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chromium import Seen, chromium, page_of
from daemon import QUICK, Daemon, daemon

from processes import wait_until
from themis.client.home import read_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.long]
SHOTS = os.environ.get("THEMIS_SHOTS", "")


@dataclass
class World:
    service: Daemon
    browser: Any
    base: str
    token: str
    bob: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Five apps of 2 GPUs and two minutes on 4 GPUs, the last of them bob's."""
    home = tmp_path_factory.mktemp("what-if") / "home"
    settings = (*(s for s in QUICK if not s.startswith("lease=")), "lease=60", "single_trust=true")
    with (
        chromium() as browser,
        daemon(home, options=("--machines", "2x2", "--policy", "fifo"), settings=settings) as service,
    ):
        with service.client() as client:
            for i in range(5):
                user = {"user": "bob"} if i == 4 else {}
                client.run(["sleep", "120"], gpus=2, hours=240 / 3600, name=f"job-{i}", **user)  # type: ignore[arg-type]
            bob = client.add_user("bob")
            wait_until(lambda: any(a.state == "running" for a in client.queue()), lambda: "an app runs")
        yield World(service, browser, read_endpoint(home).http, (home / "token").read_text().strip(), bob)


@pytest.fixture
def seen(world: World) -> Iterator[Seen]:
    with page_of(world.browser, world.base) as found:
        yield found
        found.check()


def simulate(seen: Seen, **fields: str) -> None:
    seen.page.uncheck("input[name=arrivals]")
    seen.page.select_option("select[name=horizon]", "6h")
    for name, value in fields.items():
        seen.page.fill(f"input[name={name}]", value)
    seen.page.click("button:has-text('Simulate')")


def test_the_form_is_answered_by_a_table_and_a_figure_without_a_reload(world: World, seen: Seen) -> None:
    seen.enter(world.token)
    seen.go("/console/users")
    seen.page.click("nav >> text=What if")
    seen.page.wait_for_url("**/console/what-if")
    seen.page.evaluate("window.same = true")
    simulate(seen, policies="current,drf", add="4")
    seen.page.wait_for_selector("#result table")
    assert seen.page.evaluate("window.same")
    rows = seen.page.locator("#result tbody tr")
    assert rows.count() == 5
    assert "Under fifo, with 4 more GPUs" in seen.page.inner_text("#result")
    assert seen.page.locator("#result svg.ends circle").count() >= 5
    heads = seen.page.locator("#result thead th").all_inner_texts()
    assert [head.lower() for head in heads][:6] == ["app", "user", "state", "today", "fifo", "drf"]
    seen.page.click("#result thead th:nth-child(4) button")
    assert seen.page.get_attribute("#result thead th:nth-child(4)", "aria-sort") == "ascending"
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if SHOTS:
        seen.page.screenshot(path=str(Path(SHOTS) / "console-what-if.png"), full_page=True)


def test_a_wrong_policy_is_a_sentence_on_the_page(world: World) -> None:
    with page_of(world.browser, world.base) as seen:
        seen.enter(world.token)
        seen.go("/console/what-if")
        simulate(seen, policies="fair_finsh")
        seen.page.wait_for_selector("#problem:not([hidden])")
        assert "Did you mean 'fair_finish'?" in seen.page.inner_text("#problem")
        assert seen.page.is_enabled("button:has-text('Simulate')")


def test_a_user_sees_the_own_apps_and_may_leave_out_no_other(world: World) -> None:
    with page_of(world.browser, world.base) as seen:
        seen.enter(world.bob)
        seen.go("/console/what-if")
        simulate(seen, policies="drf")
        seen.page.wait_for_selector("#result table")
        assert seen.page.locator("#result tbody th").all_inner_texts() == ["job-4"]
        assert "of 5 apps" in seen.page.inner_text("#result")
        seen.page.fill("input[name=without]", "job-0")
        seen.page.click("button:has-text('Simulate')")
        seen.page.wait_for_selector("#problem:not([hidden])")
        assert "Permission denied" in seen.page.inner_text("#problem")


def test_without_scripts_the_page_itself_has_the_answer(world: World) -> None:
    with page_of(world.browser, world.base, java_script_enabled=False) as seen:
        seen.sign_in(world.token)
        seen.go("/console/what-if")
        simulate(seen, policies="drf")
        seen.page.wait_for_selector("#result table")
        assert seen.page.input_value("input[name=policies]") == "drf"
        assert seen.page.locator("#result tbody tr").count() == 5


def test_a_form_of_another_site_is_refused(world: World, seen: Seen) -> None:
    seen.enter(world.token)
    cookie = "; ".join(f"{c['name']}={c['value']}" for c in seen.page.context.cookies())
    for fields, headers in (
        ({"policies": "drf", "csrf": "wrong"}, {}),
        ({"policies": "drf"}, {"Origin": "http://elsewhere.example"}),
    ):
        request = urllib.request.Request(
            f"{world.base}/console/what-if",
            data=urllib.parse.urlencode(fields).encode(),
            headers={"Cookie": cookie, **headers},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == 403
        refused.value.close()
