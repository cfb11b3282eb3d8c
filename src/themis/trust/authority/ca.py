"""The CA of a service: a key and a certificate in its data directory, and issued certificates.

Keys are EC P-256, as every TLS library of today knows them. A key and its certificate are one file, so that a crash or a reader
between two writes never meets a pair that does not match.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from themis.errors import InputError
from themis.trust.authority.contexts import ServerFiles, day, fingerprint_of

AUTHORITY_DAYS, SERVER_DAYS = 3650.0, 90.0
RENEW_AT = 1 / 3
"""A certificate is renewed when less than this part of its life is left."""
BACKDATED = timedelta(days=1)
"""Certificates are valid from a day before they are issued, for machines whose clocks are behind."""

Key = ec.EllipticCurvePrivateKey
Clock = Callable[[], float]


class Authority:
    """A certificate authority in a folder; ``open`` makes it the first time."""

    def __init__(self, folder: Path, key: Key, certificate: x509.Certificate, clock: Clock) -> None:
        self.folder, self._key, self._certificate, self._clock = folder, key, certificate, clock

    @classmethod
    def open(cls, folder: Path, clock: Clock = time.time) -> Authority:
        """The CA in a folder; created if missing. ``clock`` : seconds since the epoch.

        Raises
        ------
        InputError : its file cannot be read or written, holds something else, or others can read it.
        """
        path = folder / "authority.pem"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists():
                _write_first(path, _make(clock()))
            mode, data = path.stat().st_mode, path.read_bytes()
            public = folder / "ca.pem"
            if mode & 0o077:
                raise InputError(
                    f"{path}, the key of the certificate authority, has mode {mode & 0o777:o}, so other users can access it; "
                    "remove it to make a new authority (all clients and nodes must then log in and join again), or set mode 600."
                )
            key, certificate = _read_pair(path, data)
            own = cls(folder, key, certificate, clock)
            if not public.exists() or public.read_text() != own.pem:
                write_file(public, own.pem.encode(), 0o644)
        except OSError as error:
            raise InputError(
                f"cannot read or write {error.filename or path}, of the certificate authority: {error.strerror}."
            ) from None
        return own

    @property
    def pem(self) -> str:
        """The authority's own certificate, which clients verify others against."""
        return _text(self._certificate)

    @property
    def path(self) -> Path:
        """A file with ``pem``, which everyone may read."""
        return self.folder / "ca.pem"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate (DER), in 64 hexadecimal digits."""
        return fingerprint_of(self.pem)

    @property
    def expires(self) -> float:
        """Expiry of the CA certificate, in seconds since the epoch."""
        return self._certificate.not_valid_after_utc.timestamp()

    def server(self, names: Sequence[str], file: str = "server.pem") -> ServerFiles:
        """The service's certificate for these host names and IP addresses: the one in the folder, or a new one.

        A new one is issued if there is none, it is for other names, of another authority, damaged, or ``RENEW_AT`` of its life is
        left. Certificate and key are one file, replaced atomically; ``file`` is its name: servers with other names have their own.
        """
        path = self.folder / file
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in sorted(set(names))])
        if self._clock() > self.expires:
            raise InputError(
                f"the certificate authority in {self.folder} expired on {day(self.expires)}; remove the folder to make a new one: "
                "all clients must then log in again, and all nodes join again."
            )
        try:
            if not self._still_good(path, alternatives):
                key = ec.generate_private_key(ec.SECP256R1())
                made = self._sign(key, alternatives)
                write_file(path, (_key_text(key) + _text(made) + self.pem).encode(), 0o600)
        except OSError as error:
            raise InputError(
                f"cannot read or write {path}, the certificate of the service: {error.strerror}."
            ) from None
        return ServerFiles(certificate=path, key=path)

    def _sign(self, key: Key, names: x509.SubjectAlternativeName) -> x509.Certificate:
        """A certificate of a server with these names."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        own = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return (
            _begun(key, "themis", now, min(now + timedelta(days=SERVER_DAYS), self._certificate.not_valid_after_utc))
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _still_good(self, path: Path, wanted: x509.SubjectAlternativeName) -> bool:
        if not path.exists():
            return False
        try:
            _, certificate = _read_pair(path, path.read_bytes())
            certificate.verify_directly_issued_by(self._certificate)
            found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (InputError, ValueError, TypeError, x509.ExtensionNotFound, InvalidSignature):
            return False
        begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
        now, life = self._clock(), end - begin - BACKDATED.total_seconds()
        return begin <= now < end - RENEW_AT * life and found == wanted


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Replace a file atomically, also across a power failure."""
    draft = _draft(path, data, mode)
    try:
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


def _write_first(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet; of two writers the first one wins."""
    draft = _draft(path, data, 0o600)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


def _draft(path: Path, data: bytes, mode: int) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return draft


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _make(now_s: float) -> bytes:
    """Key and certificate of a new CA; its name is unique, to distinguish it from others."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.fromtimestamp(now_s, UTC)
    name = f"Themis authority {secrets.token_hex(4)}"
    own = (
        _begun(key, name, now, now + timedelta(days=AUTHORITY_DAYS))
        .issuer_name(_subject(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signature=False), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (_key_text(key) + _text(own)).encode()


def _begun(key: Key, name: str, now: datetime, end: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now - BACKDATED, end - BACKDATED))
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(name: str) -> x509.Name:
    room = name.encode()[:64].decode(errors="ignore")  # X.509 has room for 64 bytes
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, room)])


def _usage(*, signature: bool) -> x509.KeyUsage:
    """Key usage: servers sign handshakes (``signature``), authorities sign certificates."""
    return x509.KeyUsage(
        digital_signature=signature,
        key_cert_sign=not signature,
        crl_sign=not signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name.encode("idna").decode())
    except (ValueError, UnicodeError):
        raise InputError(
            f"a certificate cannot name {name!r}; expected a host name or an IP address in tls_names."
        ) from None


def _read_pair(path: Path, data: bytes) -> tuple[Key, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key(data, None)
        certificate = x509.load_pem_x509_certificate(data)
    except (ValueError, TypeError):
        raise InputError(
            f"{path} holds no key and certificate in PEM form; restore it from a backup, or remove it and a new one is made."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InputError(
            f"key and certificate in {path} do not match; restore it from a backup, or remove it and a new one is made."
        )
    return key, certificate


def _key_text(key: Key) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
