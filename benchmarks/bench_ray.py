"""What machines elsewhere cost: starts and preemptions of gangs here, on a fleet and on Ray; one arbiter with 64 nodes of 8 GPUs.

    python benchmarks/bench_ray.py [--quick] [--no-ray] [--no-stubs]

The first part runs gangs of two ranks on two nodes through the executors, which take turns: seconds from the command to its event,
medians and 90th percentiles, and the ratio. The second has stub agents, which answer at once, behind real sockets, and counts
what the arbiter decides by the auction, with its journal, in CPU seconds of the whole process (stubs included).
"""

from __future__ import annotations

import argparse
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fleetmachines import port_for
from themis.machines.agent.channel import ChannelClosed, SocketChannel, connect
from themis.machines.agent.identity import make_token
from themis.machines.agent.joining import Wish, join
from themis.machines.agent.messages import Go, Hello, Prepare, Renew, Stop, TaskState
from themis.machines.engines.fleet import FleetExecutor, FleetSettings
from themis.machines.engines.gangs import Pace
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.members import Members, authority_folder, members_file
from themis.machines.engines.program import Program, Programs
from themis.machines.engines.ray import RayExecutor, RaySettings
from themis.model.cluster import Machine
from themis.model.events import Grant, JobStarted, JobStopped, MachineJoined, Revoke
from themis.schema import messages as schema
from themis.service.api.submission import submit
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Config
from themis.service.engine.journal import Journal
from themis.testing.builders import app, job
from themis.trust.authority.ca import Authority

SLEEP = Program(argv=("sleep", "600"), grace_s=10.0)


Bench = tuple[LocalExecutor, queue.SimpleQueue[Any]]
"""An executor of two machines with two GPUs each, and its events."""


