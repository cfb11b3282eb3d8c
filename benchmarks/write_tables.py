"""Run the benchmarks, and write their tables into docs/benchmarks.md with command, commit and date.

    python benchmarks/write_tables.py [COMMAND ...]        such as: write_tables.py "bench_whole.py --simulations"

A table of the page stands below a line ``<!-- bench: COMMAND -->`` and the line of its record. A table that the command prints
with the same header replaces it. Without commands, all of the page run, and the benchmarks that have no table there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
MARKER = re.compile(r"<!-- bench: (.+) -->")


def tables(text: str) -> dict[str, list[str]]:
    """Header line -> rows, of the Markdown tables in a text; an empty line ends a table, lines of libraries do not."""
    found: dict[str, list[str]] = {}
    header = ""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""]):
        if not line.strip():
            header = ""
        elif not header and line.startswith("|") and following.startswith("|-"):
            header = line
            found[header] = []
        elif header and line.startswith("|") and not line.startswith("|-"):
            found[header].append(line)
    return found


def written(page: str, command: str, output: str, record: str) -> str:
    """The page with the rows that a command printed, and the record of these tables.

    A printed table without rows, or one with another header than the page's, changes nothing.
    """
    printed = {header: rows for header, rows in tables(output).items() if rows}
    parts = re.split(r"(?m)^(?=<!-- bench: )", page)
    for at, part in enumerate(parts):
        marker = MARKER.match(part)
        if marker is None or marker[1] != command:
            continue
        lines = part.splitlines(keepends=True)
        start = next((i for i, line in enumerate(lines) if line.rstrip("\n") in printed), None)
        if start is None:
            continue
        end = start + 2
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        rows = [row + "\n" for row in printed[lines[start].rstrip("\n")]]
        lines[1] = f"`python benchmarks/{command}`, recorded in {record}.\n"
        parts[at] = "".join([*lines[: start + 2], *rows, *lines[end:]])
    return "".join(parts)


def main() -> None:
    """Run one command after the other; the page is written after each."""
    page = PAGE.read_text()
    commands = sys.argv[1:] or list(dict.fromkeys(MARKER.findall(page)))
    if not sys.argv[1:]:
        named = {command.split()[0] for command in commands}
        commands += sorted(path.name for path in HERE.glob("bench_*.py") if path.name not in named)
    failed = []
    for command in commands:
        print(f"== {command}", flush=True)
        script, *options = command.split()
        ran = subprocess.run(
            [sys.executable, str(HERE / script), *options], stdout=subprocess.PIPE, text=True, check=False
        )
        print(ran.stdout, flush=True)
        if ran.returncode:
            failed.append(command)
            continue
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
        record = f"`{commit}`, {datetime.now(UTC):%Y-%m-%d}"
        PAGE.write_text(written(PAGE.read_text(), command, ran.stdout, record))
    if failed:
        sys.exit(f"These benchmarks ended with an error: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
