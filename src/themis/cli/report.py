"""``themis compare``: compare finished runs by their logs; also replays and explains journals, and decides on states."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from themis.cli.options import helped
from themis.cli.output import err, escape, named_path, out, print_json, print_whole, ready_file, ready_folder
from themis.errors import UnknownName

if TYPE_CHECKING:
    from themis.model.speed import ProfileBook
    from themis.report.explain import Explanation
    from themis.sim.replay import Replayed

COMPARE = """Compare finished runs over policies and seeds: means, 95 % intervals, differences to a baseline.

RUN is a folder written by [cyan]themis simulate --out[/cyan], or a log in it. Runs must have the same workload, cluster and
settings; [cyan]--anyway[/cyan] accepts differences and shows them in the labels.

[bold]Examples[/bold]

[cyan]themis compare out/demo[/cyan]

[cyan]themis compare out/demo --baseline drf --html compare.html[/cyan]

[cyan]themis compare out/a out/b --anyway --metric rho_exact_max --metric jct_mean -o csv > compare.csv[/cyan]

[cyan]themis compare out/demo --figures figures --figure-format png[/cyan]
"""
OUTPUTS = ("table", "json", "csv")
FIGURE_FORMATS = ("svg", "png")


@helped(COMPARE)
def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Logs, or folders of logs.")],
    baseline: Annotated[str, typer.Option("--baseline", "-b", help="Policy that the others are compared with.")] = "",
    metric: Annotated[
        list[str], typer.Option("--metric", "-m", metavar="NAME", help="Show this metric only; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    every: Annotated[bool, typer.Option("--all", "-a", help="Show all metrics in the table.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", metavar="table|json|csv", help="Output format.")] = "table",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", parser=named_path, help="Write the report to this file.")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables", metavar="DIR", parser=named_path, help="Write results, apps and jobs as Parquet to this folder."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", parser=named_path, help="Write the figures to this folder."),
    ] = None,
    figure_format: Annotated[
        str, typer.Option("--figure-format", metavar="svg|png", help="Format of the figures.")
    ] = "svg",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Logs read in parallel; 0: one per core.")] = 0,
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare runs that differ in more than the policy.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not print progress or the names of written files.")
    ] = False,
) -> None:
    known(output, "output", OUTPUTS)
    known(figure_format, "figure format", FIGURE_FORMATS)
    from themis.report import comparison_table
    from themis.report.compare import compare as side_by_side
    from themis.report.gather import gather
    from themis.report.numbers import COLUMNS
    from themis.report.paired import paired

    comparison_table.columns_of(metric, [])
    if html:
        ready_file(html)
    for place in filter(None, (tables, figures)):
        ready_folder(place)
    with _bar() if not quiet else nullcontext(lambda path, i, n: None) as watch:
        gathered = gather(paths, anyway=anyway, processes=jobs or os.cpu_count() or 1, watch=watch)
    for doubt in gathered.doubts:
        err.print(f"[yellow]Note:[/yellow] {escape(doubt)}", soft_wrap=True, highlight=False)
    rows = side_by_side(gathered.runs)
    shown = comparison_table.columns_of(metric, rows, every=every or output != "table")
    difference = paired(rows, baseline, [COLUMNS[i] for i in shown]) if baseline else None
    if output == "json":
        print(comparison_table.to_json(rows, shown, difference, gathered.doubts))
    elif output == "csv":
        print(comparison_table.to_csv(rows, shown, difference), end="")
    else:
        for table in comparison_table.tables(rows, shown, difference, max(out.width, 60)):
            print_whole(table)
        out.print(f"[dim]{escape(comparison_table.notes(rows, difference))}[/dim]", highlight=False)
    written: list[Path] = []
    if html:
        from themis.report.html import write_report

        written.append(write_report(html, gathered.runs, baseline=baseline))
    if tables:
        from themis.report.parquet import write_parquet

        written += write_parquet(tables, gathered.runs)
    if figures:
        from themis.report.figures import write_figures

        written += write_figures(figures, rows, figure_format)
    if not quiet:
        say_written(written)


def replay_home(home: Path, book: ProfileBook | None) -> Replayed:
    """Replay the journal of a data directory, with the speeds of its submissions."""
    from themis.schema import messages as schema
    from themis.service.engine.kept_copies import journal_of
    from themis.service.engine.recovery import kept_book
    from themis.service.engine.speed_estimator import read_profile
    from themis.sim.replay import replay_records

    with journal_of(home) as journal:
        submitted = [
            read_profile(name, schema.Profile.model_validate_json(message)) for name, message in journal.profiles()
        ]
        return replay_records(
            journal.records(),
            name=str(home),
            book=book or kept_book(journal, "book"),
            submitted=submitted,
            wakes=True,
            exact_after=journal.exact_after(),
        )


def explain_home(home: Path, name: str) -> Explanation:
    """An app's history from the journal of a data directory, whether or not its arbiter runs."""
    import tempfile

    from themis.report.explain import explain
    from themis.service.engine.journal import export
    from themis.service.engine.kept_copies import journal_of

    with journal_of(home) as journal, tempfile.TemporaryDirectory(prefix="themis-") as folder:
        log = Path(folder) / "journal.jsonl"
        export(journal.path, log)
        return explain(log, name)


