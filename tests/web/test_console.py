"""The console in a real Chromium, over a real service whose jobs are real processes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chromium import Seen, chromium, page_of
from daemon import QUICK, Daemon, daemon
from photographs import reduce

from themis.client.home import read_endpoint
from themis.schema import messages as schema

pytestmark = [pytest.mark.slow, pytest.mark.long]
AXE = Path(os.environ.get("THEMIS_AXE", Path(__file__).parents[2] / "build" / "axe" / "package" / "axe.min.js"))
"""Where ``.ci/run`` puts axe-core."""
SHOTS = os.environ.get("THEMIS_SHOTS", "")
"""A folder for screenshots, those of the documentation; empty: none."""
LOOKS = [(width, scheme) for width in (390, 1600) for scheme in ("light", "dark")]
"""Width of the window and colour scheme. Width decides what fits, the scheme its contrast, so two of the four have each."""
if not SHOTS and not os.environ.get("THEMIS_LOOKS"):
    LOOKS = [(390, "dark"), (1600, "light")]
TRAINS = """
import json, os, time
from themis.train import Run
rate = json.loads(os.environ["THEMIS_PARAMS"])["lr"]
run = Run()
for step in run.steps(600):
    time.sleep(0.05)
    if step % 100 == 0:
        print(f"step {step}: rate {rate}", flush=True)
    run.report(loss=2.5 * rate + 2.0 / (1 + 20 * rate * step / 60))
