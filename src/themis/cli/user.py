"""``themis user``: manage the users of the service; ``themis login``: use another user's service."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from themis.cli.output import say
from themis.cli.table_columns import Columns, Home, Output, User, Watch, clock, connect, dump, show_list
from themis.errors import InputError

UserName = Annotated[
    str, typer.Argument(metavar="NAME", help="User name; where jobs run as their users, the system's name.")
]
ACCOUNTS: Columns = {
    "user": lambda r: r["user"],
    "administrator": lambda r: "yes" if r["admin"] else "",
    "signs in with": lambda r: r["method"],
    "since": lambda r: clock(r["added"]),
    "until": lambda r: clock(r["ends"]) if r["ends"] else "",
}


def _times(row: Any) -> str:
    """Number of refused calls within one minute that one entry counts."""
    return f" {row['count']} times" if row["count"] > 1 else ""


ENTRIES: Columns = {
    "time": lambda r: clock(r["time"]),
    "user": lambda r: r["user"] or "-",
    "by": lambda r: r["method"],
    "from": lambda r: r["address"] or "-",
    "action": lambda r: f"{r['action']} {r['target']}".strip(),
    "outcome": lambda r: f"{r['outcome']}{_times(r)}: {r['message']}" if r["message"] else r["outcome"],
}


def add(
    name: UserName,
    admin: Annotated[
        bool,
        typer.Option("--admin", help="Make the user an administrator: may change all apps, drain machines, add users."),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing token, which becomes invalid.")
    ] = False,
    no_jobs: Annotated[
        bool, typer.Option("--no-jobs", help="For a program that submits no jobs: the name may be no system user.")
    ] = False,
    output: Output = "table",
    home: Home = None,
) -> None:
    """Create a token for a user, and print it. Where jobs run as their users, the system must have the user.

    Example: [cyan]themis user add bob[/cyan]
    """
    from themis.client.home import public_address
    from themis.client.light import Service

    with connect(home) as client:
        if not replace and client.users(name):
            raise InputError(f"{name} already has a token; --replace makes it invalid and creates a new one.")
        made = Service(client.home).call("AddUser", user=name, admin=admin, no_jobs=no_jobs)
        token, address = made["token"], public_address(client.home, client.address)
        pin = f" --fingerprint {client.trust.fingerprint}" if client.trust.fingerprint else ""
        shared = any(node.trust == "single" for node in client.nodes())
    if output != "table":
        dump({"user": name, "token": token, "address": address}, output)
        return
    print(token)
    say(f"Give this token to {name}, who logs in with: themis login {address}{pin}")
    if shared:
        from themis.service.operations.rights import WARNINGS

        say(f"Warning: {WARNINGS['single']}.")


def list_(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """List the users with a token and those who are signed in; the service's owner is not listed.

    Example: [cyan]themis user list[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.users(user), ACCOUNTS, output, watch)


def remove(name: UserName, output: Output = "table", home: Home = None) -> None:
    """Revoke a user's token and end the user's sign-ins; the user's apps go on.

    Example: [cyan]themis user remove bob[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: [client.remove_user(name)], ACCOUNTS, output)


def login(
    address: Annotated[
        str,
        typer.Argument(metavar="HOST:PORT", help="Address of the service; with http:// for one without encryption."),
    ],
    fingerprint: Annotated[
        str,
        typer.Option(help="Fingerprint of the service's authority, as `themis up` and `themis user add` print it."),
    ] = "",
    cacert: Annotated[
        str,
        typer.Option(
            metavar="FILE|system", help="Verify the service against this certificate, or the system's authorities."
        ),
    ] = "",
    oidc: Annotated[
        bool,
        typer.Option("--oidc", help="Sign in with the service's OIDC provider instead of a token; again to renew it."),
    ] = False,
    home: Home = None,
) -> None:
    """Use a service that another user runs: asks for your token, and stores it in your data directory.

    The first time, it shows the fingerprint of the service's authority, and stores its certificate; from then on, no other
    service is accepted.

    Example: [cyan]themis login gpu1.example.org:7433[/cyan]
    """
    from themis.cli.login import first_trust, sign_in
    from themis.client.client import Client
    from themis.client.home import check_log_in, log_in
    from themis.client.trust import SYSTEM, split
    from themis.data_dir import default_home

    where = home or default_home()
    check_log_in(where)
    trust, plain, until = first_trust(address, fingerprint, cacert), split(address)[1], ""
    if oidc:
        token, ends = sign_in(where, plain, trust)
        until = f" until {clock(ends)}"
    else:
        token = (typer.prompt("Token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not token or not token.isascii():
        raise InputError("this is not a token; paste the one that `themis user add` printed.")
    with Client(where, address=plain, token=token, trust=trust, timeout_s=5.0) as client:
        info = client.info()
    log_in(where, plain, token, "ca.pem" if trust.pem else trust.source and SYSTEM, trust.pem)
    print(f"You are {info.user} at {plain}{until}.")


def audit(
    user: User = "",
    limit: Annotated[int, typer.Option(help="Maximum number of entries.", min=1, max=1000)] = 50,
    output: Output = "table",
    home: Home = None,
) -> None:
    """Show who signed in and who changed what, and from where; your own entries, or as an administrator all.

    Example: [cyan]themis audit --user bob[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.audit(user, limit), ENTRIES, output)
