"""The authority: what it makes, what it signs, what is renewed, and handshakes between real sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from themis.errors import InputError
from themis.trust.authority.ca import Authority
from themis.trust.authority.contact import first_contact
from themis.trust.authority.contexts import (
    TlsError,
    Untrusted,
    client_context,
    connect,
    fingerprint_of,
    server_context,
)

DAY = 86400.0


class Server:
    """Does handshakes, and says hello."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), self.context.wrap_socket(connection, server_side=True) as link:
                link.sendall(b"hello")

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.fixture
def serving():  # type: ignore[no-untyped-def]
    servers: list[Server] = []

    def begin(context: ssl.SSLContext) -> Server:
        servers.append(Server(context))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


def hello(port: int, context: ssl.SSLContext) -> bytes:
    with connect("127.0.0.1", port, context) as link:
        link.settimeout(5)
        return link.recv(100)


def served_nothing(port: int, context: ssl.SSLContext) -> bool:
    """Whether the connection ends without an answer; with TLS 1.3 the client's part of the handshake may succeed."""
    try:
        return not hello(port, context)
    except (OSError, TlsError):
        return True


def test_an_authority_is_made_once_and_only_its_owner_reads_the_key(tmp_path: Path) -> None:
    one, again = Authority.open(tmp_path / "a"), Authority.open(tmp_path / "a")
    assert one.fingerprint == again.fingerprint == fingerprint_of(one.path.read_text())
    assert stat.S_IMODE((tmp_path / "a" / "authority.pem").stat().st_mode) == 0o600
    assert one.expires - time.time() == pytest.approx(3650 * DAY, abs=60)
    assert Authority.open(tmp_path / "b").fingerprint != one.fingerprint


def test_processes_that_make_an_authority_together_make_one(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom themis.trust.authority.ca import Authority\n"
        "print(Authority.open(pathlib.Path(sys.argv[1])).fingerprint)"
    )
    made = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a")], stdout=subprocess.PIPE) for _ in range(4)
    ]
    assert len({process.communicate(timeout=60)[0] for process in made}) == 1
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["authority.pem", "ca.pem"]


def test_files_that_are_damaged_or_open_to_others_are_refused_in_one_sentence(tmp_path: Path) -> None:
    Authority.open(tmp_path / "a")
    path = tmp_path / "a" / "authority.pem"
    path.chmod(0o644)
    with pytest.raises(InputError, match=r"mode 644.*set mode 600"):
        Authority.open(tmp_path / "a")
    path.chmod(0o600)
    good = path.read_bytes()
    path.write_bytes(good[:100])
    with pytest.raises(InputError, match="holds no key and certificate"):
        Authority.open(tmp_path / "a")
    other = (Authority.open(tmp_path / "b").folder / "authority.pem").read_text()
    path.write_text(other[: other.index("-----BEGIN CERT")] + good.decode()[good.decode().index("-----BEGIN CERT") :])
    with pytest.raises(InputError, match="do not match"):
        Authority.open(tmp_path / "a")


def test_the_servers_certificate_is_kept_until_a_third_of_its_life_is_left_or_its_names_change(tmp_path: Path) -> None:
    now = time.time()
    Authority.open(tmp_path)

    def text(after_days: float, *names: str) -> bytes:
        return Authority.open(tmp_path, lambda: now + after_days * DAY).server(names).certificate.read_bytes()

    first = text(0, "127.0.0.1", "localhost")
    assert text(59, "localhost", "127.0.0.1") == first
    renewed = text(61, "localhost", "127.0.0.1")
    assert renewed != first
    assert text(61, "localhost", "10.0.0.7") != renewed
    with pytest.raises(InputError, match=r"expired on 20\d\d-.*remove the folder"):
        text(3651, "localhost")


def test_a_server_is_verified_and_another_authority_another_name_or_an_expired_one_is_refused(
    tmp_path: Path, serving: Callable[..., Server]
) -> None:
    authority = Authority.open(tmp_path / "a")
    trust = client_context(authority.pem)
    assert hello(serving(server_context(authority.server(["127.0.0.1"]))).port, trust) == b"hello"
    with pytest.raises(Untrusted, match="not from the authority that this machine trusts"):
        hello(
            serving(server_context(authority.server(["127.0.0.1"]))).port,
            client_context(Authority.open(tmp_path / "b").pem),
        )
    with pytest.raises(Untrusted, match=r"not for the name '127.0.0.1'.*tls_names"):
        hello(serving(server_context(authority.server(["elsewhere"]))).port, trust)
    past = Authority.open(tmp_path / "a", lambda: time.time() - 91 * DAY)
    (tmp_path / "a" / "server.pem").unlink()
    with pytest.raises(Untrusted, match="has expired"):
        hello(serving(server_context(past.server(["127.0.0.1"]))).port, trust)


def test_only_tls_1_2_and_1_3_with_forward_secrecy_are_spoken(tmp_path: Path, serving: Callable[..., Server]) -> None:
    authority = Authority.open(tmp_path)
    context = server_context(authority.server(["127.0.0.1"]))
    names = {cipher["name"] for cipher in context.get_ciphers()}
    assert names
    assert all(name.startswith(("TLS_", "ECDHE-")) and ("GCM" in name or "CHACHA20" in name) for name in names)
    port = serving(context).port
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        trust = client_context(authority.pem)
        trust.minimum_version = trust.maximum_version = version
        with connect("127.0.0.1", port, trust) as link:
            assert link.version() == version.name.replace("_", ".")
    old = client_context(authority.pem)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(TlsError, match=r"no version of TLS|closed the connection"):
        connect("127.0.0.1", port, old)


def test_the_first_contact_gives_the_authority_and_refuses_another_fingerprint(
    tmp_path: Path, serving: Callable[..., Server]
) -> None:
    authority = Authority.open(tmp_path / "a")
    port = serving(server_context(authority.server(["127.0.0.1"]))).port
    assert first_contact("127.0.0.1", port) == authority.pem
    digits = authority.fingerprint.upper()
    colons = ":".join(digits[i : i + 2] for i in range(0, 64, 2))
    assert first_contact("127.0.0.1", port, fingerprint=colons) == authority.pem
    with pytest.raises(Untrusted, match=rf"{authority.fingerprint}, expected {'0' * 64}"):
        first_contact("127.0.0.1", port, fingerprint="0" * 64)
    with pytest.raises(InputError, match="is no fingerprint"):
        first_contact("127.0.0.1", port, fingerprint="abc")


def test_who_does_not_speak_tls_or_says_nothing_is_told_apart(tmp_path: Path) -> None:
    trust = client_context(Authority.open(tmp_path).pem)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TlsError, match="answers no TLS handshake"):
            connect("127.0.0.1", port, trust, timeout_s=0.3)

        def answer(text: bytes) -> None:
            connection, _ = silent.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(text)

        silent.accept()[0].close()
        for text, sentence in ((b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers without TLS"), (b"", "closed the conn")):
            thread = threading.Thread(target=answer, args=(text,))
            thread.start()
            with pytest.raises(TlsError, match=sentence):
                connect("127.0.0.1", port, trust, timeout_s=5)
            thread.join()


def test_the_command_and_the_client_do_not_load_the_library_that_issues() -> None:
    code = "import sys, themis, themis.trust.authority.contact, themis.cli.start; print('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
