"""The verbs that change the live service: submit, run, wait, cancel, hold, resume, drain, undrain. See ``start.LIGHT``."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from themis.cli.options import AppName, AppNames, Home, NodeNames, Output, Owner, argument, option, whole_rest
from themis.cli.output import say, say_notes, say_red
from themis.cli.table_columns import NODES, WHO, Columns, check_output, connect, service_of, show_rows
from themis.errors import InputError

if TYPE_CHECKING:
    from themis.client.light import Service
    from themis.client.sending import Sender
    from themis.schema import messages as schema

SENDS = re.compile(r"""^\s*["']?send["']?\s*:|[{,]\s*["']?send["']?\s*:""", re.MULTILINE)
"""A job file that may have the key ``send``."""
OF_A_SHELL = ("|", "||", "&&", ">", ">>", "<", "<<", "2>", "2>&1", "&>")
"""Words that mean something only to a shell; an argument of a program is hardly ever one."""


Export = Annotated[
    str,
    option(
        metavar="NONE|ALL|NAMES",
        help="Variables of this shell for the job. Default, where jobs run on this machine: PATH, VIRTUAL_ENV and others.",
    ),
]
Secret = Annotated[
    list[str],
    option("--secret", metavar="NAME", help="Variable from ~/.config/themis/secrets of the job's account; repeatable."),
]


@whole_rest
def run(
    command: Annotated[
        list[str],
        argument(metavar="-- COMMAND...", help="Program and arguments; no shell runs them, except with --shell."),
    ],
    gpus: Annotated[str, option("--gpus", "-g", help="Number of GPUs, such as 2, or a range, such as 1..4.")] = "1",
    name: Annotated[str, option("--name", "-n", help="Name of the app. Default: the script's.")] = "",
    hours: Annotated[float | None, option(help="Estimated run time on one GPU, in hours (not known).")] = None,
    model: Annotated[str, option(help="Name of the profile with the job's speed.")] = "",
    user: Owner = "",
    weight: Annotated[float, option(help="Weight of the app: 2 entitles it to twice the share.")] = 1.0,
    retries: Annotated[int | None, option(help="Maximum number of attempts after failures.")] = None,
    launch: Annotated[
        str,
        option(
            metavar="once|gpu|machine",
            help="Start one process with all GPUs of one machine, a rank per GPU, or a process per machine. Default: once.",
        ),
    ] = "",
    grace: Annotated[float | None, option(help="Seconds between the stop signal and SIGKILL.")] = None,
    checkpoints: Annotated[
        str,
        option(metavar="DIR|URL", help="Folder for checkpoints, or the URL that they are copied to."),
    ] = "",
    send: Annotated[
        str, option(metavar="FOLDER", help="Send the files of this folder to the job's machines, and run in the copy.")
    ] = "",
    outputs: Annotated[
        list[str],
        option("--outputs", metavar="PATH", help="File or folder that the service keeps for themis fetch; repeatable."),
    ] = [],  # noqa: B006
    packages: Annotated[
        str, option(metavar="FILE", help="Prepare packages: uv.lock, requirements.txt or environment.yml.")
    ] = "",
    module: Annotated[list[str], option("--module", metavar="NAME", help="Module to load; repeatable.")] = [],  # noqa: B006
    launcher: Annotated[
        str, option(metavar="bwrap|apptainer:IMAGE|docker:IMAGE", help="Run the command in a sandbox or container.")
    ] = "",
    env: Annotated[
        list[str], option("--env", "-e", metavar="NAME=VALUE", help="Environment variable of the job; repeatable.")
    ] = [],  # noqa: B006
    export: Export = "",
    secret: Secret = [],  # noqa: B006
    shell: Annotated[
        bool, option("--shell", "-s", help="Run the command by sh -c, with pipes and redirections.")
    ] = False,
    detach: Annotated[bool, option("--detach", "-d", help="Print the app's number and return.")] = False,
    no_send: Annotated[
        bool, option("--no-send", help="Send no files: machines have the current folder (default except for a fleet).")
    ] = False,
    home: Home = None,
) -> None:
    """Submit a command as an app with one job, and follow its output. Options go before the command.

    Exit code 0 if the app completed, else 1. Ctrl-C stops following; the app goes on.

    Example: [cyan]themis run --gpus 2 -- python train.py --epochs 9[/cyan]
    """
    from themis.client.command import name_of, run_request
    from themis.client.exported import CONTAINERS, code_of
    from themis.machines.agent.messages import NEARLY_URL

    if send and no_send:
        raise InputError("--send and --no-send exclude each other; give one of them.")
    if not weight > 0:
        raise InputError(f"--weight is {weight:g}, expected a number above 0.")
    fields: dict[str, Any] = {"launch": launch, "weight": weight, "user": user}
    fields |= {"retries": retries} if retries is not None else {}
    fields |= {"grace_s": grace} if grace is not None else {}
    if checkpoints:
        is_url = "://" in checkpoints
        if not is_url and NEARLY_URL.match(checkpoints):
            raise InputError(
                f"--checkpoints is {checkpoints!r}, expected a folder, or a URL with two slashes, such as s3://bucket/path or themis://."
            )
        fields["checkpoint_url" if is_url else "checkpoint_dir"] = (
            checkpoints if is_url else str(Path(checkpoints).absolute())
        )
    given = {
        "outputs": [path.removeprefix("./").rstrip("/") for path in outputs],
        "packages": packages,
        "modules": module,
        "launcher": launcher,
    }
    fields |= {key: value for key, value in given.items() if value}
    request = run_request(
        ["sh", "-c", " ".join(command)] if shell else command,
        gpus=_gpus(gpus),
        name=name or name_of(command[0].split() if shell and len(command) == 1 else command),
        hours=hours,
        model=model,
        env=dict(_variable(text) for text in env),
        **fields,
    )
    if not shell:
        say_notes(_hint_of_shell(word) for word in command if word in OF_A_SHELL)
    with service_of(home) as service:
        folder = send or ("" if no_send else _unasked(service))
        program = request["jobs"][0]["program"]
        if folder:
            _send(service, folder, program)
        if launcher.startswith(CONTAINERS):
            if export or secret:
                raise InputError("--export and --secret do not reach into a container; give --env.")
        else:
            program |= variables_of(service, export, secret, other=bool(user))
            if not folder:  # files that are sent stay as they are
                program["exports"] |= code_of(program["argv"], program["cwd"])
        made = service.call("Submit", key=os.urandom(16).hex(), **request)
        if made["layout"] and not launch:
            say(f"{made['layout']}.")
        if detach:
            print(made["app"], flush=True)
            _hint(made)
            return
        say(f"App {made['app']}, {made['name']}. Ctrl-C stops following; the app goes on.")
        _follow(service, made)


