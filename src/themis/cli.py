"""The ``themis`` command: one function a verb, each a thin layer over what can be imported.

Wrong input ends with one sentence and exit code 2, a run that failed or a replay that differs with 1, our own mistake
with 70, an interrupt with 130. ``THEMIS_DEBUG=1`` shows tracebacks. Heavy imports stand inside the functions, so that
``themis --help`` is quick.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Never

import typer
from rich.console import Console
from rich.markup import escape

from themis import __version__, trace_cli
from themis.errors import InvariantBroken, ThemisError

if TYPE_CHECKING:
    from rich.table import Table

    from themis.report.result import RunMetrics
    from themis.sim.many import Done, Progress, Run, Watch

out, err = Console(), Console(stderr=True)
app = typer.Typer(
    name="themis", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
app.add_typer(trace_cli.app, name="trace")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; every expected error is one sentence on stderr."""
    try:
        app(args=None if argv is None else list(argv), prog_name="themis")
    except InvariantBroken as error:
        _fail(error, f"This is a bug in Themis, please report it: {error}", 70)
    except (ThemisError, OSError) as error:
        _fail(error, _sentence(error), 2)
    except KeyboardInterrupt:
        err.print("[red]Interrupted.[/red]")
        raise SystemExit(130) from None
    except Exception as error:  # the last resort: a person never sees a traceback that they did not ask for
        _fail(error, f"This is a bug in Themis, please report it: {type(error).__name__}: {error}", 70)


def _fail(error: Exception, sentence: str, code: int) -> Never:
    if _debugging():
        raise error
    _say_red(sentence)
    raise SystemExit(code) from None


def _debugging() -> bool:
    return os.environ.get("THEMIS_DEBUG", "") not in ("", "0")


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return str(error)


def _say_red(sentence: str) -> None:
    err.print(f"[bold red]Error:[/bold red] [red]{escape(sentence)}[/red]", soft_wrap=True, highlight=False)


def _print_json(value: object) -> None:
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def _finite(value: object) -> object:
    """JSON has no infinity: such numbers become text."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@app.callback(invoke_without_command=True)
def themis(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and end.", is_eager=True)] = False,
) -> None:
    """Fair scheduling for shared GPU clusters.

    Compare policies on a workload: [bold]themis simulate --workload demo --policy themis,drf --out out/demo[/bold]
    """
    if version:
        print(f"themis {__version__}")
        raise typer.Exit


# ---- simulate ------------------------------------------------------------------------------------------------------

SIMULATE = """Run policies on a workload and compare them.

[bold]Examples[/bold]

[cyan]themis simulate[/cyan]

[cyan]themis simulate -w demo -p themis,drf,gandiva --seeds 0-4 -o out/demo[/cyan]

[cyan]themis simulate -w themis1:apps=100,load=1.4 -c sim-256 -p themis:f=0.7,payment=floor,drf[/cyan]

[cyan]themis simulate -w my-trace.csv -c my-cluster.yaml -p themis,fifo --set lease_s=300[/cyan]

