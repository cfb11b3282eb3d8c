"""The first contact with a service: fetch the certificate to pin, and compare its fingerprint."""

from __future__ import annotations

import ssl
from typing import Any

from themis.errors import InputError
from themis.trust.authority.contexts import HANDSHAKE_S, TlsError, Untrusted, client_context, connect, fingerprint_of


def first_contact(
    host: str, port: int, *, fingerprint: str = "", name: str = "", timeout_s: float = HANDSHAKE_S
) -> str:
    """The CA certificate of the service that listens there, in PEM form, for the caller to pin.

    The server sends its authority with its own certificate. A second connection, which verifies against that authority, shows that
    the server has the key to a certificate of it.

    Parameters
    ----------
    fingerprint : of the authority's certificate, SHA-256 in hexadecimal digits, with or without colons; empty: trust on first use.
    name : that the server's certificate has, if not ``host``.

    Raises
    ------
    OSError : no connection. Untrusted : another fingerprint, or a certificate that the authority did not issue.
    TlsError : it does not speak TLS.
    """
    wanted = plain_fingerprint(fingerprint)
    looking = client_context(verify=False)
    with connect(host, port, looking, name=name, timeout_s=timeout_s) as link:
        chain = chain_of(link)
    pem = ssl.DER_cert_to_PEM_cert(chain[-1])
    found = fingerprint_of(pem)
    if wanted and found != wanted:
        raise Untrusted(
            f"the authority of {host}:{port} has the fingerprint {found}, expected {wanted}; compare with the one that `themis up` "
            "printed: if that is right, another program answers there."
        )
    pinned = client_context(pem)
    connect(host, port, pinned, name=name, timeout_s=timeout_s).close()
    return pem


def plain_fingerprint(text: str) -> str:
    """A fingerprint as 64 lower-case hexadecimal digits, from one with or without colons; InputError for other text."""
    digits = text.lower().removeprefix("sha256:").replace(":", "").strip()
    if digits and (len(digits) != 64 or not set(digits) <= set("0123456789abcdef")):
        raise InputError(f"{text!r} is no fingerprint; expected the 64 hexadecimal digits that `themis up` printed.")
    return digits


def chain_of(link: ssl.SSLSocket) -> list[bytes]:
    """The certificates that a server sent (DER), its own first; not verified."""
    if hasattr(link, "get_unverified_chain"):  # Python 3.13
        return [bytes(one) for one in link.get_unverified_chain()]
    inner: Any = link._sslobj  # type: ignore[attr-defined]
    import _ssl

    found = inner.get_unverified_chain() or ()
    chain = [ssl.PEM_cert_to_DER_cert(one.public_bytes(_ssl.ENCODING_PEM)) for one in found]
    if not chain:
        raise TlsError("the server sent no certificate.")
    return chain
