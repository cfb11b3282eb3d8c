"""``themis demo``: the live demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from themis.cli.options import helped
from themis.cli.output import err, named_path, ready_folder

DEMO = """Train small networks of three users on eight virtual GPUs of this machine, for about a minute.

Starts the service, submits two sweeps and a job, shows who holds which GPU, and writes a fairness report. It needs no GPU.
[cyan]themis simulate[/cyan] is the simulation.

[bold]Examples[/bold]

[cyan]themis demo[/cyan]

[cyan]themis demo --policy tiresias --out out/tiresias[/cyan]
"""


@helped(DEMO)
def demo(
    folder: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            parser=named_path,
            help="Folder for all files; replaces those of an earlier demo.",
        ),
    ] = Path("out/live"),
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="Scheduling policy; themis policies lists them.")
    ] = "fair_finish",
    machines: Annotated[
        str, typer.Option(help="Virtual machines: machines x GPUs, such as 2x4, or a cluster file.")
    ] = "2x4",
) -> None:
    from themis.cli.live_demo import demo_run

    where = folder.absolute()
    demo_run.check(machines, policy)
    ready_folder(where)
    demo_run.remove(where)
    run = demo_run.run(where, machines=machines, policy=policy)
    report = demo_run.show(run, where)
    err.print(
        f"Written: {report}. The same folder has the apps' job files and the event log live.jsonl.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
