"""The verbs that ask the live service and change nothing: thin calls of ``themis.Client`` with tables around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from themis.cli.rows import (
    APPS,
    ENDED,
    JOBS,
    NODES,
    SHARES,
    STEPS,
    USAGES,
    AppName,
    Home,
    Output,
    User,
    Watch,
    again,
    check_output,
    clock,
    connect,
    delivered_now,
    dump,
    last_words,
    planned_now,
    show_list,
    show_rows,
    why_now,
)  # fmt: skip
from themis.cli.waiting import copy_logs
from themis.console import out

NO_APPS = "No app waits or runs. `themis run` and `themis submit` submit apps; `themis history` lists finished ones."

# ---- apps ----------------------------------------------------------------------------------------------------------


def queue(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """List the apps that wait or run.

    Example: [cyan]themis queue --watch[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.queue(user), APPS, output, watch, empty=NO_APPS)


def history(
    user: User = "",
    limit: Annotated[int, typer.Option("--limit", "-l", min=0, help="The newest so many; 0: 1000.")] = 0,
    output: Output = "table",
    watch: Watch = False,
    home: Home = None,
) -> None:
    """List the apps that are over.

    Example: [cyan]themis history --user alice -o json[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.history(user, limit), ENDED, output, watch)


def show(app: AppName, output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """Show an app: its jobs, where they run, how their attempts ended.

    Example: [cyan]themis show 3[/cyan]
    """
    from themis.service.api.pages import as_dict

    with connect(home) as client:
        for _ in again(watch, output):
            found = client.show(app)
            if output != "table":
                dump(as_dict(found), output)
                continue
            show_rows([as_dict(found.app)], output, ENDED)
            show_rows([as_dict(job) for job in found.jobs], output, JOBS)
            for line in (found.app.reason, *last_words(found)):
                if line:
                    out.print(line, markup=False, highlight=False, soft_wrap=True)


def why(app: AppName, output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """Tell why an app waits, who is ahead, when it may begin, and its story: auctions, bids, payments, leases.

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
            for line in (*why_now(found), *planned_now(story), *delivered_now(story)):
                out.print(line, markup=False, highlight=False, soft_wrap=True)
            begin = story["arrival"]
            show_rows([{**step, "time": step["time"] - begin} for step in story["steps"]], output, STEPS)


def save_state(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="To write, as state.json.gz.")], home: Home = None
) -> None:
    """Write the scheduler's state to a file; [cyan]themis replay FILE[/cyan] decides on it, by any policy.

    Example: [cyan]themis dump state.json.gz && themis replay state.json.gz --policy drf[/cyan]
    """
    with connect(home) as client:
        data = client.dump()
    file.write_bytes(data)
    print(f"{file}: {len(data)} bytes")


def logs(
    app: AppName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the app is over.")] = False,
    job: Annotated[int, typer.Option("--job", "-j", min=0, help="Which of its jobs, from 0.")] = 0,
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="Which of its ranks.")] = 0,
    attempt: Annotated[int, typer.Option(min=0, help="Only this attempt, from 1.")] = 0,
    home: Home = None,
) -> None:
    """Print what a job wrote.

    Example: [cyan]themis logs -f 3[/cyan]
    """
    with connect(home) as client:
        copy_logs(client, app, job=job, rank=rank, follow=follow, attempt=attempt)


# ---- the cluster ---------------------------------------------------------------------------------------------------


def nodes(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """List the machines; with [cyan]--user[/cyan] those that run this user's apps.

    Example: [cyan]themis nodes --watch[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.nodes(user), NODES, output, watch)


def share(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """Show who holds how much of the cluster now, what would be their part by weight, and their fairness.

    GPU hours are those that their apps of now have had, beside what these would have had on their own 1/N of the cluster.

    Example: [cyan]themis share --watch[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.share(user), SHARES, output, watch)


def usage(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """Show what everybody had so far.

    Example: [cyan]themis usage -o yaml[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.usage(user), USAGES, output, watch)


def events(
    after: Annotated[int, typer.Option(min=0, help="Records after this number.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="So many; 0: all.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", "--watch", "-w", help="Go on as they come.")] = False,
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
