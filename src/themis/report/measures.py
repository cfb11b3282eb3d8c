"""Metrics: a fold's input (``Folded``), its row (``Metric``), and the forms of finish-time fairness (``RhoField``).

The metrics themselves are fields of ``numbers.Numbers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from typing import Any

import numpy as np

from themis.model.units import Float, GpuSeconds, Seconds
from themis.report.columns import KEY, PER_CENT, ComparisonColumn, Shown, Statistic, described
from themis.report.ledger import DecisionTotals, Ledger, Totals
from themis.report.rows import AppRow, JobTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Facts read from a log, in the form that the folds of metrics take.

    Attributes
    ----------
    apps : all apps. ``done`` : those that completed, over which most statistics are. ``jobs`` : columns of all jobs.
    jct : seconds of each completed app. ``wait`` : seconds from arrival to the first grant, of each app that had one.
    delivered : [A], received over entitled of completed apps that were entitled to anything.
    time : integrals over the makespan. ``ledger`` : totals over leases. ``rounds`` : totals over decisions.
    """

    apps: Sequence[AppRow]
    done: Sequence[AppRow]
    jobs: JobTable
    jct: Sequence[Seconds]
    wait: Sequence[Seconds]
    delivered: Float
    time: Totals
    ledger: Ledger
    rounds: DecisionTotals

    @property
    def lost(self) -> GpuSeconds:
        """GPU-seconds of leases that did no lasting work."""
        return self.ledger.restart + self.ledger.crash


def ratio(a: float, b: float) -> float:
    """a / b, NaN where there is nothing to divide by."""
    return a / b if b else math.nan


def mean(values: Sequence[float] | Float) -> float:
    """The mean, NaN of none."""
    return float(np.mean(values)) if len(values) else math.nan


def quantile(values: Sequence[float], q: float) -> float:
    """The q-th quantile, interpolated between ranks; NaN without values."""
    return float(np.quantile(values, q)) if values else math.nan


def known(rho: Float) -> list[float]:
    """Values without NaN."""
    out: list[float] = rho[~np.isnan(rho)].tolist()
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a run: a field of ``Numbers``.

    Attributes
    ----------
    unit : of the value in JSON, CSV and Parquet. ``fold`` : the value, from what was read from a log.
    count : a whole number. ``column`` : how tables show it; None: only files have it.
    """

    name: str
    unit: str
    definition: str
    fold: Callable[[Folded], float]
    count: bool
    column: ComparisonColumn | None


def metric(
    definition: str, *, unit: str, fold: Callable[[Folded], float], column: ComparisonColumn | None = None
) -> Any:
    """A field of ``Numbers``, as ``Metric`` says; the column takes the field's name and definition."""
    return field(
        metadata={KEY: Metric(name="", unit=unit, definition=definition, fold=fold, count=False, column=column)}
    )


def metrics_of(table: type[Any]) -> tuple[Metric, ...]:
    """The metrics of a class, in the order of its fields."""
    return tuple(_named(f, f.metadata[KEY]) for f in described(table, Metric))


def _named(of: Field[Any], made: Metric) -> Metric:
    column = made.column and replace(made.column, name=of.name, definition=made.definition)
    return replace(made, name=of.name, count=of.type == "int", column=column)


@dataclass(frozen=True, slots=True, kw_only=True)
class RhoField:
    """One form of rho: a field of ``Numbers`` that holds a ``RhoStats``.

    Attributes
    ----------
    label : in titles. ``values`` : rho of each completed app or job.
    columns : statistics that tables show. ``digits`` : of percentages.
    per_app : the field of ``AppRow``; empty of a form that is of jobs.
    """

    name: str
    label: str
    definition: str
    values: Callable[[Folded], Sequence[float]]
    columns: Mapping[str, Shown]
    digits: int
    per_app: str

    def column(self, of: Statistic) -> ComparisonColumn:
        """Column with one statistic of this form."""
        per_cent = of.scale == PER_CENT
        return ComparisonColumn(
            name=f"{self.name}_{of.name}",
            title=f"{of.title}\n{self.label}{' %' if per_cent else ''}",
            scale=of.scale,
            digits=self.digits if per_cent else 2,
            better=of.better,
            shown=self.columns[of.name],
            definition=f"{of.definition} {self.definition}",
            per_app=self.per_app if of.name == "p99" else "",
        )


def form(
    definition: str,
    *,
    label: str,
    values: Callable[[Folded], Sequence[float]],
    columns: Mapping[str, Shown],
    digits: int = 1,
    per_app: str = "",
) -> Any:
    """A field of ``Numbers`` that holds a distribution of rho."""
    made = RhoField(
        name="", label=label, definition=definition, values=values, columns=columns, digits=digits, per_app=per_app
    )
    return field(metadata={KEY: made})


def forms_of(table: type[Any]) -> tuple[RhoField, ...]:
    """The forms of rho of a class, in the order of its fields."""
    return tuple(replace(f.metadata[KEY], name=f.name) for f in described(table, RhoField))
