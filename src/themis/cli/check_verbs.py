"""``themis check`` and ``themis doctor``: what is wrong with files, and with the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from themis.cli.output import err, say_notes, say_red
from themis.cli.table_columns import Home, Output, show_rows
from themis.errors import ThemisError


def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Job files or settings files, as YAML, or scripts.")
    ],
) -> None:
    """Check job files, scripts and settings files, and list all errors. Exit code 2 if there are any.

    Also warns about likely failures: a missing program or folder, a GPU type that no machine of the service has.

    Example: [cyan]themis check jobs.yaml ~/.themis/config.yaml[/cyan]
    """
    from themis.service.operations.service_settings import check as faults_of
    from themis.service.operations.service_settings import doubts_of

    scripts = [file for file in files if _is_script(file)]
    faults = [fault for file in scripts for fault in _script_faults(file)]
    faults += faults_of(file for file in files if file not in scripts)
    for fault in faults:
        say_red(fault)
    doubts = doubts_of([file for file in files if file not in scripts], *_machines())
    for doubt in doubts:
        err.print(f"Warning: {doubt}", markup=False, highlight=False, soft_wrap=True)
    if faults:
        raise typer.Exit(2)
    if doubts:
        return
    print(f"{', '.join(map(str, files))} {'is' if len(files) == 1 else 'are'} valid.")


def _is_script(file: Path) -> bool:
    """Whether ``themis submit`` reads a file as a script; no for one that cannot be read."""
    from themis.cli.sbatch import is_script
    from themis.limits import read_text

    try:
        return is_script(read_text(file), file)
    except ThemisError:
        return False


def _script_faults(file: Path) -> list[str]:
    """Faults of a script, worded as in ``themis submit``; prints the directives without effect."""
    from themis.cli import sbatch
    from themis.jobs.read import parse
    from themis.limits import read_text

    try:
        text, notes = sbatch.document(read_text(file), file)
    except ThemisError as error:
        return [str(error)]
    say_notes(notes)
    return [str(fault) for fault in parse(text, source=str(file), folder=str(Path.cwd())).faults]


def _machines() -> tuple[set[str], bool]:
    """GPU types of the service's machines (empty if it does not answer), and whether jobs run on this machine."""
    from themis.client.client import Client
    from themis.client.home import read_endpoint
    from themis.data_dir import default_home

    try:
        local = read_endpoint(default_home()).address.rpartition(":")[0] in ("127.0.0.1", "[::1]", "localhost")
        with Client(timeout_s=2.0) as client:
            return {node.gpu_type for node in client.nodes()}, local and client.info().engine == "local"
    except ThemisError:
        return set(), True


def doctor(home: Home = None, output: Output = "table") -> None:
    """Check the service: data directory, token, journal, GPUs, arbiter. Exit code 1 if a check fails.

    Example: [cyan]themis doctor[/cyan]
    """
    from themis.data_dir import default_home
    from themis.service.operations.doctor import examine

    found = examine(home or default_home())
    show_rows(
        found,
        output,
        {"check": lambda c: c["check"], "state": lambda c: c["state"], "finding": lambda c: c["finding"]},
    )
    if any(check["state"] == "wrong" for check in found):
        raise typer.Exit(1)
