"""What the fixture ``themis`` is and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]