Parameters follow a name after a colon, joined by commas: [cyan]NAME:KEY=VALUE,KEY=VALUE[/cyan]. In a list of policies, a
part with "=" belongs to the policy before it: [cyan]themis:f=0.7,payment=floor,drf[/cyan] is two policies.
"""
POLICIES = ["themis,drf,tiresias,gandiva"]


@app.command(help=SIMULATE)
def simulate(
    workload: Annotated[str, typer.Option("--workload", "-w", help="A generator, or a trace file.")] = "demo",
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="A preset, 8x4, or a YAML file.")] = "demo-32",
    policy: Annotated[list[str], typer.Option("--policy", "-p", help="Policies; repeatable.")] = POLICIES,
    seeds: Annotated[str, typer.Option("--seeds", "-s", help="0, 0-4 or 0,2,7: each is a run.")] = "0",
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting, as lease_s=300; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    trace_format: Annotated[str, typer.Option("--format", "-f", help="The trace file's format.")] = "",
    single_jobs: Annotated[bool, typer.Option("--single-jobs", help="Each job of a trace is an app.")] = False,
    mtbf: Annotated[
        float, typer.Option(metavar="SECONDS", help="Mean time between failures of one machine; 0: none.")
    ] = 0.0,
    repair: Annotated[float, typer.Option(metavar="SECONDS", help="How long a failed machine is away.")] = 1800.0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Runs at once; 0: one a core.")] = 0,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Keep logs, results and report there.")
    ] = None,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html into --out.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Results as JSON in place of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
) -> None:
    from themis.sim.many import run_many
    from themis.sim.plan import Plan, key_value, parse_seeds, split_policies

    plan = Plan(
        workload=workload, cluster=cluster, policies=split_policies(policy), seeds=parse_seeds(seeds),
        settings=dict(map(key_value, settings)), format=trace_format,
        options={"single_jobs": "true"} if single_jobs else {}, mtbf=mtbf, repair=repair,
    )  # fmt: skip
    runs = plan.runs(folder)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    from themis.report.metrics import Fold

    with _bars(runs) if not quiet else nullcontext(lambda progress: None) as watch:
        done = run_many(runs, Fold, processes=jobs or None, watch=watch)
    _present([d.result for d in done if d.result is not None], folder, report=report, as_json=as_json, quiet=quiet)
    _end_with_failures(done)


def _present(good: Sequence[RunMetrics], folder: Path | None, *, report: bool, as_json: bool, quiet: bool) -> None:
    """The results on the screen, and in the folder."""
    from themis.report import export

    if as_json:
        print(export.to_json(good))
    if not good:
        return
    if not (as_json or quiet):
        from themis.report.table import comparison_table

        _print_whole(comparison_table(good))
    if folder is None:
        return
    for name, text in (
        ("results.json", export.to_json(good)), ("results.csv", export.to_csv(good)), ("apps.csv", export.apps_to_csv(good)),
    ):  # fmt: skip
        (folder / name).write_text(text, encoding="utf-8")
    if report:
        from themis.report.html import write_report

        write_report(folder / "report.html", good)
    if not quiet:
        err.print(f"{'Report: ' if report else 'Results: '}{folder / ('report.html' if report else 'results.json')}")


def _print_whole(table: Table) -> None:
    """Print at the table's own width: a narrow terminal wraps its lines, which beats numbers cut short."""
    from rich.measure import Measurement

    width = Measurement.get(out, out.options.update(width=400), table).maximum
    Console(width=max(out.width, width)).print(table)


