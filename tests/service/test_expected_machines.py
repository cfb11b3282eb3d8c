"""Jobs are accepted while no machine is there, if machines that may come can run them; others are refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import request, world

from themis.errors import InputError
from themis.model.cluster import Machine
from themis.model.events import MachineJoined, MachineResized
from themis.policies.api import policy_names
from themis.service.api import views
from themis.service.api.submission import submit


def test_a_job_waits_for_the_first_machine_and_says_so(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, clock=clock, engine="ray") as w:
        w.ask(lambda a: submit(a, request("a", gpus=(2, 2))))
        row = w.ask(lambda a: views.apps(a, views.schema.AppsRequest())).apps[0]
        assert (row.state, row.waits) == ("waiting", "machines_away")
        assert row.reason == "its smallest job needs 2 GPUs, 0 are in service; it waits until machines join or return"
        reply = w.ask(lambda a: views.why(a, "a", whole=False))[2]
        assert (reply.code, reply.sentence) == ("machines_away", f"{row.reason}.")
    with world(tmp_path, clock=clock, engine="ray") as w:
        w.say(MachineJoined(machine=Machine(name="x", gpus=2)))
        w.turn(1.0)
        assert w.held() == {0: (0, 1)}


def test_a_job_of_a_type_that_has_not_joined_waits_beside_others_that_run(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, clock=clock, engine="ray") as w:
        typed = request("typed")
        typed.jobs[0].gpu_types.append("A100")
        w.ask(lambda a: submit(a, typed))
        w.say(MachineJoined(machine=Machine(name="x", gpus=2, gpu_type="V100")))
        w.ask(lambda a: submit(a, request("any")))
        w.turn(1.0)
        assert list(w.held()) == [1]
        assert (
            "needs 1 GPU of type A100, 0 are in service"
            in w.ask(lambda a: views.why(a, "typed", whole=False))[2].sentence
        )
    with world(tmp_path, clock=clock, engine="ray") as w:
        w.say(MachineJoined(machine=Machine(name="y", gpus=1, gpu_type="A100")))
        assert w.held()[0] == (2,)


def test_machines_that_left_are_expected_back_and_what_they_could_never_run_is_refused(tmp_path: Path) -> None:
    with world(tmp_path, engine="ray") as w:
        w.say(MachineJoined(machine=Machine(name="x", gpus=4)))
        w.say(MachineResized(machine=0, gpus=0))
        w.ask(lambda a: submit(a, request("a", gpus=(4, 4))))
        with pytest.raises(InputError, match="wants at least 5 GPUs; the machines that are expected have 4"):
            w.ask(lambda a: submit(a, request("b", gpus=(5, 5))))
        typed = request("typed")
        typed.jobs[0].gpu_types.append("A100")
        with pytest.raises(InputError, match="of type A100, which no machine has"):
            w.ask(lambda a: submit(a, typed))


def test_expected_machines_say_what_is_refused_before_any_is_there(tmp_path: Path) -> None:
    with world(tmp_path, engine="fleet", expected="2x4@A100+1x8") as w:
        process = request("fits", gpus=(8, 16))
        process.jobs[0].program.launch = "once"
        w.ask(lambda a: submit(a, process))
        assert w.arbiter.state.job_specs[0].gpus_max == 8, "one process, on the largest machine that may come"
        asked = request("ranks", gpus=(16, 16))
        w.ask(lambda a: submit(a, asked))
        process.jobs[0].gpus_min = 16
        with pytest.raises(InputError, match="one process with 16 GPUs, and the largest expected machine has 8"):
            w.ask(lambda a: submit(a, process))
        asked.jobs[0].gpus_min = asked.jobs[0].gpus_max = 17
        with pytest.raises(InputError, match="at least 17 GPUs; the machines that are expected have 16"):
            w.ask(lambda a: submit(a, asked))


@pytest.mark.parametrize("policy", policy_names())
def test_a_job_that_no_machine_there_can_run_delays_no_other_under_any_policy(tmp_path: Path, policy: str) -> None:
    with world(tmp_path, engine="ray", policy=policy) as w:
        typed, wide = request("typed", gpus=(2, 2)), request("wide", gpus=(9, 9))
        typed.jobs[0].gpu_types.append("A100")
        for asked in (typed, wide):
            w.ask(lambda a, asked=asked: submit(a, asked))
        w.say(MachineJoined(machine=Machine(name="x", gpus=2, gpu_type="V100")))
        w.ask(lambda a: submit(a, request("runs")))
        for _ in range(5):
            w.turn(1.0)
        assert list(w.held()) == [2]
        w.say(MachineJoined(machine=Machine(name="y", gpus=2, gpu_type="A100")))
        for _ in range(5):
            w.turn(1.0)
        assert set(w.held()) >= {0}
