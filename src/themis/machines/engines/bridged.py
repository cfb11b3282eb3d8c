"""Executor for remote machines: their agents are reached through a separate process, the bridge.

    core --submit--> BridgedExecutor --messages--> bridge === machines: node agents --> supervisors --> ranks

All that differs from one machine: agents are not started here; machines come, leave and die as the bridge reports. How it
reaches them (Ray, TLS) is in the bridge alone.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from themis.errors import InputError
from themis.machines.agent.channel import ChannelClosed
from themis.machines.agent.logfile import turned
from themis.machines.agent.messages import EndNodes, Message, NodeFound, NodeLeaves, NodeLies, Prepare
from themis.machines.agent.system import clock
from themis.machines.engines.from_machines import make_place
from themis.machines.engines.gangs import Out, Send
from themis.machines.engines.hosts import Host
from themis.machines.engines.local import LocalExecutor, ignored, log
from themis.machines.engines.program import Note, Programs
from themis.machines.engines.renewer import socket_file
from themis.model.cluster import Machine
from themis.model.events import Event, Grant, MachineJoined

ROOT_REFUSED = (
    "the job would run as root, which the agents of the machines refuse. Submit as a user with an account there (--user NAME, for "
    "administrators), or start the service with --allow-root where everybody may be root."
)
RESPAWN_S = 2.0
"""Between two starts of the bridge."""


class BridgedExecutor(LocalExecutor):
    """Gangs as processes of machines that a bridge reaches.

    Parameters
    ----------
    root, programs, emit, note, settings, pace, allow_root : as for ``LocalExecutor``. The folder of checkpoints below
        ``root`` must be one that all machines share, unless jobs name their own.

    Machines are announced by ``MachineJoined``; the scheduler gives each the next id and answers with ``join``.
    """

    one_host = False
    bridge_log = "bridge.log"
    mirrored = True
    """The logs of ranks are copied to a folder below ``root``."""
    nobody = "the bridge ended without a word."
    """Why no machine can be reached, where the bridge did not say."""

    def __init__(
        self,
        root: Path,
        programs: Programs,
        emit: Callable[[Event], None],
        note: Callable[[Note], None] = ignored,
        **how: Any,
    ) -> None:
        super().__init__(root, (), programs, emit, note, **how)
        self.bridge: subprocess.Popen[bytes] | None = None
        self.found: dict[str, NodeFound] = {}
        """The report of the bridge on each machine, including machines that the scheduler does not know yet."""
        self.refused = ""
        """Reason why no machine can be reached."""
        self._started_at = -RESPAWN_S

    def bridge_words(self) -> Sequence[str]:
        """Module of the bridge, and its arguments beside those of every ``Carrier``."""
        raise NotImplementedError

    def _bridge_command(self) -> list[str]:
        mirror = ["--mirror", str(self.root / "nodes")] if self.mirrored else []
        common = ["--connect", str(socket_file(self.root)), "--log-bytes", str(self.settings.log_bytes), *mirror]
        return [sys.executable, "-m", *self.bridge_words(), *common, "--", *self.agent_options()]

    def check_user(self, user: str) -> None:
        """Raise InputError for root's jobs if all machines that are connected refuse them.

        Whether a user exists on a machine is known there alone; it refuses by itself.
        """
        trusts = {node.trust for node in self.gangs.nodes if node.connected}
        if trusts == {"per_user"} and user in ("", "root"):
            raise InputError(ROOT_REFUSED)

    def _replace(self, n: int) -> bool:
        """Its agent is its machine's to replace."""
        return False

    def _join(self, machine: Machine) -> None:
        self._machine[machine.name] = len(self.gangs.hosts)
        self.gangs.join(Host(machine=machine), clock())
        if machine.name in self.found:
            self._find(self.found[machine.name])

    def restore(self, grant: Grant, steps: float, *, started: bool = True) -> None:
        """Same as for ``LocalExecutor``."""
        super().restore(grant, steps, started=started)
        self._do(lambda: self._make_places(grant.job))

    def _carry_out(self, out: list[Out]) -> None:
        for item in out:
            if isinstance(item, Send) and isinstance(item.message, Prepare):
                self._make_places(item.message.spec.job)
        super()._carry_out(out)

    def _make_places(self, job: int) -> None:
        """Accept the output of a gang's ranks from its machines; a full disk loses it."""
        gang = self.gangs.gangs.get(job)
        for n, part in gang.parts.items() if gang is not None and self.mirrored else ():
            with contextlib.suppress(OSError):
                make_place(self.root / "nodes" / self.gangs.hosts[n].machine.name, part.spec)

    # ---- what the bridge reports -------------------------------------------------------------------------------------

    def _obey(self, messages: list[Message] | None) -> None:
        if messages is None:
            super()._obey(messages)  # the bridge died
        for message in messages or ():
            match message:
                case NodeLies(node=name, reason=reason):
                    if name in self._machine:
                        self._shut_out(self._machine[name], reason)
                case NodeFound() | NodeLeaves():
                    try:
                        if isinstance(message, NodeFound):
                            Host(machine=machine_of(message), devices=message.devices)
                        self._reported(message)
                    except InputError as error:
                        log.warning("machine %s is left out: %s", message.node, error)
                case _:
                    pass

    def _reported(self, message: NodeFound | NodeLeaves) -> None:
        """A machine is there, or its engine takes it away."""
        if isinstance(message, NodeFound):
            self.found[message.node] = message
            if message.node in self._machine:
                self._find(message)
            else:
                self.emit(MachineJoined(machine=machine_of(message)))
        elif message.node in self._machine:
            n = self._machine[message.node]
            if message.dead:
                self._hang_up(n)
            self._carry_out(self.gangs.leaves(n, clock(), dead=message.dead, within_s=message.within_s))

    def _find(self, found: NodeFound) -> None:
        n = self._machine[found.node]
        known, now = self.gangs.hosts[n].machine, machine_of(found)
        if (known.gpus, known.gpu_type) != (now.gpus, now.gpu_type):
            print(
                f"themis: node {found.node} has {now.gpus} GPUs {now.gpu_type}, it had {known.gpus} {known.gpu_type}; "
                "it is left out. Give it another name.",
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
            self.refused = self.reason() or self.nobody
            return
        self._started_at = clock()
        with open(turned(self.root / self.bridge_log), "ab") as log:
            self.bridge = subprocess.Popen(
                self._bridge_command(),
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def reason(self) -> str:
        """The bridge's last words, or none."""
        words = (self.root / self.bridge_log).read_text().strip().splitlines()
        return words[-1].removeprefix("themis: ") if words else ""

    def _end_agents(self, timeout_s: float, *, leave_busy: bool = False) -> None:
        if self.bridge is None:
            return
        if not self.gangs.running and self._control is not None:
            # Nothing is left on them: an engine may have its GPUs back.
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


def machine_of(found: NodeFound) -> Machine:
    """A machine as its bridge reports it."""
    return Machine(
        name=found.node, gpus=found.gpus, gpu_type=found.gpu_type, rack=found.rack, gpus_per_slot=found.gpus_per_slot
    )
