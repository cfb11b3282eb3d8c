"""The live demonstration: ``themis up`` with virtual GPUs, three users' submissions, a table while they run, the report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from themis.cli.output import err, print_whole
from themis.client.client import OVER, Client
from themis.client.home import read_endpoint
from themis.client.submit_requests import read_requests
from themis.errors import InputError, ThemisError
from themis.report.metrics import metrics_of
from themis.report.result import RunMetrics
from themis.schema import messages as schema

USERS = ("ada", "ben", "cleo")
COLOURS = ("cyan", "magenta", "yellow")
SUBMIT_EVERY_S = 4.0
SETTINGS: Mapping[str, object] = {
    # A lease of ten minutes is for jobs of hours; these take a minute, and everything is scaled down with them.
    "lease": 6,
    "tick": 2,
    "container": 1,
    "progress": 1,
    "grace": 5,
    # Ada, Ben and Cleo are no accounts of this system, so their jobs run as the user who starts the demonstration.
    "single_trust": "true",
}
START_S = 120.0
PROGRAM, LOG, REPORT = "terrain.py", "live.jsonl", "report.html"


def run(folder: Path, *, machines: str = "2x4", policy: str = "fair_finish", limit_s: float = 600.0) -> RunMetrics:
    """Run the demonstration.

    Parameters
    ----------
    folder : gets the apps' files, the service's data directory (``home``) and the event log (``live.jsonl``).
    machines : virtual machines, as ``themis up`` takes them; at least four GPUs on one, for the job that can use four.
    limit_s : the demonstration is aborted after this many seconds.

    Raises
    ------
    InputError : the folder has a demonstration already; the service does not start. ThemisError : an app failed.
    """
    home = folder / "home"
    if home.exists():
        raise InputError(f"{folder} holds an earlier demonstration; remove it, or name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    source = files("themis.cli.live_demo")
    for name in (PROGRAM, *(f"{user}.yaml" for user in USERS)):
        origin = source / name if name.endswith(".py") else source / "apps" / name
        (folder / name).write_bytes(origin.read_bytes())
    with service(home, machines=machines, policy=policy, settings=SETTINGS), Client(home) as client:
        ended = _watch(client, folder, limit_s)
        log = folder / LOG
        with open(log, "w", encoding="utf-8") as file:
            file.writelines(f"{record.line}\n" for record in client.events())
    failed = [app for app in ended if app.state != "completed"]
    if failed:
        raise ThemisError(f"app {failed[0].name} {failed[0].state}: {failed[0].reason or 'see its logs'} ({home}/run).")
    return metrics_of(log)


def check(machines: str, policy: str) -> None:
    """Raise InputError where ``themis up`` would refuse these, before anything is written."""
    from themis.policies.api import make_policy
    from themis.service.operations.service_settings import load

    load(None, {**SETTINGS, "machines": machines, "policy": policy})
    make_policy(policy)


@contextmanager
def service(home: Path, *, machines: str, policy: str, settings: Mapping[str, object]) -> Iterator[None]:
    """Run ``themis up`` with virtual machines in a separate process until the block ends.

    Raises
    ------
    InputError : it does not start; says why.
    """
    home.mkdir(parents=True)
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    root = ["--allow-root"] if os.geteuid() == 0 else []
    with open(home / "up.log", "wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "themis.cli",
                "up",
                "--home",
                str(home),
                "--machines",
                machines,
                "--policy",
                policy,
                "--port",
                "0",
                *options,
                *root,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=True,
        )
    try:
        _until_it_answers(home, process)
        yield
    finally:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_it_answers(home: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with suppress(ThemisError):
            if read_endpoint(home).pid == process.pid:
                return
        time.sleep(0.1)
    last_line = (home / "up.log").read_text(errors="replace").strip().splitlines()[-1:]
    raise InputError(
        f"the service did not start: {last_line[0] if last_line else 'it said nothing'} (all of it in {home}/up.log)."
    )


def _watch(client: Client, folder: Path, limit_s: float) -> Sequence[schema.App]:
    """Submit, one user after the other, and show progress until all apps have finished."""
    began = time.monotonic()
    waiting = list(USERS)
    with Live(console=err, refresh_per_second=4, transient=True) as live:
        while True:
            elapsed = time.monotonic() - began
            if waiting and elapsed >= SUBMIT_EVERY_S * (len(USERS) - len(waiting)):
                user = waiting.pop(0)
                for request in read_requests(folder / f"{user}.yaml", user, folder=folder):
                    client.submit(request)
            apps = sorted(
                [*client.queue(), *client.call("Apps", schema.AppsRequest(ended=True)).apps], key=lambda app: app.id
            )
            live.update(_picture(apps, client, elapsed))
            if not waiting and all(app.state in OVER for app in apps):
                return apps
            if elapsed > limit_s:
                raise ThemisError(f"the demonstration was not over after {limit_s:g} s; see {folder}.")
            time.sleep(0.5)


def _picture(apps: Sequence[schema.App], client: Client, elapsed: float) -> Group:
    """Table of the apps with their GPUs and progress."""
    colour = {app.name: COLOURS[USERS.index(app.user)] for app in apps if app.user in USERS}
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, title=f"{elapsed:4.0f} s, real processes on virtual GPUs")
    for column in ("app", "user", "state", "GPUs", "jobs done", "progress", "rho"):
        table.add_column(column, justify="left" if column in ("app", "user", "state") else "right")
    for app in apps:
        table.add_row(
            Text(app.name, style=colour.get(app.name, "")),
            app.user,
            app.state,
            f"{app.gpus} of {app.demand}",
            f"{app.jobs_done}/{app.jobs}",
            f"{app.progress:.0%}",
            f"{app.rho:.2f}" if app.rho is not None else "",
        )
    holder = {gpu: app.name for app in apps if app.gpus for job in client.show(app.id).jobs for gpu in job.gpus}
    lines, first = [Text("")], 0
    for node in client.nodes():
        line = Text(f"{node.name:>8} ")
        for gpu in range(first, first + node.gpus):
            line.append("■ " if gpu in holder else "□ ", style=colour.get(holder.get(gpu, ""), "dim"))
        lines.append(line)
        first += node.gpus
    return Group(table, *lines)


def show(run: RunMetrics, folder: Path) -> Path:
    """Print the comparison's table and write the report; returns its path."""
    from themis.report.html import write_report
    from themis.report.table import summary_table

    print_whole(summary_table([run]))
    return write_report(folder / REPORT, [run])


def remove(folder: Path) -> None:
    """Remove an earlier demonstration only: other files in the folder or a user's own data directory there stay."""
    if not (folder / "home" / "up.log").exists():
        return
    shutil.rmtree(folder / "home")
    for name in (PROGRAM, LOG, REPORT, *(f"{user}.yaml" for user in USERS)):
        (folder / name).unlink(missing_ok=True)
