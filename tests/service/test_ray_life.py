"""Nodes of a Ray cluster come, die, return and are drained; actors and the bridge are killed: no job is lost.

What ran where is checked by what the processes themselves wrote, as in ``test_faults``.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from daemon import PROGRAMS, QUICK, Daemon, daemon
from test_faults import check_home

from processes import PATIENCE_S, left_of, ranks_of, running, wait_until
from raycluster import NO_RAY, RayCluster
from themis.cli import main
from themis.errors import InputError
from themis.machines.engines.bridge import _join

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def start(service: Daemon, witness: Path, gpus: int, steps: int) -> int:
    """A job that says every moment where it lives."""
    command = [sys.executable, "-I", "-S", str(PROGRAMS / "beats.py"), str(witness), str(steps), "0.05"]
    with service.client() as client:
        return client.run(command, gpus=gpus, hours=steps / 72000, launch="gpu").app


def node(service: Daemon, name: str) -> str:
    """State of a machine, and how many of its GPUs are leased; empty if it is not known."""
    with service.client() as client:
        return next((f"{n.state} {n.leased}" for n in client.nodes() if n.name == name), "")


def _text(path: Path) -> str:
    """Of a file that may not be there yet."""
    return path.read_text() if path.exists() else ""


def finish(service: Daemon, witness: Path, apps: list[int]) -> None:
    """All apps complete, and nothing was lost, doubled or left."""
    with service.client() as client:
        assert {client.wait(app, timeout_s=PATIENCE_S).state for app in apps} == {"completed"}, service.said()
    assert service.down() == 0, service.said()
    wait_until(lambda: not left_of(service.home / "run"), "no process is left")
    check_home(service.home, witness, len(apps))


def test_a_node_joins_dies_by_kill_9_of_its_raylet_and_returns(
    tmp_path: Path, ray_nodes: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    witness, nodes = tmp_path / "witness", tmp_path / "home" / "run" / "on-nodes"
    with daemon(tmp_path / "home", options=ray_nodes.options(nodes)) as service, ray_nodes.another("late"):
        wait_until(lambda: node(service, "late") == "up 0", "the new node is there")
        # Three gangs on three nodes.
        apps = [start(service, witness, 2, 250) for _ in range(3)]
        wait_until(lambda: bool(ranks_of(nodes / "late")), "a gang runs on it")
        # Where Ray has its own default, only those who may can do anything about it.
        raylet = os.getpriority(os.PRIO_PROCESS, ray_nodes.nodes["late"].all_processes["raylet"][0].process.pid)
        mine = raylet if os.geteuid() == 0 else min(raylet + 15, 19)
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in ranks_of(nodes / "late")} == {mine}
        with service.client() as client:
            assert {n.name: n.niceness for n in client.nodes()} == {"m0": raylet, "m1": raylet, "late": mine}
        ray_nodes.kill("late")
        wait_until(lambda: not ranks_of(nodes / "late"), "its keepers stopped the gang at the end of the lease")
        wait_until(lambda: node(service, "late").startswith("lost"), "it counts as lost")
        ray_nodes.add("late")
        wait_until(lambda: node(service, "late").startswith("up"), "it returned")
        apps.append(start(service, witness, 6, 10))
        finish(service, witness, apps)


def test_a_killed_actor_or_bridge_ends_no_job_and_a_drained_node_has_its_jobs_go_elsewhere(
    tmp_path: Path, ray_nodes: RayCluster
) -> None:
    witness, nodes = tmp_path / "witness", tmp_path / "home" / "run" / "on-nodes"
    # Long enough for Ray to start an actor again on a busy machine.
    settings = (*QUICK, "node_lease=30")
    with (
        daemon(tmp_path / "home", options=ray_nodes.options(nodes), settings=settings) as service,
        ray_nodes.another("extra"),
    ):
        wait_until(lambda: node(service, "extra") == "up 0", "the new node is there")
        apps = [start(service, witness, 2, 900) for _ in range(3)]  # they still run when it is drained
        wait_until(lambda: all(ranks_of(nodes / n) for n in ("m0", "m1", "extra")), "gangs run")
        os.kill(int((nodes / "m0" / "relay").read_text().split()[0]), signal.SIGKILL)
        (bridge,) = service.bridges()
        os.kill(bridge, signal.SIGKILL)
        wait_until(lambda: bridge not in (now := service.bridges()) and bool(now), "there is another bridge")
        ray_nodes.drain("extra", 60)
        wait_until(lambda: node(service, "extra") == "away 0", "Ray's drain empties the node")
        finish(service, witness, apps)
    with closing(sqlite3.connect(service.home / "journal.db")) as journal:
        endings = dict(journal.execute("SELECT ending, cause FROM attempts"))
    assert set(endings) == {"finished", "stopped"}, f"no attempt was lost with its actor or bridge: {endings}"


def test_the_next_arbiter_of_a_home_adopts_its_gangs_and_one_of_another_home_gets_no_node(
    tmp_path: Path, ray_nodes: RayCluster
) -> None:
    witness, nodes, elsewhere = tmp_path / "witness", tmp_path / "home" / "run" / "on-nodes", tmp_path / "other"
    settings = (*QUICK, "node_lease=60")
    with daemon(tmp_path / "home", options=ray_nodes.options(nodes), settings=settings) as service:
        apps = [start(service, witness, 2, 400) for _ in range(2)]
        wait_until(lambda: len(ranks_of(nodes)) == 4, "both gangs run")
        ranks, agents = set(ranks_of(nodes)), service.agents()
        service.kill()
        # With the same folder on the nodes, as two arbiters have that leave node_root at its default.
        command = [
            sys.executable,
            "-m",
            "themis.cli",
            "up",
            "--home",
            str(elsewhere),
            "--port",
            "0",
        ]
        root = ["--allow-root"] if os.geteuid() == 0 else []
        log = elsewhere / "run" / "bridge.log"
        with running([*command, *ray_nodes.options(nodes), *root], stderr=subprocess.DEVNULL):
            refused = [f"{name} is kept by another service" for name in ("m0", "m1")]
            wait_until(lambda: all(words in _text(log) for words in refused), "it is refused both")
        service.up()
        with service.client() as client:
            wait_until(lambda: all(app.state == "running" for app in client.queue()), "it knows of its gangs")
        # On a busy machine a job may have ended meanwhile.
        assert set(ranks_of(nodes)) <= ranks, "nothing was started again"
        assert service.agents() == agents
        finish(service, witness, apps)
    with closing(sqlite3.connect(service.home / "journal.db")) as journal:
        assert journal.execute("SELECT job, attempt, ending FROM attempts ORDER BY job").fetchall() == [
            (0, 1, "finished"),
            (1, 1, "finished"),
        ]


def test_a_node_that_is_cut_off_stops_its_jobs_which_go_on_elsewhere(tmp_path: Path, ray_nodes: RayCluster) -> None:
    """The same on both sides of the cut: its keepers end the gang with the lease, then the arbiter gives it other GPUs."""
    witness, nodes = tmp_path / "witness", tmp_path / "home" / "run" / "on-nodes"
    with (
        daemon(tmp_path / "home", options=ray_nodes.options(nodes)) as service,
        ray_nodes.behind_a_cable("cut") as cable,
    ):
        wait_until(lambda: node(service, "cut") == "up 0", "the new node is there")
        apps = [start(service, witness, 2, 200) for _ in range(3)]
        wait_until(lambda: bool(ranks_of(nodes / "cut")), "a gang runs on it")
        cable.pull()
        wait_until(lambda: not ranks_of(nodes / "cut"), "its keepers stopped the gang")
        wait_until(lambda: node(service, "cut") == "lost 0", "its GPUs are nobody's")
        finish(service, witness, apps)
        wait_until(lambda: not ray_nodes.in_use(), lambda: f"Ray has its GPUs back, also of {ray_nodes.in_use()}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--address auto", "--address is 'auto', but the engine is local; add --engine ray for a Ray cluster."),
        ("--engine rya", "engine is 'rya', expected one of 'local', 'ray'"),
        ("--engine ray --adress auto", "No such option: --adress"),
        ("--engine ray --gpus 4", "the machines are Ray's nodes; remove gpus and machines."),
        ("--engine ray --set node_root=disk", "node_root is 'disk', expected an absolute path"),
    ],
)
def test_what_was_mistyped_is_told_in_words(
    tmp_path: Path, words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        main(["up", "--home", str(tmp_path), *words.split()])
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert said in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize("address", ["atuo", "ray://127.0.0.1:10001"])
def test_what_is_no_address_is_refused_before_ray_tries_it(address: str) -> None:
    with pytest.raises(InputError, match="expected auto, or HOST:PORT"):
        _join(address)


def test_where_no_ray_cluster_answers_up_says_so_and_ends(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, so nobody else listens there
        command = ["up", "--engine", "ray", "--address", f"127.0.0.1:{taken.getsockname()[1]}", "--home", str(tmp_path)]
        command += ["--port", "0"]
        done = subprocess.run(
            [sys.executable, "-m", "themis.cli", *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 2
    assert "no Ray cluster answers at '127.0.0.1:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.environ.get("THEMIS_RAY_FORMS") != "all", reason="of the tests' own tools; THEMIS_RAY_FORMS=all")
def test_a_cluster_that_a_test_left_in_disorder_is_brought_back(ray_nodes: RayCluster) -> None:
    """Of the tests themselves: one that fails is not to make others fail."""
    address = ray_nodes.address
    ray_nodes.kill("m1")
    ray_nodes.add("forgotten", 1)
    ray_nodes.drain("m0", 600)
    wait_until(lambda: "m0" in ray_nodes.gone(), "Ray takes it away")
    ray_nodes.settle()
    assert (ray_nodes.nodes.keys(), ray_nodes.address) == (ray_nodes.machines.keys(), address)
    assert (ray_nodes.gone(), ray_nodes.strangers(), ray_nodes.in_use()) == ([], [], [])
