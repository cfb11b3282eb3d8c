"""``themis login``: which certificate a service is verified against from then on, and sign-in with its OIDC provider."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import typer

from themis.cli.output import say
from themis.client.client import Client
from themis.client.home import read_endpoint, read_token
from themis.client.trust import SYSTEM, Trust, host_and_port, is_local, read_cacert, split
from themis.errors import InputError
from themis.trust.authority.contact import first_contact, plain_fingerprint
from themis.trust.authority.contexts import PlainText, TlsError, Untrusted, client_context, connect, fingerprint_of


def first_trust(address: str, fingerprint: str, cacert: str) -> Trust:
    """The CA certificate that this address's service is verified against from now on.

    A fingerprint or a certificate decides. Without, the system's authorities do; a service that they do not know is accepted if the
    user says so at a terminal, where its fingerprint is shown.

    Raises
    ------
    InputError : there is no terminal to ask at. Untrusted : it has another certificate. TlsError : it speaks no TLS.
    """
    scheme, plain = split(address)
    host, port = host_and_port(plain)
    wanted = plain_fingerprint(fingerprint)
    if scheme == "http":
        if wanted or cacert:
            raise InputError("http:// is without encryption, so there is nothing to verify; leave it out.")
        return Trust()
    try:
        if cacert and cacert != SYSTEM:
            path = Path(cacert)
            trust = Trust(str(path.absolute()), read_cacert(path))
            connect(host, port, trust.context()).close()
            if wanted and wanted != fingerprint_of(trust.pem):
                raise InputError(f"{path} has the fingerprint {fingerprint_of(trust.pem)}, expected {wanted}.")
            return trust
        if not wanted and _known_to_system(host, port, must=cacert == SYSTEM):
            return Trust(SYSTEM)
        pem = first_contact(host, port, fingerprint=wanted)
    except PlainText:
        if is_local(plain) and not (scheme or wanted or cacert):
            return Trust()
        raise TlsError(
            f"{plain} answers without TLS, so your token could be read on the network; `themis login http://{plain}` accepts that."
        ) from None
    except OSError as error:
        raise TlsError(
            f"cannot connect to {plain}: {error.strerror or error}; check that `themis up` runs there."
        ) from None
    if not wanted:
        _ask(plain, fingerprint_of(pem))
    return Trust("ca.pem", pem)


def _known_to_system(host: str, port: int, *, must: bool) -> bool:
    try:
        connect(host, port, client_context()).close()
    except Untrusted:
        if must:
            raise
        return False
    return True


def _ask(address: str, fingerprint: str) -> None:
    """Whether the user trusts an authority that is not known yet."""
    text = f"The authority of {address} is not known yet. Its fingerprint is {fingerprint}"
    if not sys.stdin.isatty():
        raise InputError(
            f"{text}; if `themis up` or `themis user add` printed the same there, add --fingerprint {fingerprint}."
        )
    say(f"{text}. Compare it with what `themis up` or `themis user add` printed there.")
    if not typer.confirm("Trust it from now on?", err=True):
        raise InputError("nothing was stored.")


NOBODY = "-"
"""Placeholder for a token: the steps of a sign-in need none."""


def sign_in(home: Path, address: str, trust: Trust) -> tuple[str, float]:
    """A token of a service for the user who signs in with its OIDC provider, and its end in seconds since 1970.

    An earlier sign-in is renewed where the provider allows it; otherwise the user opens a page in any browser and agrees there.

    Raises
    ------
    InputError : there is no provider, the user did not agree, or may not sign in.
    """
    with Client(home, address=address, token=NOBODY, trust=trust) as client:
        if token := _earlier(home, address):
            with suppress(InputError):
                renewed = client.sign_in(token=token)
                return renewed.token, renewed.ends
        reply = client.sign_in()
        say(f"Open {reply.whole_url} in a browser, check that it shows the code {reply.code}, and sign in there.")
        if reply.whole_url != reply.url:
            say(f"If the page asks for a code ({reply.url}), enter {reply.code}.")
        while not reply.token:
            time.sleep(max(reply.interval_s, 1.0))
            reply = client.sign_in(reply.handle)
        return reply.token, reply.ends


def _earlier(home: Path, address: str) -> str:
    """The token of an earlier login at this service, or empty."""
    with suppress(InputError):
        if read_endpoint(home).address == address:
            return read_token(home)
    return ""
