"""Jobs on machines that joined over the network: their agents dial the gateway, which is another process.

    core --submit--> FleetExecutor --messages--> gateway ===TLS=== machines: node agents --> supervisors --> ranks

A machine that is to be removed is drained as any machine is (``MachineResized`` to 0 GPUs); once none of its jobs is left, the
gateway hears so and ends its token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from themis.machines.agent.channel import ChannelClosed
from themis.machines.agent.messages import NodeFound, NodeLeaves, NodeReleased
from themis.machines.engines.bridged import BridgedExecutor, machine_of
from themis.machines.engines.hosts import Host
from themis.machines.engines.local import ignored
from themis.machines.engines.members import LISTEN, Members
from themis.machines.engines.program import Note, Programs
from themis.model.events import Event, MachineJoined, MachineResized


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of the machines' connections to the service.

    Attributes
    ----------
    owner : this arbiter's id.
    members : file of the machines that joined. ``authority`` : folder of the certificate authority.
    token_s : seconds after which a machine is given its next token.
    """

    owner: str
    members: Path
    authority: Path
    token_s: float = 86400.0


class FleetExecutor(BridgedExecutor):
    """Gangs as processes on machines that joined; ``fleet`` : how they reach the service, the rest as for ``BridgedExecutor``."""

    bridge_log = "gateway.log"
    nobody = "the gateway for machines ended without a word."

    def __init__(
        self,
        root: Path,
        programs: Programs,
        emit: Callable[[Event], None],
        note: Callable[[Note], None] = ignored,
        *,
        fleet: FleetSettings,
        **how: Any,
    ) -> None:
        super().__init__(root, programs, emit, note, **how)
        self.fleet = fleet
        self._requested: set[str] = set()
        """Machines whose removal was requested from the scheduler."""
        with contextlib.closing(Members(fleet.members)) as members:
            members.note(LISTEN, "")
        self.door = self.root / "machines.sock"
        """Where connections of machines are handed to the gateway; there once it serves them."""
        self.door.unlink(missing_ok=True)

    def serve_at(self, address: str) -> None:
        """Note HOST:PORT where machines are served."""
        with contextlib.closing(Members(self.fleet.members)) as members:
            members.note(LISTEN, address)

    def leave(self, name: str) -> None:
        """Same as for ``LocalExecutor``: the machine is drained, then its token is no longer valid."""
        with contextlib.closing(Members(self.fleet.members)) as members:
            members.leave(name)

    def bridge_words(self) -> Sequence[str]:
        """Same as for ``BridgedExecutor``."""
        return [
            "themis.machines.engines.gateway",
            "--door",
            str(self.door),
            "--members",
            str(self.fleet.members),
            "--authority",
            str(self.fleet.authority),
            "--owner",
            self.fleet.owner,
            "--token-s",
            str(self.fleet.token_s),
        ]

    def _reported(self, message: NodeFound | NodeLeaves) -> None:
        n = self._machine.get(message.node)
        leaving = n is not None and self.gangs.nodes[n].leaving
        if isinstance(message, NodeLeaves):
            self._leave(message.node, n)
        elif leaving:
            # It was removed, and has joined again: the scheduler decides which machine it is.
            self.found[message.node] = message
            self._requested.discard(message.node)
            self.emit(MachineJoined(machine=machine_of(message)))
        else:
            super()._reported(message)

    def _find(self, found: NodeFound) -> None:
        """A machine of mere slots may come back with fewer of them, or with all again: the scheduler resizes it."""
        n = self._machine[found.node]
        known = self.gangs.hosts[n].machine
        if known.gpu_type == found.gpu_type and known.gpus != found.gpus:
            self.emit(MachineResized(machine=n, gpus=found.gpus))
            self.gangs.found(n, Host(machine=known, address=found.address, devices=found.devices))
        else:
            super()._find(found)

    def _leave(self, name: str, n: int | None) -> None:
        """The operator removes a machine: its jobs end first, as long as they may take."""
        if n is not None and not self.gangs.nodes[n].leaving:
            if name not in self._requested:
                self._requested.add(name)
                self.emit(MachineResized(machine=n, gpus=0))
        elif n is None or self.gangs.is_empty(n):
            self.found.pop(name, None)
            if self._control is not None:
                with contextlib.suppress(ChannelClosed):
                    self._control.send(NodeReleased(node=name))

    def _host_of(self, n: int, gpus: int) -> Host | None:
        host = super()._host_of(n, gpus)
        if host is None or host.machine.name not in self.found:
            return host
        found = self.found[host.machine.name]
        return replace(host, address=found.address, devices=found.devices)
