"""Themis: a fair scheduler for shared GPU clusters."""

from typing import TYPE_CHECKING

from themis.version import __version__

if TYPE_CHECKING:
    from themis.client.agent import Agent
    from themis.client.client import Client

__all__ = ["Agent", "Client", "__version__"]


def __getattr__(name: str) -> object:
    """``Client`` and ``Agent`` when they are first asked for: simulations do not load gRPC."""
    if name == "Client":
        from themis.client.client import Client

        return Client
    if name == "Agent":
        from themis.client.agent import Agent

        return Agent
    raise AttributeError(f"module 'themis' has no attribute {name!r}")
