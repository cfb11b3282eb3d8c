"""The verbs of the live service: ``up``, ``check`` and ``doctor``; ``ask`` has those that read, ``act`` those that change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from themis.cli import account_verbs, act, agent_verbs, ask, backup, fleet_verbs, top, user
from themis.cli.certificate_verbs import certificates
from themis.cli.output import err, out, say_notes, say_red
from themis.cli.setting_verbs import set_, setting_options
from themis.cli.table_columns import Home, Output, show_rows
from themis.cli.typed import Verbs
from themis.errors import InputError, ThemisError, counted

if TYPE_CHECKING:
    from themis.service.engine.config import Config
    from themis.service.operations.ssh_hosts import Host

SERVICE, JOBS, CLUSTER = "Service", "Jobs and sweeps", "Cluster and users"
"""Headings of ``themis --help``."""

EVERYWHERE = "0.0.0.0:7435"
"""Where machines of --fleet join, unless the settings name another address."""


def register(app: Verbs) -> None:
    """Add the verbs."""
    panels: Mapping[str, Sequence[Callable[..., None]]] = {
        SERVICE: (up, doctor, check, certificates, backup.backup, backup.restore),
        JOBS: (
            act.submit,
            ask.queue,
            top.top,
            ask.show,
            ask.best,
            ask.why,
            ask.logs,
            act.wait,
            act.fetch,
            act.cancel,
            act.hold,
            act.resume,
            account_verbs.history,
        ),
        CLUSTER: (ask.share, account_verbs.usage, ask.nodes, act.drain, act.undrain, ask.events),
    }
    app.command(rich_help_panel=JOBS)(act.run)
    for panel, verbs in panels.items():
        for verb in verbs:
            app.command(rich_help_panel=panel)(verb)
    app.command("set", rich_help_panel=SERVICE)(set_)
    app.command("dump", rich_help_panel=SERVICE)(ask.save_state)
    app.command(rich_help_panel=SERVICE)(user.login)
    app.command(rich_help_panel=SERVICE)(user.audit)
    app.add_typer(user.app, name="user", rich_help_panel=SERVICE)
    machines = Verbs(no_args_is_help=True, help="Let machines join the service over the network, and remove them.")
    for verb in (agent_verbs.token, agent_verbs.join, agent_verbs.run, agent_verbs.install, agent_verbs.remove):
        machines.command()(verb)
    machines.command("list")(agent_verbs.list_)
    app.add_typer(machines, name="agent", rich_help_panel=CLUSTER)
    hosts = Verbs(
        no_args_is_help=True, help="Make hosts machines of the service by ssh, and keep their agents running."
    )
    for verb in (fleet_verbs.add, fleet_verbs.check, fleet_verbs.remove):
        hosts.command()(verb)
    hosts.command("list")(fleet_verbs.list_)
    app.add_typer(hosts, name="fleet", rich_help_panel=CLUSTER)


@setting_options
def up(
    hosts: Annotated[
        Path | None,
        typer.Option("--fleet", metavar="FILE", help="Hosts that become machines by ssh, as YAML. See docs/fleet.md."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings file, as YAML.")] = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting, such as lease=2m; repeatable. See docs/settings.md."
        ),
    ] = [],  # noqa: B006 - typer copies it
    leave_jobs: Annotated[
        bool, typer.Option("--leave-jobs", help="On shutdown, keep jobs running for the next arbiter.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Recover a damaged journal up to its last good record; prints first what is lost."
        ),
    ] = False,
    safe: Annotated[
        bool, typer.Option("--safe", help="Make no decisions: jobs run on, and apps can be cancelled and held.")
    ] = False,
    without: Annotated[
        list[str],
        typer.Option(metavar="APP", help="Quarantine this app first, so that it takes no part; repeatable."),
    ] = [],  # noqa: B006 - typer copies it
    home: Home = None,
    **options: Any,
) -> None:
    """Start the scheduler; it runs until Ctrl-C or SIGTERM, and recovers its apps when started again.

    It finds this machine's GPUs through NVML. Without GPUs: [cyan]themis up --gpus 8[/cyan], or [cyan]--machines 2x4[/cyan].

    Example: [cyan]themis up --gpus 8 --set lease=2m[/cyan]
    """
    from themis.data_dir import default_home
    from themis.machines.engines.renewer import renewing
    from themis.service.operations.lock import only_one

    where = (home or default_home()).absolute()
    with only_one(where), renewing(where / "run") as renewer:
        # Everything else is imported and read while leases of machines are renewed.
        how = {"leave_jobs": leave_jobs, "safe": safe, "without": without, "renewer": renewer}
        _serve(where, config, settings, options, hosts, repair=repair, **how)


def _serve(
    where: Path,
    config: Path | None,
    settings: list[str],
    options: dict[str, Any],
    hosts: Path | None,
    *,
    repair: bool,
    **how: Any,
) -> None:
    """Run the service in a data directory that is locked.

    ``options`` : settings that have an option of their own. ``how`` : more for ``serve_until_told``.
    """
    import logging

    from themis.data_dir import default_home
    from themis.service.engine.config import LISTEN
    from themis.service.operations.service_settings import load
    from themis.service.operations.until_stopped import serve_until_told
    from themis.service.operations.up import Service

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    given: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set got {text!r}, expected KEY=VALUE, such as lease=2m.")
        given[name.strip()] = value.strip()
    given |= {key: value for key, value in options.items() if value is not None}
    wanted = _hosts(hosts, given)
    address, listen = options["address"], options["listen"]
    own = where / "config.yaml"

    def read() -> Config:
        return load(config or (own if own.exists() else None), given)

    found = read()
    if wanted and found.listen == LISTEN:
        given["listen"] = EVERYWHERE
        found = read()
    if address is not None and found.engine != "ray":
        raise InputError(
            f"--address is {address!r}, but the engine is {found.engine}; add --engine ray for a Ray cluster."
        )

    if listen is not None and found.engine != "fleet":
        raise InputError(
            f"--listen is {listen!r}, but the engine is {found.engine}; add --engine fleet for machines that join."
        )

    def say(service: Service) -> None:
        service.keep_hosts(where, wanted)
        arbiter = service.arbiter
        size, there = arbiter.ask(
            lambda: (int(arbiter.state.machine_size.sum()), len(arbiter.state.machines) - len(arbiter.state.removed))
        )
        out.print(
            f"Themis schedules {counted(size, 'GPU')} on {counted(there, 'machine')} with the policy {arbiter.config.policy}; "
            f"data directory {where}, API and console on {service.endpoint.http}.",
            markup=False,
            soft_wrap=True,
        )
        if service.certificates is not None and (pin := service.certificates.fingerprint):
            at = service.endpoint.public or service.endpoint.address
            out.print(
                f"Users of other machines log in with: themis login {at} --fingerprint {pin}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        if not arbiter.recovered:
            at = "" if where == default_home() else f" --data-dir {where}"
            out.print(
                f"In another terminal: themis run{at} -- python train.py. Ctrl-C stops the scheduler; jobs save first.",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        else:
            out.print(f"Recovered from the journal ({counted(arbiter.recovered, 'record')}).")
        if arbiter.quarantine.off:
            out.print(f"Decisions are off: {arbiter.quarantine.off}.", markup=False, soft_wrap=True)
        for line in arbiter.live.starting:
            out.print(f"Settings: {line}", markup=False, highlight=False, soft_wrap=True)

    serve_until_told(
        where,
        found,
        say,
        reload=read,
        repairs=(lambda line: out.print(line, markup=False, soft_wrap=True)) if repair else None,
        **how,
    )


def _hosts(path: Path | None, given: dict[str, Any]) -> list[Host]:
    """The hosts of --fleet, for which the service listens on all addresses unless it was given one."""
    if path is None:
        return []
    from themis.service.operations.ssh_hosts import read_hosts

    if given.setdefault("engine", "fleet") != "fleet":
        raise InputError(f"--fleet is {str(path)!r}, but the engine is {given['engine']}; leave out --engine.")
    return read_hosts(path)


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
    from themis.jobs.read import read_text

    try:
        return is_script(read_text(file), file)
    except ThemisError:
        return False


def _script_faults(file: Path) -> list[str]:
    """Faults of a script, worded as in ``themis submit``; prints the directives without effect."""
    from themis.cli import sbatch
    from themis.jobs.read import parse, read_text

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
