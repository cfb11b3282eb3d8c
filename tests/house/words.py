"""Plain words in what users see: help texts, messages, descriptions of settings, README and docs.

Each pattern is a phrase that readers stumbled over, or a private word for which Slurm, Kubernetes, Ray or the papers have a
term. Patterns are narrow, so that ordinary English does not trip them (`test_words.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "themis"

WORDS: dict[str, str] = {
    r"\bwhoever\b": "name the person: the user, the caller, the job",
    r"\bnobody\b|\bsomebody\b": "name the person, or use the passive: no user, another user",
    r"\banew\b": "again, restart",
    r"\bbut for\b": "except",
    r"(?<!-)\bbeside\b(?!')": "next to, with, in addition to",
    r"\btell(?:s|ing)? of\b|\bis told (?:to|that|of|at)\b|\btold to\b|\bare told\b": "report, show, notify, send",
    r"\b(?:within|after|for|at most) so long\b|\bso long may\b": "name the time: timeout, interval, retention",
    r"\bso many (?:virtual|GPUs|trials|seconds|jobs|apps|at once)\b|\bnewest so many\b|^So many\b": "number of, maximum number of",
    r"\bat once\b": "concurrently (at the same time) or immediately",
    r"\bis none\b": "say what it is not: 'not an administrator', 'unknown option'",
    r"(?<!there )\bis no (?:field|arbiter|state|place|parameter|word|log|service|journal|machine)\b": "is not a ...; unknown ...",
    r"\bit has the key\b|\bkey .{1,20} twice\b": "duplicate key",
    r"\bthe key .{1,40} is missing\b": "missing key",
    r"\bare both there\b": "exclude each other",
    r"\bNothing is wrong\b": "is valid",
    r"\bWent on from\b|\bgoes on where it was\b|\bgo on where\b": "recovered from, continues",
    r"\bdraws? lots\b": "random",
    r"\bthat there (?:are|is)\b|\bthere is none\b|\bwhat there is\b|\bwhere there (?:is|are)\b": "existing, if it exists",
    r"\b(?:is|are) believed\b|\byou believe\b": "estimated, assumed",
    r"\b(?:apps?|jobs?|it|run|they|that) (?:is|are) over\b(?! \d)": "has ended, is finished",
    r"\bwait(?:s|ing)? in a circle\b": "circular dependency",
    r"\bmost of it that\b|\bmost (?:GPUs|jobs|apps|agents|submissions|faults)\b(?= (?:of|that|at|to)\b)": "maximum number of",
    r"\blet(?:s)? go of\b|\blet(?:s)? the system choose\b": "release; any free port",
    r"\bcomes? of age\b|\bfor ever\b": "no limit, permanently",
    r"\bit knows? not\b|\bknows? nothing of\b": "does not know",
    r"\bhung up on\b|\bhang(?:s)? up\b": "closes the connection",
    r"\bkeepers?\b": "supervisor",
    r"\b(?:arbiter|service|user)'s home\b|\bhome of (?:an|the) arbiter\b|(?<!THEMIS_)\bHOME\b": "data directory",
    r"\b(?:the|an?|its|this|one|own|another|other) homes?\b(?! directory)": "data directory",
    r"\bbags?\b(?! of words)": "batch (job set)",
    r"\bpicture of the state\b|\bpictures? (?:in|of) the journal\b": "state snapshot file",
    r"\bseating\b|\bthe hall\b|\bplenty\b": "assignment; uncontested",
    r"\bdearest\b": "maximum cost, best price",
    r"\bstrangers\b|\bculprits?\b": "orphan tasks; failed part",
}
"""Pattern (case matters only where it has capitals) -> what to write instead."""


def found(text: str) -> list[str]:
    """The phrases of a text that a pattern finds, each with the better word."""
    return [
        f"{match.group(0)!r} -> {better}"
        for pattern, better in WORDS.items()
        for match in re.finditer(pattern, text, 0 if re.search(r"[A-Z]{2}", pattern) else re.IGNORECASE)
    ]


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """String literals in an expression; the constant parts of an f-string are one text."""
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)  # type: ignore[misc]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif not isinstance(node, ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def seen_by_users(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module that users can see: string literals of two words or more; docstrings of commands alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            unseen.add(node.value)
        if path.parent.name == "cli" and isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node.lineno, text
        elif isinstance(node, ast.JoinedStr):
            unseen.update(node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node not in unseen:
            yield from ((line, text) for line, text in _texts(node) if " " in text.strip())


def in_package() -> Iterator[str]:
    """Problems in the texts of the package's modules."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in sorted(set(seen_by_users(path))):
            yield from (f"{path.relative_to(ROOT)}:{line}: {problem}" for problem in found(text))


def in_pages() -> Iterator[str]:
    """Problems in the README, the Makefile and the pages of the documentation."""
    for page in [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md"))]:
        yield from in_page(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))


def in_page(page: str, text: str) -> Iterator[str]:
    """Problems in the text of a page outside of its blocks of code, by line; lines of a paragraph are joined."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block.group(0).count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "`code`", text)
    text = re.sub(r"\]\([^)\s]*\)", "]()", text)
    for pattern, better in WORDS.items():
        spaced = pattern.replace(" ", r"\s+") if not re.search(r"\(\?[<!=]", pattern) else pattern
        flags = 0 if re.search(r"[A-Z]{2}", pattern) else re.IGNORECASE
        for match in re.finditer(spaced, text, flags):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{page}:{line}: {match.group(0)!r} -> {better}"
