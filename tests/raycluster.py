"""A Ray cluster of several raylets on this machine, with logical GPUs and tokens, started and stopped by the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from processes import running

STORE = 80 << 20
SETTLE_S = 20.0
"""What Ray may take to notice that nodes and actors are gone."""
HERE, THERE = "10.203.77.1", "10.203.77.2"
"""Addresses of the ends of a cable."""
NO_RAY = "Ray is not installed: pip install -e '.[ray]'"


@dataclass
class RayCluster:
    """A head without GPUs, and raylets by the name of their machine: m0, m1, ... with so many GPUs, and others for a while."""

    gpus: tuple[int, ...]
    inner: Any = None
    nodes: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        """All of it."""
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "num_gpus": 0, "include_dashboard": False, "object_store_memory": STORE}
        self.inner = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        for name, count in self.machines.items():
            self.add(name, count)

    @property
    def machines(self) -> dict[str, int]:
        """GPUs of those that are always there."""
        return {f"m{n}": count for n, count in enumerate(self.gpus)}

    def settle(self) -> None:
        """Bring it to where it was in the beginning, whatever the test before did: started anew if nothing else helps."""
        for name in {*self.gone(), *(self.nodes.keys() - self.machines.keys())}:
            self.kill(name)
        for name in self.machines.keys() - self.nodes.keys():
            self.add(name, self.machines[name])
        end = time.monotonic() + SETTLE_S
        while (found := [*self.strangers(), *self.in_use()]) and time.monotonic() < end:
            time.sleep(0.1)
        if found:
            print(f"a test left the Ray cluster with {', '.join(found)}; it is started anew.", file=sys.stderr)
            self.close()
            self.start()

    def alive(self) -> set[str]:
        """Ids of all nodes but the head."""
        table = self.inner.global_state.node_table()
        return {entry["NodeID"] for entry in table if entry["Alive"]} - {self.inner.head_node.node_id}

    def gone(self) -> list[str]:
        """Those that have died, or that Ray is about to end: an idle one it ends at once."""
        alive, draining = self.alive(), self.inner.global_state.get_draining_nodes()
        return [name for name, node in self.nodes.items() if node.node_id not in alive or node.node_id in draining]

    def strangers(self) -> list[str]:
        """Nodes that somebody else started."""
        return [f"node {id}" for id in self.alive() - {node.node_id for node in self.nodes.values()}]

    def in_use(self) -> list[str]:
        """Whatever of these machines somebody has: actors of node agents, GPUs."""
        state = self.inner.global_state
        ours = {node.node_id: name for name, node in self.nodes.items() if name in self.machines}
        kept = {f"themis-node-{id}": name for id, name in ours.items()}
        actors = [
            kept[a["Name"]] for a in state.actor_table(None).values() if a["Name"] in kept and a["State"] != "DEAD"
        ]
        free = state.available_resources_per_node()
        busy = [name for id, name in ours.items() if free.get(id, {}).get("GPU", 0) < self.machines[name]]
        return [f"an actor on {name}" for name in actors] + [f"GPUs of {name} in use" for name in busy]

    @property
    def address(self) -> str:
        return str(self.inner.address)

    def options(self, node_root: Path) -> list[str]:
        """Of ``themis up``."""
        return ["--engine", "ray", "--address", self.address, "--set", f"node_root={node_root}"]

    def add(self, name: str, gpus: int = 2, labels: Mapping[str, str] | None = None) -> None:
        """One more raylet."""
        labels = {"themis-node": name, **(labels or {})}
        self.nodes[name] = patiently(
            lambda: self.inner.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=STORE, labels=labels)
        )

    def kill(self, name: str) -> None:
        """SIGKILL of the raylet alone: its workers find out by themselves."""
        node = self.nodes.pop(name)
        processes = node.all_processes["raylet"]
        processes[0].process.kill()
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

    @contextmanager
    def behind_a_cable(self, name: str, gpus: int = 2) -> Iterator[Cable]:
        """One more raylet in a network namespace of its own, whose cable can be pulled; or skip where that is not allowed."""
        cable = Cable(f"themis{os.getpid() % 100000}")
        if os.geteuid() != 0 or shutil.which("ip") is None or not cable.lay():
            pytest.skip("network namespaces need root and the command ip")
        ray = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--address",
            self.address,
            "--node-ip-address",
            THERE,
            "--num-cpus",
            "1",
            "--num-gpus",
            str(gpus),
            "--object-store-memory",
            str(STORE),
            "--labels",
            f"themis-node={name}",
        ]
        command = ["ip", "netns", "exec", cable.name, *ray]
        try:
            with running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
                try:
                    yield cable
                finally:
                    cable.plug()
        finally:
            cable.remove()

    def drain(self, name: str, within_s: int) -> None:
        """What a cloud does with a machine that it is about to take away."""
        why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test"]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "drain-node",
                "--address",
                self.address,
                "--node-id",
                self.nodes[name].node_id,
                *why,
                "--deadline-remaining-seconds",
                str(within_s),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def close(self) -> None:
        """End all of it."""
        self.nodes.clear()
        if self.inner is not None:
            self.inner.shutdown()


@dataclass
class Cable:
    """A pair of network interfaces between this machine and a namespace."""

    name: str

    def lay(self) -> bool:
        """Make it; False where that is not allowed."""
        here, there = f"{self.name}a", f"{self.name}b"
        return _ip("netns", "add", self.name) and all(
            _ip(*command.split())
            for command in (
                f"link add {here} type veth peer name {there} netns {self.name}",
                f"addr add {HERE}/30 dev {here}",
                f"link set {here} up",
                f"-n {self.name} addr add {THERE}/30 dev {there}",
                f"-n {self.name} link set {there} up",
                f"-n {self.name} link set lo up",
                f"-n {self.name} route add default via {HERE}",
            )
        )

    def pull(self) -> None:
        """Cut the namespace off."""
        assert _ip("link", "set", f"{self.name}a", "down")

    def plug(self) -> None:
        """Let it have its network again."""
        _ip("link", "set", f"{self.name}a", "up")

    def remove(self) -> None:
        """Both ends and the namespace; processes in it live on without a network."""
        _ip("link", "del", f"{self.name}a")
        _ip("netns", "del", self.name)


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True).returncode == 0


def patiently(start: Callable[[], Any], tries: int = 4) -> Any:
    """What starts a raylet, again where it fails: it gives its agents half a minute, too little on a very busy machine."""
    for _ in range(tries - 1):
        with contextlib.suppress(Exception):
            return start()
    return start()


@contextmanager
def ray_cluster(*gpus: int) -> Iterator[RayCluster]:
    """A head without GPUs, and machines m0, m1, ... with so many."""
    # Ray makes its workers nicer than anything beside them, so that on a busy machine actors take minutes to start.
    os.environ.setdefault("RAY_worker_niceness", "0")
    cluster = RayCluster(gpus)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
