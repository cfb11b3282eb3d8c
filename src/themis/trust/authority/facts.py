"""Facts of a certificate: its names, and its period of validity."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509

from themis.errors import InputError
from themis.trust.authority.contexts import ServerFiles, day, server_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A server's certificate.

    Attributes
    ----------
    names : host names and IP addresses that it is for. ``begins``, ``expires`` : seconds since the epoch.
    issuer : name of the authority.
    """

    names: tuple[str, ...]
    begins: float
    expires: float
    issuer: str


def read_facts(files: ServerFiles) -> Facts:
    """The first certificate of a file.

    Raises
    ------
    InputError : it cannot be read, or is no certificate.
    """
    path = files.certificate
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the certificate {path}: {error.strerror}.") from None
    except ValueError:
        raise InputError(
            f"{path} holds no certificate in PEM form, as `-----BEGIN CERTIFICATE-----` begins it."
        ) from None
    try:
        alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = tuple(str(one.value) for one in alternatives if isinstance(one, x509.DNSName | x509.IPAddress))
    except (x509.ExtensionNotFound, ValueError):
        names = ()
    return Facts(
        names=names,
        begins=found.not_valid_before_utc.timestamp(),
        expires=found.not_valid_after_utc.timestamp(),
        issuer=found.issuer.rfc4514_string(),
    )


def check_own(files: ServerFiles, now: float) -> Facts:
    """Check a certificate that an administrator gave, at the time ``now`` (seconds since the epoch).

    Raises
    ------
    InputError : it cannot be read, does not match its key, names no host, or is not valid now.
    """
    facts = read_facts(files)
    try:
        files.key.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the key {files.key} of the certificate: {error.strerror}.") from None
    server_context(files)
    if now > facts.expires:
        raise InputError(
            f"the certificate {files.certificate} expired on {day(facts.expires)}; put a new one there, or remove tls_certificate "
            "from the settings to use the service's own authority."
        )
    if now < facts.begins:
        raise InputError(
            f"the certificate {files.certificate} is valid from {day(facts.begins)} on only; check this machine's clock."
        )
    if not facts.names:
        raise InputError(
            f"the certificate {files.certificate} names no host (subject alternative name), so clients refuse it; have it issued "
            "for the name that users log in with."
        )
    return facts
