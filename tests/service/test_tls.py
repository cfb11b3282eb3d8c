"""The service's APIs over TLS: what is on the wire, who is refused and in which words, certificates that change while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
import logging
import os
import pty
import re
import select
import socket
import ssl
import subprocess
import sys
import termios
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import PATIENCE_S, wait_until
from processes import running as process_of
from themis.client.aio import AsyncClient
from themis.client.certificates import certificates as shown
from themis.client.client import Client
from themis.client.home import log_in, read_endpoint, read_token
from themis.client.light import Service as Light
from themis.client.trust import SYSTEM, Trust, locate
from themis.errors import InputError, ThemisError
from themis.service.api import certificate_calls as certificates_module
from themis.service.api import connections, handshakes
from themis.service.engine.config import Config
from themis.service.operations.backups import back_up, restore
from themis.service.operations.doctor import examine
from themis.service.operations.tls import encrypts
from themis.service.operations.up import Service, running
from themis.trust.authority.ca import Authority
from themis.trust.authority.contexts import ServerFiles, TlsError, Untrusted, client_context, connect, server_context
from themis.trust.authority.names import addresses, names_of

DAY = 86400.0


def config(**more: object) -> Config:
    """A small service on loopback that encrypts all the same."""
    known = {"gpus": 2, "port": 0, "tls": "on", "single_trust": True, "node_renew_s": 1.0}
    return Config(**{**known, "allow_root": os.geteuid() == 0, **more})  # type: ignore[arg-type]


@contextmanager
def recorded(target: str) -> Iterator[tuple[str, bytearray]]:
    """A relay in front of ``HOST:PORT`` that keeps all bytes of both directions; gives its own address."""
    host, _, port = target.rpartition(":")
    bytes_seen, listener = bytearray(), socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def copy(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                bytes_seen.extend(data)
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = listener.accept()
                there = socket.create_connection((host, int(port)))
                opened.extend((caller, there))
                for pair in ((caller, there), (there, caller)):
                    threads.append(threading.Thread(target=copy, args=pair, daemon=True))
                    threads[-1].start()

    accepting = threading.Thread(target=serve, daemon=True)
    accepting.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", bytes_seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for one in opened:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for one in opened:
            one.close()


def ask_over_http(address: str, token: str, context: ssl.SSLContext | None) -> int:
    kind = http.client.HTTPSConnection(address, timeout=30, context=context) if context else None
    connection = kind or http.client.HTTPConnection(address, timeout=30)
    body = json.dumps({"name": "over-http-x9", "jobs": []})
    connection.request(
        "POST", "/v1/apps", body, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    )
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize("tls", ["on", "off"])
def test_captured_traffic_holds_neither_token_nor_jobs(tmp_path: Path, tls: str) -> None:
    with running(tmp_path, config(tls=tls)) as up:
        token, trust = read_token(tmp_path), locate(tmp_path).trust
        with recorded(up.endpoint.address) as (at, data):
            with Client(tmp_path, address=at, trust=trust) as client:
                client.run(["sleep", "0.1", "secret-word-7q"], name="job-name-x9")
                assert client.info().gpus == 2
            context = client_context(trust.pem) if tls == "on" else None
            assert ask_over_http(at, token, context) == 400
        assert len(data) > 800
        found = [word.encode() in bytes(data) for word in (token, "secret-word-7q", "over-http-x9")]
        # Without TLS the same relay sees them: the test can fail.
        assert found == [tls == "off"] * 3


def test_the_port_speaks_tls_1_2_and_1_3_with_authenticated_ciphers_alone(tmp_path: Path) -> None:
    with running(tmp_path, config()) as up:
        trust = locate(tmp_path).trust
        for address in (up.endpoint.address,):
            port = int(address.rpartition(":")[2])
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = trust.context()
                context.minimum_version = context.maximum_version = version
                with connect("127.0.0.1", port, context) as link:
                    assert link.version() == version.name.replace("_", ".")
                    name, _, bits = link.cipher() or ("", "", 0)
                    assert name.startswith(("TLS_", "ECDHE-"))
                    assert "GCM" in name or "CHACHA20" in name
                    assert bits >= 128
            for refused in (old(trust), weak(trust, "AES128-SHA"), weak(trust, "ECDHE-ECDSA-AES128-SHA")):
                with pytest.raises(TlsError, match=r"no version of TLS|closed the connection"):
                    connect("127.0.0.1", port, refused)


def old(trust: Trust) -> ssl.SSLContext:
    context = trust.context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def weak(trust: Trust, cipher: str) -> ssl.SSLContext:
    context = trust.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(f"{cipher}:@SECLEVEL=0")
    return context


HELLO = bytes.fromhex("16030100c8010000c40303")
BROKEN: tuple[bytes, ...] = (b"\x00" * 200, b"GET / HTTP/1.1\r\n\r\n", HELLO, HELLO + os.urandom(189), b"\x16", b"")


@pytest.mark.slow
def test_a_thousand_broken_handshakes_leave_memory_threads_and_files_where_they_were(tmp_path: Path) -> None:
    """Garbage, plain requests, half and damaged hellos, silence; closed by the caller, or held open until the service closes."""
    with running(tmp_path, config()) as up, Client(tmp_path, timeout_s=20) as client:
        port = int(up.endpoint.address.rpartition(":")[2])

        def break_some(count: int) -> None:
            held: list[socket.socket] = []
            for i in range(count):
                one = socket.create_connection(("127.0.0.1", port), timeout=20)
                one.sendall(BROKEN[i // 2 % len(BROKEN)])
                if i % 4 < 2:
                    held.append(one)
                else:
                    one.close()
                if i % 50 == 0:
                    assert client.info().gpus == 2
                    with Light(tmp_path) as light:
                        assert light.call("Info")["gpus"] == 2
                        assert light._client is None, "HTTP did not answer"
            for one in held:  # the service closes them, in seconds
                one.settimeout(30)
                with contextlib.suppress(ConnectionError):
                    while one.recv(4096):
                        pass
                one.close()

        def measures() -> tuple[int, int, int]:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * 4096

        break_some(1000)
        files, threads, memory = measures()
        break_some(1000)
        wait_until(lambda: measures()[0] <= files + 4, "files are closed")
        after = measures()
        assert after[1] <= threads + 4
        assert after[2] - memory < 24 << 20
        assert client.info().gpus == 2


def test_every_client_verifies_the_service_and_refuses_another_authority(tmp_path: Path) -> None:
    with running(tmp_path / "h", config()) as up:
        token = read_token(tmp_path / "h")

        async def over_asyncio(cacert: Path | None) -> int:
            async with AsyncClient(tmp_path / "h", address=up.endpoint.address, cacert=cacert) as client:
                return (await client.info()).gpus

        assert asyncio.run(over_asyncio(None)) == 2
        with Client(tmp_path / "h") as client, Light(tmp_path / "h") as light:
            assert client.info().gpus == light.call("Info")["gpus"] == 2
            assert light._client is None
        other = Authority.open(tmp_path / "other").path
        sentence = "is not from the authority that this machine trusts"
        began = time.monotonic()
        with Client(address=up.endpoint.address, token=token, cacert=other) as client:
            with pytest.raises(Untrusted, match=sentence):
                client.info()
            with pytest.raises(Untrusted, match=sentence):
                next(iter(client.events(follow=True)))
        log_in(tmp_path / "u", up.endpoint.address, token, "ca.pem", other.read_text())
        with pytest.raises(Untrusted, match=sentence):
            asyncio.run(over_asyncio(other))
        with Light(tmp_path / "u") as light, pytest.raises(Untrusted, match=sentence):
            light.call("Info")
        # The answer is sure: no client waits for the whole of its patience.
        assert time.monotonic() - began < 30


def test_a_variable_names_the_certificate_for_jobs_and_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "h", config()) as up:
        token = read_token(tmp_path / "h")
        monkeypatch.setenv("THEMIS_CACERT", str(tmp_path / "h" / "authority" / "ca.pem"))
        with Client(tmp_path, address=f"https://{up.endpoint.address}", token=token) as client:
            assert client.info().gpus == 2
        monkeypatch.setenv("THEMIS_CACERT", str(tmp_path / "none.pem"))
        with pytest.raises(
            InputError, match=r"cannot read .*none.pem.*No such file.*log in again, or set THEMIS_CACERT"
        ):
            Client(tmp_path, address=f"https://{up.endpoint.address}", token=token)


def test_an_address_that_is_not_loopback_is_never_called_without_tls_unless_it_says_so(tmp_path: Path) -> None:
    assert locate(tmp_path, "gpu1:7433").trust.source == SYSTEM
    assert locate(tmp_path, "http://gpu1:7433").trust == Trust()
    assert locate(tmp_path, "127.0.0.1:7433").trust == Trust()
    assert locate(tmp_path, "https://127.0.0.1:7433").trust.source == SYSTEM
    log_in(tmp_path / "u", "gpu1:7433", "token")  # as logins of before TLS are stored
    assert locate(tmp_path / "u").trust == Trust()
    with pytest.raises(InputError, match="expected HOST:PORT, or https://HOST:PORT"):
        locate(tmp_path, "ftp://gpu1:7433")


@contextmanager
def answering(act: Callable[[socket.socket], object]) -> Iterator[str]:
    """A port where each connection is given to ``act``."""
    listener, kept = socket.create_server(("127.0.0.1", 0)), []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                kept.append(listener.accept()[0])
                with contextlib.suppress(OSError, ssl.SSLError):
                    act(kept[-1])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for one in kept:
            one.close()


def test_each_fault_of_a_connection_is_one_clear_sentence(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path / "a")
    past = Authority.open(tmp_path / "a", lambda: time.time() - 91 * DAY)
    ahead = Authority.open(tmp_path / "a", lambda: time.time() + 9 * DAY)
    contexts = {}
    for name, issuer, host in (
        ("past", past, "127.0.0.1"),
        ("ahead", ahead, "127.0.0.1"),
        ("name", authority, "elsewhere"),
    ):
        (tmp_path / "a" / "server.pem").unlink(missing_ok=True)
        contexts[name] = server_context(issuer.server([host]))
        contexts[name].set_alpn_protocols(["h2"])

    def shake(name: str) -> Callable[[socket.socket], object]:
        def act(one: socket.socket) -> None:
            with contexts[name].wrap_socket(one, server_side=True) as link:
                link.recv(1)

        return act

    def fault(act: Callable[[socket.socket], object], kind: type[ThemisError], trust: Trust) -> str:
        # Untrusted ends a call early; what may pass is tried again for a while.
        with (
            answering(act) as address,
            Client(tmp_path, address=address, token="t", trust=trust, timeout_s=4) as client,
            pytest.raises(kind) as caught,
        ):
            client.info()
        said = str(caught.value)
        assert said.endswith(".")
        assert "\n" not in said
        assert address in said
        return said

    pinned = Trust("ca.pem", authority.pem)
    assert "has expired, or this machine's clock is ahead" in fault(shake("past"), Untrusted, pinned)
    assert "is not valid yet: this machine's clock is behind" in fault(shake("ahead"), Untrusted, pinned)
    assert "is not for the name '127.0.0.1'" in fault(shake("name"), Untrusted, pinned)
    assert "answers no TLS handshake" in fault(lambda one: None, ThemisError, pinned)
    assert "answers without TLS" in fault(lambda one: one.sendall(b"SSH-2.0-x\r\n"), ThemisError, pinned)


def test_tls_to_a_plain_service_and_plain_text_to_one_with_tls(tmp_path: Path) -> None:
    pem = Authority.open(tmp_path / "a").pem
    with (
        running(tmp_path / "plain", config(tls="off")) as up,
        Client(tmp_path / "plain", address=up.endpoint.address, trust=Trust("ca.pem", pem), timeout_s=4) as client,
        pytest.raises(ThemisError, match=r"answers without TLS.*themis login http://"),
    ):
        client.info()
    with running(tmp_path / "tls", config()) as up:
        with (
            Client(tmp_path / "tls", address=f"http://{up.endpoint.address}", timeout_s=4) as client,
            pytest.raises(ThemisError, match=r"speaks TLS, and this login does not: log in again with `themis login"),
        ):
            client.info()
        page = http.client.HTTPConnection(up.endpoint.http.removeprefix("https://"), timeout=PATIENCE_S)
        page.request("GET", "/healthz")
        answer = page.getresponse()
        assert (answer.status, json.load(answer)["error"]) == (
            400,
            "this port speaks TLS: use https:// instead of http://.",
        )
        page.close()


# ---- the service's certificate ------------------------------------------------------------------------------------------


def test_auto_encrypts_every_address_but_loopback() -> None:
    for host, tls, expected in (
        ("127.0.0.1", "auto", False),
        ("::1", "auto", False),
        ("0.0.0.0", "auto", True),
        ("0.0.0.0", "off", False),
        ("127.0.0.1", "on", True),
    ):
        assert encrypts(Config(host=host, tls=tls)) == expected
    assert "127.0.0.1" in addresses()
    assert {"10.1.2.3", "gpu.example.org", "localhost"} <= set(names_of("10.1.2.3", ["gpu.example.org"])())
    assert addresses() <= set(names_of("0.0.0.0", [])())


def company_files(folder: Path, name: str, *names: str, days_ago: float = 0) -> tuple[Path, Path, str]:
    """Certificate, key and authority as an administrator has them from elsewhere."""
    issuer = Authority.open(folder / f"{name}-ca", lambda: time.time() - days_ago * DAY)
    text = issuer.server(names or ["gpu.company.org", "127.0.0.1"]).certificate.read_text()
    at = text.index("-----BEGIN CERT")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_text(text[at:])
    key.write_text(text[:at])
    key.chmod(0o600)
    return certificate, key, issuer.pem


def test_an_administrators_own_certificate_serves_and_a_new_one_is_read_while_a_stream_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates_module, "LOOK_S", 0.2)
    certificate, key, pem = company_files(tmp_path, "own", "gpu.company.org")
    with running(tmp_path / "h", config(tls_certificate=str(certificate), tls_key=str(key))) as up:
        assert up.endpoint.name == "gpu.company.org"
        assert not up.certificates.fingerprint
        with Client(tmp_path / "h") as client, Light(tmp_path / "h") as light:  # by another name than it is called
            assert client.info().gpus == light.call("Info")["gpus"] == 2
            assert light._client is None
            events = client.events(follow=True)
            seen = [next(events)]
            second, second_key, second_pem = company_files(tmp_path, "second", "gpu.company.org")
            certificate.write_bytes(second.read_bytes())  # for a moment it does not match its key
            key.write_bytes(second_key.read_bytes())

            def serves(ca: str) -> bool:
                for address in (up.endpoint.address,):
                    context = client_context(ca)
                    try:
                        connect("127.0.0.1", int(address.rpartition(":")[2]), context, name="gpu.company.org").close()
                    except Untrusted:
                        return False
                return True

            wait_until(lambda: serves(second_pem), "the new certificate is shown")
            assert not serves(pem)
            client.run(["true"], name="after")
            while "after" not in str(seen[-1]):
                seen.append(next(events))
        with Client(tmp_path / "h") as client:
            assert client.info().gpus == 2


def test_no_handshake_fails_while_the_certificate_is_renewed(tmp_path: Path) -> None:
    """A handshake that meets the new certificate with the key of the old one cannot be signed."""
    shown, *pairs = (company_files(tmp_path, name, "127.0.0.1") for name in ("shown", "odd", "even"))
    with running(tmp_path / "h", config(tls_certificate=str(shown[0]), tls_key=str(shown[1]))) as up:
        met = threading.Event()

        def renew() -> None:
            while not met.is_set():
                for certificate, key, _ in pairs:
                    shown[0].write_bytes(certificate.read_bytes())
                    shown[1].write_bytes(key.read_bytes())
                    up.certificates.refresh()

        renewing = threading.Thread(target=renew)
        renewing.start()
        try:
            _, _, port = up.endpoint.address.rpartition(":")
            for _ in range(300):
                connect("127.0.0.1", int(port), client_context(verify=False)).close()
        finally:
            met.set()
            renewing.join()


def test_a_certificate_that_the_system_trusts_needs_no_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key, pem = company_files(tmp_path, "own", "127.0.0.1")
    (tmp_path / "roots.pem").write_text(pem)
    with running(tmp_path / "h", config(tls_certificate=str(certificate), tls_key=str(key))) as up:
        token, mine = read_token(tmp_path / "h"), str(tmp_path / "u")
        with Client(address=up.endpoint.address, token=token, cacert=SYSTEM) as client, pytest.raises(Untrusted):
            client.info()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
        answer = themis("login", up.endpoint.address, "--data-dir", mine, text=token)
        assert answer.returncode == 0, answer.stderr
        assert read_endpoint(tmp_path / "u").cacert == SYSTEM
        with Client(tmp_path / "u") as client, Light(tmp_path / "u") as light:
            assert client.info().gpus == light.call("Info")["gpus"] == 2
        with Client(address=f"https://{up.endpoint.address}", token=token) as client:
            assert client.info().gpus == 2


def test_reloading_reads_a_changed_certificate_and_keeps_the_old_one_if_it_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates_module, "LOOK_S", 1e6)
    certificate, key, _ = company_files(tmp_path, "own")
    with (
        running(tmp_path / "h", config(tls_certificate=str(certificate), tls_key=str(key))) as up,
        Client(tmp_path / "h") as client,
    ):
        before = up.certificates.facts
        good = certificate.read_bytes()
        certificate.write_text("nothing")
        with pytest.raises(InputError, match="holds no certificate in PEM form"):
            client.set({}, reload=True)
        assert up.certificates.facts == before
        certificate.write_bytes(good)
        second, second_key, _ = company_files(tmp_path, "second", "127.0.0.1", "new.company.org")
        certificate.write_bytes(second.read_bytes())
        key.write_bytes(second_key.read_bytes())
        client.set({}, reload=True)
        assert up.certificates.facts.names != before.names


def test_own_certificates_that_cannot_serve_are_refused_at_the_start_in_one_sentence(tmp_path: Path) -> None:
    certificate, key, _ = company_files(tmp_path, "own")
    expired, expired_key, _ = company_files(tmp_path, "expired", days_ago=91)
    unnamed = tmp_path / "unnamed.pem"
    unnamed.write_bytes(Authority.open(tmp_path / "own-ca").server([]).certificate.read_bytes())
    locked = tmp_path / "locked.key"
    make = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(make, check=True, capture_output=True)
    text = tmp_path / "text"
    text.write_text("text")
    for one, other, words in (
        (tmp_path / "none", key, r"cannot read .*none.*No such file"),
        (certificate, tmp_path / "none", r"cannot read .*none.*No such file"),
        (text, key, "text holds no certificate in PEM form"),
        (certificate, text, r"cannot use certificate .* with key .*text"),
        (certificate, expired_key, "key values mismatch; expected PEM files that belong together"),
        (certificate, locked, r"cannot use certificate .*the key without a password"),
        (expired, expired_key, r"expired on 20\d\d-.*put a new one there"),
        (unnamed, unnamed, "names no host"),
    ):
        with (
            pytest.raises(InputError, match=words) as caught,
            running(tmp_path / "h", config(tls_certificate=str(one), tls_key=str(other))),
        ):
            pass
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="there is no tls_certificate; give both"):
        config(tls_key=str(key))


def test_the_services_own_certificate_is_renewed_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates_module, "LOOK_S", 0.2)
    Authority.open(tmp_path / "authority", lambda: time.time() - 80 * DAY).server(names_of("127.0.0.1", [])())
    old_bytes = (tmp_path / "authority" / "server.pem").read_bytes()
    with running(tmp_path, config()) as up, Client(tmp_path) as client:
        # Two thirds of its life were over at the start.
        assert (tmp_path / "authority" / "server.pem").read_bytes() != old_bytes
        assert up.certificates.facts.expires - time.time() > 89 * DAY
        assert client.info().gpus == 2
        before = {one.of: one.expires for one in shown(tmp_path)}
        up.certificates._clock = up.certificates.authority._clock = lambda: time.time() + 61 * DAY
        wait_until(lambda: up.certificates.facts.expires > before["service"] + 60 * DAY, "it is renewed")
        up.certificates._clock = up.certificates.authority._clock = time.time
        assert {one.of for one in shown_raw(up)} == {"after"}


def shown_raw(up: Service) -> list[object]:
    """The port shows a certificate that this machine's clock does not accept yet, so it is the new one."""
    from types import SimpleNamespace

    out = []
    for address in (up.endpoint.address,):
        context = locate(up.arbiter.journal.path.parent).trust.context()
        with pytest.raises(Untrusted, match="not valid yet"):
            connect("127.0.0.1", int(address.rpartition(":")[2]), context)
        out.append(SimpleNamespace(of="after"))
    return out