"""
MARKUP = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\'"&amp;</pre>'


@dataclass
class World:
    service: Daemon
    browser: Any
    base: str
    token: str

    def submit(
        self, name: str, *argv: str, user: str = "", gpus: int = 1, jobs: int = 1, env: dict[str, str] | None = None
    ) -> int:
        """An app of jobs that run this program."""
        job = schema.Job(gpus_min=gpus, gpus_max=gpus, regimes=[schema.Regime(steps=300)])
        job.program = schema.Program(argv=list(argv), cwd="/tmp", work_is_time=True, env=env or {}, launch="gpu")
        with self.service.client() as client:
            made = client.submit(schema.SubmitRequest(name=name, user=user, jobs=[job] * jobs))
        return int(made.app)

    def sweep(self, name: str, user: str) -> int:
        """An app of jobs that train with a rate each and report their losses."""
        jobs = [
            schema.Job(
                gpus_min=2,
                gpus_max=2,
                regimes=[schema.Regime(steps=600)],
                program=schema.Program(
                    argv=[sys.executable, "-c", TRAINS],
                    cwd="/tmp",
                    env={"THEMIS_PARAMS": json.dumps({"lr": rate, "width": width})},
                ),
            )
            for rate, width in ((0.3, 64), (0.1, 64), (0.03, 128), (0.01, 256))
        ]
        curve = schema.CurveStopping(check_steps=10, keep=4, confidence=0.95, warmup=50)
        with self.service.client() as client:
            return int(client.submit(schema.SubmitRequest(name=name, user=user, jobs=jobs, curve=curve)).app)

    def end(self, *apps: int) -> None:
        """Cancel what still runs."""
        with self.service.client() as client:
            for app in apps:
                client.cancel(app)

    def user(self, name: str) -> str:
        """The token of a user without further rights."""
        with self.service.client() as client:
            return client.add_user(name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("console") / "home"
    settings = [s for s in QUICK if not s.startswith(("lease=", "retries="))]
    options = ("--machines", "3x8", "--set", "single_trust=true")
    with chromium() as browser, daemon(home, options=options, settings=(*settings, "lease=20", "retries=0")) as service:
        yield World(service, browser, read_endpoint(home).http, (home / "token").read_text().strip())


@pytest.fixture
def seen(world: World) -> Iterator[Seen]:
    with page_of(world.browser, world.base) as found:
        yield found
        found.check()


def test_sign_in_leads_to_now_where_a_job_starts_and_ends_without_a_reload(world: World, seen: Seen) -> None:
    seen.sign_in(world.token)
    seen.page.evaluate("window.same = true")
    world.submit("short-lived", "sleep", "4")
    seen.page.wait_for_selector("#running >> text=short-lived")
    seen.page.wait_for_selector("#running >> text=No app runs")
    assert seen.page.evaluate("window.same")


def test_the_page_says_where_a_job_has_printed_nothing(world: World, seen: Seen) -> None:
    app = world.submit("prints-nothing", "true")
    seen.enter(world.token)
    seen.go(f"/console/apps/{app}")
    seen.page.wait_for_selector("#log >> text=It has printed nothing.")


def test_an_app_is_held_resumed_and_cancelled_on_its_page(world: World, seen: Seen) -> None:
    app = world.submit("to-be-cancelled", "sh", "-c", "echo it began; sleep 300")
    seen.enter(world.token)
    seen.go(f"/console/apps/{app}")
    seen.page.wait_for_selector("#log >> text=it began")
    seen.page.wait_for_selector("#leases svg .lease")
    seen.page.click("text=Hold")
    seen.page.wait_for_selector(".done >> text=Held")
    seen.page.click("#state button:has-text('Resume')")
    seen.page.wait_for_selector(".done >> text=Resumed")
    seen.page.once("dialog", lambda dialog: dialog.accept())
    seen.page.click("#state button.danger")
    seen.page.wait_for_selector("#state >> text=cancelled")
    seen.page.wait_for_selector("#state form", state="detached")


def test_the_keyboard_alone_opens_the_table_of_machines_and_an_app_and_cancels_it(world: World, seen: Seen) -> None:
    app = world.submit("by-keyboard", "sleep", "300")
    page = seen.page
    seen.enter(world.token)
    seen.go("/console/now")
    page.wait_for_selector("#running >> text=by-keyboard")

    def tab_to(what: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            at = "(e => e.matches('a, button, summary') ? e.textContent.trim() : '')(document.activeElement)"
            if what in page.evaluate(at):
                # What has the focus is marked.
                assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
                return
        raise AssertionError(f"Tab never reaches {what!r}")

    tab_to("Machines as a table")
    page.keyboard.press("Enter")
    page.wait_for_selector("#machines td >> text=by-keyboard")
    tab_to("by-keyboard")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/console/apps/{app}")
    page.once("dialog", lambda dialog: dialog.accept())
    tab_to("Cancel")
    page.keyboard.press("Enter")
    page.wait_for_selector("#state >> text=cancelled")


def test_markup_in_output_parameters_and_messages_is_text(world: World, seen: Seen) -> None:
    app = world.submit(
        "markup",
        "sh",
        "-c",
        "printf '%s\\n' \"$WORDS\"; sleep 1; exit 3",
        env={"WORDS": MARKUP, "THEMIS_PARAMS": '{"<b id=bold>rate</b>": "' + MARKUP.replace('"', "") + '"}'},
    )
    seen.enter(world.token)
    seen.go(f"/console/apps/{app}")
    seen.page.wait_for_selector("#state >> text=failed")
    seen.page.wait_for_function("document.getElementById('log').textContent.includes('onerror')")
    assert "<script>" in seen.page.text_content("#state")
    assert seen.page.query_selector("#bold, main img, main script") is None
    assert not seen.page.evaluate("window.hit")


def test_another_users_app_is_seen_without_its_output_and_cannot_be_changed(world: World, seen: Seen) -> None:
    app = world.submit("of-the-owner", "sh", "-c", "echo secret; sleep 300")
    seen.enter(world.user("guest"))
    seen.go(f"/console/apps/{app}")
    seen.page.wait_for_selector("#leases svg")
    assert seen.page.query_selector("#log") is None
    assert seen.page.query_selector("#state form") is None
    csrf = seen.page.get_attribute("input[name=csrf]", "value")
    tried = [
        seen.page.request.get(f"{world.base}/console/apps/{app}/log"),
        *(
            seen.page.request.post(f"{world.base}/console/apps/{app}/{change}", form={"csrf": csrf})
            for change in ("cancel", "hold", "resume")
        ),
    ]
    assert [answer.status for answer in tried] == [403] * 4
    assert "of-the-owner" in tried[1].text()
    world.end(app)


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_pages_fit_and_axe_finds_nothing_serious(world: World, width: int, scheme: str) -> None:
    apps = [
        world.sweep("resnet-sweep", user="alice"),
        world.submit("bert-large", "sleep", "300", user="bob", gpus=4),
        world.submit("vit-b16", "sleep", "300", user="dave", gpus=4),
        world.submit("whisper", "sleep", "300", user="erin", gpus=8, jobs=2),
        world.submit("gpt2-medium", "sleep", "300", user="carol", gpus=8, jobs=2),
    ]
    with page_of(world.browser, world.base, width, 1000 if width > 1000 else 844, color_scheme=scheme) as seen:
        seen.enter(world.token)
        seen.go("/console/now")
        seen.page.wait_for_selector("#waiting tbody tr")
        seen.page.wait_for_selector("#day-leased canvas")
        pages = {"now": "/console/now", "app": f"/console/apps/{apps[0]}", "apps": "/console/apps"}
        for name, path in pages.items():
            seen.go(path)
            seen.page.wait_for_selector({"now": "#day-leased canvas", "app": "#curves canvas", "apps": "td"}[name])
            seen.page.wait_for_timeout(2500)
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
            if name == "app":
                seen.page.wait_for_selector("#why p:not(.note)")
            if SHOTS:
                _shoot(
                    seen, DOCS.get((name, width, scheme), f"console-{name}-{width}-{scheme}.png"), full=name != "now"
                )
            if AXE.is_file():
                check_with_axe(seen)
        seen.check()
    world.end(*apps)
    need_axe()  # all else passed


DOCS = {
    ("now", 1600, "light"): "console-now.png",
    ("app", 1600, "light"): "console-app.png",
    ("now", 390, "dark"): "console-now-phone.png",
}
"""Those that docs/console.md shows: ``THEMIS_SHOTS=docs/img pytest -k axe tests/web/test_console.py``, and delete the others."""


def _shoot(seen: Seen, name: str, *, full: bool) -> None:
    path = Path(SHOTS) / name
    seen.page.screenshot(path=path, full_page=full)
    reduce(path, path)


def need_axe() -> None:
    """Skip where axe-core is absent."""
    if not AXE.is_file():
        pytest.skip("axe-core is absent: npm pack axe-core, unpack it, and set THEMIS_AXE to its axe.min.js")


def check_with_axe(seen: Seen) -> None:
    """Nothing serious is wrong for those who do not see or use a mouse."""
    # As the developer's tools do it: the page's own rules forbid scripts from elsewhere.
    session = seen.page.context.new_cdp_session(seen.page)
    session.send("Runtime.evaluate", {"expression": AXE.read_text()})
    found = seen.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    bad = [
        (v["id"], [n["html"] for n in v["nodes"]][:3])
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]
    assert bad == []


def test_a_page_weighs_under_500_kb_and_paints_within_a_second(world: World, seen: Seen) -> None:
    weight: dict[str, int] = {}
    seen.page.on("response", lambda r: weight.__setitem__(r.url, int(r.headers.get("content-length", 0))))
    seen.sign_in(world.token)
    seen.page.wait_for_selector("#day-leased canvas")
    assert 10_000 < sum(weight.values()) < 500_000
    paint = seen.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
    print(f"\nfirst paint {paint:.0f} ms, {sum(weight.values()) / 1000:.0f} kB")
    assert re.match(r"http://127\.0\.0\.1", seen.page.url)
