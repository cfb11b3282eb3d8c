"""The documentation builds as a site: each link leads somewhere, the generated reference has what the code has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    pytest.importorskip("mkdocs", reason="no MkDocs: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _text(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_the_reference_has_every_verb_policy_and_format(site: Path) -> None:
    from themis.cli.root import app
    from themis.policies.api import policy_names
    from themis.traces.formats import registered

    verbs = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    lines = _text(site / "reference" / "command-line.html")
    assert all(f"themis {verb.replace('_', '-')}" in lines for verb in verbs)
    pages = {"policies": policy_names(), "workloads": list(registered())}
    for page, names in pages.items():
        html = (site / "reference" / f"{page}.html").read_text(encoding="utf-8")
        assert set(names) <= set(re.findall(r'<h2 id="([\w-]+)"', html))


def test_the_reference_of_the_api_has_every_method(site: Path) -> None:
    from themis.schema.routes import CALLS

    html = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert set(CALLS) <= set(re.findall(r'<h3 id="\w+">(\w+)', html))
    assert "Submit an app. It is in the journal before the reply" in html


def test_a_page_of_the_api_shows_docstrings_as_lists(site: Path) -> None:
    html = (site / "reference" / "library.html").read_text(encoding="utf-8")
    assert re.search(r"<strong>Attributes</strong>.{0,40}<ul>\s*<li>", html, flags=re.DOTALL)


def test_no_page_asks_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text(encoding="utf-8")
        )
        assert not loaded, f"{page.name} loads {loaded[0]}"


def test_links_to_files_of_the_repository_lead_to_copies(site: Path) -> None:
    html = (site / "settings.html").read_text(encoding="utf-8")
    assert 'href="files/examples/service.yaml"' in html
    assert (site / "files" / "examples" / "service.yaml").read_bytes() == (
        ROOT / "examples" / "service.yaml"
    ).read_bytes()
