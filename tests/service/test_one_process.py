"""A command runs once by default, on one machine, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import request, world

from themis.errors import InputError
from themis.machines.engines.hosts import Host, task_specs
from themis.model.cluster import Machine
from themis.model.events import Grant
from themis.service.api.submission import submit
from themis.service.api.views import show


def test_a_job_without_launch_is_one_process_on_one_machine(tmp_path: Path) -> None:
    with world(tmp_path, 2, 4, 2) as w:
        made = w.ask(lambda a: submit(a, request(gpus=(4, 4), launch="")))
        assert made.layout == "1 process, 4 GPUs (ranks: --launch gpu, or torchrun)"
        assert w.ask(lambda a: show(a, "0")).layout == made.layout
        w.turn(1.0)
        assert w.held() == {0: (2, 3, 4, 5)}
        program = w.arbiter.journal.apps("app = 0")[0].programs[0]
        grant = Grant(app=0, job=0, attempt=1, gpus=(2, 3), seat=0, until=9.0, locality=1, target=1.0, score=1.0)
        (spec,) = task_specs(grant, program, [Host(machine=Machine(name="m", gpus=4))], "/c", 4096).values()
        assert (spec.ranks, spec.world_size, spec.gpus) == ((0,), 1, 2)


def test_one_process_that_no_machine_can_hold_is_refused_unless_launch_is_named(tmp_path: Path) -> None:
    with world(tmp_path, 2, 4, 2) as w:
        with pytest.raises(
            InputError, match=r"one process with 5 GPUs, and the largest machine has 4\. .* launch: gpu"
        ):
            w.ask(lambda a: submit(a, request(gpus=(5, 5), launch="")))
        assert w.ask(lambda a: submit(a, request(gpus=(5, 5), launch="gpu"))).layout == "5 GPUs, a rank on each"
        w.ask(lambda a: submit(a, request("b", gpus=(2, 8), launch="")))
        assert w.arbiter.state.job_specs[1].gpus_max == 4
        assert w.ask(lambda a: submit(a, request("c", launch=""))).layout == ""
