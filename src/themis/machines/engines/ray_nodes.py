"""Ray's nodes as machines: names, GPU types and racks come from node ids and labels, never from IP addresses.

Labels that are read (``ray start --labels``): ``themis-node``, a name that the machine keeps when its raylet is started
again; ``themis-rack``, or ``ray.io/availability-zone``; ``ray.io/accelerator-type``, which Ray sets by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from themis.machines.agent.messages import NodeFound

NAME, RACK, ZONE, TYPE = "themis-node", "themis-rack", "ray.io/availability-zone", "ray.io/accelerator-type"
_WORD = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A living node with GPUs."""

    id: str
    name: str
    gpus: int
    gpu_type: str
    rack: str
    address: str

    def found(self, devices: tuple[str, ...]) -> NodeFound:
        """The message that reports the node to the arbiter."""
        return NodeFound(
            node=self.name,
            gpus=self.gpus,
            gpu_type=self.gpu_type,
            rack=self.rack,
            address=self.address,
            devices=devices,
        )


def as_node(entry: Mapping[str, Any]) -> RayNode | None:
    """An entry of ``ray.nodes()``; None for one that is dead or has no whole GPU."""
    resources, labels = entry.get("Resources", {}), entry.get("Labels", {})
    gpus = int(resources.get("GPU", 0))
    if not entry.get("Alive") or gpus < 1:
        return None
    kinds = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
    return RayNode(
        id=entry["NodeID"],
        name=_word(labels.get(NAME, "")) or f"ray-{entry['NodeID'][:12]}",
        gpus=gpus,
        gpu_type=_word(labels.get(TYPE, "") or next(iter(kinds), "")) or "gpu",
        rack=_word(labels.get(RACK, "") or labels.get(ZONE, "")) or "rack0",
        address=entry["NodeManagerAddress"],
    )


def gpu_nodes() -> tuple[list[RayNode], dict[str, float]]:
    """Living nodes with GPUs; and those that Ray is about to take away, with when (seconds since 1970, 0: not known)."""
    import ray
    from ray._private.state import state  # the only way to learn of drains before a node is gone

    nodes = [node for entry in ray.nodes() if (node := as_node(entry)) is not None]
    draining: dict[str, int] = getattr(state, "get_draining_nodes", dict)()
    return nodes, {id: at / 1000.0 for id, at in draining.items()}


def _word(text: str) -> str:
    return _WORD.sub("-", text).strip("-.")[:60]
