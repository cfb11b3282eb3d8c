"""Where the service listens: what it cannot listen on is told in words, an IPv6 address is one as any."""

from __future__ import annotations

import json
import logging
import os
import socket
import urllib.request
from pathlib import Path

import pytest

from processes import PATIENCE_S
from themis.client.client import Client
from themis.client.home import joined, make_token, read_token
from themis.errors import InputError
from themis.service.api.listening import is_loopback, try_address
from themis.service.engine.config import Config
from themis.service.operations.up import running
from themis.trust.authority.contexts import client_context


def has_ipv6() -> bool:
    """Whether this machine has a loopback of that kind."""
    try:
        try_address("::1", 0, "port")
    except InputError:
        return False
    return True


def test_an_address_that_cannot_be_listened_on_is_told_with_its_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"127\.0\.0\.1:{port}: another program listens there. Choose another port, or any free one: --port 0\.$"
        with pytest.raises(InputError, match=said):
            try_address("127.0.0.1", port, "port")
    try_address("127.0.0.1", port, "port")
    for host, words in (
        ("no.such.invalid", "host is 'no.such.invalid', which cannot be listened on: "),
        ("a" * 70 + ".example", "cannot be listened on: "),
        ("203.0.113.7", "203.0.113.7:0: no interface of this machine has that address. Choose another host"),
    ):
        with pytest.raises(InputError, match=words):
            try_address(host, 0, "port")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen anywhere")
def test_a_port_of_root_is_told_to_be_one() -> None:
    with pytest.raises(
        InputError, match=r"127\.0\.0\.1:1: it needs the rights of root. Choose another port, above 1023"
    ):
        try_address("127.0.0.1", 1, "port")


def test_loopback_is_told_from_what_others_can_reach() -> None:
    assert (is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")) == (True, True, False)
    assert (joined("127.0.0.1", 1), joined("::1", 1)) == ("127.0.0.1:1", "[::1]:1")


@pytest.mark.slow
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_calls_come_over_ipv6_too(tmp_path: Path, host: str, caplog: pytest.LogCaptureFixture) -> None:
    config = Config(gpus=1, port=0, host=host, single_trust=True, allow_root=os.geteuid() == 0)
    with caplog.at_level(logging.WARNING), running(tmp_path, config) as up, Client(tmp_path) as client:
        assert client.info().gpus == 1
        asked = urllib.request.Request(
            f"{up.endpoint.http}/v1/info", headers={"Authorization": f"Bearer {read_token(tmp_path)}"}
        )
        trust = client_context(client.trust.pem) if host == "::" else None
        with urllib.request.urlopen(asked, timeout=PATIENCE_S, context=trust) as answer:
            assert json.load(answer)["gpus"] == 1
        assert up.endpoint.http.startswith("https://" if host == "::" else "http://")


def test_an_empty_token_stands_for_nobody_and_starts_no_service(tmp_path: Path) -> None:
    make_token(tmp_path)
    (tmp_path / "token").write_text(" \n")
    with pytest.raises(
        InputError, match="token is empty; remove it, and `themis up` or `themis login` creates a new one"
    ):
        make_token(tmp_path)
    with pytest.raises(InputError, match="is empty"), running(tmp_path, Config(gpus=1, port=0)):
        pass


def test_a_policy_that_names_gpu_types_which_no_machine_has_starts_no_service(tmp_path: Path) -> None:
    """It could decide nothing, and ``fifo`` would in its place."""
    config = Config(gpus=1, port=0, allow_root=os.geteuid() == 0, policy="min_cost:cost=V100=2", node_renew_s=1)
    with pytest.raises(InputError, match="unknown GPU type in cost 'V100'"), running(tmp_path, config):
        pass
