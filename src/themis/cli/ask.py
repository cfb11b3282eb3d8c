"""The verbs that read from the live service: its replies, printed as tables. Loads quickly: see ``start.LIGHT``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from themis.cli.options import AppName, Home, Output, User, Verbose, Watch, argument, option
from themis.cli.table_columns import (
    ALL_APPS,
    ALL_JOBS,
    ALL_SHARES,
    ALL_TRIALS,
    APPS,
    JOBS,
    NODES,
    SHARES,
    STATES,
    TRIALS,
    Reply,
    again,
    assumed_speeds,
    check_output,
    clock,
    connect,
    delivered_now,
    dump,
    fair_share,
    filled,
    known,
    last_words,
    planned_now,
    print_lines,
    ranked,
    refined_now,
    service_of,
    show_list,
    show_rows,
    steps_columns,
    totals_of,
    trial_rows,
    why_now,
)
from themis.cli.terminal_table import shortened, width_of_terminal
from themis.errors import InputError
from themis.report.sentences import against_own_share, span

LINE = 202
"""Characters of a record of ``themis events`` in a file or a pipe; -o json has it whole."""
NO_APPS = "No apps are waiting or running. Submit one with `themis run` or `themis submit`; `themis history` lists finished apps."

# ---- apps ----------------------------------------------------------------------------------------------------------


def queue(
    user: User = "",
    me: Annotated[bool, option("--me", help="Show your own apps only.")] = False,
    output: Annotated[
        str,
        option(
            "--output",
            "-o",
            "--format",
            metavar="table|json|yaml|csv|%FIELDS",
            help="Output format, or squeue's fields, such as '%i %j %t %M %R'.",
        ),
    ] = "table",
    watch: Watch = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """List the apps that wait or run.

    [cyan]-o[/cyan] takes squeue's fields too: %i number, %j name, %u user, %t state, %M time used, %l time limit, %D machines, %R
    machines or reason, and more; a number is a width, as in %.10j.

    Example: [cyan]themis queue --watch[/cyan]
    """
    fields = None
    if "%" in output:
        from themis.cli import squeue

        fields = squeue.read(output)
    with service_of(home) as service:
        whose = service.call("Info")["user"] if me else user

        def get() -> Sequence[dict[str, Any]]:
            found: Sequence[dict[str, Any]] = service.call("Apps", user=whose)["apps"]
            return found

        if fields is None:
            columns = ALL_APPS if verbose else APPS
            show_list(get, columns, output, watch, empty=NO_APPS, title="themis queue", totals=totals_of)
            return
        for _ in again(watch, "table", "themis queue"):
            print("\n".join(squeue.lines(fields, get())))


def show(
    app: AppName,
    output: Output = "table",
    watch: Watch = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """Show an app and its jobs: state, GPUs, progress, and why attempts ended; of a sweep, its trials.

    A failed job is shown with its exit code and the last lines of its output.

    Example: [cyan]themis show 3[/cyan]
    """
    with service_of(home) as service:
        for _ in again(watch, output, f"themis show {app}"):
            found = service.call("Show", app=app)
            trials = service.call("Trials", app=app)["trials"] if found.get("sweep") else []
            if output != "table":
                if output == "csv":
                    show_rows(trial_rows(trials) or found["jobs"], output, JOBS)
                else:
                    dump({**found, "trials": trial_rows(trials)} if trials else found, output)
                continue
            layout = f"{found['layout']}." if found["layout"] else ""
            print_lines(
                [summary(found["app"], found.get("sentence", "")), layout, _more(found["app"]) if verbose else ""]
            )
            runs = ", ".join(f"{run['tracker']} {run['run']}" for run in found["runs"] if run["tracker"] != "code")
            changed = [
                f"Job {run['job']}, attempt {run['attempt']} began with another {run['run']} than was submitted."
                for run in found["runs"]
                if run["tracker"] == "code"
            ]
            warning = found["app"]["warning"]
            print_lines(
                [
                    f"Warning: {warning}." if warning else "",
                    f"Runs: {runs}." if runs else "",
                    assumed_speeds(found["assumed"]),
                    *changed,
                ]
            )
            if trials:
                rows = trial_rows(trials, found["jobs"])
                show_rows(rows, output, filled(ALL_TRIALS if verbose else TRIALS, rows))
            else:
                show_rows(found["jobs"], output, ALL_JOBS if verbose else JOBS)
            print_lines(last_words(found))


def best(
    app: Annotated[str, argument(metavar="SWEEP", help="Number or name of a sweep.")],
    output: Output = "table",
    limit: Annotated[int, option("--limit", "-l", least=1, help="Number of trials.")] = 1,
    home: Home = None,
) -> None:
    """Show the trial of a sweep that reported the lowest loss, and its parameters.

    Example: [cyan]themis best lr-search --format csv[/cyan]
    """
    with service_of(home) as service:
        trials = service.call("Trials", app=app)["trials"]
    rows = ranked(trial_rows(trials))[:limit]
    if not rows:
        raise InputError(
            f"no job of app {app!r} has reported a loss yet; a training script reports it with themis.train (docs/training.md)."
        )
    show_rows(rows, output, filled(TRIALS, rows))
    if output == "table":
        print_lines([f"Checkpoint of job {row['job']}: {row['checkpoint']}" for row in rows if row.get("checkpoint")])


def summary(app: Mapping[str, Any], sentence: str = "") -> str:
    """``App 1, lr-search, of root: running on 8 of 12 GPUs for 3.2 min.``; of one that waits, why."""
    running = app["state"] == "running"
    now = f"{app['state']} on {app['gpus']} of {app['demand']} GPUs" if running else app["state"]
    since = f" for {span(app['elapsed_s'])}" if running and app.get("elapsed_s") else ""
    reason = app["reason"] or (sentence.removesuffix(".") if app["state"] == "waiting" else "")
    why = f": {reason}" if reason else ""
    end = f"; it ends {against_own_share(float(app['sooner_s']))}" if running and known(app.get("sooner_s")) else ""
    return f"App {app['id']}, {app['name']}, of {app['user']}: {now}{since}{why}{end}."


def _more(app: Mapping[str, Any]) -> str:
    parts = [f"Submitted {clock(app['submitted'])}"]
    parts += [f"ended {clock(app['ended'])}"] if "ended" in app else []
    parts += [f"{app['gpu_hours']:.2f} GPU hours"]
    parts += [fair_share(app["rho"])] if known(app.get("rho")) else []
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
    with service_of(home) as service:
        for _ in again(watch, output, f"themis why {app}"):
            if output != "table":
                now = service.call("Why", app=app)
                dump({"now": {k: v for k, v in now.items() if k != "json"}, **json.loads(now["json"])}, output)
                continue
            first = Reply.of(service.call("Why", app=app, quick=True))
            lines = why_now(first, verbose=verbose)
            print_lines(lines)
            if not (verbose or STATES.get(first.code, "waiting") == "waiting"):
                continue
            sys.stdout.flush()
            now = service.call("Why", app=app)
            story = json.loads(now.pop("json"))
            print_lines(
                (*refined_now(first, Reply.of(now), verbose=verbose), *planned_now(story), *delivered_now(story))
            )
            if verbose:
                begin = story["arrival"]
                steps = [{**step, "time": step["time"] - begin} for step in story["steps"]]
                show_rows(steps, output, steps_columns(steps))


def save_state(
    file: Annotated[Path, argument(metavar="FILE", help="The file to write, such as state.json.gz.")],
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
    follow: Annotated[bool, option("--follow", "-f", help="Follow the output until the app ends.")] = False,
    job: Annotated[int, option("--job", "-j", least=0, help="Number of the job in the app, from 0.")] = 0,
    rank: Annotated[int, option("--rank", "-r", least=0, help="Number of the rank, from 0.")] = 0,
    attempt: Annotated[int, option(least=0, help="Show this attempt only, from 1.")] = 0,
    home: Home = None,
) -> None:
    """Print the output of a job.

    Example: [cyan]themis logs -f 3[/cyan]
    """
    from themis.cli.waiting import copy_logs, print_logs

    if not follow:
        with service_of(home) as service:
            print_logs(service, app, job=job, rank=rank, attempt=attempt)
        return
    with connect(home) as client:
        copy_logs(client, app, job=job, rank=rank, follow=follow, attempt=attempt)


def whoami(output: Output = "table", home: Home = None) -> None:
    """Print the user that the service takes you for, and where it is.

    Example: [cyan]themis whoami[/cyan]
    """
    from themis.client.home import read_endpoint

    with service_of(home) as service:
        info = service.call("Info")
        row = {
            "user": info["user"],
            "administrator": bool(info.get("admin")),
            "service": read_endpoint(service.home).address,
        }
        if output != "table":
            dump(row, output)
            return
        print(f"{row['user']}{' (administrator)' if row['administrator'] else ''} at {row['service']}")


# ---- the cluster ---------------------------------------------------------------------------------------------------


def nodes(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """List the machines, or with [cyan]--user[/cyan] those that run the user's apps.

    Example: [cyan]themis nodes --watch[/cyan]
    """
    with service_of(home) as service:
        empty = (
            "None of the machines runs an app of this user."
            if user
            else "No machine is there. Jobs wait until one joins."
        )
        show_list(
            lambda: service.call("Nodes", user=user)["nodes"], NODES, output, watch, empty=empty, title="themis nodes"
        )


def share(
    user: User = "",
    output: Output = "table",
    watch: Watch = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """Show each user's share of the cluster and the fair share.

    "GPU hours" is what the user's active apps have received; "fair GPU hours" is what they would have received on the user's own
    1/N of the cluster; "vs own share" is the app that ends least sooner than on its own share; "promise kept" counts the apps
    that take at most 1.1 times as long as on their own share, or five minutes more. [cyan]--verbose[/cyan] adds finish times over
    those on the own share.

    Example: [cyan]themis share --watch[/cyan]
    """
    with service_of(home) as service:
        columns = ALL_SHARES if verbose else SHARES
        show_list(
            lambda: service.call("Share", user=user)["users"],
            columns,
            output,
            watch,
            empty=NO_APPS,
            title="themis share",
        )


def events(
    after: Annotated[int, option(least=0, help="Print records after this number.")] = 0,
    limit: Annotated[int, option(least=0, help="Maximum number of records (0: all).")] = 0,
    follow: Annotated[
        bool, option("--follow", "-f", "--watch", "-w", help="Print new records as they are written.")
    ] = False,
    user: User = "",
    output: Output = "table",
    home: Home = None,
) -> None:
    """Print the journal's records; [cyan]-o json[/cyan] gives the lines of an event log.

    The table numbers jobs within their app, from 0, as all commands do; an event log numbers the jobs of all apps together.

    Example: [cyan]themis events -o json > journal.jsonl && themis explain APP --log journal.jsonl[/cyan]
    """
    check_output(output)
    with connect(home) as client:
        for record in client.events(after, follow=follow, limit=limit, user=user):
            line = record.record
            if output == "json":
                print(record.line, flush=True)
            elif output == "yaml":
                dump([line], output)
            else:
                left_out = {"t", "kind", "answer", "proof", "machine"} | (
                    {"app", "job", "jobs"} if record.jobs else set()
                )
                rest = {k: v for k, v in line.items() if k not in left_out}
                of = "".join(f"app {job.app} job {job.job} " for job in record.jobs)
                text = f"{record.number:6d} {clock(record.time)} {record.kind:<14} {of}{json.dumps(rest)}"
                print(shortened(text, width_of_terminal() or LINE), flush=True)
