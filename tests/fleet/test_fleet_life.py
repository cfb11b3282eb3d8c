"""Machines join a service over TLS, run gangs, are killed, refused and removed: no job is lost, and each refusal is a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from daemon import Daemon, daemon
from test_ray_life import finish, node, start

from fleetmachines import Machines, machines
from processes import PATIENCE_S, left_of, ranks_of, wait_until
from themis.machines.agent.frames import DATA, LOG, Frames, Present
from themis.machines.agent.identity import SERVER_NAME, load, make_token, token_of
from themis.machines.agent.logfile import LogLines
from themis.machines.agent.messages import PROTOCOL
from themis.machines.engines.members import authority_folder
from themis.trust.authority.ca import Authority
from themis.trust.authority.contexts import client_context

pytestmark = pytest.mark.slow
FLEET = ("--engine", "fleet")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Daemon]:
    with daemon(tmp_path / "home", options=FLEET) as found:
        yield found


@pytest.fixture
def fleet(service: Daemon, tmp_path: Path) -> Iterator[Machines]:
    with machines(service.home, tmp_path / "machines") as found:
        yield found


def test_two_machines_join_and_a_gang_runs_over_both(service: Daemon, fleet: Machines, tmp_path: Path) -> None:
    fleet.add("m0", 2)
    fleet.add("m1", 2, "--label", "rack=r7")
    wait_until(lambda: node(service, "m1") == node(service, "m0") == "up 0", lambda: f"both serve\n{service.said()}")
    assert [fleet.member(name).rack for name in ("m0", "m1")] == ["rack0", "r7"]
    app = start(service, tmp_path / "witness", 4, 20)
    finish(service, tmp_path / "witness", [app])


def refused(fleet: Machines, process: subprocess.Popen[bytes], name: str) -> str:
    """What an agent that is refused for good said last."""
    assert process.wait(PATIENCE_S) == 2, fleet.said(name)
    return fleet.said(name).strip().splitlines()[-1]


def test_a_token_joins_one_machine_once_and_each_refusal_is_a_sentence(
    service: Daemon, fleet: Machines, tmp_path: Path
) -> None:
    token = fleet.token()
    assert fleet.join("m0", 2, token).returncode == 0
    again = fleet.join("m1", 2, token)
    assert again.returncode == 2
    assert "this join token was used at" in again.stderr
    assert "by machine m0" in again.stderr
    assert not fleet.state("m1").exists()
    late = fleet.join("m1", 2, fleet.token(ttl_s=-1.0))
    assert "this join token expired at" in late.stderr
    made_up, _ = make_token(Authority.open(authority_folder(service.home)).fingerprint)
    assert "does not know this join token" in fleet.join("m1", 2, made_up).stderr
    other, _ = make_token(Authority.open(tmp_path / "other").fingerprint)
    wrong = fleet.join("m1", 2, other)
    assert wrong.returncode == 2
    assert "fingerprint" in wrong.stderr
    assert "is not a join token" in fleet.join("m1", 2, token[:-4]).stderr
    assert "named 'm0' has joined already" in fleet.join("m0", 2, fleet.token(), "--state", str(tmp_path / "x")).stderr
    for said in (again.stderr, late.stderr, wrong.stderr):
        assert len(said.strip().splitlines()) == 1


def test_two_machines_that_use_one_token_at_the_same_time_do_not_both_join(service: Daemon, fleet: Machines) -> None:
    token = fleet.token()
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda n: fleet.join(f"m{n}", 1, token).returncode, range(4)))
    assert sorted(codes) == [0, 2, 2, 2]


def test_a_machine_that_is_removed_lets_its_jobs_end_and_is_refused_until_it_joins_again(
    service: Daemon, fleet: Machines, tmp_path: Path
) -> None:
    fleet.add("m0", 2)
    fleet.add("m1", 2)
    wait_until(lambda: node(service, "m1") == node(service, "m0") == "up 0", "both serve")
    apps = [start(service, tmp_path / "witness", 2, 100) for _ in range(2)]
    wait_until(lambda: bool(ranks_of(fleet.tasks("m1"))), "a gang runs on it")
    assert fleet.command("m1", "agent", "remove", "m1", "--data-dir", str(service.home)).returncode == 0
    wait_until(lambda: fleet.member("m1").state == "removed", "its jobs ended")
    assert not ranks_of(fleet.tasks("m1"))
    assert node(service, "m1") == ""
    assert "was removed from the service" in refused(fleet, fleet.agents["m1"], "m1")
    assert "was removed from the service" in refused(fleet, fleet.start("m1"), "m1")
    shutil.rmtree(fleet.state("m1"))
    fleet.add("m1", 2)
    wait_until(lambda: node(service, "m1").startswith("up"), "it is back")
    apps.append(start(service, tmp_path / "witness", 4, 10))
    finish(service, tmp_path / "witness", apps)


def test_a_machine_that_is_told_to_leave_is_away_its_jobs_save_and_go_on_elsewhere_and_nothing_of_it_is_left(
    service: Daemon, fleet: Machines, tmp_path: Path
) -> None:
    for name in ("m0", "m1"):
        assert fleet.join(name, 2).returncode == 0
        fleet.start(name, None, "--notice-s", "120")
    wait_until(lambda: node(service, "m1") == node(service, "m0") == "up 0", "both serve")
    apps = [start(service, tmp_path / "witness", 2, 200) for _ in range(2)]
    wait_until(lambda: all(ranks_of(fleet.tasks(name)) for name in ("m0", "m1")), "a gang runs on each")
    # As Slurm does: to all processes of the machine that are not the jobs' own.
    agent = int((fleet.tasks("m1") / "agent.lock").read_text())
    for pid in (agent, fleet.agents["m1"].pid):
        os.kill(pid, signal.SIGTERM)
    assert fleet.agents["m1"].wait(PATIENCE_S) == 0, fleet.said("m1")
    assert not left_of(fleet.tasks("m1"))
    assert node(service, "m1") == "away 0"
    fleet.start("m1", None, "--notice-s", "120")
    wait_until(lambda: node(service, "m1").startswith("up"), "it is back")
    finish(service, tmp_path / "witness", apps)
    with closing(sqlite3.connect(service.home / "journal.db")) as journal:
        endings = {ending for (ending,) in journal.execute("SELECT ending FROM attempts")}
    assert endings == {"finished", "stopped"}


def test_agents_that_lie_are_refused(service: Daemon, fleet: Machines, tmp_path: Path) -> None:
    fleet.add("m0", 2)
    fleet.add("m1", 2)
    wait_until(lambda: node(service, "m1") == node(service, "m0") == "up 0", "both serve")
    # The same token on another machine.
    shutil.copytree(fleet.state("m0"), fleet.state("twin"))
    second = fleet.start("twin")
    assert "machine m0 is connected already, from 127.0.0.1" in refused(fleet, second, "twin")
    assert node(service, "m0") == "up 0"

    def lie(name: str, /, **fields: object) -> str:
        shutil.rmtree(fleet.state("liar"), ignore_errors=True)
        shutil.copytree(fleet.state("m1"), fleet.state("liar"))
        path = fleet.state("liar") / "machine.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "root": str(fleet.tasks(name)), **fields}))
        process = fleet.start(name, fleet.state("liar"))
        wait_until(lambda: bool(fleet.said(name)), "it says why")
        process.terminate()
        process.wait(PATIENCE_S)
        return fleet.said(name).strip().splitlines()[-1]

    fleet.agents["m1"].kill()
    fleet.agents["m1"].wait()
    assert "the token of machine m0 is not the one that it was given last" in lie("as-m0", name="m0")
    assert "machine m1 joined with 2 GPUs gpu, and its agent reports 8 gpu" in lie("more", gpus=8)
    assert "joined with 2 GPUs gpu, and its agent reports 2 H200" in lie("faster", gpu_type="H200")
    fleet.start("m1")
    finish(service, tmp_path / "witness", [start(service, tmp_path / "witness", 4, 10)])


async def sent(fleet: Machines, name: str, *pieces: tuple[bytes, bytes]) -> str:
    """What the service answers to these frames of a machine with its own token, up to the end of the connection."""
    state = fleet.state(name)
    host, _, port = fleet.address.rpartition(":")
    context = client_context((state / "authority.pem").read_text())
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=SERVER_NAME)
    frames, heard = Frames(reader, writer), b""
    machine = load(state)
    await frames.say(
        Present(
            name=name,
            token=token_of(state),
            gpus=machine.gpus,
            gpu_type=machine.gpu_type,
            protocol=PROTOCOL,
            devices=machine.devices,
        )
    )
    with contextlib.suppress(OSError, EOFError):
        for kind, data in pieces:
            await frames.send(kind, data)
        while True:
            heard += (await asyncio.wait_for(frames.read(), PATIENCE_S))[1]
    writer.transport.abort()
    return heard.decode()


def test_a_machine_that_lies_over_tls_is_out_of_service_until_it_is_put_back_and_the_others_go_on(
    service: Daemon, fleet: Machines, tmp_path: Path
) -> None:
    fleet.add("m0", 2)
    fleet.add("m1", 2)
    wait_until(lambda: node(service, "m1") == node(service, "m0") == "up 0", "both serve")
    app = start(service, tmp_path / "witness", 2, 40)
    fleet.agents["m1"].kill()
    fleet.agents["m1"].wait()

    def lie(*pieces: tuple[bytes, bytes]) -> str:
        return asyncio.run(sent(fleet, "m1", *pieces))

    hello = b'{"kind": "Hello", "node": "m1", "trust": "root", "protocol": %d}\n' % PROTOCOL
    log = LogLines.packed("logs/job77-attempt1/rank-0.log", False, b"x" * 100_000)
    assert "a message is nested deeper than 8 levels" in lie(*[(LOG, log)] * 50, (DATA, hello + b"[" * 100_000 + b"\n"))
    assert not [*service.home.glob("run/nodes/*/logs/job77*")]
    assert "a message is nested deeper than 8 levels" in lie((DATA, b"[" * 100_000 + b"\n"))
    assert "it sends a log '../../x'" in lie((LOG, LogLines.packed("../../x", False, b"x")))
    wait_until(lambda: node(service, "m1").startswith("drained"), "an administrator sees it")
    with service.client() as client:
        (row,) = (row for row in client.nodes() if row.name == "m1")
        assert "it sends a log '../../x'" in row.rejected
        client.undrain("m1")
    fleet.start("m1")
    wait_until(
        lambda: node(service, "m1").startswith("up"), lambda: f"it is back\n{service.said()}\n{fleet.said('m1')}"
    )
    finish(service, tmp_path / "witness", [app, start(service, tmp_path / "witness", 4, 10)])
