"""``themis user``: manage the users of the service; ``themis login``: use another user's service."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from themis.cli.rows import Columns, Home, Output, User, Watch, clock, connect, dump, show_list
from themis.cli.typed import Verbs
from themis.console import say
from themis.errors import InputError

UserName = Annotated[
    str, typer.Argument(metavar="NAME", help="User name; where jobs run as their users, the system's name.")
]
ACCOUNTS: Columns = {
    "user": lambda r: r["user"],
    "administrator": lambda r: "yes" if r["admin"] else "",
    "since": lambda r: clock(r["added"]),
}

app = Verbs(no_args_is_help=True, help="Manage the users of the service (administrators only).")


@app.command()
def add(
    name: UserName,
    admin: Annotated[
        bool,
        typer.Option("--admin", help="Make the user an administrator: may change all apps, drain machines, add users."),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing token, which becomes invalid.")
    ] = False,
    output: Output = "table",
    home: Home = None,
) -> None:
    """Create a token for a user, and print it.

    Example: [cyan]themis user add bob[/cyan]
    """
    with connect(home) as client:
        if not replace and client.users(name):
            raise InputError(f"{name} already has a token; --replace makes it invalid and creates a new one.")
        token, address = client.add_user(name, admin=admin), client.address
        shared = any(node.trust == "single" for node in client.nodes())
    if output != "table":
        dump({"user": name, "token": token, "address": address}, output)
        return
    print(token)
    say(f"Give this token to {name}, who logs in with: themis login {address}")
    if shared:
        from themis.service.operations.rights import WARNINGS

        say(f"Warning: {WARNINGS['single']}.")


@app.command("list")
def list_(user: User = "", output: Output = "table", watch: Watch = False, home: Home = None) -> None:
    """List the users with a token; the service's owner is not listed.

    Example: [cyan]themis user list[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: client.users(user), ACCOUNTS, output, watch)


@app.command()
def remove(name: UserName, output: Output = "table", home: Home = None) -> None:
    """Revoke a user's token; the user's apps go on.

    Example: [cyan]themis user remove bob[/cyan]
    """
    with connect(home) as client:
        show_list(lambda: [client.remove_user(name)], ACCOUNTS, output)


def login(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address of the service.")], home: Home = None
) -> None:
    """Use a service that another user runs: asks for your token, and stores it in your data directory.

    Example: [cyan]themis login 127.0.0.1:7433[/cyan]
    """
    from themis.client.client import Client
    from themis.client.home import default_home, log_in

    token = (typer.prompt("Token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not token or not token.isascii():
        raise InputError("this is not a token; paste the one that `themis user add` printed.")
    where = home or default_home()
    with Client(where, address=address, token=token, timeout_s=5.0) as client:
        info = client.info()
    log_in(where, address, token)
    print(f"You are {info.user} at {address}.")
