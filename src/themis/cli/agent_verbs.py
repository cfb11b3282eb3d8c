"""``themis agent``: machines join a service over the network, serve it, and are removed.

``token`` and ``list`` are for the service's own machine: a user who may read its data directory may decide on its
machines. Administrators may ``remove`` them from elsewhere too. ``join``, ``run`` and ``install`` are for the other
machines, and load the standard library alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from themis.cli.options import Home, argument, option
from themis.cli.output import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from themis.machines.engines.members import Members

State = Annotated[
    Path | None,
    option(
        "--state",
        metavar="DIR",
        help="Folder of this machine's token (default: /var/lib/themis-agent for root, else ~/.themis-agent).",
    ),
]

Leave = Annotated[
    str,
    option(metavar="TIME", help="After SIGTERM, wait this long for jobs to save and continue elsewhere, such as 30s."),
]

ROOT = "Folder for tasks and logs"


def join(
    address: Annotated[str, argument(metavar="HOST:PORT", help="Where the service serves machines.")],
    token: Annotated[str, option(help="Join token, as themis agent token prints it.")],
    name: Annotated[str, option(help="Name of this machine (default: its host name).")] = "",
    gpus: Annotated[int, option(least=0, help="Number of virtual GPUs, instead of those that NVML finds.")] = 0,
    label: Annotated[
        list[str], option(metavar="KEY=VALUE", help="rack=NAME or gpu_type=NAME of this machine; repeatable.")
    ] = [],  # noqa: B006 - it is only read
    root: Annotated[Path | None, option(metavar="DIR", help=f"{ROOT} (default: /var/tmp/themis-agent/NAME).")] = None,
    state: State = None,
) -> None:
    """Make this machine one of a service's machines.

    The token is used up; the machine's own token is kept in its folder. Then start its agent with
    [cyan]themis agent run[/cyan], or at every boot with [cyan]themis agent install[/cyan].

    Example: [cyan]themis agent join gpu-head:7433 --token AbC...[/cyan]
    """
    from themis.errors import counted
    from themis.machines.agent.identity import state_folder
    from themis.machines.agent.joining import Wish, labels_of
    from themis.machines.agent.joining import join as join_service

    folder = state or state_folder()
    there = join_service(folder, address, token, Wish(name=name, gpus=gpus, labels=labels_of(label), root=root))
    own = "" if folder == state_folder() else f" --state {folder}"
    print(
        f"Machine {there.name} joined with {counted(there.gpus, 'GPU')} of type {there.gpu_type}, in {there.rack}. "
        f"Start its agent: themis agent run{own}; or at every boot: themis agent install{own}."
    )


def run(
    root: Annotated[
        Path | None, option(metavar="DIR", help=f"{ROOT} from now on (default: that of themis agent join).")
    ] = None,
    leave: Leave = "",
    state: State = None,
) -> None:
    """Serve as the machine that joined, until Ctrl-C or SIGTERM; its jobs go on as long as its lease.

    With --leave, SIGTERM is a notice that the machine is taken away: its jobs save and continue elsewhere, then the agent ends.

    Example: [cyan]themis agent run --leave 30s[/cyan]
    """
    from themis.machines.agent.identity import relocate, state_folder
    from themis.machines.agent.remote import serve

    folder = state or state_folder()
    if root is not None:
        relocate(folder, root)
    serve(folder, _notice(leave) if leave else 0.0)


def install(leave: Leave = "30s", state: State = None) -> None:
    """Start this machine's agent now and at every boot, through systemd: as a service of the system for root, else of the user.

    When the machine shuts down, its jobs save first (--leave) and continue elsewhere.

    Example: [cyan]sudo themis agent install[/cyan]
    """
    from themis.machines.agent.identity import state_folder
    from themis.machines.agent.systemd_unit import install as install_unit

    for line in install_unit((state or state_folder()).absolute(), sys.executable, _notice(leave)):
        print(line)


def token(
    ttl: Annotated[str, option(metavar="TIME", help="How long the token is valid, such as 10m.")] = "10m",
    label: Annotated[list[str], option(metavar="rack=NAME", help="Rack of the machine that joins with it.")] = [],  # noqa: B006 - it is only read
    address: Annotated[
        str, option(metavar="HOST:PORT", help="How machines reach the service, if not by its host name.")
    ] = "",
    home: Home = None,
) -> None:
    """Print the command with which one machine can join; its token is valid once, for a short time.

    Example: [cyan]themis agent token --label rack=r1[/cyan]
    """
    from themis.data_dir import default_home
    from themis.errors import InputError
    from themis.machines.agent.identity import make_token
    from themis.machines.agent.joining import labels_of
    from themis.machines.engines.members import LISTEN, authority_folder
    from themis.sizes import Unreadable, duration
    from themis.trust.authority.contexts import fingerprint_of

    where = home or default_home()
    racks = labels_of(label)
    if set(racks) - {"rack"}:
        raise InputError("--label of a token is rack=NAME; a machine says its GPU type itself.")
    try:
        seconds = duration(ttl)
    except Unreadable as expected:
        raise InputError(f"--ttl is {ttl!r}, expected {expected}.") from None
    if not 1.0 <= seconds <= 7 * 86400.0:
        raise InputError(f"--ttl is {ttl}, expected 1s to 7d; short is safer.")
    members = _members(where)
    listen = members.fact(LISTEN)
    if not listen:
        raise InputError(
            f"no service with machines runs with {where}; start it with `themis up --engine fleet --host 0.0.0.0`."
        )
    text, secret = make_token(fingerprint_of((authority_folder(where) / "ca.pem").read_text()))
    members.add_token(secret, seconds, racks.get("rack", ""))
    print(f"themis agent join {address or _reachable(listen)} --token {text}")
    if listen.startswith("127.") and not address:
        say("Only this machine can join: the service listens on 127.0.0.1. Start it with --host 0.0.0.0 for others.")


def remove(
    name: Annotated[str, argument(metavar="NAME", help="Name of the machine.")],
    home: Home = None,
) -> None:
    """Remove a machine: its jobs save and continue elsewhere, then its token is no longer valid.

    On the service's machine, with its data directory; elsewhere as an administrator of the service.

    Example: [cyan]themis agent remove gpu-7[/cyan]
    """
    from themis.data_dir import default_home

    where = home or default_home()
    if not (where / "journal.db").exists() and (where / "endpoint.json").exists():
        from themis.client.light import Service

        with Service(where) as service:
            service.call("RemoveNode", node=name)
    else:
        _members(where).leave(name)
    print(f"Machine {name} is being removed: its jobs save and stop first, then its token is no longer valid.")


def list_(home: Home = None, as_json: Annotated[bool, option("--json", help="Print as JSON.")] = False) -> None:
    """List the machines that joined: state, when they were last heard, since when they have their tokens.

    Example: [cyan]themis agent list[/cyan]
    """
    from operator import itemgetter

    from themis.cli.table_columns import Columns, clock, show_rows
    from themis.data_dir import default_home

    rows = [
        {
            "machine": m.name,
            "state": m.state,
            "gpus": m.gpus,
            "type": m.gpu_type,
            "rack": m.rack,
            "heard": m.heard,
            "token_since": m.made,
            "address": m.address,
        }
        for m in _members(home or default_home()).all()
    ]
    columns: Columns = {name: itemgetter(name) for name in ("machine", "state", "gpus", "type", "rack", "address")}
    columns = {
        **columns,
        "heard": lambda r: clock(r["heard"]) if r["heard"] else "never",
        "token since": lambda r: clock(r["token_since"]),
    }
    show_rows(rows, "json" if as_json else "table", columns)


def _notice(text: str) -> float:
    from themis.errors import InputError
    from themis.sizes import Unreadable, duration

    try:
        return duration(text)
    except Unreadable as expected:
        raise InputError(f"--leave is {text!r}, expected {expected}.") from None


def _members(home: Path) -> Members:
    from themis.errors import InputError
    from themis.machines.engines.members import Members, members_file

    path = members_file(home)
    if not path.exists():
        raise InputError(
            f"{home} is not the data directory of a service with machines that join ({path.name} is not there); start it with "
            "`themis up --engine fleet`, or name its directory with --data-dir."
        )
    return Members(path)


def _reachable(listen: str) -> str:
    """An address under which other machines can try."""
    import socket

    host, _, port = listen.rpartition(":")
    return f"{socket.getfqdn() if host in ('0.0.0.0', '::') else host}:{port}"
