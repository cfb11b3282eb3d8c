"""The verbs that change the live service: submit, run, wait, cancel, hold, resume, drain, undrain."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from themis.cli.rows import (
    NODES,
    WHO,
    AppNames,
    Columns,
    Home,
    NodeNames,
    Output,
    Owner,
    check_output,
    connect,
    show_rows,
)
from themis.cli.waiting import Notifier, copy_logs, say
from themis.console import err, say_red
from themis.errors import InputError

if TYPE_CHECKING:
    from themis.client import themis_pb2 as pb


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Program and arguments; no shell runs them.")
    ],
    gpus: Annotated[
        str, typer.Option("--gpus", "-g", help="Number of GPUs, such as 2, or a range, such as 1..4.")
    ] = "1",
    name: Annotated[str, typer.Option("--name", "-n", help="Name of the app. Default: the script's.")] = "",
    hours: Annotated[float, typer.Option(help="Estimated run time on one GPU, in hours.")] = 1.0,
    model: Annotated[str, typer.Option(help="Name of the profile with the job's speed.")] = "",
    user: Owner = "",
    weight: Annotated[float, typer.Option(help="Weight of the app: 2 entitles it to twice the share.")] = 1.0,
    retries: Annotated[int | None, typer.Option(help="Maximum number of attempts after failures.")] = None,
    launch: Annotated[
        str, typer.Option(metavar="gpu|machine", help="Start one rank per GPU, or one per machine.")
    ] = "gpu",
    grace: Annotated[float | None, typer.Option(help="Seconds between the stop signal and SIGKILL.")] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder for checkpoints.")] = None,
    env: Annotated[
        list[str],
        typer.Option("--env", "-e", metavar="NAME=VALUE", help="Environment variable of the job; repeatable."),
    ] = [],  # noqa: B006
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the app's number and return.")] = False,
    home: Home = None,
) -> None:
    """Submit a command as an app with one job, and follow its output. Options go before the command.

    Exit code 0 if the app completed, else 1. Ctrl-C stops following; the app goes on.

    Example: [cyan]themis run --gpus 2 -- python train.py --epochs 9[/cyan]
    """
    wanted = _gpus(gpus)
    if not weight > 0:
        raise InputError(f"--weight is {weight:g}, expected a number above 0.")
    values = dict(_variable(text) for text in env)
    more: dict[str, Any] = {"launch": launch, "weight": weight, "user": user}
    more |= {"retries": retries} if retries is not None else {}
    more |= {"grace_s": grace} if grace is not None else {}
    more |= {"checkpoint_dir": str(checkpoints.absolute())} if checkpoints is not None else {}
    with connect(home) as client:
        client.info()
        client.patience_s = None  # it answers; a later restart is given more time
        made = client.run(command, gpus=wanted, name=name, hours=hours, model=model, env=values, **more)
        if detach:
            print(made.app)
            return
        err.print(f"App {made.app}, {made.name}. Ctrl-C stops following; the app goes on.", highlight=False)
        try:
            copy_logs(client, made.app, follow=True, submitted=True)
            ended = client.wait(made.app)
        except KeyboardInterrupt:
            say(
                f"App {made.app}, {made.name}, goes on. Follow it with `themis logs -f {made.app}`, "
                f"end it with `themis cancel {made.app}`."
            )
            raise
    if not _over(ended):
        raise typer.Exit(1)


def wait(
    apps: AppNames,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Maximum time, such as 2h. Default: no limit.")] = "",
    home: Home = None,
) -> None:
    """Wait until apps end; on a terminal, prints from time to time why an app still waits.

    Exit code 0 if all apps completed, else 1.

    Example: [cyan]themis wait prepare train && ./publish.sh[/cyan]
    """
    from themis.jobs.sizes import Unreadable, duration

    try:
        end = time.monotonic() + (duration(timeout) if timeout else math.inf)
    except Unreadable as expected:
        raise InputError(f"--timeout is {timeout!r}, expected {expected}.") from None
    completed = True
    with connect(home) as client:
        # All names are looked up first, so that a wrong one is reported before the wait.
        numbers = [client.show(app).app.id for app in apps]
        client.patience_s = None
        for number in numbers:
            tell = Notifier().update if err.is_terminal else None
            completed &= _over(client.wait(number, timeout_s=end - time.monotonic(), tell=tell))
    if not completed:
        raise typer.Exit(1)


def _over(ended: pb.App) -> bool:
    """Print how an app ended; returns whether it completed."""
    why = f": {ended.reason}" if ended.reason else "."
    err.print(f"App {ended.id} {ended.state}{why}", markup=False, highlight=False, soft_wrap=True)
    return bool(ended.state == "completed")


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Job file, as YAML.")],
    user: Owner = "",
    home: Home = None,
) -> None:
    """Submit the apps of a job file; prints their numbers and names.

    Example: [cyan]themis submit sweep.yaml[/cyan]
    """
    from themis.client.spec import read_requests

    read_requests(file, user)  # before connecting: a wrong file is reported also if no service runs
    with connect(home) as client:
        for made in client.submit_file(file, user):
            print(f"{made.app} {made.name}")


def cancel(apps: AppNames, output: Output = "table", home: Home = None) -> None:
    """Cancel apps: their jobs get the stop signal, and SIGKILL after the grace period.

    Example: [cyan]themis cancel 3 my-sweep[/cyan]
    """
    with connect(home) as client:
        _each(apps, client.cancel, WHO, output)


def hold(apps: AppNames, output: Output = "table", home: Home = None) -> None:
    """Pause apps and release their GPUs.

    Example: [cyan]themis hold 3[/cyan]
    """
    with connect(home) as client:
        _each(apps, client.hold, WHO, output)


def resume(apps: AppNames, output: Output = "table", home: Home = None) -> None:
    """Let held apps compete for GPUs again.

    Example: [cyan]themis resume 3[/cyan]
    """
    with connect(home) as client:
        _each(apps, client.resume, WHO, output)


def drain(
    nodes: NodeNames,
    deadline: Annotated[
        str, typer.Option(metavar="DURATION", help="How long running jobs may continue, such as 10m.")
    ] = "",
    output: Output = "table",
    home: Home = None,
) -> None:
    """Take machines out of service; their jobs save and continue on other machines.

    With [cyan]--deadline[/cyan] running jobs may continue until then, and the rest is preempted. No new job starts on a
    draining machine. A machine is out of service when its last job has ended.

    Example: [cyan]themis drain node0 --deadline 10m[/cyan]
    """
    from themis.jobs.sizes import Unreadable, duration

    try:
        within_s = duration(deadline) if deadline else 0.0
    except Unreadable as expected:
        raise InputError(f"--deadline is {deadline!r}, expected {expected}.") from None
    with connect(home) as client:
        _each(nodes, lambda node: client.drain(node, within_s), NODES, output)


def undrain(nodes: NodeNames, output: Output = "table", home: Home = None) -> None:
    """Return machines to service.

    Example: [cyan]themis undrain node0[/cyan]
    """
    with connect(home) as client:
        _each(nodes, client.undrain, NODES, output)


def _each(names: Sequence[str], change: Callable[[str], Any], columns: Columns, output: str) -> None:
    """Apply a change to each name; continues after an error, and ends with exit code 2 if there was one."""
    from themis.service.api.pages import as_dict

    check_output(output)
    changed, wrong = [], []
    for name in names:
        try:
            changed.append(as_dict(change(name)))
        except InputError as error:
            wrong.append(str(error))
    if changed:
        show_rows(changed, output, columns)
    for sentence in wrong:
        say_red(sentence)
    if wrong:
        raise typer.Exit(2)


def _gpus(text: str) -> tuple[int, int]:
    """GPUs as in job files; also ``1-4``, Slurm's form of a range."""
    from themis.jobs.sizes import Unreadable, gpus

    try:
        return gpus(int(text) if text.isdecimal() and text.isascii() else text.replace("-", "..", 1))
    except (Unreadable, ValueError):  # an integer of thousands of digits
        raise InputError(f"--gpus is {text[:60]!r}, expected a number such as 2, or a range such as 1..4.") from None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--env got {text!r}, expected NAME=VALUE.")
    return name, value
