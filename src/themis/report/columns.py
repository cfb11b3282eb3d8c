"""A metric is one row of a table: a field of a dataclass whose metadata say its unit, definition, fold and column.

``numbers.Numbers`` holds the metrics of a run, ``rho.RhoStats`` the statistics of finish-time fairness, ``rows.AppRow``,
``users.UserRow`` and ``plans.PlanRow`` what a report says about each app, user and planned job. JSON, CSV, Parquet, the
tables, the HTML page, its definitions and the reference page on metrics are all derived from these fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from themis.model.units import Float

HOUR, MINUTE, PER_CENT = 3600.0, 60.0, 0.01
SOONER = -1.0
"""Scale of seconds that are shown in words: ``12.0 min sooner``."""
Better = Literal["low", "high", ""]
Shown = Literal["short", "compare", "all"]
"""Tables that show a column: simulations and all others | comparisons too | only on demand, and HTML."""
KEY = "themis.report"
"""Key of a field's metadata that holds its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonColumn:
    """Display of one number in a comparison of runs.

    Attributes
    ----------
    name : as ``result.scalar`` knows it. ``title`` : short, with its unit. ``scale`` : the number is divided by it.
    digits : after the decimal point. ``better`` : which direction is better, if any.
    definition : what it means. ``per_app`` : of a percentile over apps, the field of ``AppRow`` that it is of.
    """

    name: str = ""
    title: str
    scale: float = 1.0
    digits: int = 2
    better: Better = "low"
    shown: Shown = "short"
    definition: str = ""
    per_app: str = ""

    @property
    def short(self) -> bool:
        """True if the table of a simulation has room for it."""
        return self.shown == "short"

    def text(self, value: float) -> str:
        """The number as shown; a dash if there is none."""
        return "–" if math.isnan(value) else f"{value / self.scale:,.{self.digits}f}"

    def signed(self, value: float) -> str:
        """A difference as shown, with its sign; what rounds to 0 has none."""
        if math.isnan(value):
            return "–"
        text = f"{value / self.scale:+,.{self.digits}f}"
        return text if text.strip("+-0.,") else text[1:]

    def in_minutes(self) -> ComparisonColumn:
        """The same, minutes in place of hours."""
        if self.scale != HOUR:
            return self
        return replace(self, scale=MINUTE, title=f"{self.title.removesuffix('h')}min", digits=max(self.digits, 1))

    @property
    def heading(self) -> str:
        """The title in one line."""
        return self.title.replace("-\n", "").replace("\n", " ").strip()


# ---- statistics of finish-time fairness ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One statistic over values of rho: a field of ``RhoStats``. ``of`` : values [A], A >= 1, to the statistic."""

    name: str
    title: str
    definition: str
    of: Callable[[Float], float]
    scale: float
    better: Better


def statistic(
    definition: str, *, title: str, of: Callable[[Float], float], scale: float = 1.0, better: Better = "low"
) -> Any:
    """A field of ``RhoStats``."""
    made = Statistic(name="", title=title, definition=definition, of=of, scale=scale, better=better)
    return field(metadata={KEY: made})


def statistics_of(table: type[Any]) -> tuple[Statistic, ...]:
    """The statistics of a class, in the order of its fields."""
    return tuple(replace(f.metadata[KEY], name=f.name) for f in described(table, Statistic))


# ---- tables of apps, users, plans ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RowField:
    """One field of a row about an app, a user or a job. No title: the page does not show it. ``scale`` 0: shown as it is;
    ``SOONER``: in words.
    """

    name: str
    title: str
    scale: float
    definition: str


def cell(definition: str = "", *, title: str = "", scale: float = 1.0) -> Any:
    """A field of a row; a definition makes it part of the list of definitions."""
    return field(metadata={KEY: RowField(name="", title=title, scale=scale, definition=definition)})


def cells_of(row: type[Any]) -> tuple[RowField, ...]:
    """The fields of a row that say something about themselves, in their order."""
    return tuple(replace(f.metadata[KEY], name=f.name) for f in described(row, RowField))


def definitions_of(row: type[Any]) -> Mapping[str, str]:
    """Definition by name, of the fields of a row that have one."""
    return MappingProxyType({c.name: c.definition for c in cells_of(row) if c.definition})


def described(table: type[Any], kind: type[Any]) -> list[Field[Any]]:
    """The fields of a class that carry a row of this kind, in their order."""
    return [f for f in fields(table) if isinstance(f.metadata.get(KEY), kind)]
