"""``themis forecast``: accuracy of the forecasts of dynamic jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from themis.cli.options import helped
from themis.cli.output import escape, out, print_json, print_whole, say_notes

EVALUATE = """Evaluate three forecast rules on the dynamic jobs of a workload.

The rules are Shockwave's restatement of the Dirichlet prior, the standard Bayesian update, and greedy (the batch size does
not change again). Errors are means over jobs and over their training: in each regime's share of the epochs, in the batch
size at each epoch, and in the run time.

[bold]Example[/bold]

[cyan]themis forecast evaluate dynamic.trace:schedules=schedules.json --profiles throughputs.json --plot errors.png[/cyan]
"""


@helped(EVALUATE)
def evaluate(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="A generator or trace file, with options as NAME:KEY=VALUE.")
    ],
    profiles: Annotated[str, typer.Option("--profiles", help="Table of speeds; see themis profiles.")] = "",
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="Seed of the workload.")] = 0,
    points: Annotated[int, typer.Option("--points", min=1, max=1000, help="Number of forecasts per job.")] = 20,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write a figure of the errors, as .png or .svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every point.")] = False,
) -> None:
    from themis.fairness.forecasts.evaluate import KINDS, RULES, evaluate
    from themis.report.forecasts import check_name, table, write_errors
    from themis.sim.plan import split_parameters
    from themis.traces.formats import load_workload
    from themis.traces.profiles.library import load_book
    from themis.traces.trace_summary import paces

    if plot:
        check_name(plot)
    book = load_book(profiles)
    name, options = split_parameters(workload)
    jobs = load_workload(name, seed=seed, book=book, **options)
    say_notes(jobs.notes)
    errors = evaluate(paces(jobs, book), points)
    if as_json:
        print_json(
            {
                "workload": jobs.name,
                "source": jobs.source,
                "jobs": len(errors.jobs),
                "changing": int(errors.changes.sum()),
                "progress": errors.progress.tolist(),
                "errors": {
                    str(rule): {
                        kind: {
                            "mean": errors.mean(rule, kind),
                            "mean_changing": errors.mean(rule, kind, changing=True),
                            "at": errors.curve(rule, kind).tolist(),
                            "at_changing": errors.curve(rule, kind, changing=True).tolist(),
                        }
                        for kind in KINDS
                    }
                    for rule in RULES
                },
            }
        )
    else:
        print_whole(table(errors))
        changing = int(errors.changes.sum())
        out.print(
            f"[dim]{escape(jobs.name)}: {len(errors.jobs)} dynamic jobs, {changing} of which change their batch size. Means over "
            f"jobs and {points} moments of their training.[/dim]",
            highlight=False,
            soft_wrap=True,
        )
    if plot:
        write_errors(plot, errors, title=jobs.name)
