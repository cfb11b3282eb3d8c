"""``themis demo``: the live demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from themis.console import err, named_path, ready_folder

DEMO = """Schedule three people's real training runs on eight virtual GPUs of this machine, for about a minute.

Starts the service, submits two sweeps and a job that small networks are trained by, shows who holds which GPU, and ends
with the fairness report. Nothing of it needs a GPU; [cyan]themis simulate[/cyan] is the simulation.

[bold]Examples[/bold]

[cyan]themis demo[/cyan]

[cyan]themis demo --policy tiresias --out out/tiresias[/cyan]
"""


def demo(
    folder: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="DIR", parser=named_path, help="Keeps all files; those of an earlier demo go."
        ),
    ] = Path("out/live"),
    policy: Annotated[str, typer.Option("--policy", "-p", help="As themis simulate takes it.")] = "themis",
    machines: Annotated[str, typer.Option(help="Virtual machines, as 2x4, or a cluster's YAML.")] = "2x4",
) -> None:
    from themis.demo import live

    where = folder.absolute()
    live.check(machines, policy)
    ready_folder(where)
    live.remove(where)
    run = live.run(where, machines=machines, policy=policy)
    report = live.show(run, where)
    err.print(
        f"Written: {report}; beside it the apps' files, which themis submit takes, and the event log live.jsonl.",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
