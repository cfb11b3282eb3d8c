"""What MkDocs does not do by itself: generated pages, pages from the repository's root, links to files outside of docs/."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "website"))

from pages import PAGES  # noqa: E402

AT_ROOT = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages that stand at the repository's root, by their place in the site."""
SOURCES = "files"
"""Folder of the site with other files of the repository that pages link to."""
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, those of the root, an index of decisions, and the files that pages link to."""
    for place, page in PAGES.items():
        files.append(File.generated(config, place, content=page()))
    for name, place in AT_ROOT.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "decisions/index.md", content=_decisions()))
    for path in sorted(_outside()):
        files.append(File.generated(config, f"{SOURCES}/{path}", content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where their target stands in the site."""
    at = page.file.src_uri
    back = {place: name for name, place in AT_ROOT.items()}
    source = back.get(at, f"docs/{at}")
    return LINK.sub(lambda found: _link(found, at, source), markdown)


def _link(found: re.Match[str], at: str, source: str) -> str:
    text, path, anchor = found[1], found[2], found[3] or ""
    if not path or "://" in path or path.startswith("mailto:"):
        return found[0]
    if source.startswith("docs/reference/"):
        return found[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    place = AT_ROOT.get(target) or (
        target.removeprefix("docs/") if target.startswith("docs/") else f"{SOURCES}/{target}"
    )
    if (ROOT / target).is_dir():
        if target != "docs/decisions":
            return text[text.index("[") + 1 : -1]  # a folder has no page: its name alone
        place = "decisions/index.md"
    return f"{text}({posixpath.relpath(place, posixpath.dirname(at) or '.')}{anchor})"


def _outside() -> set[str]:
    """Files outside of docs/ that pages link to."""
    found = set()
    for page in [*(ROOT / name for name in AT_ROOT), *(ROOT / "docs").rglob("*.md")]:
        for link in LINK.finditer(page.read_text(encoding="utf-8")):
            path = (page.parent / link[2]).resolve() if link[2] and "://" not in link[2] else ROOT
            name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
            if path.is_file() and not name.startswith("docs/") and name not in AT_ROOT:
                found.add(name)
    return found


def _decisions() -> str:
    rows = []
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        rows.append(f"- [{title}]({path.name})")
    return (
        "# Decisions\n\nWhy things are as they are, in the order in which they were decided.\n\n"
        + "\n".join(rows)
        + "\n"
    )
