"""Mutants: small faults in the code, one at a time, and which tests find them. It rewrites `src`: run it in a worktree of its own.

    python benchmarks/mutants.py plant 200:service,machines/engines,machines/agent 100:
    THEMIS_TEST_COSTS=build/costs python -m pytest -m "(pure or contract or simulated) and not slow"
    python benchmarks/mutants.py hunt 100 50 --tests 8; python benchmarks/mutants.py hunt 100 50 --tests 200 --only 3 17

``plant`` draws places in function bodies, a number of some folders and a number of the rest, and puts a switch into each,
between its code and a mutant. Switches write to `build/hits` which tests reach them. ``hunt`` takes the first reached mutants of
each part, turns one after the other on in a fork of one pytest process, and runs the tests that reach it, the cheapest of each file
first, until one fails that passes without the mutant. It appends each result to `build/found`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import resource
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE, BUILD = ROOT / "src" / "themis", ROOT / "build"
FUTURE = "from __future__ import annotations"
CPU_S, WALL_S = 60, 600
"""Limits of one mutant's tests; a mutant whose tests exceed one of them is found."""
SWITCH = '''"""Switches of mutants."""
import contextlib, os
from pathlib import Path
_BUILD = Path(__file__).parents[2] / "build"
_seen = set()
active = -1
with contextlib.suppress(OSError, ValueError):
    active = int((_BUILD / "active").read_text())
def on(n):
    if active < 0 and len(_seen) < 50_000 and (key := (n, os.environ.get("PYTEST_CURRENT_TEST", "?"))) not in _seen:
        _seen.add(key)
        with contextlib.suppress(OSError), open(_BUILD / "hits", "a") as file:
            file.write(f"{n} {key[1].rpartition(' ')[0]}\\n")
    return n == active
'''
_PAIRS = "Lt LtE, Gt GtE, Eq NotEq, In NotIn, Is IsNot, Add Sub, Mult Div, And Or"
SWAPS: dict[str, str] = {a: b for pair in _PAIRS.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def mutated(node: Any) -> str | None:
    """The text of a node's mutant; None where there is none."""
    swap = SWAPS.get(type(getattr(node, "op", node.ops[0] if isinstance(node, ast.Compare) else None)).__name__)
    match node:
        case ast.Compare(ops=[_]):
            return ast.unparse(ast.Compare(node.left, [getattr(ast, str(swap))()], node.comparators))
        case ast.BoolOp():
            return ast.unparse(ast.BoolOp(getattr(ast, str(swap))(), node.values))
        case ast.BinOp() if swap:
            texts = any(
                isinstance(side, ast.List | ast.JoinedStr) or _is_text(side) for side in (node.left, node.right)
            )
            return None if texts else ast.unparse(ast.BinOp(node.left, getattr(ast, swap)(), node.right))
        case ast.UnaryOp(op=ast.Not()):
            return ast.unparse(node.operand)
        case ast.Constant(value=bool(value)):
            return str(not value)
        case ast.Constant(value=int() | float() as value):
            return str(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            return ast.unparse(ast.Call(ast.Name(CALLS[name]), node.args, node.keywords))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return "pass"
    return None


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _speaks(node: ast.AST) -> bool:
    """True for code that only makes texts for people, and for patterns."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.pattern() | ast.Assert() | ast.Call(func=ast.Name(id="print")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "logging" | "warnings"))):
            return True
    return False


def places(node: ast.AST, inside: bool = False) -> Iterator[tuple[Any, str]]:
    """Nodes of function bodies that have a mutant, with its text; annotations and defaults are no places."""
    if _speaks(node) or (isinstance(node, ast.Expr) and _speaks(node.value)):
        return
    if inside and (text := mutated(node)) is not None:
        yield node, text
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children = [] if node.name in ("__str__", "__repr__") else node.body
        inside = True
    else:
        left_out = [getattr(node, "annotation", None), *getattr(node, "decorator_list", ())]
        children = [child for child in ast.iter_child_nodes(node) if child not in left_out]  # type: ignore[misc]
    for child in children:
        yield from places(child, inside)


def plant(parts: list[str], seed: int) -> None:
    """Draw the mutants of each part, ``NUMBER:FOLDER,...``, the rest of the package without folders, and put them into `src`."""
    rng, drawn, taken = Random(seed), list[dict[str, Any]](), set[str]()
    files = {p.relative_to(PACKAGE).as_posix(): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}
    files = {name: text for name, text in files.items() if FUTURE in text}
    for part, wanted in enumerate(parts):
        many, _, folders = wanted.partition(":")
        below = tuple(f"{folder}/" for folder in folders.split(",") if folder) or ""
        names = [name for name in files if name not in taken and name.startswith(below)]
        taken.update(names)
        found = [(name, node, text) for name in names for node, text in places(ast.parse(files[name]))]
        rng.shuffle(found)
        used, left = defaultdict[str, set[int]](set), int(many)
        for name, node, text in found:
            lines = set(range(node.lineno, node.end_lineno + 1))
            if left and not lines & used[name]:
                used[name] |= lines
                ends = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
                row = {"n": len(drawn), "part": part, "file": name, "ends": ends, "from": ast.unparse(node), "to": text}
                drawn.append(row)
                left -= 1
        print(f"part {part}: {len(found)} places in {len(names)} files")
    for name in {m["file"] for m in drawn}:
        rows = [line.encode() for line in files[name].splitlines(keepends=True)]
        for m in sorted((m for m in drawn if m["file"] == name), key=lambda m: -m["ends"][0]):
            first, start, last, end = m["ends"]
            text = b"".join(rows[first - 1 : last])
            end += len(text) - len(rows[last - 1])
            old, switch = text[start:end].decode(), f"_mutant_on({m['n']})"
            new = f"if not {switch}: {old}" if m["to"] == "pass" else f"(({m['to']}) if {switch} else ({old}))"
            rows[first - 1 : last] = [text[:start] + new.encode() + text[end:]]
        switched = f"{FUTURE}; from themis._mutants import on as _mutant_on"
        (PACKAGE / name).write_text(b"".join(rows).decode().replace(FUTURE, switched, 1))
    (PACKAGE / "_mutants.py").write_text(SWITCH)
    BUILD.mkdir(exist_ok=True)
    (BUILD / "mutants.json").write_text(json.dumps(drawn))


class Hunter:
    """Runs the tests of each mutant in a fork of this process."""

    def __init__(self, chosen: dict[int, list[str]]) -> None:
        self.chosen, self.passes = chosen, dict[str, bool]()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run these in place of all tests."""
        items = {item.nodeid.partition("@")[0]: item for item in session.items}
        for n, tests in self.chosen.items():
            found, left = "", [t for t in tests if t in items]
            while (left := [t for t in left if self.passes.get(t, True)]) and not found:
                at = self._first_failure(session, n, [items[t] for t in left])
                if at is None:
                    break
                if self.passes.setdefault(left[at], self._first_failure(session, -1, [items[left[at]]]) is None):
                    found = left[at]
                left = left[at + 1 :]
            with open(BUILD / "found", "a") as file:
                print(n, found or f"SURVIVES {len(tests)} tests", file=file)
        return True

    def _first_failure(self, session: pytest.Session, n: int, items: list[pytest.Item]) -> int | None:
        """The position of the first of these tests that fails while a mutant is on."""
        (BUILD / "active").write_text(str(n))
        at, begun = BUILD / "at", time.monotonic()
        at.write_text("0")
        if (pid := os.fork()) == 0:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
            import themis._mutants as switches  # type: ignore[import-not-found]

            switches.active = n if n >= 0 else 1 << 30
            for number, item in enumerate(items):
                at.write_text(str(number))
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                if session.testsfailed:
                    os._exit(1)
            os._exit(0)
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > begun + WALL_S:
                os.killpg(pid, signal.SIGKILL)
            time.sleep(0.05)
        (BUILD / "active").unlink()
        return int(at.read_text()) if ended[1] else None


def hunt(parts: list[int], most: int, cheap_s: float, only: list[int]) -> None:
    """Turn mutants on and run their tests, at most ``most`` of at most ``cheap_s`` CPU seconds each."""
    drawn = json.loads((BUILD / "mutants.json").read_text())
    costs = {
        r["test"].partition("@")[0]: r["cpu_s"] for r in map(json.loads, (BUILD / "costs").read_text().splitlines())
    }
    hits = defaultdict[int, set[str]](set)
    for line in (BUILD / "hits").read_text().splitlines():
        n, _, test = line.partition(" ")
        if costs.get(test := test.partition("@")[0], 1e9) <= cheap_s:
            hits[int(n)].add(test)
    chosen: dict[int, list[str]] = {}
    for part, many in enumerate(parts):
        reached = [m["n"] for m in drawn if m["part"] == part and hits[m["n"]]]
        print(f"part {part}: {len(reached)} of {sum(m['part'] == part for m in drawn)} mutants are reached")
        for n in reached[:many]:
            earlier, rank = Counter[str](), dict[str, int]()
            for test in sorted(hits[n], key=lambda t: (costs[t], t)):
                rank[test] = earlier[file := test.partition("::")[0]]
                earlier[file] += 1
            if not only or n in only:
                chosen[n] = sorted(rank, key=lambda t: (rank[t], costs[t]))[:most]
    os.chdir(ROOT)
    files = sorted({test.partition("::")[0] for tests in chosen.values() for test in tests})
    pytest.main(["-q", "-p", "no:cacheprovider", "-s", *files], plugins=[Hunter(chosen)])


def main() -> None:
    """Plant or hunt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("plant", "hunt"))
    parser.add_argument("parts", nargs="+", help="plant: NUMBER:FOLDER,...; hunt: numbers")
    parser.add_argument("--seed", type=int, default=98)
    parser.add_argument("--tests", type=int, default=8, help="most tests of a mutant")
    parser.add_argument("--cheap", type=float, default=2.0, help="most CPU seconds of a test")
    parser.add_argument("--only", nargs="*", type=int, default=[], help="these mutants")
    given = parser.parse_args()
    if given.do == "plant":
        plant(given.parts, given.seed)
    else:
        hunt([int(n) for n in given.parts], given.tests, given.cheap, given.only)


if __name__ == "__main__":
    main()