def variables_of(service: Service, export: str, secrets: Sequence[str], *, other: bool) -> dict[str, Any]:
    """``exports`` and ``secrets`` of a program. ``other`` : the job is another user's, who has another shell."""
    from themis.client.exported import exported

    if not export and (other or service.call("Info").get("engine") != "local"):
        export = "NONE"
    values, left_out = exported(export, os.environ)
    if left_out:
        say(
            f"Not exported, because they may hold secrets: {', '.join(left_out)}. --secret NAME reads the file of secrets."
        )
    return {"exports": values, "secrets": list(secrets)}


def _sender(service: Service) -> Sender:
    from themis.client.sending import Sender

    info = service.call("Info")
    return Sender(service.home, int(info.get("max_bundle", 0)), say)


def _send(service: Service, folder: str, program: dict[str, Any]) -> None:
    """Send a folder, for a program that runs in the copy."""
    from themis.client.sending import sent

    program |= sent(_sender(service), folder, program["cwd"])


def _unasked(service: Service) -> str:
    """The folder to send where nothing was said of it: this one, if the machines are elsewhere and do not have it; else none."""
    if service.call("Info").get("engine") != "fleet":
        return ""
    from themis.client.sending import only_here

    here = os.getcwd()
    if not only_here(here):
        return ""
    say(
        f"The files of {here} are sent, because the machines do not have this folder; --no-send runs the command in it. "
        "Results belong into $THEMIS_CHECKPOINT_DIR, or into folders that --outputs names; `themis fetch` gets them."
    )
    return here


def _hint_of_shell(word: str) -> str:
    return f"the command has the argument {word!r}, which only a shell understands; use --shell to run it by one."


def _hint(made: Mapping[str, Any]) -> None:
    """Next steps for an app that was just submitted, printed on a terminal."""
    if sys.stderr.isatty():
        app = made["app"]
        say(f"Follow its output: themis logs -f {app}. Why it waits: themis why {app}. Cancel it: themis cancel {app}.")


def _follow(service: Service, made: Mapping[str, Any]) -> None:
    from themis.cli.waiting import copy_logs

    client, app = service.client, made["app"]
    client.patience_s = None  # it answers; a later restart is given more time
    try:
        copy_logs(client, app, follow=True, submitted=True)
        ended = client.wait(app)
    except KeyboardInterrupt:
        say(
            f"App {app}, {made['name']}, goes on. Follow it with `themis logs -f {app}`, "
            f"end it with `themis cancel {app}`."
        )
        raise
    if not _over(ended):
        raise SystemExit(1)


