"""``themis up``: the service in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from themis.cli.output import out
from themis.cli.setting_verbs import setting_options
from themis.cli.table_columns import Home
from themis.errors import InputError, counted

if TYPE_CHECKING:
    from themis.service.engine.config import Config
    from themis.service.operations.ssh_hosts import Host

EVERYWHERE = "0.0.0.0"
"""Where machines of --fleet join, unless the settings name another address."""


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

    ``options`` : settings that have an option of their own. ``how`` : more for ``serve_until_stopped``.
    """
    import logging

    from themis.data_dir import default_home
    from themis.service.engine.config import LOOPBACK
    from themis.service.operations.service_settings import load
    from themis.service.operations.until_stopped import serve_until_stopped
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
    address = options.get("address")
    own = where / "config.yaml"

    def read() -> Config:
        return load(config or (own if own.exists() else None), given)

    found = read()
    if wanted and found.host == LOOPBACK:
        given["host"] = EVERYWHERE
        found = read()
    if address is not None and found.engine != "ray":
        raise InputError(
            f"--address is {address!r}, but the engine is {found.engine}; add --engine ray for a Ray cluster."
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

    serve_until_stopped(
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
