"""The verbs of the live service: ``up`` and ``doctor``, and thin calls of ``themis.Client`` with tables around them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from themis.console import err, out, print_json, print_whole
from themis.errors import InputError, UnknownName

if TYPE_CHECKING:
    from themis.client.client import Client

Home = Annotated[
    Path | None, typer.Option("--home", metavar="DIR", help="The arbiter's home; default $THEMIS_HOME or ~/.themis.")
]
Output = Annotated[str, typer.Option("--output", "-o", metavar="table|json|yaml", help="How to print.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Print again every two seconds.")]
User = Annotated[str, typer.Option("--user", "-u", help="Only this user's.")]
AppName = Annotated[str, typer.Argument(metavar="APP", help="Number or name of an app.")]
Columns = Mapping[str, Callable[[Any], object]]
WATCH_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    for verb in (
        up, doctor, submit, queue, show, why, share, logs, cancel, hold, resume, nodes, drain, undrain, usage, history, events,
    ):  # fmt: skip
        app.command()(verb)
    app.command(context_settings={"ignore_unknown_options": True})(run)


# ---- the service ---------------------------------------------------------------------------------------------------


def up(
    gpus: Annotated[int | None, typer.Option(help="So many virtual GPUs; jobs run without real ones.")] = None,
    machines: Annotated[str | None, typer.Option(help="Virtual machines, as 2x4, or a cluster's YAML.")] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="local|ray", help="This machine, or a Ray cluster's nodes.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster, as ray.init takes it.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", "-p", help="As themis simulate takes it.")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings as YAML.")] = None,
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting, as lease_s=120; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    port: Annotated[int | None, typer.Option(help="Of gRPC; 0 lets the system choose.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Of the status pages; -1: none.")] = None,
    allow_root: Annotated[bool | None, typer.Option("--allow-root", help="Let jobs run as root.")] = None,
    leave_jobs: Annotated[
        bool, typer.Option("--leave-jobs", help="At the end, leave jobs to the next arbiter.")
    ] = False,
    home: Home = None,
) -> None:
    """Start the scheduler of this machine, until Ctrl-C or SIGTERM; started again it goes on where it was.

    GPUs are found through NVML. To try it without: [cyan]themis up --gpus 8[/cyan], or [cyan]--machines 2x4[/cyan].

    Example: [cyan]themis up --gpus 8 --policy themis --set lease_s=120[/cyan]
    """
    import logging
    import os

    from themis.client.home import default_home
    from themis.service.config import load

    # Agents are started with fork and exec while gRPC's threads run; its fork handlers would only warn about that.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from themis.service.up import Service, serve_until_told

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    given: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set got {text!r}, expected KEY=VALUE, as in lease_s=120.")
        given[name.strip()] = value.strip()
    given |= {
        "gpus": gpus, "machines": machines, "policy": policy, "port": port, "http_port": http_port, "allow_root": allow_root,
        "engine": engine, "address": address,
    }  # fmt: skip
    where = (home or default_home()).absolute()
    own = where / "config.yaml"
    found = load(config or (own if own.exists() else None), {k: v for k, v in given.items() if v is not None})

    def say(service: Service) -> None:
        arbiter = service.arbiter
        machines = arbiter.ask(lambda: list(arbiter.state.machines))
        size = sum(machine.gpus for machine in machines)
        out.print(
            f"Themis schedules {size} GPUs on {len(machines)} machines by {found.policy}; home {where}, gRPC on "
            f"{service.endpoint.grpc}, status on {service.endpoint.http or 'no port'}.", markup=False, soft_wrap=True,
        )  # fmt: skip
        if arbiter.recovered:
            out.print(f"Went on from {arbiter.recovered} records of the journal.")

    serve_until_told(where, found, say, leave_jobs=leave_jobs)


def doctor(home: Home = None, output: Output = "table") -> None:
    """Check what the service needs: home, token, journal, GPUs, an arbiter that answers. Exit code 1 if something is wrong.

    Example: [cyan]themis doctor[/cyan]
    """
    from themis.client.home import default_home
    from themis.service.doctor import examine

    found = examine(home or default_home())
    _print(
        found, output,
        {"check": lambda c: c["check"], "": lambda c: c["state"], "finding": lambda c: c["finding"]},
    )  # fmt: skip
    if any(check["state"] == "wrong" for check in found):
        raise typer.Exit(1)


# ---- apps ----------------------------------------------------------------------------------------------------------


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Program and arguments, no shell.")],
    gpus: Annotated[str, typer.Option("--gpus", "-g", help="GPUs, as 2, or from 1 to 4 as 1-4.")] = "1",
    name: Annotated[str, typer.Option("--name", "-n", help="Of the app.")] = "",
    hours: Annotated[float, typer.Option(help="How long you believe it needs on one GPU.")] = 1.0,
    model: Annotated[str, typer.Option(help="A profile's name, so that its speed is known.")] = "",
    user: User = "",
    weight: Annotated[float, typer.Option(help="Its weight among apps.")] = 1.0,
    retries: Annotated[int | None, typer.Option(help="Failures after which it is given up.")] = None,
    launch: Annotated[
        str, typer.Option(metavar="gpu|machine", help="A rank for each GPU, or for each machine.")
    ] = "gpu",
    grace: Annotated[float | None, typer.Option(help="Seconds from the stop signal to SIGKILL.")] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder to save to.")] = None,
    env: Annotated[list[str], typer.Option("--env", "-e", metavar="NAME=VALUE", help="For the job; repeatable.")] = [],  # noqa: B006
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait; print the app's number.")] = False,
    home: Home = None,
) -> None:
    """Submit a command as an app of one job, and follow what it writes.

    Exit code 0 if it completed, else 1. Ctrl-C only stops following.

    Example: [cyan]themis run --gpus 2 -- python train.py --epochs 9[/cyan]
    """
    low, _, high = gpus.partition("-")
    if not low.isdecimal() or (high and not high.isdecimal()):
        raise InputError(f"--gpus is {gpus!r}, expected a number such as 2, or a range such as 1-4.")
    values = dict(_variable(text) for text in env)
    more: dict[str, Any] = {"launch": launch, "weight": weight, "user": user}
    more |= {"retries": retries} if retries is not None else {}
    more |= {"grace_s": grace} if grace is not None else {}
    more |= {"checkpoint_dir": str(checkpoints.absolute())} if checkpoints is not None else {}
    with _client(home) as client:
        made = client.run(
            command, gpus=(int(low), int(high or low)), name=name, hours=hours, model=model, env=values, **more
        )
        if detach:
            print(made.app)
            return
        err.print(f"App {made.app}, {made.name}. Ctrl-C stops following, not the app.", highlight=False)
        _follow(client, made.app, follow=True)
        state = client.wait(made.app).state
    err.print(f"App {made.app} {state}.", highlight=False)
    if state != "completed":
        raise typer.Exit(1)


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Apps as YAML.")], user: User = "", home: Home = None
) -> None:
    """Submit the apps of a YAML file; prints their numbers and names.

    Example: [cyan]themis submit sweep.yaml[/cyan]
    """
    from themis.client.client import user_name
    from themis.client.spec import read_requests

    requests = read_requests(file, user or user_name())
    with _client(home) as client:
        for request in requests:
            made = client.submit(request)
            print(f"{made.app} {made.name}")


def queue(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """List the apps that wait or run.

    Example: [cyan]themis queue --watch[/cyan]
    """
    with _client(home) as client:
        _list(lambda: client.queue(user), APPS, output, watch)


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
    with _client(home) as client:
        _list(lambda: client.history(user, limit), ENDED, output, watch)


def show(app: AppName, output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """Show an app: its jobs, where they run, how their attempts ended.

    Example: [cyan]themis show 3[/cyan]
    """
    from themis.service.http import as_dict

    with _client(home) as client:
        while True:
            found = client.show(app)
            if output == "table":
                _print([as_dict(found.app)], output, ENDED)
                _print([as_dict(job) for job in found.jobs], output, JOBS)
                if found.app.reason:
                    out.print(found.app.reason, markup=False, highlight=False)
            else:
                _dump(as_dict(found), output)
            if not watch:
                return
            time.sleep(WATCH_S)


def why(app: AppName, home: Home = None, output: Output = "table") -> None:
    """Tell why an app got what it got: its auctions, bids, payments and leases.

    Example: [cyan]themis why 3[/cyan]
    """
    with _client(home) as client:
        story = json.loads(client.why(app))
    if output != "table":
        _dump(story, output)
        return
    _print(story["steps"], output, STEPS)


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
    with _client(home) as client:
        _follow(client, app, job=job, rank=rank, follow=follow, attempt=attempt)


def cancel(apps: Annotated[list[str], typer.Argument(metavar="APP...")], home: Home = None) -> None:
    """Withdraw apps: their jobs are told to stop, and killed after their grace."""
    with _client(home) as client:
        _each(apps, client.cancel)


def hold(apps: Annotated[list[str], typer.Argument(metavar="APP...")], home: Home = None) -> None:
    """Let apps wait without GPUs, what they hold given back."""
    with _client(home) as client:
        _each(apps, client.hold)


def resume(apps: Annotated[list[str], typer.Argument(metavar="APP...")], home: Home = None) -> None:
    """Let held apps take part again."""
    with _client(home) as client:
        _each(apps, client.resume)


# ---- the cluster -----------------------------------------------------------------------------------------------------


def nodes(output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """List the machines."""
    with _client(home) as client:
        _list(client.nodes, NODES, output, watch)


def drain(names: Annotated[list[str], typer.Argument(metavar="NODE...")], home: Home = None) -> None:
    """Take machines out of service; their jobs save and go on elsewhere."""
    with _client(home) as client:
        for name in names:
            print(f"{name} {client.drain(name).state}")


def undrain(names: Annotated[list[str], typer.Argument(metavar="NODE...")], home: Home = None) -> None:
    """Put machines back into service."""
    with _client(home) as client:
        for name in names:
            print(f"{name} {client.undrain(name).state}")


def share(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """Show who holds how much of the cluster now, what would be their part by weight, and their fairness."""
    with _client(home) as client:
        _list(lambda: client.share(user), SHARES, output, watch)


def usage(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """Show what everybody had so far."""
    with _client(home) as client:
        _list(lambda: client.usage(user), USAGES, output, watch)


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
    _known(output)
    mine: set[int] = set()
    count = 0
    with _client(home) as client:
        for record in client.events(after, follow=follow, limit=limit):
            line = json.loads(record.json)
            if record.kind == "AppSubmitted":
                if not user or line["app"]["user"] == user:
                    mine.add(count)
                count += 1
            app = line.get("app") if isinstance(line.get("app"), int) else count - 1 if "app" in line else None
            if user and app not in mine:
                continue
            if output == "json":
                print(record.json, flush=True)
            elif output == "yaml":
                _dump([line], output)
            else:
                rest = {k: v for k, v in line.items() if k not in ("t", "kind", "answer", "proof", "machine")}
                print(
                    f"{record.number:6d} {_clock(record.time)} {record.kind:<14} {json.dumps(rest)[:160]}", flush=True
                )


# ---- printing ---------------------------------------------------------------------------------------------------------


def _client(home: Path | None) -> Client:
    from themis.client.client import Client

    return Client(home)


def _known(output: str) -> None:
    if output not in ("table", "json", "yaml"):
        raise UnknownName("output", output, ("table", "json", "yaml"))


def _list(get: Callable[[], Sequence[Any]], columns: Columns, output: str, watch: bool) -> None:
    from themis.service.http import as_dict

    _known(output)
    while True:
        rows = [as_dict(row) for row in get()]
        if watch and out.is_terminal and output == "table":
            out.clear()
        _print(rows, output, columns)
        if not watch:
            return
        sys.stdout.flush()
        time.sleep(WATCH_S)


def _print(rows: Sequence[Mapping[str, Any]], output: str, columns: Columns) -> None:
    _known(output)
    if output != "table":
        _dump([dict(row) for row in rows], output)
        return
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        table.add_row(*(escape(str(cell(row))) for cell in columns.values()))
    print_whole(table)


def _dump(value: object, output: str) -> None:
    _known(output)
    if output == "json":
        print_json(value)
        return
    import yaml

    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")


def _follow(client: Client, app: str | int, **which: Any) -> None:
    for data in client.logs(app, **which):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _each(apps: Sequence[str], what: Callable[[str], Any]) -> None:
    for app in apps:
        found = what(app)
        print(f"{found.id} {found.name} {found.state}")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--env got {text!r}, expected NAME=VALUE.")
    return name, value


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M:%S")


def _time(name: str) -> Callable[[Any], object]:
    return lambda row: _clock(row[name]) if row.get(name) else ""


def _number(name: str, form: str = ".2f") -> Callable[[Any], object]:
    return lambda row: format(float(row[name]), form) if row.get(name) is not None else ""


def _plain(name: str) -> Callable[[Any], object]:
    return lambda row: row.get(name, "")


_WHO: Columns = {"app": _plain("id"), "name": _plain("name"), "user": _plain("user"), "state": _plain("state")}
APPS: Columns = {
    **_WHO, "GPUs": lambda r: f"{r['gpus']} of {r['demand']}", "jobs": lambda r: f"{r['jobs_ended']}/{r['jobs']}",
    "progress": _number("progress", ".0%"), "rho": _number("rho"), "GPU hours": _number("gpu_hours"),
    "submitted": _time("submitted"),
}  # fmt: skip
ENDED: Columns = {
    **_WHO, "jobs": _plain("jobs"), "rho": _number("rho"), "GPU hours": _number("gpu_hours"),
    "submitted": _time("submitted"), "ended": _time("ended"),
}  # fmt: skip
JOBS: Columns = {
    "job": _plain("id"), "name": _plain("name"), "state": _plain("state"), "attempt": _plain("attempt"),
    "GPUs": lambda r: " ".join(map(str, r["gpus"])), "nodes": lambda r: " ".join(r["nodes"]),
    "steps": lambda r: f"{float(r['steps']):.0f}/{float(r['total']):.0f}", "lease until": _time("until"),
    "attempts ended": lambda r: ", ".join(a["ending"] + (f" ({a['code']})" if a.get("code") else "") for a in r["attempts"]),
}  # fmt: skip
NODES: Columns = {
    "node": _plain("name"), "state": _plain("state"), "type": _plain("gpu_type"),
    "leased": lambda r: f"{r['leased']} of {r['gpus']}", "apps": lambda r: ", ".join(r["apps"]),
}  # fmt: skip
SHARES: Columns = {
    "user": _plain("user"), "apps": _plain("apps"), "GPUs": _plain("gpus"), "share": _number("share", ".0%"),
    "by weight": _number("fair", ".0%"), "worst rho": _number("rho_worst"), "median rho": _number("rho_median"),
}  # fmt: skip
USAGES: Columns = {
    "user": _plain("user"), "apps": _plain("apps"), "completed": _plain("completed"), "cancelled": _plain("cancelled"),
    "failed": _plain("failed"), "GPU hours": _number("gpu_hours"),
}  # fmt: skip
STEPS: Columns = {
    "seconds": _number("time", ".1f"), "round": lambda r: r["round"] if r["round"] >= 0 else "",
    "offered": lambda r: r["offered"] or "", "rho": lambda r: f"{r['rho']:.2f}" if r["auction"] and r["rho"] else "",
    "bid": lambda r: ("yes" if r["bid"] else "filtered out") if r["auction"] else "", "won": lambda r: r["won"] or "",
    "kept": lambda r: f"{r['kept']:.0%}" if r["won"] else "", "leftover": lambda r: r["leftover"] or "",
    "granted": lambda r: r["granted"] or "", "renewed": lambda r: r["renewed"] or "",
    "revoked": lambda r: f"{r['revoked']} {', '.join(r['causes'])}" if r["revoked"] else "", "held": _plain("held"),
    "": _plain("note"),
}  # fmt: skip