def test_a_restart_that_turns_tls_on_or_off_is_followed_by_clients_of_the_data_directory(tmp_path: Path) -> None:
    with running(tmp_path, config(tls="off")) as up:
        port = int(up.endpoint.address.rpartition(":")[2])
        client = Client(tmp_path, timeout_s=30)
        assert client.info().gpus == 2
    with client:
        for tls in ("on", "off"):
            with running(tmp_path, config(tls=tls, port=port)):
                assert client.info().gpus == 2
                assert bool(client.trust.source) == (tls == "on")


def test_doctor_metrics_and_backups_know_the_certificate(tmp_path: Path) -> None:
    home = tmp_path / "h"
    with running(home, config()) as up:
        (said,) = [check for check in examine(home) if check["check"] == "certificate"]
        assert said["state"] == "ok"
        assert re.search(r"encrypted; service until 20.*, authority until 20", said["finding"])
        page = http.client.HTTPSConnection(
            up.endpoint.http.removeprefix("https://"),
            timeout=PATIENCE_S,
            context=client_context(locate(home).trust.pem),
        )
        page.request("GET", "/metrics", headers={"Authorization": f"Bearer {read_token(home)}"})
        text = page.getresponse().read().decode()
        page.close()
        left = dict(re.findall(r'themis_certificate_expiry_seconds{certificate="(\w+)"} (\S+)', text))
        assert float(left["server"]) == pytest.approx(90 * DAY, abs=300)
        assert float(left["authority"]) == pytest.approx(3650 * DAY, abs=300)
        back_up(home, tmp_path / "copy")
        fingerprint = up.certificates.fingerprint
    restore(tmp_path / "copy", tmp_path / "again")
    assert Authority.open(tmp_path / "again" / "authority").fingerprint == fingerprint


