"""A Chromium for tests: one for a module; each page has a context of its own and keeps what went wrong in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("THEMIS_CHROMIUM", "") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 150_000


@dataclass
class Seen:
    """A page, and what it complained about or asked of other hosts."""

    page: Any
    base: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        """Open a page of the console."""
        self.page.goto(self.base + path)

    def sign_in(self, token: str) -> None:
        """Use the form, and wait for the page Now."""
        self.go("/")
        self.page.fill("#token", token)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url("**/console/now")

    def enter(self, token: str) -> None:
        """Send what the form sends; no page is drawn."""
        answer = self.page.context.request.post(f"{self.base}/console/sign-in", form={"token": token}, max_redirects=0)
        assert answer.status == 303, answer.text()

    def check(self) -> None:
        """Nothing was complained about, and nobody else was asked."""
        assert self.errors == []
        assert self.foreign == []


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; skips where Playwright or Chromium is absent."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'themis-scheduler[dev]'")
    if not CHROMIUM or not Path(CHROMIUM).exists():
        pytest.skip("no Chromium on this machine; set THEMIS_CHROMIUM to its path")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Any, base: str, width: int = 1600, height: int = 1000, **more: Any) -> Iterator[Seen]:
    """A page in a context of its own: no cookie of another test. ``base`` : address of the service."""
    context = browser.new_context(viewport={"width": width, "height": height}, **more)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    seen = Seen(page, base)
    page.on("console", lambda m: seen.errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((base, "data:")) else seen.foreign.append(r.url))
    try:
        yield seen
    finally:
        context.close()
