"""``themis simulate``: run policies on a workload in parallel; table, result files, figures and report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from themis.cli.options import helped
from themis.cli.output import debugging, err, escape, named_path, print_whole, ready_folder, say_notes, say_red
from themis.cli.report import FIGURE_FORMATS, known, say_written
from themis.errors import InputError

if TYPE_CHECKING:
    from themis.report.result import RunMetrics
    from themis.sim.many import Done, Progress, SimulationRun, Watch

SIMULATE = """Run policies on a workload and compare them.

[bold]Examples[/bold]

[cyan]themis simulate[/cyan]

[cyan]themis simulate -w demo -p themis,drf,gandiva --seeds 0-4 -o out/demo[/cyan]

[cyan]themis simulate -w themis1:apps=100,load=1.4 -c sim-256 -p themis:f=0.7,payment=floor,drf[/cyan]

[cyan]themis simulate -w gavel_multi:jobs=200 -c gavel-36 -p max_min_fairness,max_min_fairness:aware=false[/cyan]

[cyan]themis simulate -p themis,drf --seeds 0-4 --figures figures --figure-format png[/cyan]

[cyan]themis simulate -w my-trace.csv -c my-cluster.yaml -p themis,fifo --set lease_s=300[/cyan]

[cyan]themis simulate -w ~/.themis -p fair_finish,drf --add-gpus 8 --without sweep-1[/cyan]

[cyan]themis simulate --live -p drf --horizon 24h --seeds 20[/cyan]

With a data directory, a state of [cyan]themis dump[/cyan], a log or [cyan]--live[/cyan], the simulation begins with the
present state: when will its apps end, under other policies or with other machines?

