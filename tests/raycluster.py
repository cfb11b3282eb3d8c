"""A Ray cluster of several raylets on this machine, with logical GPUs and tokens, started and stopped by the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STORE = 80 << 20
NO_RAY = "Ray is not installed: pip install -e '.[ray]'"


@dataclass
class RayCluster:
    """Raylets by the name of their machine; the head has none."""

    inner: Any
    nodes: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return str(self.inner.address)

    def options(self, node_root: Path) -> list[str]:
        """Of ``themis up``."""
        return ["--engine", "ray", "--address", self.address, "--set", f"node_root={node_root}"]

    def add(self, name: str, gpus: int = 2, labels: Mapping[str, str] | None = None) -> None:
        """One more raylet."""
        self.nodes[name] = self.inner.add_node(
            num_cpus=1, num_gpus=gpus, object_store_memory=STORE, labels={"themis-node": name, **(labels or {})}
        )

    def kill(self, name: str) -> None:
        """SIGKILL of the raylet alone: its workers find out by themselves."""
        node = self.nodes.pop(name)
        processes = node.all_processes["raylet"]
        os.kill(processes[0].process.pid, signal.SIGKILL)
        processes[0].process.wait()
        self.inner.remove_node(node, allow_graceful=False)

    @contextmanager
    def another(self, name: str, gpus: int = 2) -> Iterator[None]:
        """One more raylet for a while, however it ends."""
        self.add(name, gpus)
        try:
            yield
        finally:
            if name in self.nodes:
                self.kill(name)

    def drain(self, name: str, within_s: int) -> None:
        """What a cloud does with a machine that it is about to take away."""
        why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test"]
        subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address, "--node-id",
             self.nodes[name].node_id, *why, "--deadline-remaining-seconds", str(within_s)], check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def close(self) -> None:
        self.inner.shutdown()


@contextmanager
def ray_cluster(*gpus: int) -> Iterator[RayCluster]:
    """A head without GPUs, and machines m0, m1, ... with so many."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "num_gpus": 0, "include_dashboard": False, "object_store_memory": STORE}
    cluster = RayCluster(Cluster(initialize_head=True, head_node_args=head))
    try:
        for n, count in enumerate(gpus):
            cluster.add(f"m{n}", count)
        yield cluster
    finally:
        cluster.close()
