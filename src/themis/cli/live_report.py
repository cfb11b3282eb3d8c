"""``themis report``: the papers' figures from live runs, with the simulation of each next to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from themis.cli.output import named_path, out, print_whole, ready_folder, say
from themis.cli.report import FIGURE_FORMATS, known, say_written
from themis.errors import InputError


def report(
    homes: Annotated[list[Path], typer.Argument(metavar="DATA_DIR...", help="Data directories of services.")],
    folder: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", parser=named_path, help="Folder for logs, report and figures.")
    ],
    simulated: Annotated[
        bool, typer.Option("--simulated/--no-simulated", help="Simulate the same apps, for comparison.")
    ] = True,
    figure_format: Annotated[
        str, typer.Option("--figure-format", metavar="svg|png", help="Format of the figures.")
    ] = "png",
) -> None:
    """Write a report of live runs, and the papers' figures: rho and JCT by policy, GPUs over time, live and simulated.

    Services may run meanwhile; apps that have not ended are left out of distributions.

    Example: [cyan]themis report home-drf home-themis -o out[/cyan]
    """
    known(figure_format, "figure format", FIGURE_FORMATS)
    from themis.report import figures
    from themis.report.beside_simulation import beside, ratios
    from themis.report.compare import caption, compare
    from themis.report.html import write_report
    from themis.report.metrics import metrics_of
    from themis.report.result import RunMetrics
    from themis.report.style import FILE, save
    from themis.report.table import summary_table
    from themis.report.timeline import shares
    from themis.service.operations import live_runs

    names = [home.resolve().name for home in homes]
    if len(set(names)) < len(names):
        names = [f"{home.resolve().parent.name}-{name}" for home, name in zip(homes, names)]
    if len(set(names)) < len(names):
        raise InputError(f"two data directories are named {max(names, key=names.count)}; give each once.")
    for home in homes:
        if not (home / "journal.db").exists():
            raise InputError(
                f"{home} is not the data directory of a service: it has no journal.db. Runs of themis simulate have their report "
                f"by `themis compare {home} --html report.html`."
            )
    ready_folder(folder)
    lives, others = list[RunMetrics](), list[RunMetrics]()
    for home, name in zip(homes, names):
        log = folder / f"{name}.jsonl"
        live_runs.write_log(home, log)
        lives.append(metrics_of(log))
        if simulated:
            other = folder / f"{name}-simulated.jsonl"
            live_runs.simulate(home, other)
            others.append(metrics_of(other))
    policies = [run.policy for run in lives]
    labels = [f"{policy} ({name})" if policies.count(policy) > 1 else policy for policy, name in zip(policies, names)]
    lives = [replace(run, policy=label) for run, label in zip(lives, labels)]
    compared = [beside(*one) for one in zip(labels, lives, others)]
    alike = [
        replace(run, policy=f"{live.policy}, simulated", workload=live.workload, settings=live.settings)
        for live, run in zip(lives, others)
    ]
    both = [*lives, *alike]
    print_whole(summary_table(lives))
    for one in compared:
        out.print(one.line, markup=False, highlight=False, soft_wrap=True)
    written = [write_report(folder / "report.html", lives)]
    written += figures.write_figures(folder, compare(both), figure_format)
    if compared:
        written.append(folder / f"live-over-simulated.{figure_format}")
        save(ratios(compared, FILE), written[-1], caption(lives))
    written.append(folder / f"shares.{figure_format}")
    save(shares([(run.policy, run) for run in both], FILE), written[-1], caption(both))
    if any(app.outcome == "active" for run in lives for app in run.apps):
        say("Some apps have not ended yet; distributions are over those that have.")
    say_written(written)