# ---- the command --------------------------------------------------------------------------------------------------------


def themis(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "themis", *words], input=text, capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.mark.slow
def test_login_pins_what_the_user_compared_and_refuses_all_else(tmp_path: Path) -> None:
    home, mine = tmp_path / "h", ["--data-dir", str(tmp_path / "u")]
    with running(home, config()) as up:
        added = themis("user", "add", "bob", "--data-dir", str(home))
        token, fingerprint = added.stdout.strip(), up.certificates.fingerprint
        line = f"themis login {up.endpoint.address} --fingerprint {fingerprint}"
        assert line in added.stderr
        asked = themis("login", up.endpoint.address, *mine, text=token)
        assert (asked.returncode, asked.stdout) == (2, "")
        assert f"add --fingerprint {fingerprint}." in asked.stderr
        wrong = themis("login", up.endpoint.address, "--fingerprint", "ab" * 32, *mine, text=token)
        assert (wrong.returncode, "another program answers there" in wrong.stderr) == (2, True)
        unknown = themis("login", up.endpoint.address, "--cacert", "system", *mine, text=token)
        assert (unknown.returncode, "not from the authority" in unknown.stderr) == (2, True)
        assert not (tmp_path / "u").exists()
        right = themis("login", up.endpoint.address, "--fingerprint", fingerprint, *mine, text=token)
        assert (right.returncode, right.stdout) == (0, f"You are bob at {up.endpoint.address}.\n"), right.stderr
        assert read_endpoint(tmp_path / "u").cacert == "ca.pem"
        assert themis("queue", *mine).returncode == 0
        listed = json.loads(themis("certificates", "-o", "json", *mine).stdout)
        assert [(row["certificate"], row["fingerprint"]) for row in listed] == [
            ("service", ""),
            ("authority", fingerprint),
        ]
        by_file = themis(
            *f"login {up.endpoint.address} --cacert".split(), str(home / "authority/ca.pem"), *mine, text=token
        )
        assert by_file.returncode == 0, by_file.stderr
        plain = themis("login", f"http://{up.endpoint.address}", *mine, text=token)
        assert (plain.returncode, "speaks TLS" in plain.stderr) == (2, True)
    # Another service on the same address: the pinned authority is not its own.
    with running(tmp_path / "other", config(port=int(up.endpoint.address.rpartition(":")[2]))):
        for verb in ("queue", "doctor"):
            answer = themis(verb, *mine)
            assert answer.returncode != 0
            assert "is not from the authority that this machine trusts" in answer.stderr + answer.stdout
            assert "Traceback" not in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["y", "n"])