Parameters follow a colon: [cyan]NAME:KEY=VALUE,KEY=VALUE[/cyan]. In a list of policies, a part with "=" belongs to the
policy before it: [cyan]themis:f=0.7,payment=floor,drf[/cyan] is two policies.
"""
CLUSTER = "demo-32"
POLICIES = "fair_finish,themis,drf,gandiva"


@helped(SIMULATE)
def simulate(
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            "-w",
            help="A generator, a trace file, or a state: a data directory, a dump, a log.",
            show_default="demo",
        ),
    ] = "",
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="A preset, 8x4, or a YAML file.")] = CLUSTER,
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            "-p",
            help="Policies, joined by commas; repeatable. Of a state also current, its own.",
            show_default=POLICIES,
        ),
    ] = [],  # noqa: B006 - typer copies it
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds",
            "-s",
            help="Seeds: 0, 0-4 or 0,2,7; one run per policy and seed. Of a state, a number is how many (20).",
            show_default="0",
        ),
    ] = "",
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as lease_s=300; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    trace_format: Annotated[str, typer.Option("--format", "-f", help="Format of the trace file.")] = "",
    profiles: Annotated[
        str, typer.Option("--profiles", help="Table of speeds: gavel, a CSV file, or a name; see themis profiles.")
    ] = "",
    estimate: Annotated[
        str,
        typer.Option(
            metavar="KEY=VALUE,...", help="Estimate speeds until they are measured: references, probes, noise."
        ),
    ] = "",
    single_jobs: Annotated[bool, typer.Option("--single-jobs", help="Make each job of a trace an app.")] = False,
    mtbf: Annotated[
        float, typer.Option(metavar="SECONDS", help="Mean time between failures of one machine; 0: none.")
    ] = 0.0,
    repair: Annotated[float, typer.Option(metavar="SECONDS", help="Time to repair a failed machine.")] = 1800.0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Parallel runs; 0: one per core.")] = 0,
    folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", parser=named_path, help="Folder for logs, results and report."),
    ] = None,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html into --out.")] = True,
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="DIR", parser=named_path, help="Folder for the figures.")
    ] = None,
    figure_format: Annotated[
        str, typer.Option("--figure-format", metavar="svg|png", help="Format of the figures.")
    ] = "svg",
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON instead of the table.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Print all numbers of the table, in 120 columns.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no table.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Begin with the running service's state.")] = False,
    home: Annotated[
        Path | None,
        typer.Option("--data-dir", "--home", metavar="DIR", help="With --live: the service's data directory."),
    ] = None,
    add_gpus: Annotated[
        list[str], typer.Option("--add-gpus", metavar="N[@TYPE]", help="Of a state: GPUs that join; repeatable.")
    ] = [],  # noqa: B006
    remove: Annotated[
        list[str], typer.Option("--remove", metavar="N[@TYPE]|NODE", help="Of a state: GPUs that leave; repeatable.")
    ] = [],  # noqa: B006
    without: Annotated[
        list[str], typer.Option("--without", metavar="APP", help="Of a state: apps that are cancelled; repeatable.")
    ] = [],  # noqa: B006
    horizon: Annotated[
        str, typer.Option(metavar="TIME", help="Of a state: time ahead, such as 24h.", show_default="7d")
    ] = "",
    arrivals: Annotated[
        bool, typer.Option("--arrivals/--no-arrivals", help="Of a state: draw further arrivals from its history.")
    ] = True,
    at: Annotated[
        str, typer.Option(metavar="TIME", help="Of a data directory or a log: the instant, since it began.")
    ] = "",
) -> None:
    known(figure_format, "figure format", FIGURE_FORMATS)
    from themis.cli import forward
    from themis.sim.plan import split_policies

    ahead = forward.Options(
        policies=split_policies(policy) if policy else (),
        add=add_gpus,
        remove=remove,
        without=without,
        horizon=horizon,
        seeds=seeds,
        arrivals=arrivals,
        at=at,
    )
    if live or forward.is_state(workload):
        if live and workload:
            raise InputError("--live begins with the running service's state; drop --workload.")
        runs_only = {
            "--cluster": cluster != CLUSTER,
            "--set": settings,
            "--format": trace_format,
            "--estimate": estimate,
            "--single-jobs": single_jobs,
            "--mtbf": mtbf,
            "--out": folder,
            "--figures": figures,
        }
        if wrong := [name for name, given in runs_only.items() if given]:
            raise InputError(
                f"{wrong[0]} is for a workload from its beginning; drop it, for this simulation begins with a state."
            )
        if live:
            forward.what_if_live(ahead, home, as_json=as_json, quiet=quiet)
        else:
            forward.what_if(workload, ahead, profiles=profiles, jobs=jobs, as_json=as_json, quiet=quiet)
        return
    if wrong := ahead.given():
        raise InputError(
            f"{wrong[0]} is for a present state: give a data directory, a dump or a log as --workload, or --live."
        )
    from themis.sim.many import run_many
    from themis.sim.plan import Plan, key_value, parse_seeds

    plan = Plan(
        workload=workload or "demo",
        cluster=cluster,
        policies=split_policies(policy or [POLICIES]),
        seeds=parse_seeds(seeds or "0"),
        settings=dict(map(key_value, settings)),
        format=trace_format,
        options={"single_jobs": "true"} if single_jobs else {},
        profiles=profiles,
        estimate=dict(map(key_value, estimate.split(","))) if estimate else None,
        mtbf=mtbf,
        repair=repair,
    )
    runs = plan.runs(folder)
    for place in filter(None, (folder, figures)):
        ready_folder(place)
    if folder:
        _name_old_logs(folder, runs)
    from themis.report.metrics import Fold

    with _bars(runs) if not quiet else nullcontext(lambda progress: None) as watch:
        done = run_many(runs, Fold, processes=jobs or None, watch=watch)
    good = [d.result for d in done if d.result is not None]
    if not quiet:
        say_notes(note for run in runs for note in run.simulation.workload.notes)
    _show(good, as_json=as_json, quiet=quiet, wide=wide)
    written = _write(good, folder, report=report) if folder and good else []
    if figures and good:
        from themis.report.compare import compare
        from themis.report.figures import write_figures

        written += write_figures(figures, compare(good), figure_format)
    if not quiet:
        say_written(written)
    _end_with_failures(done)


def _name_old_logs(folder: Path, runs: Sequence[SimulationRun]) -> None:
    """Note that logs of earlier runs remain in the folder, because ``themis compare`` reads them too."""
    from themis.report.gather import ENDINGS

    fresh = {run.log for run in runs}
    old = sorted(path.name for path in folder.iterdir() if path.name.endswith(ENDINGS) and path not in fresh)
    if old:
        more = f" and {len(old) - 3} more" if len(old) > 3 else ""
        err.print(
            f"[yellow]Note:[/yellow] {escape(str(folder))} has logs of other runs: {escape(', '.join(old[:3]))}{more}. "
            "They are kept, and [cyan]themis compare[/cyan] reads them too.",
            soft_wrap=True,
            highlight=False,
        )


def _show(good: Sequence[RunMetrics], *, as_json: bool, quiet: bool, wide: bool) -> None:
    """Print the results."""
    if as_json:
        from themis.report.export import to_json

        print(to_json(good))
    elif good and not quiet:
        from themis.report.table import summary_table

        print_whole(summary_table(good, wide=wide))


def _write(good: Sequence[RunMetrics], folder: Path, *, report: bool) -> list[Path]:
    """Write the results into the folder; returns the files, the report first."""
    from themis.report import export
    from themis.report.html import write_report
    from themis.report.parquet import write_parquet

    texts = {
        "results.json": export.to_json(good),
        "results.csv": export.to_csv(good),
        "apps.csv": export.apps_to_csv(good),
        "gangs.csv": export.gangs_to_csv(good),
    }
    texts = {name: text for name, text in texts.items() if text}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    reports = [write_report(folder / "report.html", good)] if report else []
    return [*reports, *(folder / name for name in texts), *write_parquet(folder, good)]


@contextmanager
def _bars(runs: Sequence[SimulationRun]) -> Iterator[Watch]:
    """A progress bar for each run, of finished apps; with many runs, only the active ones are shown."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("apps"),
        TextColumn("{task.fields[hours]:8.1f} h"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        names = [f"{escape(r.simulation.policy_name)}, seed {r.simulation.settings.seed}" for r in runs]
        tasks = [
            bars.add_task(name, start=False, visible=False, total=len(run.simulation.workload.apps), hours=0.0)
            for name, run in zip(names, runs)
        ]

        def watch(at: Progress) -> None:
            task = tasks[at.index]
            if at.ended:
                bars.stop_task(task)
                bars.update(task, visible=len(runs) <= 12)
            elif at.finished:
                bars.update(task, completed=at.finished, hours=at.now / 3600)
            else:
                bars.start_task(task)
                bars.update(task, visible=True)

        yield watch


def _end_with_failures(done: Sequence[Done[Any]]) -> None:
    """Print one sentence for each failed run, and exit with the highest code."""
    code = 0
    for d in done:
        if d.failure is None:
            continue
        who = f"{d.run.simulation.policy_name}, seed {d.run.simulation.settings.seed}"
        ask = " This is a bug in Themis, please report it." if d.failure.bug else ""
        say_red(f"{who}: {d.failure.message}{ask}")
        if debugging():
            err.print(d.failure.story, markup=False, highlight=False)
        code = max(code, 70 if d.failure.bug else 2 if d.failure.input else 1)
    if code:
        raise typer.Exit(code)