def latencies(benches: dict[str, Bench], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds from grant to start and from revocation to stop, of gangs over both machines.

    The executors take turns, so what else the computer does meanwhile is the same for all.
    """
    took: dict[str, dict[str, list[float]]] = {name: {"start": [], "preemption": []} for name in benches}
    for executor, _ in benches.values():
        executor.admit(0, app("a", [job(1e9, (1, 4))]))
    for attempt in range(1, rounds + 1):
        grant = Grant(app=0, job=0, attempt=attempt, gpus=(0, 2), seat=0, until=1e9, locality=1, target=1e9, score=1.0)
        for name, (executor, events) in benches.items():
            for what, command, kind in (
                ("start", grant, JobStarted),
                ("preemption", Revoke(app=0, job=0, attempt=attempt, cause="expired"), JobStopped),
            ):
                began = time.perf_counter()
                executor.submit(command)
                while not isinstance(events.get(timeout=60), kind):
                    pass
                took[name][what].append(time.perf_counter() - began)
    return took


@contextmanager
def on_local(folder: Path) -> Iterator[Bench]:
    """Two machines of two GPUs here."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    hosts = [Host(machine=Machine(name=f"m{n}", gpus=2)) for n in range(2)]
    with LocalExecutor(folder, hosts, lambda a, i: SLEEP, events.put, allow_root=os.geteuid() == 0) as executor:
        yield executor, events


@contextmanager
def on_fleet(folder: Path) -> Iterator[Bench]:
    """Two machines of two virtual GPUs that joined over TLS, on this machine."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    fleet = FleetSettings(owner="bench", members=members_file(folder), authority=authority_folder(folder))
    agents: list[subprocess.Popen[bytes]] = []
    try:
        with (
            FleetExecutor(
                folder / "run", lambda a, i: SLEEP, events.put, fleet=fleet, allow_root=os.geteuid() == 0
            ) as executor,
            ExitStack() as stack,
        ):
            address = stack.enter_context(port_for(executor))
            for n in range(2):
                token, secret = make_token(Authority.open(authority_folder(folder)).fingerprint)
                with closing(Members(members_file(folder))) as members:
                    members.add_token(secret, 60.0)
                state = folder / f"state{n}"
                join(state, address, token, Wish(name=f"m{n}", gpus=2, root=folder / f"tasks{n}"))
                agents.append(
                    subprocess.Popen([sys.executable, "-m", "themis.machines.agent.remote", "--state", str(state)])
                )
                joined = events.get(timeout=120)
                assert isinstance(joined, MachineJoined)
                executor.join(joined.machine)
            yield executor, events
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait(60)


@contextmanager
def on_ray(folder: Path) -> Iterator[Bench]:
    """Two raylets of two logical GPUs here."""
    from ray.cluster_utils import Cluster

    # As nice as the local engine's processes; Ray's default is 15 more.
    os.environ.setdefault("RAY_worker_niceness", "0")
    store = {"object_store_memory": 80 << 20}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, **store}
    )
    try:
        for n in range(2):
            cluster.add_node(num_cpus=1, num_gpus=2, labels={"themis-node": f"m{n}"}, **store)
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ray = RaySettings(address=cluster.address, owner="bench", node_root=str(folder / "on-nodes"))
        with RayExecutor(folder, lambda a, i: SLEEP, events.put, ray=ray, allow_root=os.geteuid() == 0) as executor:
            for _ in range(2):
                joined = events.get(timeout=120)
                assert isinstance(joined, MachineJoined)
                executor.join(joined.machine)
            yield executor, events
    finally:
        cluster.shutdown()


class Stubs(LocalExecutor):
    """The real executor with agents that start nothing: all of them in one thread, each behind a socket of its own."""

    def _start_agents(self) -> None:
        threading.Thread(target=self._answer, daemon=True).start()

    def _revive(self) -> None:
        pass

    def _end_agents(self, timeout_s: float) -> None:
        pass

    def check_user(self, user: str) -> None:
        """Stubs start nothing in anybody's name."""

    def _answer(self) -> None:
        channels: dict[Any, SocketChannel] = {}
        for host in self.hosts:
            channel = connect(self.root / "arbiter" / "agents.sock")
            assert channel is not None
            channel.send(Hello(node=host.machine.name, trust="single"))
            channels[channel.socket] = channel
        renew_at, sequence = 0.0, 0
        while not self._closing.is_set():
            try:
                if time.monotonic() > renew_at:
                    sequence, renew_at = sequence + 1, time.monotonic() + self.settings.renew_s
                    for channel in channels.values():
                        channel.send(Renew(sequence=sequence))
                for socket in select.select(list(channels), [], [], 0.1)[0]:
                    for message in channels[socket].receive(0.0):
                        answer(channels[socket], message)
            except ChannelClosed:
                return


def answer(channel: SocketChannel, message: object) -> None:
    """What a machine says on which everything works at once."""
    if isinstance(message, Prepare):
        channel.send(TaskState(task=message.spec.task, phase="prepared", port=20000))
    elif isinstance(message, Go):
        channel.send(TaskState(task=message.task, phase="running", port=20000))
    elif isinstance(message, Stop):
        channel.send(TaskState(task=message.task, phase="ended", cause=message.cause, first=-15))


@contextmanager
def arbiter(folder: Path, nodes: int, gpus: int) -> Iterator[Arbiter]:
    """One with so many stub machines; its leases end every two seconds."""
    hosts = [Host(machine=Machine(name=f"n{n:03d}", gpus=gpus, rack=f"r{n // 8}")) for n in range(nodes)]
    config = Config(policy="themis", lease_s=2.0, tick_s=2.0, container_s=0.0)

    def make(programs: Programs, heard: Callable[[Any], None], *_: Any) -> Any:
        pace: Pace | None = None
        return Stubs(folder / "run", hosts, programs, heard, heard, settings=NodeSettings(), pace=pace)

    made = Arbiter(config, hosts, Journal(folder / "journal.db"), make).start()
    try:
        yield made
    finally:
        made.close(stop_jobs=False)


def decide(folder: Path, apps: int, seconds: float, seed: int = 0) -> dict[str, float]:
    """So many apps on 64 x 8 GPUs for a while."""
    rng = np.random.default_rng(seed)
    with arbiter(folder, 64, 8) as made:
        for a in range(apps):
            low = int(rng.choice([1, 2, 4, 8]))
            request = schema.SubmitRequest(
                name=f"a{a}",
                user=f"u{a % 16}",
                jobs=[
                    schema.Job(
                        name=f"j{i}",
                        regimes=[schema.Regime(steps=1e5)],
                        gpus_min=low,
                        gpus_max=low,
                        program=schema.Program(argv=["x"], cwd="/"),
                    )
                    for i in range(int(rng.integers(1, 5)))
                ],
            )
            made.ask(lambda request=request: submit(made, request))  # type: ignore[misc]
        before, cpu, began = made.ask(lambda: counts(made)), time.process_time(), time.perf_counter()
        time.sleep(seconds)
        spent, wall = time.process_time() - cpu, time.perf_counter() - began
        after = made.ask(lambda: counts(made))
        held = made.ask(lambda: sum(len(gpus) for gpus in made.state.job_gpus.values()))
    return {
        **{kind: after[kind] - before[kind] for kind in ("Allocated", "Grant", "Renew", "Revoke")},
        "cpu": spent,
        "wall": wall,
        "held": held,
    }


def counts(made: Arbiter) -> Counter[str]:
    """Records of the journal by kind."""
    return Counter(type(record).__name__ for _, record in made.journal.records())


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--no-stubs", action="store_true")
    given = parser.parse_args()
    rounds = 5 if given.quick else 30
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = {"local": on_local, "fleet": on_fleet, "ray": on_ray}
        if given.no_ray:
            del kinds["ray"]
        with ExitStack() as stack:
            found = latencies({name: stack.enter_context(kind(folder / name)) for name, kind in kinds.items()}, rounds)
        print(f"gangs of two ranks over two nodes, {rounds} each\n")
        print("| | executor | median ms | p90 ms | ratio of medians |\n|---|---|---|---|---|")
        for what in ("start", "preemption"):
            for executor, took in found.items():
                median, p90 = (1e3 * float(np.quantile(took[what], q)) for q in (0.5, 0.9))
                ratio = median / (1e3 * float(np.median(found["local"][what])))
                print(f"| {what} | {executor} | {median:.0f} | {p90:.0f} | {ratio:.2f} |")
        if given.no_stubs:
            return
        print("\n64 nodes x 8 GPUs, stub agents, policy themis, leases of 2 s\n")
        print("| apps | GPUs leased | decisions | grants, renewals, revocations | CPU s | decisions / CPU s | wall s |")
        print("|---|---|---|---|---|---|---|")
        for apps in (50,) if given.quick else (50, 200):
            (folder / str(apps)).mkdir()
            d = decide(folder / str(apps), apps, 5.0 if given.quick else 30.0)
            changes = d["Grant"] + d["Renew"] + d["Revoke"]
            speed = d["Allocated"] / d["cpu"]
            row = (
                apps,
                f"{d['held']} of 512",
                d["Allocated"],
                changes,
                f"{d['cpu']:.1f}",
                f"{speed:.1f}",
                f"{d['wall']:.0f}",
            )
            print(f"| {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    main()