def fetch(
    app: AppName,
    to: Annotated[str, option(metavar="DIR", help="Folder to write to. Default: named after the app.")] = "",
    job: Annotated[list[int], option("--job", metavar="NUMBER", help="Only this job, from 0; repeatable.")] = [],  # noqa: B006
    home: Home = None,
) -> None:
    """Get the checkpoints and outputs of an app that the service keeps; also while it runs.

    Files of the same names are replaced.

    Example: [cyan]themis fetch train --to results[/cyan]
    """
    from themis.client.fetching import fetch as fetch_files

    with service_of(home) as service:
        name = service.call("Show", app=app)["app"]["name"]
        folder = Path(to or name)
        for made in fetch_files(service.home, app, folder, job, lambda said: say_notes([said])):
            print(made, flush=True)


def wait(
    apps: AppNames,
    timeout: Annotated[str, option(metavar="DURATION", help="Maximum time, such as 2h. Default: no limit.")] = "",
    home: Home = None,
) -> None:
    """Wait until apps end; on a terminal, prints from time to time why an app still waits.

    Exit code 0 if all apps completed, else 1.

    Example: [cyan]themis wait prepare train && ./publish.sh[/cyan]
    """
    from themis.cli.waiting import Notifier
    from themis.sizes import Unreadable, duration

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
            tell = Notifier().update if sys.stderr.isatty() else None
            completed &= _over(client.wait(number, timeout_s=end - time.monotonic(), tell=tell))
    if not completed:
        raise SystemExit(1)


def _over(ended: schema.App) -> bool:
    """Print how an app ended; returns whether it completed."""
    why = f": {ended.reason}" if ended.reason else "."
    say(f"App {ended.id} {ended.state}{why}")
    return bool(ended.state == "completed")


def submit(
    file: Annotated[
        Path,
        argument(
            metavar="FILE",
            help="Job file, as YAML, a script, whose #SBATCH headers are read, or a trace or generator of themis simulate -w.",
        ),
    ],
    words: Annotated[
        list[str], argument(metavar="[ARGUMENT]...", help="Arguments of a script; put -- before them.")
    ] = [],  # noqa: B006
    export: Export = "",
    secret: Secret = [],  # noqa: B006
    shell: Annotated[bool, option("--shell", "-s", help="Read FILE as a script without a #! line, for sh.")] = False,
    user: Owner = "",
    scale: Annotated[float, option(metavar="FACTOR", help="Of a trace: make all times this much shorter.")] = 1.0,
    pace: Annotated[
        float, option(metavar="FACTOR", help="Of a trace: steps take this much longer than believed.")
    ] = 1.0,
    command: Annotated[
        str, option(help="Of a trace: command of each job, such as 'python train.py {model} --steps {steps}'.")
    ] = "",
    name: Annotated[
        str, option("--name", "-n", help="Of a trace: name of the play, which submits each app once.")
    ] = "",
    wait: Annotated[bool, option("--wait", help="Of a trace: stay until all apps have ended.")] = False,
    trace_format: Annotated[str, option("--format", "-f", help="Format of the trace.")] = "",
    profiles: Annotated[str, option(help="Of a trace: tables of the true speeds; see themis profiles.")] = "",
    seed: Annotated[int, option(help="Of a trace: seed of what is drawn.")] = 0,
    home: Home = None,
) -> None:
    """Submit the apps of a job file, a script as by sbatch, or a whole trace; prints their numbers and names.

    Example: [cyan]themis submit sweep.yaml[/cyan], [cyan]themis submit job.sh[/cyan], [cyan]themis submit trace.csv
    --scale 60[/cyan]
    """
    from themis.cli import play, sbatch
    from themis.limits import read_text

    options = play.Options(
        scale=scale,
        pace=pace,
        command=command,
        name=name,
        wait=wait,
        format=trace_format,
        profiles=profiles,
        seed=seed,
    )
    if not shell and play.is_trace(file, options):
        if words:
            raise InputError(f"{file} is a trace, which takes no arguments, got {words[0]!r}.")
        with service_of(home) as service:
            play.play(str(file), user, options, service)
        return
    text = read_text(file)
    if shell and not text.startswith("#!"):
        text = f"#!/bin/sh\n{text}"
    if sbatch.is_script(text, file):
        text, notes = sbatch.document(text, file, words)
        say_notes(notes)
    elif words:
        raise InputError(f"{file} is a job file, which takes no arguments, got {words[0]!r}.")
    with service_of(home) as service:
        variables = variables_of(service, export, secret, other=bool(user))
        # The service has the same profiles, but not the folders that are to be sent.
        if (service.home / "journal.db").exists() and not SENDS.search(text):
            folder, key = str(Path.cwd()), os.urandom(16).hex()
            made = service.call(
                "SubmitFile", key=key, text=text, source=str(file), folder=folder, user=user, **variables
            )
            say_notes(made["notes"])
            for app in made["apps"]:
                _submitted(app["app"], app["name"], app["layout"])
        else:
            for app in _read_here(service, text, file, user, variables):
                _submitted(app.app, app.name, app.layout)


