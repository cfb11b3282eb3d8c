"""``python -m themis.machines.engines.bridge``: the arbiter's connection to a Ray cluster, in a separate process.

For every node of Ray with GPUs it keeps a detached, named actor that holds those GPUs and runs a ``Relay``; for each
it opens a connection to the arbiter's socket and carries bytes between the two, so that the arbiter talks to node agents
as if they were here. On one more connection it reports which machines there are. Ray is transport and membership, nothing
else; and because Ray ends a driver that loses its cluster, the driver is this process and not the arbiter.

It ends with the arbiter; actors stay, for the next bridge to find by their names.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from themis.errors import InputError
from themis.machines.agent.messages import PROTOCOL, EndNodes, NodeLeaves, NodeLies, ProtocolError, decode, encode
from themis.machines.agent.relay import CHUNK
from themis.machines.agent.remote import first_of
from themis.machines.engines.carrier import Carrier, serve
from themis.machines.engines.from_machines import Beginning, LogCopies
from themis.machines.engines.members import NotAllowed
from themis.machines.engines.ray_actor import NodeActor
from themis.machines.engines.ray_nodes import RayNode, gpu_nodes

POLL_S = 1.0
"""Between two looks at the cluster and at what ranks wrote."""
RETRY_S = 0.5
NAMESPACE = "themis"


@dataclass(slots=True, kw_only=True)
class Bridge(Carrier):
    """Connection between one arbiter and one Ray cluster; ``root`` : folder for agents, on each node."""

    root: str
    serving: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Servers by Ray's node id."""
    actors: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    ending: bool = False
    """No actor may be left at the end."""

    async def run(self) -> None:
        """Run until the arbiter disconnects or ends the nodes."""
        reader = await self.attend()
        watch = asyncio.create_task(self._watch())
        try:
            while line := await reader.readline():
                if isinstance(decode(json.loads(line)), EndNodes):
                    await self._end_nodes(watch)
                    break
                if watch.done():
                    break
        finally:
            watch.cancel()
            for task in self.serving.values():
                task.cancel()
        if watch.done() and not watch.cancelled():
            watch.result()

    # ---- membership -----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            nodes, draining = await asyncio.to_thread(gpu_nodes)
            for node in nodes:
                if node.id not in self.serving:
                    await self._meet(node)
            alive = {node.id for node in nodes}
            for id in set(self.serving) - alive:
                self.serving.pop(id).cancel()
                self.actors.pop(id, None)
                if id in self.names and self.names[id] not in {self.names.get(other) for other in self.serving}:
                    self.report(NodeLeaves(node=self.names[id], dead=True))
            for id, deadline in draining.items():
                if id in self.names and id not in self.leaving:
                    self.leaving.add(id)
                    within = max(deadline - time.time(), 1.0) if deadline else 0.0
                    self.report(NodeLeaves(node=self.names[id], dead=False, within_s=within))
            await asyncio.sleep(POLL_S)

    async def _meet(self, node: RayNode) -> None:
        if node.name in {self.names.get(id) for id in self.serving}:
            # Two nodes of one name would be one machine.
            print(f"themis: node {node.id} is called {node.name!r} as another is; it is left out.", file=sys.stderr)
            return
        self.names[node.id] = node.name
        self.serving[node.id] = asyncio.create_task(self._serve(node))

    # ---- one node -------------------------------------------------------------------------------------------------

    async def _serve(self, node: RayNode) -> None:
        """Serve the node's actor and its conversation while the node exists."""
        while True:
            try:
                actor = self.actors[node.id] = await asyncio.to_thread(self._actor, node)
                facts = await actor.describe.remote()
                if facts["protocol"] != PROTOCOL:
                    raise InputError(
                        f"node {node.name} speaks protocol {facts['protocol']}, the arbiter {PROTOCOL}; install the same Themis."
                    )
                session = await actor.open.remote(self.owner)
                if node.id not in self.leaving:
                    # The node names its devices: checked as the arbiter will.
                    self.report(decode(encode(node.found(tuple(facts.get("devices", ()))))))
                await self._converse(node.name, actor, session)
            except asyncio.CancelledError:
                raise
            except (ProtocolError, NotAllowed) as error:
                self.report(NodeLies(node=node.name, reason=str(error)))
            except Exception as error:
                # Whatever Ray says of actors that died, moved or cannot be reached: begin again.
                first = str(error).strip().splitlines() or [type(error).__name__]
                print(f"themis: node {node.name}: {first[-1]}", file=sys.stderr, flush=True)
            await asyncio.sleep(RETRY_S)

    def _actor(self, node: RayNode) -> Any:
        """The node's actor: the one that is there, or a new one."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cls = ray.remote(NodeActor)
        actor = cls.options(
            name=f"themis-node-{node.id}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            # All GPUs of the node, so that Ray gives them to no other actor; the agent assigns them.
            num_cpus=0,
            num_gpus=node.gpus,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=8,
        ).remote(node.name, f"{self.root}/{node.name}", self.owner, node.gpus, self.options)
        if self.ending:
            # This thread was on its way already.
            ray.kill(actor)
        return actor

    async def _converse(self, name: str, actor: Any, session: int) -> None:
        reader, writer = await self.dial()
        work = [self._up(name, actor, session, writer), self._down(actor, session, reader)]
        if self.mirror is not None:
            work.append(self._copy_logs(name, actor))
        try:
            await first_of(*work)
        finally:
            writer.close()

    async def _up(self, name: str, actor: Any, session: int, writer: asyncio.StreamWriter) -> None:
        begin = Beginning(name)
        while True:
            if data := begin.passed(await actor.receive.remote(session)):
                writer.write(data)
                await writer.drain()

    async def _down(self, actor: Any, session: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await actor.send.remote(session, data)

    async def _copy_logs(self, name: str, actor: Any) -> None:
        """Copy log output of the ranks into the mirror folder, periodically."""
        assert self.mirror is not None
        logs = LogCopies(self.mirror / name, self.log_bytes)
        while True:
            for path, anew, data in await actor.logs.remote():
                logs.add(path, anew, data)
            await asyncio.sleep(POLL_S)

    async def _end_nodes(self, watch: asyncio.Task[None]) -> None:
        """End agents first, then the actors, which returns their GPUs to Ray."""
        # A caller that finds an actor gone starts another, so no caller may look while they end; a node that is cut off takes long.
        self.ending = True
        for task in (watch, *self.serving.values()):
            task.cancel()
        await asyncio.gather(*map(self._end_node, self.actors.values()))

    async def _end_node(self, actor: Any) -> None:
        import ray

        with contextlib.suppress(Exception):
            await asyncio.wait_for(actor.end.remote(), 5.0)
        with contextlib.suppress(Exception):
            await asyncio.to_thread(ray.kill, actor)


def main(arguments: list[str] | None = None) -> int:
    """Run until the arbiter disconnects; exit code 2 and a sentence where Ray cannot be reached."""
    parser = argparse.ArgumentParser(
        prog="python -m themis.machines.engines.bridge", description="Reach a Ray cluster's nodes."
    )
    parser.add_argument("--address", default="auto", help="of the Ray cluster")
    parser.add_argument("--root", required=True, help="folder for agents, on each node")

    async def work(given: argparse.Namespace, common: dict[str, Any]) -> None:
        _join(given.address)
        await Bridge(**common, root=given.root).run()

    return serve(arguments, parser, work)


def _join(address: str) -> None:
    """Be a driver of the cluster. Ray reads its token from its own variables or file, as any of its drivers does.

    Raises
    ------
    InputError : Ray is not installed, or no cluster answers.
    """
    _reach(address)
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed here; pip install 'themis-scheduler[ray]'.") from None
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", configure_logging=False
        )
    except Exception as error:
        raise InputError(f"no Ray cluster answers at {address!r}: {' '.join(str(error).split())[:300]}") from None


def _reach(address: str) -> None:
    """Ray itself tries for minutes, also where the address cannot be one."""
    if "://" in address or (":" not in address and address != "auto"):
        raise InputError(
            f"no Ray cluster answers at {address!r}: expected auto, or HOST:PORT as `ray start --head` says it."
        )
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), 10.0).close()
        except OSError as error:
            raise InputError(f"no Ray cluster answers at {address!r}: {error.strerror or error}.") from None


if __name__ == "__main__":
    sys.exit(main())