@contextmanager
def _bars(runs: Sequence[Run]) -> Iterator[Watch]:
    """A bar for each run, of apps finished; with many runs, only those under way are shown."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("apps"),
        TextColumn("{task.fields[hours]:8.1f} h"), TimeElapsedColumn(),
    )  # fmt: skip
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
    """One sentence for each run that failed, then the exit code of the worst."""
    code = 0
    for d in done:
        if d.failure is None:
            continue
        who = f"{d.run.simulation.policy_name}, seed {d.run.simulation.settings.seed}"
        ask = " This is a bug in Themis, please report it." if d.failure.bug else ""
        _say_red(f"{who}: {d.failure.message}{ask}")
        if _debugging():
            err.print(d.failure.story, markup=False, highlight=False)
        code = max(code, 70 if d.failure.bug else 2 if d.failure.input else 1)
    if code:
        raise typer.Exit(code)


# ---- logs ----------------------------------------------------------------------------------------------------------


@app.command()
def replay(
    log: Annotated[Path, typer.Argument(help="A log written by [cyan]themis simulate --out[/cyan].")],
    as_json: Annotated[bool, typer.Option("--json", help="The outcome as JSON.")] = False,
) -> None:
    """Feed a log's events through a fresh scheduler and compare its commands with the logged ones.

    Exit code 1 and the first difference if they are not equal.

    Example: [cyan]themis replay out/demo/themis-seed0.jsonl.gz[/cyan]
    """
    from themis.sim.replay import replay as replay_log

    done = replay_log(log)
    header, state = done.header, done.core.state
    if as_json:
        _print_json(
            {
                "log": str(log), "policy": header.policy, "seed": header.seed, "workload": header.workload,
                "cluster": header.cluster, "records": done.records, "events": done.events, "commands": done.commands,
                "apps": state.apps.size, "jobs": state.jobs.size, "seconds": state.now,
                "equal": done.difference is None, "difference": str(done.difference) if done.difference else None,
            }
        )  # fmt: skip
    elif done.difference is None:
        out.print(
            f"{header.policy}, seed {header.seed}, {header.workload} on {header.cluster}: {state.apps.size} apps of "
            f"{state.jobs.size} jobs in {state.now / 3600:.1f} h. {done.events} events gave the same {done.commands} "
            "commands.", markup=False, soft_wrap=True,
        )  # fmt: skip
    if done.difference is not None:
        _say_red(f"{log} does not replay; {done.difference}.")
        raise typer.Exit(1)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="APP", help="The app's name in the workload.")],
    log: Annotated[Path, typer.Option("--log", "-l", help="A log written by [cyan]themis simulate --out[/cyan].")],
    every: Annotated[bool, typer.Option("--all", "-a", help="A line for every round, alike or not.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Every round as JSON.")] = False,
) -> None:
    """Tell from a log why an app got what it got: its auctions, bids, payments and leases.

    Example: [cyan]themis explain langmodel-sweep --log out/demo/themis-seed0.jsonl.gz[/cyan]
    """
    from themis.report.explain import explain as explain_app

    story = explain_app(log, name)
    if as_json:
        print(story.to_json())
    else:
        _print_whole(story.table(every=every))


# ---- what there is -------------------------------------------------------------------------------------------------

AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command()
def policies(as_json: AsJson = False) -> None:
    """List the policies, with their parameters and what is proven of them.

    Example: [cyan]themis policies --json[/cyan]
    """
    from themis.policies.api import params, policy_class, policy_names

    rows = []
    for name in policy_names():
        kind = policy_class(name)
        made = kind()
        pace = made.pace.round_s
        rows.append(
            {
                "name": name, "about": _about(kind), "level": str(kind.level),
                "pace": f"rounds of {pace:g} s" if pace else "on free GPUs",
                "parameters": params(made), "claims": sorted(kind.claims),
            }
        )  # fmt: skip
    _list(rows, as_json)


@app.command()
def workloads(as_json: AsJson = False) -> None:
    """List the generators of workloads and the formats of trace files, with their options.

    Example: [cyan]themis workloads[/cyan], then [cyan]themis simulate -w themis1:apps=100,load=1.4[/cyan]
    """
    from dataclasses import fields

    from themis.traces.api import registered

    _list(
        [
            {
                "name": name, "about": _about(kind), "kind": "generator" if hasattr(kind, "generate") else "format",
                "options": {f.name: f.default for f in fields(kind)},
            }
            for name, kind in registered().items()
        ],
        as_json,
    )  # fmt: skip


@app.command()
def clusters(as_json: AsJson = False) -> None:
    """List the clusters that have a name.

    Others are written as machines x GPUs ([cyan]8x4[/cyan], [cyan]2x8/2@V100+4x1@K80[/cyan]) or as a YAML file.
    """
    from collections import Counter

    from themis.profiles.presets import PRESETS

    rows = []
    for name, build in PRESETS.items():
        cluster = build()
        sizes = Counter(m.gpus for m in cluster.machines)
        rows.append(
            {
                "name": name, "about": " + ".join(f"{n} x {gpus}" for gpus, n in sorted(sizes.items(), reverse=True)),
                "gpus": cluster.gpus, "machines": len(cluster.machines), "racks": len(cluster.racks),
                "gpu_types": list(cluster.gpu_types),
            }
        )  # fmt: skip
    _list(rows, as_json)


def _about(kind: type) -> str:
    """The first sentence on a class: its module's, where the module is about it alone, or its own."""
    import inspect
    import sys

    module = sys.modules[kind.__module__]
    public = [
        v for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__ and n[0] != "_"
    ]
    text = (inspect.getdoc(module) if len(public) == 1 else inspect.getdoc(kind)) or ""
    sentence, *_ = text.split("\n\n")[0].replace("\n", " ").split(". ")
    return sentence.rstrip(".").replace("``", "")


def _list(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Rows as JSON, or a paragraph each: name, what it is, and the rest in small print."""
    if as_json:
        _print_json(rows)
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for row in rows:
        name, about, *rest = row.items()
        details = "; ".join(f"{key}: {_cell(value)}" for key, value in rest)
        table.add_row(f"[bold cyan]{escape(name[1])}[/]", f"{escape(_cell(about[1]))}\n[dim]{escape(details)}[/dim]")
    out.print(table, highlight=False)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={_cell(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "''"


if __name__ == "__main__":
    main()
