"""``themis profile``: the speed of job files' programs, measured on idle GPUs, as a table that policies read."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from themis.cli.output import print_json, say
from themis.errors import InputError, UnknownName


def profile(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Job files; the first app of each is measured.")
    ],
    name: Annotated[str, typer.Option("--name", "-n", help="Name of the table, for the setting profiles.")],
    gpus: Annotated[str, typer.Option("--gpus", "-g", metavar="N,N", help="Sizes of gangs to measure.")] = "1",
    types: Annotated[
        str, typer.Option("--types", metavar="TYPE,TYPE", help="GPU types to measure. Default: all of the service.")
    ] = "",
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Measure on this machine.")] = "",
    pairs: Annotated[bool, typer.Option("--pairs", help="Measure any two programs on one GPU as well.")] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Time of one measurement, and at least twice the setting progress.")
    ] = 60.0,
    force: Annotated[bool, typer.Option("--force", help="Replace a table of this name.")] = False,
    export: Annotated[
        str, typer.Option("--export", metavar="NONE|ALL|NAMES", help="Variables of this shell, as in themis submit.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
    home: Annotated[
        Path | None, typer.Option("--data-dir", "--home", metavar="DIR", help="The service's data directory.")
    ] = None,
) -> None:
    """Measure programs alone, by gang size and GPU type, and in pairs, on GPUs that are idle.

    A probe never delays an app: it starts when no app waits for GPUs, and is cancelled once one does. The model of a row is the
    job file's model, or the app's name.

    Example: [cyan]themis profile resnet.yaml lm.yaml --gpus 1,2,4 --pairs --name lab[/cyan]
    """
    from themis.cli.act import variables_of
    from themis.cli.profiles import keep
    from themis.cli.table_columns import service_of
    from themis.client.probing import Gang, Probe, check, measure
    from themis.client.submit_requests import text_requests, with_variables
    from themis.limits import read_text
    from themis.schema.messages import SubmitRequest
    from themis.traces.profiles.csv_file import COLUMNS, rows_of
    from themis.traces.profiles.library import place_of
    from themis.traces.profiles.throughputs import Alone, Beside, Throughputs

    try:
        sizes = list(dict.fromkeys(int(part) for part in gpus.split(",")))
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"--gpus is {gpus!r}, expected numbers from 1 up, joined by commas, as in 1,2,4.")
    if pairs and 1 not in sizes:
        raise InputError(f"--gpus is {gpus!r}, expected 1 among them with --pairs: shares are of the speed on one GPU.")
    if not 1 <= seconds <= 86400:
        raise InputError(f"--seconds is {seconds:g}, expected 1 to 86400.")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: a probe is cancelled
    together: dict[str, dict[Alone, float]] = {}
    apart: dict[str, dict[Alone, float]] = {}
    beside: dict[str, dict[Beside, float]] = {}
    programs: dict[tuple[str, int], SubmitRequest] = {}
    with service_of(home) as service:
        client = service.client
        machines = {machine.name: machine for machine in client.nodes()}
        if node and node not in machines:
            raise UnknownName("machine", node, list(machines))
        there = sorted({machine.gpu_type for machine in machines.values() if node in ("", machine.name)})
        kinds = [part.strip() for part in types.split(",")] if types else there
        if unknown := [kind for kind in kinds if kind not in there]:
            whose = f"machine {node} has" if node else "the machines have"
            raise InputError(f"--types has {unknown[0]!r}, {whose} {', '.join(there)}.")

        def probed(key: str, request: SubmitRequest, gang: Gang, other: SubmitRequest | None = None) -> Probe:
            found = measure(client, request, gang, seconds, say, beside=other)
            rate = f"{found.rate:.4g} steps/s over {found.seconds:.0f} s."
            say(f"{key} on {gang}: {f'no speed, {found.failed}' if found.failed else rate}")
            return found

        folder = service.home / "profiles"
        place_of(folder, name, force=force)
        gangs = [Gang(gpu_type=kind, gpus=size, node=node) for kind in kinds for size in sizes]
        for gang in gangs:
            check(client, gang)
        requests = [
            text_requests(
                read_text(file),
                str(file),
                user="",
                folder=str(Path.cwd()),
                unknown_work_s=client.info().unknown_work_s,
                profiles=folder,
            )[0][0]
            for file in files
        ]
        variables = variables_of(service, export, (), other=False)
        for file, request in zip(files, requests):
            with_variables(request, **variables)
            job = request.jobs[0]
            own = job.model if request.profile is None and job.model not in ("", "generic") else request.name
            if (own, job.regimes[0].batch) in programs:
                raise InputError(f"{file} is a second one of {own}; name the model or the app of each file otherwise.")
            programs[own, job.regimes[0].batch] = request
        try:
            for (own, batch), request in programs.items():
                for gang in gangs:
                    if not (found := probed(own, request, gang)).failed:
                        table = together if found.together else apart
                        table.setdefault(gang.gpu_type, {})[own, batch, gang.gpus] = found.rate
            for (own, batch), request in programs.items() if pairs else ():
                for (partner, size), other in programs.items():
                    for kind in kinds:
                        # The share that it keeps is of its speed alone, and there is none where it does not run alone.
                        if (own, batch, 1) in together.get(kind, {}):
                            gang = Gang(gpu_type=kind, gpus=1, node=node)
                            found = probed(f"{own} sharing a GPU with {partner}", request, gang, other)
                            if not found.failed:
                                beside.setdefault(kind, {})[own, batch, partner, size] = found.rate
        finally:
            if together:  # also what was measured before Ctrl-C
                rates = Throughputs(together=together, apart=apart, beside=beside)
                keep(name, rates, force=force, folder=folder)
    if not together:
        raise InputError("no program had a speed on one machine, so there is no table to keep.")
    if as_json:
        print_json([dict(zip(COLUMNS, row)) for row in rows_of(rates)])
