"""The pages of users, fairness and administration in a real Chromium, over a real service with jobs of several users."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chromium import Seen, chromium, page_of
from daemon import QUICK, Daemon, daemon
from test_console import AXE, LOOKS, SHOTS, check_with_axe, need_axe

from processes import PATIENCE_S, wait_until
from themis.client.client import Client
from themis.client.home import read_endpoint
from themis.schema import messages as schema

pytestmark = [pytest.mark.slow, pytest.mark.long]
TABS = ("/users", "/fairness", "/admin", "/admin/users", "/admin/settings", "/admin/journal")
MARKUP = "<img src=x onerror=document.title='taken'>"


@dataclass
class World:
    """A service between users: ann holds GPUs that bob and carol wait for."""

    service: Daemon
    browser: Any
    base: str
    token: str
    bob: str

    @property
    def home(self) -> Path:
        return self.service.home


def submit(client: Client, name: str, user: str, gpus: int, jobs: int) -> None:
    client.submit(
        schema.SubmitRequest(
            name=name,
            user=user,
            jobs=[
                schema.Job(
                    name=f"{name}-{i}",
                    gpus_min=gpus,
                    gpus_max=gpus,
                    regimes=[schema.Regime(steps=300)],
                    program=schema.Program(argv=["sleep", "300"], cwd="/tmp", work_is_time=True),
                )
                for i in range(jobs)
            ],
        )
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("pages") / "home"
    # Leases are long, so that ann has what the others are entitled to.
    settings = (
        *QUICK,
        "lease=60",
        "step=60",
        "between=users",
        *(["single_trust=true"] if os.geteuid() == 0 else []),
    )
    with chromium() as browser, daemon(home, settings=settings, options=("--machines", "2x2")) as service:
        with service.client() as client:
            client.set({"users.ann.weight": 2, "users.bob.budget.hard": 0.5, "users.bob.budget.soft": 0.2})
            submit(client, "bert", "ann", 2, 2)
            wait_until(lambda: client.share()[0].gpus == 4, "ann holds all GPUs")
            submit(client, "resnet", "bob", 2, 1)
            submit(client, "speech", "carol", 2, 1)
            bob = client.add_user("bob")
            wait_until(lambda: len(client.fairness().loans) > 0, "somebody has lent")
            if SHOTS:  # pictures show that what was lent comes back
                client.set({"lease": "8s", "step": "8s"})
                time.sleep(100)
        yield World(service, browser, read_endpoint(home).http, (home / "token").read_text().strip(), bob)


@pytest.fixture
def seen(world: World) -> Iterator[Seen]:
    """The pages of the owner, who is an administrator."""
    with page_of(world.browser, world.base) as found:
        found.enter(world.token)
        yield found
        found.check()


# ---- what the pages show ---------------------------------------------------------------------------------------------


def test_users_show_shares_hours_by_day_and_budgets(seen: Seen) -> None:
    seen.go("/console/users")
    rows = seen.page.locator("section:has(h2:text-is('Shares and accounts')) tbody tr")
    assert {name.strip() for name in rows.locator("th").all_inner_texts()} == {"ann", "bob", "carol"}
    bar = seen.page.locator("svg.drawn g[data-series=u0] rect").first
    bar.hover()
    assert "GPU hours" in seen.page.locator(".readout:visible").inner_text()
    assert "user bob" in seen.page.locator("section:has(h2:text-is('Budgets')) tbody").inner_text()
    seen.page.select_option("select[name=days]", "30")
    seen.page.get_by_role("button", name="Show").click()
    seen.page.wait_for_url("**days=30")
    rows.locator("a").first.click()
    seen.page.wait_for_url("**/console/apps?user=*")


def test_fairness_shows_who_lent_to_whom_and_its_lines_answer(seen: Seen) -> None:
    seen.go("/console/fairness")
    loans = seen.page.locator("section:has(h2:text-is('Who lent to whom')) tbody tr").all_inner_texts()
    pairs = [[cell.strip() for cell in row.split("\t")][:2] for row in loans]
    assert pairs
    assert all(len({*pair}) == 2 and {*pair} <= {"ann", "bob", "carol"} for pair in pairs)
    lines = seen.page.locator("svg.drawn g[data-series]")
    assert lines.count() == 3
    box = seen.page.locator("svg.drawn").bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5)
    text = seen.page.locator(".readout:visible").inner_text()
    assert all(f"{user}: " in text for user in ("ann", "bob", "carol"))
    seen.page.get_by_role("button", name="ann", exact=True).click()
    assert seen.page.locator("svg.drawn g[data-series]:visible").count() == 2
    assert seen.page.locator("section:has(h2:text-is('Apps that are worst off')) tbody tr").count() >= 1


def test_a_machine_is_drained_and_returned(seen: Seen) -> None:
    seen.page.on("dialog", lambda dialog: dialog.accept())
    seen.go("/console/admin")
    row = seen.page.locator("tr", has_text="m001")
    row.locator("input[name=within]").fill("soon")
    row.get_by_role("button", name="Drain").click()
    alert = seen.page.locator("[role=alert]")
    assert "'soon', expected a time such as 90s" in alert.inner_text()
    seen.errors.clear()  # Chromium notes that the status was 400
    row.get_by_role("button", name="Drain").click()
    seen.page.wait_for_url("**done=drained")
    assert row.locator(".badge").inner_text() in ("draining", "drained")
    row.get_by_role("button", name="Return").click()
    seen.page.wait_for_url("**done=undrained")
    assert row.locator(".badge").inner_text() == "up"


def test_a_token_is_shown_once_works_and_is_revoked(world: World, seen: Seen) -> None:
    seen.page.on("dialog", lambda dialog: dialog.accept())
    seen.go("/console/admin/users")
    seen.page.fill("input[name=user]", "dora")
    seen.page.keyboard.press("Enter")
    token = seen.page.locator("section.token pre").inner_text().strip()
    with page_of(world.browser, world.base) as hers:
        hers.enter(token)
        hers.go("/console/users")
        assert hers.page.locator(".who .user").inner_text() == "dora"
    seen.go("/console/admin/users")
    assert token not in seen.page.content()
    seen.page.locator("tr", has_text="dora").get_by_role("button", name="Revoke").click()
    seen.page.wait_for_url("**done=removed")
    assert seen.page.locator("tr", has_text="dora").count() == 0


def test_a_setting_is_changed_and_its_history_says_by_whom(world: World, seen: Seen) -> None:
    seen.go("/console/admin/settings")
    seen.page.fill("input[name=name]", "lease")
    seen.page.fill("form.filter input[name=value]", "3s")
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector(".done >> text=-> 3s")
    seen.page.select_option("select[aria-label='New value of between']", "apps")
    seen.page.locator("tr:has(th:text-is('between')) button").click()
    seen.page.wait_for_selector(".done >> text=-> apps")
    row = seen.page.locator("tr:has(th:text-is('max_jobs'))")
    assert row.locator("input[type=number]").get_attribute("max") == "10000"
    seen.page.fill("input[aria-label='New value of tick']", "soon")
    seen.page.locator("tr:has(th:text-is('tick')) button").click()
    assert seen.page.locator("input[aria-label='New value of tick']:invalid").count() == 1, (
        "the browser asks for a time"
    )
    history = seen.page.locator("section:has(h2:text-is('History')) tbody").inner_text()
    assert "lease = 3s" in history
    seen.page.fill("input[name=name]", MARKUP)
    seen.page.fill("form.filter input[name=value]", MARKUP)
    seen.page.keyboard.press("Enter")
    assert "<img" in seen.page.locator("[role=alert]").inner_text()
    assert seen.page.locator("img").count() == 0
    assert seen.page.title() != "taken"
    seen.errors.clear()


def test_a_backup_is_made_and_listed(world: World, seen: Seen) -> None:
    seen.go("/console/admin/journal")
    seen.page.get_by_role("button", name="Make a backup").click()
    seen.page.wait_for_url("**done=backup", timeout=PATIENCE_S * 1000)
    (folder,) = (world.home / "backups").iterdir()
    assert folder.name in seen.page.locator("tbody").inner_text()


# ---- who may -----------------------------------------------------------------------------------------------------------


def test_a_user_sees_themselves_and_totals_and_nothing_of_the_administration(world: World) -> None:
    with page_of(world.browser, world.base) as seen:
        seen.enter(world.bob)
        seen.go("/console/fairness")
        assert "Admin" not in seen.page.locator(".top nav").inner_text()
        rows = seen.page.locator("section:has(h2:text-is('Entitled and received')) tbody th").all_inner_texts()
        assert {row.strip() for row in rows} == {"bob", "all others"}
        loans = seen.page.locator("section:has(h2:text-is('Who lent to whom')) tbody tr").all_inner_texts()
        assert all("bob" in row for row in loans)
        seen.go("/console/users")
        assert "Yours; administrators see all users" in seen.page.content()
        for path in TABS[2:]:
            assert seen.page.goto(f"{world.base}/console{path}").status == 403
            assert "only administrators" in seen.page.content()
        seen.errors.clear()
        assert seen.foreign == []


def test_no_write_without_the_token_of_the_page_nor_without_the_right(world: World) -> None:
    forms: list[tuple[str, dict[str, str]]] = [
        ("/admin/drain", {"node": "m000"}),
        ("/admin/users", {"user": "mallory", "admin": "1"}),
        ("/admin/users/remove", {"user": "bob"}),
        ("/admin/settings", {"name": "policy", "value": "drf"}),
        ("/admin/backups", {}),
    ]
    with page_of(world.browser, world.base) as owner, page_of(world.browser, world.base) as bob:
        owner.enter(world.token)
        bob.enter(world.bob)
        bob.go("/console/users")
        csrf = bob.page.locator("input[name=csrf]").first.input_value()
        for path, form in forms:
            for wrong in ({}, {"csrf": "x" * 43}):
                answer = owner.page.request.post(f"{world.base}/console{path}", form={**form, **wrong}, max_redirects=0)
                assert (path, answer.status) == (path, 403)
                assert "does not come from a page of this console" in answer.text()
            answer = bob.page.request.post(f"{world.base}/console{path}", form={**form, "csrf": csrf}, max_redirects=0)
            assert (path, answer.status) == (path, 403)
            assert "only administrators" in answer.text()
    with world.service.client() as client:
        assert client.info().policy == "fair_finish", "no form without a token changed it"
        assert [user.user for user in client.users()] == ["bob"]


# ---- how they look -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_nothing_is_wider_than_the_screen_and_axe_finds_nothing_serious(seen: Seen, width: int, scheme: str) -> None:
    seen.page.set_viewport_size({"width": width, "height": 900})
    seen.page.emulate_media(color_scheme=scheme)
    for path in (*TABS, "/what-if"):
        seen.go(f"/console{path}")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, path
        if SHOTS and path in TABS:
            name = path.strip("/").replace("/", "-")
            seen.page.screenshot(path=f"{SHOTS}/console-{name}-{width}-{scheme}.png", full_page=True)
        if AXE.is_file():
            check_with_axe(seen)
    need_axe()  # all else passed
