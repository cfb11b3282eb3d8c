"""``themis trace``: describe a workload, validate a file, convert it to the generic CSV, scale it.

Wrong input is an ``InputError``, which ``themis.cli`` prints as one sentence, with exit code 2. Heavy imports are inside
the functions, so that ``themis --help`` is fast.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from themis.cli.options import helped
from themis.cli.output import err, escape, out, say_notes
from themis.errors import InputError, TraceError, counted

if TYPE_CHECKING:
    from themis.model.cluster import Cluster
    from themis.model.speed import ProfileBook
    from themis.model.workload import Workload
    from themis.traces.demand import DemandCurve
    from themis.traces.trace_summary import UserSummary, WorkloadSummary


Trace = Annotated[
    str, typer.Argument(metavar="TRACE", help="A file, folder or generator, with options as NAME:KEY=VALUE,KEY=VALUE.")
]
Format = Annotated[str, typer.Option("--format", "-f", help="Format of the file. Default: detected.")]
Seed = Annotated[int, typer.Option("--seed", "-s", min=0, help="Random seed for values that the trace does not have.")]
Profiles = Annotated[str, typer.Option("--profiles", help="Table of speeds; see themis profiles.")]
Target = Annotated[Path, typer.Argument(metavar="OUT", help="The CSV file to write; .csv.gz compresses it.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite OUT.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DESCRIBE = """Describe a workload: its size, its users, and its demand over time.

Demand is the number of GPUs in use if no job ever waited. [cyan]--cluster[/cyan] compares it with a cluster.

[bold]Examples[/bold]

[cyan]themis trace describe demo --cluster demo-32[/cyan]

[cyan]themis trace describe raw-traces.tar.gz:gap_s=30,user=cluster04 -c 32x8 --plot demand.svg[/cyan]
"""


@helped(DESCRIBE)
def describe(
    trace: Trace,
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="A preset, 8x4, or a YAML file.")] = "",
    trace_format: Format = "",
    seed: Seed = 0,
    users: Annotated[int, typer.Option("--users", "-u", min=0, help="Number of users to list, by work.")] = 10,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write a figure of the demand, as .png or .svg.")
    ] = None,
    profiles: Profiles = "",
    as_json: AsJson = False,
) -> None:
    from themis.traces import demand, figure, trace_summary

    if plot:
        figure.check_name(plot)
    there = _cluster(cluster)
    book = _book(trace, profiles)
    workload = _load(trace, trace_format, seed, book)
    trace_summary.check_lengths(workload, book)
    figures = trace_summary.describe(workload, there, book)
    wanted = demand.demand(workload, book)
    tenants = trace_summary.by_user(workload, book)
    if as_json:
        _print_json(_as_dict(workload, figures, wanted, tenants, there))
    else:
        _show(workload, figures, wanted, there)
        _show_users(tenants, users)
    if plot:
        figure.write_demand(plot, wanted, title=workload.name, capacity=there.gpus if there else None)
        err.print(f"Figure: {plot}", markup=False, soft_wrap=True)


VALIDATE = """Check a trace file and list its errors: line, column, value, what was expected.

Exit code 2 if there are errors. [cyan]--cluster[/cyan] also checks that every job fits on the cluster.

[bold]Examples[/bold]

[cyan]themis trace validate jobs.csv[/cyan]

[cyan]themis trace validate sacct.txt --format slurm --limit 100 --cluster lab.yaml[/cyan]
"""


@helped(VALIDATE)
def validate(
    trace: Trace,
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="A preset, 8x4, or a YAML file.")] = "",
    trace_format: Format = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of errors to list.")] = 20,
    profiles: Profiles = "",
    as_json: AsJson = False,
) -> None:
    from themis.traces.trace_summary import check_fits, check_lengths

    there = _cluster(cluster)
    book = _book(trace, profiles)
    faults = _faults(trace, trace_format, limit, book)
    workload = None if faults else _load(trace, trace_format, 0, book)
    if workload:
        try:
            check_lengths(workload, book)
            if there:
                check_fits(workload, there, book)
        except InputError as error:
            faults = [error]
    if as_json:
        _print_json([_fault(fault) for fault in faults])
    elif faults:
        for fault in faults:
            print(fault)
        count = f"{len(faults)} or more errors" if len(faults) >= limit else counted(len(faults), "error")
        err.print(f"[red]{count}.[/red]", highlight=False)
    elif workload:
        print(f"{trace} is valid: {_counts(workload)}.")
    if faults:
        raise typer.Exit(2)


CONVERT = """Convert a workload to the generic CSV format, without loss.

