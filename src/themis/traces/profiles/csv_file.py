"""Measured throughputs in a CSV file, with a row for each measurement.

    model,batch,gpu_type,gpus,steps_per_s,placement,partner,partner_batch
    ResNet-50,64,V100,1,4.39,,,
    ResNet-50,64,V100,4,9.45,together,,
    ResNet-50,64,V100,4,8.80,apart,,
    ResNet-50,64,V100,1,2.35,,A3C,

``model``, ``gpu_type`` and ``steps_per_s`` are required; ``batch`` empty is the model's own, ``gpus`` empty is 1. A gang is
``together`` on as few machines as possible (empty), or ``apart`` on as many. A rate of 0 says that the model does not fit
there, and bars it. ``partner`` : the model on the same GPU; the
row's rate is the first one's. Lines that begin with ``#`` are comments.
"""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from themis.errors import InputError, TraceError
from themis.traces.profiles.throughputs import Alone, Beside, Throughputs

COLUMNS = ("model", "batch", "gpu_type", "gpus", "steps_per_s", "placement", "partner", "partner_batch")
REQUIRED = ("model", "gpu_type", "steps_per_s")
PLACEMENTS = ("together", "apart")


def read_csv(path: Path) -> Throughputs:
    """Read a table of throughputs.

    Raises
    ------
    InputError : the file cannot be read, lacks a column, or says one thing twice (TraceError: a cell is wrong).
    """
    together: dict[str, dict[Alone, float]] = {}
    apart: dict[str, dict[Alone, float]] = {}
    beside: dict[str, dict[Beside, float]] = {}
    barred: dict[str, set[Alone]] = {}
    seen: dict[tuple[object, ...], int] = {}
    pairs: list[_Row] = []
    for row in _rows(path):
        kind, model, batch, gpus = row.need("gpu_type"), row.need("model"), row.whole("batch", 0), row.whole("gpus", 1)
        rate, placement, partner = row.rate(), row.placement(), row.cells["partner"]
        key = (kind, model, batch, gpus, placement, partner, row.whole("partner_batch", 0))
        if key in seen:
            raise InputError(
                f"{path}, line {row.line}: measured in line {seen[key]} already; keep one of the two rows."
            )
        seen[key] = row.line
        if rate == 0:
            if partner or placement != PLACEMENTS[0]:
                row.fail(
                    "steps_per_s", "steps per second above 0; 0 (does not fit) is for rows together, without a partner"
                )
            barred.setdefault(kind, set()).add((model, batch, gpus))
        elif partner:
            if placement != PLACEMENTS[0]:
                row.fail(
                    "placement",
                    f"{PLACEMENTS[0]} for a job that shares its GPU with a partner, or nothing: it is one GPU",
                )
            if gpus != 1:
                row.fail(
                    "gpus", "1 for a job that shares its GPU with a partner: gangs keep the same share of their speed"
                )
            beside.setdefault(kind, {})[model, batch, partner, row.whole("partner_batch", 0)] = rate
            pairs.append(row)
        else:
            if row.cells["partner_batch"]:
                row.fail("partner_batch", "nothing where partner is empty")
            (apart if placement == "apart" else together).setdefault(kind, {})[model, batch, gpus] = rate
    for row in pairs:
        kind, model, batch = row.cells["gpu_type"], row.cells["model"], row.whole("batch", 0)
        if (model, batch, 1) not in together.get(kind, {}):
            row.fail(
                "partner", f"a row too for {model} alone on one {kind}, as the share that it keeps is of that rate"
            )
    if not together:
        raise InputError(f"{path} has no rate of a model on GPUs together, expected at least one row.")
    return Throughputs(
        together=together, apart=apart, beside=beside, barred={kind: frozenset(rows) for kind, rows in barred.items()}
    )


def write_csv(path: Path, rates: Throughputs) -> None:
    """Write a table of throughputs; what is read back is equal."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for cells in rows_of(rates):
            out.writerow(cells)


def rows_of(rates: Throughputs) -> Iterator[tuple[object, ...]]:
    """A table's rows in the order of ``COLUMNS``: alone, apart, in pairs."""
    for placement, table in (("together", rates.together), ("apart", rates.apart)):
        for kind, jobs in table.items():
            for (model, batch, gpus), rate in jobs.items():
                yield model, batch or "", kind, gpus, rate, placement, "", ""
    for kind, zero in rates.barred.items():
        for model, batch, gpus in sorted(zero):
            yield model, batch or "", kind, gpus, 0, "together", "", ""
    for kind, pairs in rates.beside.items():
        for (model, batch, partner, other), rate in pairs.items():
            yield model, batch or "", kind, 1, rate, "together", partner, other or ""


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    cells: Mapping[str, str]

    def fail(self, column: str, expected: str) -> Never:
        raise TraceError(
            file=str(self.path), line=self.line, column=column, value=self.cells[column], expected=expected
        )

    def need(self, column: str) -> str:
        return self.cells[column] or self.fail(column, "a name")

    def whole(self, column: str, default: int) -> int:
        text = self.cells[column]
        if not text:
            return default
        if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
            self.fail(column, "a whole number from 1 to 1,000,000, or nothing")
        return int(text)

    def rate(self) -> float:
        try:
            rate = float(self.cells["steps_per_s"])
        except ValueError:
            rate = math.nan
        if not 0 <= rate < math.inf:
            self.fail("steps_per_s", "steps per second above 0, or 0 for what does not fit")
        return rate

    def placement(self) -> str:
        text = self.cells["placement"] or PLACEMENTS[0]
        if text not in PLACEMENTS:
            self.fail("placement", f"one of {', '.join(PLACEMENTS)}, or nothing{_hint(text, PLACEMENTS)}")
        return text


def _rows(path: Path) -> Iterator[_Row]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InputError(f"cannot read throughputs {str(path)!r}: {why}.") from None
    kept = [(n, line) for n, line in enumerate(lines, start=1) if line.strip() and not line.startswith("#")]
    try:
        header, *table = [[cell.strip() for cell in cells] for cells in csv.reader(line for _, line in kept)] or [[]]
    except csv.Error as error:
        raise InputError(f"cannot read throughputs {str(path)!r}: {error}.") from None
    if len(header) == 1 and (mark := next((c for c in (";", "\t") if c in header[0]), None)):
        raise InputError(f"{path}: cells are parted by {mark!r}, expected commas.")
    for column in header:
        if header.count(column) > 1:
            raise InputError(f"{path}: column {column!r} appears twice, expected each once.")
        if column not in COLUMNS:
            known = f"Known: {', '.join(COLUMNS)}."
            raise InputError(f"{path}: unknown column {column!r}{_hint(column, COLUMNS)}. {known}")
    for column in REQUIRED:
        if column not in header:
            raise InputError(f"{path}: column {column!r} is missing, expected {', '.join(REQUIRED)} at least.")
    for (line, _), cells in zip(kept[1:], table):
        if len(cells) != len(header):
            raise InputError(f"{path}, line {line}: {len(cells)} cells, expected {len(header)} as in the header.")
        found = dict(zip(header, cells))
        yield _Row(path, line, {column: found.get(column, "") for column in COLUMNS})


def _hint(text: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(text, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
