"""Gavel's measured throughputs as profiles: 26 models and batch sizes on V100, P100 and K80 (OSDI'20; MIT licence).

The figures stand in ``tables/``: steps/s to four digits, and the share of its speed that a job keeps next to another.
They replace Table 4's ``Transformer``, so the book is for workloads of these models; ``DEFAULT_BOOK`` is for the
others.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files

from themis.model.speed import ProfileBook
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.throughputs import Alone, Beside, Throughputs, profiles_of

SOURCE = "Gavel (OSDI'20, MIT licence), measured"


@lru_cache(maxsize=1)
def gavel_throughputs() -> Throughputs:
    """The shipped table."""
    together: dict[str, dict[Alone, float]] = {}
    apart: dict[str, dict[Alone, float]] = {}
    barred: dict[str, set[Alone]] = {}
    for row in _rows("gavel_alone.csv"):
        model, batch, kind = row.pop("model"), int(row.pop("batch") or 0), row.pop("gpu_type")
        for name, cell in row.items():
            where, _, gpus = name.rpartition("_")
            if cell == "0":
                barred.setdefault(kind, set()).add((model, batch, int(gpus)))
            elif cell:
                (apart if where else together).setdefault(kind, {})[model, batch, int(gpus)] = float(cell)
    beside: dict[str, dict[Beside, float]] = {}
    for row in _rows("gavel_beside.csv"):
        model, batch, kind = row.pop("model"), int(row.pop("batch") or 0), row.pop("gpu_type")
        alone = together[kind][model, batch, 1]
        for partner, cell in row.items():
            name, _, other = partner.rpartition(" ")
            if cell:
                key = (model, batch, name, int(other)) if name else (model, batch, other, 0)
                beside.setdefault(kind, {})[key] = alone * float(cell) / 100.0
    return Throughputs(
        together=together, apart=apart, beside=beside, barred={kind: frozenset(jobs) for kind, jobs in barred.items()}
    )


@lru_cache(maxsize=1)
def gavel_book() -> ProfileBook:
    """The default book with Gavel's models."""
    return DEFAULT_BOOK.with_profiles(profiles_of(gavel_throughputs(), SOURCE))


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = (files("themis.traces.profiles") / "tables" / name).read_text(encoding="utf-8")
    yield from csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
