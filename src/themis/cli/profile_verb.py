"""``themis profile``: the speed of job files' programs, measured on idle GPUs, as a table that policies read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from themis.cli.output import print_json, say
from themis.errors import InputError


def profile(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Job files; the first app of each is measured.")
    ],
    name: Annotated[str, typer.Option("--name", "-n", help="Name of the table, for the setting profiles.")],
    gpus: Annotated[str, typer.Option("--gpus", "-g", metavar="N,N", help="Sizes of gangs to measure.")] = "1",
    types: Annotated[
        str, typer.Option("--types", metavar="TYPE,TYPE", help="GPU types to measure. Default: all of the service.")
    ] = "",
    seconds: Annotated[float, typer.Option("--seconds", help="Time of one measurement.")] = 60.0,
    force: Annotated[bool, typer.Option("--force", help="Replace a table of this name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
    home: Annotated[
        Path | None, typer.Option("--data-dir", "--home", metavar="DIR", help="The service's data directory.")
    ] = None,
) -> None:
    """Measure programs alone, by gang size and GPU type, on GPUs that are idle.

    A probe never delays an app: it starts when no app waits for GPUs, and is cancelled once one does. The model of a row is the
    job file's model, or the app's name.

    Example: [cyan]themis profile resnet.yaml --gpus 1,2,4 --name lab[/cyan]
    """
    from themis.cli.profiles import keep
    from themis.cli.table_columns import service_of
    from themis.client.probing import measure
    from themis.client.submit_requests import text_requests
    from themis.limits import read_text
    from themis.traces.profiles.throughputs import Alone, Throughputs

    try:
        sizes = list(dict.fromkeys(int(part) for part in gpus.split(",")))
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"--gpus is {gpus!r}, expected numbers from 1 up, joined by commas, as in 1,2,4.")
    if not 1 <= seconds <= 86400:
        raise InputError(f"--seconds is {seconds:g}, expected 1 to 86400.")
    together: dict[str, dict[Alone, float]] = {}
    apart: dict[str, dict[Alone, float]] = {}
    with service_of(home) as service:
        client = service.client
        there = sorted({node.gpu_type for node in client.nodes()})
        kinds = [part.strip() for part in types.split(",")] if types else there
        if unknown := [kind for kind in kinds if kind not in there]:
            raise InputError(f"--types has {unknown[0]!r}, which no machine has; the machines have {', '.join(there)}.")
        for file in files:
            (request, *_), _ = text_requests(
                read_text(file),
                str(file),
                user="",
                folder=str(Path.cwd()),
                unknown_work_s=client.info().unknown_work_s,
                profiles=service.home / "profiles",
            )
            job = request.jobs[0]
            own = job.model if request.profile is None and job.model not in ("", "generic") else request.name
            for kind in kinds:
                for size in sizes:
                    found = measure(client, request, kind, size, seconds, say)
                    if found.failed:
                        say(f"{own} on {size} {kind}: no speed, {found.failed}")
                        continue
                    say(f"{own} on {size} {kind}: {found.rate:.4g} steps/s over {found.seconds:.0f} s.")
                    table = together if found.together else apart
                    table.setdefault(kind, {})[own, job.regimes[0].batch, size] = found.rate
        folder = service.home / "profiles"
    if not together:
        raise InputError("no program had a speed on one machine, so there is no table to keep.")
    keep(name, Throughputs(together=together, apart=apart, beside={}), force=force, folder=folder)
    if as_json:
        rows = [
            {
                "model": model,
                "batch": batch,
                "gpu_type": kind,
                "gpus": size,
                "steps_per_s": rate,
                "placement": placement,
            }
            for placement, tables in (("together", together), ("apart", apart))
            for kind, table in tables.items()
            for (model, batch, size), rate in table.items()
        ]
        print_json(rows)
