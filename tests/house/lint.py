"""Checks of texts that `make lint` runs; prints each finding as ``path:line: message``.

Links lead somewhere, make targets exist, names of the page of papers are in the source, defaults of settings are those of
the code, modules have a docstring, words are plain, no module imports itself by way of others, and unsteady tests exist.
Quoted figures are those of their tables, and their commands and commits exist (figures.py).
ARCHITECTURE.md quotes the decision as it is, one module alone looks at kinds of answers, and one changes jobs' statuses.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "themis"
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "website"), str(Path(__file__).parent)]

from circles import circles_of_package  # noqa: E402
from figures import wrong_figures  # noqa: E402
from words import in_package, in_pages  # noqa: E402

from tiers import unsteady  # noqa: E402


def documents(root: Path) -> list[Path]:
    """The pages at the root and in ``docs``."""
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def broken_links(root: Path) -> Iterator[str]:
    """Links of the documents to files and headings that are not there."""
    anchors: dict[Path, set[str]] = {}
    for page in documents(root):
        text = page.read_text(encoding="utf-8")
        for found in LINK.finditer(text):
            path, _, anchor = found[1].partition("#")
            if path.startswith(("http://", "https://")):
                continue
            where = f"{page.relative_to(root)}:{_line(text, found.start())}"
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                yield f"{where}: {found[1]} is not there"
            elif anchor:
                if target not in anchors:
                    anchors[target] = _anchors(target)
                if anchor not in anchors[target]:
                    yield f"{where}: {found[1]}: there is no such heading"


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _anchors(document: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def commands(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of the commands in the shell blocks of a page: continued lines joined, comments dropped."""
    for block in re.finditer(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        first = _line(text, block.start(1))
        joined = ""
        for number, line in enumerate(block[1].splitlines(), first):
            joined += line.removesuffix("\\")
            if not line.endswith("\\"):
                if command := " ".join(shlex.split(joined, comments=True)):
                    yield number, command
                joined = ""


def unknown_targets(root: Path) -> Iterator[str]:
    """Calls of make in the documents whose target the Makefile does not have."""
    targets = set(re.findall(r"^([a-z][\w-]*):", (root / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for page in documents(root):
        for number, command in commands(page.read_text(encoding="utf-8")):
            program, *words = command.split()
            if program == "make":
                asked = {word for word in words if "=" not in word and not word.startswith("-")}
                yield from (
                    f"{page.relative_to(root)}:{number}: make has no target {name}" for name in sorted(asked - targets)
                )


def unknown_names_of_papers() -> Iterator[str]:
    """Modules, functions and tests that docs/papers.md names and that do not exist; a name may leave the package's own out."""
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    by_module = {
        str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".").removesuffix(".__init__"): text
        for path, text in sources.items()
    }
    tests = list((ROOT / "tests").rglob("test_*.py"))
    every_test = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    everything = "\n".join(sources.values())
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    for found in re.finditer(r"`([\w./]+)[^`]*`", page):
        name = found[1]
        if name.endswith((".py", "/")):
            known = (ROOT / name).exists() or name in {path.name for path in tests}
        elif name.startswith("test_"):
            known = f"def {name}" in every_test
        else:
            parts = f"policies{name}".split(".") if name.startswith(".") else name.strip(".").split(".")
            depth = next((i for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in by_module), 0)
            text = by_module[".".join(parts[:depth])] if depth else everything
            known = all(re.search(rf"\b{part}\w*", text) for part in parts[depth:])
        if not known:
            yield f"docs/papers.md:{_line(page, found.start())}: {name} is not in the source"


def wrong_defaults() -> Iterator[str]:
    """Settings of a simulation that docs/report.md does not describe with their default."""
    from themis.model.settings import Settings

    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    for field in fields(Settings):
        if field.name != "seed":  # --seeds says it
            number = not isinstance(field.default, bool | str)
            default = f"{field.default:g}" if number else str(field.default).lower()
            if not re.search(rf"^\| `{field.name}` \| .* \({default}\) \|$", page, flags=re.MULTILINE):
                yield f"docs/report.md:1: no row describes the setting {field.name} with its default {default}"


@cache
def parsed(path: Path) -> ast.Module:
    """A module's tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def silent_modules(package: Path) -> Iterator[str]:
    """Modules without a docstring."""
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if text.strip() and not ast.get_docstring(ast.parse(text)):
            yield f"{os.path.relpath(path)}:1: the module has no docstring"


NO_OPENING = re.compile(
    r"(What(?!-if)|Who|Whose|Of|Those|That|Where|When|Into|Takes|Reads|Writes|Keeps|Holds|Gives|Says|Measures|Makes|Sends)\b"
)
"""First words of a clause or of the third person. A docstring begins with a noun phrase or an imperative."""


def wrong_openings(package: Path) -> Iterator[str]:
    """Docstrings that begin otherwise than with a noun phrase or an imperative."""
    for path in sorted(package.rglob("*.py")):
        nodes: list[ast.AST] = [parsed(path)]
        for node in nodes:
            nodes += [child for child in getattr(node, "body", []) if isinstance(child, ast.stmt)]
            may = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
            if may and (found := NO_OPENING.match(ast.get_docstring(node) or "")):  # type: ignore[arg-type]
                line = getattr(node, "lineno", 1)
                yield f"{os.path.relpath(path)}:{line}: the docstring begins with {found[0]!r}, no noun or imperative"


def changed_quote(root: Path) -> Iterator[str]:
    """The decision, if ARCHITECTURE.md quotes it otherwise than it is."""
    path = root / "src" / "themis" / "core" / "decision.py"
    text = path.read_text(encoding="utf-8")
    found = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == "decide")
    quote = textwrap.dedent(ast.get_source_segment(text, found, padded=True) or "")
    if f"```python\n{quote}\n```\n" not in (root / "ARCHITECTURE.md").read_text(encoding="utf-8"):
        yield f"{path.relative_to(root)}:{found.lineno}: ARCHITECTURE.md quotes another text of `decide`: copy this one"


def changed_tables(root: Path) -> Iterator[str]:
    """Pages whose tables of settings differ from the settings."""
    from settings_tables import TABLES, page

    for name in sorted({name for name, _ in TABLES}):
        if page(name) != (root / "docs" / name).read_text(encoding="utf-8"):
            yield f"docs/{name}:1: its tables differ from the settings: python website/settings_tables.py"


KINDS = {"TimeShare", "RoundPlan", "GpuGrant"}
MAY_LOOK = ("core/intend.py", "model/", "policies/", "testing/")
"""The one module of the core; what makes answers, writes them down, and checks policies."""


def kinds_of_answers(package: Path) -> Iterator[str]:
    """Questions for the kind of an answer, by ``isinstance`` or a pattern of ``match``, outside of where they may be asked."""
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.startswith(MAY_LOOK):
            continue
        for node in ast.walk(parsed(path)):
            asked: ast.AST | None = node.cls if isinstance(node, ast.MatchClass) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = node.args[1]
            if asked is not None and any(isinstance(n, ast.Name) and n.id in KINDS for n in ast.walk(asked)):
                yield f"{name}:{node.lineno}: asks for the kind of an answer; core/intend.py does"  # type: ignore[attr-defined]


def assigned_statuses(package: Path) -> Iterator[str]:
    """Assignments to the column of jobs' statuses outside of the table of its transitions."""
    for path in sorted((package / "core").glob("*.py")):
        if path.name == "job_lifecycle.py":
            continue
        for node in ast.walk(parsed(path)):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in (part for whole in targets for part in ast.walk(whole)):
                if isinstance(target, ast.Subscript) and getattr(target.value, "attr", "") == "status":
                    yield f"{path.relative_to(package)}:{target.lineno}: assigns a status; core/job_lifecycle.py moves it"


def wrong_unsteady() -> Iterator[str]:
    """A line of ``tests/unsteady.txt`` that is not allowed."""
    try:
        unsteady()
    except ValueError as wrong:
        yield str(wrong)


def findings() -> Iterator[str]:
    """All findings."""
    yield from broken_links(ROOT)
    yield from unknown_targets(ROOT)
    yield from unknown_names_of_papers()
    yield from wrong_figures(ROOT, documents(ROOT))
    yield from wrong_defaults()
    yield from silent_modules(PACKAGE)
    yield from wrong_openings(PACKAGE)
    yield from in_package()
    yield from in_pages()
    yield from circles_of_package()
    yield from wrong_unsteady()
    yield from changed_quote(ROOT)
    yield from changed_tables(ROOT)
    yield from kinds_of_answers(PACKAGE)
    yield from assigned_statuses(PACKAGE)


def main() -> int:
    """Print the findings; 1 if there are any."""
    found = list(findings())
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
