"""The report's figures under a real pointer: values, a policy or app lit in all figures, a legend that hides, zoom."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_cases import runs

from themis.report.html import write_report

CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
AXE = Path(os.environ.get("THEMIS_AXE", "/tmp/themis-axe/package/axe.min.js"))
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interactive") / "report.html"
    return write_report(path, runs(("themis", "drf", "fifo"), seeds=2), baseline="drf")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    errors: list[str] = []
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(report.as_uri())
    yield page
    page.close()
    assert errors == []


def inside(page: Any, figure: str, x: float, y: float = 0.5) -> tuple[float, float]:
    """A point of the first axes of a figure, in fractions of their box, on the screen."""
    svg = page.locator(f"{figure} svg[data-axes]").first
    svg.scroll_into_view_if_needed()
    return tuple(
        svg.evaluate(
            """(svg, [fx, fy]) => {
              const [x, y, w, h] = JSON.parse(svg.dataset.axes)[0].box;
              const at = new DOMPoint(x + fx * w, y + fy * h).matrixTransform(svg.getScreenCTM());
              return [at.x, at.y];
            }""",
            [x, y],
        )
    )


def test_the_pointer_reads_every_line_there(page: Any) -> None:
    page.mouse.move(*inside(page, "#fairness", 0.99))
    text = page.locator("#fairness .readout:visible").inner_text()
    assert "own share" in text
    for policy in ("themis", "drf", "fifo"):
        assert f"{policy}: 100 %" in text
    page.mouse.move(*inside(page, "#contention", 0.3))
    text = page.locator("#contention .readout:visible").inner_text()
    assert "since the first arrival" in text
    assert "demand / capacity" in text
    page.mouse.move(0, 0)
    assert page.locator(".readout:visible").count() == 0


def test_a_policy_in_a_legend_or_table_is_lit_in_all_figures(page: Any) -> None:
    opacity = "([name, n]) => getComputedStyle(document.querySelectorAll(`g[data-series=${name}]`)[n]).opacity"
    page.locator("#fairness button[data-key=p1]").first.hover()
    page.wait_for_function(f"({opacity})(['p0', 0]) === '0.14'")
    assert page.evaluate(opacity, ["p1", 0]) == "1"
    last = page.locator("g[data-series=p0]").count() - 1
    page.wait_for_function(f"({opacity})(['p0', {last}]) === '0.14'")
    page.mouse.move(0, 0)
    page.wait_for_function(f"({opacity})(['p0', 0]) === '1'")
    page.locator("#runs tr[data-light=p2] th").hover()
    page.wait_for_function(f"({opacity})(['p0', 0]) === '0.14'")


def test_a_click_on_a_legend_hides_the_policy_everywhere_and_another_shows_it(page: Any) -> None:
    button = page.locator("#contention button[data-key=p0]").first
    button.click()
    assert page.locator("g[data-series=p0]:visible").count() == 0
    assert set(page.locator("button[data-key=p0]").evaluate_all("all => all.map(b => b.ariaPressed)")) == {"false"}
    page.mouse.move(*inside(page, "#contention", 0.3))
    assert "themis" not in page.locator("#contention .readout:visible").inner_text()
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator("g[data-series=p0]:visible").count() > 0


def test_an_app_is_lit_in_the_gantt_from_its_row_and_named_under_the_pointer(page: Any) -> None:
    page.locator("#apps summary").click()
    page.locator("#apps-1 tr[data-light=a0] td").first.hover()
    page.wait_for_function("getComputedStyle(document.querySelector('g[data-series=a1]')).opacity === '0.14'")
    lease = page.locator("#gantts-1 g[data-series=a0] path").first
    lease.scroll_into_view_if_needed()
    lease.hover()
    assert " jobs, " in page.locator("#gantts-1 .readout:visible").inner_text()
    assert page.locator("#apps-1 tr.on").count() == 1


def test_dragging_over_time_shows_that_part_in_every_figure(page: Any) -> None:
    ticks = "#gpus g.ticks text"
    start, end = inside(page, "#contention", 0.25), inside(page, "#contention", 0.5)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()
    assert page.locator(ticks).count() >= 3
    page.mouse.move(*inside(page, "#contention", 0.5))
    zoomed = page.locator("#contention .readout:visible").inner_text()
    page.locator("#gpus .zoomed:visible").evaluate_all("buttons => buttons.forEach(button => button.click())")
    page.wait_for_function("document.querySelectorAll('#gpus .zoomed').length === 0")
    page.mouse.move(*inside(page, "#contention", 0.375))
    whole = page.locator("#contention .readout:visible").inner_text()
    assert float(whole.split()[0]) == pytest.approx(float(zoomed.split()[0]), abs=0.02)  # a pixel
    assert whole.split()[1:] == zoomed.split()[1:]


def test_keys_zoom_too(page: Any) -> None:
    page.locator("#gpus figure").focus()
    for key in ("+", "ArrowRight", "-"):
        page.keyboard.press(key)
    assert page.locator("#contention .zoomed:visible").count() == 0  # out to all of it
    page.keyboard.press("+")
    assert page.locator("#contention .zoomed:visible").count() >= 1
    page.keyboard.press("Escape")
    assert page.locator(".zoomed").count() == 0


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there; THEMIS_AXE is the path of axe.min.js")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    for part in ("#apps", "#glossary"):
        page.locator(f"{part} summary").click()
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")["violations"]
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []


def test_on_a_phone_tables_and_wide_figures_scroll_in_themselves(browser: Any, report: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800}, has_touch=True)
    page.goto(report.as_uri())
    page.locator("#apps summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    runs = page.locator("#policies .scroll")
    assert runs.evaluate("box => box.scrollWidth > box.clientWidth")
    runs.evaluate("box => { box.scrollLeft = 200; }")
    head = page.locator("#runs tbody th").first
    assert head.is_visible()
    assert head.bounding_box()["x"] < 60  # who it is stays in sight
    page.close()