def known(name: str, kind: str, names: tuple[str, ...]) -> None:
    """Raise UnknownName, with "did you mean", for an unknown choice."""
    if name not in names:
        raise UnknownName(kind, name, names)


def say_written(paths: list[Path]) -> None:
    """Print the names of written files, by folder."""
    folders = dict.fromkeys(path.parent for path in paths)
    for folder in folders:
        there = [path for path in paths if path.parent == folder]
        names = str(there[0]) if len(there) == 1 else f"{folder}: {', '.join(path.name for path in there)}"
        err.print(f"Written: {names}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _bar() -> Iterator[Callable[[Path, int, int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("logs"))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("Reading", total=None)

        def watch(path: Path, i: int, n: int) -> None:
            bar.update(task, description=f"Read {escape(path.name)}", completed=i, total=n)

        yield watch


def decide_on_state(path: Path, policy: str, as_json: bool) -> None:
    """Let a policy decide on a dumped state, and print its decision."""
    from rich import box
    from rich.table import Table

    from themis.sim.dump import NothingToDecide, decide, read

    dump = read(path)
    try:
        found = decide(dump, policy)
    except NothingToDecide as idle:
        if as_json:
            print_json({"state": str(path), "policy": policy or dump.policy, "note": str(idle), "apps": []})
        else:
            out.print(f"{policy or dump.policy}: {idle}", markup=False, highlight=False, soft_wrap=True)
        return
    proof, state = found.solved.proof, found.core.state
    gpus: dict[int, int] = {}
    for placed in found.placed:
        app = int(state.jobs.app[placed.job])
        gpus[app] = gpus.get(app, 0) + len(placed.gpus)
    at = {int(a): i for i, a in enumerate(proof.app.tolist())}
    rows = [
        {
            "app": app,
            "name": state.app_specs[app].name,
            "user": state.app_specs[app].user,
            "gpus": gpus.get(app, 0),
            "rho": float(proof.rho[at[app]]) if app in at and len(proof.rho) else None,
            "bid": bool(proof.bid[at[app]]) if app in at and len(proof.bid) else None,
            "won": int(proof.won[at[app]]) if app in at and len(proof.won) else None,
            "kept": float(proof.kept[at[app]]) if app in at and len(proof.kept) else None,
        }
        for app in sorted(gpus.keys() | at.keys())
    ]
    head = {
        "state": str(path),
        "policy": policy or dump.policy,
        "seconds": found.time,
        "free": int(found.snapshot.free.sum()),
        "objective": proof.objective,
        "bound": proof.bound,
        "method": proof.method,
        "cpu_s": found.cpu_s,
    }
    if as_json:
        print_json({**head, "apps": rows})
        return
    within = f"within {proof.gap:.1e} " if math.isfinite(proof.gap) else ""
    gap = f", objective {proof.objective:.6g} {within}({proof.method})" if at else ""
    out.print(
        f"{head['policy']} at {found.time:.0f} s on {head['free']} free GPUs{gap}, {found.cpu_s:.3f} CPU s.",
        markup=False,
        highlight=False,
    )
    table = Table("app", "name", "user", "GPUs", "rho", "bid", "won", "kept", box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        cells = (row["app"], row["name"], row["user"], row["gpus"] or "", _short(row["rho"]), row["bid"], row["won"])
        table.add_row(*("" if c is None else escape(str(c)) for c in (*cells, _short(row["kept"]))))
    print_whole(table)


def _short(value: object) -> str | None:
    return f"{value:.2f}" if isinstance(value, float) else None
