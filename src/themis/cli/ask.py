"""The verbs that read from the live service: calls of ``themis.Client``, printed as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from themis.cli.rows import (
    ALL_APPS,
    ALL_JOBS,
    ALL_SHARES,
    APPS,
    JOBS,
    NODES,
    SHARES,
    STEPS,
    AppName,
    Home,
    Output,
    User,
    Verbose,
    Watch,
    again,
    check_output,
    clock,
    connect,
    delivered_now,
    dump,
    fair_share,
    known,
    last_words,
    planned_now,
    show_list,
    show_rows,
    why_now,
)
from themis.cli.waiting import copy_logs
from themis.console import out

if TYPE_CHECKING:
    from themis.client import themis_pb2 as pb

NO_APPS = "No apps are waiting or running. Submit one with `themis run` or `themis submit`; `themis history` lists finished apps."

# ---- apps ----------------------------------------------------------------------------------------------------------


def queue(
    user: User = "",
    output: Output = "table",
    watch: Watch = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """List the apps that wait or run.

    Example: [cyan]themis queue --watch[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.queue(user), ALL_APPS if verbose else APPS, output, watch, empty=NO_APPS)


def show(
    app: AppName,
    output: Output = "table",
    watch: Watch = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """Show an app and its jobs: state, GPUs, progress, and why attempts ended.

    Example: [cyan]themis show 3[/cyan]
    """
    from themis.service.api.pages import as_dict

    with connect(home) as client:
        for _ in again(watch, output):
            found = client.show(app)
            if output != "table":
                dump(as_dict(found), output)
                continue
            runs = ", ".join(f"{run.tracker} {run.run}" for run in found.runs)
            lines = [_summary(found.app), _more(found.app) if verbose else ""]
            lines += [f"Warning: {found.app.warning}." if found.app.warning else "", f"Runs: {runs}." if runs else ""]
            _print_lines(lines)
            show_rows([as_dict(job) for job in found.jobs], output, ALL_JOBS if verbose else JOBS)
            _print_lines(last_words(found))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        if line:
            out.print(line, markup=False, highlight=False, soft_wrap=True)


def _summary(app: pb.App) -> str:
    """``App 1, lr-search, of root: running on 8 of 12 GPUs.``, with the reason if it has one."""
    now = f"{app.state} on {app.gpus} of {app.demand} GPUs" if app.state == "running" else app.state
    why = f": {app.reason}" if app.reason else ""
    return f"App {app.id}, {app.name}, of {app.user}: {now}{why}."


def _more(app: pb.App) -> str:
    parts = [f"Submitted {clock(app.submitted)}"]
    parts += [f"ended {clock(app.ended)}"] if app.HasField("ended") else []
    parts += [f"{app.gpu_hours:.2f} GPU hours"]
    parts += [fair_share(app.rho)] if app.HasField("rho") and known(app.rho) else []
    return ", ".join(parts) + "."


def why(
    app: AppName,
    output: Output = "table",
    watch: Watch = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """Explain why an app waits: the reason, the apps ahead of it, and when it gets GPUs.

    With [cyan]--verbose[/cyan] also every decision so far: offers, bids, payments and leases.

    Example: [cyan]themis why 3[/cyan]
    """
    from themis.service.api.pages import as_dict

    with connect(home) as client:
        for _ in again(watch, output):
            found = client.why(app)
            now = {key: value for key, value in as_dict(found).items() if key != "json"}
            story = json.loads(found.json)
            if output != "table":
                dump({"now": now, **story}, output)
                continue
            simulated = found.HasField("start_median")
            now_and_later = (*why_now(found, verbose=verbose), *planned_now(story, simulated=simulated))
            _print_lines((*now_and_later, *delivered_now(story)))
            if verbose:
                begin = story["arrival"]
                show_rows([{**step, "time": step["time"] - begin} for step in story["steps"]], output, STEPS)


def save_state(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, such as state.json.gz.")],
    home: Home = None,
) -> None:
    """Write the scheduler's state to a file; [cyan]themis replay FILE[/cyan] lets any policy decide on it.

    Example: [cyan]themis dump state.json.gz && themis replay state.json.gz --policy drf[/cyan]
    """
    with connect(home) as client:
        data = client.dump()
    file.write_bytes(data)
    print(f"{file}: {len(data)} bytes")


def logs(
    app: AppName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the app ends.")] = False,
    job: Annotated[int, typer.Option("--job", "-j", min=0, help="Number of the job in the app, from 0.")] = 0,
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="Number of the rank, from 0.")] = 0,
    attempt: Annotated[int, typer.Option(min=0, help="Show this attempt only, from 1.")] = 0,
    home: Home = None,
) -> None:
    """Print the output of a job.

    Example: [cyan]themis logs -f 3[/cyan]
    """
    with connect(home) as client:
        copy_logs(client, app, job=job, rank=rank, follow=follow, attempt=attempt)


# ---- the cluster ---------------------------------------------------------------------------------------------------


def nodes(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """List the machines, or with [cyan]--user[/cyan] those that run the user's apps.

    Example: [cyan]themis nodes --watch[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.nodes(user), NODES, output, watch)


def share(
    user: User = "",
    output: Output = "table",
    watch: Watch = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """Show each user's share of the cluster and the fair share.

    "GPU hours" is what the user's active apps have received; "fair GPU hours" is what they would have received on the user's
    own 1/N of the cluster. [cyan]--verbose[/cyan] adds finish times relative to the fair share.

    Example: [cyan]themis share --watch[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.share(user), ALL_SHARES if verbose else SHARES, output, watch)


def events(
    after: Annotated[int, typer.Option(min=0, help="Print records after this number.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of records (0: all).")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", "--watch", "-w", help="Print new records as they are written.")
    ] = False,
    user: User = "",
    output: Output = "table",
    home: Home = None,
) -> None:
    """Print the journal's records; [cyan]-o json[/cyan] gives the lines of an event log.

    Example: [cyan]themis events -o json > journal.jsonl && themis explain APP --log journal.jsonl[/cyan]
    """
    check_output(output)
    with connect(home) as client:
        for record in client.events(after, follow=follow, limit=limit, user=user):
            line = json.loads(record.json)
            if output == "json":
                print(record.json, flush=True)
            elif output == "yaml":
                dump([line], output)
            else:
                rest = {k: v for k, v in line.items() if k not in ("t", "kind", "answer", "proof", "machine")}
                print(f"{record.number:6d} {clock(record.time)} {record.kind:<14} {json.dumps(rest)[:160]}", flush=True)
