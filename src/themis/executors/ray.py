"""Jobs on a Ray cluster: the executor of one machine, its agents reached through a bridge.

    core --submit--> RayExecutor --messages--> bridge === actors === node agents --> supervisors --> ranks

All that differs from one machine: agents are not started here but by an actor on each node; machines come, leave and
die as Ray reports. Ray itself is only in the bridge, another process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from themis.executors.endings import Pace
from themis.executors.hosts import Host, NodeSettings
from themis.executors.local import LocalExecutor
from themis.executors.program import Note, Programs
from themis.model.cluster import Machine
from themis.model.events import Event, MachineJoined
from themis.node.channel import ChannelClosed
from themis.node.logfile import turned
from themis.node.means import AUTO
from themis.node.messages import EndNodes, Message, NodeFound, NodeLeaves
from themis.node.system import clock

NODE_ROOT = "/var/tmp/themis"
RESPAWN_S = 2.0
"""Between two starts of the bridge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """How to reach a Ray cluster.

    Attributes
    ----------
    address : as ``ray.init`` takes it. ``owner`` : this arbiter's id; nodes that another holds are left alone.
    node_root : folder for tasks and logs on each node, on a disk of its own.
    """

    address: str = "auto"
    owner: str = ""
    node_root: str = NODE_ROOT


class RayExecutor(LocalExecutor):
    """Gangs as processes on the nodes of a Ray cluster.

    Parameters
    ----------
    root, programs, emit, note, settings, pace, allow_root : as for ``LocalExecutor``. The folder of checkpoints below
        ``root`` must be one that all nodes share, unless jobs name their own.
    ray : how to reach the cluster.

    Machines are announced by ``MachineJoined``; the scheduler gives each the next id and answers with ``join``.
    """

    def __init__(
        self,
        root: Path,
        programs: Programs,
        emit: Callable[[Event], None],
        note: Callable[[Note], None] = lambda note: None,
        *,
        ray: RaySettings,
        settings: NodeSettings | None = None,
        pace: Pace | None = None,
        allow_root: bool = False,
        containment: str = AUTO,
    ) -> None:
        super().__init__(
            root, (), programs, emit, note, settings=settings, pace=pace, allow_root=allow_root, containment=containment
        )
        self.ray = ray
        self.bridge: subprocess.Popen[bytes] | None = None
        self.found: dict[str, NodeFound] = {}
        """What the bridge reported of each machine, whether or not the scheduler knows it yet."""
        self.refused = ""
        """Why there is no way to Ray at all."""
        self._started_at = -RESPAWN_S

    def check_user(self, user: str) -> None:
        """Nothing is known here of the rights that agents have on Ray's nodes; they refuse by themselves."""

    def _join(self, machine: Machine) -> None:
        self._machine[machine.name] = len(self.gangs.hosts)
        self.gangs.join(Host(machine=machine), clock())
        if machine.name in self.found:
            self._find(self.found[machine.name])

    # ---- what the bridge reports -------------------------------------------------------------------------------------

    def _obey(self, messages: list[Message] | None) -> None:
        if messages is None:
            super()._obey(messages)  # the bridge died
        for message in messages or ():
            if isinstance(message, NodeFound):
                self.found[message.node] = message
                if message.node in self._machine:
                    self._find(message)
                else:
                    self.emit(MachineJoined(machine=_machine(message)))
            elif isinstance(message, NodeLeaves) and message.node in self._machine:
                n = self._machine[message.node]
                if message.dead:
                    self._hang_up(n)
                self._carry_out(self.gangs.leaves(n, clock(), dead=message.dead, within_s=message.within_s))

    def _find(self, found: NodeFound) -> None:
        n = self._machine[found.node]
        known, now = self.gangs.hosts[n].machine, _machine(found)
        if (known.gpus, known.gpu_type) != (now.gpus, now.gpu_type):
            print(
                f"themis: node {found.node} has {now.gpus} GPUs {now.gpu_type}, it had {known.gpus} {known.gpu_type}; "
                "it is left out. Start it with another label themis-node.",
                file=sys.stderr,
                flush=True,
            )
            return
        self.gangs.found(n, Host(machine=known, address=found.address, devices=found.devices))

    # ---- the bridge -----------------------------------------------------------------------------------------------

    def _start_agents(self) -> None:
        self._revive()

    def _revive(self) -> None:
        """The bridge, started again if it ended."""
        if self._closing.is_set() or clock() < self._started_at + RESPAWN_S:
            return
        if self.bridge is not None and self.bridge.poll() is None:
            return
        if self.bridge is not None and self.bridge.returncode == 2 and not self.found:
            self.refused = self.reason() or "the bridge to Ray ended without a word."
            return
        self._started_at = clock()
        own = self.root / "nodes"
        options = [
            "--renew-s",
            str(self.settings.renew_s),
            "--containment",
            self.containment,
            *(["--allow-root"] if self.allow_root else []),
        ]
        mirror = [] if Path(self.ray.node_root) == own else ["--mirror", str(own)]
        with open(turned(self.root / "bridge.log"), "ab") as log:
            self.bridge = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "themis.executors.bridge",
                    "--connect",
                    str(self.root / "arbiter" / "agents.sock"),
                    "--address",
                    self.ray.address,
                    "--owner",
                    self.ray.owner,
                    "--root",
                    self.ray.node_root,
                    *mirror,
                    "--",
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def reason(self) -> str:
        """The bridge's last words, or none."""
        words = (self.root / "bridge.log").read_text().strip().splitlines()
        return words[-1].removeprefix("themis: ") if words else ""

    def _end_agents(self, timeout_s: float) -> None:
        if self.bridge is None:
            return
        if not self.gangs.running and self._control is not None:
            # Nothing is left on them: Ray may have its GPUs back.
            with contextlib.suppress(ChannelClosed):
                self._control.send(EndNodes())
        else:
            self.bridge.terminate()
        try:
            self.bridge.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.bridge.kill()
            self.bridge.wait()
        super()._obey(None)


def _machine(found: NodeFound) -> Machine:
    return Machine(name=found.node, gpus=found.gpus, gpu_type=found.gpu_type, rack=found.rack)
