"""The report in a real browser, where there is one: no errors on the console, tables that sort, nothing wider than a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_cases import runs

from processes import PATIENCE_S
from themis.report.html import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is installed"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser") / "report.html"
    return write_report(path, runs(("themis", "drf", "fifo"), seeds=2), baseline="drf")


def browse(page: Path, *options: str, address: str = "", profile: Path) -> tuple[str, list[str]]:
    """(the page after its scripts ran, what was written on the console)."""
    assert BROWSER
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            f"--user-data-dir={profile}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
            *options,
            f"{page.resolve().as_uri()}{address}",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def after(report: Path, tmp_path: Path, script: str) -> tuple[str, list[str]]:
    """The page after a script of the test's ran at its end."""
    page = tmp_path / "page.html"
    text = report.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return browse(page, "--dump-dom", profile=tmp_path / "profile")


def order(dom: str, table: str = "runs") -> list[str]:
    """Policies of a table from the top."""
    body = re.search(rf'<table id="{table}".*?<tbody>(.*?)</tbody>', dom, flags=re.DOTALL)
    assert body
    return re.findall(r'<th scope="row" data-sort="([^"]+)"', body[1])


def test_the_page_renders_without_errors(report: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    _, console = browse(report, f"--screenshot={picture}", "--window-size=1280,3000", profile=tmp_path / "profile")
    assert console == []
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000


def test_an_error_on_the_console_would_be_seen(report: Path, tmp_path: Path) -> None:
    _, console = after(report, tmp_path, "nothing.of.the.kind()")
    assert any("nothing is not defined" in line for line in console)


def test_an_address_sorts_the_table(report: Path, tmp_path: Path) -> None:
    dom, console = browse(report, "--dump-dom", address="#sort=-makespan", profile=tmp_path / "profile")
    assert console == []
    assert order(dom) == ["fifo", "drf", "themis"]
    assert re.search(r'aria-sort="descending"[^>]*data-key="makespan"', dom)


def test_clicks_and_keys_sort_and_define(report: Path, tmp_path: Path) -> None:
    script = """
    const button = document.querySelector('#runs th[data-key="policy"] button');
    button.click();
    const shown = document.documentElement.dataset;
    const texts = what => [...document.querySelectorAll(what)].map(cell => cell.dataset.sort ?? cell.textContent);
    shown.once = texts("#runs tbody th");
    const head = document.querySelector('#runs th[data-key="makespan"] button');
    head.focus();
    shown.focused = document.activeElement === head;
    head.click(); head.click();
    document.querySelector("#users-1 thead button").click();
    shown.users = texts("#users-1 tbody tr td:first-child");
    const tabs = [...document.querySelectorAll("[role=tablist] button")];
    tabs[0].dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
    shown.tab = document.activeElement.textContent;
    """
    dom, console = after(report, tmp_path, script)
    assert console == []
    assert 'data-once="drf,fifo,themis"' in dom
    assert order(dom) == ["fifo", "drf", "themis"]  # by makespan, the second click turns it round
    assert 'data-focused="true"' in dom
    assert re.search(r'id="tip"[^>]*>First arrival to last finish', dom)
    assert 'data-users="ann,bob"' in dom
    assert 'data-tab="drf"' in dom


@pytest.mark.parametrize("width", [1280, 500])
def test_nothing_is_wider_than_the_screen(width: int, report: Path, tmp_path: Path) -> None:
    script = (
        "addEventListener('load', () => { const d = document.documentElement;"
        " d.dataset.over = d.scrollWidth - d.clientWidth; })"
    )
    page = tmp_path / "page.html"
    text = report.read_text(encoding="utf-8").replace("</body>", f"<script>{script}</script></body>")
    page.write_text(text, encoding="utf-8")
    dom, _ = browse(page, "--dump-dom", f"--window-size={width},900", profile=tmp_path / "profile")
    assert 'data-over="0"' in dom
