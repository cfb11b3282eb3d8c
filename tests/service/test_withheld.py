"""GPUs that are withheld get no job, in the core and across restarts; `themis nodes` names the processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fake import World, request, world

from themis.cli.table_columns import NODES
from themis.core.scheduler import Scheduler
from themis.machines.engines.program import GangIntrudes
from themis.model.events import GpusIntruded, GpusWithheld, Grant, JobStarted, JobStopped
from themis.model.log import decode
from themis.schema import messages as schema
from themis.schema.wire import as_dict
from themis.service.api import views
from themis.service.api.submission import submit
from themis.service.engine.journal import read_records

LEFT = GpusWithheld(machine=1, gpus=(2, 3), pids=(4711,), reason="job9-attempt1 left it")


def enter(w: World, name: str, **more: object) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


def test_withheld_gpus_get_no_job_until_they_are_given_back(tmp_path: Path) -> None:
    with world(tmp_path, 2, 2) as w:
        w.say(LEFT)
        enter(w, "a", gpus=(1, 1), jobs=4)
        for _ in range(5):
            w.turn(2.0)
        assert sorted(gpus for gpus in w.held().values()) == [(0,), (1,)]
        row = as_dict(w.ask(views.nodes).nodes[1])
        assert NODES["withheld"](row) == "2: process 4711 (job9-attempt1 left it)"
        w.say(GpusWithheld(machine=1, gpus=()))
        w.turn(2.0)
        assert sorted(w.held().values()) == [(0,), (1,), (2,), (3,)]
        assert NODES["withheld"](as_dict(w.ask(views.nodes).nodes[1])) == ""


def test_a_lease_that_runs_goes_on_and_is_not_renewed_there(tmp_path: Path) -> None:
    with world(tmp_path, 1, 1) as w:
        enter(w, "a")
        ((job, before),) = w.held().items()
        machine = before[0]
        w.say(GpusWithheld(machine=machine, gpus=before, pids=(4711,), reason="not of this service"))
        assert w.held() == {job: before}
        w.turn(5.0)
        assert w.held() == {job: (1 - machine,)}


def test_a_job_that_waits_for_gpus_whose_last_gang_leaves_a_process_does_not_start_there(tmp_path: Path) -> None:
    with world(tmp_path, 1, silent=True, policy="themis") as w:
        enter(w, "a")
        w.say(JobStarted(job=0, attempt=1))
        enter(w, "b")
        while not w.arbiter.engine.core.leases.held_back:
            w.turn(2.0)
            assert w.clock[0] < 1100.0, "b never got a's GPU at the end of its lease"
        w.say(
            GpusWithheld(machine=0, gpus=(0,), pids=(4711,), reason="job0-attempt1 left it"),
            JobStopped(job=0, attempt=1, steps=0.0),
        )
        w.turn(5.0)
        assert granted(w) == [0]
        w.say(GpusWithheld(machine=0, gpus=()))
        w.turn(1.0)
        assert len(granted(w)) == 2


def granted(w: World) -> list[int]:
    """Jobs whose gangs the executor was told to start."""
    return [command.job for command in w.executor.commands if isinstance(command, Grant)]


def test_an_arbiter_that_is_started_again_withholds_them_still_and_hears_each_change_once(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 2, 2, clock=clock) as w:
        w.say(LEFT)
        w.turn(1.0)
    with world(tmp_path, 2, 2, clock=clock) as w:
        assert w.executor.withheld == [1]
        assert w.arbiter.state.withheld == {1: ((2, 3), (4711,), "job9-attempt1 left it")}
        before = w.arbiter.journal.last()[0]
        w.say(LEFT)
        assert w.arbiter.journal.last()[0] == before
        enter(w, "a", gpus=(3, 4))
        w.turn(5.0)
        assert w.held() == {}
        assert "2 are in service" in str(w.ask(lambda a: views.why(a, "a"))[2].sentence)
        w.say(GpusWithheld(machine=1, gpus=()))
        w.turn(1.0)
        assert len(w.held()) == 1


def test_a_state_file_holds_them(tmp_path: Path) -> None:
    from themis.core import checkpoint

    with world(tmp_path, 2, 2) as w:
        w.say(LEFT)
        core = w.arbiter.engine.core
        fresh = Scheduler(w.arbiter.book, core.settings, core.pace, core.needs)
        assert checkpoint.load(checkpoint.save(core), fresh).state.withheld == core.state.withheld


def test_a_gang_on_anothers_gpu_is_named_in_its_own_warning_and_the_holder_keeps_its_gpu(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        for name in ("a", "b"):
            enter(w, name)
        held = w.held()
        (mine,), (theirs,) = held[0], held[1]
        found = GangIntrudes(app=0, job=0, attempt=1, machine=0, gpus=(theirs,), pids=(4711,))

        def warnings() -> list[str]:
            return [str(app.warning) for app in w.ask(lambda a: views.apps(a, schema.AppsRequest())).apps]

        def recorded() -> list[GpusIntruded]:
            rows = read_records(w.arbiter.journal.path, 0, 1000)
            return [record for _, _, kind, line in rows if kind == "GpusIntruded" and (record := decode(line)[1])]  # type: ignore[misc]

        w.say(found, found)
        sentence = f"GPU {theirs} of m0 is used by process 4711 of app 0 (a), which does not hold it"
        assert warnings() == [sentence, ""]
        assert recorded() == [GpusIntruded(job=0, attempt=1, machine=0, gpus=(theirs,), pids=(4711,))]
        w.turn(5.0)
        assert w.held() == held
        assert w.arbiter.state.withheld == {}
        w.say(replace(found, gpus=(), pids=()))
        assert warnings() == ["", ""]
        assert len(recorded()) == 2
        w.say(found)
        w.say(JobStopped(job=0, attempt=1, steps=0.0))
        assert "GPU" not in " ".join(warnings())
        assert mine != theirs
