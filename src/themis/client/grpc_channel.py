"""The API's methods, read from its description: one table for client and server, no generated stubs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from themis.client import themis_pb2 as pb

SERVICE = "themis.v1.Arbiter"


@dataclass(frozen=True, slots=True)
class Method:
    """One method. ``stream`` : it returns a stream of messages. ``request`` : the name of its request message."""

    name: str
    request: str
    read: Callable[[bytes], Any]
    """A request from its bytes."""
    read_reply: Callable[[bytes], Any]
    stream: bool

    @property
    def path(self) -> str:
        """The method's path in HTTP/2."""
        return f"/{SERVICE}/{self.name}"


METHODS = {
    method.name: Method(
        method.name,
        method.input_type.name,
        GetMessageClass(method.input_type).FromString,
        GetMessageClass(method.output_type).FromString,
        method.server_streaming,
    )
    for method in pb.DESCRIPTOR.services_by_name["Arbiter"].methods
}


def to_bytes(message: Any) -> bytes:
    """A message's bytes."""
    data: bytes = message.SerializeToString()
    return data
