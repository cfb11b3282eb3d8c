"""What a client says of replies that are not the API's: a proxy whose service is away, and another program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from themis.client.client import Client
from themis.client.connection import Unavailable
from themis.errors import ThemisError


class Plain(BaseHTTPRequestHandler):
    """A program that answers each request with the status of its server, and no JSON."""

    def do_GET(self) -> None:
        """Answer."""
        assert isinstance(self.server, Server)
        self.send_error(self.server.status)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


class Server(ThreadingHTTPServer):
    """A server on loopback that knows one status."""

    status = 0


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Plain) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_proxy_without_its_service_is_told_as_a_service_that_is_away(server: Server, status: int) -> None:
    server.status = status
    address = f"http://127.0.0.1:{server.server_port}"
    with (
        Client(address=address, token="any", patience_s=0.0) as client,
        pytest.raises(Unavailable, match="does not answer"),
    ):
        client.queue()


def test_another_program_is_told_as_such(server: Server) -> None:
    server.status = 404
    address, sentence = f"http://127.0.0.1:{server.server_port}", "not a Themis service of this version"
    with Client(address=address, token="any", patience_s=0.0) as client, pytest.raises(ThemisError, match=sentence):
        client.queue()