[bold]Examples[/bold]

[cyan]themis trace convert cluster_log.csv jobs.csv.gz[/cyan]

[cyan]themis trace convert sacct.txt:partition=gpu,gap_s=60 jobs.csv[/cyan]
"""


@helped(CONVERT)
def convert(
    trace: Trace,
    target: Target,
    trace_format: Format = "",
    seed: Seed = 0,
    profiles: Profiles = "",
    force: Force = False,
) -> None:
    _check_target(target, force=force)
    _write(_load(trace, trace_format, seed, _book(trace, profiles)), target)


SCALE = """Scale a workload, and write it in the generic CSV format.

[bold]Examples[/bold]

[cyan]themis trace scale philly_jobs.csv.gz small.csv --apps 500 --time 0.1[/cyan]

[cyan]themis trace scale demo busy.csv --load 1.5 --gpus 2[/cyan]
"""


@helped(SCALE)
def scale_(
    trace: Trace,
    target: Target,
    time: Annotated[float, typer.Option("--time", help="Factor on arrivals, work and deadlines.")] = 1.0,
    load: Annotated[float, typer.Option("--load", help="Factor on the load: changes arrivals, not work.")] = 1.0,
    gpus: Annotated[float, typer.Option("--gpus", help="Factor on each job's GPUs, not on its work.")] = 1.0,
    apps: Annotated[int, typer.Option("--apps", help="Number of apps to sample, or to repeat to; 0: unchanged.")] = 0,
    trace_format: Format = "",
    seed: Seed = 0,
    profiles: Profiles = "",
    force: Force = False,
) -> None:
    from themis.traces.scale import Scale, scale

    _check_target(target, force=force)
    by = Scale(time=time, load=load, gpus=gpus, apps=apps, seed=seed)
    _write(scale(_load(trace, trace_format, seed, _book(trace, profiles)), by), target)


# ---- reading and writing -------------------------------------------------------------------------------------------


def _book(trace: str, profiles: str) -> ProfileBook:
    from themis.data_dir import default_home
    from themis.traces.formats import book_for
    from themis.traces.profiles.library import load_book

    return load_book(profiles or book_for(_options(trace)[0]), default_home() / "profiles")


def _load(trace: str, trace_format: str, seed: int, book: ProfileBook) -> Workload:
    from themis.traces.formats import load_workload

    name, options = _options(trace)
    workload = load_workload(name, seed=seed, book=book, format=trace_format, **options)
    say_notes(workload.notes)
    return workload


def _faults(trace: str, trace_format: str, limit: int, book: ProfileBook) -> list[InputError]:
    from themis.traces.formats import reader_of, registered
    from themis.traces.trace_errors import find_faults

    name, options = _options(trace)
    if not trace_format and hasattr(registered().get(name), "generate"):
        _load(trace, trace_format, 0, book)
        return []
    return find_faults(Path(name), reader_of(name, trace_format, options), book=book, limit=limit)


def _options(trace: str) -> tuple[str, dict[str, Any]]:
    from themis.sim.plan import split_parameters

    name, options = split_parameters(trace)
    for key in ("seed", "book", "format"):
        if key in options:
            raise InputError(
                f"trace {trace!r}: {key} is not one of its options; use --{'profiles' if key == 'book' else key} instead."
            )
    return name, options


def _cluster(name: str) -> Cluster | None:
    from themis.traces.profiles.presets import load_cluster

    return load_cluster(name) if name else None


def _check_target(target: Path, *, force: bool) -> None:
    if not target.name.endswith((".csv", ".csv.gz")):
        raise InputError(f"OUT is {str(target)!r}, expected a name that ends in .csv or .csv.gz.")
    if target.exists() and not force:
        raise InputError(f"{target} exists; choose another file, or overwrite it with --force.")


def _write(workload: Workload, target: Path) -> None:
    from themis.traces.csv_generic import write_csv

    write_csv(workload, target)
    err.print(f"{target}: {_counts(workload)}.", markup=False, highlight=False, soft_wrap=True)


# ---- on the screen -------------------------------------------------------------------------------------------------


def _show(workload: Workload, figures: WorkloadSummary, wanted: DemandCurve, cluster: Cluster | None) -> None:
    from rich.table import Table

    from themis.traces.demand import sparkline

    share = f"{figures.stopped:,} jobs, {figures.stopped / figures.jobs:.0%}"
    stopped = [("stopped early", share)] if figures.stopped else []
    rows = [
        ("apps, jobs, users", f"{figures.apps:,}, {figures.jobs:,}, {figures.users:,}"),
        ("arrivals over", _time(figures.span)),
        ("work", f"{figures.gpu_hours:,.1f} GPU-hours"),
        *stopped,
        ("median app", f"{figures.median_jobs_per_app:g} jobs, {figures.median_app_work / 3600:,.2f} GPU-hours"),
        ("longest job", _time(figures.longest_job)),
        ("largest gang, widest job", f"{figures.largest_gang}, {figures.widest_job} GPUs"),
        ("models", ", ".join(f"{name} {count}" for name, count in list(figures.models.items())[:6])),
        ("GPU demand", f"mean {wanted.mean:,.1f}, peak {wanted.peak:,.0f}"),
    ]
    if cluster:
        load = "all apps arrive together" if figures.offered_load is None else f"{figures.offered_load:.2f}"
        rows.append((f"offered load on {cluster.name}", f"{load} ({counted(cluster.gpus, 'GPU')})"))
        rows.append(("demand above capacity", f"{wanted.above(cluster.gpus):.0%} of the time"))
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(f"[dim]{name}[/dim]", escape(value))
    out.print(f"[bold]{escape(workload.name)}[/bold]", highlight=False)
    out.print(table, highlight=False)
    span = _time(float(wanted.edges[-1] - wanted.edges[0]))
    out.print(f"{sparkline(wanted.gpus)} [dim]GPU demand over {span}[/dim]", highlight=False)
    out.print(f"[dim]{escape(workload.source)}[/dim]", highlight=False, soft_wrap=True)


def _show_users(tenants: Sequence[UserSummary], most: int) -> None:
    from rich.table import Table

    if not most:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("user", style="bold")
    for name in ("apps", "jobs", "GPU-hours", "share", "median app, GPU-hours", "largest gang"):
        table.add_column(name, justify="right")
    for tenant in tenants[:most]:
        table.add_row(
            escape(tenant.user),
            f"{tenant.apps:,}",
            f"{tenant.jobs:,}",
            f"{tenant.work / 3600:,.1f}",
            f"{tenant.share:.1%}",
            f"{tenant.median_app_work / 3600:,.2f}",
            str(tenant.largest_gang),
        )
    out.print()
    out.print(table, highlight=False)
    if len(tenants) > most:
        out.print(f"[dim]and {len(tenants) - most:,} more users[/dim]", highlight=False)


def _counts(workload: Workload) -> str:
    return f"{len(workload.apps):,} apps, {workload.jobs:,} jobs"


def _time(seconds: float) -> str:
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:,.1f} days"
    return f"{seconds / 3600:,.1f} hours" if seconds >= 3600 else f"{seconds:,.0f} s"


def _as_dict(
    workload: Workload,
    figures: WorkloadSummary,
    wanted: DemandCurve,
    tenants: Sequence[UserSummary],
    cluster: Cluster | None,
) -> dict[str, object]:
    return {
        **{key: dict(value) if key in ("models", "apps_per_user") else value for key, value in asdict(figures).items()},
        "gpu_hours": figures.gpu_hours,
        "source": workload.source,
        "cluster": cluster.name if cluster else None,
        "capacity": cluster.gpus if cluster else None,
        "demand": {
            "start_s": float(wanted.edges[0]),
            "step_s": float(wanted.edges[1] - wanted.edges[0]),
            "gpus": wanted.gpus.tolist(),
            "mean": wanted.mean,
            "peak": wanted.peak,
            "above_capacity": wanted.above(cluster.gpus) if cluster else None,
        },
        "by_user": [asdict(tenant) for tenant in tenants],
    }


def _fault(error: InputError) -> dict[str, object]:
    if isinstance(error, TraceError):
        place = {"file": error.file, "line": error.line, "column": error.column, "value": error.value}
        return {**place, "expected": error.expected, "message": str(error)}
    return {"message": str(error)}


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
