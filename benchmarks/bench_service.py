"""The live service: decisions, what they cost others, submissions, memory, agents of others, starts. Asserts no seconds.

    python benchmarks/bench_service.py [--apps 1000] [--agents 100] [--starts 40] [--limit 1200]

But for the starts the executor does nothing, so that what is measured is the service: core, journal with its syncs, API.
Wall times depend on what else the machine does, so compare them with each other; CPU seconds are of all threads. Ends at
the latest after ``--limit`` seconds, and then says where every thread was.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from themis import Agent
from themis.cli.live_demo.demo_run import service
from themis.client.client import Client, Unavailable
from themis.core import take_snapshot as snapshots
from themis.machines.engines.hosts import Host
from themis.machines.engines.program import Programs
from themis.model.cluster import Machine
from themis.model.events import Command, Grant, JobStarted, JobStopped, Revoke
from themis.model.workload import App
from themis.policies.api import Workbench, make_policy
from themis.schema import messages as schema
from themis.service.api.access import Access, Caller
from themis.service.api.http_server import serve_http
from themis.service.api.methods import Api
from themis.service.api.submission import submit
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Config
from themis.service.engine.journal import Journal
from themis.service.engine.solving import Reply, Task, WorkerSolver, decide

ME = Caller(user="me", admin=True)


class Nothing:
    """An executor whose gangs start and stop at once."""

    def __init__(self, heard: Callable[[Any], None]) -> None:
        self.heard = heard

    def submit(self, command: Command) -> None:
        if isinstance(command, Grant):
            self.heard(JobStarted(job=command.job, attempt=command.attempt))
        elif isinstance(command, Revoke):
            self.heard(JobStopped(job=command.job, attempt=command.attempt, steps=0.0))

    def admit(self, first_job: int, app: App) -> None: ...
    def restore(self, grant: Grant, steps: float, *, started: bool = True) -> None: ...
    def dismiss(self, jobs: Sequence[int]) -> None: ...
    def restore_lost(self, machine: int) -> None: ...
    def recorded(self, job: int, attempt: int) -> None: ...
    def restore_withheld(self, machine: int) -> None: ...
    def join(self, machine: Machine) -> None: ...
    def resize(self, machine: int, gpus: int) -> None: ...
    def equip(self, devices: Mapping[str, tuple[str, ...]]) -> None: ...
    def check_user(self, user: str) -> None: ...
    def niceness(self, machine: int) -> int:
        return 0

    def trust(self, machine: int) -> str:
        return "single"

    def containment_of(self, machine: int) -> tuple[str, tuple[str, ...]]:
        return "", ()

    def start(self) -> None: ...
    def close(self, *, stop_jobs: bool = True) -> None: ...


@contextmanager
def arbiter(machines: int, *, apart: bool, **more: Any) -> Any:
    """A running arbiter over machines of 8 GPUs."""
    made: list[Nothing] = []

    def executor(programs: Programs, heard: Callable[[Any], None], book: object) -> Nothing:
        made.append(Nothing(heard))
        return made[0]

    with tempfile.TemporaryDirectory() as folder:
        hosts = [Host(machine=Machine(name=f"m{n}", gpus=8, rack=f"r{n // 8}")) for n in range(machines)]
        known = {"policy": "themis", "lease_s": 3600.0, "tick_s": 1.0, "gather_s": 0.0, "max_submissions": 10**6}
        config = Config(**{**known, **more})
        a = Arbiter(config, hosts, Journal(Path(folder) / "journal.db"), executor, apart=apart).start()
        try:
            yield a
        finally:
            a.close()


def enter(a: Arbiter, n: int, rng: np.random.Generator) -> int:
    """Submit an app; returns its number."""
    request = app_request(n, 4, rng)
    return int(a.ask(lambda: submit(a, request, ME)).app)


def app_request(n: int, jobs: int, rng: np.random.Generator) -> schema.SubmitRequest:
    program = schema.Program(argv=["true"], cwd="/")
    return schema.SubmitRequest(
        name=f"a{n}",
        user="me",
        jobs=[
            schema.Job(
                name=f"j{i}",
                gpus_min=2,
                gpus_max=2,
                regimes=[schema.Regime(steps=float(rng.integers(1000, 9000)))],
                program=program,
            )
            for i in range(jobs)
        ],
    )


def memory_mb(pid: int | str = "self") -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def submissions(apps: int) -> None:
    """A burst of submissions to a full cluster of 256 GPUs while every one of them asks for a decision."""
    print(
        f"{apps} apps of 4 jobs of 2 GPUs, one after the other, 256 GPUs; ms until a submission is on disk and answered\n"
    )
    print(
        "| policy runs | median | 99 % | longest | CPU ms a submission | decisions | leases granted | MB | MB of the worker |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for apart in (False, True):
        rng = np.random.default_rng(0)
        with arbiter(32, apart=apart) as a:
            waits, began = [], time.process_time()
            for n in range(apps):
                request, at = app_request(n, 4, rng), time.perf_counter()
                a.ask(lambda request=request: submit(a, request, ME))
                waits.append(1000 * (time.perf_counter() - at))
                if n % 10 == 0:
                    _let_go(a, 2)
            a.ask(lambda: None)
            spent = time.process_time() - began
            kinds = dict(
                a.ask(lambda: a.journal.db.execute("SELECT kind, count(*) FROM records GROUP BY kind").fetchall())
            )
            worker = a.engine.solver._worker.process.pid if apart else None
            q = np.percentile(waits, [50, 99, 100])
            print(
                f"| {'apart' if apart else 'in the thread'} | {q[0]:.1f} | {q[1]:.1f} | {q[2]:.0f} | {1000 * spent / apps:.1f} | "
                f"{kinds.get('Allocated', 0)} | {kinds.get('Grant', 0)} | {memory_mb():.0f} | "
                f"{memory_mb(worker) if worker else 0:.0f} |",
                flush=True,
            )


def decisions(apps: int, rounds: int = 20) -> None:
    """So many apps wait or run on a full cluster; a tenth of its GPUs falls free, and so on: from there to the leases."""
    print(f"\n{apps} apps of 4 jobs of 2 GPUs on 256 GPUs, 26 of which fall free, {rounds} times over; policy apart\n")
    print(
        "| decision, ms: median | worst | CPU ms: arbiter | policy | leases granted | decisions / CPU s | leases / CPU s | MB | "
        "MB of the worker |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(2)
    with arbiter(32, apart=True) as a:
        for n in range(apps):
            enter(a, n, rng)
        _settled(a)
        worker = a.engine.solver._worker.process.pid
        before, mine, theirs, times = _granted(a), time.process_time(), _cpu_s(worker), []
        for _ in range(rounds):
            round_, began = a.ask(lambda: a.state.round), time.perf_counter()
            _let_go(a, 13)
            _wait(lambda round_=round_: a.state.round > round_, 60)
            times.append(1000 * (time.perf_counter() - began))
            _settled(a)
        mine, theirs = time.process_time() - mine, _cpu_s(worker) - theirs
        granted = _granted(a) - before
        cells = [
            *(np.median(times), max(times), 1000 * mine / rounds, 1000 * theirs / rounds, granted),
            *(rounds / (mine + theirs), granted / (mine + theirs), memory_mb(), memory_mb(worker)),
        ]
        print(f"| {' | '.join(f'{cell:.0f}' for cell in cells)} |", flush=True)


def _let_go(a: Arbiter, gangs: int) -> None:
    """So many gangs end and wait again: GPUs to decide on, which no other job of theirs takes over."""
    for job, attempt in a.ask(lambda: [(j, int(a.state.jobs.attempt[j])) for j in sorted(a.state.job_gpus)[:gangs]]):
        a.queue.put(JobStopped(job=job, attempt=attempt, steps=1.0))


def _settled(a: Arbiter) -> None:
    _wait(lambda: a.ask(lambda: a.engine.decision is None and a.queue.empty()), 60)


def _granted(a: Arbiter) -> int:
    return int(a.ask(lambda: a.journal.db.execute("SELECT count(*) FROM records WHERE kind = 'Grant'").fetchone()[0]))


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def starts(count: int) -> None:
    """``themis up`` with real processes: from a submission's call to its gang's training, on an idle cluster."""
    print(
        f"\n{count} apps of one job, one after the other, on idle GPUs; real processes; s from the call to the gang's start\n"
    )
    print("| gather, s | median | 90 % | longest |")
    print("|---|---|---|---|")
    for gather in (0.0, 0.5):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "home"
            with (
                service(
                    home,
                    machines=f"{count // 8 + 1}x8",
                    policy="themis",
                    settings={"gather": gather, "single_trust": "true"},
                ),
                Client(home) as client,
            ):
                called = []
                for n in range(count):
                    called.append(time.time())
                    client.run(["sleep", "600"], name=f"a{n}", hours=0.1)
                    time.sleep(0.2)
                _wait(lambda client=client: _started(client) >= count, 120)
                began = [record.time for record in client.events() if record.kind == "JobStarted"]
                waits = [b - c for b, c in zip(sorted(began), called)]
                q = np.percentile(waits, [50, 90, 100])
                print(f"| {gather:g} | {q[0]:.2f} | {q[1]:.2f} | {q[2]:.2f} |", flush=True)


def _started(client: Client) -> int:
    return sum(record.kind == "JobStarted" for record in client.events())


def pauses(apps: int) -> None:
    """How long a thread that wants to do something every millisecond is kept from it while the policy decides."""
    rng = np.random.default_rng(0)
    with arbiter(apps // 10, apart=False) as a:
        for n in range(apps):
            enter(a, n, rng)
        view = a.ask(lambda: snapshots.take(a.state))
    # A tenth of the GPUs is on offer.
    gpus = np.arange(len(view.gpu_machine)) % 10 == 0
    view = _offer(view, gpus)
    policy = make_policy("themis:f=0.8")
    print(
        f"\none decision among {view.apps} apps on {int(view.free.sum())} GPUs, beside a thread that wakes every ms\n"
    )
    print("| policy runs | decision, s | CPU s here | longest pause, ms | wakes/s |")
    print("|---|---|---|---|---|")
    for where in ("nowhere", "in a thread", "in a process"):
        replies: list[Reply] = []
        worker = WorkerSolver(policy, 60.0, replies.append) if where == "in a process" else None
        if worker is not None:
            worker.start(Task(version=0, snapshot=view))
            _wait(lambda replies=replies: bool(replies), 60)
            replies.clear()
        gaps: list[float] = []
        cpu, began = time.process_time(), time.perf_counter()
        if worker is not None:
            worker.start(Task(version=1, snapshot=view))
        elif where == "in a thread":
            threading.Thread(
                target=lambda replies=replies: replies.append(decide(policy, view, 1, Workbench()))
            ).start()
        last = began
        while (
            (not replies and time.perf_counter() - began < 60)
            if where != "nowhere"
            else time.perf_counter() - began < 1
        ):
            time.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
        seconds = last - began
        print(
            f"| {where} | {seconds if where != 'nowhere' else 0:.2f} | {time.process_time() - cpu:.2f} | "
            f"{1000 * max(gaps, default=0.0):.0f} | "
            f"{len(gaps) / max(seconds, 1e-9):.0f} |",
            flush=True,
        )
        if worker is not None:
            worker.close()


def _offer(view: Any, gpus: Any) -> Any:
    from dataclasses import replace

    free = np.bincount(view.gpu_machine[gpus], minlength=len(view.free))
    holder = view.gpu_job.copy()
    holder[gpus] = -1
    lost = np.isin(view.job_id, view.gpu_job[gpus, 0])
    return replace(
        view,
        gpu_free=gpus,
        free=free,
        gpu_job=holder,
        job_held=np.where(lost, 0, view.job_held),
        app_held=np.bincount(view.job_app, np.where(lost, 0, view.job_held), view.apps).astype(np.int64),
    )


def _wait(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"what the benchmark waits for did not happen within {seconds:g} s")
        time.sleep(0.005)


def agents(count: int) -> None:
    """Print the time from free GPUs to leases when this number of agents is asked over the API; threads of this process answer."""
    print(f"\n{count} agents, all asked in one round: ms from free GPUs to the decision (median and worst of 10)\n")
    print("| agents | median | worst | bids | CPU s a round, agents included |")
    print("|---|---|---|---|---|")
    for attending in (0, count):
        rng = np.random.default_rng(1)
        with arbiter(4, apart=True, policy="themis:f=0", agent_s=30.0, max_agents=count + 1) as a:
            home = Path(tempfile.mkdtemp())
            api = Api(a, home, Access(home, "token", "me"))
            server = serve_http(api, "127.0.0.1", 0)
            apps = [enter(a, n, rng) for n in range(count)]
            client = Client(home, address=f"127.0.0.1:{server.port}", token="token")
            threads = [threading.Thread(target=_attend, args=(client, app), daemon=True) for app in apps[:attending]]
            for thread in threads:
                thread.start()
            _wait(lambda a=a, apps=apps[:attending]: len(a.agents.present(apps)) == len(apps), 60)
            times, cpu = [], time.process_time()
            for _ in range(10):
                _wait(lambda a=a: a.ask(lambda: a.engine.decision is None and bool(a.state.job_gpus)), 60)
                before = a.ask(lambda: a.state.round)
                began = time.perf_counter()
                _let_go(a, 4)
                _wait(lambda a=a, before=before: a.state.round > before, 60)
                times.append(1000 * (time.perf_counter() - began))
            spent = (time.process_time() - cpu) / 10
            bids = a.ask(
                lambda: a.journal.db.execute(
                    "SELECT count(*) FROM records WHERE kind = 'AgentBid' AND CAST(line AS TEXT) LIKE '%\"said\":\"bid\"%'"
                ).fetchone()[0]
            )
            print(f"| {attending} | {np.median(times):.0f} | {max(times):.0f} | {bids} | {spent:.2f} |", flush=True)
            # The agents end with the streams, before what they call through is closed.
            api.ending.set()
            server.close()
            client.timeout_s = 0.0
            for thread in threads:
                thread.join(10)
            client.close()


def _attend(client: Client, app: int) -> None:
    # On a busy machine it may hear only after its connection was closed that the service has ended.
    with suppress(Unavailable, ValueError):
        Agent(client, app).run()


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--apps", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds after which it gives up")
    given = parser.parse_args()
    faulthandler.dump_traceback_later(given.limit, exit=True)
    decisions(given.apps)
    pauses(given.apps)
    submissions(given.apps)
    agents(given.agents)
    starts(given.starts)


if __name__ == "__main__":
    main()