def test_login_at_a_terminal_shows_the_fingerprint_and_asks(tmp_path: Path, answer: str) -> None:
    with running(tmp_path / "h", config()) as up:
        token, fingerprint = read_token(tmp_path / "h"), up.certificates.fingerprint
        words = [sys.executable, "-m", "themis", "login", up.endpoint.address, "--data-dir", str(tmp_path / "u")]
        own, its = pty.openpty()
        with process_of(words, stdin=its, stdout=its, stderr=its, start_new_session=True) as process:
            os.close(its)
            seen, end = b"", time.monotonic() + PATIENCE_S

            def read_more() -> bool:
                """Whether there was more; Linux reports the end of a terminal as an error."""
                nonlocal seen
                ready, _, _ = select.select([own], [], [], max(end - time.monotonic(), 0.0))
                assert ready, f"the command says nothing more, and does not end: {seen!r}"
                with contextlib.suppress(OSError):
                    if data := os.read(own, 4096):
                        seen += data
                        return True
                return False

            def read_to(word: bytes) -> None:
                while word not in seen:
                    assert read_more(), f"the command ended before it said {word!r}: {seen!r}"

            read_to(b"Trust it from now on?")
            assert fingerprint.encode() in seen.replace(b"\r\n", b"")
            os.write(own, f"{answer}\n".encode())
            if answer == "y":
                read_to(b"Token")
                # Turning the echo off discards what was typed before.
                wait_until(lambda: not termios.tcgetattr(own)[3] & termios.ECHO, "the echo is turned off")
                os.write(own, f"{token}\n".encode())
            while read_more():
                pass
            os.close(own)
            assert process.wait(PATIENCE_S) == (0 if answer == "y" else 2), seen
        assert (tmp_path / "u" / "ca.pem").exists() == (answer == "y")
        assert token.encode() not in seen


