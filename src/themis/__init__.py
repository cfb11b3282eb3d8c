"""Themis: a fair scheduler for shared GPU clusters."""

from typing import TYPE_CHECKING

from themis.version import __version__

if TYPE_CHECKING:
    from themis.client.agent import Agent
    from themis.client.client import Client
    from themis.sim.study import simulate

__all__ = ["Agent", "Client", "__version__", "simulate"]


def __getattr__(name: str) -> object:
    """``Client``, ``Agent`` and ``simulate`` when they are first asked for: neither half loads the other."""
    if name == "Client":
        from themis.client.client import Client

        return Client
    if name == "Agent":
        from themis.client.agent import Agent

        return Agent
    if name == "simulate":
        from themis.sim.study import simulate

        return simulate
    raise AttributeError(f"module 'themis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
