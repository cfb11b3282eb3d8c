"""``themis certificates``: what the service shows to its clients, and until when."""

from __future__ import annotations

from themis.cli.output import say
from themis.cli.table_columns import Columns, Home, Output, show_rows
from themis.errors import ThemisError

COLUMNS: Columns = {
    "certificate": lambda c: c["certificate"],
    "expires": lambda c: c["expires"],
    "days left": lambda c: c["days_left"],
    "names": lambda c: ", ".join(c["names"]),
}


def certificates(output: Output = "table", home: Home = None) -> None:
    """List the certificates that the service shows, and the authority that this data directory trusts.

    Example: [cyan]themis certificates[/cyan]
    """
    from themis.client.certificates import certificates as shown
    from themis.client.home import read_endpoint
    from themis.data_dir import default_home
    from themis.trust.authority.contexts import day

    where = home or default_home()
    try:
        found = shown(where)
    except OSError as error:
        raise ThemisError(
            f"the service at {read_endpoint(where).address} does not answer ({error.strerror or error}); check that `themis up` "
            "runs."
        ) from None
    rows = [
        {
            "certificate": one.of,
            "expires": day(one.expires),
            "days_left": int(one.left_s // 86400),
            "names": list(one.names),
            "fingerprint": one.fingerprint,
        }
        for one in found
    ]
    if not rows and output == "table":
        print("The service's calls are not encrypted, so it has no certificate; see the setting tls.")
        return
    show_rows(rows, output, COLUMNS)
    if output == "table":
        for pin in {one.fingerprint for one in found if one.fingerprint}:
            say(f"Fingerprint of the authority: {pin}")