@pytest.mark.slow
def test_a_burst_of_callers_is_served_and_none_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Callers and service are one process here: on a busy machine, two hundred of them need longer than one caller may.
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", PATIENCE_S)
    monkeypatch.setattr(connections, "HEADERS_S", PATIENCE_S)
    with running(tmp_path, config()) as up:
        port, context = int(up.endpoint.http.rpartition(":")[2]), client_context(locate(tmp_path).trust.pem)
        done: list[int] = []

        def call() -> None:
            page = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
            page.request("GET", "/healthz", headers={"Connection": "close"})
            done.append(page.getresponse().status)
            page.close()

        threads = [threading.Thread(target=call) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == [200] * 200


def test_the_start_on_every_address_says_how_to_log_in_and_off_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), running(tmp_path / "a", config(tls="off", host="0.0.0.0")):
        assert "tls is off: everyone on the network can read tokens and programs" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), running(tmp_path / "b", config(tls="auto", host="0.0.0.0")) as up:
        assert "can be reached" not in caplog.text
        assert up.endpoint.address.startswith("127.0.0.1:")
        assert up.endpoint.public.endswith(up.endpoint.address.removeprefix("127.0.0.1"))
        with Client(tmp_path / "b") as client:
            assert client.info().gpus == 2
        for address in addresses() - {"127.0.0.1"}:  # it is for all of this machine's
            if ":" not in address:
                connect(
                    address, int(up.endpoint.address.rpartition(":")[2]), locate(tmp_path / "b").trust.context()
                ).close()


def test_files_of_settings_say_what_is_wrong(tmp_path: Path) -> None:
    from themis.service.operations.service_settings import load

    file = tmp_path / "config.yaml"
    file.write_text("host: 0.0.0.0\ntls: off\ntls_names: [gpu.example.org, 10.0.0.7]\n")
    found = load(file, {}, {})
    assert (found.tls, found.tls_names) == ("off", "gpu.example.org, 10.0.0.7")
    assert load(None, {"tls_names": "a.b, c.d"}, {}).tls_names == "a.b, c.d"
    for text, words in (
        ("tls: maybe", "line 1: tls is 'maybe'"),
        ("tls_key: /k.pem", "tls_key is /k.pem, but there is no tls_certificate; give both"),
        ("tls_certificate: c.pem", "expected an absolute path"),
        ("tls_names: 'a b/c'", "expected host names or IP addresses"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=re.escape(words)):
            load(file, {}, {})


def test_server_files_may_be_one_file(tmp_path: Path) -> None:
    files = Authority.open(tmp_path).server(["127.0.0.1"])
    assert files == ServerFiles(tmp_path / "server.pem", tmp_path / "server.pem")
