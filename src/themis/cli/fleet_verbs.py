"""``themis fleet``: hosts become machines of the service by ssh. For the service's own machine, as ``themis agent token`` is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from themis.cli.options import Home, argument, option
from themis.errors import InputError

if TYPE_CHECKING:
    from themis.service.operations.fleet_hosts import Fleet, Report
    from themis.service.operations.ssh_hosts import Host

Json = Annotated[bool, option("--json", help="Print as JSON.")]
Names = Annotated[list[str], argument(metavar="[NAME]...", help="Names of machines (default: all hosts of the list).")]


def add(
    hosts: Annotated[
        list[str], argument(metavar="[HOST]...", help="Hosts, as ssh takes them: gpu1, ada@10.0.0.7.")
    ] = [],  # noqa: B006
    file: Annotated[Path | None, option("--file", "-f", metavar="FILE", help="A list of hosts, as YAML.")] = None,
    name: Annotated[str, option(help="Name of the machine, of one host (default: the host).")] = "",
    gpus: Annotated[int, option(least=0, help="Number of virtual GPUs, instead of those that NVML finds.")] = 0,
    label: Annotated[list[str], option(metavar="KEY=VALUE", help="rack=NAME or gpu_type=NAME; repeatable.")] = [],  # noqa: B006 - it is only read
    python: Annotated[str, option(metavar="PATH", help="Interpreter there, 3.11 or later (default: found).")] = "",
    folder: Annotated[
        str,
        option(
            metavar="DIR", help="Folder there (default: /opt/themis-agent for root, else ~/.local/share/themis-agent)."
        ),
    ] = "",
    address: Annotated[str, option(metavar="HOST", help="Where the machines reach the service (default: found).")] = "",
    ssh_config: Annotated[str, option(metavar="FILE", help="File for ssh -F (default: ~/.ssh/config).")] = "",
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Make hosts machines of the service, by ssh: send the package, join, and keep the agents running.

    Repeating it leaves hosts that serve as they are. An agent of another version is replaced, and its gangs run on. Exit code
    1 if a host has not joined.

    Example: [cyan]themis fleet add gpu1 gpu2[/cyan]
    """
    from themis.machines.agent.joining import labels_of
    from themis.service.operations.ssh_hosts import make_host, read_hosts

    fleet = _fleet(home)
    listed = {host.name: host for host in fleet.hosts()}
    wanted = read_hosts(file) if file else []
    if name and len(hosts) != 1:
        raise InputError(f"--name is for one host, and {len(hosts)} are given.")
    given = {
        "name": name,
        "gpus": gpus,
        "labels": labels_of(label),
        "python": python,
        "folder": folder,
        "address": address,
        "ssh_config": ssh_config,
    }
    for host in hosts:
        plain = not any(given.values())
        wanted.append(listed[host] if plain and host in listed else make_host(host, **given))
    if not wanted:
        raise InputError("no host is given; name one, or a list with --file machines.yaml.")
    fleet.keep(wanted)
    _show(fleet.each(fleet.bring, wanted), as_json, good=("joined",))


def check(names: Names = [], home: Home = None, as_json: Json = False) -> None:  # noqa: B006 - it is only read
    """Say what is wrong with each host; its agent stays as it is. Exit code 1 if one does not serve.

    Example: [cyan]themis fleet check[/cyan]
    """
    fleet = _fleet(home)
    _show(fleet.each(fleet.check, _chosen(fleet, names)), as_json, good=("joined",))


def list_(home: Home = None, as_json: Json = False) -> None:
    """List the hosts and their machines, without asking them.

    Example: [cyan]themis fleet list[/cyan]
    """
    _show(_fleet(home).listed(), as_json)


def remove(
    names: Annotated[list[str], argument(metavar="NAME...", help="Names of machines.")],
    wait: Annotated[str, option(metavar="TIME", help="How long to wait for their jobs to save and stop.")] = "2m",
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Remove hosts: their jobs save and continue elsewhere, their agents and tokens are removed.

    Example: [cyan]themis fleet remove gpu2[/cyan]
    """
    from themis.sizes import Unreadable, duration

    try:
        seconds = duration(wait)
    except Unreadable as expected:
        raise InputError(f"--wait is {wait!r}, expected {expected}.") from None
    fleet = _fleet(home)
    chosen = _chosen(fleet, names)
    _show(fleet.each(lambda host: fleet.end(host, seconds), chosen), as_json, good=("removed",))


def _fleet(home: Path | None) -> Fleet:
    from themis.data_dir import default_home
    from themis.service.operations.fleet_hosts import Fleet

    return Fleet((home or default_home()).absolute())


def _chosen(fleet: Fleet, names: Sequence[str]) -> list[Host]:
    """Hosts of the list with these machine names; all hosts if no name is given."""
    listed = {host.name: host for host in fleet.hosts()}
    if unknown := [name for name in names if name not in listed]:
        there = ", ".join(listed) or "none"
        raise InputError(f"{unknown[0]!r} is not a machine of the list; expected one of: {there}.")
    return [listed[name] for name in names] or list(listed.values())


def _show(reports: Sequence[Report], as_json: bool, good: Sequence[str] = ()) -> None:
    from themis.cli.table_columns import Columns, show_rows

    rows = [asdict(report) for report in reports]
    columns: Columns = {name: itemgetter(name) for name in ("machine", "state", "gpus")}
    show_rows(rows, "json" if as_json else "table", {**columns, "finding": itemgetter("sentence")})
    if good and any(report.state not in good for report in reports):
        raise typer.Exit(1)
