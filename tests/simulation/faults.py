"""How each fault of a plan is brought about."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from simulation.bodies import Agent
from simulation.kernel import Kernel, Process
from simulation.plan import Fault

if TYPE_CHECKING:
    from simulation.world import World


def happens(world: World, fault: Fault) -> None:
    """Bring it about; it is told only where there was something to hit."""
    subject, _, verb = fault.what.partition(" ")
    if subject in ("service", "disk", "clock") or fault.moment:
        world.tell(str(fault))
        _service(world, fault)
        return
    joined = [n + 1 for n, kernel in enumerate(world.kernels) if kernel.living()]
    n = int(fault.where * max(len(world.plan.machines), *joined, 0))
    if subject in ("agent", "supervisor", "rank"):
        found = world.kernels[n].living(subject)
        if found:
            process = found[int(fault.where * 1000) % len(found)]
            world.tell(f"{fault} ({process.task + ' on ' if process.task else ''}m{n})")
            _process(world.kernels[n], process, verb, fault.lasts)
        return
    world.tell(f"{fault} (m{n})")
    wire, until = world.wires[n], world.now + fault.lasts
    match fault.what:
        case "machine loses power":
            world.power_off(n, fault.lasts)
        case "machine has no room for processes":
            world.kernels[n].full_until = until
        case "network drops connections":
            wire.cut()
        case "network is partitioned":
            wire.cut()
            wire.broken_until = until
        case "network holds messages back":
            wire.held_until = until
        case "network is slow":
            wire.slow_until = until
        case "network repeats messages":
            wire.repeating_until = until
        case _:
            raise AssertionError(fault)


def _process(kernel: Kernel, process: Process, verb: str, lasts: float) -> None:
    if verb == "killed":
        kernel.current = None
        kernel.kill(process.pid, signal.SIGKILL)
    elif verb == "pauses":
        process.stopped_until = kernel.now() + lasts
    elif verb == "told to leave":
        assert isinstance(process.body, Agent)
        process.body.leave(kernel.now() + lasts)
    else:
        process.body.signal(signal.SIGTERM)


def _service(world: World, fault: Fault) -> None:
    service, disk = world.service, world.disk
    if fault.what == "clock of the service's machine is set":
        service.wall_offset += fault.lasts * (50.0 if fault.where < 0.5 else -50.0)
        return
    if service.arbiter is None:
        return
    match fault.what:
        case "service crashes" | "machine of the service loses power":
            disk.crash_at, disk.power = (fault.moment, fault.count), "power" in fault.what
        case "service killed":
            service.kill()
        case "service crashes and its disk loses the end of the journal":
            disk.loses = "end"
            service.kill()
        case "service crashes and its journal is missing":
            disk.loses = "all"
            service.kill()
        case "service stops in good order":
            if not service.within and not service.arbiter._closing:
                service.stop()
        case "service pauses":
            service.paused_until = world.now + fault.lasts
        case "disk is full":
            disk.full(int(fault.where * 3), reserve=fault.where > 0.5)
            world.ends.append((world.now + fault.lasts, disk.room))
        case "disk is read-only":
            disk.failing = "attempt to write a readonly database"

            def writable() -> None:
                disk.failing = ""

            world.ends.append((world.now + fault.lasts, writable))
        case _:
            raise AssertionError(fault)
