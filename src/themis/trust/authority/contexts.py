"""TLS with the standard library: contexts of servers and clients, handshakes, errors as sentences.

Nothing here issues certificates, so that node agents and clients need no more than Python.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from themis.errors import InputError, ThemisError

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Cipher suites of TLS 1.2: only those with forward secrecy and authenticated encryption. All of TLS 1.3 have both."""
HANDSHAKE_S = 5.0
"""Seconds for a handshake."""
PARTIAL_CHAIN = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
"""A certificate that is pinned is trusted, also if it is no authority's."""


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """Files of a server's certificate, with those that lead to its authority, and of its key, in PEM form; may be one file."""

    certificate: Path
    key: Path


class TlsError(ThemisError):
    """A connection over TLS was not made; says why in one sentence."""


class PlainText(TlsError):
    """The other side answers without TLS."""


class Untrusted(TlsError):
    """The other side has a certificate that is not accepted: trying again does not help."""


def server_context(files: ServerFiles) -> ssl.SSLContext:
    """TLS context of a server, for TLS 1.2 and 1.3. A renewed certificate gets a new one: in one that is in use, a handshake may
    meet the new certificate before its key.

    Raises
    ------
    InputError : the files cannot be read, or do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _strict(context)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot use certificate {files.certificate} with key {files.key}: {_reason(error)}; expected PEM files that "
            "belong together, the key without a password."
        ) from None
    return context


def client_context(ca_pem: str = "", *, verify: bool = True) -> ssl.SSLContext:
    """TLS context of a client. It accepts servers of the authority, or with the pinned certificate, ``ca_pem``; empty:
    those of the system's store.

    verify : False accepts every server, to read its certificate before it is trusted.

    Raises
    ------
    InputError : one of the certificates cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _strict(context)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca_pem:
        context.verify_flags |= PARTIAL_CHAIN
        try:
            context.load_verify_locations(cadata=ca_pem)
        except (ssl.SSLError, ValueError) as error:
            raise InputError(
                f"the authority's certificate cannot be read: {_reason(error)}; expected PEM form."
            ) from None
    else:
        context.load_default_certs()
    return context


def _strict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def _no_password() -> str:
    """Empty password for an encrypted key; otherwise OpenSSL would prompt in the terminal."""
    return ""


def connect(
    host: str, port: int, context: ssl.SSLContext, *, name: str = "", timeout_s: float = HANDSHAKE_S
) -> ssl.SSLSocket:
    """Connect to a server and verify it; the returned socket has no timeout. ``name`` : that its certificate has, if not ``host``.

    Raises
    ------
    OSError : no connection. Untrusted : its certificate is not accepted. TlsError : it does not speak TLS.
    """
    connection = socket.create_connection((host, port), timeout=timeout_s)
    try:
        link = context.wrap_socket(connection, do_handshake_on_connect=False, server_hostname=name or host)
        return _handshaken(link, timeout_s)
    except (OSError, ValueError) as error:
        connection.close()
        raise in_words(error, host, port, name) from None


def _handshaken(link: ssl.SSLSocket, timeout_s: float) -> ssl.SSLSocket:
    """Do the handshake within a time in total; a socket's own timeout is one of each read."""
    import select

    end = time.monotonic() + timeout_s
    try:
        link.setblocking(False)
        while True:
            try:
                link.do_handshake()
                break
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            poll = select.poll()
            poll.register(link, wanted)
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(1000 * left):
                raise TimeoutError(f"no TLS handshake within {timeout_s:g} s")
        link.setblocking(True)
    except BaseException:
        link.close()
        raise
    return link


def in_words(error: Exception, host: str, port: int, name: str = "") -> TlsError:
    """An error of a client's handshake as one sentence that says what to do."""
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return Untrusted(_unverified(error, at, name or host))
    if isinstance(error, TimeoutError):
        return TlsError(
            f"{at} accepts connections, but answers no TLS handshake; check that this is the service's port, and that the "
            "service is not stopped or overloaded."
        )
    reason = getattr(error, "reason", None) or ""
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE", "HTTP_REQUEST"):
        return PlainText(
            f"{at} answers without TLS; check the port, or, if the service's setting tls is off, use `themis login http://{at}`."
        )
    if "ALERT" in reason and ("VERSION" in reason or "HANDSHAKE" in reason):
        return TlsError(
            f"{at} and this program have no version of TLS or cipher in common; TLS 1.2 or later is needed."
        )
    return TlsError(
        f"{at} closed the connection during the TLS handshake ({_reason(error)}); check that this is the service's port."
    )


EXPIRED, NOT_YET, WRONG_NAME, WRONG_ADDRESS, WRONG_PURPOSE = 10, 9, 62, 64, 26
"""OpenSSL's numbers of reasons for which a certificate is refused; those of a wrong authority are several."""


def _unverified(error: ssl.SSLCertVerificationError, at: str, name: str) -> str:
    match error.verify_code:
        case code if code == EXPIRED:
            return (
                f"the certificate of {at} has expired, or this machine's clock is ahead (it is {day(time.time())} here); renew the "
                "certificate on the service's machine: its own one is renewed while `themis up` runs."
            )
        case code if code == NOT_YET:
            return (
                f"the certificate of {at} is not valid yet: this machine's clock is behind (it is {day(time.time())} here); "
                "set the clock."
            )
        case code if code in (WRONG_NAME, WRONG_ADDRESS):
            return (
                f"the certificate of {at} is not for the name {name!r}; use a name that it has, or add this one to the service's "
                "setting tls_names."
            )
        case code if code == WRONG_PURPOSE:
            return f"{at} shows a certificate that is not a server's; check the address."
    return (
        f"the certificate of {at} is not from the authority that this machine trusts ({error.verify_message}); if the service "
        "has a new authority, compare its fingerprint (`themis certificates` there) and log in again, else another program answers."
    )


def fingerprint_of(pem: str) -> str:
    """SHA-256 of the first certificate (DER) in a PEM text, in 64 hexadecimal digits; InputError if there is none."""
    begin, end = pem.find(ssl.PEM_HEADER), pem.find(ssl.PEM_FOOTER)
    try:
        if begin < 0 or end < begin:
            raise ValueError
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[begin : end + len(ssl.PEM_FOOTER)])).hexdigest()
    except ValueError:
        raise InputError("the text has no certificate in PEM form.") from None


def day(moment: float) -> str:
    """A time in seconds since the epoch as a date and time of UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error.args[-1] if error.args else error)).lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
