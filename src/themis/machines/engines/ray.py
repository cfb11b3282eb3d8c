"""Jobs on a Ray cluster: machines are Ray's nodes, and their agents are reached through actors.

    core --submit--> RayExecutor --messages--> bridge === actors === node agents --> supervisors --> ranks

Ray itself is only in the bridge, another process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from themis.machines.engines.bridged import BridgedExecutor
from themis.machines.engines.local import ignored
from themis.machines.engines.program import Note, Programs
from themis.model.events import Event

NODE_ROOT = "/var/tmp/themis"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Settings of the connection to a Ray cluster.

    Attributes
    ----------
    address : as ``ray.init`` takes it. ``owner`` : this arbiter's id; nodes that another holds are left alone.
    node_root : folder for tasks and logs on each node, on a disk of its own.
    """

    address: str = "auto"
    owner: str = ""
    node_root: str = NODE_ROOT


class RayExecutor(BridgedExecutor):
    """Gangs as processes on the nodes of a Ray cluster; ``ray`` : how to reach it, the rest as for ``BridgedExecutor``."""

    nobody = "the bridge to Ray ended without a word."

    def __init__(
        self,
        root: Path,
        programs: Programs,
        emit: Callable[[Event], None],
        note: Callable[[Note], None] = ignored,
        *,
        ray: RaySettings,
        **how: Any,
    ) -> None:
        super().__init__(root, programs, emit, note, **how)
        self.ray = ray
        self.mirrored = Path(ray.node_root) != self.root / "nodes"

    def bridge_words(self) -> Sequence[str]:
        """Same as for ``BridgedExecutor``."""
        module, given = "themis.machines.engines.bridge", self.ray
        return [module, "--address", given.address, "--owner", given.owner, "--root", given.node_root]
