"""``themis backup`` and ``themis restore``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from themis.cli.output import out
from themis.cli.table_columns import Home
from themis.errors import counted


def backup(
    target: Annotated[Path, typer.Argument(help="A new folder.")],
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Also copy checkpoints and files of jobs in the data directory.")
    ] = False,
    home: Home = None,
) -> None:
    """Copy the service's journal, users, tokens and settings. The service may run meanwhile.

    Example: [cyan]themis backup /backups/themis-monday[/cyan]
    """
    from themis.data_dir import default_home
    from themis.service.operations.backups import back_up

    done = back_up((home or default_home()).absolute(), target.absolute(), checkpoints=checkpoints)
    out.print(
        f"{target}: {counted(done.records, 'record')} of the journal{_and(done.files)}.", markup=False, soft_wrap=True
    )


def restore(
    source: Annotated[Path, typer.Argument(help="A folder written by themis backup.")],
    home: Annotated[
        Path, typer.Argument(metavar="DATA_DIR", help="The data directory to create; it must not have a journal.")
    ],
) -> None:
    """Create a data directory from a backup. Start it with [cyan]themis up --data-dir DATA_DIR[/cyan] after the old service ended.

    Example: [cyan]themis restore /backups/themis-monday /var/lib/themis[/cyan]
    """
    from themis.service.operations.backups import restore as restore_home

    done = restore_home(source.absolute(), home.absolute())
    out.print(
        f"{home}: {counted(done.records, 'record')} of the journal{_and(done.files)}.", markup=False, soft_wrap=True
    )


def _and(files: tuple[str, ...]) -> str:
    return f" and {', '.join(files)}" if files else ""
