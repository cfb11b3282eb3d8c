"""The drawing of the rooms in ARCHITECTURE.md, from the imports: ``python website/rooms.py`` writes docs/img/rooms.svg."""

from __future__ import annotations

import configparser
import re
import sys
from collections import Counter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "img" / "rooms.svg"
SEAM = "testing"
"""The highest room of the scientific half."""

ABOUT = {
    "cli": "the themis command",
    "service": "arbiter, journal, API, console",
    "client": "Python SDK, Optuna, Ray Tune",
    "jobs": "job files",
    "machines": "node agents, engines, files",
    "trust": "certificates, OpenID Connect",
    "testing": "conformance kits",
    "sim": "simulator, what-if",
    "report": "metrics, figures, accounts",
    "core": "scheduler.step",
    "traces": "workloads, clusters, speeds",
    "policies": "one file a policy",
    "fairness": "rho, reference, forecasts",
    "optimize": "programs with proofs",
    "model": "frozen data",
}
WIDE, HIGH, GAP, LEFT = 204, 44, 22, 40


def layers() -> list[list[str]]:
    """Rooms from the top down, those of one layer together: the first contract of ``.importlinter``."""
    contract = configparser.ConfigParser()
    contract.read(ROOT / ".importlinter")
    rows = contract["importlinter:contract:layers"]["layers"].split("\n")
    return [found for row in rows if (found := [room for room in row.split(" | ") if room in ABOUT])]


def imports() -> Counter[tuple[str, str]]:
    """Number of modules of one room that import each other room."""
    graph = grimp.build_graph("themis", exclude_type_checking_imports=False, cache_dir=None)
    pairs = {
        (module, other.split(".")[1])
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
        if module.count(".") and other.count(".")
    }
    return Counter((module.split(".")[1], other) for module, other in pairs if module.split(".")[1] != other)


def drawing() -> str:
    """Two columns, one for each half; a line is an import, as thick as the modules are many."""
    rows = layers()
    below = [row[0] for row in rows].index(SEAM)
    places: dict[str, tuple[int, int]] = {}
    for y, row in enumerate(rows):
        for x, room in enumerate(row):
            column = LEFT + (0 if y < below else 2 * WIDE) + x * (WIDE + GAP)
            places[room] = column, 40 + y * (HIGH + GAP)
    high = 40 + len(rows) * (HIGH + GAP)
    wide = max(x for x, _ in places.values()) + WIDE + LEFT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="13">',
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-weight="bold" fill="#333">live half</text>',
        f'<text x="{LEFT + 2 * WIDE}" y="{28 + below * (HIGH + GAP)}" font-weight="bold" fill="#333">scientific half</text>',
    ]
    for (room, other), count in sorted(imports().items()):
        if room in places and other in places:
            (x, y), (u, v) = places[room], places[other]
            colour = "#0072b2" if y < 40 + below * (HIGH + GAP) else "#d55e00"
            out.append(
                f'<line x1="{x + WIDE // 2}" y1="{y + HIGH}" x2="{u + WIDE // 2}" y2="{v}" stroke="{colour}" '
                f'stroke-opacity="0.35" stroke-width="{0.6 + count**0.5 / 2:.1f}"/>'
            )
    for room, (x, y) in places.items():
        out += [
            f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="5" fill="#f4f4f4" stroke="#555"/>',
            f'<text x="{x + 10}" y="{y + 18}" font-weight="bold" fill="#111">{room}/</text>',
            f'<text x="{x + 10}" y="{y + 35}" fill="#333" font-size="12">{ABOUT[room]}</text>',
        ]
    return "\n".join([*out, "</svg>", ""])


def _shape(picture: str) -> str:
    """The drawing without the thickness of its lines, which changes with almost every commit."""
    return re.sub(r' stroke-width="[^"]*"', "", picture)


if __name__ == "__main__":
    if "--check" in sys.argv:
        same = _shape(PICTURE.read_text(encoding="utf-8")) == _shape(drawing())
        sys.exit(0 if same else "docs/img/rooms.svg is older than the imports: run python website/rooms.py")
    PICTURE.write_text(drawing(), encoding="utf-8")
