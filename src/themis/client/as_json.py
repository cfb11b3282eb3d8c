"""A message of the API as JSON has it."""

from __future__ import annotations

from typing import Any


def as_dict(message: Any) -> dict[str, Any]:
    """Every field, under its own name."""
    from google.protobuf.json_format import MessageToDict

    out: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return out
