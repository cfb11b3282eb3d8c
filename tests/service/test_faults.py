"""kill -9 and SIGSTOP of arbiter, agents, supervisors, jobs at random moments: no job is lost, no GPU serves two, nothing is left.

Checked twice: in the journal, and by what the processes themselves wrote. On Ray as on one machine, the same test.
The simulation (``tests/simulation``) has these kills by the thousand; here are five with the kernel's processes, and three
with a gateway. ``make soak`` runs 200 kills on each, also on Ray, where ``test_ray_life.py`` kills each part once.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from daemon import PROGRAMS, QUICK, Daemon, daemon

from fleetmachines import Machines, free_port, machines
from processes import PATIENCE_S, left_of, ranks_of, wait_until
from raycluster import RayCluster
from themis.model.events import Grant, JobStopped
from themis.model.log import decode
from themis.service.engine.journal import read_records
from witness import check_leases

pytestmark = pytest.mark.slow
TRIALS = int(os.environ.get("THEMIS_FAULT_TRIALS", "5"))
FLEET_TRIALS = int(os.environ.get("THEMIS_FLEET_FAULT_TRIALS", "3"))
RAY_TRIALS = int(os.environ.get("THEMIS_RAY_FAULT_TRIALS", "0"))
BATCH = 5
"""Kills in one home; each batch has a seed of its own."""
WHAT = (
    "arbiter",
    "agent",
    "both",
    "supervisor",
    "arbiter for long",
    "job",
    "supervisor is stopped",
    "supervisor and arbiter",
    "agent is stopped",
)
RETRIES = 3


@pytest.mark.parametrize("seed", range(-(-TRIALS // BATCH)))
def test_nothing_is_lost_or_doubled_by_kill_9_at_random_moments(tmp_path: Path, seed: int) -> None:
    _survives(tmp_path, seed, TRIALS)


@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("seed", range(-(-RAY_TRIALS // BATCH)))
def test_nothing_is_lost_or_doubled_by_kill_9_on_a_ray_cluster(
    tmp_path: Path, ray_nodes: RayCluster, seed: int
) -> None:
    _survives(tmp_path, seed, RAY_TRIALS, options=ray_nodes.options(tmp_path / "home" / "run" / "on-nodes"))


@pytest.mark.parametrize("seed", range(-(-FLEET_TRIALS // BATCH)))
def test_nothing_is_lost_or_doubled_by_kill_9_on_a_fleet(tmp_path: Path, seed: int) -> None:
    options = ("--engine", "fleet", "--port", str(free_port()))
    with machines(tmp_path / "home", tmp_path / "machines") as fleet:
        _survives(tmp_path, seed, FLEET_TRIALS, fleet, options=options)


def _survives(tmp_path: Path, seed: int, trials: int, fleet: Machines | None = None, **more: Sequence[str]) -> None:
    rng = np.random.default_rng(seed)
    witness = tmp_path / "witness"
    struck: set[str] = set()
    with daemon(tmp_path / "home", settings=(*QUICK, "backoff=0.5"), **more) as service:
        for name in ("m0", "m1") if fleet is not None else ():
            fleet.add(name, 2)
        if fleet is not None:
            wait_until(lambda: service.client().info().gpus == 4, "both machines serve")
        keys = []
        for trial in range(min(BATCH, trials - seed * BATCH)):
            keys += [_submit(service, witness, rng) for _ in range(2)]
            time.sleep(float(rng.uniform(0.0, 2.5)))
            if fleet is not None:
                _strike_fleet(fleet, rng)
            what = WHAT[(trial + seed * BATCH) % len(WHAT)]
            if what == "job":
                struck |= _strike_job(service, rng)
            else:
                _strike(service, what, rng)
        with service.client() as client:
            states = {key: client.wait(key, timeout_s=PATIENCE_S).state for key in keys}
        assert set(states.values()) == {"completed"}, f"{states}\n{service.said()}"
        assert service.down() == 0, service.said()
        wait_until(lambda: not left_of(service.home / "run"), lambda: "no process is left")
        check_home(service.home, witness, len(keys))
    failed = _failed(service.home)
    assert failed.keys() <= struck, f"only what was killed itself may count as failed: {failed}, {struck}"


def _strike_fleet(fleet: Machines, rng: np.random.Generator) -> None:
    """kill -9 of the gateway, which starts again, or of what a machine runs to reach it, which is started again."""
    if rng.random() < 0.5:
        for pid in fleet.gateways():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    else:
        name = str(rng.choice(["m0", "m1"]))
        fleet.agents[name].kill()
        fleet.agents[name].wait()
        fleet.start(name)


def _failed(home: Path) -> dict[str, list[object]]:
    """Attempts that used up a retry, and how each ended."""
    with closing(sqlite3.connect(home / "journal.db")) as db:
        rows = db.execute("SELECT job, attempt, ending, cause, code, killed, message FROM attempts WHERE failure")
        return {f"job{job}-attempt{n}": how for job, n, *how in rows}


def check_home(home: Path, witness: Path, apps: int) -> None:
    """What the journal and the processes say of so many apps of one job that all completed."""
    records = [decode(line)[1] for _, _, _, line in read_records(home / "journal.db")]
    grants = check_leases(records, apps=apps, jobs=apps)
    assert {(r.job, r.attempt) for r in records if isinstance(r, JobStopped)} >= grants.keys()
    _check_processes(witness, grants)


def _submit(service: Daemon, witness: Path, rng: np.random.Generator) -> int:
    low = int(rng.integers(1, 3))
    steps = int(rng.integers(10, 60))
    command = [sys.executable, "-I", "-S", str(PROGRAMS / "beats.py"), str(witness), str(steps), "0.05"]
    command += ["stray"] * (rng.random() < 0.3)
    with service.client() as client:
        return client.run(
            command, gpus=(low, int(rng.integers(low, 4))), hours=steps / 72000, retries=RETRIES, launch="gpu"
        ).app


def _strike_job(service: Daemon, rng: np.random.Generator) -> set[str]:
    """kill -9 of some job's rank, once there is one; its task, or nothing if all have ended."""
    end = time.monotonic() + 3.0
    while not (ranks := ranks_of(service.home)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in rng.permutation(ranks).tolist():
        with suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            os.kill(pid, signal.SIGKILL)
            return {
                word.removeprefix(b"THEMIS_TASK=").decode() for word in environment if word.startswith(b"THEMIS_TASK=")
            }
    return set()


def _strike(service: Daemon, what: str, rng: np.random.Generator) -> None:
    if what.endswith("is stopped"):
        _stop(service.agents() if what.startswith("agent") else _supervisors(service), rng)
        return
    if what.startswith("supervisor"):
        for pid in rng.permutation(_supervisors(service))[:2].tolist():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if what == "supervisor":
            return
    if what in ("agent", "both"):
        victims = service.agents()
        for pid in rng.permutation(victims)[: int(rng.integers(1, 3))].tolist():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if what != "agent":
        service.kill()
        # Longer than the machines' lease: the keepers end the jobs by themselves.
        time.sleep(7.0 if what == "arbiter for long" else float(rng.uniform(0.0, 1.0)))
        service.up()


def _supervisors(service: Daemon) -> list[int]:
    """The supervisors of all gangs, once there is one."""
    found: list[int] = []
    end = time.monotonic() + 3.0
    while not found and time.monotonic() < end:
        time.sleep(0.05)
        for pid in left_of(service.home):
            with suppress(OSError):
                if b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
    return sorted(found)


def _stop(pids: list[int], rng: np.random.Generator) -> None:
    """SIGSTOP to one of them, for less or more than the machine's lease."""
    if pids:
        pid = int(rng.choice(pids))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(float(rng.uniform(0.5, 7.0)))
            os.kill(pid, signal.SIGCONT)


def _check_processes(witness: Path, grants: dict[tuple[int, int], Grant]) -> None:
    """On no GPU did two attempts live at once, nor any job twice, by the processes' own word."""
    alive: dict[tuple[int, int], list[float]] = {}
    for line in witness.read_text().splitlines():
        task, _, at = line.split()
        job, _, attempt = task.removeprefix("job").partition("-attempt")
        alive.setdefault((int(job), int(attempt)), []).append(float(at))
    assert {job for job, _ in alive} == {job for job, _ in grants}
    held: dict[str, list[tuple[float, float, tuple[int, int]]]] = {}
    for key, beats in alive.items():
        for place in (f"job {key[0]}", *(f"GPU {gpu}" for gpu in grants[key].gpus)):
            held.setdefault(place, []).append((min(beats), max(beats), key))
    for place, stays in held.items():
        ordered = sorted(stays)
        for before, after in pairwise(ordered):
            assert before[1] < after[0], f"{place} had two at once: {before} and {after}"


def test_the_witness_check_sees_two_jobs_on_one_gpu(tmp_path: Path) -> None:
    given = {"app": 0, "attempt": 1, "seat": 0, "until": 9.0, "locality": 0, "target": 1.0, "score": 1.0}
    grants = {(j, 1): Grant(job=j, gpus=(0,), **given) for j in (0, 1)}  # type: ignore[arg-type]
    (tmp_path / "w").write_text("job0-attempt1 0 1.0\njob1-attempt1 0 2.0\njob0-attempt1 0 3.0\n")
    with pytest.raises(AssertionError, match="GPU 0 had two at once"):
        _check_processes(tmp_path / "w", grants)


def test_an_agent_that_outlived_its_arbiter_is_taken_over_without_a_word_and_replaced_when_it_dies(
    tmp_path: Path,
) -> None:
    with daemon(tmp_path / "home", options=("--gpus", "1"), settings=(*QUICK, "node_lease=60")) as service:
        (first,) = service.agents()
        for restart in (False, True):
            if restart:
                service.kill()
                service.up()
            # A job shows that the machine has its lease, so its agent stays while no arbiter is there.
            app = service.client().run(["true"]).app
            assert service.client().wait(app, timeout_s=PATIENCE_S).state == "completed"
            assert service.agents() == [first]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: service.agents() not in ([], [first]), "another agent serves")
        assert "already runs" not in service.said()
