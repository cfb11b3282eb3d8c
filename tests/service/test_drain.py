"""Machines that are drained with a deadline: their jobs may end by themselves, none is placed there, the rest is preempted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemon import PROGRAMS, QUICK, daemon
from fake import World, request, world

from processes import PATIENCE_S, wait_until
from themis.model.events import Grant, MachineFailed, MachineReturned, Renew, Revoke
from themis.service.api import views
from themis.service.api.submission import submit


def themis(*words: str, home: Path = Path("/nonexistent")) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "THEMIS_HOME": str(home), "COLUMNS": "200"}
    command = [sys.executable, "-m", "themis.cli", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)


def enter(w: World, name: str, **more: object) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


def nodes(w: World) -> list[str]:
    return [n.state for n in w.ask(views.nodes).nodes]


def test_jobs_on_a_draining_machine_run_on_beyond_their_lease_and_no_others_are_placed_there(tmp_path: Path) -> None:
    with world(tmp_path, 2, 2) as w:
        a, b = enter(w, "a", gpus=(2, 2)), enter(w, "b", gpus=(2, 2))
        on_1 = next(j for j, gpus in w.held().items() if gpus == (2, 3))
        w.ask(lambda x: x.drain(1, True, 60.0))
        assert nodes(w) == ["up", "draining"]
        assert w.ask(views.nodes).nodes[1].until == pytest.approx(w.clock[0] + 60.0, abs=1.0)
        assert any(isinstance(c, Renew) and on_1 in c.jobs and c.until >= 60.0 for c in w.executor.commands)
        enter(w, "c", gpus=(1, 1), jobs=4)
        for _ in range(20):
            w.turn(2.0)
        # Leases are 2 s: elsewhere GPUs changed hands, here the same gang is where it was.
        assert w.held()[on_1] == (2, 3)
        assert not any(isinstance(c, Revoke) and c.job == on_1 for c in w.executor.commands)
        w.finish(on_1)
        assert nodes(w) == ["up", "drained"]
        w.turn(5.0)
        assert not any(set(gpus) & {2, 3} for gpus in w.held().values())
        assert {a, b} == {0, 1}


def test_what_is_left_at_the_deadline_is_preempted(tmp_path: Path) -> None:
    with world(tmp_path, 1, 1) as w:
        enter(w, "a", jobs=2)
        on_1 = next(j for j, gpus in w.held().items() if gpus == (1,))
        w.ask(lambda x: x.drain(1, True, 10.0))
        w.turn(9.0)
        assert w.held()[on_1] == (1,)
        assert w.arbiter.housekeeping.due is not None
        w.turn(1.5)
        assert nodes(w) == ["up", "drained"]
        assert (1,) not in w.held().values()
        last = [c for c in w.executor.commands if on_1 in (c.jobs if isinstance(c, Renew) else [c.job])][-1]  # type: ignore[union-attr]
        assert isinstance(last, Revoke | Grant)
        assert w.arbiter.housekeeping.due is None


def test_an_earlier_deadline_than_the_lease_ends_it_and_a_second_drain_changes_it(tmp_path: Path) -> None:
    with world(tmp_path, 1, lease_s=100.0) as w:
        enter(w, "a")
        w.ask(lambda x: x.drain(0, True, 500.0))
        w.ask(lambda x: x.drain(0, True, 5.0))
        w.turn(6.0)
        assert w.held() == {}
        assert nodes(w) == ["drained"]
        # Draining with a deadline changes nothing where it is out of service already.
        w.ask(lambda x: x.drain(0, True, 50.0))
        assert nodes(w) == ["drained"]


def test_an_empty_machine_is_drained_at_once_and_undrain_puts_a_draining_one_back(tmp_path: Path) -> None:
    with world(tmp_path, 1, 1) as w:
        w.ask(lambda x: x.drain(1, True, 100.0))
        w.turn()
        assert nodes(w) == ["up", "drained"]
        w.ask(lambda x: x.drain(1, False))
        enter(w, "a", gpus=(1, 1), jobs=2)
        assert len(w.held()) == 2
        w.ask(lambda x: x.drain(0, True, 100.0))
        w.ask(lambda x: x.drain(0, False))
        assert nodes(w) == ["up", "up"]
        w.turn(200.0)
        assert nodes(w) == ["up", "up"]


def test_a_gang_that_is_on_another_machine_too_keeps_its_lease_as_it_was(tmp_path: Path) -> None:
    with world(tmp_path, 1, 1) as w:
        enter(w, "a", gpus=(2, 2))
        until = float(w.arbiter.state.jobs.until[0])
        w.ask(lambda x: x.drain(1, True, 100.0))
        assert float(w.arbiter.state.jobs.until[0]) == until
        w.turn(3.0)
        assert w.held() == {}, "the GPU of the other machine is not kept from others"
        assert nodes(w) == ["up", "drained"]


def test_a_draining_machine_may_fail_and_return_and_is_still_draining(tmp_path: Path) -> None:
    with world(tmp_path, 1, 1, silent=True) as w:
        enter(w, "a", gpus=(1, 1), jobs=2)
        w.ask(lambda x: x.drain(1, True, 100.0))
        w.say(MachineFailed(machine=1))
        # Its gang has not let go yet; when it returns nothing new is placed there.
        w.say(MachineReturned(machine=1))
        assert nodes(w) == ["up", "draining"]
        assert (1,) not in w.held().values()


def test_a_drain_goes_on_after_a_restart(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 1, 1, clock=clock) as w:
        enter(w, "a", gpus=(1, 1), jobs=3)
        w.ask(lambda x: x.drain(1, True, 30.0))
    clock[0] += 5.0
    with world(tmp_path, 1, 1, clock=clock) as w:
        w.turn()
        assert nodes(w) == ["up", "draining"]
        assert (1,) in w.held().values()
        w.turn(30.0)
        assert nodes(w) == ["up", "drained"]
    clock[0] += 5.0
    with world(tmp_path, 1, 1, clock=clock) as w:
        assert nodes(w) == ["up", "drained"]
        w.turn(5.0)
        assert (1,) not in w.held().values()


def test_a_deadline_that_passed_while_no_arbiter_ran_ends_at_the_start(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 1, clock=clock) as w:
        enter(w, "a")
        w.ask(lambda x: x.drain(0, True, 30.0))
    clock[0] += 100.0
    with world(tmp_path, 1, clock=clock) as w:
        w.turn()
        assert nodes(w) == ["drained"]
        assert w.held() == {}


@pytest.mark.parametrize("deadline", ["10x", "-5m", "0"])
def test_a_deadline_that_is_none_is_told_in_words(deadline: str) -> None:
    done = themis("drain", "m0", "--deadline", deadline)
    assert done.returncode == 2
    assert f"--deadline is '{deadline}', expected a time such as 90s, 45m" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_job_saves_at_the_deadline_and_goes_on_elsewhere(tmp_path: Path) -> None:
    """Two machines of one GPU; the deadline passes while the arbiter is dead."""
    settings = (*QUICK, "node_lease=30")
    with daemon(tmp_path / "home", options=("--machines", "2x1"), settings=settings) as service:
        command = [sys.executable, "-I", "-S", str(PROGRAMS / "beats.py"), str(tmp_path / "witness"), "9999", "0.05"]
        with service.client() as client:
            app = client.run(command, gpus=1, hours=9999 / 72000).app
            wait_until(lambda: client.show(app).jobs[0].nodes, "it runs")
            (here,) = client.show(app).jobs[0].nodes
            began = time.monotonic()
            done = themis("drain", here, "--deadline", "8s", home=service.home)
            assert f"draining until {time.strftime('%Y-')}" in " ".join(done.stdout.split()), done
            # Leases are 2 s: it outlives its own.
            wait_until(lambda: time.monotonic() - began > 3.0 or client.show(app).jobs[0].nodes != [here], "3 s passed")
            assert list(client.show(app).jobs[0].nodes) == [here], client.show(app)
        service.kill()
        service.up()
        with service.client() as client:
            wait_until(lambda: client.show(app).jobs[0].nodes not in ([here], []), "it goes on elsewhere")
            assert next(n.state for n in client.nodes() if n.name == here) == "drained"
            wait_until(lambda: bool(client.show(app).jobs[0].attempts), "its first attempt ended")
            attempt = client.show(app).jobs[0].attempts[0]
    assert attempt.ending == "stopped"
    assert attempt.steps > 0