def _submitted(number: int, name: str, layout: str) -> None:
    print(f"{number} {name}", flush=True)
    say_notes([f"{name}: {layout}."] if layout else [])


def _read_here(
    service: Service, text: str, file: Path, user: str, variables: Mapping[str, Any]
) -> list[schema.SubmitReply]:
    """Submit a job file that is read here: the service is another user's, without this user's profiles, or folders are sent."""
    from themis.client.submit_requests import text_requests, with_code, with_variables

    client = service.client
    requests, notes = text_requests(
        text,
        str(file),
        user=user,
        folder=str(Path.cwd()),
        unknown_work_s=client.info().unknown_work_s,
        profiles=service.home / "profiles",
        send=_sender(service).send,
    )
    say_notes(notes)
    for request in requests:
        with_variables(request, **variables)
    with_code(requests)
    return client.submit_all(requests)


def cancel(apps: AppNames, output: Output = "table", home: Home = None) -> None:
    """Cancel apps: their jobs get the stop signal, and SIGKILL after the grace period.

    Example: [cyan]themis cancel 3 my-sweep[/cyan]
    """
    _each(home, apps, lambda service, app: service.call("Cancel", app=app)["app"], WHO, output)


def hold(apps: AppNames, output: Output = "table", home: Home = None) -> None:
    """Pause apps and release their GPUs.

    Example: [cyan]themis hold 3[/cyan]
    """
    _each(home, apps, lambda service, app: service.call("Hold", app=app)["app"], WHO, output)


def resume(apps: AppNames, output: Output = "table", home: Home = None) -> None:
    """Let held apps compete for GPUs again.

    Example: [cyan]themis resume 3[/cyan]
    """
    _each(home, apps, lambda service, app: service.call("Resume", app=app)["app"], WHO, output)


def drain(
    nodes: NodeNames,
    deadline: Annotated[str, option(metavar="DURATION", help="How long running jobs may continue, such as 10m.")] = "",
    output: Output = "table",
    home: Home = None,
) -> None:
    """Take machines out of service; their jobs save and continue on other machines.

    With [cyan]--deadline[/cyan] running jobs may continue until then, and the rest is preempted. No new job starts on a
    draining machine. A machine is out of service when its last job has ended.

    Example: [cyan]themis drain node0 --deadline 10m[/cyan]
    """
    from themis.sizes import Unreadable, duration

    try:
        within_s = duration(deadline) if deadline else 0.0
    except Unreadable as expected:
        raise InputError(f"--deadline is {deadline!r}, expected {expected}.") from None

    def change(service: Service, node: str) -> dict[str, Any]:
        return dict(service.call("Drain", node=node, deadline_s=within_s)["node"])

    _each(home, nodes, change, NODES, output)


def undrain(nodes: NodeNames, output: Output = "table", home: Home = None) -> None:
    """Return machines to service.

    Example: [cyan]themis undrain node0[/cyan]
    """
    _each(home, nodes, lambda service, node: service.call("Undrain", node=node)["node"], NODES, output)


def _each(
    home: Path | None,
    names: Sequence[str],
    change: Callable[[Service, str], dict[str, Any]],
    columns: Columns,
    output: str,
) -> None:
    """Apply a change to each name; continues after an error, and ends with exit code 2 if there was one."""
    check_output(output)
    changed, wrong = [], []
    with service_of(home) as service:
        for name in names:
            try:
                changed.append(change(service, name))
            except InputError as error:
                wrong.append(str(error))
    if changed:
        show_rows(changed, output, columns)
    for sentence in wrong:
        say_red(sentence)
    if wrong:
        raise SystemExit(2)


def _gpus(text: str) -> tuple[int, int]:
    """GPUs as in job files; also ``1-4``, Slurm's form of a range."""
    from themis.sizes import Unreadable, gpus

    try:
        return gpus(int(text) if text.isdecimal() and text.isascii() else text.replace("-", "..", 1))
    except (Unreadable, ValueError):  # an integer of thousands of digits
        raise InputError(f"--gpus is {text[:60]!r}, expected a number such as 2, or a range such as 1..4.") from None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or not name.isascii():
        raise InputError(f"--env is {text[:60]!r}, expected NAME=VALUE with a name of letters, digits and '_'.")
    if name.startswith(("THEMIS_", "SLURM_")):
        raise InputError(f"--env sets {name[:60]}; names that begin with THEMIS_ or SLURM_ are set by the service.")
    return name, value
