"""The verbs that change something in the live service: submit, run, wait, cancel, hold, resume, drain, undrain."""

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
)  # fmt: skip
from themis.cli.waiting import Teller, copy_logs, say
from themis.console import err, say_red
from themis.errors import InputError

if TYPE_CHECKING:
    from themis.client import themis_pb2 as pb


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Program and arguments, no shell.")],
    gpus: Annotated[str, typer.Option("--gpus", "-g", help="GPUs, as 2, or from 1 to 4 as 1..4.")] = "1",
    name: Annotated[str, typer.Option("--name", "-n", help="Of the app.")] = "",
    hours: Annotated[float, typer.Option(help="How long you believe it needs on one GPU.")] = 1.0,
    model: Annotated[str, typer.Option(help="A profile's name, so that its speed is known.")] = "",
    user: Owner = "",
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
    """Submit a command as an app of one job, and follow what it writes. Options stand before the command.

    Exit code 0 if it completed, else 1. Ctrl-C only stops following.

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
        client.patience_s = None  # it is there: should it start anew while it is followed, it is waited for longer
        made = client.run(command, gpus=wanted, name=name, hours=hours, model=model, env=values, **more)
        if detach:
            print(made.app)
            return
        err.print(f"App {made.app}, {made.name}. Ctrl-C stops following, not the app.", highlight=False)
        try:
            copy_logs(client, made.app, follow=True, submitted=True)
            ended = client.wait(made.app)
        except KeyboardInterrupt:
            say(
                f"App {made.app}, {made.name}, goes on. `themis logs -f {made.app}` follows it, `themis cancel {made.app}` ends it."
            )
            raise
    if not _over(ended):
        raise typer.Exit(1)


def wait(
    apps: AppNames,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Such as 2h; default: for ever.")] = "",
    home: Home = None,
) -> None:
    """Wait until apps are over; says from time to time, at a terminal, what is waited for.

    Exit code 0 if all completed, else 1.

    Example: [cyan]themis wait prepare train && ./publish.sh[/cyan]
    """
    from themis.jobs.sizes import Unreadable, duration

    try:
        end = time.monotonic() + (duration(timeout) if timeout else math.inf)
    except Unreadable as expected:
        raise InputError(f"--timeout is {timeout!r}, expected {expected}.") from None
    completed = True
    with connect(home) as client:
        numbers = [
            client.show(app).app.id for app in apps
        ]  # before any is waited for: a name that is wrong is told at once
        client.patience_s = None
        for number in numbers:
            tell = Teller().look if err.is_terminal else None
            completed &= _over(client.wait(number, timeout_s=end - time.monotonic(), tell=tell))
    if not completed:
        raise typer.Exit(1)


def _over(ended: pb.App) -> bool:
    """Say how an app ended; whether it completed."""
    why = f": {ended.reason}" if ended.reason else "."
    err.print(f"App {ended.id} {ended.state}{why}", markup=False, highlight=False, soft_wrap=True)
    return bool(ended.state == "completed")


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Apps as YAML.")], user: Owner = "", home: Home = None
) -> None:
    """Submit the apps of a YAML file; prints their numbers and names.

    Example: [cyan]themis submit sweep.yaml[/cyan]
    """
    from themis.client.spec import read_requests

    read_requests(file, user)  # a wrong file is told even where no service runs
    with connect(home) as client:
        for made in client.submit_file(file, user):
            print(f"{made.app} {made.name}")


def cancel(apps: AppNames, output: Output = "table", home: Home = None) -> None:
    """Withdraw apps: their jobs are told to stop, and killed after their grace.

    Example: [cyan]themis cancel 3 my-sweep[/cyan]
    """
    with connect(home) as client:
        _each(apps, client.cancel, WHO, output)


def hold(apps: AppNames, output: Output = "table", home: Home = None) -> None:
    """Let apps wait without GPUs, what they hold given back.

    Example: [cyan]themis hold 3[/cyan]
    """
    with connect(home) as client:
        _each(apps, client.hold, WHO, output)


def resume(apps: AppNames, output: Output = "table", home: Home = None) -> None:
    """Let held apps take part again.

    Example: [cyan]themis resume 3[/cyan]
    """
    with connect(home) as client:
        _each(apps, client.resume, WHO, output)


def drain(
    nodes: NodeNames,
    deadline: Annotated[
        str, typer.Option(metavar="DURATION", help="Until then, such as 10m, jobs may end by themselves.")
    ] = "",
    output: Output = "table",
    home: Home = None,
) -> None:
    """Take machines out of service; their jobs save and go on elsewhere.

    With [cyan]--deadline[/cyan] nothing more is placed there, jobs may end by themselves, and those that are left then are
    preempted. A machine is out of service as soon as it is empty.

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
    """Put machines back into service.

    Example: [cyan]themis undrain node0[/cyan]
    """
    with connect(home) as client:
        _each(nodes, client.undrain, NODES, output)


def _each(names: Sequence[str], change: Callable[[str], Any], columns: Columns, output: str) -> None:
    """Change one after the other; one that cannot be does not keep the others from it, but the exit code is 2."""
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
    """As job files say it; ``1-4`` too, as Slurm writes ranges."""
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
