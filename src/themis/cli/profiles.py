"""``themis profiles``: models with measured speeds, and the user's own tables, from a CSV file or from a run.

Heavy imports are inside the functions, so that ``themis --help`` is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from themis.cli.output import err, escape, out, print_json, print_whole, say
from themis.errors import InputError, UnknownName, counted
from themis.service.engine.kept_copies import journal_of

if TYPE_CHECKING:
    from themis.model.speed import Profile, ProfileBook
    from themis.traces.profiles.throughputs import Throughputs


OUTPUTS = ("table", "json", "csv")
Output = Annotated[str, typer.Option("--output", "-o", metavar="table|json|csv", help="Output format.")]
Profiles = Annotated[
    str,
    typer.Option(
        "--profiles", help="Tables of speeds, joined by commas: themis, gavel, a CSV or JSON file, or your own."
    ),
]
Name = Annotated[str, typer.Option("--name", "-n", help="Name of the table. Default: the file's.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a table of this name.")]


def list_(profiles: Profiles = "gavel", output: Output = "table") -> None:
    """List models with their measured GPU types and batch sizes.

    Example: [cyan]themis profiles list --profiles themis[/cyan]
    """
    book = _book(profiles)
    rows = [_summary(book.get(name)) for name in sorted(book.profiles, key=str.lower)]
    _print(rows, output, SUMMARY)
    if others := [name for name in _own() if name not in profiles.split(",")]:
        say(f"Your own tables: {', '.join(others)}. themis profiles list --profiles {others[0]} lists its models.")


def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model; themis profiles list shows them.")],
    profiles: Profiles = "gavel",
    colocated: Annotated[
        bool, typer.Option("--colocated", help="Show relative speeds when two jobs share a GPU.")
    ] = False,
    output: Output = "table",
) -> None:
    """Show the speed of a model by GPU type, batch size and number of GPUs, or when it shares a GPU.

    Example: [cyan]themis profiles show ResNet-50 --colocated[/cyan]
    """
    profile = _profile(model, profiles)
    if not colocated:
        _print(_rates(profile), output, RATES)
    else:
        _print(_shares(profile), output, SHARES)
    if output == "table":
        out.print(f"[dim]{escape(profile.source)}[/dim]", highlight=False, soft_wrap=True)


def add(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="CSV file; docs/profiles.md lists its columns.")],
    name: Name = "",
    force: Force = False,
) -> None:
    """Check a CSV file of measured throughputs and store it, for [cyan]--profiles NAME[/cyan].

    Example: [cyan]themis profiles add lab.csv --name lab[/cyan]
    """
    from themis.traces.profiles.csv_file import read_csv

    keep(name or file.name.split(".")[0], read_csv(file), force=force)


def from_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Log of a run, or a service's data directory.")],
    name: Name = "",
    force: Force = False,
) -> None:
    """Store the throughputs that the jobs of a run reported, for [cyan]--profiles NAME[/cyan].

    Example: [cyan]themis profiles from-run out/demo/themis-seed0.jsonl.gz --name demo[/cyan]
    """
    from themis.model.log import read_log
    from themis.report.throughput_table import measured

    if run.is_dir():
        with journal_of(run) as journal:
            rates = measured(journal.records())
    else:
        rates = measured(read_log(run))
    if not rates.together:
        raise InputError(
            f"{run} has no measurements: no job trained alone for a second between two reports. Nothing was added."
        )
    keep(name or run.name.split(".")[0], rates, force=force)


def keep(name: str, rates: Throughputs, *, force: bool, folder: Path | None = None) -> None:
    """Store a table in a folder of tables, by default the user's own, and print how to use it."""
    from themis.traces.profiles.library import add

    path = add(folder or _folder(), name, rates, force=force)
    rows = sum(len(jobs) for table in (rates.together, rates.apart, rates.beside) for jobs in table.values())
    err.print(
        f"{path}: {counted(len(rates.models), 'model')}, {counted(rows, 'rate')}. Use it as --profiles {name}.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _book(names: str) -> ProfileBook:
    from themis.traces.profiles.library import load_book

    return load_book(names, _folder())


def _profile(model: str, names: str) -> Profile:
    """The model's speeds; UnknownName says in which of the user's own tables an unknown one is."""
    try:
        return _book(names).get(model)
    except UnknownName as unknown:
        there = [name for name in _own() if model in _book(name).profiles]
        if not there:
            raise
        command = f"themis profiles show {model} --profiles {there[0]}"
        raise InputError(f"no model {model!r} in {names}, but in your table {there[0]}: {command}") from unknown


def _own() -> list[str]:
    """Names of the user's own tables."""
    from themis.traces.profiles.library import added

    return list(added(_folder()))


def _folder() -> Path:
    from themis.data_dir import default_home

    return default_home() / "profiles"


# ---- on the screen -------------------------------------------------------------------------------------------------

SUMMARY = ("model", "gpu_types", "batches", "gpus", "slowdown", "partners", "source")
RATES = ("model", "gpu_type", "batch", "gpus", "steps_per_s", "per_gpu")
SHARES = ("model", "gpu_type", "batch", "partner", "partner_batch", "share")


def _summary(profile: Profile) -> dict[str, Any]:
    return {
        "model": profile.name,
        "gpu_types": sorted({kind for kind, _ in profile.curves}),
        "batches": sorted({batch for _, batch in profile.curves if batch}),
        "gpus": sorted({gpus for curve in profile.curves.values() for gpus in curve.gpus}),
        "slowdown": list(profile.slowdown),
        "partners": len({(model, batch) for _, _, model, batch in profile.beside}),
        "source": profile.source,
    }


def _rates(profile: Profile) -> list[dict[str, Any]]:
    measured = {batch for _, batch in profile.curves if batch}
    return [
        {
            "model": profile.name,
            "gpu_type": kind,
            "batch": batch or "",
            "gpus": gpus,
            "steps_per_s": rate,
            "per_gpu": rate / gpus,
        }
        for (kind, batch), curve in profile.curves.items()
        if batch or not measured
        for gpus, rate in zip(curve.gpus, curve.rate)
    ]


def _shares(profile: Profile) -> list[dict[str, Any]]:
    return [
        {
            "model": profile.name,
            "gpu_type": kind,
            "batch": batch or "",
            "partner": partner,
            "partner_batch": other or "",
            "share": share,
        }
        for (kind, batch, partner, other), share in profile.beside.items()
    ]


def _print(rows: Sequence[Mapping[str, Any]], output: str, columns: Sequence[str]) -> None:
    if output not in OUTPUTS:
        raise UnknownName("output", output, OUTPUTS)
    if output == "json":
        print_json([dict(row) for row in rows])
    elif output == "csv":
        import csv
        import sys

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(row[column], str) for column in columns] for row in rows)
    else:
        from rich import box
        from rich.table import Table

        table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False)
        for row in rows:
            table.add_row(*(escape(_cell(row[column], "{:.4g}".format)) for column in columns))
        # In a terminal, cells of text wrap: the table is more than twice as wide.
        out.print(table) if out.is_terminal else print_whole(table)


def _cell(value: object, number: Callable[[float], str]) -> str:
    if isinstance(value, list):
        return " ".join(_cell(part, number) for part in value)
    return number(value) if isinstance(value, float) else str(value)
