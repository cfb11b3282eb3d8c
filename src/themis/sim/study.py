"""Simulations from Python: ``themis.simulate`` runs policies on a workload and returns tables, figures and a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from themis.errors import InputError, ThemisError, UnknownName
from themis.model.answers import Solved
from themis.model.cluster import Cluster
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.model.workload import Workload
from themis.policies.api import Policy
from themis.policies.baseline import Baseline
from themis.policies.placement.ordered import in_order
from themis.report.compare import columns_for, compare
from themis.report.intervals import Interval
from themis.report.metrics import Fold
from themis.report.result import RunMetrics
from themis.sim.many import run_many
from themis.sim.plan import Plan

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

SHOWN = ("rho_reference_max", "rho_reference_above_1_1", "jct_mean", "makespan")
"""Numbers that stand for a run where there is little room."""
PolicyLike = str | Policy | Callable[[Snapshot], Any]
"""A name with parameters after a colon, a policy, or a function (``as_policy``)."""


@dataclass(frozen=True, repr=False)
class Results:
    """Runs of policies over seeds: ``summary``, ``apps`` and ``jobs`` as polars tables, ``plot`` and ``report``.

    ``runs`` : the numbers of each run, policy by policy. A polars table becomes one of pandas by ``to_pandas()``.
    """

    runs: tuple[RunMetrics, ...]

    @cached_property
    def summary(self) -> pl.DataFrame:
        """A row a policy: the means over seeds of all numbers of the report, in its units, and half of each 95 % interval."""
        import polars as pl

        columns = columns_for(self.runs)

        def cells(name: str, cell: Interval) -> dict[str, float]:
            return {name: cell.mean, f"{name}_half": cell.half}

        rows = [
            {"policy": row.label, "seeds": len(row.runs)}
            | {key: value for c, cell in zip(columns, row.cells) for key, value in cells(c.name, cell).items()}
            for row in compare(self.runs, columns)
        ]
        table = pl.DataFrame(rows).with_columns(pl.col(pl.Float64).fill_nan(None))
        return table.select(c for c in table.columns if table[c].null_count() < len(table))

    @cached_property
    def apps(self) -> pl.DataFrame:
        """A row an app and run, in seconds and GPU-seconds; ``themis.report.rows.AppRow`` defines the columns."""
        from themis.report.parquet import apps_frame

        return apps_frame(self.runs)

    @cached_property
    def jobs(self) -> pl.DataFrame:
        """A row a job and run, in seconds; ``themis.report.rows.JobTable`` defines the columns."""
        from themis.report.parquet import jobs_frame

        return jobs_frame(self.runs)

    def plot(self, name: str = "") -> Figure:
        """One figure of the report, for a notebook; an unknown name is an error that lists all.

        Raises
        ------
        UnknownName : there is no such figure of these runs.
        """
        from themis.report.figures import draw
        from themis.report.style import FILE

        found: dict[str, Figure] = {drawing.name: drawing.figure for drawing in draw(compare(self.runs), FILE)}
        if (name or next(iter(found))) not in found:
            raise UnknownName("figure", name, found)
        return found[name or next(iter(found))]

    def report(self, path: str | Path) -> Path:
        """Write the report, one HTML file, and return where it is."""
        from themis.report.html import write_report

        return write_report(Path(path), self.runs)

    def __repr__(self) -> str:
        columns = [c for c in columns_for(self.runs) if c.name in SHOWN]
        lines = [f"{'policy':20}" + "".join(f"{_heading(c.title):>15}" for c in columns)]
        for row in compare(self.runs, columns):
            cells = [
                c.text(cell.mean) + (f" ±{c.text(cell.half)}" if cell.half == cell.half else "")
                for c, cell in zip(columns, row.cells)
            ]
            lines.append(f"{row.label[:20]:20}" + "".join(f"{cell:>15}" for cell in cells))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def _heading(title: str) -> str:
    return title.replace("-\n", "").replace("\n", " ").replace("reference", "ref")


def simulate(
    workload: str | Workload = "demo",
    cluster: str | Cluster = "demo-32",
    policies: PolicyLike | Sequence[PolicyLike] = "fair_finish",
    seeds: int | Sequence[int] = 1,
    *,
    settings: Mapping[str, object] | None = None,
    profiles: str = "",
    mtbf: Seconds = 0.0,
    repair: Seconds = 1800.0,
    logs: str | Path | None = None,
    processes: int | None = None,
) -> Results:
    """Simulate each policy on the same workload, for each seed.

    Parameters
    ----------
    workload : a generator or a trace file, with options after a colon, as for ``themis simulate``; or a ``Workload``.
    cluster : a preset, a shorthand such as ``8x4``, a file, or a ``Cluster``.
    policies : names with parameters after a colon, policies, or functions of a snapshot (``as_policy``).
    seeds : a number of seeds, which are 0, 1, ...; or the seeds.
    settings : of the simulation by name (``themis.model.settings.Settings``), such as ``{"lease_s": 300}``.
    profiles : table of speeds; empty: that of the workload.
    mtbf : mean seconds between failures of one machine, 0 for none. ``repair`` : seconds that it is away.
    logs : a folder for the event logs, which ``themis report`` reads.
    processes : number of runs at a time; None: one a core. Functions run in this process.

    Raises
    ------
    InputError : an argument is wrong; nothing ran. ThemisError : a run failed.
    """
    several: list[PolicyLike] = (
        list(policies) if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
    )
    chosen = [one if isinstance(one, str) else named(one) for one in several]
    plan = Plan(
        workload=workload,
        cluster=cluster,
        policies=chosen,
        seeds=range(seeds) if isinstance(seeds, int) else tuple(seeds),
        settings={name: str(value) for name, value in (settings or {}).items()},
        profiles=profiles,
        mtbf=mtbf,
        repair=repair,
    )
    if not plan.policies or not plan.seeds:
        raise InputError("simulate: no policy or no seed is given, expected at least one of each.")
    folder = Path(logs) if logs is not None else None
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {str(folder)!r} for logs: {error.strerror}.") from None
    here = not all(isinstance(one, str) for one in chosen)
    done = run_many(plan.runs(folder), Fold, processes=1 if here else processes or os.cpu_count() or 1)
    for one in done:
        if (failure := one.failure) is not None:
            who = f"{one.run.simulation.policy_name}, seed {one.run.simulation.settings.seed}"
            if failure.input:
                raise InputError(f"{who}: {failure.message}")
            raise ThemisError(f"{who}: {failure.message}\n{failure.story}")
    return Results(tuple(one.result for one in done if one.result is not None))


def named(policy: Policy | Callable[[Snapshot], Any]) -> tuple[str, Policy]:
    """A policy and the name that its runs have: of a function its own, of a policy that of its class."""
    if isinstance(policy, Policy):
        return type(policy).__name__.lower(), policy
    if not callable(policy):
        raise InputError(f"policy {policy!r} is neither a name, nor a policy, nor a function of a snapshot.")
    return getattr(policy, "__name__", "function"), as_policy(policy)


def as_policy(order: Callable[[Snapshot], Any]) -> Policy:
    """Policy that serves apps in the order that a function gives.

    Parameters
    ----------
    order : a function from a ``Snapshot`` to rows of its apps, the first served first, each with its whole demand; or to
        a ``Solved``, for policies that do more. Columns that cost more than reading the state must be named, as in
        ``order.needs = {"reference"}``.

    Raises
    ------
    InputError : at the first decision: the rows are not those of all apps, each once.
    """
    name = getattr(order, "__name__", "function")

    class Ordered(Baseline):
        __slots__ = ()
        needs = frozenset(getattr(order, "needs", ()))

        def grant(self, snapshot: Snapshot) -> Solved:
            given = order(snapshot)
            if isinstance(given, Solved):
                return given
            rows, apps = np.asarray(given), snapshot.app_id.size
            if rows.ndim != 1 or not np.array_equal(np.sort(rows), np.arange(apps)):
                raise InputError(
                    f"policy {name} returned {str(given)[:80]}, expected the rows 0 to {apps - 1} of all {apps} apps, each "
                    "once, the first served first."
                )
            return in_order(snapshot, rows.astype(int), self.placement)

    Ordered.__name__ = Ordered.__qualname__ = name
    return Ordered()
